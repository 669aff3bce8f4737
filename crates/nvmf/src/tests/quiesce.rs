//! The successor of a controller or a queue waits until the commands of the old one have completed.

use nvmeof_wire::fabrics::Disconnect;
use nvmeof_wire::features::Fid;
use nvmeof_wire::nvm::BlockIo;
use nvmeof_wire::opcode::IoOpcode;
use nvmeof_wire::{Sgl, Sqe, Status};

use super::support::*;
use crate::quiesce::REACTION;
use crate::{Access, DeviceId, Disposition, TeardownReason};

fn read() -> Sqe {
    let read = BlockIo::new(0, 1).encode(IoOpcode::READ, 0, 1);
    read.with_sgl(Sgl::Transport { length: 512 })
}

/// Sends a Connect and its data, and asserts that it waits.
#[track_caller]
fn waits(request: &ConnectRequest, link: &mut Link, now: u64) {
    let mut sqe = request.sqe();
    sqe.cid.set(link.cid());
    let disposition = link.queue.handle_command(&sqe, 0, now);
    assert!(matches!(disposition, Disposition::Receive { .. }));
    let disposition = link.queue.handle_data(&sqe, &request.data(), now);
    assert_eq!(disposition, Disposition::Held);
    assert!(link.queue.poll_connect(now).is_none());
}

/// Status of a Connect that waited.
#[track_caller]
fn decided(link: &mut Link, now: u64) -> Status {
    let (_, disposition) = link.queue.poll_connect(now).expect("it is decided");
    answer(disposition).code()
}

#[test]
fn the_same_host_waits_for_the_commands_of_its_association_before() {
    let target = target();
    let (mut admin, cntlid) = enabled_admin(&target);
    let mut io = connect_io(&target, cntlid, 1);
    io.io(read());
    let guard = io.queue.handle_disconnect();
    assert_eq!(target.quiescing(), 0, "the association lives");
    drop(admin.queue.handle_disconnect());
    assert_eq!(target.quiescing(), 1);

    let request = ConnectRequest::admin(SUBSYSTEM);
    let mut again = Link::new(&target, PORT);
    waits(&request, &mut again, 0);
    // No wait for another host, another host identifier or another subsystem.
    let other = ConnectRequest { host: nqn(STRANGER), ..request.clone() };
    connect_admin(&target, &other);
    connect_admin(&target, &ConnectRequest { host_id: [0x22; 16], ..request.clone() });
    connect_admin(&target, &ConnectRequest::admin(PRIVATE));

    let epoch = target.epoch();
    drop(guard);
    assert!(target.epoch() > epoch, "reactors are to look");
    assert_eq!(decided(&mut again, 1), Status::SUCCESS);
    assert!(again.queue.connected().is_some());
    assert_eq!(target.quiescing(), 0);
}

#[test]
fn a_connect_that_waits_too_long_is_to_be_tried_again() {
    let target = target();
    let (admin, cntlid) = enabled_admin(&target);
    let mut io = connect_io(&target, cntlid, 1);
    io.io(read());
    let guard = io.queue.handle_disconnect();
    drop(admin);

    let mut again = Link::new(&target, PORT);
    waits(&ConnectRequest::admin(SUBSYSTEM), &mut again, 0);
    assert_eq!(again.queue.deadline(), None, "its own bound counts");
    let bound = u64::try_from((BOUND + REACTION).as_nanos()).unwrap();
    assert!(again.queue.poll_connect(bound - 1).is_none());
    let (_, disposition) = again.queue.poll_connect(bound).unwrap();
    let status = answer(disposition).cqe.status();
    assert_eq!((status.code(), status.dnr()), (Status::CONTROLLER_BUSY, false));
    drop(guard);
    // A retry on the same connection.
    ConnectRequest::admin(SUBSYSTEM).send(&mut again).ok();
}

#[test]
fn the_same_host_waits_for_what_its_living_associations_have_by_now() {
    let target = target();
    let (admin, _) = enabled_admin(&target);
    let key = admin.queue.connected().unwrap().controller;
    let mut again = Link::new(&target, PORT);
    waits(&ConnectRequest::admin(SUBSYSTEM), &mut again, 0);
    let barrier = again.queue.poll_barrier().expect("reactors are to be asked");
    assert_eq!(barrier.controllers[..], [key]);
    assert!(again.queue.poll_barrier().is_none(), "once");
    assert!(again.queue.poll_connect(1).is_none());
    let epoch = target.epoch();
    drop(barrier);
    assert!(target.epoch() > epoch, "reactors are to look");
    assert_eq!(decided(&mut again, 1), Status::SUCCESS);
    // The Connect waits for the bound of the devices, and no longer: it can be another path of a
    // working host.
    let mut third = Link::new(&target, PORT);
    waits(&ConnectRequest::admin(SUBSYSTEM), &mut third, 0);
    let barrier = third.queue.poll_barrier();
    let bound = u64::try_from((BOUND + REACTION).as_nanos()).unwrap();
    assert!(third.queue.poll_connect(bound - 1).is_none());
    assert_eq!(decided(&mut third, bound), Status::SUCCESS);
    drop(barrier);
}

