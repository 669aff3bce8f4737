//! Pacer by periods: a timer on every core that grants credit.

use std::sync::Arc;

use super::super::{Admission, AdmissionRequest, CompletedCommand};
use super::config::PrototypePacer;
use super::tuner::Tuner;
use crate::Nanos;
use crate::catalog::ConfigError;
use crate::permit::CommandOutcome;
use crate::sync::{AtomicU64, Ordering};

/// Number of drives that are distinguished; drives with equal numbers modulo this count as one.
const DRIVES: usize = 1024;

/// Longest global period: four times this, times the cores, is still a valid time.
const LONGEST: Nanos = 3_600_000_000_000;

/// State that the cores share.
#[derive(Debug)]
pub(super) struct SharedPacer {
    config: PrototypePacer,
    cores: u64,
    tuner: Tuner,
    /// I/Os in flight on each drive; empty without a limit.
    drives: Box<[AtomicU64]>,
}

impl SharedPacer {
    pub(super) fn new(config: PrototypePacer, cores: usize) -> Result<Arc<Self>, ConfigError> {
        check(&config)?;
        let drives = if config.drive_limit.is_some() { DRIVES } else { 0 };
        Ok(Arc::new(Self {
            config,
            cores: u64::try_from(cores.max(1)).unwrap_or(u64::MAX),
            tuner: Tuner::new(&config)?,
            drives: (0..drives).map(|_| AtomicU64::new(0)).collect(),
        }))
    }

    pub(super) fn bypass_below(&self) -> u32 {
        self.config.bypass_below
    }

    /// Returns the global period in force, in ns.
    pub(super) fn period(&self) -> Nanos {
        self.tuner.period()
    }
}

/// Timer of one core.
#[derive(Debug)]
pub(super) struct CorePacer {
    shared: Arc<SharedPacer>,
    /// Bytes that may start before the next tick. An I/O may overdraw it; later ticks pay for that,
    /// but do not accumulate.
    credit: i64,
    /// `None` before the first command.
    next_tick: Option<Nanos>,
    /// Without a period: the poll that the credit was for has ended.
    poll_over: bool,
    /// A command that passed here waits for a buffer. The timer of io_pacing continues to pass
    /// commands to that queue, so the credit of later ticks accumulates.
    blocked: bool,
    /// This core's I/Os in flight on each drive; empty without a limit.
    mine: Box<[u64]>,
}

/// Decision about a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PacerDecision {
    Passes,
    Waits(Admission),
}

impl CorePacer {
    pub(super) fn new(shared: &Arc<SharedPacer>) -> Self {
        Self {
            shared: Arc::clone(shared),
            credit: 0,
            next_tick: None,
            poll_over: true,
            blocked: false,
            mine: vec![0; shared.drives.len()].into(),
        }
    }

    pub(super) fn admit(&mut self, request: &AdmissionRequest, now: Nanos) -> PacerDecision {
        if request.cost.bytes >= self.shared.config.bypass_below {
            if !self.drive_takes_one(request.device) {
                return PacerDecision::Waits(Admission::DeviceBusy);
            }
            self.tick(now);
            if self.credit <= 0 {
                self.blocked = false;
                self.poll_over = true;
                return PacerDecision::Waits(Admission::WaitUntil(self.next_tick.unwrap_or(now)));
            }
            self.credit -= i64::from(request.cost.bytes);
        }
        self.shared.tuner.on_dispatch(request.cost.bytes);
        self.count_drive(request.device, true);
        PacerDecision::Passes
    }

    /// Undoes the last pass: the command has to wait for a buffer, and is asked for again.
    pub(super) fn wait_behind(&mut self, request: &AdmissionRequest) {
        self.blocked = true;
        self.take_back(request.cost.bytes, request.device, false);
        self.refund(request.cost.bytes);
    }

