//! Minimum transfer rate of a host: deadlines that measure progress, not activity.
//!
//! A host that moves one byte from time to time always shows activity, and would occupy its buffers
//! for ever. The data that a connection has to send or take must therefore move at [`MIN_RATE`] on
//! average, with one timeout of grace. While commands wait for buffer memory, the grace is
//! [`GRACE_WHEN_SHORT`].

use crate::queue::Nanos;

/// Minimum rate of a busy connection in bytes per second, of requested data or of data sent to it.
///
/// A link of 1 Mb/s carries seven connections at this rate. A Linux host aborts a command after 30
/// s, and 1 MiB takes twice that time here: a slower rate is useless to the host. The timeout
/// itself covers a lost packet or a queue of seconds on the path.
pub const MIN_RATE: u64 = 16 << 10;

/// Nanoseconds of grace while buffer memory is short.
///
/// It covers the retransmission of a lost packet, and is short compared with the timeouts of hosts
/// that wait for the memory.
pub(crate) const GRACE_WHEN_SHORT: Nanos = SECOND;

const SECOND: Nanos = 1_000_000_000;

/// Returns the time that `bytes` take at [`MIN_RATE`].
pub(crate) fn time_for(bytes: u64) -> Nanos {
    // In parts: bytes times nanoseconds can overflow.
    let (seconds, rest) = (bytes / MIN_RATE, bytes % MIN_RATE);
    seconds.saturating_mul(SECOND).saturating_add(rest * SECOND / MIN_RATE)
}

/// Returns the bytes that move in `time` at [`MIN_RATE`]; at least one.
fn bytes_in(time: Nanos) -> u64 {
    (u128::from(time) * u128::from(MIN_RATE) / u128::from(SECOND)).clamp(1, 1 << 40) as u64
}

/// Deadline for the data that waits to leave. Positions are bytes since the start of the
/// connection.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    timeout: Nanos,
    /// Position to reach, and the deadline for it.
    mark: Option<(u64, Nanos)>,
}

impl Pace {
    /// Creates the deadline for a host.
    ///
    /// Within twice the timeout, the host has to move the bytes that [`MIN_RATE`] moves in one
    /// timeout; less if there is less.
    pub(crate) fn new(timeout: Nanos) -> Self {
        Self { timeout, mark: None }
    }

    /// Records that `done` of the bytes up to `owed` have moved by now.
    #[inline]
    pub(crate) fn look(&mut self, done: u64, owed: u64, now: Nanos) {
        if done >= owed {
            self.mark = None;
        } else if self.mark.is_none_or(|(place, _)| done >= place) {
            let bytes = (owed - done).min(bytes_in(self.timeout));
            let by = now.saturating_add(self.timeout).saturating_add(time_for(bytes));
            self.mark = Some((done + bytes, by));
        }
    }

    /// Returns the deadline, which progress extends.
    pub(crate) fn due(&self) -> Option<Nanos> {
        self.mark.map(|(_, by)| by)
    }

    /// Extends the deadline by the time for which the target was stalled: the host could not move
    /// anything.
    pub(crate) fn extend_deadlines(&mut self, nanos: Nanos) {
        if let Some((_, by)) = &mut self.mark {
            *by = by.saturating_add(nanos);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_much_as_a_timeout_carries_has_to_move_in_two() {
        let mut pace = Pace::new(10 * SECOND);
        let window = 10 * MIN_RATE;
        pace.look(0, 100 * window, 0);
        assert_eq!(pace.due(), Some(20 * SECOND));
        // Small steps are enough only when they add up.
        pace.look(window - 1, 100 * window, 19 * SECOND);
        assert_eq!(pace.due(), Some(20 * SECOND));
        pace.look(window, 100 * window, 19 * SECOND);
        assert_eq!(pace.due(), Some(39 * SECOND));
    }

    #[test]
    fn a_little_has_a_little_longer_than_the_timeout_and_nothing_has_no_end() {
        let mut pace = Pace::new(10 * SECOND);
        pace.look(5, 5 + MIN_RATE / 2, 0);
        assert_eq!(pace.due(), Some(10 * SECOND + SECOND / 2));
        // More data to send does not change the deadline of the earlier data.
        pace.look(6, 1 << 30, SECOND);
        assert_eq!(pace.due(), Some(10 * SECOND + SECOND / 2));
        pace.extend_deadlines(3 * SECOND);
        assert_eq!(pace.due(), Some(13 * SECOND + SECOND / 2));
        pace.look(1 << 30, 1 << 30, SECOND);
        assert_eq!(pace.due(), None);
    }

    #[test]
    fn no_number_is_too_large() {
        assert_eq!(time_for(u64::MAX), Nanos::MAX);
        let mut pace = Pace::new(Nanos::MAX);
        pace.look(0, u64::MAX, Nanos::MAX);
        assert_eq!(pace.due(), Some(Nanos::MAX));
    }
}
