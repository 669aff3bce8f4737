//! Comparison of a measurement with the recent peak: speedup, standing queue, collapse, new
//! workload.

use super::super::BudgetMove;
use super::super::ceiling::InflightCeiling;
use super::super::sample::{NOISY, RateSample};
use super::{BudgetController, DEFERRED, Phase};

/// Collapse: the rate is below this fraction of the peak, with at least this multiple of the peak's
/// bytes in flight. The budget returns to the peak's bytes in flight.
pub(super) const COLLAPSE: f64 = 0.9;
const COLLAPSE_EXCESS: f64 = 1.15;
/// Below this fraction of the peak rate the preemption reserve is too large, if it is at least the
/// second fraction of the bytes in flight. A smaller loss may be due to a preemption.
const OVERRUN: f64 = 0.8;
const RESERVED: f64 = 0.05;
/// Standing queue: multiple of the network bytes at the peak. This many in a row mean another
/// machine.
const STANDING_QUEUE: f64 = 1.5;
const STANDING_QUEUE_STREAK: u32 = 2;
/// As [`STANDING_QUEUE_STREAK`], where a budget of at most one command per core bounds nothing, so
/// that a queue drains only by chance.
const STANDING_QUEUE_STREAK_AT_MINIMUM: u32 = 8;
/// A rate of this multiple of the peak is that of another machine. Previous overshoots and
/// estimates no longer apply.
const SPEEDUP: f64 = 1.2;
/// Except if the peak had this multiple of the bytes in flight, or of the budget: then the
/// reduction may have caused the higher rate.
const MUCH_LESS: f64 = 1.25;
/// Decay of the peak rate per measurement.
const PEAK_DECAY: f64 = 0.97;
/// New workload: the peak rate is this multiple of the rate, and the budget is far below the BDP
/// estimate.
const OTHER_WORKLOAD: f64 = 4.0;

impl BudgetController {
    /// Detects a rate above the recent peak. The ceiling is dropped, unless it was found at this
    /// rate: then it is the same machine again. If the BDP estimate is above the base budget, the
    /// base budget moves there immediately.
    pub(super) fn detect_speedup(&mut self, sample: &RateSample) -> bool {
        let detect_speedup = self.peak.is_some_and(|peak| {
            sample.rate > SPEEDUP * peak.rate
                && MUCH_LESS * sample.in_flight.min(sample.budget) > peak.in_flight.max(peak.budget)
        });
        if !detect_speedup {
            return false;
        }
        if !self.ceiling.is_of(sample.rate) {
            self.ceiling = InflightCeiling::none();
        }
        let bdp_estimate = self.bdp_estimate(sample).min(self.ceiling.base(self.probe_amplitude));
        if bdp_estimate <= self.base {
            return false;
        }
        self.peak = Some(*sample);
        self.set_base(bdp_estimate, BudgetMove::MoreThroughput);
        true
    }

    /// Detects and drains a standing queue: the rate is far below the peak although as much is in
    /// flight, because data waits for the network.
    ///
    /// The LLC overflowed, or the link became slower. The waiting data sustains the overflow,
    /// whatever the budget does around its level. The controller therefore drains that data and
    /// moves the base budget to a level without overshoot. If the standing queue remains, it is
    /// another machine.
    ///
    /// A base budget of at most one command per core cannot drain it: that ends by chance, while no
    /// more is in flight. The preemption reserve is given up first, by halves; the base budget
    /// stays until then.
    pub(super) fn detect_standing_queue(&mut self, sample: &RateSample) -> bool {
        let Some(peak) = self.peak else { return false };
        let noise = NOISY * self.coarse_search.noise();
        let is_flood = (sample.rate / peak.rate).ln() < COLLAPSE.ln().min(-noise)
            && sample.network > STANDING_QUEUE * peak.network;
        self.standing_queue_streak = if is_flood { self.standing_queue_streak + 1 } else { 0 };
        let drained = sample.in_flight - sample.network + peak.network;
        let is_at_floor = sample.in_flight > sample.budget && drained < self.floor();
        let is_again = self.standing_queue_streak
            >= if is_at_floor { STANDING_QUEUE_STREAK_AT_MINIMUM } else { STANDING_QUEUE_STREAK };
        if !is_again && (!is_flood || self.coarse_search.is_noise_limited()) {
            return false;
        }
        let base = if self.gives_up_reserve(sample, &peak) {
            self.base
        } else if is_again {
            self.standing_queue_streak = 0;
            // Only once: any later standing queue is on another machine.
            self.peak = Some(*sample);
            self.bdp_estimate(sample).min(sample.in_flight)
        } else {
            let below_floor = if is_at_floor { self.floor() - self.command } else { f64::INFINITY };
            let harmless = peak.in_flight.min(sample.budget).min(below_floor);
            self.ceiling.set(harmless, sample.budget, true, peak.rate);
            self.base.min(harmless).min(self.ceiling.base(self.probe_amplitude))
        };
        self.upwards = false;
        self.set_base(base, BudgetMove::NoGain);
        self.phase = Phase::Drain(drained.min(self.base));
        true
    }

    /// Gives up the preemption reserve if it is large enough to explain the loss.
    fn gives_up_reserve(&mut self, sample: &RateSample, peak: &RateSample) -> bool {
        let is_too_much =
            sample.reserve_bytes > RESERVED * sample.in_flight && sample.rate < OVERRUN * peak.rate;
        if is_too_much {
            self.preemption_reserve.back_off(sample.reserve_bytes / self.command);
        }
        is_too_much
    }

    /// Detects a collapse: more in flight lost much of the peak rate. Returns the budget to the
    /// peak's bytes in flight.
    pub(super) fn detect_collapse(&mut self, sample: &RateSample) -> bool {
        let peak = self.update_peak(sample);
        if sample.rate >= COLLAPSE * peak.rate
            || sample.in_flight <= COLLAPSE_EXCESS * peak.in_flight
        {
            return false;
        }
        self.gives_up_reserve(sample, &peak);
        self.ceiling.set(sample.budget, sample.budget, true, peak.rate);
        self.set_base(peak.in_flight, BudgetMove::NoGain);
        true
    }

    /// Updates and returns the peak, which decays.
    pub(super) fn update_peak(&mut self, sample: &RateSample) -> RateSample {
        let peak = match self.peak {
            Some(peak) if PEAK_DECAY * peak.rate > sample.rate => {
                RateSample { rate: PEAK_DECAY * peak.rate, ..peak }
            }
            _ => *sample,
        };
        *self.peak.insert(peak)
    }

    /// Replaces the peak if more in flight gained much and the in-flight level is above the peak's:
    /// that was the peak of another workload.
    pub(super) fn forget_stale_peak(&mut self, sample: &RateSample) {
        if self.peak.is_some_and(|peak| sample.in_flight > COLLAPSE_EXCESS * peak.in_flight) {
            self.peak = Some(*sample);
        }
    }

    /// Returns whether the workload has changed: with a small budget the rate is a small fraction
    /// of the peak, although commands wait. They are for a device that takes far longer. A probe
    /// there would need as many turnovers as it needs commands.
    pub(super) fn workload_changed(&self, sample: &RateSample) -> bool {
        !self.in_startup
            && sample.deferred >= DEFERRED
            && self.peak.is_some_and(|peak| OTHER_WORKLOAD * sample.rate < peak.rate)
            && self.is_far_below(sample)
    }
}
