//! The clock that a host sets: feature 0Eh, Timestamp (Base 5.27.1.11).

use nvmeof_wire::features::Timestamp;

use crate::Nanos;

/// Nanoseconds of a millisecond.
const MILLISECOND: Nanos = 1_000_000;

/// Milliseconds since the last reset, or continued from a time that the host has set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HostClock {
    /// Value at `since`.
    milliseconds: u64,
    /// Time of the reset or of Set Features.
    since: Nanos,
    /// A host has set it.
    is_set: bool,
}

impl HostClock {
    /// A clock that a reset clears at `now`.
    pub(crate) fn cleared(now: Nanos) -> Self {
        Self { milliseconds: 0, since: now, is_set: false }
    }

    /// A clock that a host sets at `now`.
    pub(crate) fn set(timestamp: Timestamp, now: Nanos) -> Self {
        Self { milliseconds: timestamp.milliseconds(), since: now, is_set: true }
    }

    /// The value at `now`, which wraps at 48 bits.
    pub(crate) fn read(&self, now: Nanos) -> Timestamp {
        let elapsed = now.saturating_sub(self.since) / MILLISECOND;
        let milliseconds = self.milliseconds.wrapping_add(elapsed) % (1 << 48);
        Timestamp::new().with_milliseconds(milliseconds).with_origin(self.is_set.into())
    }
}
