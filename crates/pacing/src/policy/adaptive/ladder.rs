//! Trial of budgets: they shrink until the rate falls, and grow from there.
//!
//! ```text
//!   descend ──below the rival──▶ climb ──slower rung──▶ drain ──▶ the best again ──▶ found
//!                                  │                                    │
//!                                  ▼ none beats the rival               ▼ it does not beat it
//!                               nothing                              nothing
//! ```
//!
//! The descent costs nothing until its last rung: where there is no overshoot, less in memory is as
//! fast. A standing queue may last at budgets that would not cause one, so what counts is measured
//! on the climb, which begins where memory has drained. It ends at the first rung that is slower
//! than one below it: past an overshoot, more data in memory never gains (a rate over the bytes in
//! flight has one peak, Kleinrock's). It also ends at a rung that bounds nothing, and after a few
//! rungs in vain. The best rung is measured again, and the lower rate counts.

use super::sample::{Rate, RateSample};

/// A budget in commands, and the rate with it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rung {
    pub(super) budget: f64,
    pub(super) rate: Rate,
}

/// State of a trial.
#[derive(Debug)]
pub(super) struct Ladder {
    /// Rate that a rung must beat.
    rival: Rate,
    /// The largest rung that is as fast as any, with the highest rate of all.
    best: Option<Rung>,
    last: Option<Rung>,
    /// The least rung in commands. Data that a worse rung left in memory drains there.
    first: f64,
    stage: Stage,
    /// Difference of the two measurements of the best rung, as a fraction of the rival's rate.
    scatter: f64,
    /// Rungs of the climb so far, none of which beat the rival.
    fruitless: u32,
}

#[derive(Debug, Clone, Copy)]
enum Stage {
    /// Budgets shrink until the rate is below that of the rival.
    Descend,
    Climb,
    /// Data that a rung above the best left in memory drains.
    Drain,
    /// The best rung is measured again.
    Again,
}

/// Result of a measurement.
#[derive(Debug, Clone, Copy)]
pub(super) enum LadderStep {
    /// Measure this budget next.
    Measure(f64),
    /// This budget is better than the rival.
    Found(Rung),
    /// No budget is.
    Nothing,
}

/// Smallest gain of a budget over the rival, as a fraction of the rate.
const LEAST_GAIN: f64 = 0.02;
/// Rates that differ by less are the same.
const SAME: f64 = 0.005;
/// Rungs of a climb of which none beats the rival.
const FRUITLESS: u32 = 3;
/// Ratio of two rungs of the descent, and of the climb.
const DESCENT: f64 = 2.0;
const RATIO: f64 = 1.5;
/// Burst allowance of the first rung over the commands at the devices.
const BURST_COMMANDS: f64 = 2.0;
/// Gain for which a budget grows where commands wait behind others.
pub(super) const KEEN_GAIN: f64 = 0.01;

impl Ladder {
    /// Starts a trial against this rate. `sample` is the last measurement. Returns the first budget
    /// to measure, in commands.
    pub(super) fn start(rival: Rate, sample: &RateSample) -> (Self, f64) {
        let ladder = Self {
            rival,
            best: None,
            last: None,
            first: least_rung(sample),
            stage: Stage::Descend,
            scatter: 0.0,
            fruitless: 0,
        };
        (ladder, (sample.in_flight / DESCENT).max(least_rung(sample)))
    }

    /// Returns the budget in commands with which memory drains.
    pub(super) fn drain(&self) -> f64 {
        self.first
    }

    pub(super) fn rival(&self) -> Rate {
        self.rival
    }

    /// Returns the gain of the best rung over the rival, as a fraction.
    pub(super) fn gain(&self) -> f64 {
        self.best.map_or(0.0, |best| best.rate.mean / self.rival.mean - 1.0)
    }

    /// Processes a measurement. `is_keen`: the smallest budget that costs nothing is to be found,
    /// even if it does not beat the rival.
    pub(super) fn step(&mut self, rung: Rung, sample: &RateSample, is_keen: bool) -> LadderStep {
        match (self.stage, self.best) {
            (Stage::Descend, _) => {
                self.first = least_rung(sample).min(self.first);
                let is_slower = self.rival.sure_gain(rung.rate) > LEAST_GAIN;
                if !is_slower && rung.budget > self.first {
                    let next = rung.budget.min(sample.charged) / DESCENT;
                    return LadderStep::Measure(next.max(self.first));
                }
                self.stage = Stage::Climb;
            }
            (Stage::Drain, Some(best)) => {
                self.stage = Stage::Again;
                return LadderStep::Measure(best.budget);
            }
            (Stage::Again, Some(best)) => return self.confirm(best, rung),
            _ => {}
        }
        match self.best {
            Some(best) if best.rate.sure_gain(rung.rate) > LEAST_GAIN => {
                if !self.beats(best.rate) {
                    return LadderStep::Nothing;
                }
                self.stage = Stage::Drain;
                return LadderStep::Measure(self.drain());
            }
            Some(best) if rung.rate.mean < best.rate.mean * (1.0 - SAME) => {}
            Some(best) if rung.rate.mean < best.rate.mean => {
                self.best = Some(Rung { rate: best.rate, ..rung });
            }
            _ => self.best = Some(rung),
        }
        if let Some(last) = self.last.replace(rung)
            && is_keen
            && rung.rate.mean < last.rate.mean * (1.0 + KEEN_GAIN)
            && last.rate.mean > self.rival.mean * (1.0 - KEEN_GAIN)
        {
            return LadderStep::Found(last);
        }
        match self.best.filter(|best| self.beats(best.rate)) {
            Some(best) if !sample.is_bounded() && best.budget < rung.budget => {
                self.stage = Stage::Drain;
                return LadderStep::Measure(self.drain());
            }
            Some(_) => {}
            None => self.fruitless += 1,
        }
        if !sample.is_bounded() || self.fruitless == FRUITLESS {
            return LadderStep::Nothing;
        }
        LadderStep::Measure(rung.budget * RATIO)
    }

    /// Processes the second measurement of the best rung: the lower one counts.
    fn confirm(&mut self, best: Rung, rung: Rung) -> LadderStep {
        self.scatter = (best.rate.mean - rung.rate.mean).abs() / self.rival.mean;
        let rate = if best.rate.mean < rung.rate.mean { best.rate } else { rung.rate };
        self.best = Some(Rung { rate, ..best });
        match self.best {
            Some(best) if self.beats(rate) => LadderStep::Found(best),
            _ => LadderStep::Nothing,
        }
    }

    /// Returns the best rung if it beats the rival, measured again, too, and by more than its own
    /// two measurements differ by. If the rival `repeats`, those of the rival count as well.
    pub(super) fn beats_again(&self, rival: Rate, repeats: bool) -> Option<Rung> {
        let scatter = if repeats { (rival.mean - self.rival.mean).abs() / rival.mean } else { 0.0 };
        let least = LEAST_GAIN.max(self.scatter).max(scatter);
        self.best.filter(|best| best.rate.can_replace(rival, least))
    }

    fn beats(&self, rate: Rate) -> bool {
        rate.can_replace(self.rival, LEAST_GAIN)
    }
}

/// Returns the least budget of a trial, in commands: few more than keep devices of the usual speed
/// busy.
fn least_rung(sample: &RateSample) -> f64 {
    let devices = sample.usual.min(sample.at_devices());
    devices + devices.sqrt() + BURST_COMMANDS
}
