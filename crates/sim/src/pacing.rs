//! Pacers of the simulated target: the same crate, with the same setup, as in the daemon.
//!
//! The timer of io_pacing runs late. A core polls its timers only between rounds of other work,
//! every `timer` on the mean; [`UNEVEN`] of that varies exponentially. A tick happens at the first
//! poll after its period, the next period begins there, and each tick starts at most one command. A
//! core thus keeps, on the mean, the period
//!
//! ```text
//! seen(period) = timer x sum over n >= 0 of P(n polls take less than period)
//! ```
//!
//! (Wald's identity), never less than what was set. The policies of the daemon have no timer of
//! this kind.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nvmeof_pacing::{
    CommandOutcome, ConfigError, Cost, FlowConfig, FlowId, PacedMachine, Pacer, PacerConfig,
    Permit, PolicyConfig, PrototypeConfig, SharedPolicy, Waker,
};

use crate::numbers::{id, whole};
use crate::platform::Platform;
use crate::scenario::{Nanos, Pacing};

/// Pacing of the whole target.
#[derive(Debug)]
pub(crate) struct TargetPacing {
    shared: SharedPolicy,
    pacers: Vec<Pacer>,
    /// One bit per core that a shared policy has woken.
    woken: Arc<AtomicU64>,
    /// Bytes that opening a queue costs: 0, except with the io_pacing pool, which uses a buffer for
    /// it.
    connect: u32,
    /// Waiting commands are in a list that every turn walks.
    walked: bool,
}

/// Maximum number of cores of a machine: one bit each.
pub(crate) const MAX_CORES: usize = 64;

/// Data of a Connect command in bytes.
const CONNECT: u32 = 1024;

impl TargetPacing {
    /// Creates pacing for this number of cores (at most [`MAX_CORES`]).
    pub(crate) fn new(
        platform: &Platform,
        pacing: &Pacing,
        cores: usize,
        largest: u32,
    ) -> Result<Self, ConfigError> {
        let config = &match pacing {
            Pacing::EndlessCache => PolicyConfig::None,
            Pacing::Policy(PolicyConfig::Prototype(knobs)) => {
                PolicyConfig::Prototype(with_late_timers(*knobs, platform, cores))
            }
            Pacing::Policy(config) => config.clone(),
        };
        let pooled = matches!(config, PolicyConfig::Prototype(knobs) if knobs.pool.is_some());
        let walked = matches!(config, PolicyConfig::Prototype(_));
        let shared = SharedPolicy::new(config, PacedMachine { cores, largest })?;
        let woken = Arc::new(AtomicU64::new(0));
        let pacer = |core: usize| {
            let woken = Arc::clone(&woken);
            let waker: Waker = Arc::new(move || {
                woken.fetch_or(1 << core, Ordering::Relaxed);
            });
            shared.pacer(core, waker, PacerConfig::default())
        };
        let pacers = (0..cores).map(pacer).collect();
        Ok(Self { shared, pacers, woken, connect: if pooled { CONNECT } else { 0 }, walked })
    }

    /// Adds a queue of a core, with its device and its port.
    pub(crate) fn add_flow(&mut self, core: usize, weight: u16, device: u32, path: u16) -> FlowId {
        self.pacers[core].add_flow(FlowConfig { weight, device, network_port: path })
    }

    /// Queues a command; 0 bytes: one that only opens its queue. Returns false if it can never
    /// start.
    pub(crate) fn enqueue(&mut self, core: usize, flow: FlowId, bytes: u32, command: u32) -> bool {
        let bytes = if bytes == 0 { self.connect } else { bytes };
        self.pacers[core].enqueue(flow, Cost::data(bytes), u64::from(command)).is_ok()
    }

    /// Returns the next command of this core that may start.
    pub(crate) fn next(&mut self, core: usize, now: Nanos) -> Option<(u32, Permit)> {
        let (token, permit) = self.pacers[core].next(now)?;
        Some((u32::try_from(token).unwrap_or(u32::MAX), permit))
    }

    pub(crate) fn release(
        &mut self,
        core: usize,
        permit: Permit,
        run_result: CommandOutcome,
        now: Nanos,
    ) {
        self.pacers[core].release(permit, run_result, now);
    }

