//! Rules of every policy, one test each, over seeded interleavings of several cores; and tests of
//! single parts.
#![cfg(not(loom))]

mod credit;
mod flow_queues;
mod hung;
mod machine;
mod permits;
mod rules;

use nvmeof_random::SplitMix64;

use crate::{CommandOutcome, PolicyConfig, RateSpec, TokenBucketConfig};
use machine::PacedMachine;
use proptest::prelude::*;

const KIB: u32 = 1024;

/// One of each policy that keeps the rules, each with a bound of a few I/Os.
fn every_policy() -> Vec<PolicyConfig> {
    let bucket =
        |pace, burst, budget| PolicyConfig::TokenBucket(TokenBucketConfig { pace, burst, budget });
    vec![
        PolicyConfig::None,
        PolicyConfig::BufferCredit { budget: 1 << 20 },
        bucket(RateSpec::Rate(999_999_937), None, None),
        bucket(RateSpec::Period(5700), None, None),
        bucket(RateSpec::Rate(20_000_000_000), Some(1), None),
        bucket(RateSpec::Rate(3_000_000_000), None, Some(1 << 20)),
        PolicyConfig::Adaptive,
    ]
}

/// Any policy that keeps the rules, with any parameters.
fn a_policy() -> impl Strategy<Value = PolicyConfig> {
    let pace = prop_oneof![
        (1u64..100_000_000_000).prop_map(RateSpec::Rate),
        (1u64..1_000_000).prop_map(RateSpec::Period),
    ];
    let budget = (256u64..4096).prop_map(|kib| kib * 1024);
    let burst = prop::option::of(1u64..1 << 24);
    let bucket = (pace, burst, prop::option::of(budget.clone()));
    prop_oneof![
        1 => Just(PolicyConfig::None),
        3 => budget.prop_map(|budget| PolicyConfig::BufferCredit { budget }),
        3 => bucket.prop_map(|(pace, burst, budget)| {
            PolicyConfig::TokenBucket(TokenBucketConfig { pace, burst, budget })
        }),
        3 => Just(PolicyConfig::Adaptive),
    ]
}

/// One event on the machine; numbers are taken modulo the available ones.
#[derive(Debug, Clone)]
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
    /// Several commands end, with any outcome, before the turn continues.
    EndOnly {
        core: usize,
        which: usize,
        outcome: CommandOutcome,
    },
    Cancel {
        core: usize,
        which: usize,
    },
    ReplaceFlow {
        core: usize,
        which: usize,
    },
    /// The clock changes, not always forward.
    Clock {
        by: i64,
    },
    /// The budget changes, if there is one.
    Resize {
        core: usize,
        budget: u64,
    },
    /// Another policy takes effect on each core in its next turn.
    Swap {
        policy: PolicyConfig,
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
    let outcome = prop_oneof![
        Just(CommandOutcome::Completed),
        Just(CommandOutcome::Failed),
        Just(CommandOutcome::Cancelled)
    ];
    let jump = prop_oneof![
        8 => 1i64..100_000,
        1 => Just(0i64),
        1 => Just(3600 * 1_000_000_000i64),
        1 => Just(-3600 * 1_000_000_000i64),
        1 => -100_000i64..0,
    ];
    prop_oneof![
        24 => (n.clone(), n.clone(), a_size())
            .prop_map(|(core, flow, bytes)| Step::Enqueue { core, flow, bytes }),
        9 => n.clone().prop_map(|core| Step::Turn { core }),
        18 => (n.clone(), n.clone()).prop_map(|(core, which)| Step::Finish { core, which }),
        6 => (n.clone(), n.clone(), outcome)
            .prop_map(|(core, which, outcome)| Step::EndOnly { core, which, outcome }),
        3 => (n.clone(), n.clone()).prop_map(|(core, which)| Step::Cancel { core, which }),
        3 => (n.clone(), n.clone()).prop_map(|(core, which)| Step::ReplaceFlow { core, which }),
        8 => jump.prop_map(|by| Step::Clock { by }),
        3 => (n, 0u64..1 << 22).prop_map(|(core, budget)| Step::Resize { core, budget }),
        1 => a_policy().prop_map(|policy| Step::Swap { policy }),
    ]
}

/// Runs the steps. As on a reactor, a core's turn follows each event on it, unless the step says
/// that the turn continues.
fn play(machine: &mut PacedMachine, steps: &[Step]) {
    let cores = machine.cores.len();
    for step in steps {
        match step.clone() {
            Step::Enqueue { core, flow, bytes } => {
                machine.enqueue(core % cores, flow, bytes);
            }
            Step::Turn { core } => {
                machine.turn(core % cores);
            }
            Step::Finish { core, which } => {
                machine.finish_one(core % cores, which);
            }
            Step::EndOnly { core, which, outcome } => {
                machine.end_as(core % cores, which, outcome);
            }
            Step::Cancel { core, which } => {
                machine.cancel(core % cores, which);
            }
            Step::ReplaceFlow { core, which } => machine.replace_flow(core % cores, which),
            Step::Clock { by } => machine.now = machine.now.saturating_add_signed(by),
            Step::Resize { core, budget } => machine.resize(budget, core % cores),
            Step::Swap { policy } => machine.swap(&policy),
        }
        machine.check();
    }
}

/// A number that looks random.
fn scattered(seed: u64, nth: usize) -> usize {
    usize::try_from(SplitMix64::stream(seed, nth as u64).next_u64() >> 32).unwrap()
}
