//! The one place that makes pacers: the same crate, set up the same way, as in the daemon.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nvmeof_pacing::{
    ConfigError, Cost, FlowConfig, FlowId, Machine, Outcome, Pacer, PacerConfig, Permit,
    PolicyConfig, Shared, Waker,
};

use crate::pool::Pool;
use crate::scenario::{Nanos, Pacing};

/// Pacing of the whole target.
#[derive(Debug)]
pub(crate) struct Gates {
    kind: GateKind,
    /// A bit for every core that a shared policy wants to have a turn.
    woken: Arc<AtomicU64>,
}

#[derive(Debug)]
enum GateKind {
    Pacers { shared: Shared, pacers: Vec<Pacer> },
    Pool(Pool),
}

/// Whose command it is, for pacing.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Flow {
    Paced(FlowId),
    Pooled,
}

/// The right of one command to be in flight.
#[derive(Debug)]
pub(crate) enum Pass {
    Permit(Permit),
    Buffer,
}

/// Most cores a machine may have: one bit each.
pub(crate) const MAX_CORES: usize = 64;

impl Gates {
    /// Pacing for so many cores (at most [`MAX_CORES`]).
    pub(crate) fn new(pacing: &Pacing, cores: usize, largest: u32) -> Result<Self, ConfigError> {
        let woken = Arc::new(AtomicU64::new(0));
        let config = match pacing {
            Pacing::EndlessCache => &PolicyConfig::None,
            Pacing::Policy(config) => config,
        };
        if let PolicyConfig::Prototype(prototype) = config
            && let Some(pool) = prototype.pool
        {
            return Ok(Self { kind: GateKind::Pool(Pool::new(pool, cores)), woken });
        }
        let shared = Shared::new(config, Machine { cores, largest })?;
        let pacer = |core: usize| {
            let woken = Arc::clone(&woken);
            let waker: Waker = Arc::new(move || {
                woken.fetch_or(1 << core, Ordering::Relaxed);
            });
            shared.pacer(core, waker, PacerConfig::default())
        };
        let pacers = (0..cores).map(pacer).collect();
        Ok(Self { kind: GateKind::Pacers { shared, pacers }, woken })
    }

    pub(crate) fn add_flow(&mut self, core: usize, weight: u16, device: u32) -> Flow {
        match &mut self.kind {
            GateKind::Pacers { pacers, .. } => {
                Flow::Paced(pacers[core].add_flow(FlowConfig { weight, device }))
            }
            GateKind::Pool(_) => Flow::Pooled,
        }
    }

    /// Lets a command wait; 0 bytes: one that only opens its queue. False if it can never start.
    pub(crate) fn enqueue(&mut self, core: usize, flow: Flow, bytes: u32, command: u32) -> bool {
        match (&mut self.kind, flow) {
            (GateKind::Pacers { pacers, .. }, Flow::Paced(flow)) => {
                pacers[core].enqueue(flow, Cost::data(bytes), u64::from(command)).is_ok()
            }
            (GateKind::Pool(pool), _) => {
                pool.enqueue(core, command);
                true
            }
            (GateKind::Pacers { .. }, Flow::Pooled) => false,
        }
    }

    /// The next command of this core that may start.
    pub(crate) fn next(&mut self, core: usize, now: Nanos) -> Option<(u32, Pass)> {
        match &mut self.kind {
            GateKind::Pacers { pacers, .. } => {
                let (token, permit) = pacers[core].next(now)?;
                Some((u32::try_from(token).unwrap_or(u32::MAX), Pass::Permit(permit)))
            }
            GateKind::Pool(pool) => pool.next(core).map(|command| (command, Pass::Buffer)),
        }
    }

    pub(crate) fn landed(pass: &mut Pass, now: Nanos) {
        if let Pass::Permit(permit) = pass {
            permit.landed(now);
        }
    }

    pub(crate) fn release(&mut self, core: usize, pass: Pass, outcome: Outcome, now: Nanos) {
        match (&mut self.kind, pass) {
            (GateKind::Pacers { pacers, .. }, Pass::Permit(permit)) => {
                pacers[core].release(permit, outcome, now);
            }
            (GateKind::Pool(pool), _) => pool.release(core),
            (GateKind::Pacers { .. }, Pass::Buffer) => {}
        }
    }

    pub(crate) fn next_wakeup(&self, core: usize) -> Option<Nanos> {
        match &self.kind {
            GateKind::Pacers { pacers, .. } => pacers[core].next_wakeup(),
            GateKind::Pool(_) => None,
        }
    }

    /// Commands of this core that wait.
    pub(crate) fn waiting(&self, core: usize) -> usize {
        match &self.kind {
            GateKind::Pacers { pacers, .. } => pacers[core].waiting(),
            GateKind::Pool(pool) => pool.waiting(core),
        }
    }

    /// Cores that were woken since the last call, a bit each.
    pub(crate) fn woken(&self) -> u64 {
        self.woken.swap(0, Ordering::Relaxed)
    }

    /// Budget in bytes and period in ns, where the policy has them.
    pub(crate) fn stand(&self) -> (Option<u64>, Option<Nanos>) {
        match &self.kind {
            GateKind::Pacers { shared, .. } => {
                let snapshot = shared.snapshot();
                (snapshot.budget, snapshot.period)
            }
            GateKind::Pool(_) => (None, None),
        }
    }
}
