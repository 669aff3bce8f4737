//! Seeded pseudo-random numbers: the same seed gives the same sequence, on every machine and in
//! every version.
//!
//! The generator is SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number
//! generators", OOPSLA 2014). Its state is a counter, and [`mix`] makes a number of it.
//!
//! The workspace has its own generator because a printed seed must replay the failure years later.
//! The `rand` crate changes the sequences of its default generators between versions. Generated
//! data also depends on the sequence: the load generator verifies data that an older version wrote,
//! and the results of the simulator are calibrated.
//!
//! Uses in production code are latency jitter, fault injection and generated load. The numbers are
//! predictable, so that no identifier or secret is made of them.

#![forbid(unsafe_code)]

use std::ops::Range;

/// Distance of two successive states: 2^64 divided by the golden ratio.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// A sequence of pseudo-random numbers, determined by its seed.
#[derive(Debug, Clone)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// Creates the sequence of this seed.
    #[inline]
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Creates sequence number `stream` of this seed: one for each queue or thread, for example.
    #[must_use]
    pub fn stream(seed: u64, stream: u64) -> Self {
        let mut random = Self(seed);
        random.0 = random.next_u64() ^ stream.wrapping_mul(GOLDEN);
        random.next_u64();
        random
    }

    /// Returns the next number; every value is equally likely.
    #[inline]
    pub const fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN);
        mix(self.0)
    }

    /// Returns a number below `bound`, or 0 if `bound` is 0.
    ///
    /// The upper half of a product with the next number: no division. Its bias is below `bound` in
    /// 2^64.
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// Returns a number of `range`.
    ///
    /// # Panics
    /// In debug builds, if the range is empty. In release builds, its start is returned.
    #[inline]
    pub fn within(&mut self, range: Range<u64>) -> u64 {
        debug_assert!(range.start < range.end, "no number to choose");
        range.start + self.below(range.end.saturating_sub(range.start))
    }

    /// Returns an index of a list of `len` entries, or 0 if it has none.
    #[inline]
    pub fn index(&mut self, len: usize) -> usize {
        #[expect(clippy::cast_possible_truncation, reason = "below a usize")]
        let index = self.below(len as u64) as usize;
        index
    }

    /// Returns true `per_million` times in a million. Draws no number for 0.
    #[inline]
    pub fn chance(&mut self, per_million: u32) -> bool {
        per_million > 0 && self.below(1_000_000) < u64::from(per_million)
    }

    /// Returns true half of the time.
    #[inline]
    pub const fn coin(&mut self) -> bool {
        self.next_u64() & 1 == 1
    }

    /// Returns a number from 0 to below 1, with 53 random bits.
    #[inline]
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Returns a number of the exponential distribution with mean 1.
    #[inline]
    pub fn exponential(&mut self) -> f64 {
        -(1.0 - self.unit()).ln()
    }

    /// Puts a list in random order; every order is equally likely (Fisher-Yates).
    pub fn shuffle<T>(&mut self, list: &mut [T]) {
        for last in (1..list.len()).rev() {
            list.swap(last, self.index(last + 1));
        }
    }

    /// Fills `bytes`, 8 bytes of each number, the lowest first.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.next_u64().to_le_bytes()[..chunk.len()]);
        }
    }
}

/// Spreads every bit of `x` over the result. Different numbers give different results.
#[inline]
#[must_use]
pub const fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The published values of the reference implementation for seed 1234567.
    #[test]
    fn the_sequence_is_splitmix64() {
        let mut random = SplitMix64::new(1_234_567);
        let numbers = [(); 5].map(|()| random.next_u64());
        let expected = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
            4_593_380_528_125_082_431,
            16_408_922_859_458_223_821,
        ];
        assert_eq!(numbers, expected);
    }

    /// Data that an older version wrote must verify, and old seeds must replay.
    #[test]
    fn every_sequence_stays_as_it_was() {
        let mut random = SplitMix64::stream(1, 2);
        assert_eq!([random.next_u64(), random.next_u64()], STREAM);
        assert_eq!(mix(1), MIXED);
        let mut random = SplitMix64::new(7);
        assert_eq!([random.below(1000), random.within(1000..2000)], BELOW);
        let mut list = [0, 1, 2, 3, 4, 5, 6, 7];
        random.shuffle(&mut list);
        assert_eq!(list, SHUFFLED);
    }

    const STREAM: [u64; 2] = [13_723_714_407_052_988_138, 3_385_343_407_635_105_355];
    const MIXED: u64 = 6_238_072_747_940_578_789;
    const BELOW: [u64; 2] = [389, 1016];
    const SHUFFLED: [u8; 8] = [3, 5, 0, 6, 1, 2, 4, 7];

    #[test]
    fn streams_differ_and_repeat() {
        let take = |seed, stream| {
            let mut random = SplitMix64::stream(seed, stream);
            [(); 8].map(|()| random.next_u64())
        };
        assert_eq!(take(1, 0), take(1, 0));
        assert_ne!(take(1, 0), take(1, 1));
        assert_ne!(take(1, 0), take(2, 0));
    }

    #[test]
    fn every_number_below_a_bound_is_drawn_and_no_other() {
        let mut random = SplitMix64::new(7);
        let mut counts = [0_u32; 16];
        for _ in 0..160_000 {
            counts[random.index(16)] += 1;
        }
        assert!(counts.iter().all(|n| (9_500..10_500).contains(n)), "{counts:?}");
        assert!((0..1000).all(|_| (3..5).contains(&random.within(3..5))));
        assert_eq!((random.below(0), random.index(0)), (0, 0));
        assert!(random.below(u64::MAX) > 0);
    }

    #[test]
    fn a_chance_is_taken_as_often_as_it_says() {
        let mut random = SplitMix64::new(7);
        assert!(!(0..1000).any(|_| random.chance(0)));
        assert!((0..1000).all(|_| random.chance(1_000_000)));
        let mut count = |per_million| (0..100_000).filter(|_| random.chance(per_million)).count();
        assert!((9_500..10_500).contains(&count(100_000)));
        assert!((60..140).contains(&count(1000)));
        let heads = (0..100_000).filter(|_| random.coin()).count();
        assert!((49_000..51_000).contains(&heads), "{heads}");
    }

    #[test]
    fn means_are_right() {
        let mut random = SplitMix64::new(7);
        let mean = (0..100_000).map(|_| random.unit()).sum::<f64>() / 100_000.0;
        assert!((0.49..0.51).contains(&mean), "{mean}");
        let mean = (0..100_000).map(|_| random.exponential()).sum::<f64>() / 100_000.0;
        assert!((0.98..1.02).contains(&mean), "{mean}");
    }

    #[test]
    fn a_shuffle_keeps_every_entry() {
        let mut list: Vec<u32> = (0..100).collect();
        SplitMix64::new(7).shuffle(&mut list);
        assert!(!list.is_sorted());
        list.sort_unstable();
        assert_eq!(list, (0..100).collect::<Vec<_>>());
        SplitMix64::new(7).shuffle::<u8>(&mut []);
    }

    #[test]
    fn a_part_of_a_number_fills_the_last_bytes() {
        let (mut bytes, mut random) = ([0; 11], SplitMix64::new(7));
        random.fill(&mut bytes);
        let mut again = SplitMix64::new(7);
        assert_eq!(bytes[..8], again.next_u64().to_le_bytes());
        assert_eq!(bytes[8..], again.next_u64().to_le_bytes()[..3]);
    }
}
