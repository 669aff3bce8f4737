//! Listeners that do not listen: an address or a device that is not there, or a port that somebody else has. Each is
//! tried again, in ever longer pauses, until it listens or the config names it no more.
//!
//! ```text
//!   cannot be bound -----> waiting --bind--> listens --its task ends--> waiting
//!                            |  ^               (hidden from hosts, who may still be connected)
//!                            '--' cannot: twice the pause
//! ```

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::config::Listener;

/// Pause before the second try.
const PAUSE: Duration = Duration::from_secs(1);
/// Longest pause: an address that is there is listened at this much later at most.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// Why a listener does not listen, and when it is tried again.
#[derive(Debug, Clone)]
pub(crate) struct RetryState {
    /// Where it listened before, with the real port.
    pub(super) last_address: Option<SocketAddr>,
    /// Why the last try failed.
    pub(crate) error: String,
    since: Instant,
    /// Tries that failed since then.
    pub(crate) tries: u32,
    pause: Duration,
    due: Instant,
}

impl RetryState {
    /// It cannot listen as of now.
    pub(super) fn new(error: String, last_address: Option<SocketAddr>, now: Instant) -> Self {
        Self { last_address, error, since: now, tries: 1, pause: PAUSE, due: now + PAUSE }
    }

    /// Once more it could not.
    pub(super) fn failed_again(&mut self, error: String, now: Instant) {
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        self.due = now + self.pause;
        self.tries = self.tries.saturating_add(1);
        self.error = error;
    }

    /// When it is tried again.
    pub(super) fn due(&self) -> Instant {
        self.due
    }

    /// How long it has not listened.
    pub(crate) fn lasts(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.since)
    }

    /// How long until it is tried again.
    pub(crate) fn pause(&self, now: Instant) -> Duration {
        self.due.saturating_duration_since(now)
    }

    /// Where it is to listen: at the port it last_address, where the system chose one.
    pub(super) fn place(&self, wanted: &Listener) -> Listener {
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
