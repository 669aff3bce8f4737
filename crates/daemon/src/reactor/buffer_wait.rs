//! Admitted commands for which the pool has no buffer, oldest first.

use std::collections::VecDeque;

use super::gen_slab::SlotKey;

/// Nanoseconds for which no command passes the first one.
///
/// For as long after that every command may pass it, and the two phases alternate.
const TURN: u64 = 1_000_000_000;

/// Admitted commands that wait for a buffer.
///
/// Memory comes in chunks, each for buffers of one size. Commands that keep leasing one size keep
/// its chunks from another size. So no command passes the first one, and the leased buffers return.
/// The buffers at a hung device do not return, and other commands must not wait for them. So
/// commands may pass the first one in every other [`TURN`].
#[derive(Debug, Default)]
pub(super) struct BufferWaitQueue {
    waiting: VecDeque<SlotKey>,
    /// Time since which the first command is the first.
    since: u64,
}

impl BufferWaitQueue {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Returns true if every command that needs a buffer must wait until the first has its own.
    pub(super) fn bars(&self, now: u64) -> bool {
        let turns = now.saturating_sub(self.since) / TURN;
        !self.is_empty() && turns.is_multiple_of(2)
    }

    /// Returns true if the first command has waited long enough for memory to count as short.
    ///
    /// Hosts that hold memory and hardly move their data are then disconnected.
    pub(super) fn is_memory_short(&self, now: u64) -> bool {
        !self.is_empty() && now.saturating_sub(self.since) >= TURN
    }

    pub(super) fn push(&mut self, request: SlotKey, now: u64) {
        if self.is_empty() {
            self.since = now;
        }
        self.waiting.push_back(request);
    }

    pub(super) fn pop(&mut self) -> Option<SlotKey> {
        self.waiting.pop_front()
    }

    /// Puts the first command back to the front.
    pub(super) fn put_first(&mut self, request: SlotKey) {
        self.waiting.push_front(request);
    }

    /// Puts a command behind all others.
    ///
    /// A caller that tries each command once leaves the order unchanged.
    pub(super) fn put_last(&mut self, request: SlotKey) {
        self.waiting.push_back(request);
    }

    /// Restarts the time: another command is the first now.
    pub(super) fn begin(&mut self, now: u64) {
        self.since = now;
    }
}
