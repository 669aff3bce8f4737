//! A small, seeded, fast random number generator (SplitMix64; Steele, Lea, Flood 2014).

#[derive(Debug, Clone)]
pub(crate) struct Rng(u64);

impl Rng {
    /// Creates generator number `stream` of `seed`.
    pub(crate) fn new(seed: u64, stream: u64) -> Self {
        let mut rng = Self(seed);
        rng.0 = rng.next() ^ stream.wrapping_mul(GOLDEN);
        rng.next();
        rng
    }

    #[inline]
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN);
        mix(self.0)
    }

    /// Returns a number in [0, 1) with 53 bits.
    #[inline]
    pub(crate) fn fraction(&mut self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "53 bits are what it holds")]
        let bits = (self.next() >> 11) as f64;
        bits / (1_u64 << 53) as f64
    }

    /// Returns a number below `bound`, or 0 if `bound` is 0.
    #[inline]
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }
}

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// Spreads every bit of `x` over the result.
#[inline]
pub(crate) fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_differ_and_repeat() {
        let take = |seed, stream| {
            let mut rng = Rng::new(seed, stream);
            [(); 8].map(|()| rng.next())
        };
        assert_eq!(take(1, 0), take(1, 0));
        assert_ne!(take(1, 0), take(1, 1));
        assert_ne!(take(1, 0), take(2, 0));
    }

    #[test]
    fn below_reaches_everything_below_and_nothing_else() {
        let mut rng = Rng::new(7, 7);
        let mut seen = [0_u32; 10];
        for _ in 0..10_000 {
            seen[usize::try_from(rng.below(10)).unwrap()] += 1;
        }
        assert!(seen.iter().all(|&n| (800..1200).contains(&n)), "{seen:?}");
        assert_eq!(rng.below(0), 0);
    }
}
