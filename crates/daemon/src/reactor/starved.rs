//! Admitted commands for which the pool has no buffer, oldest first.

use std::collections::VecDeque;

use super::slots::Key;

/// For so many ns nobody passes the first of them, then for as long all may, and so on in turns.
const TURN: u64 = 1_000_000_000;

/// Commands short of a buffer. Memory comes in chunks, each for buffers of one size, and those that go on to be leased keep
/// the chunk from one of another size: so the first is not passed, and what is leased comes back. But what a device has
/// that hangs does not, and then others are not to wait for it: so it is passed, now and then.
#[derive(Debug, Default)]
pub(super) struct Starved {
    waiting: VecDeque<Key>,
    /// Since when the first is the first.
    since: u64,
}

impl Starved {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Must all that need a buffer wait until the first has its own?
    pub(super) fn bars(&self, now: u64) -> bool {
        let turns = now.saturating_sub(self.since) / TURN;
        !self.is_empty() && turns.is_multiple_of(2)
    }

    /// Has the first waited for so long that hosts which hold memory and hardly move are to go?
    pub(super) fn is_memory_short(&self, now: u64) -> bool {
        !self.is_empty() && now.saturating_sub(self.since) >= TURN
    }

    pub(super) fn push(&mut self, request: Key, now: u64) {
        if self.is_empty() {
            self.since = now;
        }
        self.waiting.push_back(request);
    }

    pub(super) fn pop(&mut self) -> Option<Key> {
        self.waiting.pop_front()
    }

    /// It was the first, and stays it.
    pub(super) fn put_first(&mut self, request: Key) {
        self.waiting.push_front(request);
    }

    /// Behind all others: for who asks each once, after which the order is as it was.
    pub(super) fn put_last(&mut self, request: Key) {
        self.waiting.push_back(request);
    }

    /// Another is the first.
    pub(super) fn begin(&mut self, now: u64) {
        self.since = now;
    }
}
