//! The reactor reports nothing as ended while a command of it is at a device.

use std::time::Duration;

use nvmeof_core::block::BlockError;
use nvmeof_nvmf::{DeviceId, RetiredNamespace};
use nvmeof_wire::fabrics::Disconnect;
use nvmeof_wire::features::Fid;
use nvmeof_wire::opcode::AdminOpcode;
use nvmeof_wire::properties::{CSTS_SHST_COMPLETE, CSTS_SHST_OCCURRING};
use nvmeof_wire::{Sqe, Status};
use tokio::sync::oneshot;

use super::super::mailbox::Message;
use super::KIB;
use super::rig::{CC_ENABLE, Host, Rig, SUBSYSTEM, pattern};

/// Latency of the device for a write.
const LATENCY: Duration = Duration::from_secs(1);
const HOST: &str = "nqn.2026-11.io.nvmeof-tgt:host";
const CC_SHUTDOWN: u64 = CC_ENABLE | 1 << 14;

/// Connects a host with a write that is at its device.
fn writing(rig: &mut Rig) -> (Host, Host) {
    let (admin, io) = rig.connect_both();
    rig.slow(Duration::ZERO, LATENCY);
    io.write_in_capsule(1, 0, &pattern(1, 4 * KIB));
    rig.turns_now();
    assert_eq!(rig.with_device(), 1);
    (admin, io)
}

/// Lets the device complete all its operations.
fn let_the_device_finish(rig: &mut Rig) {
    rig.turn_after(u64::try_from(LATENCY.as_nanos()).unwrap());
    rig.turns_now();
    assert_eq!(rig.with_device(), 0);
}

/// Lets the quiesce bound of the devices and the reactors' 2 s pass, after which the Connect ends.
fn wait_as_long_as_devices_take(rig: &mut Rig, connecting: &Host) {
    rig.turn_after(11_000_000_000);
    rig.turns_now();
    assert_eq!(connecting.outstanding(), 1);
    rig.turn_after(1_000_000_000);
    rig.turns_now();
}

#[test]
fn a_controller_is_reset_when_its_commands_are_over() {
    let mut rig = Rig::new(None);
    let (admin, io) = writing(&mut rig);
    admin.set_cc(3, CC_ENABLE & !1);
    rig.turns_now();
    assert_eq!(admin.statuses(), [(3, Status::SUCCESS)]);
    assert!(io.closed());
    assert!(admin.csts(&mut rig).rdy(), "its write is with the device");
    let_the_device_finish(&mut rig);
    assert!(!admin.csts(&mut rig).rdy());
    rig.finish([admin, io]);
}

#[test]
fn a_shutdown_is_complete_when_its_commands_are_over_and_its_devices_flushed() {
    let mut rig = Rig::new(None);
    rig.has_volatile_cache(true);
    let (admin, io) = writing(&mut rig);
    admin.set_cc(3, CC_SHUTDOWN);
    rig.turns_now();
    assert_eq!(admin.csts(&mut rig).shst(), CSTS_SHST_OCCURRING);
    rig.turn_after(u64::try_from(LATENCY.as_nanos()).unwrap());
    rig.turns_now();
    assert_eq!(rig.with_device(), 1, "the flush");
    assert_eq!(admin.csts(&mut rig).shst(), CSTS_SHST_OCCURRING);
    let_the_device_finish(&mut rig);
    let csts = admin.csts(&mut rig);
    assert_eq!((csts.shst(), csts.cfs()), (CSTS_SHST_COMPLETE, false));
    rig.finish([admin, io]);
}

#[test]
fn a_host_is_let_in_again_when_the_commands_it_left_are_over() {
    let mut rig = Rig::new(None);
    let (admin, io) = writing(&mut rig);
    admin.close();
    io.close();
    rig.turns_now();
    let again = rig.ask_again(HOST);
    rig.turns_now();
    assert_eq!(again.outstanding(), 1, "it waits");
    rig.slow(Duration::ZERO, Duration::ZERO);
    let others = rig.connect_io();
    assert_eq!(again.outstanding(), 1);
    let_the_device_finish(&mut rig);
    assert_eq!(again.statuses(), [(1, Status::SUCCESS)]);
    rig.finish([again, others]);
}

