//! Control law of the budget: pure arithmetic over sums, without a clock or sharing.
//!
//! ```text
//!        trial due           data waits          found           still faster
//!   Open ─────────▶ Looking ───────────▶ Trial ────────▶ Verify ─────────────▶ Held ──┐ probes,
//!    ▲                 │                  │ │               │                 ▲ │ ▲───┘ the other
//!    │◀─nothing waits──┘                  │ └───── keen ────│─────────────────┘ │       charging
//!    │◀─no budget beats no bound──────────┘                 │                   │
//!    │◀─nor when no bound is measured again─────────────────┘                   │
//!    │◀─the budget has bounded nothing for long, or is not faster in a check────┘
//! ```
//!
//! There is no bound until a [trial](super::ladder) shows overshoot: a smaller budget must be
//! faster than no bound, and still be so when both are measured again. Trials become ever rarer
//! while they show nothing. A budget that is [held](super::held) moves only to one that was faster.
//!
//! The controller is *keen* while weights differ or small commands wait behind large ones. Then the
//! smallest budget that costs nothing is held.
//!
//! A trial begins only while data waits for the network. The rate then depends on what is in
//! memory, and not on the mix of the commands, as their number does. Intervals are in commands and
//! turnovers; [`PART`] and [`LONGEST`] bound them in ns.

use super::held::{Held, HeldStep, back_off};
use super::ladder::{Ladder, LadderStep, Rung};
use super::sample::{Charging, Rate, RateSample, Series, Totals, float, whole};
use crate::Nanos;

/// State of the policy, in a word for reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AdaptiveState {
    /// No bound: no overshoot was seen.
    #[default]
    Open,
    /// A trial measures whether a bound gains.
    Trial,
    /// A bound gains.
    Held,
    /// A bound that costs nothing keeps the queue short, because flows have weights or small
    /// commands wait behind large ones.
    ShortQueue,
}

/// State of the policy, for reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AdaptiveStatus {
    /// Its state.
    pub state: AdaptiveState,
    /// Trials since the start.
    pub trials: u64,
    /// Time of the last trial's end.
    pub last_trial: Option<Nanos>,
    /// Gain of the best budget in the last trial, in thousandths of the rate without a bound.
    pub last_gain_permille: i32,
    /// Commands of slow devices are charged in full: their data is in memory while they wait.
    pub charges_slow_devices: bool,
}

/// Least length of a part of a measurement in ns: several turns of a busy reactor. Shorter ones
/// measure how commands gather.
const PART: f64 = 1e6;
/// Commands in a part of a measurement, and turnovers of the budget in it and before the first.
const COMMANDS: f64 = 100.0;
const MEASURE: f64 = 1.0;
const SETTLE: f64 = 4.0;
/// Multiple of [`SETTLE`] for commands of slow devices to gather under a budget.
const GATHER: f64 = 4.0;
/// Commands of a sample that says anything.
const FIRST: u64 = 64;
/// Measurements until the first look, and between two trials at least.
const FIRST_WAIT: u32 = 1;
const SECOND_WAIT: u32 = 64;
/// Measurements until the next check whether data waits for the network, if none did.
const LOOK_WAIT: u32 = 16;
/// A budget is drained to when no more than this multiple of it is in flight.
const DRAINED: f64 = 1.5;
/// Intervals for which draining may take.
const DRAINS: u32 = 16;
/// Part of small commands from which they count.
const SOME_SMALL: f64 = 0.01;
/// Part of the bytes in flight that slow devices have while they are charged in full, and their
/// highest price.
const SLOW_SHARE: f64 = 0.2;
const MOST_PRICE: f64 = 64.0;
/// Most change of that price after a measurement.
const PRICE_STEP: f64 = 1.5;
/// First price.
const FIRST_PRICE: f64 = 8.0;
/// Longest interval between updates in ns if nothing completes: a bound, not a setting.
const LONGEST: f64 = 1e9;
/// Commands of a core may hang when none completed for this multiple of the time of a command.
const STALL_FACTOR: f64 = 32.0;
/// Each update reduces the extra budget for hung commands by 1/`FORGET_HUNG`.
const FORGET_HUNG: f64 = 64.0;

