//! Tests of the selection of the next command: turns, small commands and busy devices.

use super::KIB;
use crate::policy::{
    self, Admission, AdmissionPolicy, AdmissionRequest, AnyPolicy, CompletedCommand, Grant,
};
use crate::{
    CommandOutcome, Cost, DeficitRoundRobin, FlowConfig, FlowId, Nanos, Pacer, PacerConfig,
    PacerParts, Permit, SmallCommandRule,
};
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// Stated bound of deficit round robin: the charges of two flows that always wait differ by at
    /// most `3 Q + M / w_i + M / w_j` after division by their weights.
    #[test]
    fn flows_are_served_within_the_stated_bound(
        weights in prop::collection::vec(1u16..5, 2..8),
        sizes in prop::collection::vec(1u32..=256, 8),
        rounds in 100usize..1000,
    ) {
        let mut pacer = Pacer::new(vec![policy::Unpaced.into()], PacerConfig::default());
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
            charged[at] += i64::from(permit.cost().bytes.max(DeficitRoundRobin::LEAST_CHARGE));
            pacer.release(permit, CommandOutcome::Completed, 0);
            sent[at] += 1;
            enqueue(&mut pacer, at, sent[at] + 1);
            for (i, &(_, wi)) in flows.iter().enumerate() {
                for (j, &(_, wj)) in flows.iter().enumerate() {
                    let (wi, wj) = (i64::from(wi), i64::from(wj));
                    let most = i64::from(256 * KIB);
                    let bound = 3 * i64::from(DeficitRoundRobin::QUANTUM) + most / wi + most / wj + 2;
                    let apart = charged[i] / wi - charged[j] / wj;
                    prop_assert!(apart <= bound, "flows {i} and {j}: {apart} > {bound}");
                }
            }
        }
        for (flow, _) in flows {
            pacer.remove_flow(flow);
        }
    }

    /// Within a flow, commands with data start in order of arrival.
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
            pacer.release(permit, CommandOutcome::Completed, 0);
        }
        let expected: Vec<u64> = (0..count).filter(|token| *token != cancel).collect();
        prop_assert_eq!(seen, expected);
    }
}

/// A flow that sends one large command at a time, and so never waits for long, gets no more than
/// one that always has small commands waiting.
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
        pacer.release(permit, CommandOutcome::Completed, 0);
        pacer.enqueue(flow, cost, token).unwrap();
    }
    let bound = 3 * i64::from(DeficitRoundRobin::QUANTUM) + 2 * i64::from(1024 * KIB);
    assert!((charged[0] - charged[1]).abs() <= bound, "{charged:?}");
}

/// Makes a pacer in which commands that are small relative to the others bypass them.
fn with_small_bypass() -> Pacer {
    let parts =
        PacerParts { small: SmallCommandRule::BesideOthers, ..PacerParts::round_robin(Vec::new()) };
    Pacer::with_parts(parts, PacerConfig::default())
}

/// Starts and ends the next command; returns its size, and whether it bypassed others.
fn run_next(pacer: &mut Pacer) -> (u32, bool) {
    let before = pacer.counts().started_small;
    let (_, permit) = pacer.next(0).unwrap();
    let bytes = permit.cost().bytes;
    pacer.release(permit, CommandOutcome::Completed, 1);
    (bytes, pacer.counts().started_small > before)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// Stated bound of the bypass: while large commands wait, small ones are at most 25 % of the
    /// bytes started, plus one small command.
    #[test]
    fn small_commands_never_starve_the_large(
        sizes in prop::collection::vec(prop_oneof![1u32..=4 * KIB, 64 * KIB..=256 * KIB], 2..20),
        rounds in 100usize..2000,
    ) {
        let mut pacer = with_small_bypass();
        let flows = [(); 3].map(|()| pacer.add_flow(FlowConfig::weight(1)));
        let (mut small, mut large) = (0u64, 0u64);
        for nth in 0..rounds {
            // A large command always waits, and the same number of others.
            while pacer.waiting() < 8 {
                pacer.enqueue(flows[nth % 3], Cost::data(256 * KIB), 0).unwrap();
                pacer.enqueue(flows[nth % 3], Cost::data(sizes[nth % sizes.len()]), 0).unwrap();
            }
            let (bytes, was_small) = run_next(&mut pacer);
            *(if was_small { &mut small } else { &mut large }) += u64::from(bytes);
            prop_assert!(small <= large / 4 + u64::from(16 * KIB), "{small} beside {large}");
        }
        for flow in flows {
            pacer.remove_flow(flow);
        }
    }
}

