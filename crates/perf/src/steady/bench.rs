//! Interface between a drive test and the drive under test.

use std::time::Duration;

use nvmeof_report::steady::{Preparation, Reading, Workload};

/// A drive under test.
pub(crate) trait Bench {
    /// Runs one point.
    ///
    /// # Errors
    /// The point was interrupted; its partial measurement does not count.
    fn measure(&mut self, point: &Point) -> Result<Reading, Trouble>;

    /// Returns the drive to its factory state, if it can; the result states if it cannot.
    ///
    /// # Errors
    /// The purge failed.
    fn purge(&mut self) -> Result<Preparation, Trouble>;
}

/// One measurement.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Point {
    pub(crate) workload: Workload,
    pub(crate) until: Until,
    /// Differs for each point, so that no two visit the same addresses.
    pub(crate) seed: u64,
}

/// End of a point.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Until {
    Time(Duration),
    /// After this many bytes have been moved.
    Bytes(u64),
}

/// Reason for the early end of a drive test.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Trouble {
    #[error("interrupted")]
    Interrupted,
    #[error("the device failed: {0}")]
    Device(String),
    #[error("{0}")]
    Results(String),
}
