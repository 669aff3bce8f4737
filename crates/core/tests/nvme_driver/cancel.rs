//! Cancelled operations: commands that the drive does not have yet, or lost in a reset, never reach
//! it.

use nvmeof_core::block::{BlockDevice, BlockError, BlockOp, Completed};
use nvmeof_core::nvme_driver::{ControllerOptions, ControllerState, Io, IoKind, IoQueue, Wait};
use nvmeof_fake_drive::{FakeDriveConfig, Fault, When};
use nvmeof_random::SplitMix64;
use nvmeof_wire::opcode::IoOpcode;

use crate::rig::{MILLI, Rig, SECOND, io, options, read, write};

const CANCELLED: Result<(), BlockError> = Err(BlockError::Cancelled);

fn writes(rig: &Rig) -> u64 {
    rig.fake.taken(1, IoOpcode::WRITE.0)
}

/// Submits a write of `byte` to block 0 that the drive takes and never completes.
fn stuck_write(rig: &Rig, queue: &mut IoQueue, token: u64, byte: u8) {
    rig.fake.inject(When::io(1, IoOpcode::WRITE), Fault::Lost);
    queue.submit(Io { token, ..write(0, rig.filled(512, byte)) }).unwrap();
    queue.poll(&mut Vec::new());
}

#[test]
fn a_write_whose_requester_is_gone_is_not_sent_again_after_a_reset() {
    for is_cancelled in [true, false] {
        let rig = Rig::new(FakeDriveConfig { abort_helps: false, ..FakeDriveConfig::default() });
        let mut queue = rig.queue();
        stuck_write(&rig, &mut queue, 7, 1);
        if is_cancelled {
            queue.cancel(7);
        }
        let mut done = Vec::new();
        queue.poll(&mut done);
        assert!(done.is_empty(), "the drive has it");
        // Another host writes there before the drive is reset.
        let other = rig.run_beside(&mut queue, write(0, rig.filled(512, 2)));
        assert_eq!(other.result, Ok(()));
        let done = rig.finish(&mut queue);
        assert_eq!((done.len(), done[0].token, rig.controller.stats().resets), (1, 7, 1));
        let wanted = if is_cancelled { CANCELLED } else { Ok(()) };
        assert_eq!(done[0].result, wanted);
        assert_eq!(writes(&rig), if is_cancelled { 2 } else { 3 });
        assert_eq!(rig.controller.stats().resubmitted, u64::from(!is_cancelled));
        let byte = if is_cancelled { 2 } else { 1 };
        assert_eq!(rig.fake.read_media(1, 0, 1).unwrap(), [byte; 512]);
        drop((done, other, queue));
        rig.end();
    }
}

impl Rig {
    /// Runs one operation while others are in flight.
    fn run_beside(&self, queue: &mut IoQueue, io: Io) -> Completed {
        queue.submit(io).unwrap();
        let mut done = Vec::new();
        while done.is_empty() {
            queue.poll(&mut done);
        }
        assert_eq!(done.len(), 1);
        done.remove(0)
    }
}

#[test]
fn what_the_drive_answers_in_time_is_completed_as_it_was() {
    let rig = Rig::new(FakeDriveConfig::default());
    let mut queue = rig.queue();
    rig.fake.inject(When::io(1, IoOpcode::WRITE), Fault::Held);
    queue.submit(Io { token: 7, ..write(0, rig.filled(512, 1)) }).unwrap();
    queue.poll(&mut Vec::new());
    queue.cancel(7);
    // A second cancel and an unknown token have no effect.
    queue.cancel(7);
    queue.cancel(8);
    rig.fake.release();
    let done = rig.finish(&mut queue);
    assert_eq!((done.len(), &done[0].result), (1, &Ok(())));
    assert_eq!(rig.fake.read_media(1, 0, 1).unwrap(), [1; 512]);
    drop((done, queue));
    rig.end();
}