/// Small commands that start while no other command waits are not charged later.
#[test]
fn small_commands_that_passed_nobody_owe_nothing() {
    let mut pacer = with_small_bypass();
    let flow = pacer.add_flow(FlowConfig::weight(1));
    let mut smalls = 0;
    for nth in 0..100_000 {
        let bytes = if nth % 256 == 0 { 256 * KIB } else { 512 };
        pacer.enqueue(flow, Cost::data(bytes), 0).unwrap();
        smalls += usize::from(run_next(&mut pacer).1);
    }
    assert!(smalls > 50_000, "{smalls} were small");
    for _ in 0..40 {
        pacer.enqueue(flow, Cost::data(256 * KIB), 0).unwrap();
    }
    for _ in 0..20 {
        run_next(&mut pacer);
    }
    pacer.enqueue(flow, Cost::data(512), 0).unwrap();
    let larges = (0..20).take_while(|_| !run_next(&mut pacer).1).count();
    assert!(larges <= 1, "{larges} went before it");
    pacer.remove_flow(flow);
}

/// Admits `limit` commands per device.
#[derive(Debug)]
struct DeviceLimit {
    limit: u32,
    in_flight: [u32; 4],
}

impl AdmissionPolicy for DeviceLimit {
    fn admit(&mut self, ask: &AdmissionRequest, _now: Nanos) -> Admission {
        let in_flight = &mut self.in_flight[ask.device as usize];
        if *in_flight >= self.limit {
            return Admission::DeviceBusy;
        }
        *in_flight += 1;
        Admission::Granted(Grant::default())
    }