/// Controls the budget.
#[derive(Debug)]
pub(super) struct BudgetController {
    cores: f64,
    phase: Phase,
    charging: Charging,
    /// Budget in force, in commands, unless there is no bound.
    budget: f64,
    /// Mean bytes of a command.
    command: f64,
    /// The interval follows a change, and does not count; and the number of those before it.
    is_settling: bool,
    drains: u32,
    /// Measurements until the next trial, and that number after a trial without a result.
    wait: u32,
    waits: u32,
    /// Measurements before which a lower rate starts no trial.
    calm: u32,
    /// The last rate without a bound, and the longest time in flight of a command when a trial
    /// began, in ns.
    open_rate: Rate,
    open_turnover: f64,
    /// The measurement, and the sums at its start.
    series: Series,
    begin: Totals,
    begun: Nanos,
    /// Its number.
    measurement: u64,
    from: Totals,
    since: Option<Nanos>,
    /// Mean time in flight of a command, and the part of it in the network, in ns.
    turnover: f64,
    network_time: f64,
    /// Price of slow devices while they are charged in full, at least 1.
    slow_price: f64,
    /// Commands wait behind others that they should not wait for.
    is_keen: bool,
    /// Extra budget in bytes for hung commands.
    hung_bytes: f64,
    status: AdaptiveStatus,
}

#[derive(Debug)]
enum Phase {
    Open,
    /// Measures how much data waits for the network.
    Looking,
    Trial(Ladder),
    /// A trial found a budget: no bound is measured again.
    Verify(Ladder),
    /// A trial of another charging than that of this budget, which returns if nothing is found.
    OtherTrial(Ladder, Held),
    /// It found a budget: the one in force is measured again.
    OtherVerify(Ladder, Held),
    Held(Held),
}

/// Properties of the load that the controller cannot measure.
#[derive(Debug, Clone, Copy)]
pub(super) struct Load {
    /// Usual device time in ns.
    pub(super) usual: Nanos,
    /// Flows have different weights.
    pub(super) weights_differ: bool,
}

impl BudgetController {
    pub(super) fn new(cores: usize) -> Self {
        Self {
            cores: f64::from(u32::try_from(cores.max(1)).unwrap_or(u32::MAX)),
            phase: Phase::Open,
            charging: Charging::Open,
            budget: 0.0,
            command: 0.0,
            is_settling: false,
            drains: 0,
            wait: FIRST_WAIT,
            waits: FIRST_WAIT,
            calm: 0,
            open_rate: Rate::default(),
            open_turnover: 0.0,
            series: Series::default(),
            begin: Totals::default(),
            begun: 0,
            measurement: 0,
            from: Totals::default(),
            since: None,
            turnover: f64::INFINITY,
            network_time: 0.0,
            slow_price: FIRST_PRICE,
            is_keen: false,
            hung_bytes: 0.0,
            status: AdaptiveStatus::default(),
        }
    }

    pub(super) fn status(&self) -> AdaptiveStatus {
        let state = match self.phase {
            Phase::Open | Phase::Looking => AdaptiveState::Open,
            Phase::Trial(_) | Phase::Verify(_) => AdaptiveState::Trial,
            Phase::OtherTrial(..) | Phase::OtherVerify(..) | Phase::Held(_) => match self.is_keen {
                true => AdaptiveState::ShortQueue,
                false => AdaptiveState::Held,
            },
        };
        AdaptiveStatus {
            state,
            charges_slow_devices: self.charging == Charging::Full,
            ..self.status
        }
    }

    pub(super) fn charging(&self) -> Charging {
        self.charging
    }

    /// Returns whether the time of data in the network must be known.
    pub(super) fn is_looking(&self) -> bool {
        !matches!(self.phase, Phase::Open)
    }

    /// Returns the number of the measurement.
    pub(super) fn measurement(&self) -> u64 {
        self.measurement
    }

    /// Returns the mean time of a command in the network in ns.
    pub(super) fn network_time(&self) -> Nanos {
        whole(self.network_time)
    }

    /// Returns the price of commands of slow devices, by which fewer of them start.
    pub(super) fn slow_price(&self) -> f64 {
        match self.charging {
            Charging::Open | Charging::Usual => 1.0,
            Charging::Full => self.slow_price,
        }
    }

    /// Returns the budget in bytes; `None` without a bound.
    pub(super) fn budget(&self) -> Option<u64> {
        let bytes = self.budget.max(1.0) * self.command + self.hung_bytes;
        (self.charging != Charging::Open).then(|| whole(bytes))
    }

    /// Enlarges the budget by `bytes` from now on.
    pub(super) fn cover_hung(&mut self, bytes: u64) {
        self.hung_bytes += float(bytes);
    }

