//! Timers of connections. The reactor judges them after it has read all that arrived by then.
//!
//! Data that a host sends in time can wait in its socket, or in a completion queue, while this
//! thread does not run. The machine was stopped and resumes, a snapshot of the machine is taken, or
//! other threads have its core. The reactor therefore judges nothing by the clock alone. It first
//! receives from a queue whose deadline has passed until nothing is left. If no turn began for
//! long, the reactor moves every deadline by that time. It could not receive from any host then,
//! however much the host sent.

use super::Reactor;
use super::gen_slab::SlotKey;

/// Nanoseconds without a turn, beyond the planned time, that count as a stall of the reactor.
const STANDSTILL: u64 = 500_000_000;
/// Turns after which an overdue queue is judged although it still has data to receive.
///
/// This is more than the data of a full socket takes.
const TURNS_TO_SETTLE: u32 = 64;

/// A queue whose deadline has passed, unless data that it has sent moves the deadline.
#[derive(Debug, Clone, Copy)]
pub(super) struct Overdue {
    key: SlotKey,
    turns: u32,
}

impl Reactor {
    /// Moves every deadline if this turn begins long after it should have.
    #[inline]
    pub(super) fn note_standstill(&mut self, now: u64) {
        let lost = now.saturating_sub(std::mem::replace(&mut self.expected_at, now));
        if lost > STANDSTILL {
            self.extend_deadlines(lost);
        }
    }

    #[cold]
    fn extend_deadlines(&mut self, lost: u64) {
        tracing::warn!(
            reactor = self.index,
            seconds = lost as f64 / 1e9,
            "the reactor stood still; hosts get that much more time"
        );
        for key in self.connections.keys() {
            if let Some(connection) = self.connections.get_mut(key) {
                connection.fabric.extend_deadlines(lost);
                connection.queue.extend_deadlines(lost);
            }
        }
    }

    /// Checks one connection's timers, and whether its controller still exists.
    pub(super) fn connection_timers(&mut self, key: SlotKey, now: u64) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        let is_queue_due = connection.queue.deadline().is_some_and(|due| due <= now);
        let is_fabric_due = connection.fabric.deadline().is_some_and(|due| due <= now);
        if is_queue_due && !self.overdue.iter().any(|one| one.key == key) {
            self.overdue.push(Overdue { key, turns: 0 });
        }
        if is_queue_due || is_fabric_due {
            // Data that has arrived is received first. The fabric judges its own deadline then.
            self.list(key);
        }
        self.poll_queue(key, now);
    }

    /// Ends queues whose deadline has passed, once the reactor has received all that had arrived.
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
