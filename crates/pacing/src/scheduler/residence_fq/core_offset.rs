//! Tag offset of one core, and the limit of its lag behind virtual time.
//!
//! ```text
//!   tags of the core   ──served───────────────▶
//!                            │  + behind
//!   virtual time       ──────┴──────── maximum lag ──────now──▶
//! ```
//!
//! An overloaded core falls behind the others without waiting for budget. It has no claim on
//! service that it could not take. Its tags therefore have their own offset, which grows when the
//! core is too far behind. A flow that joins is next to its neighbors, at most a command behind
//! them.

use super::{ResidenceFairQueue, VirtualTime};
use crate::Nanos;

/// Maximum lag of a core behind virtual time, in commands of the largest size. While a core waits
/// for the budget, commands of other cores advance virtual time by less.
pub(super) const MAX_LAG: u64 = 64;
/// Maximum lead of a flow that joins over the waiting flows of its core, in the same unit.
pub(super) const MAX_LEAD: u64 = 1;
const _: () = assert!(MAX_LEAD < MAX_LAG && MAX_LAG < ResidenceFairQueue::MOST_CHARGES);

/// Tag offset of one core, and its position.
#[derive(Debug, Default)]
pub(super) struct CoreTagOffset {
    /// Offset: bytes of virtual time that the tags of this core do not count.
    behind: u64,
    /// Tag of the last flow that started a command in order.
    served: u64,
    /// Time of that start.
    served_at: Nanos,
}

impl CoreTagOffset {
    /// Converts a tag or key of this core to virtual time.
    #[inline(always)]
    pub(super) fn to_all(&self, sort_key: u64) -> u64 {
        sort_key.wrapping_add(self.behind)
    }

    /// Converts virtual time to the tags of this core.
    #[inline(always)]
    pub(super) fn of_core(&self, now: u64) -> u64 {
        now.saturating_sub(self.behind)
    }

    /// Records that a flow with this tag starts a command in order.
    #[inline(always)]
    pub(super) fn serve(&mut self, start_tag: u64, now: Nanos, virtual_time: &VirtualTime) {
        (self.served, self.served_at) = (start_tag, now);
        if let Some(now) = virtual_time.advance(self.to_all(start_tag)) {
            self.keep_up(now, virtual_time.largest());
        }
    }

    /// Returns the tag of a flow that becomes backlogged. `has_waiting` tells whether other flows
    /// wait on this core; it is called only if that matters.
    #[inline(always)]
    pub(super) fn join(
        &mut self,
        virtual_time: &VirtualTime,
        has_waiting: impl FnOnce() -> bool,
    ) -> u64 {
        let (now, largest) = (virtual_time.now(), virtual_time.largest());
        let from = self.of_core(now);
        if from <= self.near_neighbours(largest) {
            return from;
        }
        if has_waiting() {
            self.keep_up(now, largest);
            let from = self.of_core(now);
            return from.min(self.near_neighbours(largest));
        }
        // No flow waits here, and the next one to join does not go before this one.
        self.served = from;
        from
    }

    /// Returns the tag of a flow that waits without service, since it had no completion for `long`.
    /// It is slightly ahead of its neighbors if they were served in that time, and otherwise at the
    /// virtual time.
    pub(super) fn catch_up(
        &mut self,
        start_tag: u64,
        now: Nanos,
        long: Nanos,
        virtual_time: &VirtualTime,
    ) -> u64 {
        self.keep_up(virtual_time.now(), virtual_time.largest());
        let from = self.of_core(virtual_time.now());
        if now.saturating_sub(self.served_at) > long {
            return start_tag.max(from);
        }
        start_tag.max(from.min(self.near_neighbours(virtual_time.largest())))
    }

    /// Returns the maximum tag of a flow that joins, relative to the flow served last.
    fn near_neighbours(&self, largest: u64) -> u64 {
        self.served.saturating_add(largest.saturating_mul(MAX_LEAD))
    }

    /// Advances the offset if the served tags are too far behind.
    #[inline(always)]
    fn keep_up(&mut self, now: u64, largest: u64) {
        let lag = largest.saturating_mul(MAX_LAG);
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
        let virtual_time = VirtualTime::new(1);
        virtual_time.set(now, 1);
        virtual_time
    }

    fn served(start_tag: u64) -> CoreTagOffset {
        let mut core_offset = CoreTagOffset::default();
        core_offset.serve(start_tag, 1000, &at(0));
        core_offset
    }

    #[test]
    fn a_core_that_falls_behind_counts_from_further_on() {
        let mut core_offset = CoreTagOffset::default();
        core_offset.serve(5, 1, &at(10));
        assert_eq!((core_offset.to_all(5), core_offset.of_core(10)), (5, 10));
        core_offset.serve(6, 2, &at(100));
        assert_eq!((core_offset.to_all(6), core_offset.of_core(100)), (100 - MAX_LAG, 6 + MAX_LAG));
        // The offset never shrinks, whatever the other cores do.
        core_offset.serve(7, 3, &at(50));
        assert_eq!(core_offset.to_all(7), 101 - MAX_LAG);
    }

    #[test]
    fn who_joins_is_near_its_neighbours() {
        let mut core_offset = served(5);
        assert_eq!(core_offset.join(&at(6), || panic!("it does not matter")), 6);
        assert_eq!(core_offset.join(&at(1000), || true), 5 + MAX_LEAD);
        assert_eq!(core_offset.to_all(5), 1000 - MAX_LAG);
    }

    #[test]
    fn who_joins_alone_leaves_nothing_behind() {
        let mut core_offset = served(5);
        let first = core_offset.join(&at(1000), || false);
        assert_eq!((first, core_offset.to_all(first)), (1000, 1000));
        // So the second does not go before it.
        assert_eq!(core_offset.join(&at(1000), || true), first);
    }

    #[test]
    fn who_is_not_served_catches_up_with_its_neighbours_or_with_all() {
        let mut core_offset = served(50);
        for (now, start_tag, caught_up) in
            [(1000, 7, 50 + MAX_LEAD), (1010, 7, 50 + MAX_LEAD), (1011, 7, 100)]
        {
            assert_eq!(core_offset.catch_up(start_tag, now, 10, &at(100)), caught_up);
        }
        assert_eq!(core_offset.catch_up(200, 1011, 10, &at(100)), 200);
    }

    #[test]
    fn a_core_that_is_ahead_stays_there() {
        let mut core_offset = served(500);
        assert_eq!((core_offset.join(&at(30), || true), core_offset.to_all(500)), (30, 500));
        assert_eq!(core_offset.catch_up(7, 1000, 10, &at(30)), 30);
    }

    #[test]
    fn nobody_is_too_far_behind_as_long_as_nothing_is_known_of_sizes() {
        let (mut core_offset, virtual_time) = (CoreTagOffset::default(), VirtualTime::new(1));
        virtual_time.set(1 << 50, u64::MAX);
        assert_eq!(core_offset.join(&virtual_time, || true), 1 << 50);
    }
}
