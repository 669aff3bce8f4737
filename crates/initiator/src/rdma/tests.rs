//! The host against a controller for tests, in virtual time.

mod faults;
mod hostile;
mod peer;
mod world;

use std::time::{Duration, Instant};

use nvmeof_fake_target::{Act, Traits};
use nvmeof_loopback_verbs::DeviceOptions;
use nvmeof_verbs::DeviceLimits;
use nvmeof_wire::Status;
use nvmeof_wire::rdma::RejectStatus;

use self::world::{Seed, World, compare, data, io, read, write};
use crate::{CommandError, Controller, Error, Io, IoKind, Options};

fn connect(world: &World, options: &Options) -> Result<Controller, Error> {
    Controller::connect_by(&world.endpoint(), options, world.clone())
}

#[test]
fn the_whole_sequence() {
    let world = World::new(1);
    let mut controller = connect(&world, &Options { depth: 16, ..Options::default() }).unwrap();
    let info = controller.info().clone();
    assert_eq!((info.cntlid, info.queues, info.in_capsule), (7, 1, 8192));
    assert_eq!(info.max_transfer, Some(131_072));
    assert_eq!(controller.namespaces().len(), 1);
    let mut queue = controller.open_queue().unwrap();
    {
        let peer = world.peer();
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
        assert_eq!(world.one(&mut queue, write(token, 8, &bytes)).result, Ok(0));
        let done = world.one(&mut queue, read(token, 8, len));
        assert_eq!((done.token, done.result), (token, Ok(0)));
        assert!(done.buffer.unwrap().as_slice() == bytes, "{len}");
        assert_eq!(world.one(&mut queue, compare(token, 8, &bytes)).result, Ok(0));
        let other = world.one(&mut queue, compare(token, 8, &data(len, 77)));
        let Err(CommandError::Status { status, .. }) = other.result else { panic!("{other:?}") };
        assert_eq!(status.code(), Status::COMPARE_FAILURE);
        assert!(other.buffer.is_some());
    }
    assert_eq!(world.one(&mut queue, io(3, 0, 0, IoKind::Flush)).result, Ok(0));
    drop(queue);
    controller.disconnect().unwrap();
    assert_eq!(world.peer().target.shutdowns(), 1);
    world.is_clean();
}

#[test]
fn every_way_to_move_data() {
    let limits = DeviceOptions::default().limits;
    let one_piece = DeviceLimits { pieces: 1, ..limits };
    let small = DeviceLimits { queue_depth: 3, completions: 8, ..limits };
    let devices = [(limits, 128), (limits, 0), (one_piece, 64), (small, 128), (small, 0)];
    for (seed, (limits, inline)) in (0..).zip(devices) {
        for (in_capsule, icdoff) in [(0, 0), (4096, 0), (8192, 3), (512, 64), (512, 65)] {
            let _seed = Seed(seed);
            let host = DeviceOptions { limits, inline, ..DeviceOptions::default() };
            let traits = Traits { in_capsule, icdoff, ..Traits::default() };
            let world = World::with(seed, host, traits, Box::new(|_, _| Act::Serve));
            let mut controller =
                connect(&world, &Options { depth: 8, ..Options::default() }).unwrap();
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
                for completed in world.complete(&mut queue, 8).unwrap() {
                    assert_eq!(completed.result, Ok(0), "write of {len}");
                }
                for token in 0..8 {
                    queue.submit(read(token, token * blocks, len), 0).unwrap();
                }
                for completed in world.complete(&mut queue, 8).unwrap() {
                    assert_eq!(completed.result, Ok(0), "read of {len}");
                    let wanted = data(len, salt(completed.token));
                    assert!(completed.buffer.unwrap().as_slice() == wanted, "read of {len}");
                }
            }
            drop(queue);
            controller.disconnect().unwrap();
            world.is_clean();
        }
    }
}

#[test]
fn a_buffer_is_registered_once_and_again_for_what_it_was_not() {
    let world = World::new(3);
    let (mut queue, _) = world.queue(4).unwrap();
    let before = world.fabric().counters().regions;
    let bytes = data(65_536, 0);
    let mut buffer = world.one(&mut queue, write(0, 0, &bytes)).buffer.unwrap();
    for token in 0..20 {
        let kind = if token % 2 == 0 {
            IoKind::Read(buffer)
        } else {
            IoKind::Write { data: buffer, fua: false }
        };
        let done = world.one(&mut queue, io(token, 0, 128, kind));
        assert_eq!(done.result, Ok(0));
        buffer = done.buffer.unwrap();
        assert!(buffer.as_slice() == bytes);
        assert_eq!(world.fabric().counters().regions, before + 1);
    }
    // The registration also applies to another queue of the same device, and outlives its queue.
    drop(queue);
    let (mut other, _) = world.queue(4).unwrap();
    let buffer = world.one(&mut other, io(0, 0, 128, IoKind::Read(buffer))).buffer.unwrap();
    drop(other);
    drop(buffer);
    world.is_clean();
}

