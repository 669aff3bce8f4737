//! Results of a drive test.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A drive test, complete or partial.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct DriveTest {
    /// Drive, host and parameters of the test.
    pub setup: DriveTestSetup,
    /// One per requested test, in the order they ran.
    pub tests: Vec<TestRun>,
    /// Reason why it is partial; empty if it is complete.
    pub partial: String,
    /// Number of times it was interrupted and resumed.
    pub resumed: usize,
}

impl DriveTest {
    pub(super) fn title(&self) -> String {
        let drive = match (self.setup.model.trim(), self.setup.device.trim()) {
            ("", device) => device,
            (model, _) => model,
        };
        format!("Drive test of {drive}")
    }

    /// Mark after the title.
    pub(super) fn mark(&self) -> String {
        let mark = match (self.setup.quick, self.partial.is_empty()) {
            (false, true) => "measured",
            (true, true) => "quick mode",
            (false, false) => "partial",
            (true, false) => "quick mode, partial",
        };
        let is_unpurged = |run: &TestRun| run.purge.as_ref().is_some_and(|purge| !purge.done);
        let unpurged = if self.tests.iter().any(is_unpurged) { ", not purged" } else { "" };
        format!("{mark}{unpurged}")
    }
}

/// Drive, host and parameters of a test.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct DriveTestSetup {
    /// Name on the command line.
    pub device: String,
    /// Path of its commands.
    pub path: String,
    /// Model, as the drive reports it.
    pub model: String,
    /// Serial number, as the drive reports it.
    pub serial: String,
    /// Firmware, as the drive reports it.
    pub firmware: String,
    /// Bytes under test.
    pub capacity: u64,
    /// Bytes of a logical block.
    pub block_size: u32,
    /// Name of the machine that sent the commands.
    pub host: String,
    /// Release of its kernel.
    pub kernel: String,
    /// Command line of its kernel.
    #[serde(default)]
    pub kernel_command_line: String,
    /// Its distribution.
    #[serde(default)]
    pub distribution: String,
    /// Its board: vendor and name.
    #[serde(default)]
    pub board: String,
    /// Its firmware: vendor, version and date.
    #[serde(default)]
    pub bios: String,
    /// Revision of the processor's microcode.
    #[serde(default)]
    pub microcode: String,
    /// Remark of the operator.
    #[serde(default)]
    pub note: String,
    /// Its processor.
    pub processor: String,
    /// Processors available to the program.
    pub processors: usize,
    /// Version of the program.
    pub version: String,
    /// The whole command line.
    pub command_line: String,
    /// Start of the test, UTC.
    pub started: String,
    /// Threads that send commands.
    pub jobs: u16,
    /// Commands outstanding per thread.
    pub iodepth: u32,
    /// Length of a point.
    pub seconds: f64,
    /// Capacities written before the rounds begin.
    pub precondition: f64,
    /// Maximum rounds until a steady state.
    pub rounds: usize,
    /// Durations and preconditioning were scaled down.
    pub quick: bool,
    /// Further deviations from the specification.
    #[serde(default)]
    pub departures: Vec<String>,
}

/// The four tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TestKind {
    /// Random accesses: mixes by block sizes.
    Iops,
    /// Sequential accesses: block sizes.
    Throughput,
    /// One command at a time: mixes by block sizes.
    Latency,
    /// Random writes alone, until the end of the test.
    Saturation,
}

impl TestKind {
    /// All tests, in the order in which they run.
    pub const ALL: [Self; 4] = [Self::Iops, Self::Throughput, Self::Latency, Self::Saturation];

    /// Name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Iops => "iops",
            Self::Throughput => "throughput",
            Self::Latency => "latency",
            Self::Saturation => "saturation",
        }
    }

    /// The variable that must become steady, as text.
    #[must_use]
    pub fn variable(self) -> &'static str {
        match self {
            Self::Iops => "4 KiB random write",
            Self::Throughput => "1 MiB sequential write",
            Self::Latency => "4 KiB random write, mean latency",
            Self::Saturation => "4 KiB random write",
        }
    }

    /// The unit of `TestRun::variable`.
    #[must_use]
    pub fn unit(self) -> &'static str {
        match self {
            Self::Iops | Self::Saturation => "IOPS",
            Self::Throughput => "MiB/s",
            Self::Latency => "us",
        }
    }

    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Iops => "IOPS",
            Self::Throughput => "Throughput",
            Self::Latency => "Latency",
            Self::Saturation => "Write saturation",
        }
    }
}

impl fmt::Display for TestKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Results of one test.
#[derive(Debug, Clone, PartialEq)]
pub struct TestRun {
    /// The test.
    pub test: TestKind,
    /// Its planned steps.
    pub planned: PlannedSteps,
    /// Purge of the drive; `None` if the test did not reach it.
    pub purge: Option<Preparation>,
    /// Preconditioning of the drive, in tests that have it.
    pub precondition: Option<Preparation>,
    /// Rounds of measurements; in write saturation, each sample is a round.
    pub rounds: Vec<TestRound>,
    /// Result of the test.
    pub result: SteadyStateResult,
}