/// A host that cuts its connections and reconnects immediately.
///
/// The target has not detected yet that they are cut.
#[test]
fn a_host_that_comes_back_before_its_end_was_seen_waits_for_what_it_left() {
    let mut rig = Rig::new(None);
    let (admin, io) = rig.connect_both();
    rig.slow(Duration::ZERO, LATENCY);
    // The reactor has read neither of these.
    io.write_in_capsule(1, 0, &pattern(1, 4 * KIB));
    let again = rig.ask_again(HOST);
    assert_eq!((rig.with_device(), again.outstanding()), (1, 1), "it waits");
    let_the_device_finish(&mut rig);
    assert_eq!(again.statuses(), [(1, Status::SUCCESS)]);
    assert_eq!(io.statuses(), [(1, Status::SUCCESS)], "the association before lives");
    rig.finish([admin, io, again]);
}

/// The target admits another path of a host whose first path hangs.
///
/// It cannot determine that the first path is lost.
#[test]
fn another_path_waits_no_longer_than_devices_may_take() {
    let mut rig = Rig::new(None);
    let (admin, io) = rig.connect_both();
    rig.slow(Duration::ZERO, Duration::from_secs(100));
    io.write_in_capsule(1, 0, &pattern(1, 4 * KIB));
    let again = rig.ask_again(HOST);
    wait_as_long_as_devices_take(&mut rig, &again);
    assert_eq!(again.statuses(), [(1, Status::SUCCESS)]);
    rig.turn_after(100_000_000_000);
    io.collect();
    rig.finish([admin, io, again]);
}

#[test]
fn a_host_that_would_wait_longer_than_devices_may_take_is_to_come_again() {
    let mut rig = Rig::new(None);
    let (admin, io) = rig.connect_both();
    rig.slow(Duration::ZERO, Duration::from_secs(100));
    io.write_in_capsule(1, 0, &pattern(1, 4 * KIB));
    rig.turns_now();
    admin.close();
    io.close();
    rig.turns_now();
    let again = rig.ask_again(HOST);
    wait_as_long_as_devices_take(&mut rig, &again);
    let statuses = again.statuses();
    assert_eq!(statuses, [(1, Status::CONTROLLER_BUSY)]);
    assert!(!statuses[0].1.dnr());
    rig.turn_after(100_000_000_000);
    rig.finish([again]);
}

#[test]
fn a_disconnect_is_answered_when_the_commands_of_its_queue_are_over() {
    let mut rig = Rig::new(None);
    let (admin, io) = writing(&mut rig);
    io.send(Disconnect::default().encode(2), &[]);
    rig.turns_now();
    assert_eq!(io.statuses(), []);
    let_the_device_finish(&mut rig);
    rig.settle();
    assert_eq!(io.statuses(), [(1, Status::SUCCESS), (2, Status::SUCCESS)]);
    assert!(io.closed() && !admin.closed());
    rig.finish([admin, io]);
}

/// Sends a barrier for the namespace as if it had this device.
fn barrier(rig: &mut Rig, device: DeviceId, is_removed: bool) -> oneshot::Receiver<()> {
    let subnqn = SUBSYSTEM.parse().unwrap();
    let namespaces = [RetiredNamespace { subnqn, nsid: 1, device, is_removed }].into();
    let (reply, answer) = oneshot::channel();
    rig.tell(Message::NamespaceBarrier { namespaces, reply });
    rig.turns_now();
    answer
}

#[test]
fn commands_for_a_namespace_that_is_gone_reach_no_device_any_more() {
    let mut rig = Rig::new(Some(4 << 10));
    let (admin, io) = rig.connect_both();
    rig.slow(Duration::ZERO, LATENCY);
    // One write waits for its host and holds the budget. The other waits for admission.
    io.write_unoffered(1, 0, 4 * KIB);
    rig.turns_now();
    io.write_pulled(2, 8, &pattern(2, 4 * KIB));
    rig.turns_now();
    let mut resized = barrier(&mut rig, DeviceId(0), false);
    assert!(resized.try_recv().is_err(), "the same disk keeps its commands");
    assert_eq!(io.statuses(), []);
    let mut removed = barrier(&mut rig, DeviceId(0), true);
    removed.try_recv().expect("no host and no pacing delays the operator");
    io.offer(1, pattern(1, 4 * KIB));
    rig.turns_now();
    let refused = Status::INVALID_FIELD.with_dnr();
    assert_eq!(io.statuses(), [(2, refused), (1, refused)]);
    assert_eq!(rig.with_device(), 0);
    resized.try_recv().expect("its commands are over");
    rig.finish([admin, io]);
}

#[test]
fn a_stalled_write_for_a_namespace_that_is_gone_is_cancelled() {
    let mut rig = Rig::new(None);
    let (admin, io) = rig.connect_both();
    rig.faults.hold();
    io.write_in_capsule(1, 0, &pattern(1, 4 * KIB));
    rig.turns_now();
    let mut removed = barrier(&mut rig, DeviceId(0), true);
    removed.try_recv().expect("the write was not with the device yet");
    assert_eq!(io.statuses(), [(1, Status::INVALID_FIELD.with_dnr())]);
    rig.faults.release();
    rig.finish([admin, io]);
}

