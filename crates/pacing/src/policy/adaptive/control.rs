//! What the budget should be: pure arithmetic over sums, no clock, no sharing.
//!
//! ```text
//!            16 commands           budget in force           enough measured
//!   First ────────────────▶ Settle ────────────────▶ Measure ────────────────┐
//!                            ▲  ▲                                            │
//!              what waits    │  └──────── judge; swing to the other side ────┤
//!                 is gone    └───────────────── Drain ◀──────────────────────┘
//!                                                        a flood
//! ```
//!
//! The budget swings around its *base*, a little above and a little below in turn, and each side is
//! measured. What the rate gains, relative to what more is in flight, is the *elasticity*: 1 where
//! every further command adds its share, 0 where it only waits longer, below 0 where it does harm
//! (the cache runs over). The base moves up while the elasticity is above [`TARGET`] and down while
//! it is below, once the mean of a few swings is clear of their scatter. Steps grow while they go
//! the same way and halve when they turn.
//!
//! Two things make it quick where swings tell little. What is with the devices, twice its square
//! root and a few commands more is *enough* in flight: beyond it, data waits for the network. It is
//! the first guess, and where no gain is to be seen the base moves towards it. And below a budget that did
//! clear harm is a *ceiling*, approached by halves and forgotten slowly.
//!
//! Two things are seen without a swing, and answered by going to what should be enough at once: a rate never seen
//! before (*news*), and much less through with as much in flight because it waits for the network (a *flood*), which is
//! drained first.
//!
//! What could not be sent while cores were away counts as sent, and a *reserve* for such times is in force on top of the
//! base: see [`attendance`](super::attendance).
//!
//! Where the rate wanders so far by itself that swings tell nothing, [`search`] takes over.
//!
//! Nothing here is in units of time or bytes: intervals are in turnovers of the budget and in
//! commands, steps are ratios.

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

/// Why the budget last moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Move {
    /// It has not moved since the start.
    #[default]
    Start,
    /// More in flight brought more through.
    Gained,
    /// More in flight brought nothing, or less.
    Wasted,
    /// The hosts do not use it up.
    Idle,
}

