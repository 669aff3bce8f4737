//! A fixed permutation of the numbers below a bound, computed one number at a time.
//!
//! It scatters the popular places of a skewed load over the space.
//!
//! A Feistel network permutes the smallest range of 4^n numbers that contains them. A result
//! outside the bound is permuted again until it is inside, which keeps the mapping a permutation.

use nvmeof_random::mix;

const ROUNDS: u64 = 4;

/// The permutation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scatter {
    count: u64,
    half_bits: u32,
    key: u64,
}

impl Scatter {
    /// A permutation of the numbers below `count`, different for each `seed`.
    pub(crate) fn new(count: u64, seed: u64) -> Self {
        let bits = u64::BITS - count.saturating_sub(1).leading_zeros();
        Self { count, half_bits: bits.div_ceil(2).max(1), key: mix(seed) }
    }

    /// Returns the image of `number`, which is below the count.
    #[inline]
    pub(crate) fn place(&self, number: u64) -> u64 {
        let mut at = number;
        loop {
            at = self.permute(at);
            if at < self.count {
                return at;
            }
        }
    }

    #[inline]
    fn permute(&self, number: u64) -> u64 {
        let mask = (1 << self.half_bits) - 1;
        let (mut left, mut right) = (number >> self.half_bits, number & mask);
        for round in 0..ROUNDS {
            (left, right) = (right, left ^ (mix(right ^ self.key.wrapping_add(round)) & mask));
        }
        left << self.half_bits | right
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_has_a_place_of_its_own() {
        for count in [1, 2, 3, 7, 64, 65, 1000, 4097] {
            let scatter = Scatter::new(count, 5);
            let mut places: Vec<_> = (0..count).map(|number| scatter.place(number)).collect();
            places.sort_unstable();
            assert!(places.into_iter().eq(0..count), "{count}");
        }
    }

    #[test]
    fn neighbours_are_apart_and_seeds_differ() {
        let count = 1 << 40;
        let (one, other) = (Scatter::new(count, 1), Scatter::new(count, 2));
        let near = (0..1000).filter(|&n| one.place(n).abs_diff(one.place(n + 1)) < count >> 10);
        assert!(near.count() < 20);
        assert!((0..1000).all(|n| one.place(n) != other.place(n)));
    }
}
