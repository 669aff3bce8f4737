//! Bypass for commands that are small relative to the others.

/// Rule that decides which commands are small.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SmallCommandRule {
    /// No command.
    #[default]
    Never,
    /// Commands below this number of bytes.
    Below(u32),
    /// Commands below 1/16 of the typical command size of the bytes in flight. Relative to those
    /// commands they take negligible time. The rule has no absolute size, so it holds on any
    /// machine.
    BesideOthers,
}

/// A small command is at most 1/`PART` of the command size of the mean byte.
const PART: u64 = 16;
/// Small commands bypass others only while they are at most 1/`SHARE` of the bytes started.
const SHARE: u64 = 4;
/// Commands that the mean covers.
const MEMORY: u32 = 64;

/// Commands between two updates of the mean.
const EVERY: u32 = 8;

/// Classifies small commands, and limits them so that they do not starve large ones.
#[derive(Debug)]
pub(crate) struct SmallCommandBypass {
    rule: SmallCommandRule,
    /// The threshold follows the sizes of the commands started.
    observes: bool,
    /// Means over the last commands started: of the bytes, and of the bytes squared (divided by
    /// 4096).
    mean: u64,
    mean_square: u64,
    /// The same sums since the last update, and the number of commands in them.
    bytes: u64,
    square: u64,
    observed: u32,
    below: u32,
    /// Bytes that small commands may still start before large commands must have their turn, as of
    /// `allowed`. Bytes that large commands start afterwards add to it, up to the size of the last
    /// large command.
    allowance: i64,
    allowed: u64,
    last_large: u32,
}

impl SmallCommandBypass {
    pub(crate) fn new(rule: SmallCommandRule) -> Self {
        let below = match rule {
            SmallCommandRule::Below(bytes) => bytes,
            SmallCommandRule::Never | SmallCommandRule::BesideOthers => 0,
        };
        Self {
            rule,
            observes: rule == SmallCommandRule::BesideOthers,
            mean: 0,
            mean_square: 0,
            bytes: 0,
            square: 0,
            observed: 0,
            below,
            allowance: 0,
            allowed: 0,
            last_large: 0,
        }
    }

    #[inline]
    pub(crate) fn is_small(&self, bytes: u32) -> bool {
        bytes < self.below
    }

    /// Returns whether any command is small. A command that was small under the previous rule may
    /// still be queued as one.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.rule != SmallCommandRule::Never
    }

    /// Returns whether a small command may overtake a large one.
    #[inline]
    pub(crate) fn may_pass(&self) -> bool {
        self.allowance() >= 0
    }

    #[inline]
    pub(crate) fn small_started(&mut self, bytes: u32) {
        if self.observes {
            self.settle();
            // Only commands that overtake others are charged. Without an allowance there was
            // nothing to overtake.
            if self.allowance >= 0 {
                self.allowance -= i64::from(bytes);
            }
            // A small command adds nothing to the allowance.
            self.allowed += u64::from(bytes);
            self.observe(bytes);
        }
    }

    /// A command started in order: the allowance of small commands grows with it.
    #[inline]
    pub(crate) fn large_started(&mut self, bytes: u32) {
        if self.observes {
            self.last_large = bytes;
            self.observe(bytes);
        }
    }

    #[inline]
    fn allowance(&self) -> i64 {
        let more = (self.bytes - self.allowed) / SHARE;
        self.allowance.saturating_add_unsigned(more).min(i64::from(self.last_large))
    }

    fn settle(&mut self) {
        self.allowance = self.allowance();
        self.allowed = self.bytes;
    }

    #[inline]
    fn observe(&mut self, bytes: u32) {
        // Sums of a few commands, and squares of 32 bits over 4096: neither can overflow.
        let bytes = u64::from(bytes);
        self.bytes = self.bytes.wrapping_add(bytes);
        self.square = self.square.wrapping_add((bytes * bytes) >> 12);
        self.observed = self.observed.wrapping_add(1);
        if self.observed >= EVERY {
            self.look();
        }
    }

    /// Updates the threshold. The command size of the mean byte is the mean of the squares over the
    /// mean.
    #[inline(never)]
    fn look(&mut self) {
        self.settle();
        self.allowed = 0;
        let part = u64::from(MEMORY / EVERY);
        self.mean = self.mean - self.mean / part + std::mem::take(&mut self.bytes);
        self.mean_square =
            self.mean_square - self.mean_square / part + std::mem::take(&mut self.square);
        self.observed = 0;
        let typical = (self.mean_square / self.mean.max(1)) << 12;
        self.below = u32::try_from(typical / PART).unwrap_or(u32::MAX);
    }
}