#[test]
fn an_io_queue_waits_for_the_commands_of_one_that_was_lost() {
    let target = target();
    let (_admin, cntlid) = enabled_admin(&target);
    let mut io = connect_io(&target, cntlid, 1);
    io.io(read());
    let guard = io.queue.handle_disconnect();
    let mut again = Link::new(&target, PORT);
    waits(&ConnectRequest::io(cntlid, 1), &mut again, 0);
    let mut other = Link::new(&target, PORT);
    waits(&ConnectRequest::io(cntlid, 2), &mut other, 0);
    let epoch = target.epoch();
    drop(guard);
    assert!(target.epoch() > epoch, "reactors are to look");
    assert_eq!(decided(&mut again, 1), Status::SUCCESS);
    assert_eq!(decided(&mut other, 1), Status::SUCCESS);
}

#[test]
fn a_new_association_waits_for_an_io_queue_that_was_lost_alone() {
    let target = target();
    let (_admin, cntlid) = enabled_admin(&target);
    let mut io = connect_io(&target, cntlid, 1);
    let _lives = connect_io(&target, cntlid, 2);
    io.io(read());
    let guard = io.queue.handle_disconnect();
    let mut again = Link::new(&target, PORT);
    waits(&ConnectRequest::admin(SUBSYSTEM), &mut again, 0);
    // Reactors have no command of the live association, and report so immediately.
    drop(again.queue.poll_barrier());
    assert!(again.queue.poll_connect(1).is_none(), "a write may be with a device");
    let bound = u64::try_from((BOUND + REACTION).as_nanos()).unwrap();
    let mut late = Link::new(&target, PORT);
    waits(&ConnectRequest::admin(SUBSYSTEM), &mut late, 0);
    drop(late.queue.poll_barrier());
    let busy = decided(&mut late, bound);
    assert!(!busy.is_success() && !busy.dnr(), "{busy:?}");
    drop(guard);
    assert_eq!(decided(&mut again, 2), Status::SUCCESS);
}

#[test]
fn a_disconnect_is_answered_when_every_other_command_is_over() {
    let target = target();
    let (_admin, cntlid) = enabled_admin(&target);
    let mut io = connect_io(&target, cntlid, 1);
    let cid = io.io(read()).cid;
    assert_eq!(io.send(Disconnect { recfmt: 0 }.encode(0)), Disposition::Held);
    assert_eq!(io.queue.poll_disconnect(), None);
    assert_eq!(io.run(read(), &[]).code(), Status::ABORTED_SQ_DELETION, "nothing new begins");
    assert_eq!(io.queue.complete(cid, Ok(())).cqe.status(), Status::SUCCESS);
    let response = io.queue.poll_disconnect().expect("nothing is outstanding");
    assert_eq!(response.cqe.status(), Status::SUCCESS);
    assert_eq!(io.queue.is_dead(), Some(TeardownReason::Disconnected));
    connect_io(&target, cntlid, 1);
}

#[test]
fn whoever_removes_a_host_knows_what_to_wait_for() {
    let target = target();
    let (admin, cntlid) = enabled_admin(&target);
    let mut io = connect_io(&target, cntlid, 1);
    io.io(read());
    let mut without = spec();
    without.subsystems[0].access = Access::Hosts([nqn(STRANGER)].into());
    let changes = target.apply(without.clone()).unwrap();
    let [quiesce] = &changes.quiescing[..] else { panic!("{changes:?}") };
    assert!(!quiesce.is_quiet());
    drop(admin);
    // A later change reports the same until it is quiet, even for a host that has just
    // disconnected.
    without.referrals.clear();
    assert_eq!(target.apply(without.clone()).unwrap().quiescing.len(), 1);
    drop(io.queue.handle_disconnect());
    assert!(quiesce.is_quiet());
    assert!(target.apply(without).unwrap().quiescing.is_empty());
}

#[test]
fn whoever_removes_or_changes_a_namespace_knows_its_device() {
    let target = target();
    let mut without = spec();
    without.subsystems[0].namespaces.remove(0);
    let changes = target.apply(without).unwrap();
    let [retired] = &changes.retired[..] else { panic!("{changes:?}") };
    assert_eq!((retired.nsid, retired.device, retired.is_removed), (1, DeviceId(101), true));
}

#[test]
fn what_was_written_is_flushed_before_the_cache_is_off() {
    let target = target();
    let (mut admin, _) = enabled_admin(&target);
    let sqe = set_feature(Fid::VOLATILE_WRITE_CACHE, 0);
    let Disposition::Flush { devices, result: 0 } = admin.send(sqe) else { panic!() };
    assert_eq!(devices, [101, 102, 103, 104].map(DeviceId));
    assert_eq!(admin.queue.outstanding(), 1);
    // The cache is already off, so no flush is needed.
    admin.run(sqe, &[]).ok();
    admin.run(set_feature(Fid::VOLATILE_WRITE_CACHE, 1), &[]).ok();
    assert!(matches!(admin.send(sqe), Disposition::Flush { .. }));
}
