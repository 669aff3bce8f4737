//! Model of the Mellanox SPDK io_pacing prototype: a static pool with per-core caches, and a pacer
//! by periods.
//!
//! It serves comparisons on the simulated machine and on real ones, with its original parameters
//! and faults. It is therefore exempt from the rules of the other policies: a core may starve or
//! hang because another core holds the buffers.
//!
//! ```text
//! arrival ─▶ [ pacer: queue per drive, credit per tick ] ─▶ [ pool: queue per core ] ─▶ start
//! ```
//!
//! Both stages are one policy rather than a chain. The pool must distinguish commands that wait for
//! a buffer from those that wait for the pacer. Only the first kind blocks later ones from the
//! pool.

mod config;
mod pacer;
mod pool;
mod tuner;

use std::sync::Arc;

use super::{Admission, AdmissionPolicy, AdmissionRequest, AnyPolicy, CompletedCommand, Grant};
use crate::catalog::{ConfigError, PacedMachine};
use crate::{DeficitRoundRobin, Nanos, PacerParts, SmallCommandRule};
pub use config::{PrototypeConfig, PrototypePacer, PrototypePool, PrototypeTuner};
use pacer::{CorePacer, PacerDecision, SharedPacer};
use pool::{CorePool, SharedPool};

/// State of io_pacing that the cores share.
#[derive(Debug)]
pub struct SharedIoPacing {
    pool: Option<Arc<SharedPool>>,
    pacer: Option<Arc<SharedPacer>>,
}

impl SharedIoPacing {
    /// Creates the state for `machine` with these parameters.
    ///
    /// # Errors
    /// [`ConfigError`] if a parameter has an invalid value.
    pub(crate) fn new(
        config: &PrototypeConfig,
        machine: PacedMachine,
    ) -> Result<Self, ConfigError> {
        Ok(Self {
            pool: config.pool.map(SharedPool::new).transpose()?,
            pacer: config.pacer.map(|pacer| SharedPacer::new(pacer, machine.cores)).transpose()?,
        })
    }

    /// Makes the policy and scheduler of one core. Its cache is filled from the pool now, while
    /// buffers last.
    #[must_use]
    pub(crate) fn parts(&self) -> PacerParts {
        let small = match &self.pacer {
            Some(pacer) => SmallCommandRule::Below(pacer.bypass_below()),
            // The pool has one waiting queue per core, in order of arrival. The commands that
            // bypass all flow queues have this order.
            None if self.pool.is_some() => SmallCommandRule::Below(u32::MAX),
            None => SmallCommandRule::Never,
        };
        let policy = IoPacing {
            pool: self.pool.as_ref().map(CorePool::new),
            pacer: self.pacer.as_ref().map(CorePacer::new),
        };
        PacerParts {
            policies: vec![AnyPolicy::Custom(Box::new(policy))],
            scheduler: DeficitRoundRobin::default().into(),
            small,
        }
    }

    /// Returns the current nanoseconds between ticks on the whole target, if there is a pacer.
    #[must_use]
    pub(crate) fn period(&self) -> Option<Nanos> {
        self.pacer.as_ref().map(|pacer| pacer.period())
    }
}

/// Policy of one core.
#[derive(Debug)]
struct IoPacing {
    pool: Option<CorePool>,
    pacer: Option<CorePacer>,
}

impl AdmissionPolicy for IoPacing {
    fn admit(&mut self, request: &AdmissionRequest, now: Nanos) -> Admission {
        if let Some(pacer) = &mut self.pacer {
            match pacer.admit(request, now) {
                PacerDecision::Passes => {}
                PacerDecision::Waits(refusal) => return refusal,
            }
        }
        if let Some(pool) = &mut self.pool
            && !pool.take()
        {
            if let Some(pacer) = &mut self.pacer {
                pacer.wait_behind(request);
            }
            return Admission::WaitForRelease;
        }
        Admission::Granted(Grant::default())
    }

    fn release(&mut self, done: &CompletedCommand, _grant: Grant, _now: Nanos) {
        if let Some(pool) = &mut self.pool {
            pool.put();
        }
        if let Some(pacer) = &mut self.pacer {
            pacer.release(done);
        }
    }

    fn return_unused(&mut self) {
        if let Some(pool) = &mut self.pool {
            pool.return_unused();
        }
        if let Some(pacer) = &mut self.pacer {
            pacer.return_unused();
        }
    }
}

#[cfg(test)]
mod tests;
