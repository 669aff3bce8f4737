//! Measured rows, the scenario of each, and the deviation of the simulated machine from them.
//!
//! The rows were measured with the Mellanox SPDK io_pacing prototype on two real machines
//! (`pacing_prototype.csv`); this project did not measure them. The numbers of the platforms were
//! fitted to these rows, so a table of them shows how well the mechanisms fit, not what they
//! predict. Rows of other conditions can be compared with `calibrate --rows`. On platform A, a pool
//! of 64 or 80 buffers at depth 1024 gave 73 to 134 Gb/s in different runs of the same load: these
//! rows are shown, and neither fitted nor judged.
//!
//! `docs/design/simulator.md` lists the rows that the model misses, with the missing mechanism.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicUsize, Ordering};

use nvmeof_pacing::{PolicyConfig, PrototypeConfig, PrototypePacer, PrototypePool};

use crate::scenario::{Delay, Job, Nanos, Scenario};
use crate::setups::{BLOCK, MS, drives, null, split3};
use crate::{Platform, RunError, run};

/// Rows of both platforms.
pub const ROWS: &str = include_str!("../data/pacing_prototype.csv");

/// Warm-up and measured time of a row: enough for the reported values.
pub const RUN: (Nanos, Nanos) = (30 * MS, 100 * MS);

/// A measured row.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// Platform: `A` or `B`.
    pub platform: String,
    /// Number of the test, 1 to 14, of io_pacing.
    pub test: u32,
    /// `null1`, `null16`, `nvme16`, `split3`, `split3+delay`, `local1`.
    pub devices: String,
    /// Linux hosts instead of userspace ones.
    pub kernel: bool,
    /// Hosts; 0: run on the target itself.
    pub hosts: u32,
    /// Jobs per host.
    pub jobs: u32,
    /// Target cores; 4 if the row does not say.
    pub cores: u32,
    /// Pool of io_pacing and the cache of each core, if set.
    pub pool: Option<(u32, u32)>,
    /// Period of the io_pacing pacer in ns, if set.
    pub period: Option<Nanos>,
    /// Depth of the third job, if there is one.
    pub job3_qd: Option<u32>,
    /// Devices of 1 ms more.
    pub slow: u32,
    /// Depth of a job.
    pub qd: u32,
    /// Measured goodput in Gb/s.
    pub gbps: f64,
    /// Measured deviation of it in Gb/s.
    pub stddev_gbps: Option<f64>,
    /// Measured mean latency in µs.
    pub latency_us: Option<f64>,
    /// Measured hit rate in percent.
    pub hit_pct: Option<f64>,
}

/// Parses all rows of a file with the columns of [`ROWS`], in order.
///
/// # Errors
/// A message that names the line without a required number.
pub fn rows(text: &str) -> Result<Vec<Row>, String> {
    let mut lines = text.lines();
    let names: Vec<&str> = lines.next().unwrap_or_default().split(',').collect();
    lines
        .enumerate()
        .map(|(at, line)| {
            let cells: Vec<&str> = line.split(',').collect();
            let cell = |name: &str| {
                let column = names.iter().position(|n| *n == name);
                column.and_then(|c| cells.get(c)).copied().filter(|text| !text.is_empty())
            };
            row(&cell).ok_or_else(|| format!("line {}: a number is missing or malformed", at + 2))
        })
        .collect()
}

fn row<'a>(cell: &impl Fn(&str) -> Option<&'a str>) -> Option<Row> {
    let whole = |name: &str| cell(name).and_then(|text| text.parse::<u32>().ok());
    let number = |name: &str| cell(name).and_then(|text| text.parse::<f64>().ok());
    let cores = whole("cores").unwrap_or(4);
    let pool = whole("num_buffers")
        .map(|buffers| (buffers, whole("buf_cache").unwrap_or(buffers / cores)));
    Some(Row {
        platform: cell("platform")?.to_owned(),
        test: whole("test")?,
        devices: cell("devices")?.to_owned(),
        kernel: cell("initiator")?.contains("kernel"),
        hosts: whole("hosts")?,
        jobs: whole("jobs")?,
        cores,
        pool,
        period: whole("period_ns").map(Nanos::from),
        job3_qd: whole("job3_qd"),
        slow: whole("num_delay").unwrap_or(0),
        qd: whole("qd")?,
        gbps: number("bw_gbps")?,
        stddev_gbps: number("bw_stddev"),
        latency_us: number("lat_us"),
        hit_pct: number("l3_hit_pct"),
    })
}

impl Row {
    /// Returns whether the row is judged: its bandwidth was about the same in each run.
    #[must_use]
    pub fn judged(&self) -> bool {
        let unstable = self.pool.is_some_and(|(buffers, _)| (64..=80).contains(&buffers));
        !(self.platform == "A" && self.test == 10 && self.qd == 1024 && unstable)
    }

