//! Comparison of a measurement with the recent peak: speedup, standing queue, collapse, new
//! workload.

use super::super::Move;
use super::super::ceiling::Ceiling;
use super::super::measured::{Measured, NOISY};
use super::{Controller, HELD_BACK, Phase};

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
const FLOOD: f64 = 1.5;
const FLOODED: u32 = 2;
/// As [`FLOODED`], where a budget of at most one command per core bounds nothing, so that a queue
/// drains only by chance.
const FLOODED_AT_FLOOR: u32 = 8;
/// A rate of this multiple of the peak is that of another machine. Previous overshoots and
/// estimates no longer apply.
const NEWS: f64 = 1.2;
/// Except if the peak had this multiple of the bytes in flight, or of the budget: then the
/// reduction may have caused the higher rate.
const MUCH_LESS: f64 = 1.25;
/// Decay of the peak rate per measurement.
const FADE: f64 = 0.97;
/// New workload: the peak rate is this multiple of the rate, and the budget is far below the BDP
/// estimate.
const ANOTHER_LOAD: f64 = 4.0;

impl Controller {
    /// Detects a rate above the recent peak. The ceiling is dropped, unless it was found at this
    /// rate: then it is the same machine again. If the BDP estimate is above the base budget, the
    /// base budget moves there immediately.
    pub(super) fn is_news(&mut self, measured: &Measured) -> bool {
        let is_news = self.best.is_some_and(|best| {
            measured.rate > NEWS * best.rate
                && MUCH_LESS * measured.in_flight.min(measured.budget)
                    > best.in_flight.max(best.budget)
        });
        if !is_news {
            return false;
        }
        if !self.ceiling.is_of(measured.rate) {
            self.ceiling = Ceiling::none();
        }
        let enough = self.enough(measured).min(self.ceiling.base(self.swing));
        if enough <= self.base {
            return false;
        }
        self.best = Some(*measured);
        self.go_to(enough, Move::Gained);
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
    pub(super) fn is_flooded(&mut self, measured: &Measured) -> bool {
        let Some(best) = self.best else { return false };
        let noise = NOISY * self.search.noise();
        let is_flood = (measured.rate / best.rate).ln() < COLLAPSE.ln().min(-noise)
            && measured.network > FLOOD * best.network;
        self.flooded = if is_flood { self.flooded + 1 } else { 0 };
        let drained = measured.in_flight - measured.network + best.network;
        let is_at_floor = measured.in_flight > measured.budget && drained < self.floor();
        let is_again = self.flooded >= if is_at_floor { FLOODED_AT_FLOOR } else { FLOODED };
        if !is_again && (!is_flood || self.search.is_blind()) {
            return false;
        }
        let base = if self.gives_up_reserve(measured, &best) {
            self.base
        } else if is_again {
            self.flooded = 0;
            // Only once: any later standing queue is on another machine.
            self.best = Some(*measured);
            self.enough(measured).min(measured.in_flight)
        } else {
            let below_floor = if is_at_floor { self.floor() - self.command } else { f64::INFINITY };
            let harmless = best.in_flight.min(measured.budget).min(below_floor);
            self.ceiling.set(harmless, measured.budget, true, best.rate);
            self.base.min(harmless).min(self.ceiling.base(self.swing))
        };
        self.upwards = false;
        self.go_to(base, Move::Wasted);
        self.phase = Phase::Drain(drained.min(self.base));
        true
    }

    /// Gives up the preemption reserve if it is large enough to explain the loss.
    fn gives_up_reserve(&mut self, measured: &Measured, best: &Measured) -> bool {
        let is_too_much = measured.reserved > RESERVED * measured.in_flight
            && measured.rate < OVERRUN * best.rate;
        if is_too_much {
            self.reserve.did_harm(measured.reserved / self.command);
        }
        is_too_much
    }

    /// Detects a collapse: more in flight lost much of the peak rate. Returns the budget to the
    /// peak's bytes in flight.
    pub(super) fn has_collapsed(&mut self, measured: &Measured) -> bool {
        let best = self.remember_best(measured);
        if measured.rate >= COLLAPSE * best.rate
            || measured.in_flight <= COLLAPSE_EXCESS * best.in_flight
        {
            return false;
        }
        self.gives_up_reserve(measured, &best);
        self.ceiling.set(measured.budget, measured.budget, true, best.rate);
        self.go_to(best.in_flight, Move::Wasted);
        true
    }

    /// Updates and returns the peak, which decays.
    pub(super) fn remember_best(&mut self, measured: &Measured) -> Measured {
        let best = match self.best {
            Some(best) if FADE * best.rate > measured.rate => {
                Measured { rate: FADE * best.rate, ..best }
            }
            _ => *measured,
        };
        *self.best.insert(best)
    }

    /// Replaces the peak if more in flight gained much and the in-flight level is above the peak's:
    /// that was the peak of another workload.
    pub(super) fn forget_another_best(&mut self, measured: &Measured) {
        if self.best.is_some_and(|best| measured.in_flight > COLLAPSE_EXCESS * best.in_flight) {
            self.best = Some(*measured);
        }
    }

    /// Returns whether the workload has changed: with a small budget the rate is a small fraction
    /// of the peak, although commands wait. They are for a device that takes far longer. A probe
    /// there would need as many turnovers as it needs commands.
    pub(super) fn is_another_load(&self, measured: &Measured) -> bool {
        !self.starting
            && measured.refused >= HELD_BACK
            && self.best.is_some_and(|best| ANOTHER_LOAD * measured.rate < best.rate)
            && self.is_far_below(measured)
    }
}
