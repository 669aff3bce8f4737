//! Control law of the budget: pure arithmetic over sums, without a clock or sharing.
//!
//! ```text
//!            16 commands           budget in force           enough measured
//!   First ────────────────▶ Settle ────────────────▶ Measure ────────────────┐
//!                            ▲  ▲                                            │
//!                    drained │  └──────── judge; probe the other side ───────┤
//!                            └───────────────── Drain ◀──────────────────────┘
//!                                                        standing queue
//! ```
//!
//! The controller probes slightly above and slightly below its *base budget* in turn, and measures
//! each side. The *elasticity* is the relative gain in rate per relative gain in bytes in flight.
//! At 1, every further command adds its part to the rate. At 0, it only waits longer. Below 0 the
//! budget overshoots (the LLC overflows).
//!
//! The base budget rises while the elasticity is above [`TARGET`] and falls while it is below, once
//! the mean of a few probes is significant. Steps grow while they keep their direction, and halve
//! when it changes.
//!
//! Two shortcuts apply where probes are inconclusive. The *BDP estimate* is the in-flight level
//! beyond which data only waits for the network: bytes at the devices, twice their square root (in
//! commands) and a few commands. The base budget starts there, and drifts there while no gain is
//! measurable. The *ceiling* (BBRv2's `inflight_hi`) is set below a budget that overshot. The base
//! budget approaches it by halves, and the ceiling rises slowly.
//!
//! Two events move the base budget without a probe. A delivery rate 1.2 times the recent peak moves
//! it up to the BDP estimate. A standing queue is drained; then the base budget returns to the
//! peak's in-flight level.
//!
//! Data that could not be sent while cores were preempted counts as sent. A *preemption reserve* is
//! in force on top of the base budget: see [`attendance`](super::attendance).
//!
//! The coarse [`search`] takes over if the rate varies too much for probes.
//!
//! No constant has a unit of time or bytes: intervals are in turnovers of the budget and in
//! commands, and steps are ratios.

mod harm;
mod lately;
mod start;

use super::ceiling::Ceiling;
use super::measured::{LOSS, Measured, Totals, whole};
use super::reserve::Reserve;
use super::search::{self, Search, Step};
use super::trend::{Trend, bounded};
use crate::Nanos;
use start::{START, START_GAIN};

/// Reason of the last change of the budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Move {
    /// No change since the start.
    #[default]
    Start,
    /// More in flight gained throughput.
    Gained,
    /// More in flight gained nothing, or lost throughput.
    Wasted,
    /// The hosts are app-limited.
    Idle,
}

