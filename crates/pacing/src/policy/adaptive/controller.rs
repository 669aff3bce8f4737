//! Control law of the budget: pure arithmetic over sums, without a clock or sharing.
//!
//! ```text
//!            16 commands           budget in force           sample complete
//!   WarmUp ───────────────▶ Settle ────────────────▶ Measure ────────────────┐
//!                            ▲  ▲                                            │
//!                    drained │  └─────── evaluate; probe the other side ─────┤
//!                            └───────────────── Drain ◀──────────────────────┘
//!                                                        standing queue
//! ```
//!
//! The controller probes slightly above and slightly below its *base budget* in turn, and measures
//! each side. The *elasticity* is the relative gain in rate per relative gain in bytes in flight.
//! At 1, every further command adds its part to the rate. At 0, it only waits longer. Below 0 the
//! budget overshoots (the LLC overflows).
//!
//! The base budget rises while the elasticity is above [`TARGET_ELASTICITY`] and falls while it is
//! below, once the mean of a few probes is significant. Steps grow while they keep their direction,
//! and halve when it changes.
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
//! in force on top of the base budget: see [`preemption`](super::preemption).
//!
//! The [`coarse_search`] takes over if the rate varies too much for probes.
//!
//! No constant has a unit of time or bytes: intervals are in turnovers of the budget and in
//! commands, and steps are ratios.

mod overshoot;
mod regime;
mod startup;

use super::ceiling::InflightCeiling;
use super::coarse_search::{self, CoarseSearch, SearchAction};
use super::elasticity::{ElasticityEstimator, bounded};
use super::preemption_reserve::PreemptionReserve;
use super::sample::{LOSS, RateSample, Totals, whole};
use crate::Nanos;
use startup::{START, START_GAIN};

/// Reason of the last change of the budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BudgetMove {
    /// No change since the start.
    #[default]
    Startup,
    /// More in flight gained throughput.
    MoreThroughput,
    /// More in flight gained nothing, or lost throughput.
    NoGain,
    /// The hosts are app-limited.
    AppLimited,
}

/// Largest probe amplitude, as a fraction of the base budget.
const PROBE_AMPLITUDE: f64 = 0.08;
/// Smallest probe amplitude before it is scaled down, if enough commands are measured to resolve
/// it.
const MIN_PROBE_AMPLITUDE: f64 = 0.04;
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
const TARGET_ELASTICITY: f64 = 0.015;
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
const DEFERRED: f64 = 0.05;
/// A pause of the hosts lies in a measurement that took this multiple of its expected time, with
/// less than this fraction of the budget in use.
const PAUSE: f64 = 4.0;
const PAUSE_USE: f64 = 0.5;
/// A budget is far below the BDP estimate if the estimate is this multiple of it.
const FAR_BELOW: f64 = 1.5;
/// Burst allowance of the BDP estimate: multiple of the square root of the commands at the devices,
/// and commands.
const BURST_ROOTS: f64 = 2.0;
const BURST_COMMANDS: f64 = 8.0;
/// The network is busy with more than the square root of the commands at the devices plus this
/// number.
const ENOUGH_TO_SEND: f64 = 4.0;
/// Target elasticity while some commands are small relative to the others. Those wait in the
/// network behind the large ones, so less should be queued there. The burst commands are then
/// omitted, and the probe amplitude is limited to this fraction: the upper side determines the
/// slowest small commands.
const TARGET_ELASTICITY_BESIDE_SMALL: f64 = 0.12;
const PROBE_AMPLITUDE_BESIDE_SMALL: f64 = 0.25;
/// As [`CLEAR`], while some commands are small. So narrow a probe scatters more, and a budget that
/// follows the scatter is at times too large for small commands.
const CLEAR_BESIDE_SMALL: f64 = 1.2;
/// Fraction of small commands from which that applies.
const SOME_SMALL: f64 = 0.01;
/// Commands of a core may hang when none completed for this multiple of the time of a command.
const STALL_FACTOR: f64 = 32.0;
/// Each measurement reduces the extra budget for hung commands by 1/`FORGET_HUNG`.
const FORGET_HUNG: f64 = 64.0;
/// Longest interval between updates, in ns, if nothing completes: a bound, not a setting.
const LONGEST_PAUSE: f64 = 1e9;

