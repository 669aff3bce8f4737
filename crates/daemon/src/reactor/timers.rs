//! Timers of connections. The reactor judges them after it has read all that arrived by then.
//!
//! Data that a host sends in time can wait in its socket, or in a completion queue, while this
//! thread does not run. The machine was stopped and resumes, a snapshot of the machine is taken, or
//! other threads have its core. The reactor therefore judges nothing by the clock alone. It first
//! receives from a queue whose deadline has passed until nothing is left. If no turn began for
//! long, the reactor moves every deadline by that time. It could not receive from any host then,
//! however much the host sent.
//!
//! A tick visits the connections that were active since the last one, and those whose deadline has
//! come. Idle connections cost it nothing, however many there are: only activity creates a
//! deadline, or moves one to an earlier time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::Reactor;
use super::connection::Connection;
use super::gen_slab::SlotKey;

/// Nanoseconds without a turn, beyond the planned time, that count as a stall of the reactor.
const STANDSTILL: u64 = 500_000_000;
/// Turns after which an overdue queue is judged although it still has data to receive.
///
/// This is more than the data of a full socket takes.
const TURNS_TO_SETTLE: u32 = 64;

/// Nanoseconds after which a connection with a later deadline is visited all the same.
///
/// This bounds the time for which the entries of ended connections stay in the queue.
const LONGEST_WAIT: u64 = 60_000_000_000;

/// A queue whose deadline has passed, unless data that it has sent moves the deadline.
#[derive(Debug, Clone, Copy)]
pub(super) struct Overdue {
    key: SlotKey,
    turns: u32,
}

/// Connections that the next ticks visit.
#[derive(Debug, Default)]
pub(super) struct TimerQueue {
    /// Connections with activity since the last tick, each once.
    active: Vec<SlotKey>,
    /// Deadlines of idle connections. A deadline can have moved since; the visit decides.
    due: BinaryHeap<Reverse<(u64, SlotKey)>>,
    /// Visits so far.
    #[cfg(test)]
    pub(super) visits: u64,
}

/// A connection's entry in the [`TimerQueue`].
#[derive(Debug, Default)]
pub(super) struct ConnectionTimer {
    /// The next tick visits the connection.
    is_active: bool,
    /// Time of its earliest deadline in the queue. Other entries of it are void.
    due: Option<u64>,
}

impl TimerQueue {
    /// Makes the next tick visit a connection.
    #[inline]
    pub(super) fn touch(&mut self, key: SlotKey, timer: &mut ConnectionTimer) {
        if !std::mem::replace(&mut timer.is_active, true) {
            self.active.push(key);
        }
    }

    /// Adds a deadline of an idle connection, unless an earlier one is in the queue.
    fn add(&mut self, key: SlotKey, timer: &mut ConnectionTimer, due: u64) {
        if timer.due.is_none_or(|earlier| due < earlier) {
            timer.due = Some(due);
            self.due.push(Reverse((due, key)));
        }
    }

    /// Takes a connection whose deadline has come.
    fn pop(&mut self, now: u64) -> Option<(u64, SlotKey)> {
        let due = self.due.peek().is_some_and(|Reverse((due, _))| *due <= now);
        if due { self.due.pop().map(|Reverse(entry)| entry) } else { None }
    }
}

impl Connection {
    /// Returns true if the next tick has to visit it, too: its deadlines can change without a list
    /// that names it.
    fn stays_active(&self) -> bool {
        // A Connect that waits has its own deadline.
        let is_connecting = self.info.is_none();
        is_connecting || self.unsettled || self.dirty || self.tx_pending || self.in_flight > 0
    }

    /// Returns its earliest deadline.
    fn deadline(&self) -> Option<u64> {
        self.queue.deadline().into_iter().chain(self.fabric.deadline()).min()
    }
}

impl Reactor {
    /// Visits the connections that were active since the last tick or whose deadline has come.
    pub(super) fn check_timers(&mut self, now: u64) {
        while let Some((due, key)) = self.timers.pop(now) {
            if let Some(connection) = self.connections.get_mut(key)
                && connection.timer.due == Some(due)
            {
                connection.timer.due = None;
                self.timers.touch(key, &mut connection.timer);
            }
        }
        let mut index = 0;
        while let Some(&key) = self.timers.active.get(index) {
            self.connection_timers(key, now);
            let connection = self.connections.get_mut(key);
            if connection.as_ref().is_some_and(|connection| connection.stays_active()) {
                index += 1;
                continue;
            }
            self.timers.active.swap_remove(index);
            let Some(connection) = connection else { continue };
            connection.timer.is_active = false;
            if let Some(due) = connection.deadline() {
                self.timers.add(key, &mut connection.timer, due.min(now + LONGEST_WAIT));
            }
        }
    }

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
        for (_, connection) in self.connections.iter_mut() {
            connection.fabric.extend_deadlines(lost);
            connection.queue.extend_deadlines(lost);
        }
    }

    /// Checks one connection's timers, and whether its controller still exists.
    fn connection_timers(&mut self, key: SlotKey, now: u64) {
        #[cfg(test)]
        {
            self.timers.visits += 1;
        }
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