/// Largest probe amplitude, as a fraction of the base budget.
const SWING: f64 = 0.08;
/// Smallest probe amplitude before it is scaled down, if enough commands are measured to resolve
/// it.
const LEAST_SWING: f64 = 0.04;
/// Turnovers of the budget between a probe and its measurement, and minimum of a measurement.
const SETTLE: f64 = 2.0;
const MEASURE: f64 = 4.0;
/// Commands per measurement.
pub(super) const COMMANDS: f64 = 600.0;
/// Commands before the first decision.
const FIRST: u64 = 16;
/// Commands in flight at the start; one per core if that is more.
const START_COMMANDS: f64 = 4.0;
/// Target elasticity.
const TARGET: f64 = 0.015;
/// A mean elasticity is significant if it differs from the target by this multiple of its error.
const CLEAR: f64 = 0.8;
/// Probes after which the base budget moves without significance: up to the BDP estimate, and down
/// to it.
const PATIENCE: f64 = 12.0;
const PATIENCE_DOWN: f64 = 40.0;
/// Probes after which a budget above the BDP estimate is reduced if it gains nothing, and the
/// largest likely loss of rate for that, as a fraction.
const HASTE: f64 = 3.0;
const RISK: f64 = 0.005;
/// Largest likely loss of rate for a jump halfway to the BDP estimate.
const JUMP_RISK: f64 = 0.02;
/// Smallest and largest step of the base budget, as fractions of it.
const LEAST_STEP: f64 = 0.02;
const MOST_STEP: f64 = 0.4;
/// Largest step up from a base budget above the BDP estimate.
const CREEP: f64 = 0.2;
/// Largest step down from a base budget below the BDP estimate.
const SINK: f64 = 0.06;
/// Factors that narrow the probe amplitude while the two rates differ significantly and widen it
/// otherwise, and its minimum. The higher the cost of a budget off the optimum, the smaller the
/// amplitude that resolves it.
const NARROWER: f64 = 0.7;
const WIDER: f64 = 1.4;
const NARROWEST: f64 = 0.15;
/// Fraction of the budget that must be in use for a valid measurement.
const IN_USE: f64 = 0.85;
/// Deferred commands per completed one from which a budget counts as in use despite a low mean:
/// bursts of hosts reach it at their peaks.
const HELD_BACK: f64 = 0.05;
/// A pause of the hosts lies in a measurement that took this multiple of its expected time, with
/// less than this fraction of the budget in use.
const LULL: f64 = 4.0;
const LULL_USE: f64 = 0.5;
/// A budget is far below the BDP estimate if the estimate is this multiple of it.
const FAR_BELOW: f64 = 1.5;
/// Burst allowance of the BDP estimate: multiple of the square root of the commands at the devices,
/// and commands.
const ROOTS: f64 = 2.0;
const SPARE: f64 = 8.0;
/// The network is busy with more than the square root of the commands at the devices plus this
/// number.
const ENOUGH_TO_SEND: f64 = 4.0;
/// Target elasticity while some commands are small relative to the others. Those wait in the
/// network behind the large ones, so less should be queued there. The burst commands are then
/// omitted, and the probe amplitude is limited to this fraction: the upper side determines the
/// slowest small commands.
const TARGET_BESIDE_SMALL: f64 = 0.12;
const SWING_BESIDE_SMALL: f64 = 0.25;
/// As [`CLEAR`], while some commands are small. So narrow a probe scatters more, and a budget that
/// follows the scatter is at times too large for small commands.
const CLEAR_BESIDE_SMALL: f64 = 1.2;
/// Fraction of small commands from which that applies.
const SOME_SMALL: f64 = 0.01;
/// Commands of a core may hang when none completed for this multiple of the time of a command.
const SILENT: f64 = 32.0;
/// Each measurement reduces the extra budget for hung commands by 1/`FORGET_HUNG`.
const FORGET_HUNG: f64 = 64.0;
/// Longest interval between updates, in ns, if nothing completes: a bound, not a setting.
const LONGEST_PAUSE: f64 = 1e9;

