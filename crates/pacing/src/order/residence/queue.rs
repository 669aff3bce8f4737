//! Lanes by key, in a circle of buckets.
//!
//! ```text
//!   bucket      base           base + 1        base + 2                base + 47
//!   keys      40 .. 48         48 .. 56        56 .. 64       ...     416 and beyond
//!   lanes    41 ─ 47 ─ 40          -              57                      900
//! ```
//!
//! A bucket is a list of lanes in the order in which they came. Which buckets have any is one word of
//! bits, so the first of them is found by one instruction, and a lane that goes in or out moves
//! nobody else, unless it comes in far below all others. The price is that keys are told apart by a
//! bucket's width alone, a part of a command. Whoever is further ahead than a lane may be put waits in the last of these, and goes on to
//! where it belongs when it comes to be the first. So does one whose key is about to come down, which
//! saves a move: it waits where it will belong.

use super::Lane;
use super::loads::Loads;

/// Lanes, one of those with the lowest keys first.
#[derive(Debug)]
pub(super) struct Queue {
    lists: [List; COUNT as usize],
    /// The places that have lanes.
    filled: u64,
    /// Number of the first bucket that may have lanes; the low bits of a number are its place.
    base: u64,
    /// A bucket's width is two to this.
    width: u32,
}

/// Where a lane is in the queue of its path.
#[derive(Debug, Clone, Copy)]
pub(super) struct Link {
    /// The lanes before and behind it in its bucket.
    before: u32,
    behind: u32,
    /// Its bucket's place, or [`OUT`].
    place: u8,
}

#[derive(Debug, Clone, Copy)]
struct List {
    first: u32,
    last: u32,
}

/// Buckets: as many as a word has bits.
const COUNT: u8 = 64;
/// Buckets that a lane goes ahead of the first at most: the rest is room for lanes whose keys become
/// lower than all others, before all of them have to be put elsewhere for one.
const REACH: u64 = 47;
/// Lanes that are looked at for one whose device has little to do, from the lowest key on. Twice as many are no better.
const LOOKED_AT: usize = 4;
/// Width before anything is known of commands, as a power of two: half of the least charge.
const FIRST_WIDTH: u32 = 11;
/// The place of a lane that is not in: nothing of it waits.
const OUT: u8 = u8::MAX;
/// No lane.
const NIL: u32 = u32::MAX;
const EMPTY: List = List { first: NIL, last: NIL };

impl Default for Queue {
    fn default() -> Self {
        let lists = [EMPTY; COUNT as usize];
        Self { lists, filled: 0, base: 0, width: FIRST_WIDTH }
    }
}

impl Default for Link {
    fn default() -> Self {
        Self { before: NIL, behind: NIL, place: OUT }
    }
}

impl Link {
    #[inline]
    pub(super) fn is_in(self) -> bool {
        self.place != OUT
    }
}

impl Queue {
    /// Is no lane in?
    pub(super) fn is_empty(&self) -> bool {
        self.filled == 0
    }

    /// The first lane of the first bucket.
    #[inline(always)]
    pub(super) fn top(&mut self, all: &mut [Lane]) -> Option<u32> {
        let from = self.base;
        while self.filled != 0 {
            // A key has no fewer bits than the number of its bucket.
            self.base = self.base.wrapping_add(self.ahead().trailing_zeros().into());
            let lane = self.lists[index(place_of(self.base))].first;
            let key = all[lane as usize].key;
            if self.bucket_of(key) <= self.base {
                return Some(lane);
            }
            // It waited here for want of a bucket as far ahead as it is, or for its key to come down.
            let is_alone = self.filled.is_power_of_two() && all[lane as usize].link.behind == NIL;
            if is_alone || self.base - from > u64::from(COUNT) {
                self.go_on(all);
            } else {
                self.moved(lane, all);
            }
        }
        None
    }

    /// Of a few lanes from the first on, as far as their keys are below `end`, the one whose device has the least in
    /// flight. `top` is the first, and its key is.
    #[inline(always)]
    pub(super) fn least_loaded_from(&self, top: u32, end: u64, loads: &Loads, all: &[Lane]) -> u32 {
        let (mut least, mut chosen) = ((u64::MAX, u64::MAX), top);
        let (mut next, mut ahead) = (top, self.ahead());
        for _ in 0..LOOKED_AT {
            let lane = &all[next as usize];
            let load = (loads.at_device(lane.way), lane.key);
            if load < least && lane.key < end {
                (least, chosen) = (load, next);
            }
            next = lane.link.behind;
            if next == NIL {
                ahead &= ahead.wrapping_sub(1);
                if ahead == 0 {
                    break;
                }
                let bucket = self.base + u64::from(ahead.trailing_zeros());
                next = self.lists[index(place_of(bucket))].first;
            }
        }
        chosen
    }

