//! Tests of single parts: measurements, trials, and what devices are charged.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;

use nvmeof_random::SplitMix64;

use super::super::held::back_off;
use super::super::ladder::{Ladder, LadderStep, Rung};
use super::super::sample::{Rate, RateSample, Series};
use super::super::{SharedAdaptive, USUAL};
use super::IO;
use crate::scheduler::AdaptiveScheduler;
use crate::sync::Ordering;
use crate::{
    CommandOutcome, Cost, FlowConfig, Pacer, PacerConfig, PacerParts, Permit, SmallCommandRule,
};

fn rate(mean: f64, error: f64) -> Rate {
    Rate { mean, error, of_slow: 0.0 }
}

/// Returns the measurement of parts with up to this noise, and their number.
fn measure(noise: f64, seed: u64) -> (Rate, u32) {
    let (mut series, mut random) = (Series::default(), SplitMix64::new(seed));
    let mut parts = (1..)
        .map(|part| (series.add(10.0 * (1.0 + noise * (2.0 * random.unit() - 1.0)), 0.0), part));
    parts.find_map(|(rate, part)| Some((rate?, part))).expect("it ends")
}

#[test]
fn a_measurement_lasts_until_it_is_precise_and_not_for_ever() {
    let (steady, least) = measure(0.0, 1);
    assert!((steady.mean - 10.0).abs() < 1e-9 && steady.error < 1e-9, "{steady:?}");
    let (_, most) = measure(100.0, 1);
    assert!(least < most && most < 1000, "{least}, {most}");
    for seed in 0..50 {
        let (found, parts) = measure(0.05, seed);
        assert!((least..=most).contains(&parts));
        assert!((found.mean - 10.0).abs() < 5.0 * found.error + 0.1, "{found:?}");
    }
}

#[test]
fn a_gain_is_sure_only_beyond_the_errors() {
    assert!((rate(11.0, 0.0).sure_gain(rate(10.0, 0.0)) - 0.1).abs() < 1e-9);
    assert!(rate(11.0, 1.0).sure_gain(rate(10.0, 0.0)) < 0.0);
    assert!(rate(11.0, 0.0).sure_gain(rate(10.0, 1.0)) < 0.0);
    for (last, now, changed) in [(0.0, 5.0, false), (5.0, 5.1, false), (5.0, 9.0, true)] {
        assert_eq!(rate(now, 0.0).has_changed(rate(last, 0.0)), changed, "{last} to {now}");
    }
    assert!(rate(5.0, 0.0).has_changed(rate(9.0, 0.0)));
}

#[test]
fn a_gain_that_a_slow_device_pays_for_is_none() {
    let of_slow = |mean, of_slow| Rate { of_slow, ..rate(mean, 0.0) };
    assert!(of_slow(12.0, 1.5).can_replace(of_slow(10.0, 3.0), 0.1));
    assert!(!of_slow(12.0, 0.5).can_replace(of_slow(10.0, 3.0), 0.1));
    assert!(!of_slow(12.0, 3.0).can_replace(of_slow(10.0, 3.0), 0.3));
}

#[test]
fn a_trial_must_gain_more_than_two_measurements_of_one_budget_differ_by() {
    let (ladder, found) = trial(1e9, false, |budget| if budget > 30.0 { 1.0 } else { 1.3 })
        .expect("30 commands are faster");
    let again =
        |rival, repeats| ladder.beats_again(rate(rival, 0.001), repeats).map(|rung| rung.budget);
    assert_eq!(again(1.0, true), Some(found));
    // The rate without a bound was 1.0 at first.
    assert_eq!([again(1.2, true), again(1.2, false)], [None, Some(found)]);
}

/// Returns the budget that a trial finds; see [`trial`].
fn climb(offered: f64, is_keen: bool, of: impl Fn(f64) -> f64) -> Option<f64> {
    trial(offered, is_keen, of).map(|(_, budget)| budget)
}

/// Returns the end of a trial that finds a budget, where a budget has this rate; the rate without a
/// bound is 1. Budgets of `offered` commands bound nothing.
fn trial(offered: f64, is_keen: bool, of: impl Fn(f64) -> f64) -> Option<(Ladder, f64)> {
    let sample = |rate: f64, deferred: f64| {
        let (command, network) = (IO, 100.0);
        let (in_flight, charged, usual) = (108.0, 108.0, 8.0);
        RateSample {
            rate,
            command,
            in_flight,
            charged,
            network,
            usual,
            deferred,
            small: 0.0,
            slow: 0.0,
            slow_rate: 0.0,
        }
    };
    let (mut ladder, mut budget) = Ladder::start(rate(1.0, 0.001), &sample(1.0, 0.0));
    for _ in 0..100 {
        let sample = sample(of(budget), if budget < offered { 1.0 } else { 0.0 });
        let rung = Rung { budget, rate: rate(sample.rate, 0.001) };
        match ladder.step(rung, &sample, is_keen) {
            LadderStep::Measure(next) => budget = next,
            LadderStep::Found(found) => return Some((ladder, found.budget)),
            LadderStep::Nothing => return None,
        }
    }
    panic!("it does not end");
}

