//! What a policy is told: plain values, the same for the daemon and the simulator.

use crate::Nanos;

/// A policy and its parameters.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum PolicyConfig {
    /// Whatever arrives starts at once.
    None,
    /// A fixed bound on the bytes in flight.
    BufferCredit {
        /// Bytes that may be in flight on all cores together.
        budget: u64,
    },
    /// A fixed rate, and optionally a bound on the bytes in flight behind it.
    TokenBucket(TokenBucketConfig),
    /// Finds its own bound and shares it by residence. Nothing to tune.
    #[default]
    Adaptive,
    /// The measured prototype with its own knobs, for the simulator and comparison runs; exempt
    /// from the rules every other policy keeps.
    Prototype(PrototypeConfig),
}

/// See [`PolicyConfig::TokenBucket`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenBucketConfig {
    /// How fast tokens come, for the whole target.
    pub pace: Pace,
    /// Bytes (or I/Os, for a period) that may start at once after a quiet time; `None`: one
    /// largest I/O a core (or one I/O a core).
    pub burst: Option<u64>,
    /// Bytes that may be in flight on all cores together; `None`: no bound. A rate without a bound
    /// lets data pile up after every stall.
    pub budget: Option<u64>,
}

/// How fast a token bucket fills.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// Bytes a second.
    Rate(u64),
    /// Nanoseconds from one I/O to the next, whatever its size.
    Period(Nanos),
}

/// The prototype's knobs. Everything absent is off.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct PrototypeConfig {
    /// A static pool of buffers.
    pub pool: Option<PrototypePool>,
    /// A pacer that starts I/Os by a period.
    pub pacer: Option<PrototypePacer>,
}

/// A shared pool with a cache on every core. A core that finds neither a cached nor a pooled buffer
/// puts the I/O in its own waiting queue, which only a release on that very core serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PrototypePool {
    /// Buffers in all; each holds one I/O of any size.
    pub buffers: u32,
    /// Buffers a core keeps for itself.
    pub cache: u32,
}

/// A per-core timer that hands out credit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PrototypePacer {
    /// Nanoseconds from tick to tick for the whole target; a core's is so many times the number of
    /// cores. 0: every poll.
    pub period: Nanos,
    /// Bytes a tick grants; what is not used by the next tick is lost.
    pub credit: u32,
    /// An I/O below so many bytes starts at once.
    pub bypass_below: u32,
    /// I/Os in flight on one drive; `None`: any number.
    pub drive_limit: Option<u32>,
    /// Changes the period by itself.
    pub tuner: Option<PrototypeTuner>,
}

/// How the prototype moves its period.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum PrototypeTuner {
    /// The period set up to so many bytes in flight, then growing with them, to four times as much.
    BytesInFlight {
        /// Bytes in flight on all cores from which the period grows.
        threshold: u64,
    },
    /// Steps the period towards more bandwidth: keeps the direction while the last step gained.
    Bandwidth {
        /// Nanoseconds between steps.
        interval: Nanos,
        /// Nanoseconds a step.
        step: Nanos,
    },
}
