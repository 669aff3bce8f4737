//! Lanes by tag: those whose tags come in order in a ring, the others in a binary heap.
//!
//! ```text
//!            front                    back
//!   ring:   tag 7 ─ tag 7 ─ gap ─ tag 9        heap:    tag 8
//!             │                     ▲                  ╱     ╲
//!             └── started, tag 11 ──┘              tag 12   tag 40
//! ```
//!
//! Lanes of equal price and weight come back in the order in which they were taken, so that nearly
//! always the one that is moved on belongs behind all others: that takes no search. Whoever does not
//! goes to the heap. The lower of the two tops is next. A lane that leaves the middle of the ring
//! leaves a gap; neither end is ever one.

use super::{Lane, Place};

/// Lanes, the one with the lowest tag first.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// A power of two of places (or none); a number's place is its low bits.
    ring: Vec<Entry>,
    /// Numbers of the first in the ring and of the next behind the last.
    front: u32,
    back: u32,
    heap: Vec<Entry>,
    members: usize,
}

/// A lane and a copy of its tag, so that to compare two takes no look at the lanes.
#[derive(Debug, Clone, Copy)]
struct Entry {
    tag: u64,
    lane: u32,
}

/// The lane of an entry of the ring that nobody has.
const GAP: u32 = u32::MAX;

impl Queue {
    /// The lane with the lowest tag, and that tag.
    #[inline(always)]
    pub(super) fn top(&self) -> Option<(u32, u64)> {
        let in_heap = self.heap.first();
        if self.front == self.back {
            return in_heap.map(|entry| (entry.lane, entry.tag));
        }
        let first = self.ring[self.place_of(self.front)];
        match in_heap {
            Some(entry) if entry.tag < first.tag => Some((entry.lane, entry.tag)),
            _ => Some((first.lane, first.tag)),
        }
    }

    /// Its lanes for each of so many, at least 1.
    pub(super) fn shared_by(&self, many: u64) -> u64 {
        (self.members as u64 / many).max(1)
    }

    /// Makes room for so many lanes.
    pub(super) fn reserve(&mut self, lanes: usize) {
        self.heap.reserve(lanes.saturating_sub(self.heap.len()));
        // Twice as many, so that gaps seldom fill it.
        let room = (2 * lanes).next_power_of_two();
        if room <= self.ring.len() {
            return;
        }
        let mut ring = vec![Entry { tag: 0, lane: GAP }; room];
        let mut number = self.front;
        while number != self.back {
            ring[number as usize & (room - 1)] = self.ring[self.place_of(number)];
            number = number.wrapping_add(1);
        }
        self.ring = ring;
    }

    pub(super) fn push(&mut self, lane: u32, all: &mut [Lane]) {
        self.members += 1;
        self.insert(Entry { tag: all[lane as usize].tag, lane }, all);
    }

    pub(super) fn remove(&mut self, lane: u32, all: &mut [Lane]) {
        match std::mem::take(&mut all[lane as usize].place) {
            Place::Out => return,
            Place::Ring(number) => self.take_out(number),
            Place::Heap(at) => self.remove_from_heap(at, all),
        }
        self.members -= 1;
    }

    /// The tag of a lane that is in has gone up, by a usual charge or by a high one.
    #[inline(always)]
    pub(super) fn later(&mut self, lane: u32, is_usual: bool, all: &mut [Lane]) {
        let Lane { place, tag, .. } = all[lane as usize];
        let entry = Entry { tag, lane };
        match place {
            Place::Ring(number) if number == self.front && is_usual => {
                self.front = number.wrapping_add(1);
                if self.front != self.back && self.ring[self.place_of(self.front)].lane == GAP {
                    self.skip_gaps();
                }
                self.insert(entry, all);
            }
            place => self.later_elsewhere(entry, place, is_usual, all),
        }
    }

    fn later_elsewhere(&mut self, entry: Entry, place: Place, is_usual: bool, all: &mut [Lane]) {
        match place {
            Place::Out => {}
            Place::Ring(number) => {
                self.take_out(number);
                if is_usual { self.insert(entry, all) } else { self.push_heap(entry, all) }
            }
            Place::Heap(at) if is_usual && self.is_last(entry.tag) => {
                self.remove_from_heap(at, all);
                self.insert(entry, all);
            }
            Place::Heap(at) => {
                self.heap[at as usize].tag = entry.tag;
                self.sift_down(at, all);
            }
        }
    }

    #[inline(always)]
    fn place_of(&self, number: u32) -> usize {
        number as usize & self.ring.len().wrapping_sub(1)
    }

    /// Does this tag belong behind the ring, and is there room?
    #[inline(always)]
    fn is_last(&self, tag: u64) -> bool {
        if self.front == self.back {
            return !self.ring.is_empty();
        }
        let used = self.back.wrapping_sub(self.front) as usize;
        self.ring[self.place_of(self.back.wrapping_sub(1))].tag <= tag && used < self.ring.len()
    }

    #[inline(always)]
    fn insert(&mut self, entry: Entry, all: &mut [Lane]) {
        if !self.is_last(entry.tag) {
            return self.push_heap(entry, all);
        }
        all[entry.lane as usize].place = Place::Ring(self.back);
        let place = self.place_of(self.back);
        self.ring[place] = entry;
        self.back = self.back.wrapping_add(1);
    }

    /// Takes an entry out of the ring.
    #[inline(never)]
    fn take_out(&mut self, number: u32) {
        let place = self.place_of(number);
        self.ring[place].lane = GAP;
        self.skip_gaps();
    }

