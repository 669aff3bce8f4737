//! How long nothing came back on a core that has commands waiting: then all that it has in flight may hang.

use crate::Nanos;

/// The longest silence is the patience times two to this.
const MOST_TIMES: u32 = 20;

#[derive(Debug, Default)]
pub(super) struct Silence {
    /// When something was completed last.
    heard: Nanos,
    /// The first time since the core last had nothing waiting that one had to wait.
    refused: Option<Nanos>,
    /// When one was started because of it last, and how many since something was heard.
    broken: Nanos,
    times: u32,
}

impl Silence {
    #[inline(always)]
    pub(super) fn heard(&mut self, now: Nanos) {
        self.heard = now;
    }

    /// One had to wait. Has nothing come back for so long, twice as long each time, that one more is to start? Whatever
    /// stands still, it is a few then.
    pub(super) fn is_too_long(&mut self, now: Nanos, patience: Nanos) -> bool {
        // In the future it is of a clock that went back.
        if self.heard >= self.broken || now < self.broken {
            (self.broken, self.times) = (0, 0);
        }
        let since = self.heard.max(*self.refused.get_or_insert(now)).min(now);
        now - since.max(self.broken) > patience.saturating_mul(1 << self.times)
    }

    /// One was started because of it.
    pub(super) fn was_broken(&mut self, now: Nanos) {
        (self.broken, self.times) = (now, (self.times + 1).min(MOST_TIMES));
    }

    /// What was before says nothing.
    pub(super) fn begin_anew(&mut self, now: Nanos) {
        self.refused = Some(now);
    }

    /// The core has nothing waiting.
    pub(super) fn rest(&mut self) {
        self.refused = None;
    }
}
