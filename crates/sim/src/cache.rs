//! The last-level cache, as DMA sees it, and the buffers that live in it.
//!
//! Devices write data into the share of the cache that DMA may use. A line that is still in the
//! cache is written in place; any other needs a new line, and that pushes an old one out to
//! memory. So what decides whether a line is still there is not the time since it was last touched
//! but how many *new* lines were needed since then, `x`, in bytes:
//!
//! ```text
//! S(x) = best                                             x <= C
//! S(x) = best - (best - floor) (1 - exp(-(x - C) / s))    x >  C
//! ```
//!
//! `C` is the size of the share, `s` how gradually replacement strikes (0: strict
//! least-recently-used order), `floor` what survives in ways that DMA never takes. From the one
//! curve follow, without more numbers: a pool of buffers no larger than the cache stays in it
//! whatever the depth; a pool a little larger loses lines in a vicious circle (what is lost must be
//! taken anew, and pushes out more); buffers used again while warm (last in, first out) behave like a
//! small pool; data that waits long (for a slow port, or for a delay device) is lost first.
//!
//! A buffer is followed as a whole: `touched` is the count of new lines when it was last used.

use std::collections::VecDeque;

use crate::numbers::MIB;
use crate::platform::Platform;

/// The cache and the buffers' places in it.
#[derive(Debug)]
pub(crate) struct Cache {
    best: f64,
    floor: f64,
    share: f64,
    spread: f64,
    endless: bool,
    /// Bytes of new lines taken since the start.
    taken: f64,
    /// By buffer: `taken` when it was last used.
    touched: Vec<f64>,
}

impl Cache {
    pub(crate) fn new(platform: &Platform, buffers: usize, endless: bool) -> Self {
        Self {
            best: platform.cache_best,
            floor: platform.cache_floor,
            share: platform.cache_share_mib * MIB,
            spread: (platform.cache_spread_mib * MIB).max(1.0),
            endless,
            taken: 0.0,
            touched: vec![f64::NEG_INFINITY; buffers],
        }
    }

    /// Data is written into a buffer; yields the share of it that needed new lines.
    pub(crate) fn write(&mut self, buffer: u32, bytes: u32) -> f64 {
        let missed = 1.0 - self.resident(buffer) / self.best;
        self.taken += missed * f64::from(bytes);
        self.touched[buffer as usize] = self.taken;
        missed
    }

    /// Data is read out of a buffer; yields the share of it that was in the cache.
    pub(crate) fn read(&mut self, buffer: u32, bytes: u32) -> f64 {
        let hit = self.resident(buffer);
        self.taken += (1.0 - hit / self.best) * f64::from(bytes);
        self.touched[buffer as usize] = self.taken;
        hit
    }

    /// Of data read with this hit rate, the share that came from memory for want of room.
    pub(crate) fn missed(&self, hit: f64) -> f64 {
        1.0 - hit / self.best
    }

    fn resident(&self, buffer: u32) -> f64 {
        if self.endless {
            return self.best;
        }
        let since = self.taken - self.touched[buffer as usize];
        if since <= self.share {
            return self.best;
        }
        self.best - (self.best - self.floor) * (1.0 - (-(since - self.share) / self.spread).exp())
    }
}

/// Which buffer a command gets: the warmest its core has, else the coldest of the shared store.
/// Every core keeps a stack; half of a full one goes back to the store.
#[derive(Debug)]
pub(crate) struct Buffers {
    stacks: Vec<Vec<u32>>,
    store: VecDeque<u32>,
    keep: usize,
}

/// Buffers of a target that has no bound on them.
pub(crate) const STORE: usize = 8192;
/// Buffers a core of such a target keeps.
pub(crate) const KEEP: usize = 32;

impl Buffers {
    pub(crate) fn new(cores: usize, total: usize, keep: usize) -> Self {
        let mut store: VecDeque<u32> = (0..crate::numbers::id(total)).collect();
        let stack = |_| {
            let few = keep.min(store.len());
            let mut stack = Vec::with_capacity(total);
            stack.extend(store.drain(..few));
            stack
        };
        let stacks = (0..cores).map(stack).collect();
        Self { stacks, store, keep }
    }

    /// A buffer for a command of this core; `None` only if there are more commands than buffers.
    pub(crate) fn take(&mut self, core: usize) -> Option<u32> {
        if self.stacks[core].is_empty() {
            let batch = self.keep.clamp(1, 32).min(self.store.len());
            self.stacks[core].extend(self.store.drain(..batch));
        }
        if let Some(buffer) = self.stacks[core].pop() {
            return Some(buffer);
        }
        self.stacks.iter_mut().find_map(Vec::pop)
    }

    pub(crate) fn give(&mut self, core: usize, buffer: u32) {
        let stack = &mut self.stacks[core];
        stack.push(buffer);
        if stack.len() > 2 * self.keep {
            let cold = self.keep.clamp(1, 32).min(stack.len());
            self.store.extend(stack.drain(..cold));
        }
    }
}