    /// Returns the time in ns without a completion after which the commands of a core may hang.
    pub(super) fn stall_timeout(&self) -> Nanos {
        interval(STALL_FACTOR * self.turnover)
    }

    /// Processes the sums; returns the ns until the next update, or 0 if it needs more commands.
    pub(super) fn update(&mut self, totals: Totals, load: Load, now: Nanos) -> Nanos {
        let Some(since) = self.since.filter(|since| *since <= now) else {
            // The first update, or a clock that jumped back.
            (self.from, self.since) = (totals, Some(now));
            self.start_measuring(totals, now);
            return 0;
        };
        if now == since || totals.commands.wrapping_sub(self.from.commands) < FIRST {
            return 0;
        }
        let sample = RateSample::between(&self.from, &totals, now - since, load.usual);
        (self.from, self.since) = (totals, Some(now));
        self.command = sample.command;
        if self.is_looking() {
            self.turnover = sample.time_of(sample.in_flight);
            self.network_time = sample.time_of(sample.network);
        }
        self.hung_bytes -= self.hung_bytes / FORGET_HUNG;
        if self.is_settling {
            let excess = sample.charged - DRAINED * (self.budget + self.cores);
            if self.charging != Charging::Open && excess > 0.0 && self.drains < DRAINS {
                self.drains += 1;
                return interval(sample.time_of(excess).min(self.turnover));
            }
            self.is_settling = false;
            self.start_measuring(totals, now);
            return interval(self.measure(&sample));
        }
        let Some(rate) = self.series.add(sample.rate, self.reference()) else {
            return interval(self.measure(&sample));
        };
        let sample = RateSample::between(&self.begin, &totals, now - self.begun, load.usual);
        let rate = Rate { of_slow: sample.slow_rate, ..rate };
        self.start_measuring(totals, now);
        if self.charging == Charging::Full {
            let factor = (sample.slow / SLOW_SHARE).sqrt().clamp(1.0 / PRICE_STEP, PRICE_STEP);
            self.slow_price = (self.slow_price * factor).clamp(1.0, MOST_PRICE);
        }
        let before = (self.charging, self.budget, self.is_looking());
        self.is_keen = load.weights_differ || sample.small > SOME_SMALL;
        self.decide(rate, &sample, now);
        if before == (self.charging, self.budget, self.is_looking()) {
            return interval(self.measure(&sample));
        }
        (self.is_settling, self.drains) = (true, 0);
        let turnover = match self.phase {
            Phase::Verify(_) => self.open_turnover,
            Phase::Held(_) if self.charging == Charging::Open => self.open_turnover,
            Phase::OtherVerify(..) => GATHER * self.open_turnover,
            _ => self.turnover_of(&sample),
        };
        interval(SETTLE * turnover)
    }

    /// Returns the rate with which this measurement will be compared, if known.
    fn reference(&self) -> f64 {
        match &self.phase {
            Phase::Trial(ladder) => ladder.rival().mean,
            // A changed charge takes a while to show.
            Phase::Open
            | Phase::Looking
            | Phase::Verify(_)
            | Phase::OtherTrial(..)
            | Phase::OtherVerify(..) => 0.0,
            Phase::Held(held) => held.reference(),
        }
    }

    fn start_measuring(&mut self, totals: Totals, now: Nanos) {
        (self.series, self.begin, self.begun) = (Series::default(), totals, now);
        self.measurement += 1;
    }

    /// Returns the length of a part of a measurement in ns.
    fn measure(&self, sample: &RateSample) -> f64 {
        sample.time_of(COMMANDS).max(MEASURE * self.turnover_of(sample)).max(PART)
    }

    /// Returns the turnover that the budget in force will have, in ns; 0 without a bound.
    fn turnover_of(&self, sample: &RateSample) -> f64 {
        match self.charging {
            Charging::Open => 0.0,
            Charging::Usual | Charging::Full => {
                sample.time_of((2.0 * self.budget).min(sample.in_flight))
            }
        }
    }

