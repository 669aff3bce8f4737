//! A reactor and a device that completes late.

use std::time::Duration;

use nvmeof_core::block::BlockError;
use nvmeof_nvmf::Failure;
use nvmeof_wire::Status;

use super::KIB;
use super::rig::{Rig, pattern};

const MS: u64 = 1_000_000;
const READ: Duration = Duration::from_micros(1500);
const WRITE: Duration = Duration::from_micros(100);

/// Converts a latency to nanoseconds.
fn nanos(latency: Duration) -> u64 {
    u64::try_from(latency.as_nanos()).unwrap()
}

#[test]
fn all_reads_of_a_queue_wait_together_and_come_at_their_time() {
    let mut rig = Rig::new(None);
    let host = rig.connect_io();
    let data = pattern(1, 4 * KIB);
    host.write_in_capsule(31, 0, &data);
    rig.settle();
    host.take();
    rig.slow(READ, WRITE);
    for cid in 0..31 {
        host.read(cid, 0, 4 * KIB);
    }
    rig.turns_now();
    // All reads wait one latency together, not one each. The reactor has the time to wake up.
    assert_eq!((rig.with_device(), rig.due_in()), (31, Some(nanos(READ))));
    host.write_in_capsule(31, 8, &data);
    rig.turns_now();
    assert_eq!((rig.with_device(), rig.due_in()), (32, Some(nanos(WRITE))));
    rig.turn_after(nanos(WRITE));
    assert_eq!(host.statuses(), [(31, Status::SUCCESS)]);
    rig.turn_after(nanos(READ - WRITE) - 1);
    rig.turns_now();
    assert!(host.statuses().is_empty());
    assert_eq!(rig.due_in(), Some(1));
    rig.turn_after(1);
    let answers = host.take();
    assert!(answers.iter().map(|answer| answer.cqe.cid.get()).eq(0..31), "in the order they came");
    assert!(answers.iter().all(|answer| answer.data == data));
    assert_eq!((rig.with_device(), rig.due_in()), (0, None));
    rig.finish([host]);
}

#[test]
fn a_sleeping_reactor_wakes_for_a_late_command_and_not_before_it_is_due() {
    let mut rig = Rig::new(None);
    let host = rig.connect_io();
    rig.slow(READ, WRITE);
    for cid in 0..5 {
        rig.join_real_time();
        host.read(cid, 0, 4 * KIB);
        rig.turns_now();
        rig.sleep();
        rig.join_real_time();
        assert_eq!(host.statuses(), [(cid, Status::SUCCESS)], "woken before it is due");
    }
    rig.finish([host]);
}

#[test]
fn a_failed_command_is_late_like_any() {
    let mut rig = Rig::new(None);
    let host = rig.connect_io();
    rig.slow(READ, WRITE);
    rig.faults.fail_next(BlockError::NoSpace);
    host.write_in_capsule(1, 0, &pattern(2, 4 * KIB));
    rig.turns_now();
    rig.turn_after(nanos(WRITE) - 1);
    assert!(host.statuses().is_empty());
    rig.turn_after(1);
    assert_eq!(host.statuses(), [(1, Failure::NoSpace.status())]);
    rig.finish([host]);
}

#[test]
fn what_a_budget_holds_back_starts_when_a_late_command_ends() {
    let mut rig = Rig::new(Some(128 * u64::from(KIB)));
    let host = rig.connect_io();
    rig.slow(READ, WRITE);
    for cid in 0..6 {
        host.read(cid, 0, 64 * KIB);
    }
    for round in 0..3 {
        rig.turns_now();
        assert_eq!((rig.with_device(), rig.due_in()), (2, Some(nanos(READ))), "round {round}");
        rig.turn_after(nanos(READ) - 1);
        assert!(host.statuses().is_empty());
        rig.turn_after(1);
        rig.turns_now();
        assert_eq!(host.statuses().len(), 2);
    }
    rig.finish([host]);
}

#[test]
fn a_host_that_leaves_before_its_late_commands_end_leaks_nothing() {
    let mut rig = Rig::new(None);
    let host = rig.connect_io();
    rig.slow(Duration::from_secs(2), Duration::from_secs(2));
    for cid in 0..4 {
        host.read(cid, 0, 64 * KIB);
    }
    rig.turns_now();
    let held = rig.counts().buffers;
    host.close();
    rig.settle();
    // The device owns the buffers until it completes, late or not.
    assert_eq!((rig.counts().buffers, rig.with_device()), (held, 4));
    rig.turn_after(2000 * MS);
    assert_eq!(rig.with_device(), 0);
    rig.finish([host]);
}

