//! The host against a controller for tests, in virtual time.

mod faults;
mod hostile;
mod peer;
mod test_network;

use std::time::{Duration, Instant};

use nvmeof_fake_target::{FakeAction, FakeTargetOptions};
use nvmeof_loopback_verbs::DeviceOptions;
use nvmeof_verbs::DeviceLimits;
use nvmeof_wire::Status;
use nvmeof_wire::rdma::RejectStatus;

use self::test_network::{SeedPrinter, TestNetwork, compare, data, io, read, write};
use crate::{CommandError, ConnectOptions, Controller, Error, Io, IoKind};

fn connect(network: &TestNetwork, options: &ConnectOptions) -> Result<Controller, Error> {
    Controller::connect_by(&network.endpoint(), options, network.clone())
}

#[test]
fn the_whole_sequence() {
    let network = TestNetwork::new(1);
    let mut controller =
        connect(&network, &ConnectOptions { depth: 16, ..ConnectOptions::default() }).unwrap();
    let info = controller.info().clone();
    assert_eq!((info.cntlid, info.queues, info.in_capsule), (7, 1, 8192));
    assert_eq!(info.max_transfer, Some(131_072));
    assert_eq!(controller.namespaces().len(), 1);
    let mut queue = controller.open_queue().unwrap();
    {
        let peer = network.peer();
        let (admin, io) = (peer.connections[0].asked, peer.connections[1].asked);
        assert_eq!(
            (admin.qid, admin.entries, admin.host_receives, admin.cntlid),
            (0, 32, 32, None)
        );
        assert_eq!((io.qid, io.entries, io.host_receives, io.cntlid), (1, 17, 17, Some(7)));
    }
    // In the capsule and by key.
    for (token, len) in [(1, 4096), (2, 131_072)] {
        let bytes = data(len, token);
        assert_eq!(network.one(&mut queue, write(token, 8, &bytes)).result, Ok(0));
        let done = network.one(&mut queue, read(token, 8, len));
        assert_eq!((done.token, done.result), (token, Ok(0)));
        assert!(done.buffer.unwrap().as_slice() == bytes, "{len}");
        assert_eq!(network.one(&mut queue, compare(token, 8, &bytes)).result, Ok(0));
        let other = network.one(&mut queue, compare(token, 8, &data(len, 77)));
        let Err(CommandError::Status { status, .. }) = other.result else { panic!("{other:?}") };
        assert_eq!(status.code(), Status::COMPARE_FAILURE);
        assert!(other.buffer.is_some());
    }
    assert_eq!(network.one(&mut queue, io(3, 0, 0, IoKind::Flush)).result, Ok(0));
    drop(queue);
    controller.disconnect().unwrap();
    assert_eq!(network.peer().target.shutdowns(), 1);
    network.is_clean();
}

#[test]
fn every_way_to_move_data() {
    let limits = DeviceOptions::default().limits;
    let one_piece = DeviceLimits { pieces: 1, ..limits };
    let small = DeviceLimits { queue_depth: 3, completions: 8, ..limits };
    let devices = [(limits, 128), (limits, 0), (one_piece, 64), (small, 128), (small, 0)];
    for (seed, (limits, inline)) in (0..).zip(devices) {
        for (in_capsule, icdoff) in [(0, 0), (4096, 0), (8192, 3), (512, 64), (512, 65)] {
            let _seed = SeedPrinter(seed);
            let host = DeviceOptions { limits, inline, ..DeviceOptions::default() };
            let target_options =
                FakeTargetOptions { in_capsule, icdoff, ..FakeTargetOptions::default() };
            let network =
                TestNetwork::with(seed, host, target_options, Box::new(|_, _| FakeAction::Serve));
            let mut controller =
                connect(&network, &ConnectOptions { depth: 8, ..ConnectOptions::default() })
                    .unwrap();
            let mut queue = controller.open_queue().unwrap();
            let is_small = icdoff <= 64;
            assert_eq!(controller.info().in_capsule, if is_small { in_capsule } else { 0 });
            for len in [512, 4096, 8192, 65_536] {
                let blocks = len as u64 / 512;
                let salt = |token| token + len as u64;
                for token in 0..8 {
                    let io = write(token, token * blocks, &data(len, salt(token)));
                    queue.submit(io, 0).unwrap();
                }
                for completed in network.complete(&mut queue, 8).unwrap() {
                    assert_eq!(completed.result, Ok(0), "write of {len}");
                }
                for token in 0..8 {
                    queue.submit(read(token, token * blocks, len), 0).unwrap();
                }
                for completed in network.complete(&mut queue, 8).unwrap() {
                    assert_eq!(completed.result, Ok(0), "read of {len}");
                    let wanted = data(len, salt(completed.token));
                    assert!(completed.buffer.unwrap().as_slice() == wanted, "read of {len}");
                }
            }
            drop(queue);
            controller.disconnect().unwrap();
            network.is_clean();
        }
    }
}