impl TestRun {
    /// The variable that must become steady, for each complete round.
    #[must_use]
    pub fn variables(&self) -> Vec<f64> {
        self.rounds.iter().map_while(|round| round.variable(self.test)).collect()
    }
}

/// The planned steps of a test: all that its name does not say.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PlannedSteps {
    /// Workloads of a round, in order.
    pub points: Vec<Workload>,
    /// Length of each in seconds; in write saturation, of a sample.
    pub seconds: f64,
    /// The end of write saturation by the number of capacities written, and by time in seconds.
    pub saturation: (f64, f64),
}

/// A purge, or the preconditioning.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Preparation {
    /// True if it took place.
    pub done: bool,
    /// Description of the operation, or the reason for its absence.
    pub how: String,
    /// Duration in seconds.
    pub seconds: f64,
    /// Bytes written for it.
    pub bytes: u64,
}

/// All points once, or those that were reached.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TestRound {
    /// Measurements in the order in which they ran.
    pub measurements: Vec<Measurement>,
}

impl TestRound {
    /// The variable that must become steady; `None` if its point was not reached.
    #[must_use]
    pub fn variable(&self, test: TestKind) -> Option<f64> {
        let (random, bs) = match test {
            TestKind::Throughput => (false, 1 << 20),
            _ => (true, 4096),
        };
        let measurement = self.find(random, 0, bs)?;
        Some(match test {
            TestKind::Iops | TestKind::Saturation => measurement.iops(),
            TestKind::Throughput => measurement.mib_per_s(),
            TestKind::Latency => measurement.times.mean,
        })
    }

    /// The measurement of a workload.
    #[must_use]
    pub fn find(&self, random: bool, read_percent: u8, bs: u64) -> Option<&Measurement> {
        self.measurements.iter().find(|measurement| {
            let of = measurement.workload;
            of.random == random && of.read_percent == read_percent && of.bs == bs
        })
    }
}

/// Workload of a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Workload {
    /// Random addresses instead of sequential ones.
    pub random: bool,
    /// Share of reads, 0 to 100.
    pub read_percent: u8,
    /// Bytes of a command.
    pub bs: u64,
    /// Threads that send commands.
    pub jobs: u16,
    /// Commands outstanding per thread.
    pub iodepth: u32,
}

/// A measurement of the drive.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// Its workload.
    pub workload: Workload,
    /// Measured time in seconds.
    pub seconds: f64,
    /// Commands completed in that time.
    pub ios: u64,
    /// Bytes moved in that time.
    pub bytes: u64,
    /// Response times.
    pub times: ResponseTimes,
    /// Pairs of a response time in microseconds and the number of commands, coarsely.
    pub histogram: Vec<(f64, u64)>,
}

impl Measurement {
    /// Commands a second.
    #[must_use]
    pub fn iops(&self) -> f64 {
        rate(self.ios, self.seconds)
    }

    /// Bytes a second, in MiB.
    #[must_use]
    pub fn mib_per_s(&self) -> f64 {
        rate(self.bytes, self.seconds) / f64::from(1_u32 << 20)
    }
}

#[expect(clippy::cast_precision_loss, reason = "a rate, not a count")]
fn rate(count: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { count as f64 / seconds } else { 0.0 }
}

/// Response times in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct ResponseTimes {
    /// Shortest.
    pub min: f64,
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 99.9th percentile.
    pub p99_9: f64,
    /// Longest.
    pub max: f64,
}

/// Result of a test.
#[derive(Debug, Clone, PartialEq)]
pub enum SteadyStateResult {
    /// The last rounds are in steady state.
    Steady(SteadyWindow),
    /// The test ran to its end without a steady state.
    Unsteady {
        /// The last rounds.
        window: SteadyWindow,
        /// Maximum rounds.
        most: usize,
    },
    /// Write saturation has ended.
    Over {
        /// Reason for its end.
        why: String,
    },
    /// The test did not run to its end.
    Cut,
}

/// The last rounds, and their steadiness.
#[derive(Debug, Clone, PartialEq)]
pub struct SteadyWindow {
    /// Number of the first of its rounds, from 1.
    pub first: usize,
    /// The variable that must become steady, for each of its rounds.
    pub values: Vec<f64>,
    /// Their mean.
    pub mean: f64,
    /// Largest minus smallest, relative to the mean.
    pub range: f64,
    /// The best-fit line at the first round.
    pub fit_first: f64,
    /// The best-fit line at the last round.
    pub fit_last: f64,
    /// Change of that line over the window, relative to the mean.
    pub slope: f64,
    /// The largest range of a steady state.
    pub range_allowed: f64,
    /// The largest slope of a steady state.
    pub slope_allowed: f64,
}

impl SteadyWindow {
    /// Number of its last round, from 1.
    #[must_use]
    pub fn last(&self) -> usize {
        self.first + self.values.len().saturating_sub(1)
    }
}
