//! Bandwidth over a growing number of drives: a table, a plot, and the limits of the growth.
//!
//! | file | content |
//! |---|---|
//! | `find` | saturated root complexes, and the number of drives that saturates them |
//! | `show` | the tables, the plot and the page |

mod find;
mod show;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

use crate::RunOrigin;
use crate::engines::MachineInfo;
use crate::values::whole;

pub use find::{findings, summary};
pub use show::{drive_table, page, plot, table};

/// The version of the format.
pub const VERSION: u32 = 1;

/// Bandwidth over the number of drives.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DriveScaling {
    /// [`VERSION`].
    pub version: u32,
    /// Origin of the figures.
    #[serde(rename = "where")]
    pub place: RunOrigin,
    /// The measured machine; for a simulated one, the file that describes it.
    pub machine: MachineInfo,
    /// The command line.
    pub command: String,
    /// Load of the measurement: block size, threads, depth, reads from one queue or many.
    pub load: ScaleLoad,
    /// Ended before all steps were measured.
    pub partial: bool,
    /// One per order of the drives.
    pub runs: Vec<ScaleRun>,
    /// Reference measurements of the simulated machine: drives and GiB/s.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reference: Vec<(usize, f64)>,
    /// Tree of the bridges above the drives, as lines.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tree: Vec<String>,
    /// Findings as text: saturated parts, the number of drives that saturates them, slow drives.
    pub findings: Vec<String>,
}

/// Load of a measurement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ScaleLoad {
    /// Bytes of a read.
    pub block_bytes: u64,
    /// Threads.
    pub jobs: u32,
    /// Reads outstanding per thread: over all drives if `striped`, otherwise per drive.
    pub depth: u32,
    /// From one queue, distributed round-robin over the drives.
    pub striped: bool,
    /// Seconds of a step; 0 in simulations.
    pub seconds: f64,
}

/// The drives in one order, one more with each step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ScaleRun {
    /// Name of the order.
    pub order: String,
    /// One drive, two, and so on.
    pub steps: Vec<ScaleStep>,
}

/// Measurement with a number of drives.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ScaleStep {
    /// The drive added by this step.
    pub drive: String,
    /// Its root complex; empty if unknown.
    pub root_complex: String,
    /// Its adapter: the device of its root port; empty if unknown.
    #[serde(default)]
    pub adapter: String,
    /// Bandwidth of all drives together, in GiB/s.
    pub gib_per_s: f64,
    /// Bandwidth of each drive, in the order they were added, in GiB/s.
    pub shares: Vec<f64>,
    /// Read latency of each drive, in the same order; empty in simulations.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub latencies: Vec<ReadLatency>,
    /// CPUs that the reading threads kept busy; none in simulations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<f64>,
    /// Saturated parts, if they are known and not inferred.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub full: Vec<String>,
    /// Problem of the step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Ended early.
    #[serde(default)]
    pub partial: bool,
}

/// Latency of the reads of a drive, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct ReadLatency {
    /// Median.
    pub p50: f64,
    /// 99th percentile.
    pub p99: f64,
    /// Shortest.
    pub min: f64,
    /// Longest.
    pub max: f64,
    /// Standard deviation.
    pub deviation: f64,
}

impl DriveScaling {
    /// Beginning of a line that names the origin of its figures; empty if they were measured.
    fn mark(&self) -> &'static str {
        match self.place {
            RunOrigin::Simulated => "simulated, ",
            RunOrigin::Local | RunOrigin::Remote => "",
        }
    }
}

impl ScaleStep {
    /// Returns true if the new drive is on this root complex or adapter.
    fn is_on(&self, part: &str) -> bool {
        self.root_complex == part || self.adapter == part
    }

    /// Mean bandwidth per drive, in GiB/s.
    #[must_use]
    pub fn share(&self) -> f64 {
        self.gib_per_s / whole(self.shares.len().max(1))
    }
}

impl ScaleRun {
    /// Bandwidth of the first drive alone, in GiB/s.
    #[must_use]
    pub fn alone(&self) -> Option<f64> {
        self.steps.first().map(|step| step.gib_per_s).filter(|rate| *rate > 0.0)
    }

    /// Number of drives on a root complex or an adapter among the first `count`.
    #[must_use]
    pub fn on(&self, part: &str, count: usize) -> usize {
        let steps = self.steps.iter().take(count);
        steps.filter(|step| step.is_on(part)).count()
    }

    /// Bandwidth of the drives of a root complex or an adapter at step `at`, in GiB/s.
    #[must_use]
    pub fn carried(&self, part: &str, at: usize) -> f64 {
        let Some(step) = self.steps.get(at) else { return 0.0 };
        let shares = step.shares.iter().zip(&self.steps);
        shares.filter(|(_, of)| of.is_on(part)).map(|(share, _)| share).sum()
    }
}
