//! What more in flight brought: the mean of many swings, and how far that is likely off.

/// What was gained since the last move, in logarithms, over how much more was in flight, and how much elasticities
/// scatter in general.
#[derive(Debug, Clone, Copy)]
pub(super) struct Trend {
    gains: f64,
    pub(super) gaps: f64,
    pub(super) count: f64,
    previous: f64,
    scatter: f64,
}

impl Trend {
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

    /// How far the mean is likely off. Neighbours share a measurement, so the mean of `count` is off by the root of 2
    /// more than of so many that know nothing of each other; and two of these in a row differ by as much as each is
    /// off, where the mean size of that is 0.8 of its root mean square.
    pub(super) fn error(&self) -> f64 {
        1.8 * self.scatter / self.count.sqrt()
    }

    pub(super) fn forget(&mut self) {
        self.gains = 0.0;
        self.gaps = 0.0;
        self.count = 0.0;
    }
}

/// An elasticity that is not taken for more than it can be.
pub(super) fn bounded(elasticity: f64) -> f64 {
    elasticity.clamp(-1.5, 1.5)
}