#[test]
fn what_waits_for_a_reset_never_gets_to_the_drive() {
    let rig = Rig::new(FakeDriveConfig::default());
    let mut queue = rig.queue();
    queue.poll(&mut Vec::new());
    rig.controller.reset();
    let mut done = Vec::new();
    queue.poll(&mut done);
    assert_eq!(rig.controller.state(), ControllerState::Resetting);
    // Several operations with one token, like a list of ranges; one with another token stays.
    for block in 0..3 {
        queue.submit(Io { token: 7, ..write(block * 512, rig.filled(512, 1)) }).unwrap();
    }
    queue.submit(Io { token: 7, ..io(IoKind::Flush, 0, 0) }).unwrap();
    queue.submit(Io { token: 8, ..write(4096, rig.filled(512, 2)) }).unwrap();
    queue.cancel(7);
    queue.poll(&mut done);
    assert_eq!(done.len(), 4);
    assert!(done.iter().all(|done| done.token == 7 && done.result == CANCELLED));
    assert_eq!(done.iter().filter(|done| done.buf.is_some()).count(), 3);
    let rest = rig.finish(&mut queue);
    assert_eq!((rest.len(), rest[0].token, &rest[0].result), (1, 8, &Ok(())));
    assert_eq!((writes(&rig), rig.fake.taken(1, IoOpcode::FLUSH.0)), (1, 0));
    drop((done, rest, queue));
    rig.end();
}

#[test]
fn what_a_reset_took_back_and_has_not_sent_again_is_not_sent() {
    let rig = Rig::new(FakeDriveConfig::default());
    let mut queue = rig.queue();
    for token in [7, 8] {
        stuck_write(&rig, &mut queue, token, 1);
    }
    rig.controller.reset();
    let mut done = Vec::new();
    queue.poll(&mut done);
    assert!(done.is_empty());
    queue.cancel(7);
    queue.poll(&mut done);
    assert_eq!((done.len(), done[0].token, &done[0].result), (1, 7, &CANCELLED));
    let rest = rig.finish(&mut queue);
    assert_eq!((rest.len(), rest[0].token, &rest[0].result), (1, 8, &Ok(())));
    assert_eq!(writes(&rig), 3);
    drop((done, rest, queue));
    rig.end();
}

#[test]
fn of_a_long_operation_only_what_was_sent_is_done() {
    let rig = Rig::new(FakeDriveConfig::default());
    let mut queue = rig.queue();
    queue.poll(&mut Vec::new());
    // 16 commands of 128 KiB; a turn sends 8.
    queue.submit(Io { token: 7, ..write(0, rig.filled(2 << 20, 1)) }).unwrap();
    queue.cancel(7);
    let done = rig.finish(&mut queue);
    assert_eq!((done.len(), &done[0].result, writes(&rig)), (1, &CANCELLED, 8));
    assert!(done[0].buf.is_some());
    drop((done, queue));
    rig.end();
}

#[test]
fn a_cancelled_operation_ends_within_the_bound() {
    // The drive completes neither the command nor its abort, and only a function reset disables it.
    use nvmeof_fake_drive::Readiness;
    let rig = Rig::with(
        FakeDriveConfig { abort_helps: false, ..FakeDriveConfig::default() },
        ControllerOptions { io_queues: 1, ..ControllerOptions::default() },
    );
    let bound = rig.device(1).quiesce_bound().unwrap();
    let mut queue = rig.queue();
    rig.fake.reconfigure(|config| config.disable = Readiness::Never);
    stuck_write(&rig, &mut queue, 7, 1);
    queue.cancel(7);
    let begin = rig.time.now();
    let done = rig.finish(&mut queue);
    let took = u128::from(rig.time.now() - begin);
    assert_eq!((&done[0].result, writes(&rig)), (&CANCELLED, 1));
    assert!(took > 20 * u128::from(SECOND), "{took}: it was waited for");
    assert!(took <= bound.as_nanos(), "{took}: {bound:?}");
    drop((done, queue));
    rig.fake.reconfigure(|config| config.disable = Readiness::AfterReads(0));
    rig.end();
}