/// Controls the budget.
#[derive(Debug)]
pub(super) struct Controller {
    cores: f64,
    /// Mean bytes of a command, or the largest possible command before the first measurement; no
    /// budget is smaller.
    least: f64,
    /// Base budget, in bytes.
    base: f64,
    phase: Phase,
    /// Startup: the base budget doubles until that gains little.
    starting: bool,
    /// Base budget of a startup measurement whose elasticity was near 0 or below; it is measured
    /// again.
    doubted: Option<u64>,
    high: bool,
    swing: f64,
    /// Scale of the probe amplitude.
    narrow: f64,
    /// Mean bytes of a command.
    command: f64,
    /// Some commands are small relative to the others.
    some_small: bool,
    /// Sums and time at the start of the phase.
    from: Totals,
    since: Option<Nanos>,
    /// The last measurement, if the next one can be compared with it.
    last: Option<Measured>,
    trend: Trend,
    /// The recent peak measurement; its rate decays.
    best: Option<Measured>,
    /// Consecutive measurements of a standing queue, without a conclusive one in between.
    flooded: u32,
    step: f64,
    upwards: bool,
    ceiling: Ceiling,
    search: Search,
    reserve: Reserve,
    /// Small commands were in the last measurement, so nothing is reserved.
    beside_small: bool,
    /// The rate of the last measurement, in bytes per ns.
    pace: f64,
    /// Time in ns for which the data in the network lasts.
    network_lasts: f64,
    /// Mean time in flight of commands, in ns.
    turnover: f64,
    /// Extra budget in bytes for hung commands. The budget without it is for commands that
    /// complete.
    hung: f64,
    /// The last move was away from an overshoot.
    harmed: bool,
    /// Base budget around which a small overshoot was seen once.
    suspected: Option<u64>,
    network_is_busy: bool,
    /// The hosts were app-limited in the last measurement.
    is_unused: bool,
    /// The workload seemed to have changed before this measurement began.
    seems_another: bool,
    /// Expected time of this measurement in ns, and whether the last one contained a pause of the
    /// hosts.
    expected: Nanos,
    had_lull: bool,
    reason: Move,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Phase {
    First,
    Settle,
    Measure,
    /// The budget in force until the data that waits for the network has drained.
    Drain(f64),
}

impl Controller {
    pub(super) fn new(cores: usize, largest: u32) -> Self {
        let least = f64::from(largest.max(1));
        let cores = f64::from(u32::try_from(cores.max(1)).unwrap_or(u32::MAX));
        Self {
            cores,
            least,
            base: least * cores,
            phase: Phase::First,
            starting: true,
            doubted: None,
            high: true,
            swing: SWING,
            narrow: 1.0,
            command: 0.0,
            some_small: false,
            from: Totals::default(),
            since: None,
            last: None,
            trend: Trend::new(),
            best: None,
            flooded: 0,
            step: LEAST_STEP,
            upwards: true,
            ceiling: Ceiling::none(),
            search: Search::new(),
            reserve: Reserve::new(),
            beside_small: false,
            pace: 0.0,
            network_lasts: f64::INFINITY,
            turnover: f64::INFINITY,
            hung: 0.0,
            harmed: false,
            suspected: None,
            network_is_busy: false,
            is_unused: false,
            seems_another: false,
            expected: 0,
            had_lull: false,
            reason: Move::Start,
        }
    }

    /// Returns the budget in bytes.
    pub(super) fn budget(&self) -> u64 {
        self.without_hung() + whole(self.hung)
    }

    /// Enlarges the budget by `bytes` from now on.
    pub(super) fn make_up_for_hung(&mut self, bytes: u64) {
        self.hung += float(bytes);
    }

    /// Reduces the extra budget for hung commands. It drops to 0 when more is in flight than the
    /// budget without it allows, and decays otherwise. If a command still hangs, that shows again.
    fn forget_hung(&mut self, measured: &Measured) {
        let without = measured.budget + measured.reserved + self.floor();
        let is_back = measured.all_in_flight() > without || self.hung < self.command;
        self.hung = if is_back { 0.0 } else { self.hung - self.hung / FORGET_HUNG };
    }

    fn without_hung(&self) -> u64 {
        // An amplitude below one command would have no effect.
        let swing = (self.base * self.swing).max(self.command);
        if let Phase::Drain(budget) = self.phase {
            return whole(budget.max(self.least));
        }
        let budget = match (self.starting || self.search.is_blind(), self.high) {
            (true, _) => self.base,
            (_, true) => self.base + swing,
            (_, false) => self.base - swing,
        };
        whole(budget.max(self.least) + self.reserved())
    }

    /// Returns the preemption reserve in bytes. After an overshoot it is at most the base budget,
    /// so that it shrinks with it; otherwise at most twice the base budget. It is 0 while some
    /// commands are small: those would wait behind it.
    pub(super) fn reserved(&self) -> f64 {
        match self.phase {
            Phase::Drain(_) => 0.0,
            _ if self.beside_small => 0.0,
            _ => {
                let most = if self.ceiling.is_none() { 2.0 * self.base } else { self.base };
                (self.reserve.commands() * self.command).min(most)
            }
        }
    }

    pub(super) fn last_move(&self) -> Move {
        self.reason
    }