    /// Makes a bucket about so many bytes wide, if it is far from that.
    pub(super) fn set_width(&mut self, bytes: u64, all: &mut [Lane]) {
        let width = bytes.max(1).ilog2();
        if width.abs_diff(self.width) < 2 {
            return;
        }
        let first = self.take_all(all);
        self.width = width;
        self.put_all(first, all);
    }

    /// Takes a lane out, if it is in.
    pub(super) fn remove(&mut self, lane: u32, all: &mut [Lane]) {
        if all[lane as usize].link.is_in() {
            self.take(lane, all);
        }
    }

    /// The key of a lane that is in is another.
    pub(super) fn moved(&mut self, lane: u32, all: &mut [Lane]) {
        let key = all[lane as usize].key;
        self.moved_to(lane, key, all);
    }

    /// The key of a lane that is in is another. It is put where `least` belongs, which is no more than its key: if
    /// it is the first there before its key came down to that, it goes on.
    #[inline(always)]
    pub(super) fn moved_to(&mut self, lane: u32, least: u64, all: &mut [Lane]) {
        self.take(lane, all);
        self.put(lane, self.bucket_of(least), all);
    }

    /// Is a lane that is in further ahead than its key, which became lower?
    #[inline(always)]
    pub(super) fn is_beyond_its_key(&self, lane: &Lane) -> bool {
        let ahead = place_of(u64::from(lane.link.place).wrapping_sub(self.base));
        self.bucket_of(lane.key) < self.base + u64::from(ahead)
    }

    /// The number of the bucket of a key.
    #[inline(always)]
    fn bucket_of(&self, key: u64) -> u64 {
        // Below 64, and not checked for each command.
        key.wrapping_shr(self.width)
    }

    /// The places that have lanes, the base's in the lowest bit.
    #[inline(always)]
    fn ahead(&self) -> u64 {
        self.filled.rotate_right(u32::from(place_of(self.base)))
    }

    /// Puts a lane at the end of its bucket.
    #[inline(always)]
    pub(super) fn push(&mut self, lane: u32, all: &mut [Lane]) {
        self.put(lane, self.bucket_of(all[lane as usize].key), all);
    }

    /// Puts a lane at the end of a bucket, which becomes the base if it is before it.
    #[inline(always)]
    fn put(&mut self, lane: u32, bucket: u64, all: &mut [Lane]) {
        if bucket < self.base || self.filled == 0 {
            let used = u64::from(u64::BITS - self.ahead().leading_zeros());
            if self.filled != 0 && self.base - bucket + used > u64::from(COUNT) {
                return self.put_far_below(lane, bucket, all);
            }
            self.base = bucket;
        }
        self.insert(lane, bucket, all);
    }

    /// Puts a lane in a bucket that is further before the first than the circle has room: all others are put anew behind
    /// it. That takes as long as there are others, and is for lanes that come back while only such wait as are many
    /// commands ahead.
    #[cold]
    fn put_far_below(&mut self, lane: u32, bucket: u64, all: &mut [Lane]) {
        let others = self.take_all(all);
        self.base = bucket;
        self.insert(lane, bucket, all);
        self.insert_all(others, all);
    }

    /// Puts a lane at the end of a bucket, or of one as near to it as there is.
    #[inline(always)]
    fn insert(&mut self, lane: u32, bucket: u64, all: &mut [Lane]) {
        let place = place_of(bucket.max(self.base).min(self.base.wrapping_add(REACH)));
        self.filled |= bit(place);
        let list = &mut self.lists[index(place)];
        let before = std::mem::replace(&mut list.last, lane);
        if before == NIL {
            list.first = lane;
        } else {
            all[before as usize].link.behind = lane;
        }
        all[lane as usize].link = Link { before, behind: NIL, place };
    }

    /// Goes on to the lowest key, however far that is.
    #[cold]
    fn go_on(&mut self, all: &mut [Lane]) {
        let first = self.take_all(all);
        self.put_all(first, all);
    }

    /// Takes all lanes out, and yields the first of a chain of them in their order.
    fn take_all(&mut self, all: &mut [Lane]) -> u32 {
        let mut chain = EMPTY;
        while self.filled != 0 {
            let place = place_of(self.base + u64::from(self.ahead().trailing_zeros()));
            let list = std::mem::replace(&mut self.lists[index(place)], EMPTY);
            self.filled &= !bit(place);
            if chain.first == NIL {
                chain.first = list.first;
            } else {
                all[chain.last as usize].link.behind = list.first;
            }
            chain.last = list.last;
        }
        chain.first
    }

