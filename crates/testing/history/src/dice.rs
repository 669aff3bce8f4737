//! Deterministic sequence of random choices, identical on every machine.

use std::ops::Range;

/// SplitMix64 generator.
#[derive(Debug, Clone)]
pub struct Dice(u64);

impl Dice {
    /// Creates the sequence of this seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// Returns a number in this range.
    ///
    /// # Panics
    /// The range is empty.
    pub fn within(&mut self, range: Range<u64>) -> u64 {
        assert!(range.start < range.end, "nothing to choose from");
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        range.start + (z ^ (z >> 31)) % (range.end - range.start)
    }

    /// Returns an index into `len` entries.
    ///
    /// # Panics
    /// `len` is 0.
    pub fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.within(0..len as u64)).unwrap_or(0)
    }

    /// Returns true `times` times in a thousand.
    pub fn hits(&mut self, times: u64) -> bool {
        self.within(0..1000) < times
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_are_within_their_range_and_every_one_is_made() {
        let mut dice = Dice::new(7);
        let mut seen = [0; 5];
        (0..1000).for_each(|_| seen[dice.index(5)] += 1);
        assert!(seen.iter().all(|times| *times > 100), "{seen:?}");
        assert!((0..1000).all(|_| (3..5).contains(&dice.within(3..5))));
        assert!(!(0..1000).any(|_| dice.hits(0)) && (0..1000).all(|_| dice.hits(1000)));
        let mut again = Dice::new(7);
        assert_eq!(again.within(0..5), Dice::new(7).within(0..5));
    }
}
