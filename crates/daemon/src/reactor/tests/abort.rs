//! Abort: the commands that it ends, those that it does not end, and the reactor that handles it.

use nvmeof_nvmf::{Failure, QueueOwner};
use nvmeof_wire::Status;
use nvmeof_wire::abort::{Abort, NOT_ABORTED};

use super::super::abort::Victim;
use super::super::mailbox::{AbortRequest, Message};
use super::rig::{BLOCK, BLOCKS, Host, Rig, pattern};

const KIB: u32 = 1024;
/// Blocks of a piece of Write Zeroes.
const PIECE: u32 = 8192;
const NOT: u32 = 1;
const _: () = assert!(NOT as u64 == NOT_ABORTED);

fn abort(admin: &Host, cid: u16, victim: u16) {
    admin.send(Abort { sqid: 1, cid: victim }.encode(cid), &[]);
}

/// Returns the command identifiers and the results.
fn results(admin: &Host) -> Vec<(u16, u32)> {
    admin.take().iter().map(|answer| (answer.cqe.cid.get(), answer.cqe.dw0())).collect()
}

#[test]
fn a_command_that_waits_for_memory_is_aborted() {
    let mut rig = Rig::new(None);
    let (admin, host) = rig.connect_both();
    rig.faults.hold();
    for cid in 1..=9 {
        host.read(cid, 0, 1024 * KIB);
    }
    rig.settle();
    let before = rig.counts();
    abort(&admin, 50, 9);
    abort(&admin, 51, 9);
    rig.settle();
    assert_eq!(host.statuses(), [(9, Failure::Aborted.status())]);
    assert_eq!(results(&admin), [(50, 0), (51, NOT)]);
    assert_eq!(
        rig.counts().permits,
        before.permits,
        "it had none: its host has its share of memory"
    );
    rig.faults.release();
    for _ in 0..9 {
        rig.settle();
    }
    let mut statuses = host.statuses();
    statuses.sort_by_key(|(cid, _)| *cid);
    assert_eq!(statuses, (1..=8).map(|cid| (cid, Status::SUCCESS)).collect::<Vec<_>>());
    rig.finish([admin, host]);
}

#[test]
fn a_long_command_ends_behind_the_piece_that_is_on_the_device() {
    let mut rig = Rig::new(None);
    let (admin, host) = rig.connect_both();
    // One write for the first piece, and one for the third.
    for (cid, slba) in [(1, 0), (2, 2 * u64::from(PIECE))] {
        host.write_in_capsule(cid, slba, &pattern(9, 4 * KIB));
    }
    rig.settle();
    host.take();
    rig.faults.hold();
    host.write_zeroes(3, 0, 4 * PIECE);
    rig.settle();
    assert_eq!(rig.with_device(), 1, "one piece at a time");
    abort(&admin, 50, 3);
    abort(&admin, 51, 3);
    rig.settle();
    assert_eq!(results(&admin), [(51, NOT)], "the first is answered when the command has ended");
    assert_eq!(host.statuses(), []);
    rig.faults.release();
    rig.settle();
    assert_eq!(host.statuses(), [(3, Failure::Aborted.status())]);
    assert_eq!(results(&admin), [(50, 0)]);
    for (cid, slba) in [(4, 0), (5, 2 * u64::from(PIECE))] {
        host.read(cid, slba, 4 * KIB);
    }
    rig.settle();
    let kept: Vec<_> = host.take().iter().map(|one| one.data == pattern(9, 4 * KIB)).collect();
    assert_eq!(kept, [false, true], "what was done stays, and nothing else was");
    rig.finish([admin, host]);
}

#[test]
fn a_list_of_ranges_is_aborted_between_two_of_them() {
    let mut rig = Rig::new(None);
    let (admin, host) = rig.connect_both();
    rig.faults.hold();
    let all = (0, u32::try_from(BLOCKS).unwrap());
    host.deallocate(1, &[all; 256]);
    rig.settle();
    abort(&admin, 50, 1);
    rig.faults.release();
    rig.settle();
    assert_eq!(host.statuses(), [(1, Failure::Aborted.status())]);
    assert_eq!(results(&admin), [(50, 0)]);
    rig.finish([admin, host]);
}

#[test]
fn the_last_piece_is_not_aborted() {
    let mut rig = Rig::new(None);
    let (admin, host) = rig.connect_both();
    rig.faults.hold();
    host.write_zeroes(1, 0, PIECE);
    rig.settle();
    abort(&admin, 50, 1);
    rig.settle();
    assert_eq!(results(&admin), [(50, NOT)]);
    rig.faults.release();
    rig.settle();
    assert_eq!(host.statuses(), [(1, Status::SUCCESS)]);
    rig.finish([admin, host]);
}

