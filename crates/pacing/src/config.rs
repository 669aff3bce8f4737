//! Parameters of a policy: plain values, the same for the daemon and the simulator.

use crate::Nanos;

/// A policy and its parameters.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum PolicyConfig {
    /// No bound: every command starts immediately.
    None,
    /// A fixed budget for the bytes in flight.
    BufferCredit {
        /// Budget in bytes, on all cores together.
        budget: u64,
    },
    /// A fixed rate, and optionally a budget for the bytes in flight behind it.
    TokenBucket(TokenBucketConfig),
    /// Finds its budget at run time and shares it by residence. It has no parameters.
    #[default]
    Adaptive,
    /// The Mellanox SPDK io_pacing prototype with its own parameters, for the simulator and
    /// comparison runs. It is exempt from the rules that every other policy keeps.
    Prototype(PrototypeConfig),
}

impl PolicyConfig {
    /// Returns the name of the policy in a file.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::None => "none",
            Self::BufferCredit { .. } => "buffer-credit",
            Self::TokenBucket(_) => "token-bucket",
            Self::Adaptive => "adaptive",
            Self::Prototype(_) => "prototype",
        }
    }
}

/// Parameters of [`PolicyConfig::TokenBucket`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenBucketConfig {
    /// Rate of the tokens, for the whole target.
    pub pace: RateSpec,
    /// Bytes that may start back to back after a quiet time; for a period, the I/Os. `None`: one
    /// largest I/O per core, or one I/O per core.
    pub burst: Option<u64>,
    /// Bytes that may be in flight on all cores together. `None`: no bound. A rate without a bound
    /// lets data pile up after every stall.
    pub budget: Option<u64>,
}

/// Fill rate of a token bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RateSpec {
    /// Bytes per second.
    Rate(u64),
    /// Nanoseconds from one I/O to the next, whatever its size.
    Period(Nanos),
}

/// Parameters of the Mellanox SPDK io_pacing prototype. A missing one is off.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct PrototypeConfig {
    /// A static pool of buffers.
    pub pool: Option<PrototypePool>,
    /// A pacer that starts I/Os by a period.
    pub pacer: Option<PrototypePacer>,
}

/// A shared pool with a cache on every core. A core that finds neither a cached nor a pooled buffer
/// queues the I/O locally. Only a release on the same core serves that queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PrototypePool {
    /// Buffers in total; each holds one I/O of any size.
    pub buffers: u32,
    /// Buffers that a core keeps for itself.
    pub cache: u32,
}

/// A per-core timer that hands out credit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PrototypePacer {
    /// Nanoseconds between ticks for the whole target. The period of one core is this times the
    /// number of cores. 0: every poll.
    pub period: Nanos,
    /// Bytes that a tick grants. Credit that is unused at the next tick is lost.
    pub credit: u32,
    /// Size in bytes below which an I/O starts immediately.
    pub bypass_below: u32,
    /// I/Os in flight on one drive; `None`: no limit.
    pub drive_limit: Option<u32>,
    /// Changes the period at run time.
    pub tuner: Option<PrototypeTuner>,
}

/// Method by which io_pacing changes its period.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum PrototypeTuner {
    /// Keeps the configured period up to `threshold` bytes in flight. Beyond it the period grows
    /// with them, up to four times.
    BytesInFlight {
        /// Bytes in flight on all cores from which the period grows.
        threshold: u64,
    },
    /// Steps the period towards more bandwidth: keeps the direction while the last step gained.
    Bandwidth {
        /// Nanoseconds between steps.
        interval: Nanos,
        /// Nanoseconds per step.
        step: Nanos,
    },
}