    /// Processes the sums; returns the ns until the next update, or 0 if it needs more commands.
    pub(super) fn look(&mut self, totals: Totals, now: Nanos) -> Nanos {
        let Some(since) = self.since.filter(|since| *since <= now) else {
            // The first update, or a clock that jumped back.
            self.start_phase(totals, now);
            return 0;
        };
        if now == since || totals.commands - self.from.commands < FIRST {
            return 0;
        }
        let elapsed = now - since;
        let measured = self.measured(&totals, float(elapsed));
        self.start_phase(totals, now);
        let turnover = measured.all_in_flight() / measured.rate;
        self.turnover = turnover;
        match self.phase {
            Phase::First => {
                self.phase = Phase::Settle;
                self.base = (START_COMMANDS.max(self.cores) * self.command).max(self.least);
                pause(SETTLE * self.base / measured.rate)
            }
            Phase::Drain(_) => {
                self.phase = Phase::Settle;
                pause(SETTLE * turnover)
            }
            Phase::Settle => {
                self.phase = Phase::Measure;
                self.seems_another = self.is_another_load(&measured);
                let wanted = match (self.starting && !self.is_unused, self.search.is_trying()) {
                    (true, _) => 0.0,
                    (_, true) => search::TRIAL * COMMANDS,
                    // This measurement only tests whether hosts offer more now.
                    _ if self.is_unused || self.seems_another => COMMANDS / 8.0,
                    _ => COMMANDS,
                };
                // If less than one command is in flight, most time passes between commands. A burst
                // must not wait for that.
                let turnovers = wanted * self.command / measured.all_in_flight().max(self.command);
                self.expected = pause(turnovers.max(MEASURE) * turnover);
                self.expected
            }
            Phase::Measure => {
                self.phase = Phase::Settle;
                if self.is_first_lull(&measured, elapsed) {
                    self.last = None;
                    return pause(SETTLE * turnover);
                }
                self.forget_hung(&measured);
                self.network_is_busy = self.has_enough_to_send(&measured);
                self.learn_of_absences(&measured);
                // A fraction of a command cannot be used.
                let usable = (measured.budget / self.command).floor().max(1.0) * self.command;
                let is_unused =
                    measured.in_flight < IN_USE * usable && measured.refused < HELD_BACK;
                self.is_unused = is_unused;
                let is_back = self.reason == Move::Idle && self.is_far_below(&measured);
                // Twice in a row: a short stall is no change of workload.
                let is_another = self.seems_another && self.is_another_load(&measured);
                // A trial is evaluated even if the budget was not used up. So is a startup step
                // that lost much.
                match self.search.is_trying() || self.started_too_far(&measured) {
                    false if is_unused => self.give_up_unused(&measured),
                    false if is_back || is_another => self.start_over(measured),
                    _ => self.judge(measured),
                }
                self.high = !self.high;
                let finer = SWING * (COMMANDS / measured.commands).sqrt();
                self.swing = (finer * self.narrow).clamp(LEAST_SWING * self.narrow, SWING);
                pause(SETTLE * turnover)
            }
        }
    }

    /// Returns whether the data of one more command would only wait for the network.
    pub(super) fn network_is_busy(&self) -> bool {
        self.network_is_busy
    }

    /// Returns the ns without a completion after which commands in flight may hang: a multiple of
    /// the recent time in flight.
    pub(super) fn patience(&self) -> Nanos {
        pause(SILENT * self.turnover)
    }

    /// Returns the ns for which the data in the network lasts.
    pub(super) fn network_lasts(&self) -> Nanos {
        whole(self.network_lasts)
    }

    /// Returns whether the hosts paused during this measurement, so that it is no sample of the
    /// budget. A second pause in a row is the normal behavior of the hosts.
    fn is_first_lull(&mut self, measured: &Measured, elapsed: Nanos) -> bool {
        let is_lull = measured.refused >= HELD_BACK
            && measured.in_flight < LULL_USE * measured.budget
            && float(elapsed) > LULL * float(self.expected);
        let had_lull = std::mem::replace(&mut self.had_lull, is_lull);
        is_lull && !had_lull
    }

    /// Updates the preemption reserve with the bytes missed while cores were preempted.
    fn learn_of_absences(&mut self, measured: &Measured) {
        self.beside_small = self.some_small;
        self.pace = measured.rate;
        self.network_lasts = (measured.network + measured.reserved) / measured.rate;
        let missed = if self.beside_small { 0.0 } else { measured.missed };
        self.reserve.learn(measured.commands, missed, self.network_is_busy);
    }

