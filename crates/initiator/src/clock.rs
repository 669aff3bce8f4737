//! Monotonic time as a number of nanoseconds.

use std::time::{Duration, Instant};

/// Nanoseconds since the clock was made.
pub type Nanos = u64;

/// A monotonic clock with an origin, to be shared by everything that compares times.
#[derive(Debug, Clone, Copy)]
pub struct Clock(Instant);

impl Clock {
    /// A clock that reads 0 now.
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

/// A length of time in nanoseconds; more than 584 years is cut to that.
#[must_use]
pub fn nanos(time: Duration) -> Nanos {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
