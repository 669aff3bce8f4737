//! What a drive test needs of whatever it tests.

use std::time::Duration;

use nvmeof_report::steady::{Preparation, Reading, Workload};

/// A drive under test.
pub(crate) trait Bench {
    /// Runs one point.
    ///
    /// # Errors
    /// It did not come to its end: what was measured counts for nothing.
    fn measure(&mut self, point: &Point) -> Result<Reading, Trouble>;

    /// Brings the drive to the state it was made in, if it can; says so if not.
    ///
    /// # Errors
    /// It was to, and failed.
    fn purge(&mut self) -> Result<Preparation, Trouble>;
}

/// What is measured at one time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Point {
    pub(crate) workload: Workload,
    pub(crate) until: Until,
    /// Another one for each point, so that no two visit the same addresses.
    pub(crate) seed: u64,
}

/// What ends a point.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Until {
    Time(Duration),
    /// As many bytes are moved.
    Bytes(u64),
}

/// Why a drive test ends early.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Trouble {
    #[error("interrupted")]
    Interrupted,
    #[error("the device failed: {0}")]
    Device(String),
    #[error("{0}")]
    Results(String),
}
