//! Pacers of the simulated target: the same crate, with the same setup, as in the daemon.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nvmeof_pacing::{
    CommandOutcome, ConfigError, Cost, FlowConfig, FlowId, PacedMachine, Pacer, PacerConfig,
    Permit, PolicyConfig, SharedPolicy, Waker,
};

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
    pub(crate) fn new(pacing: &Pacing, cores: usize, largest: u32) -> Result<Self, ConfigError> {
        let config = match pacing {
            Pacing::EndlessCache => &PolicyConfig::None,
            Pacing::Policy(config) => config,
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