    fn has_enough_to_send(&self, measured: &Measured) -> bool {
        let devices = (measured.in_flight - measured.network).max(0.0) / self.command;
        (measured.network + measured.reserved) / self.command > devices.sqrt() + ENOUGH_TO_SEND
    }

    fn start_phase(&mut self, totals: Totals, now: Nanos) {
        self.from = totals;
        self.since = Some(now);
    }

    fn measured(&mut self, totals: &Totals, elapsed: f64) -> Measured {
        let since = |of: fn(&Totals) -> u64| float(of(totals).wrapping_sub(of(&self.from)));
        let (bytes, commands) = (since(|t| t.bytes), since(|t| t.commands));
        let in_flight = since(|t| t.residence) * 1024.0 / elapsed;
        let network = since(|t| t.network) * 1024.0 / elapsed;
        let missed = since(|t| t.missed);
        // The reserve is in the network, and is not part of the sample.
        let budget = float(self.without_hung());
        let reserved = self.reserved();
        let (budget, reserved) = (budget - reserved, (reserved / budget * in_flight).min(network));
        self.command = bytes / commands;
        self.least = self.command;
        self.some_small = since(|t| t.small) > SOME_SMALL * commands;
        let in_flight = (in_flight - reserved).max(1.0);
        // Missed bytes count at most at the rate of the last measurement.
        let rate = bytes / elapsed;
        Measured {
            budget,
            in_flight,
            network: (network - reserved).min(in_flight),
            reserved,
            rate: rate.max((rate + missed / elapsed).min(self.pace)),
            commands,
            refused: since(|t| t.refused) / commands,
            missed: missed / self.command,
        }
    }

    /// Shrinks the budget of app-limited hosts to their demand, with some room for a burst. If even
    /// the demand is above the BDP estimate, the budget is reduced further.
    fn give_up_unused(&mut self, measured: &Measured) {
        self.search.swing();
        self.flooded = 0;
        self.last = None;
        self.reason = Move::Idle;
        if self.enough(measured) < measured.in_flight {
            // In startup nothing else is known. If too much is in flight, all of the excess may be
            // useless.
            let starting = std::mem::take(&mut self.starting);
            self.base = if starting { self.enough(measured) } else { measured.in_flight };
        } else {
            self.base = self.base.min((1.25 * measured.in_flight).max(self.base / 1.2));
        }
        self.base = self.base.max(self.least);
    }

    /// Compares a measurement with the last one.
    fn judge(&mut self, measured: Measured) {
        if self.search.is_trying() {
            // The result of a trial is no sign of another machine.
            self.search_on(measured);
            return;
        }
        let was_blind = self.search.is_blind();
        // Without waiting commands the hosts decide the bytes in flight, so the measurement
        // contains no information about probes.
        if !self.starting && measured.refused >= HELD_BACK {
            self.search.see(&measured, self.high, self.ceiling.certainty());
        }
        if was_blind && !self.search.is_blind() {
            self.last = None;
        }
        let Some(last) = self.last.replace(measured) else {
            if self.starting {
                self.base *= START;
            }
            return;
        };
        if !self.starting && (self.is_news(&measured) || self.is_flooded(&measured)) {
            self.search.hold_anew();
            return;
        }
        if self.search.is_blind() {
            self.search_on(measured);
            return;
        }
        let gap = (measured.in_flight / last.in_flight).ln();
        if gap.abs() < self.swing / 2.0 || (gap > 0.0) != (measured.budget > last.budget) {
            if self.starting {
                self.go_on_blindly(&measured, &last);
                return;
            }
            if measured.budget < 2.0 * self.floor() {
                self.leave_the_floor(&measured);
            } else if last.lost_with_more(&measured, self.search.noise()) {
                self.lower(&measured, &last, true, false);
            }
            return;
        }
        // Relative to all bytes in flight.
        let gap = gap * measured.in_flight / measured.all_in_flight();
        let gain = (measured.rate / last.rate).ln();
        if self.starting {
            self.go_on_starting(bounded(gain / gap), &measured, &last);
            return;
        }
        if gain / gap > START_GAIN {
            self.forget_another_best(&measured);
        }
        if self.has_collapsed(&measured) {
            return;
        }
        self.trend.add(gain, gap);
        self.set_width(last.differs_clearly(&measured));
        self.decide(&measured, &last);
    }

