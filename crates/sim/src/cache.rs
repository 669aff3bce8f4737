//! Last-level cache as DMA uses it, and the buffers in it.
//!
//! Devices write into the part of the cache that DMA may use, and the NIC reads from it. Both move
//! the lines of a buffer to the front; at the back lines are evicted to memory, whether they were
//! sent or not. A buffer is thus still in the cache if not too many *other* bytes were used since
//! its last use. With `d` the bytes of all other buffers used since (each counted once, however
//! often it was used), its hit rate is
//!
//! ```text
//! S(d) = best / (1 + exp((d - C) / s))
//! ```
//!
//! `C` is the size of that part, and `s` the width of its edge: addresses are hashed to sets, and
//! some sets overflow before the whole is full. Separate fits gave 0.069 and 0.066 of `C` for `s`.
//! It is therefore one fraction for all, and no number of a platform.
//!
//! Several facts follow from this curve without more parameters. Buffers reused while warm (last
//! in, first out) behave like a small pool. Data that waits long (in a long queue of a
//! busy port, or for a delay device) is lost first.
//!
//! A static pool is different. A device updates lines that are in the cache in place, and evicts
//! none for that. Of a pool with `P` bytes in use, `C / P` therefore stays resident however long
//! its data waits: its hit rate is `best x min(1, C / P)`.
//!
//! A buffer is tracked as a whole. `d` is exact: uses are numbered, and a tree of sums over the
//! numbers (Fenwick 1994) yields the bytes last used after any of them.

use std::collections::VecDeque;

use crate::numbers::{MIB, id};
use crate::platform::Platform;

/// Width of the edge, as a fraction of the DMA part of the cache: one number for all platforms.
pub(crate) const EDGE: f64 = 0.068;

/// Hit rate with enough space: 99.5 % on both platforms.
pub(crate) const BEST: f64 = 0.995;

/// The cache and the positions of the buffers in it.
#[derive(Debug)]
pub(crate) struct Cache {
    /// Every buffer belongs to a static pool.
    pooled: bool,
    share: f64,
    spread: f64,
    endless: bool,
    uses: Uses,
}

impl Cache {
    pub(crate) fn new(platform: &Platform, buffers: usize, pooled: bool, endless: bool) -> Self {
        Self {
            pooled,
            share: platform.cache_share_mib * MIB,
            spread: (EDGE * platform.cache_share_mib * MIB).max(1.0),
            endless,
            uses: Uses::new(buffers),
        }
    }

    /// Writes data into a buffer.
    pub(crate) fn write(&mut self, buffer: u32, bytes: u32) {
        if !self.endless {
            self.uses.touch(buffer, bytes);
        }
    }

    /// Reads data from a buffer, with `in_use` bytes of a static pool in use; returns the fraction
    /// that was in the cache.
    pub(crate) fn read(&mut self, buffer: u32, bytes: u32, in_use: u64) -> f64 {
        if self.endless {
            return BEST;
        }
        if self.pooled {
            return BEST * (self.share / (in_use as f64).max(1.0)).min(1.0);
        }
        let Some(since) = self.uses.touch(buffer, bytes) else { return 0.0 };
        let beyond = (since as f64 - self.share) / self.spread;
        BEST / (1.0 + beyond.exp())
    }

    /// Returns the fraction of data with this hit rate that came from memory because of lack of
    /// space.
    pub(crate) fn missed(&self, hit: f64) -> f64 {
        1.0 - hit / BEST
    }
}

/// Last use of each buffer, in order and bytes.
#[derive(Debug)]
struct Uses {
    /// By buffer: number of its last use, from 1, and the bytes; 0: never.
    last: Vec<(usize, u32)>,
    /// By use number: sums of the bytes of those uses that were the last of their buffer.
    sums: Vec<u64>,
    total: u64,
    uses: usize,
}

impl Uses {
    fn new(buffers: usize) -> Self {
        let room = (4 * buffers).next_power_of_two().max(64);
        Self { last: vec![(0, 0); buffers], sums: vec![0; room + 1], total: 0, uses: 0 }
    }