    /// Starts a turn, `after` ns after the last one began, or should have begun.
    pub(crate) fn on_turn(&mut self, core: usize, now: Nanos, after: Nanos) {
        self.pacers[core].on_turn(now, after);
    }

    pub(crate) fn next_wakeup(&self, core: usize) -> Option<Nanos> {
        self.pacers[core].next_wakeup()
    }

    /// Returns the number of waiting commands of this core.
    pub(crate) fn waiting(&self, core: usize) -> usize {
        self.pacers[core].waiting()
    }

    /// Returns the number of waiting commands of this core that a turn has to process.
    ///
    /// io_pacing walks its waiting commands. Flow queues do not: with `cargo run --release -p
    /// nvmeof-pacing --bench cost -- adaptive 40000 2048` a command takes as many instructions as
    /// with 64 waiting on each flow.
    pub(crate) fn walked(&self, core: usize) -> usize {
        if self.walked { self.waiting(core) } else { 0 }
    }

    /// Returns the cores woken since the last call, one bit each.
    pub(crate) fn woken(&self) -> u64 {
        self.woken.swap(0, Ordering::Relaxed)
    }

    /// Returns the budget in bytes and the period in ns, if the policy has them.
    pub(crate) fn stand(&self) -> (Option<u64>, Option<Nanos>) {
        let snapshot = self.shared.status();
        (snapshot.budget, snapshot.period)
    }
}

/// Fraction of the time between two polls of the timers that varies.
const UNEVEN: f64 = 0.15;
/// Polls in a period beyond which it is, on the mean, half a poll late.
const MANY_POLLS: f64 = 100.0;

/// Returns io_pacing with the period that its cores keep instead of the one that was set.
fn with_late_timers(
    mut knobs: PrototypeConfig,
    platform: &Platform,
    cores: usize,
) -> PrototypeConfig {
    if let Some(pacer) = &mut knobs.pacer {
        let cores = f64::from(id(cores.max(1)));
        let seen = seen_period(pacer.period as f64 * cores, platform.timer_us * 1000.0);
        pacer.period = whole(seen / cores);
    }
    knobs
}

/// Returns the period in ns that a core keeps on the mean: see the head of this module.
fn seen_period(period: f64, timer: f64) -> f64 {
    if period <= 0.0 || timer <= 0.0 {
        return period.max(0.0);
    }
    if period > MANY_POLLS * timer {
        return period + timer / 2.0;
    }
    let mut seen = 0.0;
    for polls in 0_u32.. {
        let left = period - f64::from(polls) * timer * (1.0 - UNEVEN);
        if left <= 0.0 {
            break;
        }
        seen += timer * sum_is_less(polls, left / (timer * UNEVEN));
    }
    seen.max(period)
}

/// Returns the probability that the sum of `number` exponential values of mean 1 is less than `x`.
fn sum_is_less(number: u32, x: f64) -> f64 {
    let mut term = (-x).exp();
    let mut more = 0.0;
    for k in 0..number {
        more += term;
        term *= x / f64::from(k + 1);
    }
    1.0 - more
}

#[cfg(test)]
mod tests {
    use nvmeof_random::SplitMix64;

    use super::{UNEVEN, seen_period};

    #[test]
    fn the_period_seen_is_that_of_polls_one_by_one() {
        let mut rng = SplitMix64::new(7);
        for (period, timer) in [(16e3, 13.1e3), (28e3, 13.1e3), (24e3, 1e3), (80e3, 13.1e3)] {
            let mut time = 0.0;
            for _ in 0..20_000 {
                let begun = time;
                while time - begun < period {
                    time += timer * (1.0 - UNEVEN + UNEVEN * rng.exponential());
                }
            }
            let (drawn, seen) = (time / 20_000.0, seen_period(period, timer));
            assert!((seen / drawn - 1.0).abs() < 0.01, "{period} {timer}: {drawn} drawn, {seen}");
        }
        assert!(seen_period(0.0, 1e3) <= 0.0);
        assert!((seen_period(1e9, 1e3) - 1e9).abs() < 1e3);
    }
}