    pub(super) fn release(&mut self, done: &CompletedCommand) {
        let ran = done.outcome != CommandOutcome::Cancelled;
        self.take_back(done.cost.bytes, done.device, ran);
        if !ran {
            self.refund(done.cost.bytes);
        }
    }

    pub(super) fn return_unused(&mut self) {
        self.blocked = false;
        self.poll_over = true;
        self.credit = self.credit.min(i64::from(self.shared.config.credit));
    }

    fn refund(&mut self, bytes: u32) {
        if bytes >= self.shared.config.bypass_below {
            self.credit += i64::from(bytes);
        }
    }

    fn take_back(&mut self, bytes: u32, device: u32, ran: bool) {
        self.shared.tuner.over(bytes, ran);
        self.count_drive(device, false);
    }

    /// Grants the credit of all ticks until now. Missed ticks are lost, but keep their grid.
    fn tick(&mut self, now: Nanos) {
        let tuner = &self.shared.tuner;
        tuner.tick(now);
        let period = tuner.period() * self.shared.cores;
        if period == 0 {
            if std::mem::take(&mut self.poll_over) {
                self.grant(1);
            }
            // The next poll, at any time.
            self.next_tick = Some(now.saturating_add(1));
            return;
        }
        // A tick more than one period ahead: the clock jumped back, or the tuner shortened the
        // period.
        let next = self.next_tick.unwrap_or(now).min(now.saturating_add(period));
        self.next_tick = Some(next);
        if now >= next {
            let ticks = (now - next) / period + 1;
            self.grant(ticks);
            self.next_tick = Some(next.saturating_add(ticks.saturating_mul(period)));
        }
    }

    fn grant(&mut self, ticks: u64) {
        let most = i64::from(self.shared.config.credit);
        let ticks = i64::try_from(ticks).unwrap_or(i64::MAX);
        // Of several missed ticks only the last counts.
        let granted = if self.blocked { ticks.saturating_mul(most) } else { most };
        self.credit = self.credit.saturating_add(granted);
        if !self.blocked {
            self.credit = self.credit.min(most);
        }
    }

    /// Returns whether the drive is below its limit. A core without an I/O on it may always start
    /// one, because it would not notice a release on another core. The limit is thus exceeded by at
    /// most one per core.
    fn drive_takes_one(&self, device: u32) -> bool {
        let Some(limit) = self.shared.config.drive_limit else { return true };
        let at = slot(device);
        self.mine[at] == 0 || self.shared.drives[at].load(Ordering::Relaxed) < u64::from(limit)
    }

    fn count_drive(&mut self, device: u32, starts: bool) {
        if self.mine.is_empty() {
            return;
        }
        let at = slot(device);
        if starts {
            self.mine[at] += 1;
            self.shared.drives[at].fetch_add(1, Ordering::Relaxed);
        } else {
            self.mine[at] -= 1;
            self.shared.drives[at].fetch_sub(1, Ordering::Relaxed);
        }
    }
}

fn slot(device: u32) -> usize {
    usize::try_from(device).unwrap_or(0) % DRIVES
}

fn check(config: &PrototypePacer) -> Result<(), ConfigError> {
    let at_least_one = |what, value: u32, unit, advice| {
        let most = u32::MAX.into();
        let error = ConfigError::OutOfRange { what, value: 0, least: 1, most, unit, advice };
        if value == 0 { Err(error) } else { Ok(()) }
    };
    let advice = "a tick that grants nothing starts nothing; the prototype granted one I/O's bytes";
    at_least_one("the credit of a tick", config.credit, "bytes", advice)?;
    if let Some(limit) = config.drive_limit {
        let advice = "leave the limit out for any number";
        at_least_one("the limit of a drive", limit, "I/Os in flight", advice)?;
    }
    if config.period > LONGEST {
        return Err(ConfigError::OutOfRange {
            what: "the period of the prototype",
            value: config.period,
            least: 0,
            most: LONGEST,
            unit: "ns",
            advice: "it is the time from one I/O to the next on the whole target, some microseconds",
        });
    }
    Ok(())
}