/// Most that a side of the swing is from the base, as a part of it.
const SWING: f64 = 0.08;
/// Least that it is, where so many commands are measured that less can be told apart, before it is made narrower.
const LEAST_SWING: f64 = 0.04;
/// Turnovers of the budget from a swing to the measurement, and least of a measurement.
const SETTLE: f64 = 2.0;
const MEASURE: f64 = 4.0;
/// Commands in a measurement.
pub(super) const COMMANDS: f64 = 600.0;
/// Commands seen before anything is decided.
const FIRST: u64 = 16;
/// Commands in flight at the start; one a core if those are more.
const START_COMMANDS: f64 = 4.0;
/// The elasticity aimed at.
const TARGET: f64 = 0.015;
/// How many times its likely error a mean elasticity must be off the target to be clear.
const CLEAR: f64 = 0.8;
/// Swings after which it is decided without being clear: up to what should be enough, and down to it.
const PATIENCE: f64 = 12.0;
const PATIENCE_DOWN: f64 = 40.0;
/// Swings after which a budget that is more than enough is taken back if it brings nothing, and no more than this
/// part of the rate is lost by it, as far as can be told.
const HASTE: f64 = 3.0;
const RISK: f64 = 0.005;
/// No more than this may be lost, as far as can be told, by going half the way to what is enough at once.
const JUMP_RISK: f64 = 0.02;
/// The smallest and the largest step of the base, as parts of it.
const LEAST_STEP: f64 = 0.02;
const MOST_STEP: f64 = 0.4;
/// The largest step up from what should be enough already.
const CREEP: f64 = 0.2;
/// The largest step down from what should not be enough.
const SINK: f64 = 0.06;
/// A swing is made narrower by this factor while the two rates differ clearly, and wider again by the other,
/// to this part at most: the more it costs to be beside the best, the less is needed to tell where that is.
const NARROWER: f64 = 0.7;
const WIDER: f64 = 1.4;
const NARROWEST: f64 = 0.15;
/// The part of the budget that must be in use for a measurement to say something about it.
const IN_USE: f64 = 0.85;
/// Commands told to wait, for each that goes through, from which a budget is in use though its mean
/// is low: hosts that come in bursts meet it at their peaks.
const HELD_BACK: f64 = 0.05;
/// A measurement that took so many times as long as it should have, with less than this part of the budget in use, had a
/// lull in it.
const LULL: f64 = 4.0;
const LULL_USE: f64 = 0.5;
/// What should be enough over a budget, from which that is far below it.
const FAR_BELOW: f64 = 1.5;
/// What is enough in flight: so many square roots of what is with the devices, and so many
/// commands, beside it.
const ROOTS: f64 = 2.0;
const SPARE: f64 = 8.0;
/// The network is busy with more than the root of what is with the devices and so many commands.
const ENOUGH_TO_SEND: f64 = 4.0;
/// The elasticity aimed at while some commands are small beside the others: those wait in the network behind the
/// large ones, and for them less should stand there. So no commands to spare are asked for then, and the swing is at
/// most this part of what it is else: the slowest of the small ones are those of its upper side.
const TARGET_BESIDE_SMALL: f64 = 0.12;
const SWING_BESIDE_SMALL: f64 = 0.25;
/// How many times its likely error a mean elasticity must be off the target to be clear, while some are small: a swing
/// so narrow scatters more, and a budget that wanders with it is at times too large for the small ones.
const CLEAR_BESIDE_SMALL: f64 = 1.2;
/// Small commands among all from which that holds.
const SOME_SMALL: f64 = 0.01;
/// What is in flight on a core may hang when nothing of it came back for so many times the time of a command.
const SILENT: f64 = 32.0;
/// What the budget is larger by for that becomes less by one part in so many with each measurement.
const FORGET_HUNG: f64 = 64.0;
/// Longest time between looks, in ns, should nothing get through: a bound, not a setting.
const LONGEST_PAUSE: f64 = 1e9;

