//! Random numbers of the machine: the same seed gives the same run, on any computer.

/// A small fast generator (`SplitMix64`, Steele et al. 2014).
#[derive(Debug, Clone)]
pub struct Rng(u64);

impl Rng {
    /// Creates the generator of this seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed ^ 0x5851_F42D_4C95_7F2D)
    }

    /// Returns the next 64 bits.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Returns a number from 0 to below 1.
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Returns a number from 0 to below `n`; 0 for `n` = 0.
    pub fn below(&mut self, n: usize) -> usize {
        let wide = u128::from(self.next()) * n as u128;
        usize::try_from(wide >> 64).unwrap_or(0)
    }

    /// Returns a number with mean 1, never negative, with a long tail (exponential).
    pub fn exponential(&mut self) -> f64 {
        -(1.0 - self.unit()).ln()
    }

    /// Puts a list in random order.
    pub fn shuffle<T>(&mut self, list: &mut [T]) {
        for last in (1..list.len()).rev() {
            list.swap(last, self.below(last + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Rng;

    #[test]
    fn spreads_evenly_and_repeats_itself() {
        let mut rng = Rng::new(7);
        let mut counts = [0_u32; 16];
        for _ in 0..160_000 {
            counts[rng.below(16)] += 1;
        }
        assert!(counts.iter().all(|n| (9_500..10_500).contains(n)), "{counts:?}");
        let mean = (0..100_000).map(|_| rng.exponential()).sum::<f64>() / 100_000.0;
        assert!((0.98..1.02).contains(&mean), "{mean}");
        assert_eq!(Rng::new(3).next(), Rng::new(3).next());
        assert_ne!(Rng::new(3).next(), Rng::new(4).next());
    }
}
