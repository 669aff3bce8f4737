//! Monotonic time in nanoseconds.

use std::time::{Duration, Instant};

/// Nanoseconds since the clock was created.
pub type Nanos = u64;

/// A monotonic clock with an origin. All code that compares times shares it.
#[derive(Debug, Clone, Copy)]
pub struct Clock(Instant);

impl Clock {
    /// Creates a clock that reads 0 now.
    #[must_use]
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// Nanoseconds since [`Clock::start`].
    #[inline]
    #[must_use]
    pub fn now(&self) -> Nanos {
        nanos(self.0.elapsed())
    }
}

/// Converts a duration to nanoseconds; the maximum is 584 years.
#[must_use]
pub fn nanos(time: Duration) -> Nanos {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
