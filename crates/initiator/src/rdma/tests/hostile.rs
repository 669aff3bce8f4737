//! A controller with unexpected or malformed responses.

use nvmeof_fake_target::{FakeAction, FakeTargetOptions};
use nvmeof_loopback_verbs::DeviceOptions;
use nvmeof_random::SplitMix64;
use nvmeof_wire::zerocopy::IntoBytes;
use nvmeof_wire::{Cqe, Status};

use super::test_network::{SeedPrinter, TestNetwork, data, read, write};
use crate::{CompletedCommand, Error, IoQueue};

/// Returns a queue with two commands that the controller does not serve.
fn waiting() -> (TestNetwork, IoQueue) {
    let script = |_, _| FakeAction::NoResponse;
    let network = TestNetwork::with(
        1,
        DeviceOptions::default(),
        FakeTargetOptions::default(),
        Box::new(script),
    );
    let (mut queue, _) = network.queue(8).unwrap();
    queue.submit(read(0, 0, 4096), 0).unwrap();
    queue.submit(write(1, 0, &data(65_536, 0)), 0).unwrap();
    let mut done = Vec::new();
    for _ in 0..4 {
        queue.flush().unwrap();
        network.turn();
        queue.poll(0, &mut done).unwrap();
    }
    assert!(done.is_empty());
    (network, queue)
}

/// Returns the host's error after these responses, one after the other; all commands complete.
fn answered(answers: &[(Vec<u8>, Option<u32>)]) -> Error {
    let (network, mut queue) = waiting();
    for (bytes, invalidate) in answers {
        network.peer().connections[0].send_raw(bytes, *invalidate);
    }
    let (error, done) = network.complete(&mut queue, 3).unwrap_err();
    assert_eq!(done.len(), 2, "{error}");
    assert!(done.iter().all(|completed| completed.buffer.is_some()), "{error}");
    drop((queue, done));
    network.is_clean();
    error
}

fn cqe(cid: u16) -> (Vec<u8>, Option<u32>) {
    (Cqe::new(cid, Status::SUCCESS).as_bytes().to_vec(), None)
}

#[test]
fn every_broken_rule_is_named() {
    let cid = |at: usize| {
        let (network, _queue) = waiting();
        let peer = network.peer();
        peer.connections[0].outstanding[at].cid.get()
    };
    let (first, _) = (cid(0), cid(1));
    for (answers, says) in [
        (vec![(vec![0; 15], None)], "15 bytes"),
        (vec![(vec![], None)], "0 bytes"),
        (vec![(vec![0; 17], None)], "17 bytes"),
        (vec![(vec![0; 64], None)], "64 bytes"),
        (vec![cqe(0x0fff)], "not outstanding"),
        (vec![cqe(first ^ 0x1000)], "not outstanding"),
        (vec![cqe(first), cqe(first)], "not outstanding"),
    ] {
        let error = answered(&answers);
        assert!(matches!(error, Error::Misbehaved { .. }), "{error}");
        assert!(error.to_string().contains(says), "{says}: {error}");
    }
    // Longer than the receive: the devices end it.
    let error = answered(&[(vec![0; 65], None)]);
    assert!(matches!(error, Error::Link { .. } | Error::Closed { .. }), "{error}");
}

#[test]
fn an_answer_to_what_was_not_sent_yet_ends_the_connection() {
    let (network, mut queue) = waiting();
    queue.submit(read(2, 0, 4096), 0).unwrap();
    // Slots are used in order, so the identifier is predictable.
    network.peer().connections[0].send_raw(&cqe(2).0, None);
    network.turn();
    let mut done = Vec::new();
    let error = queue.poll(0, &mut done).unwrap_err();
    assert!(error.to_string().contains("not outstanding"), "{error}");
    assert_eq!(done.len(), 3);
}