    /// Puts a chain of lanes in, where none is; the lowest key of them is where the circle begins.
    fn put_all(&mut self, first: u32, all: &mut [Lane]) {
        let (mut at, mut lowest) = (first, u64::MAX);
        while at != NIL {
            lowest = lowest.min(self.bucket_of(all[at as usize].key));
            at = all[at as usize].link.behind;
        }
        self.base = lowest;
        self.insert_all(first, all);
    }

    /// Puts a chain of lanes in, each where its key belongs, or as near to it as there is a bucket.
    fn insert_all(&mut self, first: u32, all: &mut [Lane]) {
        let mut at = first;
        while at != NIL {
            let behind = all[at as usize].link.behind;
            self.insert(at, self.bucket_of(all[at as usize].key), all);
            at = behind;
        }
    }

    /// Takes a lane that is in out of its bucket.
    #[inline(always)]
    fn take(&mut self, lane: u32, all: &mut [Lane]) {
        let Link { before, behind, place } = std::mem::take(&mut all[lane as usize].link);
        let list = &mut self.lists[index(place)];
        if before == NIL {
            list.first = behind;
        } else {
            all[before as usize].link.behind = behind;
        }
        if behind == NIL {
            list.last = before;
        } else {
            all[behind as usize].link.before = before;
        }
        if list.first == NIL {
            self.filled &= !bit(place);
        }
    }
}

/// Where the bucket of this number is.
#[inline(always)]
fn place_of(bucket: u64) -> u8 {
    let [low, ..] = bucket.to_le_bytes();
    low % COUNT
}

/// Where a place's list is; who is in has one below [`COUNT`], which is not checked for each command.
#[inline(always)]
fn index(place: u8) -> usize {
    usize::from(place % COUNT)
}