    /// Continues the coarse search, where probes are inconclusive: see [`search`].
    fn search_on(&mut self, measured: Measured) {
        self.remember_best(&measured);
        match self.search.step(&measured, self.base, 2.0 * self.floor()) {
            Step::Hold(base) => {
                self.base = base;
                if !self.search.is_blind() {
                    self.last = None;
                }
            }
            Step::Keep { upwards } => {
                self.best = Some(measured);
                self.ceiling = Ceiling::none();
                self.go_to(self.base, if upwards { Move::Gained } else { Move::Wasted });
            }
        }
    }

    /// Scales the probe amplitude: the more a budget off the optimum costs, the smaller the
    /// amplitude may be.
    fn set_width(&mut self, is_wide: bool) {
        let widest = if self.some_small { SWING_BESIDE_SMALL } else { 1.0 };
        self.narrow *= if is_wide { NARROWER } else { WIDER };
        self.narrow = self.narrow.clamp(NARROWEST, widest);
    }

    /// Narrows the probe amplitude below a steep ceiling. The ceiling decides there without probes,
    /// and each probe below an edge costs throughput.
    fn narrow_below_ceiling(&mut self) {
        if !self.some_small && self.ceiling.is_steep() {
            self.narrow = (self.narrow * NARROWER * NARROWER).max(NARROWEST);
        }
    }

    /// Moves the base budget if the evidence suffices.
    fn decide(&mut self, measured: &Measured, last: &Measured) {
        let (target, clear) = match self.some_small {
            true => (TARGET_BESIDE_SMALL, CLEAR_BESIDE_SMALL),
            false => (TARGET, CLEAR),
        };
        let surplus = self.trend.mean() - target;
        let enough = self.enough(measured);
        let too_much = enough < measured.in_flight;
        let is_harm = self.looks_like_harm();
        let is_clear = surplus.abs() >= clear * self.trend.error();
        if is_clear && surplus < 0.0 && !too_much && !is_harm && self.reserved() > 0.0 {
            // The reserve hides a loss from a smaller budget.
            if self.trend.count >= PATIENCE {
                self.trend.forget();
            }
            return;
        }
        // Largest likely gain of the budget on half the way to the BDP estimate.
        let risk =
            (self.trend.mean() + self.trend.error()) * (measured.in_flight / enough).ln() / 2.0;
        let is_waste = too_much && surplus <= 0.0 && self.trend.count >= HASTE && risk <= RISK;
        let patience = if too_much { PATIENCE_DOWN } else { PATIENCE };
        if !is_clear && !is_waste && self.trend.count < patience {
            return;
        }
        if is_harm && !self.confirm_harm(measured, last) {
            self.trend.forget();
            self.last = None;
            return;
        }
        let upwards = if is_clear { surplus > 0.0 } else { !too_much };
        let step = if upwards == self.upwards { 1.5 * self.step } else { 0.5 * self.step };
        self.step = step.clamp(LEAST_STEP.min(self.swing), MOST_STEP);
        if upwards {
            if too_much {
                self.step = self.step.min(CREEP);
            }
            self.raise(measured);
        } else {
            if !too_much && !is_harm {
                self.step = self.step.min(SINK);
            }
            let hidden = self.reserved() > 0.0 && !is_harm;
            let least = if hidden { enough.min(self.base) } else { 0.0 };
            self.lower(measured, last, is_harm, risk <= JUMP_RISK);
            self.base = self.base.max(least);
        }
    }

    /// Moves to another base budget, without measurements there yet.
    fn go_to(&mut self, base: f64, reason: Move) {
        self.base = base.max(self.least);
        self.reason = reason;
        self.trend.forget();
        self.last = None;
    }

