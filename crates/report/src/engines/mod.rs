//! Ways to read drives, side by side: one table, one plot, and the same of another machine as a reference.
//!
//! | file | what |
//! |---|---|
//! | `reference` | what others measured, and what there is to learn of it |
//! | `show` | the table, the plots and the page |

mod reference;
mod show;

use serde::{Deserialize, Serialize};

pub use reference::{REFERENCE, Reference, about_polling, reference};
pub use show::{page, plots, reference_plots, reference_table, table};

/// The version of the form.
pub const VERSION: u32 = 1;

/// A comparison of engines.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Engines {
    /// [`VERSION`].
    pub version: u32,
    /// Where it was measured.
    pub machine: Machine,
    /// The command line.
    pub command: String,
    /// The drives.
    pub drives: Vec<Drive>,
    /// Bytes of a read.
    pub block_bytes: u32,
    /// Seconds measured of each row.
    pub seconds: f64,
    /// Ended before all rows were measured.
    pub partial: bool,
    /// In the order they were measured.
    pub rows: Vec<Row>,
}

/// A machine, as far as it matters.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Machine {
    /// Its name.
    pub host: String,
    /// Its kernel's release.
    pub kernel: String,
    /// CPUs this process may use.
    pub cpus: usize,
}

/// A drive that was read.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Drive {
    /// As it was named on the command line.
    pub name: String,
    /// Model, where it is known.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub model: String,
    /// Serial number, where it is known.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub serial: String,
    /// Firmware, where it is known.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub firmware: String,
    /// Bytes.
    pub bytes: u64,
    /// Bytes of a block, as it is formatted.
    pub lba_bytes: u32,
}

/// How the drives are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Layout {
    /// One drive alone.
    Single,
    /// All at once, each for itself.
    Individual,
    /// All as one, striped.
    Stripe,
}

impl Layout {
    /// As every output writes it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Single => "single",
            Self::Individual => "individual",
            Self::Stripe => "stripe",
        }
    }
}

/// One engine on some drives at one concurrency.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Bytes of a block of the drives' format; 0 where that is not known.
    pub lba_bytes: u32,
    /// How the drives are read.
    pub layout: Layout,
    /// The drives, as they were named.
    pub drives: Vec<String>,
    /// The engine.
    pub engine: String,
    /// Reads outstanding, all together; 0 where the engine goes with no number of them.
    pub concurrency: u32,
    /// What came of it.
    pub outcome: Outcome,
    /// What has to be known of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// What came of a row.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// Figures.
    Measured(Figures),
    /// The engine cannot do it, and why.
    Unable(String),
}

/// Figures of a row.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// Threads.
    pub threads: u32,
    /// Reads outstanding of each.
    pub depth: u32,
    /// Thousands of reads a second.
    pub kiops: f64,
    /// Mean latency in us.
    pub mean_us: f64,
    /// 99th percentile of the latency in us.
    pub p99_us: f64,
    /// CPU time of the reading threads for each read, in us.
    pub cpu_us: f64,
    /// Reads that failed.
    pub errors: u64,
    /// Ended before its time.
    pub partial: bool,
}

#[cfg(test)]
mod tests;
