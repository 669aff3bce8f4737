//! The pace a host has to keep: deadlines that judge progress, not silence.
//!
//! A host that moves a byte now and then is never silent, and would hold what waits for it for ever. So what a
//! connection owes, or has to take, has to move at [`MIN_RATE`] on the average, with a timeout's grace. While commands
//! wait for buffer memory the grace is [`GRACE_WHEN_SHORT`].

use crate::queue::Nanos;

/// Bytes a second that a busy connection has to move, of data it was asked for or of what it is sent.
///
/// A link of 1 Mb/s carries seven such connections. A Linux host gives a command up after 30 s, in which 1 MiB takes twice
/// as much: what is slower than this is of no use to it. A lost packet, or a queue of seconds somewhere on the way, is
/// what the timeout itself is for.
pub const MIN_RATE: u64 = 16 << 10;

/// Nanoseconds of grace while buffer memory is short: time for a lost packet to be sent again, and
/// little beside the timeouts of hosts that wait for the memory.
pub(crate) const GRACE_WHEN_SHORT: Nanos = SECOND;

const SECOND: Nanos = 1_000_000_000;

/// Time that so many bytes take at [`MIN_RATE`].
pub(crate) fn time_for(bytes: u64) -> Nanos {
    // In parts: bytes times nanoseconds is more than fits.
    let (seconds, rest) = (bytes / MIN_RATE, bytes % MIN_RATE);
    seconds.saturating_mul(SECOND).saturating_add(rest * SECOND / MIN_RATE)
}

/// Bytes that move in `time` at [`MIN_RATE`]; at least one.
fn bytes_in(time: Nanos) -> u64 {
    (u128::from(time) * u128::from(MIN_RATE) / u128::from(SECOND)).clamp(1, 1 << 40) as u64
}

/// Whether what waits to leave does, fast enough. Positions are bytes since the connection's start.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    timeout: Nanos,
    /// Where it has to be by when.
    mark: Option<(u64, Nanos)>,
}

impl Pace {
    /// For a host that has to move as much in twice the timeout as [`MIN_RATE`] moves in one; less if there is less.
    pub(crate) fn new(timeout: Nanos) -> Self {
        Self { timeout, mark: None }
    }

    /// `done` of the bytes up to `owed` have moved by now.
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

    /// When patience ends, unless enough moves until then.
    pub(crate) fn due(&self) -> Option<Nanos> {
        self.mark.map(|(_, by)| by)
    }

    /// The target stood still for so long: the host could not move anything.
    pub(crate) fn excuse(&mut self, nanos: Nanos) {
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
        // Little by little is enough only when it adds up.
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
        // More to send changes nothing for what was there.
        pace.look(6, 1 << 30, SECOND);
        assert_eq!(pace.due(), Some(10 * SECOND + SECOND / 2));
        pace.excuse(3 * SECOND);
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
