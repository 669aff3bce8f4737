//! The last-level cache, as DMA sees it, and the buffers that live in it.
//!
//! Devices write into the share of the cache that DMA may use, and the NIC reads out of it. Both bring a
//! buffer's lines to the front; at the back lines fall out to memory, whether they were sent or not. So
//! a buffer is still there if not too much *else* was used since it was last used itself: with `d` the
//! bytes of all other buffers used meanwhile (each counted once, however often it was used),
//!
//! ```text
//! S(d) = best / (1 + exp((d - C) / s))
//! ```
//!
//! `C` is the size of the share, and `s` how blurred its edge is: addresses are hashed to sets, and
//! some sets overflow before the whole is full. Fitted apart, `s` was 0.069 and 0.066 of `C`: one part for all, and no
//! number of a platform. From the one curve follow, without more numbers: a
//! pool of buffers smaller than the cache stays in it whatever the depth, since `d` is never more than
//! the pool; buffers used again while warm (last in, first out) behave like a small pool; data that waits
//! long (in a long queue of a busy port, or for a delay device) is lost first.
//!
//! A buffer is followed as a whole. `d` is exact: uses are numbered, and a tree of sums over the numbers
//! (Fenwick 1994) yields the bytes last used after any of them.

use std::collections::VecDeque;

use crate::numbers::{MIB, id};
use crate::platform::Platform;

/// How blurred the edge of the share is, as a part of the share: one number for all platforms.
pub(crate) const EDGE: f64 = 0.068;

/// The cache and the buffers' places in it.
#[derive(Debug)]
pub(crate) struct Cache {
    best: f64,
    share: f64,
    spread: f64,
    endless: bool,
    uses: Uses,
}

impl Cache {
    pub(crate) fn new(platform: &Platform, buffers: usize, endless: bool) -> Self {
        Self {
            best: platform.cache_best,
            share: platform.cache_share_mib * MIB,
            spread: (EDGE * platform.cache_share_mib * MIB).max(1.0),
            endless,
            uses: Uses::new(buffers),
        }
    }

    /// Data is written into a buffer.
    pub(crate) fn write(&mut self, buffer: u32, bytes: u32) {
        if !self.endless {
            self.uses.touch(buffer, bytes);
        }
    }

    /// Data is read out of a buffer; yields the share of it that was in the cache.
    pub(crate) fn read(&mut self, buffer: u32, bytes: u32) -> f64 {
        if self.endless {
            return self.best;
        }
        let Some(since) = self.uses.touch(buffer, bytes) else { return 0.0 };
        let beyond = (since as f64 - self.share) / self.spread;
        self.best / (1.0 + beyond.exp())
    }

    /// Of data read with this hit rate, the share that came from memory for want of room.
    pub(crate) fn missed(&self, hit: f64) -> f64 {
        1.0 - hit / self.best
    }
}

/// When each buffer was last used, in order and bytes.
#[derive(Debug)]
struct Uses {
    /// By buffer: number of its last use, from 1, and the bytes; 0: never.
    last: Vec<(usize, u32)>,
    /// By number of a use, sums of the bytes of those that were the last of their buffer.
    sums: Vec<u64>,
    total: u64,
    uses: usize,
}

impl Uses {
    fn new(buffers: usize) -> Self {
        let room = (4 * buffers).next_power_of_two().max(64);
        Self { last: vec![(0, 0); buffers], sums: vec![0; room + 1], total: 0, uses: 0 }
    }

    /// Uses a buffer; yields the bytes of others used since it was used last, if it was.
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

    /// Bytes of the uses with a number of at most this.
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

    /// The numbers are used up: the last uses keep their order and get low ones.
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

/// Which buffer a command gets: the warmest its core has, else the coldest of the shared store. Every
/// core keeps a stack; half of a full one goes back to the store.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    #[test]
    fn what_was_used_since_is_counted_once_each() {
        let mut rng = Rng::new(5);
        let mut uses = Uses::new(9);
        let mut history: Vec<(u32, u32)> = Vec::new();
        for _ in 0..2_000 {
            let buffer = id(rng.below(9));
            let bytes = 1 + id(rng.below(100));
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