    /// Neither end of the ring stays a gap.
    #[inline(never)]
    fn skip_gaps(&mut self) {
        while self.front != self.back && self.ring[self.place_of(self.front)].lane == GAP {
            self.front = self.front.wrapping_add(1);
        }
        while self.front != self.back
            && self.ring[self.place_of(self.back.wrapping_sub(1))].lane == GAP
        {
            self.back = self.back.wrapping_sub(1);
        }
    }

    #[inline(never)]
    fn push_heap(&mut self, entry: Entry, all: &mut [Lane]) {
        let at = u32::try_from(self.heap.len()).unwrap_or(u32::MAX);
        self.heap.push(entry);
        self.sift_up(at, all);
    }

    fn remove_from_heap(&mut self, at: u32, all: &mut [Lane]) {
        let Some(last) = self.heap.pop() else { return };
        if let Some(entry) = self.heap.get_mut(at as usize) {
            *entry = last;
            let at = self.sift_up(at, all);
            self.sift_down(at, all);
        }
    }

    /// Yields where it came to.
    fn sift_up(&mut self, mut at: u32, all: &mut [Lane]) -> u32 {
        let entries = self.heap.as_mut_slice();
        let moved = entries[at as usize];
        while at > 0 {
            let above = (at - 1) >> 1;
            let parent = entries[above as usize];
            if moved.tag >= parent.tag {
                break;
            }
            entries[at as usize] = parent;
            all[parent.lane as usize].place = Place::Heap(at);
            at = above;
        }
        entries[at as usize] = moved;
        all[moved.lane as usize].place = Place::Heap(at);
        at
    }

    fn sift_down(&mut self, mut at: u32, all: &mut [Lane]) {
        let entries = self.heap.as_mut_slice();
        let moved = entries[at as usize];
        loop {
            let left = at << 1 | 1;
            let (child, below) = match entries.get(left as usize..) {
                Some([one, other, ..]) => {
                    let is_other = other.tag < one.tag;
                    let child = left.wrapping_add(u32::from(is_other));
                    (child, *if is_other { other } else { one })
                }
                Some(&[one]) => (left, one),
                _ => break,
            };
            if moved.tag <= below.tag {
                break;
            }
            entries[at as usize] = below;
            all[below.lane as usize].place = Place::Heap(at);
            at = child;
        }
        entries[at as usize] = moved;
        all[moved.lane as usize].place = Place::Heap(at);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LANES: u32 = 12;

    /// A queue, its lanes, and which of them are in.
    struct Model {
        queue: Queue,
        all: Vec<Lane>,
        is_in: Vec<bool>,
    }

    impl Model {
        fn new() -> Self {
            let mut queue = Queue::default();
            queue.reserve(LANES as usize);
            let all = vec![Lane::default(); LANES as usize];
            Self { queue, all, is_in: vec![false; LANES as usize] }
        }

        fn act(&mut self, lane: u32, what: u8, by: u64) {
            let at = lane as usize;
            match (what, self.is_in[at]) {
                (0, true) => {
                    self.queue.remove(lane, &mut self.all);
                    self.is_in[at] = false;
                }
                (0 | 1, false) => {
                    self.all[at].tag += by;
                    self.queue.push(lane, &mut self.all);
                    self.is_in[at] = true;
                }
                (1, true) => {
                    self.all[at].tag += by;
                    self.queue.later(lane, by < 5, &mut self.all);
                }
                _ => {
                    // Whoever is next, by the usual charge.
                    let Some((next, _)) = self.queue.top() else { return };
                    self.all[next as usize].tag += 3;
                    self.queue.later(next, true, &mut self.all);
                }
            }
        }

        fn check(&self) {
            let lowest = (0..LANES as usize).filter(|lane| self.is_in[*lane]);
            let lowest = lowest.map(|lane| self.all[lane].tag).min();
            assert_eq!(self.queue.top().map(|(_, tag)| tag), lowest);
            let members = self.is_in.iter().filter(|is_in| **is_in).count();
            assert_eq!(self.queue.members, members);
            for (lane, is_in) in (0..).zip(&self.is_in) {
                let entry = match self.all[lane as usize].place {
                    Place::Out => None,
                    Place::Ring(number) => Some(self.queue.ring[self.queue.place_of(number)]),
                    Place::Heap(at) => Some(self.queue.heap[at as usize]),
                };
                let found = entry.map(|entry| (entry.lane, entry.tag));
                assert_eq!(found, is_in.then(|| (lane, self.all[lane as usize].tag)));
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

        /// The first is the lowest whoever joins, leaves and is moved on, and every lane is where
        /// it says.
        #[test]
        fn the_first_is_the_lowest(
            steps in prop::collection::vec((0..LANES, 0u8..5, 0u64..9), 1..300),
        ) {
            let mut model = Model::new();
            for (lane, what, by) in steps {
                model.act(lane, what, by);
                model.check();
            }
        }
    }

    /// Room for more lanes keeps who is in where it is.
    #[test]
    fn room_for_more_moves_nobody() {
        let mut model = Model::new();
        for lane in 0..LANES {
            model.act(lane, 1, 1);
        }
        for _ in 0..30 {
            model.act(0, 9, 0);
        }
        model.queue.reserve(100);
        model.check();
        assert!(model.queue.heap.is_empty(), "equal lanes come in order");
    }

    #[test]
    fn equal_lanes_are_taken_in_turn() {
        let mut model = Model::new();
        for lane in 0..LANES {
            model.act(lane, 1, 0);
        }
        for turn in 0..5 * LANES {
            assert_eq!(model.queue.top().map(|(lane, _)| lane), Some(turn % LANES));
            model.act(0, 9, 0);
        }
    }
}
