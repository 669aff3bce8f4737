//! What a drive test brings home.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A drive test, whole or as far as it came.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Study {
    /// What was tested, where, how.
    pub setup: Setup,
    /// One a test that was asked for, in the order they were run.
    pub tests: Vec<TestRun>,
    /// Why it is not whole; empty if it is.
    pub partial: String,
    /// How often it was interrupted and gone on with.
    pub resumed: usize,
}

impl Study {
    pub(super) fn title(&self) -> String {
        let drive = match (self.setup.model.trim(), self.setup.device.trim()) {
            ("", device) => device,
            (model, _) => model,
        };
        format!("Drive test of {drive}")
    }

    /// What stands beside the title.
    pub(super) fn mark(&self) -> &'static str {
        match (self.setup.quick, self.partial.is_empty()) {
            (false, true) => "measured",
            (true, true) => "quick mode",
            (false, false) => "partial",
            (true, false) => "quick mode, partial",
        }
    }
}

/// What was tested, where, how.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Setup {
    /// As it was named on the command line.
    pub device: String,
    /// Through what its commands went.
    pub path: String,
    /// As the drive says.
    pub model: String,
    /// As the drive says.
    pub serial: String,
    /// As the drive says.
    pub firmware: String,
    /// Bytes that were tested.
    pub capacity: u64,
    /// Bytes of a logical block.
    pub block_size: u32,
    /// Name of the machine that sent the commands.
    pub host: String,
    /// Its operating system's kernel.
    pub kernel: String,
    /// Its processor.
    pub processor: String,
    /// Its processors, as the program may use them.
    pub processors: usize,
    /// Version of the program.
    pub version: String,
    /// All of it.
    pub command_line: String,
    /// When it began, UTC.
    pub started: String,
    /// Threads that send commands.
    pub jobs: u16,
    /// Commands outstanding, each thread.
    pub iodepth: u32,
    /// Length of a point.
    pub seconds: f64,
    /// How often the capacity is written before rounds begin.
    pub precondition: f64,
    /// Rounds in which a steady state is sought, at most.
    pub rounds: usize,
    /// Durations and preconditioning were scaled down.
    pub quick: bool,
    /// What is done otherwise than the specification says, besides.
    #[serde(default)]
    pub departures: Vec<String>,
}

/// The four tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Test {
    /// Random accesses: mixes by block sizes.
    Iops,
    /// Sequential accesses: block sizes.
    Throughput,
    /// One command at a time: mixes by block sizes.
    Latency,
    /// Random writes, and nothing else, for as long as it takes.
    Saturation,
}

impl Test {
    /// All of them, in the order in which they are run.
    pub const ALL: [Self; 4] = [Self::Iops, Self::Throughput, Self::Latency, Self::Saturation];

    /// As on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Iops => "iops",
            Self::Throughput => "throughput",
            Self::Latency => "latency",
            Self::Saturation => "saturation",
        }
    }

    /// What has to be steady, in words.
    #[must_use]
    pub fn variable(self) -> &'static str {
        match self {
            Self::Iops => "4 KiB random write",
            Self::Throughput => "1 MiB sequential write",
            Self::Latency => "4 KiB random write, mean latency",
            Self::Saturation => "4 KiB random write",
        }
    }

    /// The unit of [`TestRun::variable`].
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

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What was done in one test.
#[derive(Debug, Clone, PartialEq)]
pub struct TestRun {
    /// Which one.
    pub test: Test,
    /// How the drive was emptied; nothing yet if it was not come to.
    pub purge: Option<Preparation>,
    /// How it was filled, in tests that do.
    pub precondition: Option<Preparation>,
    /// What was measured; of write saturation, each sample is a round.
    pub rounds: Vec<Round>,
    /// What came of it.
    pub verdict: Verdict,
}

impl TestRun {
    /// Of each whole round, what has to be steady.
    #[must_use]
    pub fn variables(&self) -> Vec<f64> {
        self.rounds.iter().map_while(|round| round.variable(self.test)).collect()
    }
}

/// A purge, or the preconditioning.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Preparation {
    /// It took place.
    pub done: bool,
    /// What was done, or why nothing was.
    pub how: String,
    /// How long it took.
    pub seconds: f64,
    /// Bytes written for it.
    pub bytes: u64,
}

/// All points once, or as many as there was time for.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Round {
    /// In the order in which they were run.
    pub readings: Vec<Reading>,
}

impl Round {
    /// What has to be steady; `None` if its point was not come to.
    #[must_use]
    pub fn variable(&self, test: Test) -> Option<f64> {
        let (random, bs) = match test {
            Test::Throughput => (false, 1 << 20),
            _ => (true, 4096),
        };
        let reading = self.find(random, 0, bs)?;
        Some(match test {
            Test::Iops | Test::Saturation => reading.iops(),
            Test::Throughput => reading.mib_per_s(),
            Test::Latency => reading.times.mean,
        })
    }

    /// The reading of a workload.
    #[must_use]
    pub fn find(&self, random: bool, read_percent: u8, bs: u64) -> Option<&Reading> {
        self.readings.iter().find(|reading| {
            let of = reading.workload;
            of.random == random && of.read_percent == read_percent && of.bs == bs
        })
    }
}

/// What was asked of the drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Workload {
    /// Random addresses; else one after the other.
    pub random: bool,
    /// Share of reads, 0 to 100.
    pub read_percent: u8,
    /// Bytes of a command.
    pub bs: u64,
    /// Threads that send commands.
    pub jobs: u16,
    /// Commands outstanding, each thread.
    pub iodepth: u32,
}

/// What it did.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Reading {
    /// What was asked of it.
    pub workload: Workload,
    /// Length of time measured.
    pub seconds: f64,
    /// Commands done in it.
    pub ios: u64,
    /// Bytes moved in it.
    pub bytes: u64,
    /// Response times.
    pub times: Times,
    /// Response times in microseconds and how many commands took as long, coarsely.
    pub histogram: Vec<(f64, u64)>,
}

impl Reading {
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
pub struct Times {
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

/// What came of a test.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    /// The last rounds are a steady state.
    Steady(Window),
    /// It was run to its end, and its last rounds are none.
    Unsteady {
        /// The last rounds.
        window: Window,
        /// Rounds that were allowed.
        most: usize,
    },
    /// Write saturation has come to its end.
    Over {
        /// Why it ended there.
        why: String,
    },
    /// It did not come to its end.
    Cut,
}

/// The last rounds, and how steady they are.
#[derive(Debug, Clone, PartialEq)]
pub struct Window {
    /// Number of the first of its rounds, from 1.
    pub first: usize,
    /// What has to be steady, of each of its rounds.
    pub values: Vec<f64>,
    /// Their mean.
    pub mean: f64,
    /// Largest less smallest, as a share of the mean.
    pub range: f64,
    /// The best-fit line at the first round.
    pub fit_first: f64,
    /// The best-fit line at the last round.
    pub fit_last: f64,
    /// How much that line rises or falls over the window, as a share of the mean.
    pub slope: f64,
    /// The largest range that is steady.
    pub range_allowed: f64,
    /// The largest slope that is steady.
    pub slope_allowed: f64,
}

impl Window {
    /// Number of its last round, from 1.
    #[must_use]
    pub fn last(&self) -> usize {
        self.first + self.values.len().saturating_sub(1)
    }
}
