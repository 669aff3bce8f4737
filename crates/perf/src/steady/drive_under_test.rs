//! Interface between a drive test and the drive under test.

use std::time::Duration;

use nvmeof_report::steady::{Measurement, Preparation, Workload};

/// A drive under test.
pub(crate) trait DriveUnderTest {
    /// Runs one point.
    ///
    /// # Errors
    /// The point was interrupted; its partial measurement does not count.
    fn measure(&mut self, point: &DriveTestPoint) -> Result<Measurement, DriveTestError>;

    /// Returns the drive to its factory state, if it can; the result states if it cannot.
    ///
    /// # Errors
    /// The purge failed.
    fn purge(&mut self) -> Result<Preparation, DriveTestError>;
}

/// One measurement.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct DriveTestPoint {
    pub(crate) workload: Workload,
    pub(crate) until: PointEnd,
    /// Differs for each point, so that no two visit the same addresses.
    pub(crate) seed: u64,
}

/// End of a point.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum PointEnd {
    Time(Duration),
    /// After this many bytes have been moved.
    Bytes(u64),
}

/// Reason for the early end of a drive test.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum DriveTestError {
    #[error("interrupted")]
    Interrupted,
    #[error("the device failed: {0}")]
    Device(String),
    #[error("{0}")]
    Results(String),
}