    fn decide(&mut self, rate: Rate, sample: &RateSample, now: Nanos) {
        let rung = Rung { budget: self.budget, rate };
        match std::mem::replace(&mut self.phase, Phase::Open) {
            Phase::Open => self.on_open(rate),
            Phase::Looking if sample.is_network_busy() => {
                self.open_turnover = sample.time_of(sample.in_flight);
                self.phase = Phase::Trial(self.climb(Charging::Usual, rate, sample));
            }
            Phase::Looking => self.wait = self.wait.max(LOOK_WAIT),
            Phase::Trial(mut ladder) => match ladder.step(rung, sample, self.is_keen) {
                LadderStep::Measure(budget) => {
                    self.budget = budget;
                    self.phase = Phase::Trial(ladder);
                }
                LadderStep::Found(rung) if self.is_keen => {
                    self.ended(&ladder, now);
                    self.hold(Held::new(rung, Charging::Usual, ladder.drain()));
                }
                LadderStep::Found(_) => {
                    self.charging = Charging::Open;
                    self.phase = Phase::Verify(ladder);
                }
                LadderStep::Nothing => {
                    self.ended(&ladder, now);
                    self.open();
                }
            },
            Phase::Verify(ladder) => {
                self.ended(&ladder, now);
                match ladder.beats_again(rate, true) {
                    Some(rung) => {
                        let mut held = Held::new(rung, Charging::Usual, ladder.drain());
                        let drain = held.drain();
                        self.hold(held);
                        self.budget = drain;
                    }
                    None => self.open(),
                }
            }
            Phase::OtherTrial(mut ladder, held) => match ladder.step(rung, sample, false) {
                LadderStep::Measure(budget) => {
                    self.budget = budget;
                    self.phase = Phase::OtherTrial(ladder, held);
                }
                LadderStep::Found(_) => {
                    self.phase = Phase::OtherVerify(ladder, held);
                    (self.charging, self.budget) = (held.charging, held.budget);
                }
                LadderStep::Nothing => self.hold(held),
            },
            Phase::OtherVerify(ladder, held) => {
                // The trial drained what slows the rival down, and that gathers slowly.
                self.hold(match ladder.beats_again(rate, false) {
                    Some(rung) => held.replaced(rung, ladder.drain()),
                    None => held,
                });
            }
            Phase::Held(held) => self.on_held(held, rate, sample),
        }
    }

    fn on_held(&mut self, mut held: Held, rate: Rate, sample: &RateSample) {
        match held.step(rate, sample, self.is_keen) {
            HeldStep::Measure(budget) => {
                (self.charging, self.budget) = (held.charging, budget);
                self.phase = Phase::Held(held);
            }
            HeldStep::MeasureOpen => {
                self.charging = Charging::Open;
                self.phase = Phase::Held(held);
            }
            HeldStep::Open => {
                self.waits = FIRST_WAIT;
                self.open();
            }
            HeldStep::TryOther => {
                self.open_turnover = self.open_turnover.max(sample.time_of(sample.in_flight));
                let ladder = self.climb(self.charging.other(), rate, sample);
                self.phase = Phase::OtherTrial(ladder, held);
            }
        }
    }

    fn on_open(&mut self, rate: Rate) {
        if self.open_rate.mean > rate.mean && rate.has_changed(self.open_rate) {
            self.waits = (self.waits / 4).max(SECOND_WAIT);
            self.wait = self.wait.min(self.calm + 1);
        }
        self.open_rate = rate;
        self.calm = self.calm.saturating_sub(1);
        self.wait -= 1;
        self.phase = if self.wait == 0 { Phase::Looking } else { Phase::Open };
    }

    /// Starts a trial with this charging against this rate.
    fn climb(&mut self, charging: Charging, rival: Rate, sample: &RateSample) -> Ladder {
        let (ladder, first) = Ladder::start(rival, sample);
        (self.charging, self.budget) = (charging, first);
        ladder
    }

    fn open(&mut self) {
        (self.phase, self.charging) = (Phase::Open, Charging::Open);
        self.calm = SECOND_WAIT;
        self.wait = self.waits.max(SECOND_WAIT);
        self.waits = back_off(self.waits).max(SECOND_WAIT);
    }

    fn hold(&mut self, held: Held) {
        (self.charging, self.budget) = (held.charging, held.budget);
        self.phase = Phase::Held(held);
    }

    /// Records the end of a trial against no bound.
    #[expect(clippy::cast_possible_truncation, reason = "clamped")]
    fn ended(&mut self, ladder: &Ladder, now: Nanos) {
        self.status.trials += 1;
        self.status.last_trial = Some(now);
        self.status.last_gain_permille = (ladder.gain() * 1000.0).round().clamp(-1e6, 1e6) as i32;
    }
}

/// Converts a time in ns to an interval.
fn interval(nanos: f64) -> Nanos {
    whole(nanos.min(LONGEST))
}
