//! How far a core's lanes are served, and how far behind the virtual time that may be.
//!
//! ```text
//!   tags of the core   ──served───────────────▶
//!                            │  + behind
//!   virtual time       ──────┴──────── lag at most ──────now──▶
//! ```
//!
//! A core that has more to do than it can falls behind the others, and no budget is what it waits for. So it has no claim on
//! what it could not take: its tags are counted from a point of its own, which moves on where it is too far behind, so whoever
//! joins at the virtual time waits for no more than that. And who comes to wait there with nothing in flight goes on a
//! little ahead of its neighbours, since its device has nothing to do until then.

use super::{Residence, VirtualTime};
use crate::Nanos;

/// A core is behind the virtual time by so many of the largest commands there are at most. While it waits for the budget,
/// what others start moves the virtual time by fewer.
pub(super) const LAG: u64 = 64;
/// Who joins with nothing in flight is ahead of the lanes that wait on its core by so many of them at most.
pub(super) const LEAD: u64 = 16;
const _: () = assert!(LEAD < LAG && LAG < Residence::MOST_CHARGES);

/// What one core's tags are counted from, and where they are.
#[derive(Debug, Default)]
pub(super) struct Level {
    /// Bytes of the virtual time that this core's tags do not count.
    behind: u64,
    /// The tag of the last lane that started something in its turn.
    served: u64,
    /// When that was.
    served_at: Nanos,
}

impl Level {
    /// A tag or a key of this core as all cores know it.
    #[inline(always)]
    pub(super) fn to_all(&self, key: u64) -> u64 {
        key.wrapping_add(self.behind)
    }

    /// The virtual time as this core's tags know it.
    #[inline(always)]
    pub(super) fn of_core(&self, now: u64) -> u64 {
        now.saturating_sub(self.behind)
    }

    /// A lane with this tag starts something in its turn.
    #[inline(always)]
    pub(super) fn serve(&mut self, tag: u64, now: Nanos, clock: &VirtualTime) {
        (self.served, self.served_at) = (tag, now);
        if let Some(now) = clock.advance(self.to_all(tag)) {
            self.keep_up(now, clock.largest());
        }
    }

    /// The tag from which a lane goes on that comes to wait. One whose device has something to do meanwhile joins at the
    /// virtual time, if `is_at_work`; others wait on this core if `has_waiting`, which is asked if it matters.
    #[inline(always)]
    pub(super) fn join(
        &mut self,
        is_at_work: bool,
        clock: &VirtualTime,
        has_waiting: impl FnOnce() -> bool,
    ) -> u64 {
        let (now, largest) = (clock.now(), clock.largest());
        let from = self.of_core(now);
        if from <= self.near_neighbours(largest) {
            return from;
        }
        if has_waiting() {
            self.keep_up(now, largest);
            let from = self.of_core(now);
            return if is_at_work { from } else { from.min(self.near_neighbours(largest)) };
        }
        // There is nobody to wait for, and who comes next does not go before this one.
        self.served = from;
        from
    }

    /// The tag of a lane that waits and is not served, since nothing of it comes back for `long`: it is a little ahead of its
    /// neighbours if these were served meanwhile, or else at the virtual time.
    pub(super) fn catch_up(
        &mut self,
        tag: u64,
        now: Nanos,
        long: Nanos,
        clock: &VirtualTime,
    ) -> u64 {
        self.keep_up(clock.now(), clock.largest());
        let from = self.of_core(clock.now());
        if now.saturating_sub(self.served_at) > long {
            return tag.max(from);
        }
        tag.max(from.min(self.near_neighbours(clock.largest())))
    }

    /// As far ahead of the lane that was served last as one with nothing in flight joins at most.
    fn near_neighbours(&self, largest: u64) -> u64 {
        self.served.saturating_add(largest.saturating_mul(LEAD))
    }

    /// Moves on where tags are counted from, if what is served is too far behind.
    #[inline(always)]
    fn keep_up(&mut self, now: u64, largest: u64) {
        let lag = largest.saturating_mul(LAG);
        if now > self.to_all(self.served).saturating_add(lag) {
            self.behind = now.saturating_sub(self.served.saturating_add(lag));
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn at(now: u64) -> Arc<VirtualTime> {
        let clock = VirtualTime::new(1);
        clock.set(now, 1);
        clock
    }

    fn served(tag: u64) -> Level {
        let mut level = Level::default();
        level.serve(tag, 1000, &at(0));
        level
    }

    #[test]
    fn a_core_that_falls_behind_counts_from_further_on() {
        let mut level = Level::default();
        level.serve(5, 1, &at(10));
        assert_eq!((level.to_all(5), level.of_core(10)), (5, 10));
        level.serve(6, 2, &at(100));
        assert_eq!((level.to_all(6), level.of_core(100)), (100 - LAG, 6 + LAG));
        // It never goes back, whatever the others do.
        level.serve(7, 3, &at(50));
        assert_eq!(level.to_all(7), 101 - LAG);
    }

    #[test]
    fn who_joins_is_near_its_neighbours_or_has_something_to_do_until_they_catch_up() {
        let mut level = served(5);
        assert_eq!(level.join(false, &at(6), || panic!("it does not matter")), 6);
        assert_eq!(level.join(false, &at(1000), || true), 5 + LEAD);
        assert_eq!(level.to_all(5), 1000 - LAG);
        assert_eq!(level.join(true, &at(1000), || true), 5 + LAG);
    }

    #[test]
    fn who_joins_alone_leaves_nothing_behind() {
        let mut level = served(5);
        let first = level.join(true, &at(1000), || false);
        assert_eq!((first, level.to_all(first)), (1000, 1000));
        // So the second does not go before it.
        assert_eq!(level.join(false, &at(1000), || true), first);
    }

    #[test]
    fn who_is_not_served_catches_up_with_its_neighbours_or_with_all() {
        let mut level = served(50);
        for (now, tag, caught_up) in [(1000, 7, 50 + LEAD), (1010, 7, 50 + LEAD), (1011, 7, 100)] {
            assert_eq!(level.catch_up(tag, now, 10, &at(100)), caught_up);
        }
        assert_eq!(level.catch_up(200, 1011, 10, &at(100)), 200);
    }

    #[test]
    fn a_core_that_is_ahead_stays_there() {
        let mut level = served(500);
        assert_eq!((level.join(false, &at(30), || true), level.to_all(500)), (30, 500));
        assert_eq!(level.catch_up(7, 1000, 10, &at(30)), 30);
    }

    #[test]
    fn nobody_is_too_far_behind_as_long_as_nothing_is_known_of_sizes() {
        let (mut level, clock) = (Level::default(), VirtualTime::new(1));
        clock.set(1 << 50, u64::MAX);
        assert_eq!(level.join(false, &clock, || true), 1 << 50);
    }
}
