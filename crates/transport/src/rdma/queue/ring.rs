//! Content of the send queue, by position.
//!
//! Work requests occupy slots in order and execute in order; most of them are unsignaled. A
//! completion, successful or not, shows that all earlier work has ended, and frees those slots. At
//! least one request in half a queue is signaled, so that a completion always follows.

use std::collections::VecDeque;

use nvmeof_verbs::WrId;

use crate::rdma::kind;

/// A work request in the send queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Posted {
    /// Part of a pull, by its index in the table.
    Read { pull: u32 },
    /// Part of a response's data, with its payload if it is the last part.
    Write { payload: Option<u32> },
    /// A response.
    Send,
    /// No operation, at the very end.
    Marker,
}

impl Posted {
    fn kind(self) -> u8 {
        match self {
            Self::Read { .. } => kind::READ,
            Self::Write { .. } => kind::WRITE,
            Self::Send => kind::SEND,
            Self::Marker => kind::MARKER,
        }
    }
}

/// The slots of the send queue.
#[derive(Debug)]
pub(super) struct SendQueueSlots {
    held: VecDeque<Posted>,
    /// Number of the first of them, counted from the queue's start.
    head: u64,
    /// Number of slots, with one more for a marker.
    places: u32,
    /// Number of unsignaled work requests at the end of the queue.
    silent: u64,
}

impl SendQueueSlots {
    /// Creates a queue of `places`; numbers start with `generation`.
    pub(super) fn new(places: u32, generation: u32) -> Self {
        let places = places.max(1) + 1;
        Self {
            held: VecDeque::with_capacity(places as usize),
            head: u64::from(places) * u64::from(generation),
            places,
            silent: 0,
        }
    }

    /// Returns the number of free slots.
    pub(super) fn room(&self) -> usize {
        (self.capacity()).saturating_sub(self.held.len())
    }

    /// Returns the number of slots.
    pub(super) fn capacity(&self) -> usize {
        self.places as usize - 1
    }

    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Returns the number of work requests that have ended since the start.
    pub(super) fn ended(&self) -> u64 {
        self.head
    }

    /// Returns true if the work posted last is unsignaled.
    pub(super) fn ends_silent(&self) -> bool {
        self.silent > 0
    }

    /// Returns the slot of the next work request, below `capacity() + 1`.
    pub(super) fn next_slot(&self) -> usize {
        self.slot_of(self.tail()) as usize
    }

    /// Occupies a slot; returns its identifier, and true if the request must be signaled.
    ///
    /// `wanted` requests a signal in any case.
    pub(super) fn push(&mut self, what: Posted, wanted: bool) -> (WrId, bool) {
        let id = self.id_of(self.tail(), what);
        self.held.push_back(what);
        let signaled = wanted || 2 * (self.silent + 1) >= u64::from(self.places - 1);
        self.silent = if signaled { 0 } else { self.silent + 1 };
        (id, signaled)
    }

    /// Removes the newest entry, which was not posted after all. No entry is added after this.
    pub(super) fn pop(&mut self) -> Option<Posted> {
        // The number of unsignaled requests before it is unknown now; a marker resolves that.
        self.silent = 1;
        self.held.pop_back()
    }

    /// Handles a completion: passes all work that has ended to `ended`, in order.
    ///
    /// The flag is true for the last one, which is the completed work. Returns false if the
    /// identifier belongs to no entry.
    pub(super) fn complete(&mut self, id: WrId, mut ended: impl FnMut(Posted, bool)) -> bool {
        if id.slot() >= self.places {
            return false;
        }
        let head = self.slot_of(self.head);
        let offset = if id.slot() < head { self.places } else { 0 } + id.slot() - head;
        let index = offset as usize;
        let is_it = |what: &Posted| self.id_of(self.head + u64::from(offset), *what) == id;
        if !self.held.get(index).is_some_and(is_it) {
            return false;
        }
        for at in 0..=index {
            if let Some(what) = self.held.pop_front() {
                self.head += 1;
                ended(what, at == index);
            }
        }
        self.silent = self.silent.min(self.held.len() as u64);
        true
    }

    fn tail(&self) -> u64 {
        self.head + self.held.len() as u64
    }

    fn id_of(&self, number: u64, what: Posted) -> WrId {
        let generation = number / u64::from(self.places) % u64::from(WrId::GENERATIONS);
        let generation = u32::try_from(generation).expect("a remainder of a 32-bit number");
        WrId::new(what.kind(), generation, self.slot_of(number))
    }

    fn slot_of(&self, number: u64) -> u32 {
        let slot = number % u64::from(self.places);
        u32::try_from(slot).expect("a remainder of a 32-bit number")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complete(ring: &mut SendQueueSlots, id: WrId) -> Option<Vec<(Posted, bool)>> {
        let mut ended = Vec::new();
        ring.complete(id, |what, last| ended.push((what, last))).then_some(ended)
    }

    #[test]
    fn a_completion_frees_what_came_before() {
        let mut ring = SendQueueSlots::new(8, 3);
        let write = Posted::Write { payload: Some(1) };
        let (first, _) = ring.push(write, true);
        ring.push(Posted::Send, false);
        let (third, _) = ring.push(Posted::Read { pull: 0 }, true);
        assert_eq!(ring.room(), 5);
        assert_eq!(complete(&mut ring, first), Some(vec![(write, true)]));
        assert_eq!(complete(&mut ring, first), None, "the same one twice");
        let ended = vec![(Posted::Send, false), (Posted::Read { pull: 0 }, true)];
        assert_eq!(complete(&mut ring, third), Some(ended));
        assert!(ring.is_empty());
    }

    #[test]
    fn what_is_stale_frees_nothing() {
        let mut ring = SendQueueSlots::new(4, 0);
        let (old, _) = ring.push(Posted::Send, true);
        complete(&mut ring, old).unwrap();
        for _ in 0..9 {
            let (id, _) = ring.push(Posted::Send, true);
            assert_eq!(complete(&mut ring, old), None);
            let other = WrId::new(kind::WRITE, id.generation(), id.slot());
            assert_eq!(complete(&mut ring, other), None);
            complete(&mut ring, id).unwrap();
        }
        assert_eq!(complete(&mut ring, WrId::new(kind::SEND, 0, 99)), None);
    }

    #[test]
    fn silence_never_lasts_for_half_the_queue() {
        for places in 1..20 {
            let mut ring = SendQueueSlots::new(places, 0);
            let mut heard = Vec::new();
            for _ in 0..1000 {
                if ring.room() == 0 {
                    let id = heard.pop().expect("a full queue of which nothing will be heard");
                    complete(&mut ring, id).unwrap();
                    heard.clear();
                    continue;
                }
                let (id, signaled) = ring.push(Posted::Send, false);
                if signaled {
                    heard.push(id);
                }
                assert_eq!(ring.ends_silent(), !signaled);
            }
        }
    }
}
