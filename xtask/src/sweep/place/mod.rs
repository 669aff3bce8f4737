//! Where a sweep runs: one file a place, behind [`Place`].

pub(super) mod real;
pub(super) mod sim;

use anyhow::Result;
use nvmeof_report::Point;

use super::plan::{Plan, Planned};
use super::setup::Setup;

/// Somewhere to run points.
pub(super) trait Place: Sync {
    /// The machine's name, as results carry it.
    fn platform(&self) -> String;

    /// Whether a point can run here at all; asked of all points before the first one runs.
    fn check(&self, point: &Planned) -> Result<()>;

    /// The point as it runs here: a place may have less than a plan wants.
    fn adapted(&self, point: &Planned) -> Planned {
        point.clone()
    }

    /// A text that changes whenever the figures of this point here may change.
    fn fingerprint(&self, setup: &Setup, seed: u64) -> String;

    /// Runs a point once.
    fn run(&self, run: &Run<'_>) -> Result<Point>;

    /// Points that may run at once.
    fn at_once(&self) -> usize;

    /// Whether somebody wants the sweep to end here.
    fn is_interrupted(&self) -> bool {
        false
    }
}

/// One run of one point.
#[derive(Debug, Clone, Copy)]
pub(super) struct Run<'a> {
    /// The plan it is of.
    pub(super) plan: &'a Plan,
    /// The point.
    pub(super) point: &'a Planned,
    /// From 1.
    pub(super) repetition: u32,
    /// Of this repetition.
    pub(super) seed: u64,
}

/// A short number for what these bytes are (FNV-1a), as 16 hexadecimal digits.
pub(super) fn digest(bytes: &[u8]) -> String {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    format!("{:016x}", bytes.iter().fold(0xcbf2_9ce4_8422_2325, step))
}