#[test]
fn no_more_is_sent_than_the_controller_can_take_in() {
    for (claims, receives) in [(Some(2), Some(2)), (Some(0), None), (None, Some(1))] {
        let world = World::new(4);
        world.peer().manners.claims = claims;
        world.peer().manners.receives = receives;
        let (mut queue, number) = world.queue(8).unwrap();
        for _ in 0..30 {
            for token in 0..8 {
                queue.submit(read(token, 0, 512), 0).unwrap();
            }
            let kind = IoKind::Read(crate::Buffer::zeroed(512));
            let rejected = queue.submit(io(9, 0, 1, kind), 0).unwrap_err();
            assert_eq!(rejected.why, crate::RejectReason::Full);
            world.complete(&mut queue, 8).unwrap();
        }
        let counters = world.fabric().endpoint(number).unwrap();
        assert!(counters.sends_held <= 9, "{counters:?}");
        // A controller that claims more receives than it has makes the host wait.
        assert_eq!(world.fabric().counters().not_ready > 0, receives == Some(1));
        drop(queue);
        world.is_clean();
    }
}

#[test]
fn a_rejected_connection_says_what_to_do() {
    for (code, says) in [(3, "--jobs"), (4, "--qd"), (6, "no room"), (9, "connect anew")] {
        let world = World::new(code.into());
        world.peer().manners.reject = Some(RejectStatus(code));
        let error = connect(&world, &Options::default()).unwrap_err();
        assert!(matches!(&error, Error::Rejected { qid: 0, .. }), "{error}");
        assert!(error.to_string().contains(says), "{error}");
        world.is_clean();
    }
    let world = World::new(1);
    let nobody = "rdma://192.0.2.7:1/nqn.x".parse().unwrap();
    let error = Controller::connect_by(&nobody, &Options::default(), world.clone()).unwrap_err();
    assert!(error.to_string().contains("nothing listens for RDMA"), "{error}");
    let asked = Options { hdgst: true, ..Options::default() };
    let error = connect(&world, &asked).unwrap_err();
    assert!(error.to_string().contains("--hdgst"), "{error}");
    world.is_clean();
}

#[test]
fn a_controller_that_does_not_answer_is_given_up() {
    let world = World::new(1);
    world.peer().manners.silent = true;
    let options = Options { connect_timeout: Duration::from_millis(20), ..Options::default() };
    let error = connect(&world, &options).unwrap_err();
    assert!(matches!(&error, Error::Timeout { .. }), "{error}");
}

#[test]
fn keep_alive_and_discovery_are_the_same_by_rdma() {
    let world = World::new(2);
    let options = Options { keep_alive: Duration::from_millis(60), ..Options::default() };
    let mut controller = connect(&world, &options).unwrap();
    let until = Instant::now() + Duration::from_secs(20);
    while world.peer().target.keep_alives() < 3 {
        controller.poll().unwrap();
        world.turn();
        assert!(Instant::now() < until, "no keep alive was sent");
    }
    controller.disconnect().unwrap();
    let endpoint = crate::Endpoint {
        address: world.endpoint().address,
        subnqn: nvmeof_wire::Nqn::discovery(),
    };
    let log = crate::discovery::discover_by(&endpoint, &options, world.clone()).unwrap();
    assert_eq!(log.entries.len(), 3);
    world.is_clean();
}

#[test]
fn what_fits_no_descriptor_is_handed_back() {
    let world = World::new(2);
    let (mut queue, _) = world.queue(2).unwrap();
    let kind = IoKind::Read(crate::Buffer::zeroed(1 << 24));
    let rejected = queue.submit(io(1, 0, 1, kind), 0).unwrap_err();
    assert_eq!(rejected.why, crate::RejectReason::TooLarge);
    assert_eq!(queue.in_flight(), 0);
    // A transfer of zero bytes needs no registration.
    let empty = Io { kind: IoKind::Read(crate::Buffer::zeroed(0)), ..read(2, 0, 512) };
    let done = world.one(&mut queue, empty);
    let Err(CommandError::Status { status, .. }) = done.result else { panic!("{done:?}") };
    assert_eq!(status.code(), Status::DATA_SGL_LENGTH_INVALID);
}
