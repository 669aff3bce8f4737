//! Commands so small beside the others that they go first.

/// Which commands are small.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SmallRule {
    /// None.
    #[default]
    Never,
    /// Those below so many bytes.
    Below(u32),
    /// Those below a sixteenth of the size that the bytes under way lately came in: beside them
    /// they take no time worth speaking of. No absolute size, so it holds on any machine.
    BesideOthers,
}

/// What a small command is to the mean byte's command, at most: one part in so many.
const PART: u64 = 16;
/// Small commands pass others only while they are at most one part in so many of the bytes started.
const SHARE: u64 = 4;
/// Commands that the mean size looks back on.
const MEMORY: u32 = 64;

/// Commands from one look at the mean to the next.
const EVERY: u32 = 8;

/// Knows what is small, and sees that the small do not starve the large.
#[derive(Debug)]
pub(crate) struct SmallLane {
    rule: SmallRule,
    /// What is small follows from what is started.
    observes: bool,
    /// Means over the last commands started, of the bytes and of the bytes squared (over 4096).
    mean: u64,
    mean_square: u64,
    /// The same of the commands since these were set, and how many they are.
    bytes: u64,
    square: u64,
    observed: u32,
    below: u32,
    /// Bytes that small commands may still start before the large must have their turn, when the bytes of the commands
    /// above were these. What the large started after that adds to it, and no more than the last of them is kept.
    allowance: i64,
    allowed: u64,
    last_large: u32,
}

impl SmallLane {
    pub(crate) fn new(rule: SmallRule) -> Self {
        let below = match rule {
            SmallRule::Below(bytes) => bytes,
            SmallRule::Never | SmallRule::BesideOthers => 0,
        };
        Self {
            rule,
            observes: rule == SmallRule::BesideOthers,
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

    /// Is any command small? One that was small by the rule before may still wait as such.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.rule != SmallRule::Never
    }

    /// May a small command pass one that is not?
    #[inline]
    pub(crate) fn may_pass(&self) -> bool {
        self.allowance() >= 0
    }

    #[inline]
    pub(crate) fn small_started(&mut self, bytes: u32) {
        if self.observes {
            self.settle();
            // Only those that pass others are charged; without an allowance there was nobody to
            // pass.
            if self.allowance >= 0 {
                self.allowance -= i64::from(bytes);
            }
            // It adds nothing itself.
            self.allowed += u64::from(bytes);
            self.observe(bytes);
        }
    }

    /// A command started in order: what small ones may take grows with it.
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

    /// The size that the mean byte comes in is the mean of the squares over the mean.
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
