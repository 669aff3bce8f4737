//! Errors of leases.

use thiserror::Error;

/// Reason why a buffer is not available.
#[derive(Debug, Error, Clone, Copy, PartialEq, Eq)]
pub enum LeaseError {
    /// All memory the pool may use is leased: retry when a buffer was returned.
    #[error("all buffer memory is in use")]
    Exhausted,
    /// The length exceeds the maximum lease.
    #[error("{len} bytes are more than the largest buffer ({max} bytes)")]
    TooLarge {
        /// Requested bytes.
        len: usize,
        /// Bytes of the largest buffer.
        max: usize,
    },
    /// There is no room for a second buffer, and there may never be: two of that size need two
    /// chunks, and only one is guaranteed to a core.
    #[error("no memory for two buffers of {len} bytes")]
    NotTwo {
        /// Requested bytes of each.
        len: usize,
    },
    /// The kernel has no memory, although the cap is not reached.
    #[error("the system has no memory for another chunk of buffers")]
    NoMemory,
}