/// Controls the budget.
#[derive(Debug)]
pub(super) struct BudgetController {
    cores: f64,
    /// Mean bytes of a command, or the largest possible command before the first measurement; no
    /// budget is smaller.
    least: f64,
    /// Base budget, in bytes.
    base: f64,
    phase: Phase,
    /// Startup: the base budget doubles until that gains little.
    in_startup: bool,
    /// Base budget of a startup measurement whose elasticity was near 0 or below; it is measured
    /// again.
    suspect_base: Option<u64>,
    probing_up: bool,
    probe_amplitude: f64,
    /// Scale of the probe amplitude.
    amplitude_scale: f64,
    /// Mean bytes of a command.
    command: f64,
    /// Some commands are small relative to the others.
    some_small: bool,
    /// Sums and time at the start of the phase.
    from: Totals,
    since: Option<Nanos>,
    /// The last measurement, if the next one can be compared with it.
    last: Option<RateSample>,
    elasticity: ElasticityEstimator,
    /// The recent peak measurement; its rate decays.
    peak: Option<RateSample>,
    /// Consecutive measurements of a standing queue, without a conclusive one in between.
    standing_queue_streak: u32,
    step: f64,
    upwards: bool,
    ceiling: InflightCeiling,
    coarse_search: CoarseSearch,
    preemption_reserve: PreemptionReserve,
    /// Small commands were in the last measurement, so nothing is reserved.
    beside_small: bool,
    /// The rate of the last measurement, in bytes per ns.
    pace: f64,
    /// Time in ns for which the data in the network lasts.
    network_queue_ns: f64,
    /// Mean time in flight of commands, in ns.
    turnover: f64,
    /// Extra budget in bytes for hung commands. The budget without it is for commands that
    /// complete.
    hung_bytes: f64,
    /// The last move was away from an overshoot.
    overshot: bool,
    /// Base budget around which a small overshoot was seen once.
    suspected: Option<u64>,
    network_is_busy: bool,
    /// The hosts were app-limited in the last measurement.
    is_unused: bool,
    /// The workload seemed to have changed before this measurement began.
    seems_other_workload: bool,
    /// Expected time of this measurement in ns, and whether the last one contained a pause of the
    /// hosts.
    expected: Nanos,
    had_pause: bool,
    reason: BudgetMove,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Phase {
    WarmUp,
    Settle,
    Measure,
    /// The budget in force until the data that waits for the network has drained.
    Drain(f64),
}

impl BudgetController {
    pub(super) fn new(cores: usize, largest: u32) -> Self {
        let least = f64::from(largest.max(1));
        let cores = f64::from(u32::try_from(cores.max(1)).unwrap_or(u32::MAX));
        Self {
            cores,
            least,
            base: least * cores,
            phase: Phase::WarmUp,
            in_startup: true,
            suspect_base: None,
            probing_up: true,
            probe_amplitude: PROBE_AMPLITUDE,
            amplitude_scale: 1.0,
            command: 0.0,
            some_small: false,
            from: Totals::default(),
            since: None,
            last: None,
            elasticity: ElasticityEstimator::new(),
            peak: None,
            standing_queue_streak: 0,
            step: LEAST_STEP,
            upwards: true,
            ceiling: InflightCeiling::none(),
            coarse_search: CoarseSearch::new(),
            preemption_reserve: PreemptionReserve::new(),
            beside_small: false,
            pace: 0.0,
            network_queue_ns: f64::INFINITY,
            turnover: f64::INFINITY,
            hung_bytes: 0.0,
            overshot: false,
            suspected: None,
            network_is_busy: false,
            is_unused: false,
            seems_other_workload: false,
            expected: 0,
            had_pause: false,
            reason: BudgetMove::Startup,
        }
    }

    /// Returns the budget in bytes.
    pub(super) fn budget(&self) -> u64 {
        self.budget_without_hung() + whole(self.hung_bytes)
    }

