//! Budget in force, which probes move.
//!
//! ```text
//!   Base ──rest has ended──▶ Probe ───────────▶ After ──▶ Base
//!    │ ▲                       │                  ▲
//!    ▼ │ the rate fell         └───▶ Recover ─────┘
//!   Drain                       the rate fell
//! ```
//!
//! A probe is a larger or a smaller budget. The budget moves there if it was surely faster than the
//! mean of the measurements before and after, whose error is at least half of what the two differ
//! by. Probes rest ever longer while none gains. A probe far above, a *leap*, finds a bound that
//! costs throughput.
//!
//! If the rate falls, a standing queue is assumed. It drains before the next measurement. If no
//! probe caused it, the budget shrinks, too.

use super::ladder::{KEEN_GAIN, Rung};
use super::sample::{Charging, Rate, RateSample};

/// A budget in force.
#[derive(Debug, Clone, Copy)]
pub(super) struct Held {
    pub(super) charging: Charging,
    /// In commands.
    pub(super) budget: f64,
    /// Budget with which memory drains.
    drain: f64,
    stage: Stage,
    step: f64,
    upwards: bool,
    /// Measurements until the next probe, and that number when nothing is gained.
    rest: u32,
    rests: u32,
    /// Measurements in a row in which the budget bounded nothing.
    quiet: u32,
    /// The last rate with this budget.
    last: Rate,
    /// Measurements until a leap, and that number when it gains nothing.
    leap: u32,
    leaps: u32,
    /// The probe is a leap.
    is_leap: bool,
    /// Measurements until the other charging is tried, and that number when it loses.
    other: u32,
    others: u32,
}

#[derive(Debug, Clone, Copy)]
enum Stage {
    Base,
    Probe {
        before: Rate,
    },
    /// The rate fell: the memory drains.
    Drain,
    /// The rate fell in the probe: the memory drains.
    Recover {
        before: Rate,
        probe: Rate,
    },
    After {
        before: Rate,
        probe: Rate,
    },
}

/// Result of a measurement.
#[derive(Debug, Clone, Copy)]
pub(super) enum HeldStep {
    /// Measure this budget next.
    Measure(f64),
    /// The budget has bounded nothing for long.
    Open,
    /// Try the other charging.
    TryOther,
}

/// First, smallest and largest step of a probe, as a fraction of the budget, and its growth.
const STEP: f64 = 0.2;
const LEAST_STEP: f64 = 0.05;
const MOST_STEP: f64 = 0.4;
const GROWTH: f64 = 1.5;
/// Ratio of a leap, and measurements until the first one.
const LEAP: f64 = 4.0;
const FIRST_LEAP: u32 = 1024;
/// Least ratio of the budget to that with which memory drains.
const DRAIN: f64 = 2.0;
/// Smallest gain for which a budget moves, as a fraction of the rate.
const LEAST_GAIN: f64 = 0.003;
/// Loss for which a budget still shrinks where commands wait behind others.
const KEEN_LOSS: f64 = 0.001;
/// Most measurements between two probes.
const MOST_REST: u32 = 32;
/// Measurements in a row in which a budget bounded nothing, after which it is given up.
const QUIET: u32 = 32;
/// Measurements until the other charging is tried a second time.
const FIRST_OTHER: u32 = 512;
/// Growth of a number of measurements until what gained nothing is tried again, and its maximum.
const WAIT_GROWTH: u32 = 4;
const MOST_WAIT: u32 = 16_384;

impl Held {
    pub(super) fn new(rung: Rung, charging: Charging, drain: f64) -> Self {
        Self {
            charging,
            budget: rung.budget,
            drain,
            stage: Stage::Base,
            step: STEP,
            upwards: true,
            rest: 1,
            rests: 1,
            quiet: 0,
            last: rung.rate,
            leap: FIRST_LEAP,
            leaps: FIRST_LEAP,
            is_leap: false,
            other: 1,
            others: FIRST_OTHER,
        }
    }

    /// Returns a budget found by a trial of the other charging than this one's.
    pub(super) fn replaced(&self, rung: Rung, drain: f64) -> Self {
        let Self { charging, leap, leaps, others, .. } = *self;
        Self { leap, leaps, other: others, others, ..Self::new(rung, charging.other(), drain) }
    }

