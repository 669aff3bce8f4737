//! Conversions between whole nanoseconds, sizes and fractions, in one place.

use crate::scenario::Nanos;

/// Bytes of a mebibyte.
pub(crate) const MIB: f64 = 1_048_576.0;

/// Whole nanoseconds of a non-negative number of them.
#[expect(
    clippy::cast_possible_truncation,
    reason = "rounded; a float beyond the range is held at the largest integer by the cast"
)]
pub(crate) fn nanos(value: f64) -> Nanos {
    value.round() as Nanos
}

/// Nanoseconds of microseconds.
pub(crate) fn micros(value: f64) -> Nanos {
    nanos(value * 1000.0)
}

/// A position as the 32 bits events and commands carry.
pub(crate) fn id(position: usize) -> u32 {
    u32::try_from(position).unwrap_or(u32::MAX)
}

/// Gb/s (10^9 bits) of bytes in so many ns.
pub(crate) fn gbps(bytes: u64, time: Nanos) -> f64 {
    if time == 0 { 0.0 } else { bytes as f64 * 8.0 / time as f64 }
}
