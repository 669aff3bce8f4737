//! Posted sends, and the choice of signaled ones.

use std::collections::VecDeque;

use nvmeof_verbs::WrId;

/// Kind of a send's [`WrId`].
pub(super) const SEND: u8 = 1;

/// A posted command capsule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PostedCapsule {
    pub(super) id: WrId,
    /// Identifier of the command.
    pub(super) cid: u16,
    /// The device uses the command's memory until the send completes.
    pub(super) holds_memory: bool,
}

/// Entries of a send queue. An entry is free only after its send, or a later one, has completed,
/// and only signaled sends complete.
#[derive(Debug)]
pub(super) struct SendQueueSlots {
    posted: VecDeque<PostedCapsule>,
    places: usize,
    /// Every `interval`-th send is signaled.
    interval: usize,
    unsignaled: usize,
    generation: u32,
}

impl SendQueueSlots {
    /// Creates a queue of `places` entries, at least one.
    pub(super) fn new(places: usize) -> Self {
        let places = places.max(1);
        let interval = (places / 2).max(1);
        let posted = VecDeque::with_capacity(places);
        Self { posted, places, interval, unsignaled: 0, generation: 0 }
    }

    /// Free entries.
    pub(super) fn room(&self) -> usize {
        self.places - self.posted.len()
    }

    /// Takes an entry, which has to be free. Returns its identifier, and true if the send has to be
    /// signaled. Sends that hold memory are signaled, because the command waits for them. Of the
    /// others every `interval`-th is, so that entries become free.
    pub(super) fn push(&mut self, cid: u16, holds_memory: bool) -> (WrId, bool) {
        let id = WrId::new(SEND, self.generation, u32::from(cid));
        self.generation = self.generation.wrapping_add(1);
        self.posted.push_back(PostedCapsule { id, cid, holds_memory });
        let signaled = holds_memory || self.unsignaled + 1 >= self.interval;
        self.unsignaled = if signaled { 0 } else { self.unsignaled + 1 };
        (id, signaled)
    }

    /// Removes the last `count` sends, which were not posted.
    pub(super) fn pop(&mut self, count: usize) {
        self.posted.truncate(self.posted.len().saturating_sub(count));
    }

    /// Completes `id` and all earlier sends, and calls `sent` with each. Returns false if there is
    /// no send `id`.
    pub(super) fn complete(&mut self, id: WrId, mut sent: impl FnMut(PostedCapsule)) -> bool {
        let Some(last) = self.posted.iter().position(|posted| posted.id == id) else {
            return false;
        };
        self.posted.drain(..=last).for_each(&mut sent);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_queue_always_has_a_signaled_send_in_it() {
        for places in 1..=9 {
            let mut sends = SendQueueSlots::new(places);
            let mut signaled = VecDeque::new();
            for round in 0..100_u16 {
                while sends.room() > 0 {
                    let (id, is_signaled) = sends.push(round, false);
                    if is_signaled {
                        signaled.push_back(id);
                    }
                }
                let id = signaled.pop_front().expect("one that completes");
                let mut count = 0;
                assert!(sends.complete(id, |_| count += 1));
                assert_eq!(sends.room(), count, "{places} places");
                assert!(!sends.complete(id, |_| ()), "twice");
            }
        }
    }

    #[test]
    fn what_holds_memory_is_signaled_and_told_of_in_order() {
        let mut sends = SendQueueSlots::new(8);
        let (_, first) = sends.push(1, false);
        let (second, is_signaled) = sends.push(2, true);
        sends.push(3, true);
        assert_eq!((first, is_signaled), (false, true));
        let mut told = Vec::new();
        assert!(sends.complete(second, |posted| told.push((posted.cid, posted.holds_memory))));
        assert_eq!(told, [(1, false), (2, true)]);
        sends.pop(1);
        assert_eq!(sends.room(), 8);
    }
}
