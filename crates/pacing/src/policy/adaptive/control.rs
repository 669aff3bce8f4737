//! What the budget should be: pure arithmetic over sums, no clock, no sharing.

use crate::Nanos;

/// Sums over all cores since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Totals {
    /// Commands over.
    pub(super) commands: u64,
    /// Their bytes.
    pub(super) bytes: u64,
    /// Their bytes times ns in flight, over 2^10.
    pub(super) residence: u64,
    /// Their bytes times ns from landed to gone, over 2^10.
    pub(super) drain: u64,
    /// Times a command was told to wait.
    pub(super) refused: u64,
}

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

/// Moves the budget. See the module of the policy for the why.
#[derive(Debug)]
pub(super) struct Controller {
    /// The budget between trials, in bytes.
    base: f64,
    least: f64,
    phase: Phase,
    /// Totals and time at the start of the measurement.
    from: Totals,
    since: Nanos,
    /// The last measurement.
    last: Option<Measured>,
    /// Elasticities seen since the last move.
    sum: f64,
    count: u32,
    reason: Move,
    high: bool,
    starting: bool,
}

#[derive(Debug, Clone, Copy)]
enum Phase {
    Idle,
    Settle,
    Measure,
}

#[derive(Debug, Clone, Copy)]
struct Measured {
    budget: f64,
    rate: f64,
}

/// What a trial adds and takes away.
const SWING: f64 = 0.10;
const SETTLE: f64 = 2.0;
const MEASURE: f64 = 14.0;
const TARGET: f64 = 0.05;

impl Controller {
    pub(super) fn new(cores: usize, largest: u32) -> Self {
        let least = f64::from(largest.max(1));
        Self {
            base: least * f64::from(u32::try_from(cores.max(1)).unwrap_or(1)),
            least,
            phase: Phase::Idle,
            from: Totals::default(),
            since: 0,
            last: None,
            sum: 0.0,
            count: 0,
            reason: Move::Start,
            high: true,
            starting: true,
        }
    }

    pub(super) fn budget(&self) -> u64 {
        let swing = if self.starting {
            0.0
        } else if self.high {
            SWING
        } else {
            -SWING
        };
        (self.base * (1.0 + swing)).max(self.least) as u64
    }

    pub(super) fn last_move(&self) -> Move {
        self.reason
    }

    /// Looks at the sums; yields in how many ns to look again.
    pub(super) fn look(&mut self, totals: Totals, now: Nanos) -> Nanos {
        let elapsed = now.saturating_sub(self.since) as f64;
        let bytes = (totals.bytes - self.from.bytes) as f64;
        let rate = bytes / elapsed.max(1.0);
        let in_flight = (totals.residence - self.from.residence) as f64 * 1024.0 / elapsed.max(1.0);
        self.from = totals;
        self.since = now;
        match self.phase {
            Phase::Idle => {
                self.phase = Phase::Settle;
                return 100_000;
            }
            Phase::Settle => {
                self.phase = Phase::Measure;
                return (MEASURE * self.budget() as f64 / rate.max(1e-9)).min(1e9) as Nanos;
            }
            Phase::Measure => {}
        }
        let budget = self.budget() as f64;
        let now_measured = Measured { budget, rate };
        if in_flight < 0.85 * budget {
            self.reason = Move::Idle;
            self.last = None;
            self.starting = false;
        } else {
            self.judge(now_measured);
            self.last = Some(now_measured);
            if self.starting {
                // doubles
            }
        }
        self.high = !self.high;
        self.phase = Phase::Settle;
        (SETTLE * self.budget() as f64 / rate.max(1e-9)).min(1e9) as Nanos
    }

    fn judge(&mut self, m: Measured) {
        let Some(last) = self.last else {
            if self.starting {
                self.base *= 2.0;
            }
            return;
        };
        let e = ((m.rate / last.rate).ln() / (m.budget / last.budget).ln()).clamp(-1.5, 1.5);
        if self.starting {
            if e > 0.3 {
                self.base *= 2.0;
                self.reason = Move::Gained;
            } else {
                self.starting = false;
            }
            return;
        }
        self.sum += e;
        self.count += 1;
        let mean = self.sum / f64::from(self.count);
        let n = f64::from(self.count);
        let surplus = mean - TARGET;
        if surplus.abs() > 0.15 / n.sqrt() || self.count >= 16 {
            let step = (0.4 * surplus).clamp(-0.2, 0.25);
            self.base = (self.base * step.exp()).max(self.least);
            self.reason = if step > 0.0 { Move::Gained } else { Move::Wasted };
            self.sum = 0.0;
            self.count = 0;
        }
    }
}
