//! Elasticity estimate: mean over many probes, and its likely error.

/// Mean elasticity since the last move: gains in rate over differences in flight, in logarithms.
/// The scatter is that of elasticities in general.
#[derive(Debug, Clone, Copy)]
pub(super) struct ElasticityEstimator {
    gains: f64,
    pub(super) gaps: f64,
    pub(super) count: f64,
    previous: f64,
    scatter: f64,
}

impl ElasticityEstimator {
    pub(super) fn new() -> Self {
        Self { gains: 0.0, gaps: 0.0, count: 0.0, previous: 0.0, scatter: 0.14 }
    }

    pub(super) fn add(&mut self, gain: f64, gap: f64) {
        let elasticity = bounded(gain / gap);
        self.scatter += ((elasticity - self.previous).abs() - self.scatter) / 16.0;
        self.previous = elasticity;
        self.gains += gain * gap.signum();
        self.gaps += gap.abs();
        self.count += 1.0;
    }

    pub(super) fn mean(&self) -> f64 {
        self.gains / self.gaps
    }

    /// Returns the likely error of the mean. Neighboring elasticities share a measurement, so the
    /// error is larger by the square root of 2 than for independent ones. Two consecutive ones
    /// differ by as much as each is off; the mean absolute value of that is 0.8 of its root mean
    /// square.
    pub(super) fn error(&self) -> f64 {
        1.8 * self.scatter / self.count.sqrt()
    }

    pub(super) fn forget(&mut self) {
        self.gains = 0.0;
        self.gaps = 0.0;
        self.count = 0.0;
    }
}

/// Limits an elasticity to plausible values.
pub(super) fn bounded(elasticity: f64) -> f64 {
    elasticity.clamp(-1.5, 1.5)
}