    /// Uses a buffer; returns the bytes of others used since its last use, if there was one.
    fn touch(&mut self, buffer: u32, bytes: u32) -> Option<u64> {
        if self.uses + 1 == self.sums.len() {
            self.number_anew();
        }
        let (last, had) = self.last[buffer as usize];
        let since = (last > 0).then(|| self.total - self.upto(last));
        if last > 0 {
            self.add(last, u64::from(had).wrapping_neg());
        }
        self.uses += 1;
        self.add(self.uses, u64::from(bytes));
        self.last[buffer as usize] = (self.uses, bytes);
        since
    }

    /// Returns the bytes of the uses numbered up to `number`.
    fn upto(&self, mut number: usize) -> u64 {
        let mut sum = 0_u64;
        while number > 0 {
            sum = sum.wrapping_add(self.sums[number]);
            number &= number - 1;
        }
        sum
    }

    fn add(&mut self, mut number: usize, bytes: u64) {
        self.total = self.total.wrapping_add(bytes);
        while number < self.sums.len() {
            self.sums[number] = self.sums[number].wrapping_add(bytes);
            number += number & number.wrapping_neg();
        }
    }

    /// Renumbers when the numbers are exhausted: the last uses keep their order and get low
    /// numbers.
    fn number_anew(&mut self) {
        let mut order: Vec<usize> = (0..self.last.len()).filter(|b| self.last[*b].0 > 0).collect();
        order.sort_unstable_by_key(|buffer| self.last[*buffer].0);
        self.sums.fill(0);
        self.total = 0;
        self.uses = 0;
        for buffer in order {
            self.uses += 1;
            self.last[buffer].0 = self.uses;
            self.add(self.uses, u64::from(self.last[buffer].1));
        }
    }
}

/// Selection of buffers: the warmest of the core, else the coldest of the shared store. Every core
/// keeps a stack; half of a full one returns to the store.
#[derive(Debug)]
pub(crate) struct Buffers {
    stacks: Vec<Vec<u32>>,
    store: VecDeque<u32>,
    keep: usize,
}

/// Number of buffers of a target without a bound.
pub(crate) const STORE: usize = 8192;
/// Number of buffers that a core of this target keeps.
pub(crate) const KEEP: usize = 32;

impl Buffers {
    pub(crate) fn new(cores: usize, total: usize, keep: usize) -> Self {
        let mut store: VecDeque<u32> = (0..id(total)).collect();
        let stack = |_| {
            let few = keep.min(store.len());
            let mut stack = Vec::with_capacity(total);
            stack.extend(store.drain(..few));
            stack
        };
        let stacks = (0..cores).map(stack).collect();
        Self { stacks, store, keep }
    }

    /// Takes a buffer for a command of this core; `None` only with more commands than buffers.
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

#[cfg(test)]
mod tests {
    use nvmeof_random::SplitMix64;

    use super::*;

    #[test]
    fn what_was_used_since_is_counted_once_each() {
        let mut rng = SplitMix64::new(5);
        let mut uses = Uses::new(9);
        let mut history: Vec<(u32, u32)> = Vec::new();
        for _ in 0..2_000 {
            let buffer = id(rng.index(9));
            let bytes = 1 + id(rng.index(100));
            let last = history.iter().rposition(|(b, _)| *b == buffer);
            let expected = last.map(|last| {
                let mut seen = vec![buffer];
                let mut sum = 0;
                for (other, bytes) in history[last + 1..].iter().rev() {
                    if !seen.contains(other) {
                        seen.push(*other);
                        sum += u64::from(*bytes);
                    }
                }
                sum
            });
            assert_eq!(uses.touch(buffer, bytes), expected);
            history.push((buffer, bytes));
        }
    }

    #[test]
    fn a_core_uses_its_warmest_buffer_first_and_gives_back_the_coldest() {
        let mut buffers = Buffers::new(2, 12, 2);
        let first = buffers.take(0);
        buffers.give(0, first.unwrap_or(0));
        assert_eq!(buffers.take(0), first);
        let all: Vec<u32> = (0..11).filter_map(|_| buffers.take(1)).collect();
        assert_eq!(all.len(), 11, "every buffer can be had from any core");
        assert_eq!(buffers.take(0), None);
        all.iter().for_each(|buffer| buffers.give(1, *buffer));
        assert!(buffers.take(0).is_some(), "what a core does not keep is for all");
    }
}
