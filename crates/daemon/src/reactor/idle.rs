//! Choice between spinning and sleeping for a reactor without work.
//!
//! A wake-up costs several microseconds, which at depth 1 is most of a command's latency. Spinning
//! costs a core. The spin time therefore follows its recent success. It stays while the next
//! command tends to arrive within [`LONGEST`], and shrinks to zero otherwise.

use std::time::Duration;

/// Longest spin in nanoseconds. The reactor sleeps through longer gaps.
const LONGEST: u64 = 100_000;
/// First spin in nanoseconds after a quiet time.
const SHORTEST: u64 = 5_000;

/// Chooses between spinning and sleeping.
#[derive(Debug)]
pub(crate) struct Idle {
    always_spin: bool,
    window: u64,
    idle_since: Option<u64>,
    slept_at: Option<u64>,
}

/// Action of a turn that found no work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IdleAction {
    /// Poll again immediately.
    Spin,
    /// Wait for an event.
    Sleep,
}

impl Idle {
    pub(crate) fn new(always_spin: bool) -> Self {
        Self { always_spin, window: LONGEST, idle_since: None, slept_at: None }
    }

    /// Records a turn that found work.
    #[inline]
    pub(crate) fn busy(&mut self, now: u64) {
        if let Some(slept_at) = self.slept_at.take() {
            // Work arrived after `gap` without work. A spin of that length would have avoided the
            // wake-up.
            let gap = now.saturating_sub(slept_at);
            self.window = if gap <= LONGEST {
                (self.window * 2).clamp(SHORTEST, LONGEST)
            } else {
                self.window / 2
            };
        }
        self.idle_since = None;
    }

    /// Records a turn that found no work, and returns the action.
    #[inline]
    pub(crate) fn idle(&mut self, now: u64) -> IdleAction {
        if self.always_spin {
            return IdleAction::Spin;
        }
        let since = *self.idle_since.get_or_insert(now);
        if now.saturating_sub(since) < self.window {
            return IdleAction::Spin;
        }
        self.slept_at.get_or_insert(since);
        IdleAction::Sleep
    }

    /// Returns the maximum length of a sleep if work is due `at`.
    pub(crate) fn timeout(now: u64, at: Option<u64>) -> Option<Duration> {
        at.map(|at| Duration::from_nanos(at.saturating_sub(now)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spins_while_commands_come_soon_and_sleeps_when_they_do_not() {
        let mut idle = Idle::new(false);
        let mut now = 0;
        // Commands one second apart: the window shrinks until the reactor sleeps immediately.
        for _ in 0..40 {
            idle.busy(now);
            while idle.idle(now) == IdleAction::Spin {
                now += 1_000;
            }
            now += 1_000_000_000;
        }
        idle.busy(now);
        assert_eq!(idle.idle(now), IdleAction::Sleep);
        // Commands 20 us apart: the window grows until the reactor spins through the gaps.
        for _ in 0..10 {
            let next = now + 20_000;
            while now < next && idle.idle(now) == IdleAction::Spin {
                now += 1_000;
            }
            now = next;
            idle.busy(now);
        }
        now += 20_000;
        idle.busy(now);
        assert_eq!(idle.idle(now), IdleAction::Spin);
        assert_eq!(idle.idle(now + 19_000), IdleAction::Spin);
    }

    #[test]
    fn busy_poll_never_sleeps() {
        let mut idle = Idle::new(true);
        assert_eq!(idle.idle(0), IdleAction::Spin);
        assert_eq!(idle.idle(u64::MAX), IdleAction::Spin);
    }
}