#[test]
fn a_trial_finds_the_largest_budget_that_is_as_fast_as_any_and_faster_than_none() {
    let peak = |budget: f64| if budget > 30.0 { 1.0 } else { 1.5 };
    let found = climb(1e9, false, peak).expect("it gains");
    assert!((15.0..=30.0).contains(&found), "{found}");
    assert_eq!(climb(1e9, false, |_| 1.0), None, "nothing gains");
    assert_eq!(climb(1e9, false, |budget| 1.5 - 15.0 / budget), None, "more gains more");
    assert_eq!(climb(1e9, false, |budget| (budget / 100.0).min(1.0)), None, "less is slower");
    assert_eq!(climb(1.0, false, |_| 1.5), None, "it bounds nothing");
    let found = climb(1e9, true, |budget| (budget / 30.0).min(1.0)).expect("it costs nothing");
    assert!((30.0..=60.0).contains(&found), "{found}");
}

#[test]
fn a_rate_that_does_not_repeat_is_not_found() {
    let random = RefCell::new(SplitMix64::new(1));
    let falls = |budget: f64| if budget > 30.0 { 0.9 } else { 1.0 };
    let found = (0..100)
        .filter(|_| {
            climb(1e9, false, |budget| falls(budget) * (0.6 + 0.8 * random.borrow_mut().unit()))
                .is_some()
        })
        .count();
    assert!(found < 50, "{found} of 100");
}

/// A core with a flow to a fast device and one to a device that takes ten times as long. The
/// commands of both complete in the order of their starts.
struct TwoDevices {
    shared: Arc<SharedAdaptive>,
    pacer: Pacer,
    running: [VecDeque<Permit>; 2],
    now: u64,
}

impl TwoDevices {
    const COST: Cost = Cost::data(128 << 10);
    const TIMES: [u64; 2] = [100_000, 1_000_000];

    fn new() -> Self {
        let shared = SharedAdaptive::new(1, Self::COST.bytes).expect("no budget is too small");
        let scheduler = AdaptiveScheduler::new(Arc::clone(shared.virtual_time()), 0);
        let parts = PacerParts {
            policies: vec![shared.core(0, Arc::new(|| ())).into()],
            scheduler: scheduler.into(),
            small: SmallCommandRule::Never,
        };
        let mut pacer = Pacer::with_parts(parts, PacerConfig::default());
        for device in 0..2 {
            let flow = pacer.add_flow(FlowConfig { device, ..FlowConfig::weight(1) });
            (0..64).for_each(|_| pacer.enqueue(flow, Self::COST, 0).expect("it fits"));
        }
        Self { shared, pacer, running: [VecDeque::new(), VecDeque::new()], now: 1 }
    }

    /// Completes commands, and starts those that may start. Hosts then send more.
    fn turn(&mut self, is_last: bool) {
        self.now += 10_000;
        for device in 0..2 {
            let is_over = |permit: &Permit| self.now - permit.on_dispatch() >= Self::TIMES[device];
            while self.running[device].front().is_some_and(is_over) {
                let permit = self.running[device].pop_front().expect("it is the first");
                let flow = permit.flow();
                self.pacer.release(permit, CommandOutcome::Completed, self.now);
                if !is_last {
                    self.pacer.enqueue(flow, Self::COST, 0).expect("it fits");
                }
            }
        }
        while let Some((_, permit)) = self.pacer.next(self.now) {
            self.running[permit.device as usize].push_back(permit);
        }
    }
}

#[test]
fn what_slow_devices_are_charged_in_part_comes_back_whole() {
    let mut two = TwoDevices::new();
    (0..1000).for_each(|_| two.turn(false));
    assert_eq!(two.running.each_ref().map(VecDeque::len), [64, 64], "nothing is bounded");
    let budget = 8 * u64::from(TwoDevices::COST.bytes);
    two.shared.bound(Some(budget), 0);
    two.shared.charging.store(USUAL, Ordering::Relaxed);
    (0..1000).for_each(|_| two.turn(false));
    // They take turns, so ten times as much is in flight at the slow device.
    let [fast, slow] = two.running.each_ref().map(VecDeque::len);
    assert!((2..=6).contains(&fast) && (30..=60).contains(&slow), "{fast}, {slow}");
    two.shared.bound(Some(budget), 0);
    (0..1000).for_each(|_| two.turn(false));
    let [fast, slow] = two.running.each_ref().map(VecDeque::len);
    assert_eq!(fast + slow, 8, "{fast}, {slow}");
    (0..20_000).for_each(|_| two.turn(true));
    assert_eq!(two.pacer.waiting() + two.pacer.outstanding(), 0);
    assert_eq!(two.shared.credit().unused(), budget);
}

#[test]
fn pauses_grow_up_to_a_maximum() {
    let longest = (0..32).fold(1, |wait, _| back_off(wait));
    assert!(longest > 1000 && back_off(longest) == longest, "{longest}");
}
