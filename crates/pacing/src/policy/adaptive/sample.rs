//! Sums over all cores, and what they say about an interval.

use crate::Nanos;

/// Sums over all cores since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Totals {
    /// Completed commands.
    pub(super) commands: u64,
    /// Their bytes.
    pub(super) bytes: u64,
    /// Their bytes times ns in flight, divided by 2^10.
    pub(super) residence: u64,
    /// Their charges times ns in flight, divided by 2^10.
    pub(super) charged: u64,
    /// Their bytes times ns in the network, divided by 2^10.
    pub(super) network: u64,
    /// Deferrals of commands.
    pub(super) deferred: u64,
    /// Commands that were small relative to the others.
    pub(super) small: u64,
    /// As `residence`, of commands of slow devices.
    pub(super) slow: u64,
    /// Bytes of commands of slow devices.
    pub(super) slow_bytes: u64,
    /// Slow devices of each core, once in each measurement.
    pub(super) slow_devices: u64,
}

/// Means of an interval, in commands of its mean size and in bytes per ns.
#[derive(Debug, Clone, Copy)]
pub(super) struct RateSample {
    /// Rate at which the network took data, in bytes per ns.
    pub(super) rate: f64,
    /// Bytes of a command.
    pub(super) command: f64,
    /// Commands in flight, and those as they are charged.
    pub(super) in_flight: f64,
    pub(super) charged: f64,
    /// Commands in the network.
    pub(super) network: f64,
    /// Commands at devices of the usual speed.
    pub(super) usual: f64,
    /// Deferrals per completed command.
    pub(super) deferred: f64,
    /// Part of the commands that was small relative to the others.
    pub(super) small: f64,
    /// Part of the bytes in flight of slow devices.
    pub(super) slow: f64,
    /// Rate of a slow device on one core, in bytes per ns.
    pub(super) slow_rate: f64,
}

impl RateSample {
    /// Returns the means between two sums over `elapsed` ns. `usual` is the usual device time.
    pub(super) fn between(from: &Totals, to: &Totals, elapsed: Nanos, usual: Nanos) -> Self {
        let over = |of: fn(&Totals) -> u64| float(of(to).wrapping_sub(of(from)));
        let (commands, bytes) = (over(|t| t.commands), over(|t| t.bytes));
        let command = bytes / commands;
        let mean = |sum: f64| sum * 1024.0 / float(elapsed) / command;
        Self {
            rate: bytes / float(elapsed),
            command,
            in_flight: mean(over(|t| t.residence)),
            charged: mean(over(|t| t.charged)),
            network: mean(over(|t| t.network)),
            usual: commands / float(elapsed) * float(usual),
            deferred: over(|t| t.deferred) / commands,
            small: over(|t| t.small) / commands,
            slow: over(|t| t.slow) / over(|t| t.residence).max(1.0),
            slow_rate: over(|t| t.slow_bytes) / float(elapsed) / over(|t| t.slow_devices).max(1.0),
        }
    }

    /// Returns the time in ns that this number of commands takes.
    pub(super) fn time_of(&self, commands: f64) -> f64 {
        commands * self.command / self.rate
    }

    /// Returns the number of commands at the devices.
    pub(super) fn at_devices(&self) -> f64 {
        (self.in_flight - self.network).max(0.0)
    }

    /// Returns whether data waits for the network.
    pub(super) fn is_network_busy(&self) -> bool {
        self.network > ENOUGH_TO_SEND + self.at_devices().sqrt()
    }

    /// Returns whether commands are at devices much slower than the usual one.
    pub(super) fn has_slow_devices(&self) -> bool {
        self.at_devices() > SLOW * self.usual
    }

    /// Returns whether commands waited for the budget.
    pub(super) fn is_bounded(&self) -> bool {
        self.deferred > DEFERRED
    }
}

/// A measured rate, its standard error, and that of a slow device on one core, in bytes per ns.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Rate {
    pub(super) mean: f64,
    pub(super) error: f64,
    pub(super) of_slow: f64,
}

