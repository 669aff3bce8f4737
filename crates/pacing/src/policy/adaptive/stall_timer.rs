//! Stall timer: time without a completion on a core with waiting commands. All its commands in
//! flight may then hang.

use crate::Nanos;

/// Largest back-off of the timeout, as a power of two.
const MOST_TIMES: u32 = 20;

#[derive(Debug, Default)]
pub(super) struct StallTimer {
    last_completion: Nanos,
    /// Time of the first deferral since the core last had nothing waiting.
    deferred: Option<Nanos>,
    /// Time of the last start because of a stall, and number of them since the last completion.
    broken: Nanos,
    times: u32,
}

impl StallTimer {
    #[inline(always)]
    pub(super) fn on_completion(&mut self, now: Nanos) {
        self.last_completion = now;
    }

    /// Returns whether the timeout has expired, so that one more command may start after a
    /// deferral. The timeout doubles each time. Whatever stalls, few commands start this way.
    pub(super) fn has_expired(&mut self, now: Nanos, stall_timeout: Nanos) -> bool {
        // A time in the future is from before a clock jumped back.
        if self.last_completion >= self.broken || now < self.broken {
            (self.broken, self.times) = (0, 0);
        }
        let since = self.last_completion.max(*self.deferred.get_or_insert(now)).min(now);
        now - since.max(self.broken) > stall_timeout.saturating_mul(1 << self.times)
    }

    /// Records a start because of a stall.
    pub(super) fn back_off(&mut self, now: Nanos) {
        (self.broken, self.times) = (now, (self.times + 1).min(MOST_TIMES));
    }

    /// Restarts the timer: the time before is no evidence.
    pub(super) fn restart(&mut self, now: Nanos) {
        self.deferred = Some(now);
    }

    /// Stops the timer: the core has nothing waiting.
    pub(super) fn on_idle(&mut self) {
        self.deferred = None;
    }
}
