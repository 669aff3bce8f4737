//! The one clock of the daemon. Everything below it is handed the time.

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds since the machine started, never going back.
#[inline]
pub(crate) fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    let (seconds, nanos) = (time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs());
    seconds * 1_000_000_000 + nanos
}
