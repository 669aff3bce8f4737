//! For random operations and faults, completions keep their order and all resources are released.

use nvmeof_random::SplitMix64;
use nvmeof_verbs::{Endpoint, SendOp, WcStatus, WorkCompletion};
use nvmeof_verbs_conformance::{Pair, pattern};

use super::fixture::{Lab, Setup, living};
use crate::{LoopbackDevice, Side};

/// Posted work and completions of one end.
#[derive(Default)]
struct Watch {
    sends: Queue,
    receives: Queue,
    gone: bool,
}

/// One queue. Every work request completes at most once, in order, with success until the first
/// failure.
#[derive(Default)]
struct Queue {
    posted: u32,
    next: u32,
    failed: bool,
    /// A fault drops a completion.
    loses: bool,
}

impl Queue {
    fn saw(&mut self, completion: &WorkCompletion, silent: impl Fn(u32) -> bool) {
        let id = completion.id.slot();
        assert!(id >= self.next && id < self.posted, "{completion:?} is not due: {}", self.next);
        // A missing completion is of an unsignaled success, or was lost.
        let left_out = self.next..id;
        assert!(self.loses || left_out.clone().all(silent), "{left_out:?} is missing");
        assert!(self.loses || !self.failed || left_out.is_empty(), "{left_out:?} is missing");
        match completion.status {
            WcStatus::Success => assert!(!self.failed, "{completion:?}"),
            WcStatus::Flushed => self.failed = true,
            _ => assert!(!std::mem::replace(&mut self.failed, true), "{completion:?}"),
        }
        self.next = id + 1;
    }
}

impl Watch {
    fn saw(&mut self, came: Vec<WorkCompletion>) {
        for completion in came {
            match completion.id.kind() {
                b's' => self.sends.saw(&completion, |id| id % 3 != 0),
                _ => self.receives.saw(&completion, |_| false),
            }
        }
    }
}

fn act(
    pair: &mut Pair<LoopbackDevice>,
    watches: &mut [Watch; 2],
    random: &mut SplitMix64,
    lab: &Lab,
) {
    let asking = random.coin();
    let (end, peer) = match asking {
        true => (&mut pair.asking, &pair.answering),
        false => (&mut pair.answering, &pair.asking),
    };
    let watch = &mut watches[usize::from(asking)];
    if watch.gone {
        return;
    }
    let length = u32::try_from(random.below(3_001)).unwrap();
    match random.below(100) {
        0..30 => {
            // 2 % are too short for some messages.
            let room = if random.below(50) == 0 { 1_000 } else { 3_000 };
            if end.receive(watch.receives.posted, 500_000, room).is_ok() {
                watch.receives.posted += 1;
            }
        }
        30..70 => {
            let mut operation = match random.below(3) {
                0 => SendOp::Send,
                1 => peer.memory().write_at(100_000),
                _ => peer.memory().read_at(200_000),
            };
            if random.below(200) == 0 {
                operation = SendOp::Read { address: 1, key: peer.memory().rkey() };
            }
            let id = watch.sends.posted;
            let mut work = end.work(id, operation, 300_000, length);
            work.signaled = id.is_multiple_of(3);
            work.fence = random.below(10) == 0;
            if end.post(&[work]).is_ok() {
                watch.sends.posted += 1;
            }
        }
        70..96 => {
            end.poll().unwrap();
            watch.saw(end.take());
        }
        96 => fault(end.endpoint().number(), watch, random, lab),
        97 if random.below(10) == 0 => end.endpoint().disconnect(),
        98 if random.below(20) == 0 => {
            end.drop_endpoint();
            // Its completions may be gone with it.
            watch.gone = true;
        }
        _ => {}
    }
}

