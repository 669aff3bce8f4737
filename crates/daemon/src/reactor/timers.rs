//! Timers of connections, judged when all that has come by then is read.
//!
//! What a host sends in time may wait in its socket, or in a completion queue, while this thread does not run: its machine
//! was stopped and goes on, a snapshot is taken of it, others have its processor. So nothing is judged by the clock alone.
//! A queue whose time is over is first received from until nothing is left. And where no turn began for long, every
//! deadline is moved by that time: meanwhile a host could not be heard, however much it sent.

use super::Reactor;
use super::slots::Key;

/// Nanoseconds without a turn, beyond what was planned, that count as standing still.
const STANDSTILL: u64 = 500_000_000;
/// Turns that a queue may go on having something to receive before it is judged all the same: more than its socket holds.
const TURNS_TO_SETTLE: u32 = 64;

/// A queue whose time is over, unless what it has sent says otherwise.
#[derive(Debug, Clone, Copy)]
pub(super) struct Overdue {
    key: Key,
    turns: u32,
}

impl Reactor {
    /// Moves every deadline if this turn begins long after it should have.
    #[inline]
    pub(super) fn note_standstill(&mut self, now: u64) {
        let lost = now.saturating_sub(std::mem::replace(&mut self.expected_at, now));
        if lost > STANDSTILL {
            self.excuse(lost);
        }
    }

    #[cold]
    fn excuse(&mut self, lost: u64) {
        tracing::warn!(
            reactor = self.index,
            seconds = lost as f64 / 1e9,
            "the reactor stood still; hosts get that much more time"
        );
        for key in self.connections.keys() {
            if let Some(connection) = self.connections.get_mut(key) {
                connection.fabric.excuse(lost);
                connection.queue.excuse(lost);
            }
        }
    }

    /// Looks after one connection's timers and whether its controller still lives.
    pub(super) fn connection_timers(&mut self, key: Key, now: u64) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        let is_queue_due = connection.queue.deadline().is_some_and(|due| due <= now);
        let is_fabric_due = connection.fabric.deadline().is_some_and(|due| due <= now);
        if is_queue_due && !self.overdue.iter().any(|one| one.key == key) {
            self.overdue.push(Overdue { key, turns: 0 });
        }
        if is_queue_due || is_fabric_due {
            // What has come is received first; the fabric judges its own deadline then.
            self.list(key);
        }
        self.poll_queue(key, now);
    }

    /// Ends what has run out of time, of queues that have been received from since that was seen.
    #[cold]
    pub(super) fn judge_overdue(&mut self, now: u64) {
        for one in std::mem::take(&mut self.overdue) {
            let Overdue { key, turns } = one;
            let Some(connection) = self.connections.get_mut(key) else { continue };
            let is_settled = !connection.unsettled && !self.are_sources_unsettled;
            if !is_settled && turns < TURNS_TO_SETTLE {
                self.overdue.push(Overdue { key, turns: turns + 1 });
            } else if connection.queue.deadline().is_some_and(|due| due <= now) {
                connection.queue.handle_timeout(now);
                self.poll_queue(key, now);
            }
        }
    }
}