    /// Enlarges the budget by `bytes` from now on.
    pub(super) fn cover_hung(&mut self, bytes: u64) {
        self.hung_bytes += float(bytes);
    }

    /// Reduces the extra budget for hung commands. It drops to 0 when more is in flight than the
    /// budget without it allows, and decays otherwise. If a command still hangs, that shows again.
    fn decay_hung(&mut self, sample: &RateSample) {
        let without = sample.budget + sample.reserve_bytes + self.floor();
        let is_back = sample.all_in_flight() > without || self.hung_bytes < self.command;
        self.hung_bytes =
            if is_back { 0.0 } else { self.hung_bytes - self.hung_bytes / FORGET_HUNG };
    }

    fn budget_without_hung(&self) -> u64 {
        // An amplitude below one command would have no effect.
        let probe_amplitude = (self.base * self.probe_amplitude).max(self.command);
        if let Phase::Drain(budget) = self.phase {
            return whole(budget.max(self.least));
        }
        let budget =
            match (self.in_startup || self.coarse_search.is_noise_limited(), self.probing_up) {
                (true, _) => self.base,
                (_, true) => self.base + probe_amplitude,
                (_, false) => self.base - probe_amplitude,
            };
        whole(budget.max(self.least) + self.reserve_bytes())
    }

    /// Returns the preemption reserve in bytes. After an overshoot it is at most the base budget,
    /// so that it shrinks with it; otherwise at most twice the base budget. It is 0 while some
    /// commands are small: those would wait behind it.
    pub(super) fn reserve_bytes(&self) -> f64 {
        match self.phase {
            Phase::Drain(_) => 0.0,
            _ if self.beside_small => 0.0,
            _ => {
                let most = if self.ceiling.is_none() { 2.0 * self.base } else { self.base };
                (self.preemption_reserve.commands() * self.command).min(most)
            }
        }
    }

    pub(super) fn last_move(&self) -> BudgetMove {
        self.reason
    }

    /// Processes the sums; returns the ns until the next update, or 0 if it needs more commands.
    pub(super) fn update(&mut self, totals: Totals, now: Nanos) -> Nanos {
        let Some(since) = self.since.filter(|since| *since <= now) else {
            // The first update, or a clock that jumped back.
            self.start_phase(totals, now);
            return 0;
        };
        if now == since || totals.commands - self.from.commands < FIRST {
            return 0;
        }
        let elapsed = now - since;
        let sample = self.sample(&totals, float(elapsed));
        self.start_phase(totals, now);
        let turnover = sample.all_in_flight() / sample.rate;
        self.turnover = turnover;
        match self.phase {
            Phase::WarmUp => {
                self.phase = Phase::Settle;
                self.base = (START_COMMANDS.max(self.cores) * self.command).max(self.least);
                to_interval(SETTLE * self.base / sample.rate)
            }
            Phase::Drain(_) => {
                self.phase = Phase::Settle;
                to_interval(SETTLE * turnover)
            }
            Phase::Settle => {
                self.phase = Phase::Measure;
                self.seems_other_workload = self.workload_changed(&sample);
                let wanted =
                    match (self.in_startup && !self.is_unused, self.coarse_search.is_trying()) {
                        (true, _) => 0.0,
                        (_, true) => coarse_search::TRIAL * COMMANDS,
                        // This measurement only tests whether hosts offer more now.
                        _ if self.is_unused || self.seems_other_workload => COMMANDS / 8.0,
                        _ => COMMANDS,
                    };
                // If less than one command is in flight, most time passes between commands. A burst
                // must not wait for that.
                let turnovers = wanted * self.command / sample.all_in_flight().max(self.command);
                self.expected = to_interval(turnovers.max(MEASURE) * turnover);
                self.expected
            }
            Phase::Measure => {
                self.phase = Phase::Settle;
                if self.is_first_pause(&sample, elapsed) {
                    self.last = None;
                    return to_interval(SETTLE * turnover);
                }
                self.decay_hung(&sample);
                self.network_is_busy = self.has_enough_to_send(&sample);
                self.record_preemption(&sample);
                // A fraction of a command cannot be used.
                let usable = (sample.budget / self.command).floor().max(1.0) * self.command;
                let is_unused = sample.in_flight < IN_USE * usable && sample.deferred < DEFERRED;
                self.is_unused = is_unused;
                let is_back = self.reason == BudgetMove::AppLimited && self.is_far_below(&sample);
                // Twice in a row: a short stall is no change of workload.
                let is_another = self.seems_other_workload && self.workload_changed(&sample);
                // A trial is evaluated even if the budget was not used up. So is a startup step
                // that lost much.
                match self.coarse_search.is_trying() || self.started_too_far(&sample) {
                    false if is_unused => self.shrink_to_demand(&sample),
                    false if is_back || is_another => self.restart_startup(sample),
                    _ => self.evaluate_probe(sample),
                }
                self.probing_up = !self.probing_up;
                let finer = PROBE_AMPLITUDE * (COMMANDS / sample.commands).sqrt();
                self.probe_amplitude = (finer * self.amplitude_scale)
                    .clamp(MIN_PROBE_AMPLITUDE * self.amplitude_scale, PROBE_AMPLITUDE);
                to_interval(SETTLE * turnover)
            }
        }
    }

