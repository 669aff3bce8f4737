//! Whose command is next: turns, small commands and busy devices.

use super::KIB;
use crate::policy;
use crate::{Cost, FlowConfig, Outcome, Pacer, PacerConfig, RoundRobin};
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

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
