//! Periodic work that any core may do, on clocks that differ slightly.

use crate::Nanos;

/// Returns whether `pause` has passed since `last`.
///
/// Cores read the clock once per turn, so most are slightly behind the core that set `last`. Only a
/// clock that is `far` behind has jumped back; the work is due then, too.
#[inline(always)]
pub(crate) fn is_due(now: Nanos, last: Nanos, pause: Nanos, far: Nanos) -> bool {
    if now >= last { now - last >= pause } else { last - now > far }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::is_due;

    #[test]
    fn a_clock_a_little_behind_is_not_one_that_went_back() {
        let due = |now| is_due(now, 1000, 10, 100);
        assert!([1010, 1011, u64::MAX, 899, 0].into_iter().all(due));
        assert!(![900, 999, 1000, 1009].into_iter().any(due));
        assert!(is_due(1000, 1000, 0, 100));
    }
}
