//! Conversions between whole nanoseconds, sizes and fractions.

use crate::scenario::Nanos;

/// Bytes of a mebibyte.
pub(crate) const MIB: f64 = 1_048_576.0;

/// Rounds non-negative nanoseconds to a whole number.
#[expect(
    clippy::cast_possible_truncation,
    reason = "rounded; a float beyond the range is held at the largest integer by the cast"
)]
pub(crate) fn nanos(value: f64) -> Nanos {
    value.round() as Nanos
}

/// Converts microseconds to nanoseconds.
pub(crate) fn micros(value: f64) -> Nanos {
    nanos(value * 1000.0)
}

/// Converts a position to the 32 bits of events and commands.
pub(crate) fn id(position: usize) -> u32 {
    u32::try_from(position).unwrap_or(u32::MAX)
}

/// Returns the Gb/s (10^9 bits) of bytes in `time` ns.
pub(crate) fn gbps(bytes: u64, time: Nanos) -> f64 {
    if time == 0 { 0.0 } else { bytes as f64 * 8.0 / time as f64 }
}