    /// Returns whether the data of one more command would only wait for the network.
    pub(super) fn network_is_busy(&self) -> bool {
        self.network_is_busy
    }

    /// Returns the ns without a completion after which commands in flight may hang: a multiple of
    /// the recent time in flight.
    pub(super) fn stall_timeout(&self) -> Nanos {
        to_interval(STALL_FACTOR * self.turnover)
    }

    /// Returns the ns for which the data in the network lasts.
    pub(super) fn network_queue_ns(&self) -> Nanos {
        whole(self.network_queue_ns)
    }

    /// Returns whether the hosts paused during this measurement, so that it is no sample of the
    /// budget. A second pause in a row is the normal behavior of the hosts.
    fn is_first_pause(&mut self, sample: &RateSample, elapsed: Nanos) -> bool {
        let is_lull = sample.deferred >= DEFERRED
            && sample.in_flight < PAUSE_USE * sample.budget
            && float(elapsed) > PAUSE * float(self.expected);
        let had_pause = std::mem::replace(&mut self.had_pause, is_lull);
        is_lull && !had_pause
    }

    /// Updates the preemption reserve with the bytes missed while cores were preempted.
    fn record_preemption(&mut self, sample: &RateSample) {
        self.beside_small = self.some_small;
        self.pace = sample.rate;
        self.network_queue_ns = (sample.network + sample.reserve_bytes) / sample.rate;
        let missed = if self.beside_small { 0.0 } else { sample.missed };
        self.preemption_reserve.update(sample.commands, missed, self.network_is_busy);
    }

    fn has_enough_to_send(&self, sample: &RateSample) -> bool {
        let devices = (sample.in_flight - sample.network).max(0.0) / self.command;
        (sample.network + sample.reserve_bytes) / self.command > devices.sqrt() + ENOUGH_TO_SEND
    }

    fn start_phase(&mut self, totals: Totals, now: Nanos) {
        self.from = totals;
        self.since = Some(now);
    }

    fn sample(&mut self, totals: &Totals, elapsed: f64) -> RateSample {
        let since = |of: fn(&Totals) -> u64| float(of(totals).wrapping_sub(of(&self.from)));
        let (bytes, commands) = (since(|t| t.bytes), since(|t| t.commands));
        let in_flight = since(|t| t.residence) * 1024.0 / elapsed;
        let network = since(|t| t.network) * 1024.0 / elapsed;
        let missed = since(|t| t.missed);
        // The reserve is in the network, and is not part of the sample.
        let budget = float(self.budget_without_hung());
        let reserve_bytes = self.reserve_bytes();
        let (budget, reserve_bytes) =
            (budget - reserve_bytes, (reserve_bytes / budget * in_flight).min(network));
        self.command = bytes / commands;
        self.least = self.command;
        self.some_small = since(|t| t.small) > SOME_SMALL * commands;
        let in_flight = (in_flight - reserve_bytes).max(1.0);
        // Missed bytes count at most at the rate of the last measurement.
        let rate = bytes / elapsed;
        RateSample {
            budget,
            in_flight,
            network: (network - reserve_bytes).min(in_flight),
            reserve_bytes,
            rate: rate.max((rate + missed / elapsed).min(self.pace)),
            commands,
            deferred: since(|t| t.deferred) / commands,
            missed: missed / self.command,
        }
    }