    /// Returns the scenario; `None` for a load on the target itself, which the machine cannot run.
    #[must_use]
    pub fn scenario(&self) -> Option<Scenario> {
        if self.hosts == 0 {
            return None;
        }
        let devices = match self.devices.as_str() {
            "null1" => null(1),
            "null16" => null(16),
            "nvme16" => drives(16),
            "split3" | "split3+delay" => split3(16, self.slow, Delay::AfterData(MS)),
            _ => return None,
        };
        let mut scenario = Scenario::reads(devices, self.qd);
        if self.kernel {
            scenario = Scenario::kernel_reads(scenario.devices, self.qd);
        }
        scenario.hosts = self.hosts;
        scenario.cores = self.cores;
        scenario.jobs = self.load(&scenario);
        let pool = self.pool.map(|(buffers, cache)| PrototypePool { buffers, cache });
        let pacer = self.period.map(|period| PrototypePacer {
            period,
            credit: BLOCK,
            bypass_below: 0,
            drive_limit: None,
            tuner: None,
        });
        Some(scenario.paced(match (pool, pacer) {
            (None, None) => PolicyConfig::None,
            _ => PolicyConfig::Prototype(PrototypeConfig { pool, pacer }),
        }))
    }

    /// Returns one job; on split drives three, with 1/3 of the devices each.
    fn load(&self, scenario: &Scenario) -> Vec<Job> {
        if self.devices.starts_with("split3") && self.jobs == 3 {
            let third = scenario.devices.len() / 3;
            let depths = [self.qd, self.qd, self.job3_qd.unwrap_or(self.qd)];
            let job = |(at, depth)| Job::reads(at * third..(at + 1) * third, depth);
            return depths.into_iter().enumerate().map(job).collect();
        }
        let with_threads = |job: &Job| Job { threads: self.jobs, ..job.clone() };
        scenario.jobs.iter().map(with_threads).collect()
    }
}

/// Row and the result of the simulated machine.
#[derive(Debug, Clone)]
pub struct Compared {
    /// The row.
    pub row: Row,
    /// Simulated goodput in Gb/s.
    pub gbps: f64,
    /// Simulated deviation in Gb/s.
    pub stddev_gbps: f64,
    /// Simulated hit rate in percent.
    pub hit_pct: f64,
    /// Simulated mean latency in µs.
    pub latency_us: f64,
}

impl Compared {
    /// Returns the error of the bandwidth as a fraction of the measured one.
    #[must_use]
    pub fn bandwidth_error(&self) -> f64 {
        self.gbps / self.row.gbps - 1.0
    }

    /// Returns the error of the hit rate in percentage points, if it was measured.
    #[must_use]
    pub fn hit_error(&self) -> Option<f64> {
        self.row.hit_pct.map(|hit| self.hit_pct - hit)
    }
}

/// Warm-up per outstanding command, in ns: the outstanding commands of the hosts gather in few of
/// their queues, and that takes time.
const SETTLE: Nanos = 150_000;

/// Runs every row of this platform that the machine can run, each for `time` after `warm_up`, both
/// in ns.
///
/// # Errors
/// See [`run`].
pub fn compare(
    platform: &Platform,
    rows: &[Row],
    warm_up: Nanos,
    time: Nanos,
) -> Result<Vec<Compared>, RunError> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(row) = rows.get(at) else { return Ok::<_, RunError>(done) };
            if let Some(compared) = compare_row(platform, row, at as u64 + 1, warm_up, time)? {
                done.push((at, compared));
            }
        }
    };
    let mut all = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let mut all = Vec::new();
        for worker in workers {
            all.extend(worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?);
        }
        Ok::<_, RunError>(all)
    })?;
    all.sort_by_key(|(at, _)| *at);
    Ok(all.into_iter().map(|(_, compared)| compared).collect())
}

fn compare_row(
    platform: &Platform,
    row: &Row,
    seed: u64,
    warm_up: Nanos,
    time: Nanos,
) -> Result<Option<Compared>, RunError> {
    let Some(scenario) = row.scenario() else { return Ok(None) };
    let offered = |job: &Job| u64::from(job.threads) * u64::from(job.queue_depth);
    let load = u64::from(row.hosts) * scenario.jobs.iter().map(offered).sum::<u64>();
    let scenario = scenario.seed(seed).lasting(warm_up + load * SETTLE, time);
    let run_result = run(platform, &scenario)?;
    Ok(Some(Compared {
        row: row.clone(),
        gbps: run_result.total.gbps,
        stddev_gbps: run_result.stddev_gbps,
        hit_pct: run_result.hit_pct,
        latency_us: run_result.total.latency.mean / 1e3,
    }))
}