#[test]
fn a_buffer_is_registered_once_and_again_for_what_it_was_not() {
    let network = TestNetwork::new(3);
    let (mut queue, _) = network.queue(4).unwrap();
    let before = network.fabric().counters().regions;
    let bytes = data(65_536, 0);
    let mut buffer = network.one(&mut queue, write(0, 0, &bytes)).buffer.unwrap();
    for token in 0..20 {
        let kind = if token % 2 == 0 {
            IoKind::Read(buffer)
        } else {
            IoKind::Write { data: buffer, fua: false }
        };
        let done = network.one(&mut queue, io(token, 0, 128, kind));
        assert_eq!(done.result, Ok(0));
        buffer = done.buffer.unwrap();
        assert!(buffer.as_slice() == bytes);
        assert_eq!(network.fabric().counters().regions, before + 1);
    }
    // The registration also applies to another queue of the same device, and outlives its queue.
    drop(queue);
    let (mut other, _) = network.queue(4).unwrap();
    let buffer = network.one(&mut other, io(0, 0, 128, IoKind::Read(buffer))).buffer.unwrap();
    drop(other);
    drop(buffer);
    network.is_clean();
}

#[test]
fn no_more_is_sent_than_the_controller_can_take_in() {
    for (claims, receives) in [(Some(2), Some(2)), (Some(0), None), (None, Some(1))] {
        let network = TestNetwork::new(4);
        network.peer().behavior.claims = claims;
        network.peer().behavior.receives = receives;
        let (mut queue, number) = network.queue(8).unwrap();
        for _ in 0..30 {
            for token in 0..8 {
                queue.submit(read(token, 0, 512), 0).unwrap();
            }
            let kind = IoKind::Read(crate::Buffer::zeroed(512));
            let rejected = queue.submit(io(9, 0, 1, kind), 0).unwrap_err();
            assert_eq!(rejected.reason, crate::RejectReason::Full);
            network.complete(&mut queue, 8).unwrap();
        }
        let counters = network.fabric().endpoint(number).unwrap();
        assert!(counters.sends_held <= 9, "{counters:?}");
        // A controller that claims more receives than it has makes the host wait.
        assert_eq!(network.fabric().counters().not_ready > 0, receives == Some(1));
        drop(queue);
        network.is_clean();
    }
}

#[test]
fn a_rejected_connection_says_what_to_do() {
    for (code, says) in [(3, "--jobs"), (4, "--qd"), (6, "no room"), (9, "connect again")] {
        let network = TestNetwork::new(code.into());
        network.peer().behavior.reject = Some(RejectStatus(code));
        let error = connect(&network, &ConnectOptions::default()).unwrap_err();
        assert!(matches!(&error, Error::RejectedCommand { qid: 0, .. }), "{error}");
        assert!(error.to_string().contains(says), "{error}");
        network.is_clean();
    }
    let network = TestNetwork::new(1);
    let nobody = "rdma://192.0.2.7:1/nqn.x".parse().unwrap();
    let error =
        Controller::connect_by(&nobody, &ConnectOptions::default(), network.clone()).unwrap_err();
    assert!(error.to_string().contains("nothing listens for RDMA"), "{error}");
    let asked = ConnectOptions { hdgst: true, ..ConnectOptions::default() };
    let error = connect(&network, &asked).unwrap_err();
    assert!(error.to_string().contains("--hdgst"), "{error}");
    network.is_clean();
}

#[test]
fn a_controller_that_does_not_answer_is_given_up() {
    let network = TestNetwork::new(1);
    network.peer().behavior.silent = true;
    let options =
        ConnectOptions { connect_timeout: Duration::from_millis(20), ..ConnectOptions::default() };
    let error = connect(&network, &options).unwrap_err();
    assert!(matches!(&error, Error::Timeout { .. }), "{error}");
}

#[test]
fn keep_alive_and_discovery_are_the_same_by_rdma() {
    let network = TestNetwork::new(2);
    let options =
        ConnectOptions { keep_alive: Duration::from_millis(60), ..ConnectOptions::default() };
    let mut controller = connect(&network, &options).unwrap();
    let until = Instant::now() + Duration::from_secs(20);
    while network.peer().target.keep_alives() < 3 {
        controller.poll().unwrap();
        network.turn();
        assert!(Instant::now() < until, "no keep alive was sent");
    }
    controller.disconnect().unwrap();
    let endpoint = crate::Endpoint {
        address: network.endpoint().address,
        subnqn: nvmeof_wire::Nqn::discovery(),
    };
    let log = crate::discovery::discover_by(&endpoint, &options, network.clone()).unwrap();
    assert_eq!(log.entries.len(), 3);
    network.is_clean();
}

#[test]
fn what_fits_no_descriptor_is_handed_back() {
    let network = TestNetwork::new(2);
    let (mut queue, _) = network.queue(2).unwrap();
    let kind = IoKind::Read(crate::Buffer::zeroed(1 << 24));
    let rejected = queue.submit(io(1, 0, 1, kind), 0).unwrap_err();
    assert_eq!(rejected.reason, crate::RejectReason::TooLarge);
    assert_eq!(queue.in_flight(), 0);
    // A transfer of zero bytes needs no registration.
    let empty = Io { kind: IoKind::Read(crate::Buffer::zeroed(0)), ..read(2, 0, 512) };
    let done = network.one(&mut queue, empty);
    let Err(CommandError::Status { status, .. }) = done.result else { panic!("{done:?}") };
    assert_eq!(status.code(), Status::DATA_SGL_LENGTH_INVALID);
}