    /// Shrinks the budget of app-limited hosts to their demand, with some room for a burst. If even
    /// the demand is above the BDP estimate, the budget is reduced further.
    fn shrink_to_demand(&mut self, sample: &RateSample) {
        self.coarse_search.probe_amplitude();
        self.standing_queue_streak = 0;
        self.last = None;
        self.reason = BudgetMove::AppLimited;
        if self.bdp_estimate(sample) < sample.in_flight {
            // In startup nothing else is known. If too much is in flight, all of the excess may be
            // useless.
            let in_startup = std::mem::take(&mut self.in_startup);
            self.base = if in_startup { self.bdp_estimate(sample) } else { sample.in_flight };
        } else {
            self.base = self.base.min((1.25 * sample.in_flight).max(self.base / 1.2));
        }
        self.base = self.base.max(self.least);
    }

    /// Compares a measurement with the last one.
    fn evaluate_probe(&mut self, sample: RateSample) {
        if self.coarse_search.is_trying() {
            // The result of a trial is no sign of another machine.
            self.continue_coarse_search(sample);
            return;
        }
        let was_blind = self.coarse_search.is_noise_limited();
        // Without waiting commands the hosts decide the bytes in flight, so the measurement
        // contains no information about probes.
        if !self.in_startup && sample.deferred >= DEFERRED {
            self.coarse_search.observe(&sample, self.probing_up, self.ceiling.certainty());
        }
        if was_blind && !self.coarse_search.is_noise_limited() {
            self.last = None;
        }
        let Some(last) = self.last.replace(sample) else {
            if self.in_startup {
                self.base *= START;
            }
            return;
        };
        if !self.in_startup && (self.detect_speedup(&sample) || self.detect_standing_queue(&sample))
        {
            self.coarse_search.hold_again();
            return;
        }
        if self.coarse_search.is_noise_limited() {
            self.continue_coarse_search(sample);
            return;
        }
        let gap = (sample.in_flight / last.in_flight).ln();
        if gap.abs() < self.probe_amplitude / 2.0 || (gap > 0.0) != (sample.budget > last.budget) {
            if self.in_startup {
                self.continue_startup_unmeasured(&sample, &last);
                return;
            }
            if sample.budget < 2.0 * self.floor() {
                self.escape_minimum_grant(&sample);
            } else if last.slower_with_more(&sample, self.coarse_search.noise()) {
                self.lower(&sample, &last, true, false);
            }
            return;
        }
        // Relative to all bytes in flight.
        let gap = gap * sample.in_flight / sample.all_in_flight();
        let gain = (sample.rate / last.rate).ln();
        if self.in_startup {
            self.continue_startup(bounded(gain / gap), &sample, &last);
            return;
        }
        if gain / gap > START_GAIN {
            self.forget_stale_peak(&sample);
        }
        if self.detect_collapse(&sample) {
            return;
        }
        self.elasticity.add(gain, gap);
        self.set_width(last.differs_significantly(&sample));
        self.update_base(&sample, &last);
    }

    /// Continues the coarse search, where probes are inconclusive: see [`coarse_search`].
    fn continue_coarse_search(&mut self, sample: RateSample) {
        self.update_peak(&sample);
        match self.coarse_search.step(&sample, self.base, 2.0 * self.floor()) {
            SearchAction::Hold(base) => {
                self.base = base;
                if !self.coarse_search.is_noise_limited() {
                    self.last = None;
                }
            }
            SearchAction::Keep { upwards } => {
                self.peak = Some(sample);
                self.ceiling = InflightCeiling::none();
                self.set_base(
                    self.base,
                    if upwards { BudgetMove::MoreThroughput } else { BudgetMove::NoGain },
                );
            }
        }
    }