/// Number of matched rows.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct RowsMet {
    /// Judged rows.
    pub rows: u32,
    /// Of these, rows with a bandwidth within 5 %.
    pub bandwidth_met: u32,
    /// Judged rows with a hit rate.
    pub hit_rows: u32,
    /// Of these, rows within 5 percentage points.
    pub hit_met: u32,
    /// Mean absolute error of the bandwidth, as a fraction.
    pub mean_error: f64,
}

impl RowsMet {
    /// Counts all judged rows.
    pub fn of<'a>(compared: impl Iterator<Item = &'a Compared>) -> Self {
        let mut rows_met = Self::default();
        for one in compared.filter(|one| one.row.judged()) {
            rows_met.rows += 1;
            rows_met.mean_error += one.bandwidth_error().abs();
            rows_met.bandwidth_met += u32::from(one.bandwidth_error().abs() <= 0.05);
            if let Some(error) = one.hit_error() {
                rows_met.hit_rows += 1;
                rows_met.hit_met += u32::from(error.abs() <= 5.0);
            }
        }
        rows_met.mean_error /= f64::from(rows_met.rows.max(1));
        rows_met
    }

    /// Returns the fraction of the rows with matched bandwidth.
    #[must_use]
    pub fn bandwidth_share(&self) -> f64 {
        f64::from(self.bandwidth_met) / f64::from(self.rows.max(1))
    }

    /// Returns the fraction of the rows with matched hit rate.
    #[must_use]
    pub fn hit_share(&self) -> f64 {
        f64::from(self.hit_met) / f64::from(self.hit_rows.max(1))
    }
}

/// Returns the line above the table of a platform.
#[must_use]
pub fn head(name: &str, platform: &Platform) -> String {
    format!("Platform {name}, simulated; fingerprint {:#018x}\n", platform.fingerprint())
}

/// Returns the table of errors: every row if `all`, then one line per test.
#[must_use]
pub fn table(compared: &[Compared], all: bool) -> String {
    let mut text = String::new();
    if all {
        text += "    test devices       hosts  jobs cores pool/cache period slow job3   qd |    \
                 Gb/s  simulated  error | hit %  simulated  error\n";
        for one in compared {
            text += &line(one);
        }
    }
    text += "test   rows  bandwidth within 5 %  mean error  hit rate within 5 points\n";
    for test in tests(compared) {
        let rows = compared.iter().filter(|one| one.row.test == test);
        text += &summary(&test.to_string(), RowsMet::of(rows));
    }
    text += &summary("all", RowsMet::of(compared.iter()));
    let unstable = compared.iter().filter(|one| !one.row.judged()).count();
    if unstable > 0 {
        let _ = writeln!(text, "different in each run of the real machine, not judged: {unstable}");
    }
    text
}

/// Returns the numbers of the tests with rows, ascending, each once.
#[must_use]
pub fn tests(compared: &[Compared]) -> Vec<u32> {
    let mut tests: Vec<u32> = compared.iter().map(|one| one.row.test).collect();
    tests.sort_unstable();
    tests.dedup();
    tests
}

fn line(one: &Compared) -> String {
    let row = &one.row;
    let mark = if !row.judged() {
        "unst"
    } else if one.bandwidth_error().abs() > 0.05 {
        "  BW"
    } else if one.hit_error().is_some_and(|error| error.abs() > 5.0) {
        " hit"
    } else {
        "    "
    };
    let pool = row.pool.map_or_else(String::new, |(buffers, cache)| format!("{buffers}/{cache}"));
    let hosts = if row.kernel { "kernel" } else { "user" };
    let or_empty = |number: Option<u64>| number.map_or_else(String::new, |n| n.to_string());
    let mut text = format!(
        "{mark} {:>2}  {:<13} {hosts:<7} {:>3} {:>5} {pool:>9} {:>6} {:>4} {:>4} {:>5} | {:>7.1} \
         {:>9.1} {:>6.1} %",
        row.test,
        row.devices,
        row.jobs,
        row.cores,
        or_empty(row.period),
        row.slow,
        or_empty(row.job3_qd.map(u64::from)),
        row.qd,
        row.gbps,
        one.gbps,
        100.0 * one.bandwidth_error()
    );
    if let (Some(hit), Some(error)) = (row.hit_pct, one.hit_error()) {
        let _ = write!(text, " | {hit:>5.1} {:>9.1} {error:>7.1}", one.hit_pct);
    }
    text.push('\n');
    text
}

fn summary(test: &str, rows_met: RowsMet) -> String {
    let hit = match rows_met.hit_rows {
        0 => "-".to_owned(),
        rows => format!("{} of {rows} ({:.0} %)", rows_met.hit_met, 100.0 * rows_met.hit_share()),
    };
    format!(
        "{test:>4} {:>6} {:>12} ({:>3.0} %) {:>10.1} % {hit:>26}\n",
        rows_met.rows,
        rows_met.bandwidth_met,
        100.0 * rows_met.bandwidth_share(),
        100.0 * rows_met.mean_error,
    )
}