    /// Moves a base budget of about one command per core to the BDP estimate. A core with nothing
    /// in flight may always start one command, so this budget bounds nothing, and probes have no
    /// effect. The move requires a higher estimate and a network with too little data. Bytes in
    /// flight beyond that completed late, and are no evidence.
    fn leave_the_floor(&mut self, measured: &Measured) {
        let is_floor = measured.in_flight > measured.budget
            && measured.in_flight < measured.budget + self.floor();
        let (enough, highest) = (self.enough(measured), self.ceiling.base(self.swing));
        if !is_floor || self.network_is_busy {
            return;
        }
        if highest < enough {
            self.ceiling.push();
        }
        if enough.min(highest) > self.base {
            self.go_to(enough.min(highest), Move::Gained);
        }
    }

    /// Returns one command per core, in bytes.
    fn floor(&self) -> f64 {
        self.cores * self.command
    }

    /// Returns whether the BDP estimate is far above the budget.
    fn is_far_below(&self, measured: &Measured) -> bool {
        FAR_BELOW * measured.budget < self.enough(measured)
    }

    /// Returns the BDP estimate in bytes: bytes at the devices, a burst allowance for the scatter
    /// of their completions, and a few commands for unevenness.
    fn enough(&self, measured: &Measured) -> f64 {
        // Bytes in flight beyond this completed late, and were not in flight now.
        let in_flight = measured.in_flight.min(measured.budget + self.floor());
        let devices = (in_flight - measured.network).max(0.0) / self.command;
        let spare = if self.some_small { 0.0 } else { SPARE };
        (devices + ROOTS * devices.sqrt() + spare) * self.command
    }

    /// Raises the base budget: by a step, to the midpoint towards the BDP estimate if it gains
    /// much, or to the midpoint below the ceiling.
    fn raise(&mut self, measured: &Measured) {
        self.reason = Move::Gained;
        self.harmed = false;
        self.upwards = true;
        let stepped = self.base * (1.0 + self.step);
        let halfway = (self.base * self.enough(measured)).sqrt();
        let gains_much = self.trend.mean() > START_GAIN && self.ceiling.is_none();
        let wanted = if gains_much { stepped.max(halfway) } else { stepped };
        self.trend.forget();
        let highest = self.ceiling.base(self.swing);
        if wanted <= highest {
            self.base = wanted;
            return;
        }
        self.base = self.base.max(f64::midpoint(self.base, highest));
        self.narrow_below_ceiling();
        self.ceiling.push();
    }

    /// Lowers the base budget by a step. From above the BDP estimate it moves at least halfway
    /// there, if that is safe. After an overshoot it first returns to the side without overshoot,
    /// and moves halfway if that overshoots, too.
    fn lower(&mut self, measured: &Measured, last: &Measured, is_harm: bool, is_safe: bool) {
        self.reason = Move::Wasted;
        self.upwards = false;
        let stepped = self.base / (1.0 + self.step);
        let (less, more) =
            if measured.budget < last.budget { (measured, last) } else { (last, measured) };
        // In a collapse most data is in the network, so the BDP estimate is low.
        let side = if is_harm { less } else { measured };
        let enough = self.enough(side);
        let may_jump = side.in_flight > enough && (is_harm || is_safe);
        let halfway = if may_jump { (self.base * enough).sqrt() } else { self.base };
        if is_harm {
            let is_steep = (more.rate / less.rate).ln() < -LOSS;
            self.ceiling.set(less.budget, more.budget, is_steep, less.rate);
        }
        let again = std::mem::replace(&mut self.harmed, is_harm);
        self.base = if is_harm && !again {
            let harmless = less.budget.min(self.ceiling.base(self.swing)).min(self.base);
            harmless.max(stepped)
        } else {
            stepped.min(halfway)
        };
        self.base = self.base.max(self.least);
        self.trend.forget();
        // The next measurement is certainly better; that must not count as a second overshoot.
        self.last = None;
    }
}

#[expect(clippy::cast_precision_loss, reason = "sums of which only ratios are used")]
fn float(value: u64) -> f64 {
    value as f64
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "positive and bounded")]
fn pause(nanos: f64) -> Nanos {
    nanos.min(LONGEST_PAUSE) as Nanos
}
