//! How far a core's lanes are served, and how far behind the virtual time that may be.
//!
//! ```text
//!   tags of the core   ──served───────────────▶
//!                            │  + behind
//!   virtual time       ──────┴──────── lag at most ──────now──▶
//! ```
//!
//! A core that has more to do than it can falls behind the others, and no budget is what it waits for. So it has no claim on
//! what it could not take, and who joins at the virtual time would wait until all its neighbours have caught up with that:
//! a core's tags are counted from a point of its own, which moves on where it is too far behind.

use super::VirtualTime;

/// What one core's tags are counted from, and where they are.
#[derive(Debug, Default)]
pub(super) struct Level {
    /// Bytes of the virtual time that this core's tags do not count.
    behind: u64,
    /// The tag of the last lane that started something in its turn.
    served: u64,
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
    pub(super) fn serve(&mut self, tag: u64, clock: &VirtualTime) {
        self.served = tag;
        if let Some(now) = clock.advance(self.to_all(tag)) {
            self.keep_up(now, clock.lag());
        }
    }

    /// The tag from which a lane goes on that comes to wait; others wait on this core if `has_waiting`, which is asked if
    /// it matters.
    #[inline(always)]
    pub(super) fn join(&mut self, clock: &VirtualTime, has_waiting: impl FnOnce() -> bool) -> u64 {
        let (now, lag) = (clock.now(), clock.lag());
        if self.is_far_behind(now, lag) && !has_waiting() {
            // There is nobody to wait for.
            self.served = self.of_core(now);
        }
        self.keep_up(now, lag);
        self.of_core(now)
    }

    #[inline(always)]
    fn keep_up(&mut self, now: u64, lag: u64) {
        if self.is_far_behind(now, lag) {
            self.behind = now.saturating_sub(self.served.saturating_add(lag));
        }
    }

    #[inline(always)]
    fn is_far_behind(&self, now: u64, lag: u64) -> bool {
        now > self.to_all(self.served).saturating_add(lag)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use super::*;

    const LAG: u64 = 16;

    fn at(now: u64) -> Arc<VirtualTime> {
        let clock = VirtualTime::new(1);
        clock.set(now, LAG);
        clock
    }

    #[test]
    fn a_core_that_falls_behind_counts_from_further_on() {
        let mut level = Level::default();
        level.serve(5, &at(10));
        assert_eq!((level.to_all(5), level.of_core(10)), (5, 10));
        level.serve(6, &at(100));
        assert_eq!((level.to_all(6), level.of_core(100)), (100 - LAG, 6 + LAG));
        // It never goes back, whatever the others do.
        level.serve(7, &at(50));
        assert_eq!(level.to_all(7), 101 - LAG);
    }

    #[test]
    fn who_joins_is_ahead_of_its_neighbours_by_the_lag_at_most() {
        let mut level = Level::default();
        level.serve(5, &at(0));
        assert_eq!(level.join(&at(1000), || true), 5 + LAG);
        assert_eq!(level.join(&at(1000), || panic!("it does not matter")), 5 + LAG);
    }

    #[test]
    fn who_joins_alone_leaves_nothing_behind() {
        let mut level = Level::default();
        level.serve(5, &at(0));
        let first = level.join(&at(1000), || false);
        assert_eq!((first, level.to_all(first)), (1000, 1000));
        // So the second does not go before it.
        assert_eq!(level.join(&at(1000), || true), first);
    }

    #[test]
    fn a_core_that_is_ahead_stays_there() {
        let mut level = Level::default();
        level.serve(500, &at(20));
        assert_eq!((level.join(&at(30), || true), level.to_all(500)), (30, 500));
    }

    #[test]
    fn nobody_is_too_far_behind_as_long_as_nothing_is_known_of_sizes() {
        let (mut level, clock) = (Level::default(), VirtualTime::new(1));
        clock.set(1 << 50, u64::MAX);
        assert_eq!(level.join(&clock, || false), 1 << 50);
    }
}
