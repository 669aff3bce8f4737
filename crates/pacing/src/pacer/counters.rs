//! Counters of a pacer.

/// Exact counters since the pacer was created; they count commands unless stated otherwise.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PacerCounters {
    /// Accepted by [`Pacer::enqueue`](crate::Pacer::enqueue).
    pub enqueued: u64,
    /// Rejected as [`TooLarge`](crate::TooLarge).
    pub too_large: u64,
    /// Removed before they started, by [`Pacer::cancel`](crate::Pacer::cancel) or
    /// [`Pacer::remove_flow`](crate::Pacer::remove_flow).
    pub cancelled: u64,
    /// Started: permits issued.
    pub started: u64,
    /// Started commands that had no data.
    pub started_without_data: u64,
    /// Started commands that were small and bypassed others.
    pub started_small: u64,
    /// Completed: permits released.
    pub released: u64,
    /// Completed commands that had no data.
    pub released_without_data: u64,
    /// Bytes in flight now.
    pub bytes_in_flight: u64,
    /// Times that [`Pacer::next`](crate::Pacer::next) found a waiting command that could not start
    /// yet.
    pub deferred: u64,
}

impl PacerCounters {
    /// Returns the number of waiting commands.
    #[must_use]
    pub fn waiting(&self) -> u64 {
        self.enqueued - self.cancelled - self.started
    }

    /// Returns the number of commands in flight.
    #[must_use]
    pub fn outstanding(&self) -> u64 {
        self.started - self.released
    }

    pub(super) fn with_data_outstanding(&self) -> u64 {
        self.outstanding() - (self.started_without_data - self.released_without_data)
    }
}
