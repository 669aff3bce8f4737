//! Tests of permits and policy chains.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use proptest::prelude::*;

use crate::policy::{self, AnyPolicy, CreditConfig};
use crate::scheduler::{AnyScheduler, Dispatched, Pause, Scheduler, Selection};
use crate::{
    AdmissionPolicy, BufferCredit, CommandOutcome, Cost, FlowConfig, Nanos, Pacer, PacerConfig,
    PacerParts, SmallCommandRule, TooLarge, leaked_permits,
};

/// Grants from a given time on; a stand-in for other policies.
#[derive(Debug)]
struct Gate {
    opens_at: Nanos,
    out: Arc<AtomicI64>,
}

impl AdmissionPolicy for Gate {
    fn admit(&mut self, _ask: &policy::AdmissionRequest, now: Nanos) -> policy::Admission {
        if now < self.opens_at {
            return policy::Admission::WaitUntil(self.opens_at);
        }
        self.out.fetch_add(1, Ordering::Relaxed);
        policy::Admission::Granted(policy::Grant(9))
    }

    fn release(&mut self, _done: &policy::CompletedCommand, grant: policy::Grant, _now: Nanos) {
        assert_eq!(grant, policy::Grant(9));
        self.out.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Returns the given answers, in turn, repeatedly.
#[derive(Debug)]
struct Moody {
    answers: Vec<u8>,
    asked: usize,
    out: Arc<AtomicI64>,
}

impl AdmissionPolicy for Moody {
    fn admit(&mut self, _ask: &policy::AdmissionRequest, now: Nanos) -> policy::Admission {
        let answer = self.answers[self.asked % self.answers.len()];
        self.asked += 1;
        match answer {
            0 => return policy::Admission::WaitUntil(now + 1),
            // A policy that waits for a release has a grant outstanding.
            1 if self.out.load(Ordering::Relaxed) > 0 => return policy::Admission::WaitForRelease,
            2 if self.out.load(Ordering::Relaxed) > 0 => return policy::Admission::DeviceBusy,
            _ => {}
        }
        self.out.fetch_add(1, Ordering::Relaxed);
        match answer {
            3 => policy::Admission::GrantedOutOfOrder(policy::Grant(9)),
            _ => policy::Admission::Granted(policy::Grant(9)),
        }
    }

    fn release(&mut self, _done: &policy::CompletedCommand, grant: policy::Grant, _now: Nanos) {
        assert_eq!(grant, policy::Grant(9));
        self.out.fetch_sub(1, Ordering::Relaxed);
    }
}

proptest! {
    /// Whatever each policy of a chain answers, each has granted exactly the commands in flight.
    #[test]
    fn every_policy_of_a_chain_grants_or_none(
        answers in prop::collection::vec(prop::collection::vec(0u8..8, 1..8), 0..=policy::MAX_POLICIES),
        ends in prop::collection::vec(any::<bool>(), 1..200),
    ) {
        let outs: Vec<Arc<AtomicI64>> = answers.iter().map(|_| Arc::default()).collect();
        let moody = |(answers, out): (Vec<u8>, &Arc<AtomicI64>)| -> AnyPolicy {
            AnyPolicy::Custom(Box::new(Moody { answers, asked: 0, out: Arc::clone(out) }))
        };
        let policies = answers.into_iter().zip(&outs).map(moody).collect();
        let mut pacer = Pacer::new(policies, PacerConfig::default());
        let flows = [0, 1].map(|device| pacer.add_flow(FlowConfig { device, ..FlowConfig::weight(1) }));
        let mut permits = Vec::new();
        for ((now, ends), flow) in (1..).zip(ends).zip(flows.into_iter().cycle()) {
            pacer.enqueue(flow, Cost::data(4096), now).unwrap();
            permits.extend(pacer.next(now).map(|(_, permit)| permit));
            if ends && let Some(permit) = permits.pop() {
                pacer.release(permit, CommandOutcome::Completed, now);
            }
            for out in &outs {
                prop_assert_eq!(out.load(Ordering::Relaxed), i64::try_from(permits.len()).unwrap());
            }
        }
        permits.into_iter().for_each(|permit| pacer.release(permit, CommandOutcome::Failed, 1000));
        prop_assert!(outs.iter().all(|out| out.load(Ordering::Relaxed) == 0));
    }
}

#[test]
fn a_chain_grants_all_or_nothing() {
    let credit =
        |shared: &Arc<crate::SharedCredit>| -> AnyPolicy { shared.core(0, Arc::new(|| ())).into() };
    for credit_first in [true, false] {
        let config = CreditConfig { budget: 8192, largest: 8192, cores: 1 };
        let shared = BufferCredit::shared(config).unwrap();
        let out = Arc::default();
        let gate = AnyPolicy::Custom(Box::new(Gate { opens_at: 100, out: Arc::clone(&out) }));
        let out = || out.load(Ordering::Relaxed);
        let policies: Vec<AnyPolicy> =
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

        pacer.release(permit, CommandOutcome::Completed, 120);
        let (token, permit) = pacer.next(120).unwrap();
        assert_eq!(token, 2);
        pacer.release(permit, CommandOutcome::Failed, 130);
        assert!(pacer.next(130).is_none());
        assert_eq!((out(), shared.unused()), (0, 8192));
    }
}

/// Scheduler of one flow after the other, with a given urgency; counts out-of-order starts.
#[derive(Debug)]
struct Fixed {
    urgency: u64,
    waits: Vec<u32>,
    out_of_order: Arc<AtomicI64>,
}

impl Scheduler for Fixed {
    fn add(&mut self, _slot: u32, _config: FlowConfig) {}

    fn set_weight(&mut self, _slot: u32, _weight: u16) {}

    fn flow_backlogged(&mut self, slot: u32, _pause: Pause) {
        self.waits.push(slot);
    }

    fn flow_idle(&mut self, slot: u32, _pause: Pause) {
        self.waits.retain(|waits| *waits != slot);
    }

    fn select(&mut self, _now: Nanos) -> Option<Selection> {
        let urgency = self.urgency;
        self.waits.first().map(|&slot| Selection { slot, urgency, load: 0 })
    }

    fn on_dispatch(&mut self, _slot: u32, _bytes: u32, dispatched: Dispatched, _now: Nanos) {
        if dispatched == Dispatched::OutOfOrder {
            self.out_of_order.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The scheduler learns of out-of-order starts, wherever in a chain they were granted. If another
/// policy of the chain defers, the minimum grant of a core is still available.
#[test]
fn what_goes_out_of_order_goes_through_a_chain() {
    for (credit_first, urgency, wanted) in
        [(true, 1 << 40, 2), (false, 1 << 40, 2), (true, 0, 0), (false, 0, 0)]
    {
        let config = CreditConfig { budget: 8192, largest: 8192, cores: 3 };
        let shared = BufferCredit::shared(config).unwrap();
        let mut others = [0, 1].map(|core| shared.core(core, Arc::new(|| ())));
        let cost = Cost::data(8192);
        let ask = policy::AdmissionRequest { cost, device: 0, urgency: 0, load: 0, small: false };
        let answers =
            [others[0].admit(&ask, 0), others[1].admit(&ask, 0), others[1].admit(&ask, 0)];
        assert_eq!(answers.map(|answer| answer.grant().is_some()), [true, true, false]);

        let credit: AnyPolicy = shared.core(2, Arc::new(|| ())).into();
        let gate = AnyPolicy::Custom(Box::new(Gate { opens_at: 100, out: Arc::default() }));
        let policies = if credit_first { vec![credit, gate] } else { vec![gate as _, credit] };
        let out_of_order = Arc::default();
        let waits = Vec::new();
        let scheduler = Fixed { urgency, waits, out_of_order: Arc::clone(&out_of_order) };
        let scheduler = AnyScheduler::Custom(Box::new(scheduler));
        let parts = PacerParts { policies, scheduler, small: SmallCommandRule::Never };
        let mut pacer = Pacer::with_parts(parts, PacerConfig::default());
        let flow = pacer.add_flow(FlowConfig::weight(1));
        for token in 0..2 {
            pacer.enqueue(flow, cost, token).unwrap();
        }
        assert!(pacer.next(10).is_none(), "the gate is closed");
        for token in 0..2 {
            let (started, permit) = pacer.next(100).expect("the one it may always have");
            assert_eq!(started, token);
            assert!(pacer.next(100).is_none(), "and no more than one");
            pacer.release(permit, CommandOutcome::Completed, 110);
        }
        assert_eq!(out_of_order.load(Ordering::Relaxed), wanted);
    }
}

#[test]
fn a_lost_permit_is_noticed() {
    let mut pacer = Pacer::new(Vec::new(), PacerConfig::default());
    let flow = pacer.add_flow(FlowConfig::weight(1));
    pacer.enqueue(flow, Cost::data(4096), 1).unwrap();
    let (_, permit) = pacer.next(0).unwrap();
    let before = leaked_permits();
    let dropped = catch_unwind(AssertUnwindSafe(|| drop(permit)));
    assert_eq!(dropped.is_err(), cfg!(debug_assertions), "a debug build panics");
    assert_eq!(leaked_permits(), before + 1);
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

/// Policies under which a waiting command could never start are rejected, and nothing changes.
#[test]
fn policies_too_small_for_what_waits_are_not_put_in_force() {
    let credit = |budget: u32| -> Vec<AnyPolicy> {
        let config = CreditConfig { budget: budget.into(), largest: budget, cores: 1 };
        let shared = BufferCredit::shared(config).unwrap();
        vec![shared.core(0, Arc::new(|| ())).into()]
    };
    let mut pacer = Pacer::new(credit(8192), PacerConfig::default());
    let flow = pacer.add_flow(FlowConfig::weight(1));
    pacer.enqueue(flow, Cost::data(4096), 1).unwrap();
    pacer.enqueue(flow, Cost::data(8192), 2).unwrap();
    let (_, first) = pacer.next(0).unwrap();
    let refused = pacer.replace(PacerParts::round_robin(credit(4096)));
    assert_eq!(refused, Err(TooLarge { bytes: 8192, largest: 4096 }));
    assert!(pacer.largest() == 8192 && pacer.next(0).is_none(), "the old budget is out");
    pacer.release(first, CommandOutcome::Completed, 1);
    let (token, second) = pacer.next(1).unwrap();
    assert_eq!(token, 2);
    // A command in flight may be larger than the new policies would admit.
    pacer.replace(PacerParts::round_robin(credit(4096))).unwrap();
    pacer.enqueue(flow, Cost::data(4096), 3).unwrap();
    let (_, third) = pacer.next(1).expect("the new budget is whole");
    pacer.release(second, CommandOutcome::Completed, 2);
    pacer.release(third, CommandOutcome::Completed, 2);
    assert_eq!(pacer.outstanding(), 0);
}

#[test]
fn what_policies_granted_goes_back_early_once() {
    let out = Arc::new(AtomicI64::new(0));
    let gate = || AnyPolicy::Custom(Box::new(Gate { opens_at: 0, out: Arc::clone(&out) }));
    let mut pacer = Pacer::new(vec![gate()], PacerConfig::default());
    let flow = pacer.add_flow(FlowConfig::default());
    for token in 0..4 {
        pacer.enqueue(flow, Cost { bytes: 4096 * u32::from(token != 3) }, token).unwrap();
    }
    let mut permits = Vec::new();
    while let Some((_, permit)) = pacer.next(1) {
        permits.push(permit);
    }
    // The command without data came first, without a grant.
    assert_eq!((permits.len(), out.load(Ordering::Relaxed)), (4, 3));
    assert!(!pacer.release_early(&mut permits[0], 2));
    assert!(pacer.release_early(&mut permits[1], 2));
    assert!(!pacer.release_early(&mut permits[1], 3), "twice");
    assert_eq!(out.load(Ordering::Relaxed), 2);
    // Other policies take effect: outstanding grants return to the policies that made them, early
    // or at the end.
    pacer.replace(PacerParts::round_robin(Vec::new())).unwrap();
    assert!(pacer.release_early(&mut permits[2], 4));
    assert_eq!(out.load(Ordering::Relaxed), 1);
    assert_eq!(pacer.outstanding(), 4, "none of them is over");
    for permit in permits {
        pacer.release(permit, CommandOutcome::Completed, 5);
    }
    assert_eq!((out.load(Ordering::Relaxed), pacer.outstanding()), (0, 0));
    assert_eq!(Arc::strong_count(&out), 1, "nothing is kept of policies that have all back");
}