impl Rate {
    /// Returns the gain over another rate as a fraction of it, less what chance may account for.
    pub(super) fn sure_gain(self, other: Rate) -> f64 {
        (self.mean - other.mean - SURE * self.error.hypot(other.error)) / other.mean
    }

    /// Returns whether it surely gains more than `least` of another rate over that, and more than a
    /// slow device loses on a core.
    pub(super) fn can_replace(self, other: Rate, least: f64) -> bool {
        self.sure_gain(other) > least && self.mean - other.mean > other.of_slow - self.of_slow
    }

    /// Returns the mean of this rate and one measured later. Its error is at least half of what the
    /// two differ by.
    pub(super) fn around(self, after: Rate) -> Rate {
        let error = (self.error.hypot(after.error) / 2.0).max((self.mean - after.mean).abs() / 2.0);
        Rate {
            mean: f64::midpoint(self.mean, after.mean),
            error,
            of_slow: f64::midpoint(self.of_slow, after.of_slow),
        }
    }

    /// Returns whether it is that of another load or another machine than another rate.
    pub(super) fn has_changed(self, last: Rate) -> bool {
        last.mean > 0.0 && (last.mean / self.mean).max(self.mean / last.mean) > CHANGE
    }
}

/// Rates of the parts of a measurement. It is long enough when its standard error is small, and at
/// most [`MOST_PARTS`].
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Series {
    count: f64,
    mean: f64,
    /// Sum of the squared differences from the mean (Welford).
    squares: f64,
}

impl Series {
    /// Adds the rate of a part; returns the rate of the measurement if it is complete.
    /// It is not continued where it is far below `reference`: what it costs grows with its length.
    pub(super) fn add(&mut self, rate: f64, reference: f64) -> Option<Rate> {
        self.count += 1.0;
        let before = rate - self.mean;
        self.mean += before / self.count;
        self.squares += before * (rate - self.mean);
        let is_low = self.count >= LOW_PARTS && self.mean < LOW * reference;
        if self.count < LEAST_PARTS && !is_low {
            return None;
        }
        let error = (self.squares / (self.count - 1.0) / self.count).sqrt();
        let is_complete = is_low || error < PRECISE * self.mean || self.count >= MOST_PARTS;
        is_complete.then_some(Rate { mean: self.mean, error, of_slow: 0.0 })
    }
}

/// Charge of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Charging {
    /// Nothing: there is no bound.
    Open,
    /// The part of their time in flight that a command of the usual device time has.
    Usual,
    /// All of it.
    Full,
}

impl Charging {
    /// Returns the other way to charge with a bound.
    pub(super) fn other(self) -> Self {
        match self {
            Self::Open | Self::Full => Self::Usual,
            Self::Usual => Self::Full,
        }
    }
}

/// The network is busy with more commands than this plus the square root of those at the devices.
const ENOUGH_TO_SEND: f64 = 4.0;
/// Devices are slow if this many times as many commands are there as at equal devices of the usual
/// speed.
const SLOW: f64 = 1.5;
/// Parts of a measurement: least and most.
const LEAST_PARTS: f64 = 4.0;
/// Part of the reference below which a measurement ends, after this number of parts.
const LOW: f64 = 0.7;
const LOW_PARTS: f64 = 2.0;
const MOST_PARTS: f64 = 8.0;
/// Standard error of a rate at which a measurement ends, as a fraction of it.
const PRECISE: f64 = 0.01;
/// Standard errors that two rates differ by at least.
const SURE: f64 = 2.0;
/// Ratio of two rates of different loads.
const CHANGE: f64 = 1.2;
/// Deferrals per command from which the budget bounds.
const DEFERRED: f64 = 0.01;

/// Converts a count; the error of large counts does not matter.
#[expect(clippy::cast_precision_loss, reason = "counts and times, of which ratios are taken")]
pub(super) fn float(value: u64) -> f64 {
    value as f64
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