#[test]
fn others_commands_come_between_the_pieces() {
    let mut rig = Rig::new(None);
    let host = rig.connect_io();
    host.write_zeroes(1, 0, 8 * PIECE);
    rig.turn_after(0);
    let mut reads = 0;
    for turn in 0..10_000 {
        host.read(2, 0, BLOCK);
        // A read is answered within a few turns, however much is left of the other command.
        rig.turn_after(0);
        rig.turn_after(0);
        rig.turn_after(0);
        let mut statuses = host.statuses();
        statuses.sort_unstable_by_key(|(cid, _)| *cid);
        assert_eq!(statuses.last(), Some(&(2, Status::SUCCESS)), "turn {turn}");
        reads += 1;
        if statuses.len() == 2 {
            break;
        }
    }
    assert!(reads > 2, "{reads} reads while eight pieces were zeroed");
    rig.finish([host]);
}

#[test]
fn an_abort_ends_with_its_admin_queue_and_the_command_goes_on() {
    let mut rig = Rig::new(None);
    let (admin, host) = rig.connect_both();
    rig.faults.hold();
    host.write_zeroes(1, 0, 2 * PIECE);
    rig.settle();
    abort(&admin, 50, 1);
    rig.settle();
    // The association ends with its admin queue, and no host is left for the answer to the Abort.
    admin.close();
    rig.settle();
    rig.faults.release();
    rig.settle();
    assert!(host.closed());
    rig.finish([admin, host]);
}

#[test]
fn a_queue_that_moved_is_found() {
    let mut rig = Rig::new(Some(64 * u64::from(KIB)));
    let (admin, host) = rig.connect_both();
    let (before, _) = rig.io_connection();
    rig.move_one();
    rig.settle();
    assert_ne!(rig.io_connection().0, before);
    rig.faults.hold();
    host.read(1, 0, 64 * KIB);
    host.read(2, 0, 64 * KIB);
    rig.settle();
    abort(&admin, 50, 2);
    rig.settle();
    assert_eq!(results(&admin), [(50, 0)]);
    assert_eq!(host.statuses(), [(2, Failure::Aborted.status())]);
    // At its old place there is another connection, or none.
    rig.set_owner(before);
    abort(&admin, 51, 1);
    rig.settle();
    assert_eq!(results(&admin), [(51, NOT)]);
    rig.faults.release();
    rig.settle();
    rig.finish([admin, host]);
}

#[test]
fn an_abort_goes_to_the_reactor_that_has_the_queue() {
    let mut rig = Rig::beside_another(None);
    let (admin, host) = rig.connect_both();
    let (_, controller) = rig.io_connection();
    rig.set_owner(QueueOwner { reactor: 1, connection: 77 });
    abort(&admin, 50, 4);
    rig.turns_now();
    let Some(Message::Abort(AbortRequest { from: 0, token, victim })) = rig.other.try_recv() else {
        panic!("the other reactor is asked");
    };
    assert_eq!(victim, Victim { controller, sqid: 1, cid: 4, connection: 77 });
    assert!(results(&admin).is_empty() && rig.other.try_recv().is_none());
    rig.post(Message::AbortDone { token, aborted: true });
    rig.post(Message::AbortDone { token, aborted: false });
    rig.turns_now();
    assert_eq!(results(&admin), [(50, 0)], "answered once");
    rig.finish([admin, host]);
}

#[test]
fn another_reactor_is_answered() {
    let mut rig = Rig::beside_another(Some(64 * u64::from(KIB)));
    let (admin, host) = rig.connect_both();
    let (QueueOwner { connection, .. }, controller) = rig.io_connection();
    rig.faults.hold();
    host.read(1, 0, 64 * KIB);
    host.read(2, 0, 64 * KIB);
    host.write_zeroes(3, 0, 2 * PIECE);
    rig.settle();
    for cid in 1..=4 {
        let victim = Victim { controller, sqid: 1, cid, connection };
        rig.post(Message::Abort(AbortRequest { from: 1, token: cid.into(), victim }));
    }
    let victim = Victim { controller, sqid: 2, cid: 2, connection };
    rig.post(Message::Abort(AbortRequest { from: 1, token: 5, victim }));
    rig.settle();
    let answers = |rig: &Rig| {
        let mut answers: Vec<(u64, bool)> = Vec::new();
        while let Some(message) = rig.other.try_recv() {
            let Message::AbortDone { token, aborted } = message else { panic!("{message:?}") };
            answers.push((token, aborted));
        }
        answers
    };
    assert_eq!(answers(&rig), [(1, false), (2, true), (4, false), (5, false)]);
    assert_eq!(host.statuses(), [(2, Failure::Aborted.status())]);
    rig.faults.release();
    rig.settle();
    assert_eq!(answers(&rig), [(3, true)], "when the device was done with a piece of it");
    rig.finish([admin, host]);
}
