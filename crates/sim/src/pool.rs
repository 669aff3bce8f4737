//! The prototype's static pool: a count of buffers for all, and a cache of them on every core.
//!
//! A command that finds neither a cached nor a pooled buffer waits on its core, in order of
//! arrival, and only a release on that very core serves those who wait. A core without anybody waiting
//! keeps what is released up to twice its cache, then returns one cache's worth to the pool.

use std::collections::VecDeque;

use nvmeof_pacing::PrototypePool;

/// The pool and its cores' caches.
#[derive(Debug)]
pub(crate) struct Pool {
    free: u32,
    cache: u32,
    cores: Vec<Core>,
}

#[derive(Debug, Clone, Default)]
struct Core {
    cached: u32,
    /// Came, and have not tried for a buffer yet.
    arrived: VecDeque<u32>,
    /// Tried in vain.
    waiting: VecDeque<u32>,
    /// Released to those who wait and not taken yet.
    handed: u32,
}

impl Pool {
    pub(crate) fn new(config: PrototypePool, cores: usize) -> Self {
        let mut free = config.buffers;
        let core = |_| {
            let cached = config.cache.min(free);
            free -= cached;
            Core { cached, ..Core::default() }
        };
        let cores = (0..cores).map(core).collect();
        Self { free, cache: config.cache, cores }
    }

    pub(crate) fn enqueue(&mut self, core: usize, command: u32) {
        self.cores[core].arrived.push_back(command);
    }

    pub(crate) fn next(&mut self, core: usize) -> Option<u32> {
        let core = &mut self.cores[core];
        if core.handed > 0
            && let Some(command) = core.waiting.pop_front()
        {
            core.handed -= 1;
            return Some(command);
        }
        while let Some(command) = core.arrived.pop_front() {
            if core.cached == 0 {
                let batch = self.cache.clamp(1, 32).min(self.free);
                self.free -= batch;
                core.cached += batch;
            }
            if core.cached > 0 {
                core.cached -= 1;
                return Some(command);
            }
            core.waiting.push_back(command);
        }
        None
    }

    pub(crate) fn release(&mut self, core: usize) {
        let core = &mut self.cores[core];
        if core.waiting.len() > core.handed as usize {
            core.handed += 1;
            return;
        }
        core.cached += 1;
        let batch = self.cache.clamp(1, 32);
        if self.cache == 0 || core.cached >= self.cache + batch {
            let back = batch.min(core.cached);
            core.cached -= back;
            self.free += back;
        }
    }

    pub(crate) fn waiting(&self, core: usize) -> usize {
        self.cores[core].waiting.len() + self.cores[core].arrived.len()
    }
}
