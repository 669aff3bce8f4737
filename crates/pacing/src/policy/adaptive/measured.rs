//! What is measured of a budget: sums over all cores, and what they say over a while.

/// A rate that is lower by this part with the larger budget did harm, too, though no more was found in flight: what
/// comes back in a collapse was not in it for long.
pub(super) const LOSS: f64 = 0.1;
/// And by so many times what as many commands scatter.
const SURE: f64 = 3.0;
/// And by so many times what measurements of the same budget differ by.
pub(super) const NOISY: f64 = 3.0;
/// Rates differ clearly by so many times what as many commands scatter.
const TELLS: f64 = 1.5;

/// Sums over all cores since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Totals {
    /// Commands over.
    pub(super) commands: u64,
    /// Their bytes.
    pub(super) bytes: u64,
    /// Their bytes times ns in flight, over 2^10.
    pub(super) residence: u64,
    /// Their bytes times ns that the network had them, over 2^10.
    pub(super) network: u64,
    /// Commands started that were small beside the others.
    pub(super) small: u64,
    /// Times a command was told to wait.
    pub(super) refused: u64,
    /// Bytes that could have been sent while cores were away.
    pub(super) missed: u64,
}

/// One side of a swing; bytes, and bytes per ns. What is in flight for while cores are away is in `reserved` alone.
#[derive(Debug, Clone, Copy)]
pub(super) struct Measured {
    pub(super) budget: f64,
    pub(super) in_flight: f64,
    /// Of `in_flight`, what the network had.
    pub(super) network: f64,
    pub(super) reserved: f64,
    /// As if cores had never been away, but no more than lately for that.
    pub(super) rate: f64,
    pub(super) commands: f64,
    /// Times a command was told to wait, for each that went through.
    pub(super) refused: f64,
    /// Commands that could have gone through while cores were away.
    pub(super) missed: f64,
}

impl Measured {
    #[cfg(all(test, not(loom)))]
    pub(super) fn of(budget: f64, rate: f64) -> Self {
        let network = budget / 2.0;
        Self {
            budget,
            in_flight: budget,
            network,
            reserved: 0.0,
            rate,
            commands: super::control::COMMANDS,
            refused: 1.0,
            missed: 0.0,
        }
    }

    /// With what is reserved.
    pub(super) fn all_in_flight(&self) -> f64 {
        self.in_flight + self.reserved
    }

    /// Do the two rates differ by more than so many commands scatter?
    pub(super) fn differs_clearly(&self, other: &Measured) -> bool {
        (self.rate / other.rate).ln().abs() * self.commands.min(other.commands).sqrt() > TELLS
    }

    /// Did the one of the two that had the larger budget bring much less?
    pub(super) fn lost_with_more(&self, other: &Measured, noise: f64) -> bool {
        let (less, more) = if self.budget < other.budget { (self, other) } else { (other, self) };
        let clear = SURE / less.commands.min(more.commands).sqrt();
        less.budget < more.budget
            && (more.rate / less.rate).ln() < -LOSS.max(clear).max(NOISY * noise)
    }
}

/// Without its fraction.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "positive, and a cast of a float saturates"
)]
pub(super) fn whole(value: f64) -> u64 {
    value as u64
}
