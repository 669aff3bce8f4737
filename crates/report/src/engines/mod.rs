//! I/O engines compared: a table, a plot, and reference measurements of another machine.
//!
//! | file | content |
//! |---|---|
//! | `reference` | the reference measurements, and conclusions from them |
//! | `show` | the table, the plots and the page |

mod reference;
mod show;

use serde::{Deserialize, Serialize};

pub use reference::{
    REFERENCE, REFERENCE_SOURCE, ReferenceRow, about_md, about_polling, reference,
};
pub use show::{page, plots, reference_plots, reference_table, table};

/// The version of the format.
pub const VERSION: u32 = 1;

/// A comparison of engines.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EngineComparison {
    /// [`VERSION`].
    pub version: u32,
    /// Machine of the measurement.
    pub machine: MachineInfo,
    /// The command line.
    pub command: String,
    /// The drives.
    pub drives: Vec<DriveInfo>,
    /// Bytes of a read.
    pub block_bytes: u32,
    /// Measured seconds per row.
    pub seconds: f64,
    /// Ended before all rows were measured.
    pub partial: bool,
    /// Rows in the order of the measurement.
    pub rows: Vec<EngineRow>,
}

/// Properties of a machine.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct MachineInfo {
    /// Its name.
    pub host: String,
    /// Release of its kernel.
    pub kernel: String,
    /// CPUs this process may use.
    pub cpus: usize,
    /// Model of its CPUs.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub cpu_model: String,
}

impl MachineInfo {
    /// Host, kernel and CPUs in one line.
    #[must_use]
    pub fn line(&self) -> String {
        let Self { host, kernel, cpus, cpu_model } = self;
        let of = if cpu_model.is_empty() { String::new() } else { format!(" of {cpu_model}") };
        format!("{host}, Linux {kernel}, {cpus} CPUs{of}")
    }
}

/// A drive that was read.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct DriveInfo {
    /// Name on the command line.
    pub name: String,
    /// Model, if known.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub model: String,
    /// Serial number, if known.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub serial: String,
    /// Firmware, if known.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub firmware: String,
    /// Size in bytes.
    pub bytes: u64,
    /// Bytes of a block in the current format.
    pub lba_bytes: u32,
}

/// Layout of the reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ReadLayout {
    /// One drive alone.
    Single,
    /// All drives concurrently, each separately.
    Individual,
    /// All as one, striped by the program.
    Stripe,
    /// All as one, striped by the kernel: MD RAID-0.
    #[serde(rename = "md-raid0")]
    MdRaid0,
}

impl ReadLayout {
    /// All layouts, in the order of tables.
    pub const ALL: [Self; 4] = [Self::Single, Self::Individual, Self::Stripe, Self::MdRaid0];

    /// Name in every output.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Single => "single",
            Self::Individual => "individual",
            Self::Stripe => "stripe",
            Self::MdRaid0 => "md-raid0",
        }
    }
}

/// One engine on some drives at one concurrency.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EngineRow {
    /// Bytes of a block of the drives' format; 0 if unknown.
    pub lba_bytes: u32,
    /// Layout of the reads.
    pub layout: ReadLayout,
    /// Names of the drives.
    pub drives: Vec<String>,
    /// The engine.
    pub engine: String,
    /// Reads outstanding over all drives; 0 if the engine works at no concurrency.
    pub concurrency: u32,
    /// Outcome of the row.
    pub outcome: RowOutcome,
    /// Remark on the figures.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// Outcome of a row.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RowOutcome {
    /// Figures.
    Measured(EngineFigures),
    /// The engine cannot read the drives; with the reason.
    Unable(String),
}

/// Figures of a row.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EngineFigures {
    /// Threads.
    pub threads: u32,
    /// Reads outstanding per thread.
    pub depth: u32,
    /// Thousands of reads a second.
    pub kiops: f64,
    /// Mean latency in us.
    pub mean_us: f64,
    /// 99th percentile of the latency in us.
    pub p99_us: f64,
    /// CPU time of the reading threads per read, in us.
    pub cpu_us: f64,
    /// Reads that failed.
    pub errors: u64,
    /// Ended early.
    pub partial: bool,
}

#[cfg(test)]
mod tests;