#[test]
fn whoever_ends_a_connection_or_removes_a_namespace_can_wait_for_its_commands() {
    let mut rig = Rig::new(None);
    let (admin, io) = writing(&mut rig);
    let mut settled = barrier(&mut rig, DeviceId(0), false);
    let mut other = barrier(&mut rig, DeviceId(1), false);
    other.try_recv().expect("nothing is with that device");

    let id = rig.queue_ids()[1];
    let (reply, mut dismissed) = oneshot::channel();
    rig.tell(Message::Disconnect { id, reply });
    let quiesce = dismissed.try_recv().unwrap().expect("it was here").expect("it was connected");
    assert!(!quiesce.is_quiet() && settled.try_recv().is_err());
    // Commands that arrive later do not delay the barrier.
    let later = rig.connect_io();
    rig.turn_after(1);
    later.write_in_capsule(1, 8, &pattern(1, 4 * KIB));
    rig.turn_after(u64::try_from(LATENCY.as_nanos()).unwrap() - 5_000_000);
    rig.turns_now();
    assert_eq!(rig.with_device(), 1);
    assert!(quiesce.is_quiet());
    settled.try_recv().expect("its commands are over");
    let_the_device_finish(&mut rig);
    later.collect();
    rig.finish([admin, io, later]);
}

#[test]
fn a_cache_is_off_when_what_was_written_is_flushed() {
    let mut rig = Rig::new(None);
    rig.has_volatile_cache(true);
    let (admin, io) = rig.connect_both();
    rig.slow(Duration::ZERO, LATENCY);
    let fid = u32::from(Fid::VOLATILE_WRITE_CACHE.0);
    admin.send(Sqe::admin(AdminOpcode::SET_FEATURES, 5, 0).with_cdw10([fid, 0]), &[]);
    rig.turns_now();
    assert_eq!((admin.outstanding(), rig.with_device()), (1, 1));
    let_the_device_finish(&mut rig);
    assert_eq!(admin.statuses(), [(5, Status::SUCCESS)]);
    // A failed flush is reported.
    admin.send(Sqe::admin(AdminOpcode::SET_FEATURES, 6, 0).with_cdw10([fid, 1]), &[]);
    rig.turns_now();
    assert_eq!(admin.statuses(), [(6, Status::SUCCESS)]);
    rig.faults.fail_next(BlockError::Media { errno: 5 });
    admin.send(Sqe::admin(AdminOpcode::SET_FEATURES, 7, 0).with_cdw10([fid, 0]), &[]);
    rig.turns_now();
    let_the_device_finish(&mut rig);
    let statuses = admin.statuses();
    assert_eq!((statuses[0].0, statuses[0].1.code()), (7, Status::WRITE_FAULT));
    rig.finish([admin, io]);
}

/// Two hosts write to a device, which then fails a flush.
///
/// Every host gets one flush error for the writes that may be lost.
#[test]
fn everybody_who_uses_a_device_hears_once_of_a_flush_that_failed() {
    let mut rig = Rig::new(None);
    let (one, two) = (rig.connect_io(), rig.connect_io());
    for host in [&one, &two] {
        host.write_in_capsule(1, 0, &pattern(1, 4 * KIB));
        rig.turns(4);
        assert_eq!(host.statuses(), [(1, Status::SUCCESS)]);
    }
    rig.faults.fail_next(BlockError::Media { errno: 5 });
    one.flush(2);
    rig.turns(4);
    assert_eq!(one.statuses()[0].1.code(), Status::WRITE_FAULT);
    one.flush(3);
    two.flush(3);
    rig.turns(4);
    assert_eq!(one.statuses(), [(3, Status::SUCCESS)], "it has heard of it");
    assert_eq!(two.statuses()[0].1.code(), Status::WRITE_FAULT);
    two.flush(4);
    rig.turns(4);
    assert_eq!(two.statuses(), [(4, Status::SUCCESS)]);
    // A host that connects later has lost nothing.
    let three = rig.connect_io();
    three.write_in_capsule(1, 0, &pattern(1, 4 * KIB));
    rig.turns(4);
    three.flush(2);
    rig.turns(4);
    assert_eq!(three.statuses(), [(1, Status::SUCCESS), (2, Status::SUCCESS)]);
    rig.finish([one, two, three]);
}