/// Moves the budget.
#[derive(Debug)]
pub(super) struct Controller {
    cores: f64,
    /// Bytes of a command, the largest there may be until some were seen; no budget is smaller.
    least: f64,
    /// The budget between swings, in bytes.
    base: f64,
    phase: Phase,
    /// The base doubles until that brings little.
    starting: bool,
    /// The base that brought little more than half of it, or less, by one measurement of the start, which is made again.
    doubted: Option<u64>,
    high: bool,
    swing: f64,
    /// The part of the swing that is enough to tell.
    narrow: f64,
    /// Mean bytes of a command.
    command: f64,
    /// Some commands are small beside the others.
    some_small: bool,
    /// Sums and time at the start of the phase.
    from: Totals,
    since: Option<Nanos>,
    /// The last measurement, if the next is to be compared with it.
    last: Option<Measured>,
    trend: Trend,
    /// The best measurement of late; its rate fades.
    best: Option<Measured>,
    /// Measurements that were a flood, with no other between that could tell.
    flooded: u32,
    step: f64,
    upwards: bool,
    ceiling: Ceiling,
    search: Search,
    reserve: Reserve,
    /// Some were in the last measurement, and nothing is reserved.
    beside_small: bool,
    /// The rate of the last measurement, in bytes per ns.
    pace: f64,
    /// How long what the network had lasted, in ns.
    network_lasts: f64,
    /// How long commands were in flight, in ns.
    turnover: f64,
    /// Bytes of commands of which nothing is heard, as far as the budget is larger for them: what it is without them is for
    /// those that come back.
    hung: f64,
    /// The last move was away from harm.
    harmed: bool,
    /// The base around which harm by little was seen once.
    suspected: Option<u64>,
    network_is_busy: bool,
    /// The hosts did not use the budget up in the last measurement.
    is_unused: bool,
    /// Before this measurement began it looked like another load.
    seems_another: bool,
    /// How long this measurement should take, in ns, and whether the last one had a lull in it.
    expected: Nanos,
    had_lull: bool,
    reason: Move,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Phase {
    First,
    Settle,
    Measure,
    /// So much is in force for a moment, that what waits for the network gets away.
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

    /// The budget in bytes.
    pub(super) fn budget(&self) -> u64 {
        self.without_hung() + whole(self.hung)
    }

    /// It is larger by so many bytes from now on.
    pub(super) fn make_up_for_hung(&mut self, bytes: u64) {
        self.hung += float(bytes);
    }

    /// It comes down again when more is in flight than there would be without, and else by and by: if something still hangs it
    /// shows once more.
    fn forget_hung(&mut self, measured: &Measured) {
        let without = measured.budget + measured.reserved + self.floor();
        let is_back = measured.all_in_flight() > without || self.hung < self.command;
        self.hung = if is_back { 0.0 } else { self.hung - self.hung / FORGET_HUNG };
    }

    fn without_hung(&self) -> u64 {
        // A swing of less than one command would be none.
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

    /// Bytes of the budget that are for while cores are away: where harm was found never more than what it is without
    /// them, so that they go down with it, and else twice as much. Small commands would wait behind them.
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

    /// Looks at the sums; yields in how many ns to look again.
    pub(super) fn look(&mut self, totals: Totals, now: Nanos) -> Nanos {
        let Some(since) = self.since.filter(|since| *since <= now) else {
            // The first look, or a clock that went back.
            self.start_phase(totals, now);
            return 0;
        };
        if now == since || totals.commands - self.from.commands < FIRST {
            return 0;
        }
        let elapsed = now - since;
        let measured = self.measured(&totals, float(elapsed));
        self.start_phase(totals, now);
        // The mean time in flight.
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
                    // All that is to be seen is whether hosts ask for more now.
                    _ if self.is_unused || self.seems_another => COMMANDS / 8.0,
                    _ => COMMANDS,
                };
                // Where less than a command is in flight, most of the time is between commands: a burst must not wait for it.
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
                // Part of a command cannot be used.
                let usable = (measured.budget / self.command).floor().max(1.0) * self.command;
                let is_unused =
                    measured.in_flight < IN_USE * usable && measured.refused < HELD_BACK;
                self.is_unused = is_unused;
                let is_back = self.reason == Move::Idle && self.is_far_below(&measured);
                // Twice in a row: what stood still for a moment is no other load.
                let is_another = self.seems_another && self.is_another_load(&measured);
                // A trial says what it brought, used up or not, and so does the start where it lost much.
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

    /// Would what one more command brings only wait behind others for the network?
    pub(super) fn network_is_busy(&self) -> bool {
        self.network_is_busy
    }

    /// With nothing heard for so long, in ns, what is in flight may hang: a multiple of how long commands were lately.
    pub(super) fn patience(&self) -> Nanos {
        pause(SILENT * self.turnover)
    }

    /// How long what the network has lasts, in ns.
    pub(super) fn network_lasts(&self) -> Nanos {
        whole(self.network_lasts)
    }

    /// Did the hosts pause in the middle of this measurement, so that it says nothing of the budget? Twice in a row that
    /// is how they are.
    fn is_first_lull(&mut self, measured: &Measured, elapsed: Nanos) -> bool {
        let is_lull = measured.refused >= HELD_BACK
            && measured.in_flight < LULL_USE * measured.budget
            && float(elapsed) > LULL * float(self.expected);
        let had_lull = std::mem::replace(&mut self.had_lull, is_lull);
        is_lull && !had_lull
    }

    /// What was missed while cores were away.
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
        // What is reserved is with the network, and no part of what is found out.
        let budget = float(self.without_hung());
        let reserved = self.reserved();
        let (budget, reserved) = (budget - reserved, (reserved / budget * in_flight).min(network));
        self.command = bytes / commands;
        self.least = self.command;
        self.some_small = since(|t| t.small) > SOME_SMALL * commands;
        let in_flight = (in_flight - reserved).max(1.0);
        // At most as if what was missed had gone as fast as the rest did lately.
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

    /// The hosts do not use the budget up: it comes down to what they use, with some room, so that
    /// a burst finds it near. If even that is more than enough, it is tried with less.
    fn give_up_unused(&mut self, measured: &Measured) {
        self.search.swing();
        self.flooded = 0;
        self.last = None;
        self.reason = Move::Idle;
        if self.enough(measured) < measured.in_flight {
            // At the start nothing is known but that, and where too much is in flight all of it may be of no use.
            let starting = std::mem::take(&mut self.starting);
            self.base = if starting { self.enough(measured) } else { measured.in_flight };
        } else {
            self.base = self.base.min((1.25 * measured.in_flight).max(self.base / 1.2));
        }
        self.base = self.base.max(self.least);
    }

    /// Compares a measurement with the last.
    fn judge(&mut self, measured: Measured) {
        if self.search.is_trying() {
            // What it finds is no news of another machine.
            self.search_on(measured);
            return;
        }
        let was_blind = self.search.is_blind();
        // Where nobody waits the hosts decide what is in flight, and what they do says nothing about swings.
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
        // Of all that is in flight.
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

    /// Where swings tell nothing: see [`search`].
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

    /// The more it costs to be beside the best, the less of a swing is needed.
    fn set_width(&mut self, is_wide: bool) {
        let widest = if self.some_small { SWING_BESIDE_SMALL } else { 1.0 };
        self.narrow *= if is_wide { NARROWER } else { WIDER };
        self.narrow = self.narrow.clamp(NARROWEST, widest);
    }

    /// There is no need to tell by swings what the ceiling decides, and each swing below an edge costs.
    fn narrow_below_ceiling(&mut self) {
        if !self.some_small && self.ceiling.is_steep() {
            self.narrow = (self.narrow * NARROWER * NARROWER).max(NARROWEST);
        }
    }

    /// Moves the base if there is reason enough.
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
            // Where less would be too little the reserve hides it.
            if self.trend.count >= PATIENCE {
                self.trend.forget();
            }
            return;
        }
        // What it brought at most, as far as can be told, on half the way to what is enough.
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

    /// Goes to another base, where nothing is known yet.
    fn go_to(&mut self, base: f64, reason: Move) {
        self.base = base.max(self.least);
        self.reason = reason;
        self.trend.forget();
        self.last = None;
    }

    /// A core that has nothing in flight may start one command whatever the budget, so a budget of about one a core
    /// bounds nothing, and swinging it changes nothing: it goes to what should be enough, if that is more and the network
    /// has not enough as it is. What is said to be in flight beyond that came back late, and tells nothing.
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

    /// One command a core, in bytes.
    fn floor(&self) -> f64 {
        self.cores * self.command
    }

    /// Should far more be enough than the budget?
    fn is_far_below(&self, measured: &Measured) -> bool {
        FAR_BELOW * measured.budget < self.enough(measured)
    }

    /// What should be enough in flight, in bytes: what is with the devices, and behind it, for the
    /// network, as much as its completions scatter, and a few commands for what is uneven.
    fn enough(&self, measured: &Measured) -> f64 {
        // What is said to be in flight beyond this came back late, and was not in flight now.
        let in_flight = measured.in_flight.min(measured.budget + self.floor());
        let devices = (in_flight - measured.network).max(0.0) / self.command;
        let spare = if self.some_small { 0.0 } else { SPARE };
        (devices + ROOTS * devices.sqrt() + spare) * self.command
    }

    /// A step up, or half the way to what should be enough if it gains much, or half the way to
    /// where it was too much.
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

    /// A step down: from more than enough at least half the way there, if that is safe. From what did harm it goes to
    /// what did none first, and half the way if there is harm, too.
    fn lower(&mut self, measured: &Measured, last: &Measured, is_harm: bool, is_safe: bool) {
        self.reason = Move::Wasted;
        self.upwards = false;
        let stepped = self.base / (1.0 + self.step);
        let (less, more) =
            if measured.budget < last.budget { (measured, last) } else { (last, measured) };
        // In a collapse the network has so much that little seems to be enough.
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
        // The next measurement is better for certain; that must not count as harm again.
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
