//! Order that is kept, order that is not, and the effect of the seed.

use nvmeof_verbs::WcStatus::Success;
use nvmeof_verbs::{Endpoint, SendOp, WorkCompletion};
use nvmeof_verbs_conformance::{Pair, pattern, slots};

use super::fixture::{Lab, Setup};
use crate::{Costs, LoopbackDevice};

/// Returns what the targets of two connections receive, in order of arrival, when both send
/// concurrently.
fn arrivals(seed: u64) -> Vec<(usize, u32)> {
    let mut lab = Lab::new(seed);
    let mut pairs: Vec<Pair<LoopbackDevice>> = (0..2).map(|_| lab.pair()).collect();
    for pair in &mut pairs {
        for id in 0..10 {
            pair.answering.receive(id, 0, 8).unwrap();
            let work = pair.asking.work(id, SendOp::Send, 0, 8);
            pair.asking.post(&[work]).unwrap();
        }
    }
    let mut seen = Vec::new();
    while lab.fabric.step() {
        for (index, pair) in pairs.iter_mut().enumerate() {
            pair.answering.poll().unwrap();
            let came = pair.answering.take();
            seen.extend(came.iter().map(|completion| (index, completion.id.slot())));
        }
    }
    seen
}

#[test]
fn the_seed_decides_between_connections() {
    let all: Vec<_> = (0..20).map(arrivals).collect();
    for (seed, seen) in all.iter().enumerate() {
        assert_eq!(seen.len(), 20);
        for index in 0..2 {
            let own = seen.iter().filter(|(of, _)| *of == index).map(|(_, id)| *id);
            assert!(own.eq(0..10), "seed {seed}: {seen:?}");
        }
    }
    assert_eq!(arrivals(3), all[3]);
    let mut different = all;
    different.sort();
    different.dedup();
    assert!(different.len() > 10, "{}", different.len());
}

#[test]
fn an_answer_may_come_before_ones_own_completion() {
    let mut first = [0; 2];
    for seed in 0..100 {
        let mut lab = Lab::new(seed);
        let mut pair = lab.pair();
        pair.asking.receive(0, 0, 8).unwrap();
        pair.answering.receive(0, 0, 8).unwrap();
        let work = pair.asking.work(0, SendOp::Send, 0, 8);
        pair.asking.post(&[work]).unwrap();
        let mut order = Vec::new();
        let mut answered = false;
        while lab.fabric.step() {
            pair.answering.poll().unwrap();
            if !answered && pair.answering.came().iter().any(|came| came.id.kind() == b'r') {
                answered = true;
                let work = pair.answering.work(0, SendOp::Send, 0, 8);
                pair.answering.post(&[work]).unwrap();
            }
            pair.asking.poll().unwrap();
            order.extend(pair.asking.take().iter().map(|came| came.id.kind()));
        }
        assert_eq!(order.len(), 2, "seed {seed}");
        first[usize::from(order[0] == b'r')] += 1;
    }
    assert!(first[0] > 5 && first[1] > 5, "{first:?}");
}

#[test]
fn who_reuses_memory_too_soon_sends_wrong_bytes() {
    let mut wrong = 0;
    for seed in 0..40 {
        let mut lab = Lab::new(seed);
        let mut pair = lab.pair();
        pair.asking.memory_mut().fill(0, &[1; 64]);
        let work = pair.asking.work(0, pair.answering.memory().write_at(0), 0, 64);
        pair.asking.post(&[work]).unwrap();
        pair.asking.memory_mut().fill(0, &[2; 64]);
        pair.completions(1, 0);
        wrong += u32::from(pair.answering.memory().bytes(0, 64) == [2; 64]);
    }
    assert!((10..=30).contains(&wrong), "{wrong}");
}

#[test]
fn work_may_go_on_until_it_is_flushed() {
    // An owner that reuses memory after it ended the connection, before its work is flushed, finds
    // wrong bytes.
    let mut late = 0;
    for seed in 0..60 {
        let mut lab = Lab::new(seed);
        let mut pair = lab.pair();
        pair.answering.memory_mut().fill(0, &[4; 64]);
        let work = pair.asking.work(0, pair.answering.memory().read_at(0), 0, 64);
        pair.asking.post(&[work]).unwrap();
        pair.asking.endpoint().disconnect();
        let mut written = false;
        loop {
            pair.asking.poll().unwrap();
            let bytes = pair.asking.memory().bytes(0, 64);
            if !pair.asking.came().is_empty() {
                // From here on the memory is the owner's.
                pair.asking.memory_mut().fill(0, &[0; 64]);
                pair.pass();
                assert_eq!(pair.asking.memory().bytes(0, 64), [0; 64], "seed {seed}");
                break;
            }
            written |= bytes == [4; 64];
            assert!(lab.fabric.step());
        }
        late += u32::from(written);
    }
    assert!(late > 3, "{late}");
}

#[test]
fn a_shared_queue_serves_whoever_comes_first() {
    for seed in 0..10 {
        let mut lab = Lab::new(seed);
        let mut pair = lab.pair_with(&Setup { shared: true, ..Setup::default() });
        for id in 0..30u32 {
            pair.answering.receive(id, 64 * id as usize, 64).unwrap();
            pair.asking.memory_mut().fill(64 * id as usize, &pattern(id.to_le_bytes()[0], 64));
            let work = pair.asking.work(id, SendOp::Send, 64 * id as usize, 64);
            pair.asking.post(&[work]).unwrap();
        }
        let (_, received) = pair.completions(30, 30);
        assert_eq!(slots(&received, b'r', Success), Vec::from_iter(0..30), "seed {seed}");
        for id in 0..30u32 {
            let bytes = pair.answering.memory().bytes(64 * id as usize, 64);
            assert_eq!(bytes, pattern(id.to_le_bytes()[0], 64), "seed {seed}");
        }
    }
}

#[test]
fn costs_are_what_they_are_set_to() {
    let mut lab = Lab::new(1);
    let mut pair = lab.pair();
    let costs = Costs {
        send: 100,
        write: 10_000,
        read: 300,
        answer: 1_000,
        jitter: 0,
        bytes_per_microsecond: 1_000,
        ..Costs::default()
    };
    lab.fabric.set_costs(costs);
    let took = |pair: &mut Pair<LoopbackDevice>, operation, length| {
        let start = lab.fabric.now();
        let work = pair.asking.work(0, operation, 0, length);
        pair.asking.post(&[work]).unwrap();
        let mut came: Vec<WorkCompletion> = Vec::new();
        while came.is_empty() {
            assert!(lab.fabric.step());
            pair.asking.poll().unwrap();
            came = pair.asking.take();
        }
        lab.fabric.now() - start
    };
    pair.answering.receive(0, 0, 1_000).unwrap();
    assert_eq!(took(&mut pair, SendOp::Send, 1_000), 1_000 + 100 + 1_000);
    let write = pair.answering.memory().write_at(0);
    assert_eq!(took(&mut pair, write, 50_000), 50_000 + 10_000 + 1_000);
    let read = pair.answering.memory().read_at(0);
    assert_eq!(took(&mut pair, read, 50_000), 300 + 1_000 + 50_000);
}
