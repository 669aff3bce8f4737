//! Failures without a hostile peer.

use nvmeof_fake_target::{FakeAction, FakeTargetOptions};
use nvmeof_loopback_verbs::{DeviceOptions, Side};

use super::test_network::{TIMEOUT, TestNetwork, data, read, write};
use crate::{CommandError, CompletedCommand, Error, IoQueue, RejectReason};

/// Later than every deadline and every check of it.
const LATE: u64 = 2 * TIMEOUT;

/// Lets the commands time out: everything completes, and only after no device uses it.
fn time_out(network: &TestNetwork, queue: &mut IoQueue, number: u32) -> Vec<CompletedCommand> {
    let mut done = Vec::new();
    assert!(network.fabric().endpoint(number).is_some());
    let error = queue.poll(LATE, &mut done).unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
    assert!(network.fabric().endpoint(number).is_none(), "the queue pair is gone first");
    assert_eq!(queue.in_flight(), 0);
    assert_eq!(queue.submit(read(9, 0, 512), LATE).unwrap_err().reason, RejectReason::Closed);
    done
}

fn turn(network: &TestNetwork, queue: &mut IoQueue) -> Vec<CompletedCommand> {
    let mut done = Vec::new();
    for _ in 0..20 {
        queue.flush().unwrap();
        network.turn();
        queue.poll(0, &mut done).unwrap();
    }
    done
}

#[test]
fn a_response_that_is_lost_ends_in_a_timeout() {
    let network = TestNetwork::new(1);
    let (mut queue, number) = network.queue(4).unwrap();
    network.fabric().faults().lose_completion(number, Side::Receive, 1);
    for token in 0..3 {
        queue.submit(read(token, 0, 4096), 0).unwrap();
    }
    let answered = turn(&network, &mut queue);
    assert_eq!(answered.len(), 2);
    let done = time_out(&network, &mut queue, number);
    assert_eq!(done.len(), 1);
    assert_eq!(done[0].result, Err(CommandError::TimedOut));
    assert!(done[0].buffer.is_some());
    drop((queue, done, answered));
    network.is_clean();
}

#[test]
fn a_command_is_not_over_before_its_capsule_has_left() {
    for (inline, len) in [(128, 4096), (0, 65_536)] {
        let host = DeviceOptions { inline, ..DeviceOptions::default() };
        let network = TestNetwork::with(
            1,
            host,
            FakeTargetOptions::default(),
            Box::new(|_, _| FakeAction::Serve),
        );
        let (mut queue, number) = network.queue(4).unwrap();
        network.fabric().faults().lose_completion(number, Side::Send, 0);
        queue.submit(write(1, 0, &data(len, 0)), 0).unwrap();
        assert!(turn(&network, &mut queue).is_empty());
        assert!(network.peer().connections[0].outstanding.is_empty(), "it was answered");
        assert_eq!(queue.in_flight(), 1);
        let done = time_out(&network, &mut queue, number);
        assert!(done[0].buffer.is_some());
        drop((queue, done));
        network.is_clean();
    }
}

#[test]
fn the_completion_of_a_later_send_ends_the_earlier_too() {
    let network = TestNetwork::new(1);
    let (mut queue, number) = network.queue(4).unwrap();
    network.fabric().faults().lose_completion(number, Side::Send, 0);
    queue.submit(write(1, 0, &data(4096, 0)), 0).unwrap();
    assert!(turn(&network, &mut queue).is_empty());
    queue.submit(write(2, 0, &data(4096, 0)), 0).unwrap();
    assert_eq!(turn(&network, &mut queue).len(), 2);
}

#[test]
fn a_controller_without_receives_is_waited_for_until_the_timeout() {
    let network = TestNetwork::new(1);
    network.peer().behavior.receives = Some(0);
    let (mut queue, number) = network.queue(4).unwrap();
    queue.submit(read(1, 0, 4096), 0).unwrap();
    queue.submit(write(2, 0, &data(4096, 0)), 0).unwrap();
    assert!(turn(&network, &mut queue).is_empty());
    let done = time_out(&network, &mut queue, number);
    assert_eq!(done.len(), 2);
    assert!(done.iter().all(|completed| completed.buffer.is_some()));
    drop((queue, done));
    network.is_clean();
}

#[test]
fn a_queue_that_is_dropped_amid_everything_takes_its_memory_from_the_device_first() {
    for inline in [0, 128] {
        let host = DeviceOptions { inline, ..DeviceOptions::default() };
        let network = TestNetwork::with(
            9,
            host,
            FakeTargetOptions::default(),
            Box::new(|_, _| FakeAction::Serve),
        );
        let (mut queue, _) = network.queue(8).unwrap();
        for token in 0..4 {
            queue.submit(write(token, 0, &data(4096 << (token % 3), 0)), 0).unwrap();
            queue.submit(read(token + 4, 0, 4096), 0).unwrap();
        }
        queue.flush().unwrap();
        drop(queue);
        network.is_clean();
    }
}

