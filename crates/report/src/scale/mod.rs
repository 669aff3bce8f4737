//! What more and more drives read together: a table, a plot, and where it stops growing.
//!
//! | file | what |
//! |---|---|
//! | `find` | which root complex is full, and from when on |
//! | `show` | the tables, the plot and the page |

mod find;
mod show;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

use crate::Where;
use crate::engines::Machine;

pub use find::findings;
pub use show::{page, plot, table};

/// The version of the form.
pub const VERSION: u32 = 1;

/// Bandwidth over the number of drives.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Scaling {
    /// [`VERSION`].
    pub version: u32,
    /// Where the figures come from.
    #[serde(rename = "where")]
    pub place: Where,
    /// The machine that was measured; of a simulated one the file that describes it.
    pub machine: Machine,
    /// The command line.
    pub command: String,
    /// How it was read: block size, threads, depth, whether from one queue in turn.
    pub load: Load,
    /// Ended before all was measured.
    pub partial: bool,
    /// One an order of the drives.
    pub runs: Vec<Run>,
    /// What others measured on the machine that is simulated: drives and GiB/s.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reference: Vec<(usize, f64)>,
    /// In words: what is full, and from when on.
    pub findings: Vec<String>,
}

/// How drives are read.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// Bytes of a read.
    pub block_bytes: u64,
    /// Threads.
    pub jobs: u32,
    /// Reads outstanding of each thread: over all drives if `striped`, else of each drive.
    pub depth: u32,
    /// From one queue, dealt to the drives in turn.
    pub striped: bool,
    /// Seconds of a step; 0 where nothing takes time.
    pub seconds: f64,
}

/// The drives in one order, one more with each step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// What the order is called.
    pub order: String,
    /// One drive, two, and so on.
    pub steps: Vec<Step>,
}

/// So many drives.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// The drive that is new with this step.
    pub drive: String,
    /// The root complex it hangs on; empty where that is not known.
    pub root_complex: String,
    /// All drives together, in GiB/s.
    pub gib_per_s: f64,
    /// Each drive, in the order they were added, in GiB/s.
    pub shares: Vec<f64>,
    /// What is full, where that is known and not concluded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub full: Vec<String>,
    /// What went wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Ended before its time.
    #[serde(default)]
    pub partial: bool,
}

impl Step {
    /// What each drive reads on average, in GiB/s.
    #[must_use]
    pub fn share(&self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "a count of drives")]
        let drives = self.shares.len().max(1) as f64;
        self.gib_per_s / drives
    }
}

impl Run {
    /// What the first drive reads alone, in GiB/s.
    #[must_use]
    pub fn alone(&self) -> Option<f64> {
        self.steps.first().map(|step| step.gib_per_s).filter(|rate| *rate > 0.0)
    }

    /// How many of the first `count` drives hang on a root complex.
    #[must_use]
    pub fn on(&self, root_complex: &str, count: usize) -> usize {
        let steps = self.steps.iter().take(count);
        steps.filter(|step| step.root_complex == root_complex).count()
    }

    /// What the drives of a root complex read at step `at`, in GiB/s.
    #[must_use]
    pub fn carried(&self, root_complex: &str, at: usize) -> f64 {
        let Some(step) = self.steps.get(at) else { return 0.0 };
        let shares = step.shares.iter().zip(&self.steps);
        shares.filter(|(_, of)| of.root_complex == root_complex).map(|(share, _)| share).sum()
    }
}
