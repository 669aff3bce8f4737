//! The measured prototype: a static pool with per-core caches, and a pacer by periods.
//!
//! It is here to be compared with, on the simulated machine and on the real one, with its knobs and
//! its faults as they were. So it is exempt from the rules the other policies keep: a core may
//! starve or hang for want of a buffer that another core holds.
//!
//! ```text
//! arrival ─▶ [ pacer: a queue a drive, in turn; a tick's credit ] ─▶ [ pool: one queue a core ] ─▶ start
//! ```
//!
//! Both stages are one policy rather than a chain: the pool must know whether a command waits for
//! a buffer or only for the pacer, since the first kind keeps later ones from the pool.

mod pacer;
mod pool;
mod tuner;

use std::sync::Arc;

use super::{Admission, Ask, Done, Grant, Policy};
use crate::config::PrototypeConfig;
use crate::setup::{ConfigError, Machine};
use crate::{Nanos, Parts, RoundRobin, SmallRule};
use pacer::{CorePacer, SharedPacer, Verdict};
use pool::{CorePool, SharedPool};

/// What the cores of the prototype share.
#[derive(Debug)]
pub struct SharedPrototype {
    pool: Option<Arc<SharedPool>>,
    pacer: Option<Arc<SharedPacer>>,
}

impl SharedPrototype {
    /// What `machine` shares with these knobs.
    ///
    /// # Errors
    /// [`ConfigError`] if a knob is at a value that means nothing.
    pub(crate) fn new(config: &PrototypeConfig, machine: Machine) -> Result<Self, ConfigError> {
        Ok(Self {
            pool: config.pool.map(SharedPool::new).transpose()?,
            pacer: config.pacer.map(|pacer| SharedPacer::new(pacer, machine.cores)).transpose()?,
        })
    }

    /// What decides on one core. Its cache is filled from the pool now, as far as that goes.
    #[must_use]
    pub(crate) fn parts(&self) -> Parts {
        let small = match &self.pacer {
            Some(pacer) => SmallRule::Below(pacer.bypass_below()),
            // The pool's waiting queue is one a core, in the order of arrival, which is that of
            // the commands that pass all lanes.
            None if self.pool.is_some() => SmallRule::Below(u32::MAX),
            None => SmallRule::Never,
        };
        let policy = Prototype {
            pool: self.pool.as_ref().map(CorePool::new),
            pacer: self.pacer.as_ref().map(CorePacer::new),
        };
        Parts { policies: vec![Box::new(policy)], order: Box::new(RoundRobin::default()), small }
    }

    /// Nanoseconds from tick to tick on the whole target now, if there is a pacer.
    #[must_use]
    pub(crate) fn period(&self) -> Option<Nanos> {
        self.pacer.as_ref().map(|pacer| pacer.period())
    }
}

/// One core's end of a [`SharedPrototype`].
#[derive(Debug)]
struct Prototype {
    pool: Option<CorePool>,
    pacer: Option<CorePacer>,
}

impl Policy for Prototype {
    fn admit(&mut self, ask: &Ask, now: Nanos) -> Admission {
        if let Some(pacer) = &mut self.pacer {
            match pacer.admit(ask, now) {
                Verdict::Passes => {}
                Verdict::Waits(refusal) => return refusal,
            }
        }
        if let Some(pool) = &mut self.pool
            && !pool.take()
        {
            if let Some(pacer) = &mut self.pacer {
                pacer.wait_behind(ask);
            }
            return Admission::AfterRelease;
        }
        Admission::Granted(Grant::default())
    }

    fn release(&mut self, done: &Done, _grant: Grant, _now: Nanos) {
        if let Some(pool) = &mut self.pool {
            pool.put();
        }
        if let Some(pacer) = &mut self.pacer {
            pacer.release(done);
        }
    }

    fn rest(&mut self) {
        if let Some(pool) = &mut self.pool {
            pool.rest();
        }
        if let Some(pacer) = &mut self.pacer {
            pacer.rest();
        }
    }
}

#[cfg(test)]
mod tests;
