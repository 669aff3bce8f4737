//! A seeded sequence of choices.

use std::ops::Range;

/// SplitMix64.
#[derive(Debug)]
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// A number of this range, which is not empty.
    pub(super) fn within(&mut self, range: Range<u64>) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        range.start + (z ^ (z >> 31)) % (range.end - range.start)
    }

    /// An index into something of `len` entries.
    pub(super) fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.within(0..len as u64)).expect("an index")
    }

    /// True `times` times in a thousand.
    pub(super) fn hits(&mut self, times: u64) -> bool {
        self.within(0..1000) < times
    }
}
