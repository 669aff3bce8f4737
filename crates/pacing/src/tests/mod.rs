//! The rules every policy keeps, one test each, over seeded interleavings of several cores.
#![cfg(not(loom))]

mod machine;

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::policy::{self, CreditConfig};
use crate::{
    BufferCredit, Cost, FlowConfig, Nanos, Outcome, Pacer, PacerConfig, Policy, RoundRobin,
    TooLarge, lost_permits,
};
use machine::Machine;
use proptest::prelude::*;

const KIB: u32 = 1024;

/// One thing that happens to the machine; numbers are taken modulo what there is.
#[derive(Debug, Clone, Copy)]
enum Step {
    Enqueue {
        core: usize,
        flow: usize,
        bytes: u32,
    },
    Turn {
        core: usize,
    },
    /// A command ends, and with it the turn.
    Finish {
        core: usize,
        which: usize,
    },
    /// Several commands end before the turn goes on.
    EndOnly {
        core: usize,
        which: usize,
    },
    Cancel {
        core: usize,
        which: usize,
    },
    ReplaceFlow {
        core: usize,
        which: usize,
    },
}

fn a_size() -> impl Strategy<Value = u32> {
    prop_oneof![
        1 => Just(0),
        2 => Just(512),
        4 => Just(4 * KIB),
        4 => Just(128 * KIB),
        1 => Just(256 * KIB),
        2 => 1..=256 * KIB,
    ]
}

fn a_step() -> impl Strategy<Value = Step> {
    let n = 0usize..64;
    prop_oneof![
        8 => (n.clone(), n.clone(), a_size())
            .prop_map(|(core, flow, bytes)| Step::Enqueue { core, flow, bytes }),
        3 => n.clone().prop_map(|core| Step::Turn { core }),
        6 => (n.clone(), n.clone()).prop_map(|(core, which)| Step::Finish { core, which }),
        2 => (n.clone(), n.clone()).prop_map(|(core, which)| Step::EndOnly { core, which }),
        1 => (n.clone(), n.clone()).prop_map(|(core, which)| Step::Cancel { core, which }),
        1 => (n.clone(), n).prop_map(|(core, which)| Step::ReplaceFlow { core, which }),
    ]
}

/// Runs the steps; a core's turn follows whatever happened on it, as on a reactor, unless the step
/// says that the turn is still going on.
fn play(machine: &mut Machine, steps: &[Step]) {
    let cores = machine.cores.len();
    for step in steps {
        match *step {
            Step::Enqueue { core, flow, bytes } => {
                machine.enqueue(core % cores, flow, bytes);
            }
            Step::Turn { core } => {
                machine.turn(core % cores);
            }
            Step::Finish { core, which } => {
                machine.finish_one(core % cores, which);
            }
            Step::EndOnly { core, which } => {
                machine.end_one(core % cores, which);
            }
            Step::Cancel { core, which } => {
                machine.cancel(core % cores, which);
            }
            Step::ReplaceFlow { core, which } => machine.replace_flow(core % cores, which),
        }
        machine.check();
    }
}

