//! Reactors that sleep on the queue's descriptor, and poll only when it is readable. Time does not
//! advance, and no other code wakes them.

use nvmeof_core::block::Completed;
use nvmeof_core::nvme_driver::{ControllerOptions, ControllerState, IoQueue};
use nvmeof_fake_drive::{FakeDriveConfig, Mode};
use nvmeof_random::SplitMix64;

use crate::rig::{MILLI, Rig, SECOND, is_readable, options, read, write};

const LEN: usize = 1 << 20;

/// Sleeps until the queue must be polled. In manual mode the device works during the sleep.
fn sleep(rig: &Rig, queue: &IoQueue, mode: Mode, dice: &mut SplitMix64, what: &str) {
    let fd = queue.event_fd().unwrap();
    while !is_readable(fd) {
        let works = mode == Mode::Manual && rig.fake.step();
        assert!(works, "{what}: sleeps for good: {queue:?}");
        // Several completions may arrive before the reactor runs.
        for _ in 0..dice.within(0..4) {
            rig.fake.step();
        }
    }
}

/// Writes and reads `count` times 1 MiB in pieces of 8 KiB, `at_once` operations concurrently.
fn long_operations(mode: Mode, depth: u16, at_once: usize, seed: u64) {
    let what = format!("{mode:?}, depth {depth}, {at_once} at once, seed {seed}");
    let mut dice = SplitMix64::new(seed);
    let mut config = FakeDriveConfig::default();
    config.identify.mdts = 1;
    let few = ControllerOptions { queue_depth: depth, ..options() };
    let rig = Rig::with(config, few);
    let mut queue = rig.queue();
    rig.fake.set_mode(mode);
    let (mut next, mut finished) = (0_u64, 0);
    let count = 8;
    let mut done: Vec<Completed> = Vec::new();
    while finished < count {
        while next < count && queue.in_flight() < at_once {
            let offset = next * LEN as u64;
            let buffer = rig.filled(LEN, next.to_le_bytes()[0]);
            let op =
                if dice.within(0..2) == 0 { write(offset, buffer) } else { read(offset, buffer) };
            queue.submit(op).unwrap();
            next += 1;
        }
        for _ in 0..dice.within(0..3) {
            rig.fake.step();
        }
        queue.poll(&mut done);
        if done.is_empty() {
            sleep(&rig, &queue, mode, &mut dice, &what);
        }
        for done in done.drain(..) {
            assert_eq!(done.result, Ok(()), "{what}");
            finished += 1;
        }
    }
    rig.fake.set_mode(Mode::Automatic);
    drop(queue);
    rig.end();
}

#[test]
fn long_operations_end_though_nobody_polls_without_reason() {
    for mode in [Mode::Automatic, Mode::Manual] {
        for (depth, at_once) in [(2, 1), (4, 1), (4, 3), (8, 4), (32, 4)] {
            for seed in 0..10 {
                long_operations(mode, depth, at_once, seed);
            }
        }
    }
}

/// Returns a drive that was disconnected and is back, and a queue with a pending read whose reactor
/// sleeps.
fn back_and_asleep(config: FakeDriveConfig) -> (Rig, IoQueue) {
    let rig = Rig::new(config);
    let mut queue = rig.queue();
    let mut done = Vec::new();
    rig.pass(&mut queue, SECOND / 10, &mut done);
    rig.fake.set_gone(true);
    rig.pass(&mut queue, SECOND / 10, &mut done);
    rig.fake.set_gone(false);
    assert_eq!(rig.settle(&mut [&mut queue]), ControllerState::Live);
    rig.fake.set_mode(Mode::Manual);
    queue.submit(read(0, rig.filled(4096, 0))).unwrap();
    for _ in 0..1000 {
        queue.poll(&mut done);
    }
    assert!(done.is_empty() && !is_readable(queue.event_fd().unwrap()));
    (rig, queue)
}

#[test]
fn a_drive_that_was_away_tells_of_completions_again() {
    let (rig, mut queue) = back_and_asleep(FakeDriveConfig::default());
    rig.fake.run();
    assert!(
        is_readable(queue.event_fd().unwrap()),
        "by the device itself: nobody else did anything"
    );
    assert!(rig.controller.turn() > 10 * MILLI, "the supervisor need not look for it");
    rig.fake.set_mode(Mode::Automatic);
    assert_eq!(rig.finish(&mut queue)[0].result, Ok(()));
    drop(queue);
    rig.end();
}

#[test]
fn where_interrupts_cannot_be_set_up_anew_the_warden_wakes_reactors() {
    let (rig, mut queue) =
        back_and_asleep(FakeDriveConfig { can_rearm: false, ..FakeDriveConfig::default() });
    rig.fake.run();
    assert!(!is_readable(queue.event_fd().unwrap()));
    assert_eq!(rig.controller.turn(), 10 * MILLI);
    assert!(is_readable(queue.event_fd().unwrap()));
    rig.fake.set_mode(Mode::Automatic);
    assert_eq!(rig.finish(&mut queue)[0].result, Ok(()));
    drop(queue);
    rig.end();
}
