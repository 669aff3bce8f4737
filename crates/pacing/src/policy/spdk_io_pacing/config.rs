//! Parameters of the Mellanox SPDK io_pacing prototype.

use crate::Nanos;

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