/// A place in a word of them.
#[inline(always)]
fn bit(place: u8) -> u64 {
    1_u64.wrapping_shl(u32::from(place))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LANES: u32 = 12;
    const BUCKET: u64 = 1 << FIRST_WIDTH;

    /// A queue, its lanes, and which of them are in.
    struct Model {
        queue: Queue,
        all: Vec<Lane>,
        is_in: Vec<bool>,
    }

    impl Model {
        fn new() -> Self {
            let queue = Queue::default();
            let all = vec![Lane { key: 100 * BUCKET, ..Lane::default() }; LANES as usize];
            Self { queue, all, is_in: vec![false; LANES as usize] }
        }

        fn all_in() -> Self {
            let mut model = Self::new();
            for lane in 0..LANES {
                model.join(lane);
            }
            model
        }

        fn join(&mut self, lane: u32) {
            self.is_in[lane as usize] = true;
            self.queue.push(lane, &mut self.all);
        }

        fn leave(&mut self, lane: u32) {
            self.is_in[lane as usize] = false;
            self.queue.remove(lane, &mut self.all);
        }

        fn set_key(&mut self, lane: u32, key: u64) {
            self.set_key_of_least(lane, key, key);
        }

        /// A higher key is put where `least` belongs, if that is lower.
        fn set_key_of_least(&mut self, lane: u32, key: u64, least: u64) {
            let before = std::mem::replace(&mut self.all[lane as usize].key, key);
            if !self.is_in[lane as usize] {
                return;
            }
            if key > before {
                self.queue.moved_to(lane, least.clamp(before, key), &mut self.all);
            } else if self.queue.is_beyond_its_key(&self.all[lane as usize]) {
                self.queue.moved(lane, &mut self.all);
            }
        }

        fn top(&mut self) -> Option<u32> {
            let lane = self.queue.top(&mut self.all)?;
            assert!(self.is_in[lane as usize]);
            Some(lane)
        }

        fn bucket(&self, lane: u32) -> u64 {
            self.all[lane as usize].key >> self.queue.width
        }

        /// Every lane that is in is in one bucket, where it says, and that bucket is marked.
        fn check(&self) {
            let mut found = vec![false; LANES as usize];
            for (place, list) in self.queue.lists.iter().enumerate() {
                assert_eq!(self.queue.filled >> place & 1 == 1, list.first != NIL);
                let (mut at, mut before) = (list.first, NIL);
                while at != NIL {
                    let link = self.all[at as usize].link;
                    assert_eq!((link.before, usize::from(link.place)), (before, place));
                    assert!(!std::mem::replace(&mut found[at as usize], true), "{at} twice");
                    (before, at) = (at, link.behind);
                }
                assert_eq!(list.last, before);
            }
            assert_eq!(found, self.is_in);
            for (lane, is_in) in self.all.iter().zip(&self.is_in) {
                assert_eq!(lane.link.is_in(), *is_in);
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

        /// Whoever joins, leaves and is moved to wherever: nobody is lost, and the first is one of the lowest bucket.
        #[test]
        fn the_first_is_of_the_lowest_bucket(
            spread in prop_oneof![1..=u64::from(COUNT) - 1 - REACH, Just(200), Just(100_000)],
            steps in prop::collection::vec((0..LANES, 0u8..8, 0u64..1 << 32), 1..300),
        ) {
            let mut model = Model::new();
            for (lane, what, by) in steps {
                let key = (100 * BUCKET) + by % (spread * BUCKET);
                match what {
                    0 => model.leave(lane),
                    1 => model.queue.set_width(BUCKET << (by % 8), &mut model.all),
                    _ => {
                        model.set_key_of_least(lane, key, key - by % (u64::from(what) * BUCKET));
                        if !model.is_in[lane as usize] {
                            model.join(lane);
                        }
                    }
                }
                model.check();
                let first = model.top();
                let lowest = (0..LANES).filter(|lane| model.is_in[*lane as usize]);
                let lowest = lowest.map(|lane| model.bucket(lane)).min();
                prop_assert_eq!(first.is_some(), lowest.is_some());
                prop_assert_eq!(first.map(|lane| model.bucket(lane)), lowest);
            }
        }
    }

    /// A lane beyond the last bucket waits there, and is in its place when its turn comes.
    #[test]
    fn who_is_far_ahead_comes_when_the_others_are_there() {
        let mut model = Model::all_in();
        model.set_key(3, 1000 * BUCKET);
        model.set_key(7, 900 * BUCKET);
        for (far, bucket) in [(7, 900), (3, 1000)] {
            while let Some(first) = model.top().filter(|first| *first != far) {
                assert!(model.bucket(first) <= bucket, "{far} is passed over");
                model.set_key(first, model.all[first as usize].key + BUCKET);
            }
            let others = (0..LANES).filter(|lane| ![3, 7].contains(lane));
            assert!(others.map(|lane| model.bucket(lane)).min() >= Some(bucket));
            model.set_key(far, 2000 * BUCKET);
        }
    }

    /// However far that is, it takes no walk there.
    #[test]
    fn where_all_are_far_ahead_the_lowest_is_first() {
        let mut model = Model::all_in();
        assert_eq!(model.top(), Some(0));
        for lane in 0..LANES {
            model.set_key(lane, u64::MAX / 2 - u64::from(lane) * BUCKET);
        }
        assert_eq!(model.top(), Some(LANES - 1));
        model.check();
    }

    /// The same of lanes that wait in different buckets for want of one as far ahead as they are.
    #[test]
    fn far_lanes_in_different_buckets_take_no_walk_either() {
        let mut model = Model::all_in();
        let far = u64::MAX / 4;
        model.set_key(0, far);
        for lane in 2..LANES {
            model.set_key(lane, 120 * BUCKET);
        }
        model.leave(1);
        assert_eq!(model.top(), Some(2));
        model.set_key(1, far - BUCKET);
        model.join(1);
        model.check();
        (2..LANES).for_each(|lane| model.leave(lane));
        assert_eq!(model.top(), Some(1));
        model.check();
    }

    #[test]
    fn equal_lanes_are_taken_in_turn() {
        let mut model = Model::all_in();
        for turn in 0..5 * LANES {
            let lane = turn % LANES;
            assert_eq!(model.top(), Some(lane));
            let key = model.all[lane as usize].key;
            model.set_key(lane, key + 3 * BUCKET);
        }
    }

    /// The two that wait are further ahead than the circle has room for.
    #[test]
    fn who_joins_far_below_all_others_is_first() {
        let mut model = Model::new();
        model.set_key(3, 1000 * BUCKET);
        model.set_key(4, 1001 * BUCKET);
        model.join(3);
        model.join(4);
        assert_eq!(model.top(), Some(3));
        model.join(7);
        assert_eq!(model.top(), Some(7));
        model.check();
        // And so is one below that.
        model.set_key(8, 20 * BUCKET);
        model.join(8);
        assert_eq!(model.top(), Some(8));
        model.check();
        model.leave(8);
        model.set_key(7, 1002 * BUCKET);
        assert_eq!(model.top(), Some(3));
    }

    /// Who comes back below all others is next.
    #[test]
    fn a_key_that_becomes_the_lowest_is_first() {
        let mut model = Model::all_in();
        for lane in 0..LANES {
            model.set_key(lane, (100 + u64::from(lane)) * BUCKET);
        }
        model.set_key(9, 90 * BUCKET);
        assert_eq!(model.top(), Some(9));
        model.set_key(9, 120 * BUCKET);
        assert_eq!(model.top(), Some(0));
    }
}
