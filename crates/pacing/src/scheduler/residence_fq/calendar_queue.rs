//! Calendar queue (Brown 1988): flows by key, in a ring of buckets.
//!
//! ```text
//!   bucket      base           base + 1        base + 2                base + 47
//!   keys      40 .. 48         48 .. 56        56 .. 64       ...     416 and beyond
//!   flows    41 ─ 47 ─ 40          -              57                      900
//! ```
//!
//! A bucket is a list of flows in order of insertion. One word of bits marks the nonempty buckets,
//! so one instruction finds the first. Inserting or removing a flow moves no other flow, unless it
//! is far below all others. The price is a resolution of one bucket width, a part of a command.
//!
//! A flow beyond the last usable bucket waits in that bucket, and moves to its place when it
//! becomes first. So does a flow whose key is about to fall. That saves a move: it waits where it
//! will belong.

use super::FlowState;
use super::in_flight::InFlightView;

/// Flows; one of those with the lowest keys is first.
#[derive(Debug)]
pub(super) struct CalendarQueue {
    lists: [KeyBucket; COUNT as usize],
    /// Bit per place that has flows.
    filled: u64,
    /// Number of the first bucket that may have flows; its low bits are its place.
    base: u64,
    /// Width of a bucket, as a power of two.
    width: u32,
}

/// Position of a flow in the queue of its port.
#[derive(Debug, Clone, Copy)]
pub(super) struct BucketLink {
    /// Neighbors in its bucket.
    before: u32,
    behind: u32,
    /// Place of its bucket, or [`OUT`].
    place: u8,
}

#[derive(Debug, Clone, Copy)]
struct KeyBucket {
    first: u32,
    last: u32,
}

/// Buckets: one per bit of a word.
const COUNT: u8 = 64;
/// Largest distance of a flow's bucket from the first one. The rest is room for keys that fall
/// below all others, before all flows have to be moved for one.
const REACH: u64 = 47;
/// Flows that are compared by the load of their device, from the lowest key on. Twice the number is
/// no better.
const LOOKED_AT: usize = 4;
/// Initial width, as a power of two: half of the least charge.
const FIRST_WIDTH: u32 = 11;
/// Place of a flow that is not in: it has no waiting commands.
const OUT: u8 = u8::MAX;
/// No flow.
const NIL: u32 = u32::MAX;
const EMPTY: KeyBucket = KeyBucket { first: NIL, last: NIL };

impl Default for CalendarQueue {
    fn default() -> Self {
        let lists = [EMPTY; COUNT as usize];
        Self { lists, filled: 0, base: 0, width: FIRST_WIDTH }
    }
}

impl Default for BucketLink {
    fn default() -> Self {
        Self { before: NIL, behind: NIL, place: OUT }
    }
}

impl BucketLink {
    #[inline]
    pub(super) fn is_in(self) -> bool {
        self.place != OUT
    }
}

impl CalendarQueue {
    /// Returns whether no flow is in.
    pub(super) fn is_empty(&self) -> bool {
        self.filled == 0
    }

    /// Returns the first flow of the first bucket.
    #[inline(always)]
    pub(super) fn top(&mut self, all: &mut [FlowState]) -> Option<u32> {
        let from = self.base;
        while self.filled != 0 {
            // A key has at least as many bits as the number of its bucket.
            self.base = self.base.wrapping_add(self.ahead().trailing_zeros().into());
            let flow = self.lists[index(place_of(self.base))].first;
            let sort_key = all[flow as usize].sort_key;
            if self.bucket_of(sort_key) <= self.base {
                return Some(flow);
            }
            // It waits here because no bucket is that far ahead, or because its key was about to
            // fall.
            let is_alone = self.filled.is_power_of_two() && all[flow as usize].link.behind == NIL;
            if is_alone || self.base - from > u64::from(COUNT) {
                self.go_on(all);
            } else {
                self.moved(flow, all);
            }
        }
        None
    }

