//! Timers: Connect, keep-alive, idle associations.

use nvmeof_wire::features::Fid;
use nvmeof_wire::nqn::DISCOVERY_NQN;
use nvmeof_wire::opcode::{AdminOpcode, IoOpcode};
use nvmeof_wire::properties::CC_SHN_NORMAL;
use nvmeof_wire::{Sqe, Status};

use super::support::*;
use crate::{Limits, TeardownReason};

const MILLISECOND: u64 = SECOND / 1000;

fn keep_alive() -> Sqe {
    Sqe::admin(AdminOpcode::KEEP_ALIVE, 0, 0)
}

fn flush() -> Sqe {
    Sqe::io(IoOpcode::FLUSH, 0, 1)
}

fn with_kato(subsystem: &str, kato_ms: u32) -> ConnectRequest {
    let mut request = ConnectRequest::admin(subsystem);
    request.command.kato_ms = kato_ms;
    request
}

/// Asserts that the deadline expires at `at`, and not one nanosecond earlier.
#[track_caller]
fn expires(link: &mut Link, at: u64, reason: TeardownReason) {
    assert_eq!(link.queue.deadline(), Some(at));
    link.queue.handle_timeout(at - 1);
    assert_eq!(link.queue.is_dead(), None);
    link.queue.handle_timeout(at);
    assert_eq!(link.queue.is_dead(), Some(reason));
    assert_eq!(link.queue.deadline(), None);
}

#[test]
fn connect_must_come_in_time() {
    let mut link = Link::new(&target(), PORT);
    expires(&mut link, 30 * SECOND, TeardownReason::ConnectTimeout);
}

#[test]
fn a_dead_host_loses_its_controller_on_time() {
    let target = target();
    let (mut admin, cntlid) = connect_admin(&target, &with_kato(SUBSYSTEM, 5000));
    admin.now = SECOND;
    admin.enable();
    let io = connect_io(&target, cntlid, 1);
    assert_eq!(admin.queue.deadline(), Some(6 * SECOND));
    admin.now = 4 * SECOND;
    admin.run(keep_alive(), &[]).ok();
    assert_eq!(admin.queue.deadline(), Some(9 * SECOND));
    // Any other command restarts the timer, too.
    admin.now = 6 * SECOND;
    admin.csts();
    assert_eq!(admin.queue.deadline(), Some(11 * SECOND));
    admin.now = 7 * SECOND;
    admin.run(get_feature(Fid::KEEP_ALIVE_TIMER), &[]).ok();
    let epoch = target.epoch();
    expires(&mut admin, 12 * SECOND, TeardownReason::KeepAlive);
    assert!(target.epoch() > epoch);
    assert_eq!(io.queue.is_dead(), Some(TeardownReason::KeepAlive));
    assert_eq!(io.queue.deadline(), None);
    assert_eq!(target.counts().controllers, 0);
    assert_eq!(admin.run(keep_alive(), &[]).code(), Status::ABORTED_SQ_DELETION);
}

#[test]
fn traffic_on_an_io_queue_keeps_the_association_alive() {
    let target = target();
    let (mut admin, cntlid) = connect_admin(&target, &with_kato(SUBSYSTEM, 5000));
    admin.enable();
    let mut io = connect_io(&target, cntlid, 1);
    let mut other = connect_io(&target, cntlid, 2);
    let due = |admin: &mut Link, at| {
        assert_eq!(admin.queue.deadline(), Some(at));
        admin.queue.handle_timeout(at);
        assert_eq!(admin.queue.is_dead(), None);
    };
    // A command that arrives, and later its completion.
    let cid = io.io(flush()).cid;
    due(&mut admin, 5 * SECOND);
    io.queue.complete(cid, Ok(()));
    due(&mut admin, 10 * SECOND);
    // A queue that has gone since.
    other.io(flush());
    drop(other.queue.handle_disconnect());
    due(&mut admin, 15 * SECOND);
    // The timer counts from its own expiry, also for a target that is late.
    io.io(flush());
    admin.queue.handle_timeout(22 * SECOND);
    expires(&mut admin, 27 * SECOND, TeardownReason::KeepAlive);
}

#[test]
fn no_keep_alive_no_deadline() {
    let (mut admin, _) = enabled_admin(&target());
    assert_eq!(admin.queue.deadline(), None);
    admin.queue.handle_timeout(u64::MAX);
    assert_eq!(admin.queue.is_dead(), None);
    admin.run(keep_alive(), &[]).ok();
}

#[test]
fn short_timeouts_are_rounded_up() {
    let target = target_with(Limits { keep_alive_min_ms: 500, ..limits() });
    for (asked, given) in [(1, 500), (500, 500), (501, 1000), (1200, 1500)] {
        let (mut link, _) = connect_admin(&target, &with_kato(SUBSYSTEM, asked));
        link.enable();
        assert_eq!(link.queue.deadline(), Some(given * MILLISECOND));
        assert_eq!(link.run(get_feature(Fid::KEEP_ALIVE_TIMER), &[]).ok().result(), given);
    }
}

#[test]
fn set_features_restarts_the_timer_with_the_new_timeout() {
    let (mut link, _) = connect_admin(&target(), &with_kato(SUBSYSTEM, 5000));
    link.enable();
    link.now = 3 * SECOND;
    let set = |kato| set_feature(Fid::KEEP_ALIVE_TIMER, kato);
    link.run(set(10_000), &[]).ok();
    assert_eq!(link.queue.deadline(), Some(13 * SECOND));
    // Fabrics require the timer: a Connect may omit it, but Set Features cannot disable it.
    link.run(set(0), &[]).fails(Status::KEEP_ALIVE_INVALID);
    assert_eq!(link.queue.deadline(), Some(13 * SECOND));
    link.run(set(2000), &[]).ok();
    expires(&mut link, 5 * SECOND, TeardownReason::KeepAlive);
}

#[test]
fn an_association_that_is_not_enabled_is_given_up() {
    let (mut link, _) = connect_admin(&target(), &with_kato(SUBSYSTEM, 5000));
    // The keep-alive timer does not run yet.
    expires(&mut link, 120 * SECOND, TeardownReason::Idle);

    let (mut link, _) = connect_admin(&target(), &with_kato(SUBSYSTEM, 5000));
    link.enable();
    link.now = SECOND;
    link.set_cc(enabled().with_en(false)).ok();
    assert_eq!(link.queue.deadline(), Some(121 * SECOND));
    link.now = 50 * SECOND;
    link.enable();
    assert_eq!(link.queue.deadline(), Some(55 * SECOND));
    link.set_cc(enabled().with_shn(CC_SHN_NORMAL)).ok();
    expires(&mut link, 170 * SECOND, TeardownReason::Idle);
}

#[test]
fn discovery_controllers_without_keep_alive_live_by_activity() {
    let target = target();
    let (mut link, _) = connect_admin(&target, &ConnectRequest::admin(DISCOVERY_NQN));
    link.enable();
    assert_eq!(link.queue.deadline(), Some(120 * SECOND));
    link.now = 100 * SECOND;
    link.run(keep_alive(), &[]).ok();
    expires(&mut link, 220 * SECOND, TeardownReason::Idle);

    let (mut persistent, _) = connect_admin(&target, &with_kato(DISCOVERY_NQN, 30_000));
    persistent.enable();
    expires(&mut persistent, 30 * SECOND, TeardownReason::KeepAlive);
}