#[test]
fn a_device_is_closed_and_a_reactor_drained_when_the_last_late_command_has_ended() {
    let mut rig = Rig::new(None);
    let host = rig.connect_io();
    rig.slow(Duration::from_secs(2), WRITE);
    host.read(1, 0, 64 * KIB);
    rig.turns_now();
    let mut removed = rig.remove_device();
    let mut drained = rig.drain();
    rig.settle();
    assert!(removed.try_recv().is_err() && drained.try_recv().is_err());
    assert!(host.statuses().is_empty());
    rig.turn_after(2000 * MS);
    rig.settle();
    assert_eq!(host.statuses(), [(1, Status::SUCCESS)]);
    assert!(removed.try_recv().is_ok() && drained.try_recv().is_ok());
    rig.finish([host]);
}

/// Accepted commands for a device end there, however late they reach it.
///
/// Another device of another size may have replaced it by then, before the host has learned of it.
#[test]
fn a_device_waits_for_commands_that_have_not_come_to_it() {
    let mut rig = Rig::new(Some(64 * u64::from(KIB)));
    let host = rig.connect_io();
    let data = pattern(1, 64 * KIB);
    host.write_unoffered(1, 0, 64 * KIB);
    // A read that waits for admission.
    host.read(2, 0, 64 * KIB);
    rig.settle();
    assert_eq!((rig.with_device(), rig.counts().requests), (0, 2));
    let mut removed = rig.remove_device();
    rig.settle();
    assert!(removed.try_recv().is_err());
    host.offer(1, data.clone());
    rig.settle();
    let answers = host.take();
    let answered: Vec<_> =
        answers.iter().map(|answer| (answer.cqe.cid.get(), answer.cqe.status())).collect();
    assert_eq!(answered, [(1, Status::SUCCESS), (2, Status::SUCCESS)]);
    assert_eq!(answers[1].data, data);
    rig.settle();
    assert!(removed.try_recv().is_ok());
    rig.finish([host]);
}

/// The commands of a host that leaves no longer delay the removal of the device.
#[test]
fn a_device_waits_for_no_host_that_has_left() {
    let mut rig = Rig::new(Some(64 * u64::from(KIB)));
    let host = rig.connect_io();
    host.write_unoffered(1, 0, 64 * KIB);
    host.read(2, 0, 64 * KIB);
    rig.settle();
    let mut removed = rig.remove_device();
    rig.settle();
    assert!(removed.try_recv().is_err());
    host.close();
    rig.settle();
    rig.settle();
    assert!(removed.try_recv().is_ok());
    rig.finish([host]);
}

/// A command that has not reached a missing device would fail there, and must not keep it open.
///
/// A drive is reopened only after the queues of its predecessor are closed.
#[test]
fn a_device_that_is_gone_waits_for_nobody() {
    let mut rig = Rig::new(None);
    let host = rig.connect_io();
    host.write_unoffered(1, 0, 64 * KIB);
    rig.settle();
    rig.faults.remove();
    let mut removed = rig.remove_device();
    rig.settle();
    assert!(removed.try_recv().is_ok());
    host.offer(1, pattern(1, 64 * KIB));
    rig.settle();
    assert_eq!(host.statuses(), [(1, Failure::DeviceGone.status())]);
    rig.finish([host]);
}

#[test]
fn a_reactor_that_ends_before_its_late_commands_gives_everything_back() {
    let mut rig = Rig::new(Some(256 * u64::from(KIB)));
    let host = rig.connect_io();
    rig.slow(Duration::from_secs(10), WRITE);
    for cid in 0..6 {
        host.read(cid, 0, 64 * KIB);
    }
    rig.turns_now();
    assert_eq!((rig.counts().permits, rig.counts().waiting), (4, 2));
    rig.close_all();
    let counts = rig.counts();
    assert_eq!((counts.permits, counts.waiting, counts.requests), (0, 0, 0));
    // The device owns their buffers until its queue is closed.
    assert_eq!((counts.buffers, rig.with_device()), (4, 4));
}