/// Submits three reads, of which the third meets `action`.
fn third_read(action: FakeAction) -> Result<Vec<CompletedCommand>, (Error, Vec<CompletedCommand>)> {
    let script = move |number: u64, _| if number == 2 { action } else { FakeAction::Serve };
    let network = TestNetwork::with(
        5,
        DeviceOptions::default(),
        FakeTargetOptions::default(),
        Box::new(script),
    );
    let (mut queue, _) = network.queue(4).unwrap();
    for token in 0..3 {
        queue.submit(read(token, 0, 4096), 0).unwrap();
    }
    let result = network.complete(&mut queue, 3);
    drop(queue);
    result
}

#[test]
fn a_failed_command_is_alone_and_a_lost_connection_gives_all_back() {
    let status = nvmeof_wire::Status::UNRECOVERED_READ_ERROR;
    let done = third_read(FakeAction::Fail(status)).unwrap();
    assert_eq!(done[2].result, Err(CommandError::Status { status, dw0: 0 }));
    let (error, done) = third_read(FakeAction::HangUp).unwrap_err();
    assert!(matches!(error, Error::Closed { .. }), "{error}");
    assert_eq!(done.len(), 3);
    assert!(done.iter().all(|completed| completed.buffer.is_some()));
    assert_eq!(done[2].result, Err(CommandError::ConnectionLost));
}

/// Applies `what` to a queue with outstanding commands. Returns its error, after all commands have
/// completed.
fn struck(what: impl Fn(&TestNetwork, u32)) -> Error {
    let script = |_, _| FakeAction::NoResponse;
    let network = TestNetwork::with(
        6,
        DeviceOptions::default(),
        FakeTargetOptions::default(),
        Box::new(script),
    );
    let (mut queue, number) = network.queue(8).unwrap();
    queue.submit(read(0, 0, 4096), 0).unwrap();
    queue.submit(write(1, 0, &data(4096, 0)), 0).unwrap();
    assert!(turn(&network, &mut queue).is_empty());
    what(&network, number);
    // Rejected if the memory cannot be registered any more.
    let taken = 2 + u64::from(queue.submit(write(2, 0, &data(65_536, 0)), 0).is_ok());
    let (error, done) = network.complete(&mut queue, 3).unwrap_err();
    let mut tokens: Vec<_> = done.iter().map(|completed| completed.token).collect();
    tokens.sort_unstable();
    assert_eq!(tokens, (0..taken).collect::<Vec<_>>(), "{error}");
    assert!(done.iter().all(|completed| completed.buffer.is_some()));
    assert!(network.fabric().endpoint(number).is_none());
    assert_eq!(queue.in_flight(), 0);
    drop((queue, done));
    network.fabric().advance(10_000_000_000);
    network.is_clean();
    error
}

#[test]
fn what_happens_to_the_connection_is_said() {
    for (what, says) in [
        (
            Box::new(|w: &TestNetwork, _| w.fabric().faults().remove_device(w.host())) as Strike,
            "removed",
        ),
        (Box::new(|w, n| w.fabric().faults().address_changed(n)), "address"),
        (Box::new(|w, n| w.fabric().faults().queue_pair_error(n)), "error state"),
        (Box::new(|w, n| w.fabric().faults().break_at(n, 0)), "error state"),
        (Box::new(|w, n| w.fabric().faults().unreachable(n, 0)), "stopped responding"),
        (Box::new(|w, n| w.fabric().faults().refuse_send(n, 0, 0)), "0 work requests"),
        (Box::new(|w, _| w.peer().connections[0].hang_up()), "closed the connection"),
    ] {
        let error = struck(what);
        assert!(error.to_string().contains(says), "{says}: {error}");
    }
}

type Strike = Box<dyn Fn(&TestNetwork, u32)>;

#[test]
fn memory_that_cannot_be_registered_is_said_and_nothing_is_lost() {
    let network = TestNetwork::new(7);
    let (mut queue, number) = network.queue(8).unwrap();
    queue.submit(read(0, 0, 4096), 0).unwrap();
    network.fabric().faults().refuse_register(network.host(), 0);
    let rejected = queue.submit(read(1, 0, 4096), 0).unwrap_err();
    assert_eq!(rejected.reason, RejectReason::Closed);
    let mut done = Vec::new();
    let error = queue.poll(0, &mut done).unwrap_err();
    assert!(error.to_string().contains("ulimit -l"), "{error}");
    assert_eq!(done.len(), 1);
    assert!(network.fabric().endpoint(number).is_none());
    drop((queue, done, rejected));
    network.is_clean();
}

#[test]
fn a_queue_that_cannot_be_made_leaves_nothing() {
    type Fault = fn(&TestNetwork);
    let faults: [Fault; 4] = [
        |network| network.fabric().faults().refuse_open(network.host(), 0),
        |network| network.fabric().faults().refuse_register(network.host(), 0),
        |network| network.fabric().faults().refuse_register(network.host(), 1),
        |network| network.fabric().faults().remove_device(network.host()),
    ];
    for fault in faults {
        let network = TestNetwork::new(8);
        fault(&network);
        let error = network.queue(4).unwrap_err();
        assert!(matches!(error, Error::Verbs { .. }), "{error}");
        network.is_clean();
    }
}
