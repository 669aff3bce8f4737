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
//! by. Probes rest ever longer while none gains.
//!
//! A probe without a bound, a *check*, ends a bound that is not surely faster: the load has changed
//! since it was found, or the machine's speed had changed in the trial that found it.
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
    /// Measurements until a check, and that number when the bound is still faster.
    check: u32,
    checks: u32,
    /// The probe is a check.
    is_check: bool,
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
    /// Measure without a bound next.
    MeasureOpen,
    /// The budget has bounded nothing for long, or is not faster than no bound.
    Open,
    /// Try the other charging.
    TryOther,
}

/// First, smallest and largest step of a probe, as a fraction of the budget, and its growth.
const STEP: f64 = 0.2;
const LEAST_STEP: f64 = 0.05;
const MOST_STEP: f64 = 0.4;
const GROWTH: f64 = 1.5;
/// Measurements until the first check.
const FIRST_CHECK: u32 = 1024;
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
            check: FIRST_CHECK,
            checks: FIRST_CHECK,
            is_check: false,
            other: 1,
            others: FIRST_OTHER,
        }
    }

    /// Returns a budget found by a trial of the other charging than this one's.
    pub(super) fn replaced(&self, rung: Rung, drain: f64) -> Self {
        let Self { charging, check, checks, others, .. } = *self;
        Self { check, checks, other: others, others, ..Self::new(rung, charging.other(), drain) }
    }

    /// Processes a measurement.
    pub(super) fn step(&mut self, rate: Rate, sample: &RateSample, is_keen: bool) -> HeldStep {
        // Small commands and weights need a small budget; the other charging was compared already.
        let may_check = !is_keen && self.charging == Charging::Usual;
        self.check = self.check.saturating_sub(u32::from(may_check)).max(1);
        match self.stage {
            Stage::Base => return self.on_base(rate, sample, may_check),
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
                return self.judge(before, probe, rate, is_keen);
            }
        }
        HeldStep::Measure(self.budget)
    }

    fn on_base(&mut self, rate: Rate, sample: &RateSample, may_check: bool) -> HeldStep {
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
        self.is_check = self.check == 1 && may_check;
        if !self.is_check && self.rest > 0 {
            return HeldStep::Measure(self.budget);
        }
        self.stage = Stage::Probe { before: rate };
        match self.is_check {
            true => HeldStep::MeasureOpen,
            false => HeldStep::Measure((self.budget * self.ratio()).max(1.0)),
        }
    }

    /// Moves the budget to that of the probe, or turns round. After a check, the bound stays or
    /// ends.
    fn judge(&mut self, before: Rate, probe: Rate, after: Rate, is_keen: bool) -> HeldStep {
        let base = before.around(after);
        if self.is_check {
            if base.sure_gain(probe) <= LEAST_GAIN {
                return HeldStep::Open;
            }
            self.checks = back_off(self.checks);
            self.check = self.checks;
            self.rest = 1;
            return HeldStep::Measure(self.budget);
        }
        let gains = match (is_keen, self.upwards) {
            (false, _) => probe.sure_gain(base) > LEAST_GAIN,
            (true, true) => probe.sure_gain(base) > KEEN_GAIN,
            (true, false) => probe.mean > base.mean * (1.0 - KEEN_LOSS),
        };
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
        HeldStep::Measure(self.budget)
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
