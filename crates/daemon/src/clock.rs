//! The only clock of the daemon. Lower layers receive the time as an argument.

use rustix::time::{ClockId, clock_gettime};

/// Returns the nanoseconds since the machine started; monotonic.
#[inline]
pub(crate) fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    let (seconds, nanos) = (time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs());
    seconds * 1_000_000_000 + nanos
}
