//! Conversions between whole nanoseconds, sizes and fractions.

use crate::scenario::Nanos;

/// Bytes of a mebibyte.
pub(crate) const MIB: f64 = 1_048_576.0;

/// Rounds a value that is not negative to a whole number; one beyond the range becomes the largest.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "rounded; the cast holds a float beyond the range at the nearest integer"
)]
#[must_use]
pub fn whole(value: f64) -> u64 {
    value.round() as u64
}

/// As [`whole`], in 32 bits.
#[must_use]
pub fn whole_u32(value: f64) -> u32 {
    u32::try_from(whole(value)).unwrap_or(u32::MAX)
}

/// Converts microseconds to nanoseconds.
#[must_use]
pub fn micros(value: f64) -> Nanos {
    whole(value * 1000.0)
}

/// Converts a position to the 32 bits of events and commands.
pub(crate) fn id(position: usize) -> u32 {
    u32::try_from(position).unwrap_or(u32::MAX)
}

/// Returns the Gb/s (10^9 bits) of bytes in `time` ns.
pub(crate) fn gbps(bytes: u64, time: Nanos) -> f64 {
    if time == 0 { 0.0 } else { bytes as f64 * 8.0 / time as f64 }
}
