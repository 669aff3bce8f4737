//! A static pool of buffers with a cache on every core.

use std::sync::Arc;

use super::config::PrototypePool;
use crate::catalog::ConfigError;
use crate::sync::{AtomicU64, Ordering};

/// Buffers that no core holds.
#[derive(Debug)]
pub(super) struct SharedPool {
    free: AtomicU64,
    cache: u64,
}

impl SharedPool {
    pub(super) fn new(config: PrototypePool) -> Result<Arc<Self>, ConfigError> {
        let PrototypePool { buffers, cache } = config;
        if buffers == 0 {
            return Err(ConfigError::OutOfRange {
                what: "the pool of the prototype",
                value: 0,
                least: 1,
                most: u32::MAX.into(),
                unit: "buffers",
                advice: "leave the pool out for as many as there are commands",
            });
        }
        Ok(Arc::new(Self { free: AtomicU64::new(buffers.into()), cache: cache.into() }))
    }

    fn take(&self) -> bool {
        let taking = |free: u64| free.checked_sub(1);
        self.free.fetch_update(Ordering::AcqRel, Ordering::Acquire, taking).is_ok()
    }

    fn put(&self, buffers: u64) {
        self.free.fetch_add(buffers, Ordering::AcqRel);
    }
}

/// Cache of one core and the state of its waiting queue (the commands themselves wait in the flow
/// queues).
#[derive(Debug)]
pub(super) struct CorePool {
    shared: Arc<SharedPool>,
    cached: u64,
    /// A command of this core waits for a buffer. Until the queue is empty, no command of this core
    /// uses the cache or the pool, and only buffers released here serve it.
    waiting: bool,
    /// Buffers released while a command waited, and not taken yet.
    reserved: u64,
}

impl CorePool {
    /// Fills the cache from the pool, while buffers last.
    pub(super) fn new(shared: &Arc<SharedPool>) -> Self {
        let mut cached = 0;
        while cached < shared.cache && shared.take() {
            cached += 1;
        }
        Self { shared: Arc::clone(shared), cached, waiting: false, reserved: 0 }
    }

    /// Takes a buffer for the next command of this core; without one the command waits.
    pub(super) fn take(&mut self) -> bool {
        if self.waiting {
            let served = self.reserved > 0;
            self.reserved -= u64::from(served);
            return served;
        }
        if self.cached > 0 {
            self.cached -= 1;
            return true;
        }
        self.waiting = !self.shared.take();
        !self.waiting
    }

    /// Returns a buffer to the core's own waiting command, which then also tries the pool for the
    /// next in line. Otherwise the buffer goes to the cache, or else to the pool. No other core is
    /// notified.
    pub(super) fn put(&mut self) {
        if self.waiting {
            self.reserved += 1 + u64::from(self.shared.take());
        } else if self.cached < self.shared.cache {
            self.cached += 1;
        } else {
            self.shared.put(1);
        }
    }

    /// Ends the wait: nothing waits on this core.
    pub(super) fn return_unused(&mut self) {
        self.waiting = false;
        for _ in 0..std::mem::take(&mut self.reserved) {
            self.put();
        }
    }
}

impl Drop for CorePool {
    fn drop(&mut self) {
        self.shared.put(self.cached + self.reserved);
    }
}
