//! Rate samples of the budget: sums over all cores, and measurements over an interval.

/// A rate that is lower by this fraction with the larger budget is an overshoot, even if no more
/// was found in flight: in a collapse, completed commands were not in flight for long.
pub(super) const LOSS: f64 = 0.1;
/// It must also exceed this multiple of the scatter of as many commands.
const SURE: f64 = 3.0;
/// It must also exceed this multiple of the noise between measurements of one budget.
pub(super) const NOISY: f64 = 3.0;
/// Rates differ significantly by this multiple of the scatter of as many commands.
const TELLS: f64 = 1.5;

/// Sums over all cores since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Totals {
    /// Completed commands.
    pub(super) commands: u64,
    /// Their bytes.
    pub(super) bytes: u64,
    /// Their bytes times ns in flight, divided by 2^10.
    pub(super) residence: u64,
    /// Their bytes times ns in the network, divided by 2^10.
    pub(super) network: u64,
    /// Commands started that were small relative to the others.
    pub(super) small: u64,
    /// Deferrals of commands.
    pub(super) deferred: u64,
    /// Bytes that could have been sent while cores were preempted.
    pub(super) missed: u64,
}

/// Measurement of one side of a probe, in bytes and bytes per ns. The preemption reserve is in
/// `reserve_bytes` alone.
#[derive(Debug, Clone, Copy)]
pub(super) struct RateSample {
    pub(super) budget: f64,
    pub(super) in_flight: f64,
    /// The part of `in_flight` in the network.
    pub(super) network: f64,
    pub(super) reserve_bytes: f64,
    /// Includes missed bytes, at most up to the last measured rate.
    pub(super) rate: f64,
    pub(super) commands: f64,
    /// Deferrals per completed command.
    pub(super) deferred: f64,
    /// Commands that could have completed while cores were preempted.
    pub(super) missed: f64,
}

impl RateSample {
    #[cfg(all(test, not(loom)))]
    pub(super) fn of(budget: f64, rate: f64) -> Self {
        let network = budget / 2.0;
        Self {
            budget,
            in_flight: budget,
            network,
            reserve_bytes: 0.0,
            rate,
            commands: super::controller::COMMANDS,
            deferred: 1.0,
            missed: 0.0,
        }
    }

    /// Returns the bytes in flight, including the reserve.
    pub(super) fn all_in_flight(&self) -> f64 {
        self.in_flight + self.reserve_bytes
    }

    /// Returns whether the two rates differ by more than the scatter of this number of commands.
    pub(super) fn differs_significantly(&self, other: &RateSample) -> bool {
        (self.rate / other.rate).ln().abs() * self.commands.min(other.commands).sqrt() > TELLS
    }

    /// Returns whether the larger of the two budgets lost much.
    pub(super) fn slower_with_more(&self, other: &RateSample, noise: f64) -> bool {
        let (less, more) = if self.budget < other.budget { (self, other) } else { (other, self) };
        let clear = SURE / less.commands.min(more.commands).sqrt();
        less.budget < more.budget
            && (more.rate / less.rate).ln() < -LOSS.max(clear).max(NOISY * noise)
    }
}

/// Drops the fraction.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "positive, and a cast of a float saturates"
)]
pub(super) fn whole(value: f64) -> u64 {
    value as u64
}