fn fault(number: u32, watch: &mut Watch, random: &mut SplitMix64, lab: &Lab) {
    let (faults, nth) = (lab.fabric.faults(), random.below(10));
    match random.below(20) {
        0 => {
            watch.sends.loses = true;
            faults.lose_completion(number, Side::Send, nth);
        }
        1 => {
            watch.receives.loses = true;
            faults.lose_completion(number, Side::Receive, nth);
        }
        2 => faults.remote_access(number, nth),
        3 => faults.unreachable(number, nth),
        4 => faults.break_at(number, nth),
        5 => faults.queue_pair_error(number),
        6..10 => faults.refuse_send(number, nth, 0),
        _ => faults.not_ready(number, nth, 3),
    }
}

/// Returns the number of failed work requests of both ends.
fn run(seed: u64) -> u64 {
    let mut random = SplitMix64::new(seed);
    let mut lab = Lab::new(seed);
    let before = living(&lab.fabric);
    let mut pairs = Vec::new();
    for _ in 0..3 {
        let shared = random.coin();
        pairs.push(lab.pair_with(&Setup { shared, ..Setup::default() }));
    }
    let mut watches: Vec<[Watch; 2]> = pairs.iter().map(|_| Default::default()).collect();
    for _ in 0..1_500 {
        let index = usize::try_from(random.below(3)).unwrap();
        act(&mut pairs[index], &mut watches[index], &mut random, &lab);
        if random.below(3) == 0 {
            lab.fabric.step();
        }
    }
    for (pair, watches) in pairs.iter_mut().zip(&mut watches) {
        // Ends any waiting for a receive.
        for end in [&mut pair.asking, &mut pair.answering] {
            if !watches[usize::from(end.device().address() == lab.host.address())].gone {
                end.endpoint().disconnect();
            }
        }
        for _ in 0..8 {
            pair.pass();
        }
        let [answering, asking] = watches;
        for (watch, end) in [(asking, &mut pair.asking), (answering, &mut pair.answering)] {
            watch.saw(end.take());
            let done = watch.gone || watch.sends.loses || watch.sends.next == watch.sends.posted;
            let quiet = (watch.sends.next..watch.sends.posted).all(|id| id % 3 != 0);
            assert!(done || quiet, "{} of {}", watch.sends.next, watch.sends.posted);
        }
    }
    drop(pairs);
    lab.fabric.settle();
    let counters = lab.fabric.counters();
    assert_eq!(living(&lab.fabric), before);
    assert_eq!(counters.ended, counters.sends_posted + counters.receives_posted);
    assert_eq!(counters.misuses, 0);
    counters.failed
}

#[test]
fn order_and_places_hold_whatever_fails() {
    let mut failed = 0;
    for seed in 0..150 {
        println!("seed {seed}");
        failed += run(seed);
    }
    assert!(failed > 500, "{failed}");
}

#[test]
fn the_bytes_are_right_in_any_order() {
    for seed in 0..60 {
        let mut random = SplitMix64::new(seed);
        let mut lab = Lab::new(seed);
        let mut pair = lab.pair();
        pair.asking.memory_mut().fill(0, &pattern(1, 500_000));
        pair.answering.memory_mut().fill(500_000, &pattern(2, 500_000));
        let mut expected = Vec::new();
        let mut offset = 0;
        for id in 0..30 {
            let length = usize::try_from(random.below(15_001)).unwrap();
            let write = random.coin();
            let operation = if write {
                pair.answering.memory().write_at(offset)
            } else {
                pair.answering.memory().read_at(500_000 + offset)
            };
            let here = if write { offset } else { 500_000 + offset };
            let work = pair.asking.work(id, operation, here, u32::try_from(length).unwrap());
            pair.asking.post(&[work]).unwrap();
            expected.push((write, here, length));
            offset += length;
        }
        pair.completions(30, 0);
        for (write, at, length) in expected {
            let end = if write { &pair.answering } else { &pair.asking };
            let (seed_of, start) = if write { (1, at) } else { (2, at - 500_000) };
            let bytes = &pattern(seed_of, 500_000)[start..start + length];
            assert!(end.memory().bytes(at, length) == bytes, "seed {seed} at {at}");
        }
    }
}
