//! Tuner of the io_pacing period at run time, with one state for all cores.

use super::config::{PrototypePacer, PrototypeTuner};
use crate::Nanos;
use crate::catalog::ConfigError;
use crate::sync::{AtomicU64, Ordering};

/// Largest factor by which a tuner lengthens or shortens the period.
const MOST: u64 = 4;

/// Global period, and the values that it follows.
#[derive(Debug)]
pub(super) struct Tuner {
    /// Configured period.
    period: Nanos,
    rule: Option<PrototypeTuner>,
    /// Bytes in flight on all cores.
    in_flight: AtomicU64,
    /// State of [`PrototypeTuner::Bandwidth`].
    climb: Climb,
}

/// State of the hill climbing. The core that takes a step writes it, one core at a time.
#[derive(Debug)]
struct Climb {
    period: AtomicU64,
    /// Bytes of the completed I/Os.
    done: AtomicU64,
    /// Time of the last step, plus one; 0: never. The core that changes it takes the next step.
    stepped: AtomicU64,
    /// `done` at the last step.
    done_before: AtomicU64,
    /// Bytes per second over the interval before the last step.
    rate_before: AtomicU64,
    /// 1: steps lengthen the period.
    lengthens: AtomicU64,
}

impl Tuner {
    pub(super) fn new(config: &PrototypePacer) -> Result<Self, ConfigError> {
        check(config)?;
        let climb = Climb {
            period: AtomicU64::new(config.period),
            done: AtomicU64::new(0),
            stepped: AtomicU64::new(0),
            done_before: AtomicU64::new(0),
            rate_before: AtomicU64::new(0),
            lengthens: AtomicU64::new(0),
        };
        let in_flight = AtomicU64::new(0);
        Ok(Self { period: config.period, rule: config.tuner, in_flight, climb })
    }

    /// Returns the global period in force.
    pub(super) fn period(&self) -> Nanos {
        match self.rule {
            None => self.period,
            Some(PrototypeTuner::BytesInFlight { threshold }) => {
                let in_flight = self.in_flight.load(Ordering::Relaxed);
                let grown = u128::from(self.period) * u128::from(in_flight.max(threshold))
                    / u128::from(threshold);
                u64::try_from(grown).unwrap_or(u64::MAX).min(MOST * self.period)
            }
            Some(PrototypeTuner::Bandwidth { .. }) => self.climb.period.load(Ordering::Relaxed),
        }
    }

    /// Handles a tick of any core: takes a step if one is due.
    pub(super) fn tick(&self, now: Nanos) {
        if let Some(PrototypeTuner::Bandwidth { interval, step }) = self.rule {
            self.climb.tick(interval, step, self.period, now);
        }
    }

    pub(super) fn on_dispatch(&self, bytes: u32) {
        if self.rule.is_some() {
            self.in_flight.fetch_add(bytes.into(), Ordering::Relaxed);
        }
    }

    pub(super) fn over(&self, bytes: u32, ran: bool) {
        if self.rule.is_some() {
            self.in_flight.fetch_sub(bytes.into(), Ordering::Relaxed);
            if ran {
                self.climb.done.fetch_add(bytes.into(), Ordering::Relaxed);
            }
        }
    }
}

impl Climb {
    fn tick(&self, interval: Nanos, step: Nanos, set: Nanos, now: Nanos) {
        let stepped = self.stepped.load(Ordering::Acquire);
        let mark = now.saturating_add(1);
        // A clock that jumped back starts a new interval.
        let elapsed = mark.saturating_sub(stepped);
        if stepped != 0 && mark >= stepped && elapsed < interval {
            return;
        }
        let mine =
            self.stepped.compare_exchange(stepped, mark, Ordering::AcqRel, Ordering::Relaxed);
        if mine.is_err() {
            return;
        }
        let done = self.done.load(Ordering::Relaxed);
        let since = done.wrapping_sub(self.done_before.swap(done, Ordering::Relaxed));
        if stepped == 0 || elapsed == 0 {
            return;
        }
        let rate = u128::from(since) * 1_000_000_000 / u128::from(elapsed);
        let rate = u64::try_from(rate).unwrap_or(u64::MAX);
        let gained = rate > self.rate_before.swap(rate, Ordering::Relaxed);
        let lengthens = (self.lengthens.load(Ordering::Relaxed) == 1) == gained;
        self.lengthens.store(lengthens.into(), Ordering::Relaxed);
        let period = self.period.load(Ordering::Relaxed);
        let moved = match lengthens {
            true => period.saturating_add(step),
            false => period.saturating_sub(step),
        };
        let moved = moved.clamp((set / MOST).max(1), set.saturating_mul(MOST));
        self.period.store(moved, Ordering::Relaxed);
    }
}

fn check(config: &PrototypePacer) -> Result<(), ConfigError> {
    let (what, value, unit) = match config.tuner {
        None => return Ok(()),
        Some(_) if config.period == 0 => ("the period a tuner starts from", 0, "ns"),
        Some(PrototypeTuner::BytesInFlight { threshold }) => {
            ("the threshold of the tuner", threshold, "bytes")
        }
        Some(PrototypeTuner::Bandwidth { interval: 0, .. }) => {
            ("the interval of the tuner", 0, "ns")
        }
        Some(PrototypeTuner::Bandwidth { step, .. }) => ("the step of the tuner", step, "ns"),
    };
    if value > 0 {
        return Ok(());
    }
    let advice = "leave the tuner out for a period that stays as it is";
    Err(ConfigError::OutOfRange { what, value, least: 1, most: u64::MAX, unit, advice })
}