    /// Scales the probe amplitude: the more a budget off the optimum costs, the smaller the
    /// amplitude may be.
    fn set_width(&mut self, is_wide: bool) {
        let widest = if self.some_small { PROBE_AMPLITUDE_BESIDE_SMALL } else { 1.0 };
        self.amplitude_scale *= if is_wide { NARROWER } else { WIDER };
        self.amplitude_scale = self.amplitude_scale.clamp(NARROWEST, widest);
    }

    /// Narrows the probe amplitude below a steep ceiling. The ceiling decides there without probes,
    /// and each probe below an edge costs throughput.
    fn narrow_below_ceiling(&mut self) {
        if !self.some_small && self.ceiling.is_steep() {
            self.amplitude_scale = (self.amplitude_scale * NARROWER * NARROWER).max(NARROWEST);
        }
    }

    /// Moves the base budget if the evidence suffices.
    fn update_base(&mut self, sample: &RateSample, last: &RateSample) {
        let (target, clear) = match self.some_small {
            true => (TARGET_ELASTICITY_BESIDE_SMALL, CLEAR_BESIDE_SMALL),
            false => (TARGET_ELASTICITY, CLEAR),
        };
        let surplus = self.elasticity.mean() - target;
        let bdp_estimate = self.bdp_estimate(sample);
        let too_much = bdp_estimate < sample.in_flight;
        let is_overshoot = self.is_overshoot();
        let is_clear = surplus.abs() >= clear * self.elasticity.error();
        if is_clear && surplus < 0.0 && !too_much && !is_overshoot && self.reserve_bytes() > 0.0 {
            // The reserve hides a loss from a smaller budget.
            if self.elasticity.count >= PATIENCE {
                self.elasticity.forget();
            }
            return;
        }
        // Largest likely gain of the budget on half the way to the BDP estimate.
        let risk = (self.elasticity.mean() + self.elasticity.error())
            * (sample.in_flight / bdp_estimate).ln()
            / 2.0;
        let is_waste = too_much && surplus <= 0.0 && self.elasticity.count >= HASTE && risk <= RISK;
        let stall_timeout = if too_much { PATIENCE_DOWN } else { PATIENCE };
        if !is_clear && !is_waste && self.elasticity.count < stall_timeout {
            return;
        }
        if is_overshoot && !self.confirm_overshoot(sample, last) {
            self.elasticity.forget();
            self.last = None;
            return;
        }
        let upwards = if is_clear { surplus > 0.0 } else { !too_much };
        let step = if upwards == self.upwards { 1.5 * self.step } else { 0.5 * self.step };
        self.step = step.clamp(LEAST_STEP.min(self.probe_amplitude), MOST_STEP);
        if upwards {
            if too_much {
                self.step = self.step.min(CREEP);
            }
            self.raise(sample);
        } else {
            if !too_much && !is_overshoot {
                self.step = self.step.min(SINK);
            }
            let hidden = self.reserve_bytes() > 0.0 && !is_overshoot;
            let least = if hidden { bdp_estimate.min(self.base) } else { 0.0 };
            self.lower(sample, last, is_overshoot, risk <= JUMP_RISK);
            self.base = self.base.max(least);
        }
    }

    /// Moves to another base budget, without measurements there yet.
    fn set_base(&mut self, base: f64, reason: BudgetMove) {
        self.base = base.max(self.least);
        self.reason = reason;
        self.elasticity.forget();
        self.last = None;
    }

    /// Moves a base budget of about one command per core to the BDP estimate. A core with nothing
    /// in flight may always start one command, so this budget bounds nothing, and probes have no
    /// effect. The move requires a higher estimate and a network with too little data. Bytes in
    /// flight beyond that completed late, and are no evidence.
    fn escape_minimum_grant(&mut self, sample: &RateSample) {
        let is_floor =
            sample.in_flight > sample.budget && sample.in_flight < sample.budget + self.floor();
        let (bdp_estimate, highest) =
            (self.bdp_estimate(sample), self.ceiling.base(self.probe_amplitude));
        if !is_floor || self.network_is_busy {
            return;
        }
        if highest < bdp_estimate {
            self.ceiling.raise();
        }
        if bdp_estimate.min(highest) > self.base {
            self.set_base(bdp_estimate.min(highest), BudgetMove::MoreThroughput);
        }
    }

