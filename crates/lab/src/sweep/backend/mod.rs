//! Backends of a sweep, the simulator and real machines, behind [`SweepBackend`].

pub(super) mod real;
pub(super) mod sim;

use anyhow::Result;
use nvmeof_report::Point;

use super::plan::{PlannedPoint, SweepPlan};
use super::setup::PointSetup;

/// The simulator or machines that run points.
pub(super) trait SweepBackend: Sync {
    /// Returns the machine's name, as results carry it.
    fn platform(&self) -> String;

    /// Checks that a point can run here; called for all points before the first one runs.
    fn check(&self, point: &PlannedPoint) -> Result<()>;

    /// Returns the point in the form that runs here: a backend can have less than a plan requests.
    fn adapted(&self, point: &PlannedPoint) -> PlannedPoint {
        point.clone()
    }

    /// Returns a text that changes whenever the results of this point here can change.
    fn fingerprint(&self, setup: &PointSetup, seed: u64) -> String;

    /// Runs a point once.
    fn run(&self, run: &PointRun<'_>) -> Result<Point>;

    /// Returns the number of points that can run concurrently.
    fn parallel_points(&self) -> usize;

    /// Returns whether the user has interrupted the sweep.
    fn is_interrupted(&self) -> bool {
        false
    }
}

/// One run of one point.
#[derive(Debug, Clone, Copy)]
pub(super) struct PointRun<'a> {
    /// The plan of the point.
    pub(super) plan: &'a SweepPlan,
    /// The point.
    pub(super) point: &'a PlannedPoint,
    /// Number of the repetition, from 1.
    pub(super) repetition: u32,
    /// Seed of this repetition.
    pub(super) seed: u64,
}

/// Returns a short hash of these bytes (FNV-1a), as 16 hexadecimal digits.
pub(super) fn digest(bytes: &[u8]) -> String {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    format!("{:016x}", bytes.iter().fold(0xcbf2_9ce4_8422_2325, step))
}