#[test]
fn a_key_that_is_invalidated_unasked_ends_the_connection() {
    use nvmeof_wire::sgl::Sgl;
    let (network, mut queue) = waiting();
    let sqe = network.peer().connections[0].outstanding[0];
    let Sgl::Keyed { key, .. } = sqe.dptr.parse() else { panic!("{sqe:?}") };
    network.peer().connections[0].send_raw(&cqe(sqe.cid.get()).0, Some(key));
    let (error, done) = network.complete(&mut queue, 3).unwrap_err();
    assert!(matches!(error, Error::Misbehaved { .. }), "{error}");
    assert_eq!(done.len(), 2);
    drop((queue, done));
    network.is_clean();
}

#[test]
fn whatever_a_controller_does_every_command_comes_back_once() {
    for seed in 0..300 {
        let _seed = SeedPrinter(seed);
        let mut rng = SplitMix64::new(seed);
        let host =
            DeviceOptions { inline: 64 * u32::from(seed % 3 > 0), ..DeviceOptions::default() };
        let salt = rng.next_u64();
        let script = move |number: u64, _| match (number ^ salt) % 5 {
            0 => FakeAction::NoResponse,
            1 => FakeAction::Fail(Status::INTERNAL_ERROR),
            _ => FakeAction::Serve,
        };
        let network = TestNetwork::with(seed, host, FakeTargetOptions::default(), Box::new(script));
        let (mut queue, number) = network.queue(8).unwrap();
        let (mut submitted, mut done) = (0, Vec::new());
        let mut failed = false;
        for _ in 0..40 {
            for _ in 0..rng.below(4) {
                let len = 512 << rng.below(8);
                let io = if rng.below(2) == 0 {
                    read(submitted, 0, len)
                } else {
                    write(submitted, 0, &data(len, 1))
                };
                submitted += u64::from(queue.submit(io, 0).is_ok());
            }
            failed |= queue.flush().is_err();
            if rng.below(2) == 0 {
                network.turn();
            }
            misbehave(&network, &mut rng);
            failed |= queue.poll(0, &mut done).is_err();
            if failed {
                break;
            }
            if rng.below(3) == 0 {
                queue.wait(std::time::Duration::ZERO);
            }
        }
        if !failed || queue.in_flight() > 0 {
            // Lets the commands without a response time out.
            let _ = queue.poll(u64::MAX, &mut done);
        }
        all_back(&done, submitted);
        assert_eq!(queue.in_flight(), 0);
        assert!(network.fabric().endpoint(number).is_none() || submitted == done.len() as u64);
        drop((queue, done));
        network.is_clean();
    }
}

fn misbehave(network: &TestNetwork, rng: &mut SplitMix64) {
    let mut peer = network.peer();
    let Some(connection) = peer.connections.first_mut() else { return };
    let outstanding = connection.outstanding.len() as u64;
    match rng.below(24) {
        0 => {
            let len = usize::try_from(rng.below(80)).unwrap();
            let bytes: Vec<u8> = (0..len).map(|_| rng.next_u64().to_le_bytes()[0]).collect();
            connection.send_raw(&bytes, None);
        }
        1 => connection.send_raw(&cqe(rng.next_u64().to_le_bytes()[0].into()).0, None),
        2..=4 if outstanding > 0 => {
            let at = usize::try_from(rng.below(outstanding)).unwrap();
            let cid = connection.outstanding[at].cid.get();
            connection.send_raw(&cqe(cid).0, None);
        }
        5 => {
            let key = u32::from(rng.next_u64().to_le_bytes()[0]);
            connection.send_raw(&[0; 16], Some(key));
        }
        6 => connection.hang_up(),
        _ => {}
    }
}

fn all_back(done: &[CompletedCommand], submitted: u64) {
    let mut tokens: Vec<_> = done.iter().map(|completed| completed.token).collect();
    tokens.sort_unstable();
    assert_eq!(tokens, (0..submitted).collect::<Vec<_>>());
    assert!(done.iter().all(|completed| completed.buffer.is_some()));
}