#[test]
fn by_default_a_command_is_done_by_its_second_try_before_a_linux_host_gives_it_up() {
    let rig = Rig::with(
        FakeDriveConfig { abort_helps: false, ..FakeDriveConfig::default() },
        ControllerOptions { io_queues: 1, ..ControllerOptions::default() },
    );
    let mut queue = rig.queue();
    rig.fake.inject(When::io(1, IoOpcode::READ), Fault::Lost);
    let begin = rig.time.now();
    let done = rig.run(&mut queue, read(0, rig.filled(512, 0)));
    assert_eq!((done.result, rig.controller.stats().resubmitted), (Ok(()), 1));
    let took = rig.time.now() - begin;
    assert!(took < 30 * SECOND, "{} ms", took / MILLI);
    drop((done.buf, queue));
    rig.end();
}

#[test]
fn a_block_device_hands_the_cancellation_to_the_driver() {
    let rig = Rig::new(FakeDriveConfig::default());
    let mut queue = rig.device(1).open_queue(&rig.pool).unwrap();
    let mut done = Vec::new();
    queue.poll(&mut done);
    rig.controller.reset();
    queue.poll(&mut done);
    queue.submit(BlockOp::write(7, 0, rig.filled(512, 1), true)).unwrap();
    queue.cancel(7);
    queue.poll(&mut done);
    assert_eq!((done.len(), &done[0].result), (1, &CANCELLED));
    rig.controller.turn();
    drop((done, queue));
    assert_eq!(writes(&rig), 0);
    rig.end();
}

/// One block is written repeatedly, with cancels at any time, under resets. The last acknowledged
/// write stays, whatever was cancelled before.
#[test]
fn no_cancelled_write_lands_over_a_later_one() {
    let mut cancelled = 0;
    for seed in 0..60 {
        let mut dice = SplitMix64::new(seed);
        let few = ControllerOptions { resets: u32::MAX, ..options() };
        let rig =
            Rig::with(FakeDriveConfig { abort_helps: false, ..FakeDriveConfig::default() }, few);
        let mut queue = rig.queue();
        let mut done = Vec::new();
        for round in 1..30_u8 {
            if dice.within(0..2) == 0 {
                rig.fake.inject(When::io(1, IoOpcode::WRITE), Fault::Lost);
            }
            let token = u64::from(round);
            let write = write(0, rig.filled(512, round));
            queue.submit(Io { token, ..write }).unwrap();
            let mut is_cancelled = false;
            let mut steps = 0;
            while done.is_empty() {
                match dice.within(0..6) {
                    0 => {
                        queue.cancel(token);
                        is_cancelled = true;
                    }
                    1 => rig.controller.reset(),
                    2 => drop(rig.controller.turn()),
                    3 => rig.time.pass(dice.within(0..SECOND)),
                    _ => queue.poll(&mut done),
                }
                steps += 1;
                assert!(steps < 100_000, "seed {seed}: {queue:?}");
            }
            let result = done.pop().unwrap().result;
            assert!(is_cancelled || result != CANCELLED, "seed {seed}");
            cancelled += u32::from(result == CANCELLED);
            // The requester has its result: its next write must be the final content.
            rig.fake.clear_faults();
            let last = Io { token: 1000, ..crate::rig::write(0, rig.filled(512, 0x80 | round)) };
            queue.submit(last).unwrap();
            let last = rig.finish(&mut queue).pop().unwrap();
            assert_eq!(last.result, Ok(()), "seed {seed}");
            rig.controller.reset();
            rig.settle(&mut [&mut queue]);
            let there = rig.fake.read_media(1, 0, 1).unwrap();
            assert_eq!(there, [0x80 | round; 512], "seed {seed} round {round}: {result:?}");
        }
        drop((done, queue));
        rig.end();
    }
    assert!(cancelled > 100, "only {cancelled} were cancelled before they were done");
}