    /// Returns one command per core, in bytes.
    fn floor(&self) -> f64 {
        self.cores * self.command
    }

    /// Returns whether the BDP estimate is far above the budget.
    fn is_far_below(&self, sample: &RateSample) -> bool {
        FAR_BELOW * sample.budget < self.bdp_estimate(sample)
    }

    /// Returns the BDP estimate in bytes: bytes at the devices, a burst allowance for the scatter
    /// of their completions, and a few commands for unevenness.
    fn bdp_estimate(&self, sample: &RateSample) -> f64 {
        // Bytes in flight beyond this completed late, and were not in flight now.
        let in_flight = sample.in_flight.min(sample.budget + self.floor());
        let devices = (in_flight - sample.network).max(0.0) / self.command;
        let spare = if self.some_small { 0.0 } else { BURST_COMMANDS };
        (devices + BURST_ROOTS * devices.sqrt() + spare) * self.command
    }

    /// Raises the base budget: by a step, to the midpoint towards the BDP estimate if it gains
    /// much, or to the midpoint below the ceiling.
    fn raise(&mut self, sample: &RateSample) {
        self.reason = BudgetMove::MoreThroughput;
        self.overshot = false;
        self.upwards = true;
        let stepped = self.base * (1.0 + self.step);
        let halfway = (self.base * self.bdp_estimate(sample)).sqrt();
        let gains_much = self.elasticity.mean() > START_GAIN && self.ceiling.is_none();
        let wanted = if gains_much { stepped.max(halfway) } else { stepped };
        self.elasticity.forget();
        let highest = self.ceiling.base(self.probe_amplitude);
        if wanted <= highest {
            self.base = wanted;
            return;
        }
        self.base = self.base.max(f64::midpoint(self.base, highest));
        self.narrow_below_ceiling();
        self.ceiling.raise();
    }

    /// Lowers the base budget by a step. From above the BDP estimate it moves at least halfway
    /// there, if that is safe. After an overshoot it first returns to the side without overshoot,
    /// and moves halfway if that overshoots, too.
    fn lower(&mut self, sample: &RateSample, last: &RateSample, is_overshoot: bool, is_safe: bool) {
        self.reason = BudgetMove::NoGain;
        self.upwards = false;
        let stepped = self.base / (1.0 + self.step);
        let (less, more) =
            if sample.budget < last.budget { (sample, last) } else { (last, sample) };
        // In a collapse most data is in the network, so the BDP estimate is low.
        let side = if is_overshoot { less } else { sample };
        let bdp_estimate = self.bdp_estimate(side);
        let may_jump = side.in_flight > bdp_estimate && (is_overshoot || is_safe);
        let halfway = if may_jump { (self.base * bdp_estimate).sqrt() } else { self.base };
        if is_overshoot {
            let is_steep = (more.rate / less.rate).ln() < -LOSS;
            self.ceiling.set(less.budget, more.budget, is_steep, less.rate);
        }
        let again = std::mem::replace(&mut self.overshot, is_overshoot);
        self.base = if is_overshoot && !again {
            let harmless = less.budget.min(self.ceiling.base(self.probe_amplitude)).min(self.base);
            harmless.max(stepped)
        } else {
            stepped.min(halfway)
        };
        self.base = self.base.max(self.least);
        self.elasticity.forget();
        // The next measurement is certainly better; that must not count as a second overshoot.
        self.last = None;
    }
}

#[expect(clippy::cast_precision_loss, reason = "sums of which only ratios are used")]
fn float(value: u64) -> f64 {
    value as f64
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "positive and bounded")]
fn to_interval(nanos: f64) -> Nanos {
    nanos.min(LONGEST_PAUSE) as Nanos
}