    fn release(&mut self, done: &CompletedCommand, _grant: Grant, _now: Nanos) {
        self.in_flight[done.device as usize] -= 1;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// A device that accepts nothing more delays only its own commands, small or large. Flows and
    /// commands may be removed, devices may change, and policies may change.
    #[test]
    fn a_busy_device_holds_up_nobody_else(
        limit in 1u32..4,
        small in prop_oneof![
            Just(SmallCommandRule::Never), Just(SmallCommandRule::BesideOthers), Just(SmallCommandRule::Below(8 * KIB)),
        ],
        steps in prop::collection::vec((0u8..16, 0usize..64), 1..300),
    ) {
        let parts = || {
            let policy: AnyPolicy = AnyPolicy::Custom(Box::new(DeviceLimit { limit, in_flight: [0; 4] }));
            PacerParts { small, ..PacerParts::round_robin(vec![policy]) }
        };
        let mut pacer = Pacer::with_parts(parts(), PacerConfig::default());
        let on = |device| FlowConfig { device, ..FlowConfig::weight(1) };
        let mut flows: Vec<(FlowId, u32)> = (0..8).map(|n| (pacer.add_flow(on(n % 4)), n % 4)).collect();
        let mut waiting: Vec<(FlowId, u32, u64)> = Vec::new();
        let mut running: Vec<(Permit, u32)> = Vec::new();
        for (nth, (what, which)) in steps.into_iter().enumerate() {
            let at = which % flows.len();
            match what {
                0 if !waiting.is_empty() => {
                    let (flow, _, token) = waiting.swap_remove(which % waiting.len());
                    prop_assert!(pacer.cancel(flow, token));
                }
                1 => {
                    let (flow, _) = flows[at];
                    let gone = pacer.remove_flow(flow).len();
                    let before = waiting.len();
                    waiting.retain(|w| w.0 != flow);
                    prop_assert_eq!(before - waiting.len(), gone);
                    let device = u32::try_from(nth).unwrap() % 4;
                    flows[at] = (pacer.add_flow(on(device)), device);
                }
                2 if running.is_empty() => pacer.replace(parts()).unwrap(),
                3..8 if !running.is_empty() => {
                    let (permit, _) = running.swap_remove(which % running.len());
                    pacer.release(permit, CommandOutcome::Completed, 0);
                }
                _ => {
                    let (flow, device) = flows[at];
                    let bytes = [2 * KIB, 128 * KIB][nth % 2];
                    pacer.enqueue(flow, Cost::data(bytes), nth as u64).unwrap();
                    waiting.push((flow, device, nth as u64));
                }
            }
            while let Some((token, permit)) = pacer.next(0) {
                let at = waiting.iter().position(|w| w.2 == token).expect("it waited");
                let (flow, device, _) = waiting.swap_remove(at);
                prop_assert_eq!(flow, permit.flow());
                running.push((permit, device));
            }
            prop_assert_eq!(pacer.next_wakeup(), None);
            prop_assert_eq!(pacer.waiting(), waiting.len());
            for device in 0..4 {
                let in_flight = running.iter().filter(|r| r.1 == device).count();
                prop_assert!(in_flight <= limit as usize);
                let waits = waiting.iter().any(|w| w.1 == device);
                prop_assert!(!waits || in_flight == limit as usize, "device {device} could start one");
            }
        }
        for (permit, _) in running {
            pacer.release(permit, CommandOutcome::Completed, 0);
        }
        for (flow, _) in flows {
            pacer.remove_flow(flow);
        }
    }
}

/// A flow is parked because its device is busy, and is emptied in that state. It is in again under
/// the next policy.
#[test]
fn a_flow_whose_device_was_busy_goes_on_under_another_policy() {
    let limit: AnyPolicy = AnyPolicy::Custom(Box::new(DeviceLimit { limit: 1, in_flight: [0; 4] }));
    let mut pacer = Pacer::new(vec![limit], PacerConfig::default());
    let flow = pacer.add_flow(FlowConfig::weight(1));
    for token in 0..2 {
        pacer.enqueue(flow, Cost::data(KIB), token).unwrap();
    }
    let (_, running) = pacer.next(0).unwrap();
    assert!(pacer.next(0).is_none(), "its device takes one");
    assert!(pacer.cancel(flow, 1));
    pacer.replace(PacerParts::round_robin(Vec::new())).unwrap();
    pacer.enqueue(flow, Cost::data(KIB), 2).unwrap();
    let (token, permit) = pacer.next(0).expect("nothing holds it up");
    assert_eq!(token, 2);
    for permit in [running, permit] {
        pacer.release(permit, CommandOutcome::Completed, 0);
    }
    pacer.remove_flow(flow);
}

/// However many flows are added and removed: otherwise a permit could be mistaken for one of a
/// successor.
#[test]
fn a_flow_is_given_to_nobody_while_a_command_of_it_is_in_flight() {
    let mut pacer = Pacer::new(Vec::new(), PacerConfig { flow_depth: 1 });
    let come_and_go = |pacer: &mut Pacer, flows: usize| -> Vec<u32> {
        let flow = |_| {
            let flow = pacer.add_flow(FlowConfig::weight(1));
            pacer.remove_flow(flow);
            flow.slot()
        };
        (0..flows).map(flow).collect()
    };
    let flow = pacer.add_flow(FlowConfig::weight(1));
    pacer.enqueue(flow, Cost::data(KIB), 0).unwrap();
    let (_, permit) = pacer.next(0).unwrap();
    pacer.remove_flow(flow);
    assert!(!come_and_go(&mut pacer, 5000).contains(&flow.slot()));
    pacer.release(permit, CommandOutcome::Completed, 0);
    assert!(come_and_go(&mut pacer, 2).contains(&flow.slot()), "it is not lost for good");
}

/// The rest of a long turn does not outlast the weight that it was for.
#[test]
fn a_weight_that_goes_down_ends_the_turn() {
    let mut pacer = Pacer::new(Vec::new(), PacerConfig::default());
    let flows = [10_000, 1].map(|weight| pacer.add_flow(FlowConfig::weight(weight)));
    for _ in 0..100 {
        flows.iter().for_each(|flow| pacer.enqueue(*flow, Cost::data(64 * KIB), 0).unwrap());
    }
    let run = |pacer: &mut Pacer| {
        let (_, permit) = pacer.next(0).unwrap();
        let flow = permit.flow();
        pacer.release(permit, CommandOutcome::Completed, 0);
        flow
    };
    assert!((0..10).all(|_| run(&mut pacer) == flows[0]));
    pacer.set_weight(flows[0], 1);
    let other = (0..10).filter(|_| run(&mut pacer) == flows[1]).count();
    assert!((4..=6).contains(&other), "{other} of 10");
    flows.into_iter().for_each(|flow| _ = pacer.remove_flow(flow));
}