/// A number that looks random (splitmix64).
fn scattered(seed: u64, nth: usize) -> usize {
    let mut z = seed.wrapping_add((nth as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    usize::try_from((z ^ (z >> 31)) >> 32).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever happened: budget kept, counts exact, each command out exactly once, all credit
    /// back in the end, and while it drains nobody who could start waits.
    #[test]
    fn nothing_is_lost_or_given_twice(
        cores in 1usize..6,
        flows in 1usize..5,
        budget_kib in 256u64..4096,
        steps in prop::collection::vec(a_step(), 1..300),
    ) {
        let mut machine = Machine::new(cores, flows, budget_kib * 1024, 256 * KIB);
        play(&mut machine, &steps);
        machine.drain();
    }

    /// Admission depends on no outside event: after every release, the turns of that core and of
    /// the cores that were woken start all that can start.
    #[test]
    fn every_release_starts_what_it_makes_possible(
        cores in 1usize..6,
        budget_kib in 256u64..2048,
        load in prop::collection::vec((0usize..64, 0usize..4, 1u32..=256), 1..200),
        ends in prop::collection::vec((0usize..64, 0usize..64), 1..200),
    ) {
        let mut machine = Machine::new(cores, 4, budget_kib * 1024, 256 * KIB);
        for (core, flow, kib) in load {
            machine.enqueue(core % cores, flow, kib * KIB);
            machine.turn(core % cores);
            machine.run_woken();
            machine.check();
            machine.check_settled();
        }
        for (core, which) in ends {
            machine.finish_one(core % cores, which);
            machine.check();
            machine.check_settled();
        }
        machine.drain();
    }

    /// A command without data starts on the very next call, however much data waits and however
    /// little budget is left.
    #[test]
    fn commands_without_data_never_wait_behind_data(
        data in prop::collection::vec((0usize..3, 1u32..=256), 1..100),
        flow in 0usize..3,
    ) {
        let mut machine = Machine::new(1, 3, 256 * 1024, 256 * KIB);
        for (flow, kib) in data {
            machine.enqueue(0, flow, kib * KIB);
        }
        machine.turn(0);
        let token = machine.enqueue(0, flow, 0);
        let core = &mut machine.cores[0];
        let before = core.pacer.counts();
        let (next, permit) = core.pacer.next(0).expect("it may start");
        prop_assert_eq!(next, token);
        let after = core.pacer.counts();
        prop_assert_eq!(after.started_without_data, before.started_without_data + 1);
        prop_assert_eq!(after.bytes_in_flight, before.bytes_in_flight);
        core.pacer.release(permit, Outcome::Completed, 0);
        core.waiting.retain(|waiting| waiting.1 != token);
        *machine.fate.get_mut(&token).unwrap() += 1;
        machine.drain();
    }

    /// Small I/O is counted: as much of it as the budget holds is in flight, and one more (the
    /// floor) at most.
    #[test]
    fn small_io_is_counted(bytes in 1u32..=4096, count in 1u64..400) {
        let budget = 256 * 1024;
        let mut machine = Machine::new(1, 1, budget, 256 * KIB);
        for _ in 0..count {
            machine.enqueue(0, 0, bytes);
        }
        let started = machine.turn(0) as u64;
        prop_assert_eq!(started, count.min(budget / u64::from(bytes)));
        machine.drain();
    }

    /// With all of the budget out on one core, every other core starts exactly one I/O; and
    /// another when that one is over, for as long as the first core keeps all.
    #[test]
    fn a_core_that_holds_nothing_starts_one(cores in 2usize..9, rounds in 1usize..5) {
        let mut machine = Machine::new(cores, 2, 1024 * 1024, 256 * KIB);
        for _ in 0..4 {
            machine.enqueue(0, 0, 256 * KIB);
        }
        prop_assert_eq!(machine.turn(0), 4);
        for core in 1..cores {
            for _ in 0..=rounds {
                machine.enqueue(core, 0, 128 * KIB);
            }
            prop_assert_eq!(machine.turn(core), 1);
            for _ in 0..rounds {
                machine.end_one(core, 0);
                prop_assert_eq!(machine.turn(core), 1);
                machine.check();
            }
        }
        machine.drain();
    }

    /// No core starves: while all cores wait and I/Os end in no particular order, what the budget
    /// serves goes to the cores in equal parts, within a constant that does not grow with the
    /// length of the run.
    #[test]
    fn waiting_cores_share_the_budget_evenly(
        cores in 2usize..6,
        ends in 200usize..2000,
        seed in any::<u64>(),
    ) {
        let io = 128 * KIB;
        let per_core = 16usize;
        let budget = u64::from(io) * (per_core * cores) as u64;
        let mut machine = Machine::new(cores, 2, budget, 256 * KIB);
        // The first core comes first and takes all; the others find nothing.
        for core in 0..cores {
            for _ in 0..ends + per_core * cores {
                machine.enqueue(core, 0, io);
            }
            machine.turn(core);
        }
        let before: Vec<u64> = machine.cores.iter().map(|core| core.started).collect();
        for nth in 0..ends {
            let running: Vec<usize> =
                machine.cores.iter().map(|core| core.running.len()).collect();
            let mut at = scattered(seed, nth) % running.iter().sum::<usize>();
            let mut core = 0;
            while at >= running[core] {
                at -= running[core];
                core += 1;
            }
            machine.finish_one(core, at);
            machine.check();
        }
        let got: Vec<u64> =
            machine.cores.iter().zip(&before).map(|(core, before)| core.started - before).collect();
        let (least, most) = (got.iter().min().unwrap(), got.iter().max().unwrap());
        prop_assert!(most - least <= 4, "{:?}", got);
    }

    /// The stated bound of the order: between two flows that always wait, the bytes charged
    /// differ by at most `3 Q + M / w_i + M / w_j` after division by their weights.
    #[test]
    fn flows_are_served_within_the_stated_bound(
        weights in prop::collection::vec(1u16..5, 2..8),
        sizes in prop::collection::vec(1u32..=256, 8),
        rounds in 100usize..1000,
    ) {
        let mut pacer = Pacer::new(vec![Box::new(policy::None)], PacerConfig::default());
        let flows: Vec<_> = weights.iter().map(|&w| (pacer.add_flow(FlowConfig::weight(w)), w)).collect();
        let enqueue = |pacer: &mut Pacer, at: usize, nth: usize| {
            let bytes = sizes[(at * 3 + nth) % sizes.len()] * KIB;
            pacer.enqueue(flows[at].0, Cost::data(bytes), at as u64).unwrap();
        };
        let mut sent = vec![0usize; flows.len()];
        let mut charged = vec![0i64; flows.len()];
        for at in 0..flows.len() {
            enqueue(&mut pacer, at, 0);
            enqueue(&mut pacer, at, 1);
        }
        for _ in 0..rounds {
            let (token, permit) = pacer.next(0).unwrap();
            let at = usize::try_from(token).unwrap();
            charged[at] += i64::from(permit.cost().bytes.max(RoundRobin::LEAST_CHARGE));
            pacer.release(permit, Outcome::Completed, 0);
            sent[at] += 1;
            enqueue(&mut pacer, at, sent[at] + 1);
            for (i, &(_, wi)) in flows.iter().enumerate() {
                for (j, &(_, wj)) in flows.iter().enumerate() {
                    let (wi, wj) = (i64::from(wi), i64::from(wj));
                    let most = i64::from(256 * KIB);
                    let bound = 3 * i64::from(RoundRobin::QUANTUM) + most / wi + most / wj + 2;
                    let apart = charged[i] / wi - charged[j] / wj;
                    prop_assert!(apart <= bound, "flows {i} and {j}: {apart} > {bound}");
                }
            }
        }
        for (flow, _) in flows {
            pacer.remove_flow(flow);
        }
    }

    /// Within a flow, commands with data start in the order they came.
    #[test]
    fn a_flow_is_first_in_first_out(count in 1u64..100, cancel in 0u64..100) {
        let mut pacer = Pacer::new(Vec::new(), PacerConfig { flow_depth: 4 });
        let flow = pacer.add_flow(FlowConfig::weight(1));
        for token in 0..count {
            pacer.enqueue(flow, Cost::data(4096), token).unwrap();
        }
        prop_assert_eq!(pacer.cancel(flow, cancel), cancel < count);
        let mut seen = Vec::new();
        while let Some((token, permit)) = pacer.next(0) {
            seen.push(token);
            pacer.release(permit, Outcome::Completed, 0);
        }
        let expected: Vec<u64> = (0..count).filter(|token| *token != cancel).collect();
        prop_assert_eq!(seen, expected);
    }
}

#[test]
fn what_can_never_fit_is_refused_when_it_is_enqueued() {
    let mut machine = Machine::new(2, 1, 1024 * 1024, 256 * KIB);
    let core = &mut machine.cores[0];
    let too_large = core.pacer.enqueue(core.flows[0], Cost::data(256 * KIB + 1), 7);
    assert_eq!(too_large, Err(TooLarge { bytes: 256 * KIB + 1, largest: 256 * KIB }));
    assert_eq!(core.pacer.waiting(), 0);
    assert_eq!(core.pacer.counts().too_large, 1);
    assert_eq!(core.pacer.largest(), 256 * KIB);
    machine.enqueue(0, 0, 256 * KIB);
    machine.drain();
}

#[test]
fn a_budget_below_one_io_is_refused_at_the_start() {
    let config = CreditConfig { budget: 4096, largest: 8192, cores: 1 };
    let error = BufferCredit::shared(config).unwrap_err();
    assert!(error.to_string().contains("4096") && error.to_string().contains("8192"), "{error}");
}

#[test]
fn credit_laid_open_by_an_idle_core_serves_another_without_it_running() {
    let mut machine = Machine::new(2, 1, 1024 * 1024, 256 * KIB);
    for _ in 0..4 {
        machine.enqueue(0, 0, 256 * KIB);
    }
    assert_eq!(machine.turn(0), 4);
    for _ in 0..4 {
        machine.end_one(0, 0);
    }
    // The last turn of core 0: nothing waits, so it keeps nothing to itself.
    machine.turn(0);
    for _ in 0..4 {
        machine.enqueue(1, 0, 256 * KIB);
    }
    assert_eq!(machine.turn(1), 4);
    machine.drain();
}

#[test]
fn credit_granted_to_a_core_that_no_longer_wants_it_goes_on() {
    let mut machine = Machine::new(3, 1, 512 * 1024, 256 * KIB);
    machine.enqueue(0, 0, 256 * KIB);
    machine.enqueue(0, 0, 256 * KIB);
    machine.turn(0);
    for core in 1..3 {
        machine.enqueue(core, 0, 256 * KIB);
        machine.enqueue(core, 0, 256 * KIB);
        assert_eq!(machine.turn(core), 1, "the floor");
    }
    // Credit is granted to core 1, which does not get to run before its command is cancelled.
    machine.end_one(0, 0);
    assert!(machine.cores[1].woken.load(std::sync::atomic::Ordering::Relaxed));
    assert!(machine.cancel(1, 0));
    machine.run_woken();
    assert!(machine.cores[2].waiting.is_empty(), "core 2 is next in line");
    machine.drain();
}

#[test]
fn a_core_whose_last_command_was_cancelled_is_out_of_the_line_at_once() {
    let mut machine = Machine::new(3, 1, 512 * 1024, 256 * KIB);
    machine.enqueue(0, 0, 256 * KIB);
    machine.enqueue(0, 0, 256 * KIB);
    machine.turn(0);
    for core in 1..3 {
        machine.enqueue(core, 0, 256 * KIB);
        machine.enqueue(core, 0, 256 * KIB);
        assert_eq!(machine.turn(core), 1, "the floor");
    }
    assert!(machine.cancel(1, 0));
    // Core 1 has no turn before the credit comes.
    machine.end_one(0, 0);
    let woken = |core: usize| machine.cores[core].woken.load(std::sync::atomic::Ordering::Relaxed);
    assert!(!woken(1) && woken(2));
    machine.drain();
}

#[test]
fn credit_that_one_core_waits_for_is_not_taken_past_it() {
    let mut machine = Machine::new(3, 1, 512 * 1024, 256 * KIB);
    for _ in 0..4 {
        machine.enqueue(0, 0, 128 * KIB);
    }
    assert_eq!(machine.turn(0), 4);
    machine.enqueue(1, 0, 64 * KIB);
    machine.enqueue(1, 0, 256 * KIB);
    assert_eq!(machine.turn(1), 1, "the floor");
    machine.enqueue(2, 0, 64 * KIB);
    assert_eq!(machine.turn(2), 1, "the floor");
    // Half of what core 1 waits for is free: too little for it, enough for core 2.
    machine.finish_one(0, 0);
    machine.enqueue(2, 0, 64 * KIB);
    assert_eq!(machine.turn(2), 0, "core 1 was first");
    machine.finish_one(0, 0);
    assert!(machine.cores[1].waiting.is_empty() && !machine.cores[2].waiting.is_empty());
    machine.finish_one(0, 0);
    assert!(machine.cores[2].waiting.is_empty());
    machine.drain();
}

/// A flow that sends one large command at a time, and so is never in line for long, gets no more
/// than one that always has small ones waiting.
#[test]
fn a_flow_that_comes_and_goes_takes_its_debt_along() {
    let mut pacer = Pacer::new(Vec::new(), PacerConfig::default());
    let (one, many) =
        (pacer.add_flow(FlowConfig::weight(1)), pacer.add_flow(FlowConfig::weight(1)));
    let mut charged = [0i64; 2];
    for _ in 0..16 {
        pacer.enqueue(many, Cost::data(4 * KIB), 1).unwrap();
    }
    pacer.enqueue(one, Cost::data(1024 * KIB), 0).unwrap();
    for _ in 0..10_000 {
        let (token, permit) = pacer.next(0).unwrap();
        let (flow, cost) = (permit.flow(), permit.cost());
        charged[usize::try_from(token).unwrap()] += i64::from(cost.bytes);
        pacer.release(permit, Outcome::Completed, 0);
        pacer.enqueue(flow, cost, token).unwrap();
    }
    let bound = 3 * i64::from(RoundRobin::QUANTUM) + 2 * i64::from(1024 * KIB);
    assert!((charged[0] - charged[1]).abs() <= bound, "{charged:?}");
}

#[test]
fn a_core_that_goes_away_gives_its_credit_back() {
    let mut machine = Machine::new(2, 1, 512 * 1024, 256 * KIB);
    machine.enqueue(0, 0, 256 * KIB);
    machine.turn(0);
    machine.end_one(0, 0);
    let gone = machine.cores.remove(0);
    drop(gone);
    assert_eq!(machine.shared.unused(), machine.shared.budget());
}

/// Grants what it is told to; stands for policies that come later.
#[derive(Debug)]
struct Gate {
    opens_at: Nanos,
    out: std::sync::Arc<std::sync::atomic::AtomicI64>,
}

impl Policy for Gate {
    fn admit(&mut self, _ask: &policy::Ask, now: Nanos) -> policy::Admission {
        if now < self.opens_at {
            return policy::Admission::At(self.opens_at);
        }
        self.out.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        policy::Admission::Granted(policy::Grant(9))
    }

    fn release(&mut self, _done: &policy::Done, grant: policy::Grant, _now: Nanos) {
        assert_eq!(grant, policy::Grant(9));
        self.out.fetch_sub(1, std::sync::atomic::Ordering::Relaxed);
    }
}

#[test]
fn a_chain_grants_all_or_nothing() {
    let credit = |shared: &std::sync::Arc<crate::SharedCredit>| -> Box<dyn Policy> {
        Box::new(shared.core(0, std::sync::Arc::new(|| ())))
    };
    for credit_first in [true, false] {
        let config = CreditConfig { budget: 8192, largest: 8192, cores: 1 };
        let shared = BufferCredit::shared(config).unwrap();
        let out = std::sync::Arc::default();
        let gate = Box::new(Gate { opens_at: 100, out: std::sync::Arc::clone(&out) });
        let out = || out.load(std::sync::atomic::Ordering::Relaxed);
        let policies: Vec<Box<dyn Policy>> =
            if credit_first { vec![credit(&shared), gate] } else { vec![gate, credit(&shared)] };
        let mut pacer = Pacer::new(policies, PacerConfig::default());
        let flow = pacer.add_flow(FlowConfig::weight(1));
        pacer.enqueue(flow, Cost::data(8192), 1).unwrap();
        pacer.enqueue(flow, Cost::data(8192), 2).unwrap();

        assert!(pacer.next(10).is_none());
        assert_eq!(pacer.next_wakeup(), Some(100));
        assert_eq!((out(), shared.unused()), (0, 8192), "refused: nobody keeps anything");

        let (token, permit) = pacer.next(100).unwrap();
        assert_eq!((token, out(), shared.unused()), (1, 1, 0));

        assert!(pacer.next(100).is_none(), "the credit is out");
        assert_eq!((pacer.next_wakeup(), out()), (None, 1));

        pacer.release(permit, Outcome::Completed, 120);
        let (token, permit) = pacer.next(120).unwrap();
        assert_eq!(token, 2);
        pacer.release(permit, Outcome::Failed, 130);
        assert!(pacer.next(130).is_none());
        assert_eq!((out(), shared.unused()), (0, 8192));
    }
}

#[test]
fn a_lost_permit_is_noticed() {
    let mut pacer = Pacer::new(Vec::new(), PacerConfig::default());
    let flow = pacer.add_flow(FlowConfig::weight(1));
    pacer.enqueue(flow, Cost::data(4096), 1).unwrap();
    let (_, permit) = pacer.next(0).unwrap();
    let before = lost_permits();
    let dropped = catch_unwind(AssertUnwindSafe(|| drop(permit)));
    assert_eq!(dropped.is_err(), cfg!(debug_assertions), "a debug build panics");
    assert_eq!(lost_permits(), before + 1);
    assert_eq!(pacer.outstanding(), 1);
}

#[test]
#[should_panic(expected = "was removed")]
fn a_removed_flow_takes_nothing() {
    let mut pacer = Pacer::new(Vec::new(), PacerConfig::default());
    let old = pacer.add_flow(FlowConfig::weight(1));
    pacer.remove_flow(old);
    let new = pacer.add_flow(FlowConfig::weight(1));
    assert!(!pacer.cancel(old, 0) && pacer.remove_flow(old).is_empty() && pacer.flows() == 1);
    pacer.enqueue(new, Cost::data(4096), 1).unwrap();
    let _ = pacer.enqueue(old, Cost::data(4096), 2);
}
