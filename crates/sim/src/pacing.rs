//! The one place that makes pacers: the same crate, set up the same way, as in the daemon.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nvmeof_pacing::{
    ConfigError, Cost, FlowConfig, FlowId, Machine, Outcome, Pacer, PacerConfig, Permit,
    PolicyConfig, Shared, Waker,
};

use crate::scenario::{Nanos, Pacing};

/// Pacing of the whole target.
#[derive(Debug)]
pub(crate) struct Gates {
    shared: Shared,
    pacers: Vec<Pacer>,
    /// A bit for every core that a shared policy wants to have a turn.
    woken: Arc<AtomicU64>,
    /// Bytes that opening a queue costs: nothing, but the prototype's pool gives a buffer for it.
    connect: u32,
    /// What waits is in a list that every turn walks.
    walked: bool,
}

/// Most cores a machine may have: one bit each.
pub(crate) const MAX_CORES: usize = 64;

/// Data of a Connect command in bytes.
const CONNECT: u32 = 1024;

impl Gates {
    /// Pacing for so many cores (at most [`MAX_CORES`]).
    pub(crate) fn new(pacing: &Pacing, cores: usize, largest: u32) -> Result<Self, ConfigError> {
        let config = match pacing {
            Pacing::EndlessCache => &PolicyConfig::None,
            Pacing::Policy(config) => config,
        };
        let pooled = matches!(config, PolicyConfig::Prototype(knobs) if knobs.pool.is_some());
        let walked = matches!(config, PolicyConfig::Prototype(_));
        let shared = Shared::new(config, Machine { cores, largest })?;
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

    /// A queue of a core: what it uses, and the port it is behind.
    pub(crate) fn add_flow(&mut self, core: usize, weight: u16, device: u32, path: u16) -> FlowId {
        self.pacers[core].add_flow(FlowConfig { weight, device, path })
    }

    /// Lets a command wait; 0 bytes: one that only opens its queue. False if it can never start.
    pub(crate) fn enqueue(&mut self, core: usize, flow: FlowId, bytes: u32, command: u32) -> bool {
        let bytes = if bytes == 0 { self.connect } else { bytes };
        self.pacers[core].enqueue(flow, Cost::data(bytes), u64::from(command)).is_ok()
    }

    /// The next command of this core that may start.
    pub(crate) fn next(&mut self, core: usize, now: Nanos) -> Option<(u32, Permit)> {
        let (token, permit) = self.pacers[core].next(now)?;
        Some((u32::try_from(token).unwrap_or(u32::MAX), permit))
    }

    pub(crate) fn release(&mut self, core: usize, permit: Permit, outcome: Outcome, now: Nanos) {
        self.pacers[core].release(permit, outcome, now);
    }

    /// A turn begins, so long after the last began, or should have.
    pub(crate) fn turn(&mut self, core: usize, now: Nanos, after: Nanos) {
        self.pacers[core].turn(now, after);
    }

    pub(crate) fn next_wakeup(&self, core: usize) -> Option<Nanos> {
        self.pacers[core].next_wakeup()
    }

    /// Commands of this core that wait.
    pub(crate) fn waiting(&self, core: usize) -> usize {
        self.pacers[core].waiting()
    }

    /// Commands of this core that wait and that a turn works on all the same.
    ///
    /// The prototype goes through its waiting commands. In lanes nobody looks at one before its time:
    /// `cargo run --release -p nvmeof-pacing --example cost -- adaptive 40000 2048` takes as many
    /// instructions a command as with 64 waiting on each flow.
    pub(crate) fn walked(&self, core: usize) -> usize {
        if self.walked { self.waiting(core) } else { 0 }
    }

    /// Cores that were woken since the last call, a bit each.
    pub(crate) fn woken(&self) -> u64 {
        self.woken.swap(0, Ordering::Relaxed)
    }

    /// Budget in bytes and period in ns, where the policy has them.
    pub(crate) fn stand(&self) -> (Option<u64>, Option<Nanos>) {
        let snapshot = self.shared.snapshot();
        (snapshot.budget, snapshot.period)
    }
}