    /// Processes a measurement.
    pub(super) fn step(&mut self, rate: Rate, sample: &RateSample, is_keen: bool) -> HeldStep {
        // Small commands and weights need a small budget; the other charging was compared already.
        let may_leap = !is_keen && self.charging == Charging::Usual;
        self.leap = self.leap.saturating_sub(u32::from(may_leap)).max(1);
        match self.stage {
            Stage::Base => return self.on_base(rate, sample, may_leap),
            Stage::Drain => {
                self.stage = Stage::Base;
                self.last = Rate::default();
            }
            Stage::Probe { before } if rate.mean < before.mean && rate.has_changed(before) => {
                let budget = self.drain();
                self.stage = Stage::Recover { before, probe: rate };
                return HeldStep::Measure(budget);
            }
            Stage::Probe { before } => self.stage = Stage::After { before, probe: rate },
            Stage::Recover { before, probe } => self.stage = Stage::After { before, probe },
            Stage::After { before, probe } => {
                self.stage = Stage::Base;
                self.judge(before, probe, rate, is_keen);
            }
        }
        HeldStep::Measure(self.budget)
    }

    fn on_base(&mut self, rate: Rate, sample: &RateSample, may_leap: bool) -> HeldStep {
        self.quiet = if sample.is_bounded() { 0 } else { self.quiet + 1 };
        if self.quiet == QUIET {
            return HeldStep::Open;
        }
        if rate.has_changed(self.last) {
            (self.rest, self.rests, self.step) = (1, 1, STEP);
            if rate.mean < self.last.mean && sample.is_network_busy() {
                self.budget = (self.budget / (1.0 + LEAST_STEP)).max(1.0);
                return HeldStep::Measure(self.drain());
            }
        }
        self.last = rate;
        if sample.has_slow_devices() {
            self.other -= 1;
            if self.other == 0 {
                self.other = self.others;
                self.others = back_off(self.others);
                return HeldStep::TryOther;
            }
        }
        self.rest -= 1;
        self.is_leap = self.leap == 1 && may_leap;
        if !self.is_leap && self.rest > 0 {
            return HeldStep::Measure(self.budget);
        }
        self.stage = Stage::Probe { before: rate };
        let ratio = if self.is_leap { LEAP } else { self.ratio() };
        HeldStep::Measure((self.budget * ratio).max(1.0))
    }

    /// Moves the budget to that of the probe, or turns round.
    fn judge(&mut self, before: Rate, probe: Rate, after: Rate, is_keen: bool) {
        let base = before.around(after);
        let gains = match (is_keen, self.upwards) {
            (false, _) => probe.sure_gain(base) > LEAST_GAIN,
            (true, true) => probe.sure_gain(base) > KEEN_GAIN,
            (true, false) => probe.mean > base.mean * (1.0 - KEEN_LOSS),
        };
        if self.is_leap {
            if gains {
                self.budget *= LEAP;
                self.leap = 1;
            } else {
                self.leaps = back_off(self.leaps);
                self.leap = self.leaps;
            }
            self.rest = 1;
            return;
        }
        if gains {
            self.budget = (self.budget * self.ratio()).max(1.0);
            self.step = (GROWTH * self.step).min(MOST_STEP);
            self.rests = 1;
        } else {
            self.upwards = !self.upwards;
            self.step = (self.step / GROWTH).max(LEAST_STEP);
            self.rests = (2 * self.rests).min(MOST_REST);
        }
        self.rest = self.rests;
    }

    /// Lets memory drain; returns the budget for that.
    pub(super) fn drain(&mut self) -> f64 {
        self.stage = Stage::Drain;
        self.drain.min(self.budget / DRAIN).max(1.0)
    }

    /// Returns the rate that the budget gives, in bytes per ns.
    pub(super) fn reference(&self) -> f64 {
        match self.stage {
            Stage::Base | Stage::Probe { .. } => self.last.mean,
            // It is low in any case.
            Stage::Drain | Stage::Recover { .. } | Stage::After { .. } => 0.0,
        }
    }

    fn ratio(&self) -> f64 {
        let ratio = 1.0 + self.step;
        if self.upwards { ratio } else { 1.0 / ratio }
    }
}

/// Returns the number of measurements until what gained nothing is tried again, after this number.
pub(super) fn back_off(wait: u32) -> u32 {
    (WAIT_GROWTH * wait).min(MOST_WAIT)
}