    /// Returns the flow whose device has the least in flight, among the first few flows with keys
    /// below `end`. `top` is the first of them.
    #[inline(always)]
    pub(super) fn least_loaded_from(
        &self,
        top: u32,
        end: u64,
        in_flight_view: &InFlightView,
        all: &[FlowState],
    ) -> u32 {
        let (mut least, mut chosen) = ((u64::MAX, u64::MAX), top);
        let (mut next, mut ahead) = (top, self.ahead());
        for _ in 0..LOOKED_AT {
            let flow = &all[next as usize];
            let load = (in_flight_view.at_device(flow.device_port), flow.sort_key);
            if load < least && flow.sort_key < end {
                (least, chosen) = (load, next);
            }
            next = flow.link.behind;
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

    /// Sets the bucket width to about `bytes`, if it differs much.
    pub(super) fn set_width(&mut self, bytes: u64, all: &mut [FlowState]) {
        let width = bytes.max(1).ilog2();
        if width.abs_diff(self.width) < 2 {
            return;
        }
        let first = self.take_all(all);
        self.width = width;
        self.put_all(first, all);
    }

    /// Removes a flow, if it is in.
    pub(super) fn remove(&mut self, flow: u32, all: &mut [FlowState]) {
        if all[flow as usize].link.is_in() {
            self.take(flow, all);
        }
    }

    /// Moves a flow that is in after its key has changed.
    pub(super) fn moved(&mut self, flow: u32, all: &mut [FlowState]) {
        let sort_key = all[flow as usize].sort_key;
        self.moved_to(flow, sort_key, all);
    }

    /// Moves a flow that is in after its key has changed. It is put where `least` belongs, which is
    /// at most its key: if it becomes first there before its key has fallen to that, it moves on.
    #[inline(always)]
    pub(super) fn moved_to(&mut self, flow: u32, least: u64, all: &mut [FlowState]) {
        self.take(flow, all);
        self.put(flow, self.bucket_of(least), all);
    }

    /// Returns whether a flow that is in lies further ahead than its key, which fell.
    #[inline(always)]
    pub(super) fn is_beyond_its_key(&self, flow: &FlowState) -> bool {
        let ahead = place_of(u64::from(flow.link.place).wrapping_sub(self.base));
        self.bucket_of(flow.sort_key) < self.base + u64::from(ahead)
    }

    /// Returns the bucket number of a key.
    #[inline(always)]
    fn bucket_of(&self, sort_key: u64) -> u64 {
        // The shift is below 64, which is not checked for each command.
        sort_key.wrapping_shr(self.width)
    }

    /// Returns the bits of indices with flows, the base's in the lowest bit.
    #[inline(always)]
    fn ahead(&self) -> u64 {
        self.filled.rotate_right(u32::from(place_of(self.base)))
    }

    /// Appends a flow to its bucket.
    #[inline(always)]
    pub(super) fn push(&mut self, flow: u32, all: &mut [FlowState]) {
        self.put(flow, self.bucket_of(all[flow as usize].sort_key), all);
    }

    /// Appends a flow to a bucket. If the bucket is before the base, it becomes the base.
    #[inline(always)]
    fn put(&mut self, flow: u32, bucket: u64, all: &mut [FlowState]) {
        if bucket < self.base || self.filled == 0 {
            let used = u64::from(u64::BITS - self.ahead().leading_zeros());
            if self.filled != 0 && self.base - bucket + used > u64::from(COUNT) {
                return self.put_far_below(flow, bucket, all);
            }
            self.base = bucket;
        }
        self.insert(flow, bucket, all);
    }

    /// Puts a flow in a bucket further before the first than the ring has room: all other flows are
    /// inserted again behind it. That takes time in proportion to their number. It happens if a
    /// flow resumes while only flows many commands ahead wait.
    #[cold]
    fn put_far_below(&mut self, flow: u32, bucket: u64, all: &mut [FlowState]) {
        let others = self.take_all(all);
        self.base = bucket;
        self.insert(flow, bucket, all);
        self.insert_all(others, all);
    }

    /// Appends a flow to a bucket, or to the nearest one available.
    #[inline(always)]
    fn insert(&mut self, flow: u32, bucket: u64, all: &mut [FlowState]) {
        let place = place_of(bucket.max(self.base).min(self.base.wrapping_add(REACH)));
        self.filled |= bit(place);
        let list = &mut self.lists[index(place)];
        let before = std::mem::replace(&mut list.last, flow);
        if before == NIL {
            list.first = flow;
        } else {
            all[before as usize].link.behind = flow;
        }
        all[flow as usize].link = BucketLink { before, behind: NIL, place };
    }

    /// Moves on to the lowest key, however far.
    #[cold]
    fn go_on(&mut self, all: &mut [FlowState]) {
        let first = self.take_all(all);
        self.put_all(first, all);
    }

    /// Removes all flows, and returns the head of a chain of them in their order.
    fn take_all(&mut self, all: &mut [FlowState]) -> u32 {
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

    /// Inserts a chain of flows into an empty queue; the ring begins at their lowest key.
    fn put_all(&mut self, first: u32, all: &mut [FlowState]) {
        let (mut at, mut lowest) = (first, u64::MAX);
        while at != NIL {
            lowest = lowest.min(self.bucket_of(all[at as usize].sort_key));
            at = all[at as usize].link.behind;
        }
        self.base = lowest;
        self.insert_all(first, all);
    }

    /// Inserts a chain of flows, each at its key, or at the nearest available bucket.
    fn insert_all(&mut self, first: u32, all: &mut [FlowState]) {
        let mut at = first;
        while at != NIL {
            let behind = all[at as usize].link.behind;
            self.insert(at, self.bucket_of(all[at as usize].sort_key), all);
            at = behind;
        }
    }

    /// Removes a flow that is in from its bucket.
    #[inline(always)]
    fn take(&mut self, flow: u32, all: &mut [FlowState]) {
        let BucketLink { before, behind, place } = std::mem::take(&mut all[flow as usize].link);
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

/// Returns the place of a bucket number.
#[inline(always)]
fn place_of(bucket: u64) -> u8 {
    let [low, ..] = bucket.to_le_bytes();
    low % COUNT
}

/// Returns the list index of a place. A flow that is in has a place below [`COUNT`], which is not
/// checked for each command.
#[inline(always)]
fn index(place: u8) -> usize {
    usize::from(place % COUNT)
}

/// Returns the bit of a place.
#[inline(always)]
fn bit(place: u8) -> u64 {
    1_u64.wrapping_shl(u32::from(place))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FLOWS: u32 = 12;
    const BUCKET: u64 = 1 << FIRST_WIDTH;

    /// A queue, its flows, and the flows that are in.
    struct Model {
        queue: CalendarQueue,
        all: Vec<FlowState>,
        is_in: Vec<bool>,
    }

    impl Model {
        fn new() -> Self {
            let queue = CalendarQueue::default();
            let all =
                vec![FlowState { sort_key: 100 * BUCKET, ..FlowState::default() }; FLOWS as usize];
            Self { queue, all, is_in: vec![false; FLOWS as usize] }
        }

        fn all_in() -> Self {
            let mut model = Self::new();
            for flow in 0..FLOWS {
                model.join(flow);
            }
            model
        }

        fn join(&mut self, flow: u32) {
            self.is_in[flow as usize] = true;
            self.queue.push(flow, &mut self.all);
        }

        fn leave(&mut self, flow: u32) {
            self.is_in[flow as usize] = false;
            self.queue.remove(flow, &mut self.all);
        }

        fn set_key(&mut self, flow: u32, sort_key: u64) {
            self.set_key_of_least(flow, sort_key, sort_key);
        }

        /// A higher key is put where `least` belongs, if that is lower.
        fn set_key_of_least(&mut self, flow: u32, sort_key: u64, least: u64) {
            let before = std::mem::replace(&mut self.all[flow as usize].sort_key, sort_key);
            if !self.is_in[flow as usize] {
                return;
            }
            if sort_key > before {
                self.queue.moved_to(flow, least.clamp(before, sort_key), &mut self.all);
            } else if self.queue.is_beyond_its_key(&self.all[flow as usize]) {
                self.queue.moved(flow, &mut self.all);
            }
        }

        fn top(&mut self) -> Option<u32> {
            let flow = self.queue.top(&mut self.all)?;
            assert!(self.is_in[flow as usize]);
            Some(flow)
        }

        fn bucket(&self, flow: u32) -> u64 {
            self.all[flow as usize].sort_key >> self.queue.width
        }

        /// Checks that every flow that is in is in exactly the bucket of its link, and that this
        /// bucket is marked.
        fn check(&self) {
            let mut found = vec![false; FLOWS as usize];
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
            for (flow, is_in) in self.all.iter().zip(&self.is_in) {
                assert_eq!(flow.link.is_in(), *is_in);
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

        /// After any joins, leaves and moves no flow is lost, and the first is one of the lowest
        /// bucket.
        #[test]
        fn the_first_is_of_the_lowest_bucket(
            spread in prop_oneof![1..=u64::from(COUNT) - 1 - REACH, Just(200), Just(100_000)],
            steps in prop::collection::vec((0..FLOWS, 0u8..8, 0u64..1 << 32), 1..300),
        ) {
            let mut model = Model::new();
            for (flow, what, by) in steps {
                let sort_key = (100 * BUCKET) + by % (spread * BUCKET);
                match what {
                    0 => model.leave(flow),
                    1 => model.queue.set_width(BUCKET << (by % 8), &mut model.all),
                    _ => {
                        model.set_key_of_least(flow, sort_key, sort_key - by % (u64::from(what) * BUCKET));
                        if !model.is_in[flow as usize] {
                            model.join(flow);
                        }
                    }
                }
                model.check();
                let first = model.top();
                let lowest = (0..FLOWS).filter(|flow| model.is_in[*flow as usize]);
                let lowest = lowest.map(|flow| model.bucket(flow)).min();
                prop_assert_eq!(first.is_some(), lowest.is_some());
                prop_assert_eq!(first.map(|flow| model.bucket(flow)), lowest);
            }
        }
    }

    /// A flow beyond the last bucket waits there, and is in its place when its turn comes.
    #[test]
    fn who_is_far_ahead_comes_when_the_others_are_there() {
        let mut model = Model::all_in();
        model.set_key(3, 1000 * BUCKET);
        model.set_key(7, 900 * BUCKET);
        for (far, bucket) in [(7, 900), (3, 1000)] {
            while let Some(first) = model.top().filter(|first| *first != far) {
                assert!(model.bucket(first) <= bucket, "{far} is passed over");
                model.set_key(first, model.all[first as usize].sort_key + BUCKET);
            }
            let others = (0..FLOWS).filter(|flow| ![3, 7].contains(flow));
            assert!(others.map(|flow| model.bucket(flow)).min() >= Some(bucket));
            model.set_key(far, 2000 * BUCKET);
        }
    }

    /// Any distance takes a single step.
    #[test]
    fn where_all_are_far_ahead_the_lowest_is_first() {
        let mut model = Model::all_in();
        assert_eq!(model.top(), Some(0));
        for flow in 0..FLOWS {
            model.set_key(flow, u64::MAX / 2 - u64::from(flow) * BUCKET);
        }
        assert_eq!(model.top(), Some(FLOWS - 1));
        model.check();
    }

    /// As above, for flows that wait in different buckets because none is that far ahead.
    #[test]
    fn far_flows_in_different_buckets_take_no_walk_either() {
        let mut model = Model::all_in();
        let far = u64::MAX / 4;
        model.set_key(0, far);
        for flow in 2..FLOWS {
            model.set_key(flow, 120 * BUCKET);
        }
        model.leave(1);
        assert_eq!(model.top(), Some(2));
        model.set_key(1, far - BUCKET);
        model.join(1);
        model.check();
        (2..FLOWS).for_each(|flow| model.leave(flow));
        assert_eq!(model.top(), Some(1));
        model.check();
    }

    #[test]
    fn equal_flows_are_taken_in_turn() {
        let mut model = Model::all_in();
        for turn in 0..5 * FLOWS {
            let flow = turn % FLOWS;
            assert_eq!(model.top(), Some(flow));
            let sort_key = model.all[flow as usize].sort_key;
            model.set_key(flow, sort_key + 3 * BUCKET);
        }
    }

    /// The two waiting flows are further ahead than the ring has room.
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
        // A flow below that one is first, too.
        model.set_key(8, 20 * BUCKET);
        model.join(8);
        assert_eq!(model.top(), Some(8));
        model.check();
        model.leave(8);
        model.set_key(7, 1002 * BUCKET);
        assert_eq!(model.top(), Some(3));
    }

    /// A flow that resumes below all others is next.
    #[test]
    fn a_key_that_becomes_the_lowest_is_first() {
        let mut model = Model::all_in();
        for flow in 0..FLOWS {
            model.set_key(flow, (100 + u64::from(flow)) * BUCKET);
        }
        model.set_key(9, 90 * BUCKET);
        assert_eq!(model.top(), Some(9));
        model.set_key(9, 120 * BUCKET);
        assert_eq!(model.top(), Some(0));
    }
}
