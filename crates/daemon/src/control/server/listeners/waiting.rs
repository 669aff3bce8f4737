//! Listeners that do not listen.
//!
//! Their address or device is missing, or another process uses the port.
//!
//! Each is retried, with growing pauses, until it listens or the config no longer names it.
//!
//! ```text
//!   bind failed -----> waiting --bind--> listens --its task ends--> waiting
//!                        |  ^         (hidden from discovery; hosts may still be connected)
//!                        '--' bind failed: the pause doubles
//! ```

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::config::Listener;

/// Pause before the first retry.
const PAUSE: Duration = Duration::from_secs(1);
/// Longest pause: the delay, at most, until an address that has appeared is bound.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// Reason why a listener does not listen, and the time of its next retry.
#[derive(Debug, Clone)]
pub(crate) struct RetryState {
    /// Address at which it listened before, with the actual port.
    pub(super) last_address: Option<SocketAddr>,
    /// Error of the last attempt.
    pub(crate) error: String,
    since: Instant,
    /// Failed attempts since then.
    pub(crate) tries: u32,
    pause: Duration,
    due: Instant,
}

impl RetryState {
    /// Creates the state of a listener that has just failed.
    pub(super) fn new(error: String, last_address: Option<SocketAddr>, now: Instant) -> Self {
        Self { last_address, error, since: now, tries: 1, pause: PAUSE, due: now + PAUSE }
    }

    /// Records another failed attempt.
    pub(super) fn failed_again(&mut self, error: String, now: Instant) {
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        self.due = now + self.pause;
        self.tries = self.tries.saturating_add(1);
        self.error = error;
    }

    /// Returns the time of the next retry.
    pub(super) fn due(&self) -> Instant {
        self.due
    }

    /// Returns the time since the listener stopped listening.
    pub(crate) fn lasts(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.since)
    }

    /// Returns the time until the next retry.
    pub(crate) fn pause(&self, now: Instant) -> Duration {
        self.due.saturating_duration_since(now)
    }

    /// Returns the listener to bind: at its last port, if the system chose one.
    pub(super) fn to_bind(&self, wanted: &Listener) -> Listener {
        let port = self.last_address.map_or(wanted.port, |address| address.port());
        Listener { port, ..wanted.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_bound() {
        let start = Instant::now();
        let mut waiting = RetryState::new("no".into(), None, start);
        let mut pauses = Vec::new();
        for _ in 0..5 {
            let due = waiting.due();
            pauses.push(due.duration_since(start).as_secs());
            assert_eq!(waiting.pause(due), Duration::ZERO);
            waiting.failed_again("still not".into(), due);
        }
        assert_eq!(pauses, [1, 3, 7, 12, 17]);
        assert_eq!((waiting.tries, waiting.error.as_str()), (6, "still not"));
        assert_eq!(waiting.lasts(waiting.due()), Duration::from_secs(22));
    }
}
