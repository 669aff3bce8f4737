//! The result of a run, as JSON and as a table.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use nvmeof_initiator::Nanos;
use serde::Serialize;

use crate::load::{FlowTotals, LoadResult};
use crate::stats::{DirectionCounters, VerifyCounters};
use crate::table::{TextTable, thousands};
use crate::target::{Target, TargetSpace};

/// Version of the JSON; changes when a key is removed or changes its meaning.
const SCHEMA_VERSION: u32 = 1;

/// Contents of the `--json` file.
#[derive(Debug, Serialize)]
pub(crate) struct RunReport {
    schema_version: u32,
    tool: Tool,
    pub(crate) parameters: RunParameters,
    pub(crate) targets: Vec<TargetReport>,
    /// Seconds measured.
    pub(crate) elapsed_s: f64,
    /// Ended early, by Ctrl-C or an error.
    pub(crate) interrupted: bool,
    /// Bytes that an earlier run had done, which this one resumed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) resumed_bytes: Option<u64>,
    #[serde(flatten)]
    total: IoRates,
    read: IoRates,
    write: IoRates,
    trim: IoRates,
    /// Failed I/Os and lost connections.
    pub(crate) errors: u64,
    /// Blocks with wrong contents.
    pub(crate) verify_errors: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    verify: Option<VerifyReport>,
    /// CPU seconds of the job threads during the measurement.
    pub(crate) cpu_seconds: f64,
    /// Pairs of nanoseconds and I/Os with that latency, to three digits.
    ///
    /// Merged with those of other runs, they give the percentiles of all.
    latency_histogram_ns: Vec<(u64, u64)>,
    series: Vec<Point>,
    flows: Vec<FlowReport>,
    /// First problems, as text.
    pub(crate) messages: Vec<String>,
    /// Complete statistics of reads, writes and trims.
    #[serde(skip)]
    pub(crate) counters: [DirectionCounters; 3],
}

#[derive(Debug, Serialize)]
struct Tool {
    name: &'static str,
    version: &'static str,
}

/// The parameters of the run.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct RunParameters {
    pub(crate) connect: Vec<String>,
    /// Devices of this machine.
    pub(crate) device: Vec<String>,
    /// Bytes of a stripe's chunk, if the devices form a stripe.
    pub(crate) stripe: Option<u64>,
    /// The namespace, if exactly one was requested.
    pub(crate) nsid: Option<u32>,
    /// The requested namespaces, if not all.
    pub(crate) nsids: Option<Vec<u32>>,
    pub(crate) rw: String,
    pub(crate) read_percent: u8,
    pub(crate) random: bool,
    pub(crate) bs: u64,
    /// Shares of block sizes, if there are several.
    pub(crate) bssplit: Option<String>,
    pub(crate) random_distribution: String,
    pub(crate) qd: u32,
    /// `qd` is per job over all namespaces, not per job and namespace.
    pub(crate) shared_qd: bool,
    pub(crate) jobs: u16,
    pub(crate) cpus: Option<Vec<usize>>,
    /// `None` without a time limit.
    pub(crate) time_s: Option<f64>,
    pub(crate) ios: Option<u64>,
    pub(crate) io_size: Option<u64>,
    pub(crate) loops: Option<u32>,
    pub(crate) ramp_s: f64,
    pub(crate) size: Option<u64>,
    pub(crate) offset: u64,
    pub(crate) rate_iops: Option<f64>,
    pub(crate) thinktime_us: Option<u128>,
    pub(crate) thinktime_blocks: Option<u32>,
    pub(crate) refill_buffers: bool,
    pub(crate) percentiles: Vec<f64>,
    pub(crate) seed: u64,
    /// NQN of the host, if it connected to a target.
    pub(crate) hostnqn: Option<String>,
    pub(crate) hdgst: bool,
    pub(crate) ddgst: bool,
    pub(crate) verify: bool,
}

/// A controller, or a device of this machine.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct TargetReport {
    connect: String,
    /// `tcp`, `rdma`, or the kind of device.
    kind: &'static str,
    model: String,
    serial: String,
    firmware: String,
    /// I/O queues connected, over all jobs; 0 for a device of this machine.
    queues: usize,
    /// Maximum commands of each queue.
    queue_depth: u16,
}

/// I/Os of one direction, or of both.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct IoRates {
    iops: f64,
    bandwidth_gbps: f64,
    latency_us: LatencyReport,
    ios: u64,
    bytes: u64,
}

/// Microseconds; null without I/Os.
#[derive(Debug, Clone, Serialize)]
struct LatencyReport {
    min: Option<f64>,
    mean: Option<f64>,
    p50: Option<f64>,
    p99: Option<f64>,
    p99_9: Option<f64>,
    max: Option<f64>,
    /// The requested percentiles, by name.
    percentiles: BTreeMap<String, Option<f64>>,
}

/// Numbers of checked blocks.
#[derive(Debug, Clone, Copy, Serialize)]
struct VerifyReport {
    blocks_good: u64,
    /// Never written with this seed, which is no error.
    blocks_unwritten: u64,
    blocks_wrong: u64,
    /// The data written in this run was read back at its end.
    read_back: bool,
}

#[derive(Debug, Clone, Serialize)]
struct Point {
    /// Seconds since the start of the measurement.
    t: f64,
    iops: f64,
    gbps: f64,
}

/// One namespace, or one device of this machine.
#[derive(Debug, Clone, Serialize)]
struct FlowReport {
    connect: String,
    subnqn: Option<String>,
    nsid: u32,
    /// Size in bytes.
    size: u64,
    block_size: u32,
    #[serde(flatten)]
    total: IoRates,
    read: IoRates,
    write: IoRates,
    trim: IoRates,
    errors: u64,
    verify_errors: u64,
}

impl RunReport {
    pub(crate) fn new(parameters: RunParameters, target: &Target, measured: &LoadResult) -> Self {
        let seconds = measured.seconds();
        let all = [measured.read(), measured.write(), measured.trim()];
        let percentiles = parameters.percentiles.clone();
        let rates = |counters: &DirectionCounters| IoRates::new(counters, seconds, &percentiles);
        let sum = sum(&all);
        let [read, write, trim] = all.each_ref().map(rates);
        let mut verified = VerifyCounters::default();
        measured.flows.iter().for_each(|flow| verified.add(flow.verified));
        let verify = parameters.verify.then_some(VerifyReport {
            blocks_good: verified.good,
            blocks_unwritten: verified.unwritten,
            blocks_wrong: verified.errors,
            read_back: measured.read_back,
        });
        let bucket = crate::stats::BUCKET;
        let series = measured.series.buckets(measured.measured).map(|(at, ios, bytes)| Point {
            t: self::seconds(at),
            iops: per_second(ios, self::seconds(bucket)),
            gbps: gigabits(bytes, self::seconds(bucket)),
        });
        Self {
            schema_version: SCHEMA_VERSION,
            tool: Tool { name: env!("CARGO_PKG_NAME"), version: env!("CARGO_PKG_VERSION") },
            parameters,
            targets: targets(target),
            elapsed_s: seconds,
            interrupted: measured.interrupted,
            latency_histogram_ns: sum.latency.counts().collect(),
            total: rates(&sum),
            read,
            write,
            trim,
            resumed_bytes: None,
            errors: measured.errors(),
            verify_errors: verified.errors,
            verify,
            cpu_seconds: self::seconds(measured.cpu),
            series: series.collect(),
            flows: measured
                .flows
                .iter()
                .filter_map(|flow| {
                    Some(FlowReport::new(target.spaces().get(flow.space)?, flow, &rates))
                })
                .collect(),
            messages: measured.messages.clone(),
            counters: all,
        }
    }

    /// Returns true if no I/O and no verification failed.
    pub(crate) fn is_clean(&self) -> bool {
        self.errors == 0 && self.verify_errors == 0
    }

    /// Bytes and I/Os a second in each interval of the series.
    pub(crate) fn samples(&self) -> Vec<(f64, f64)> {
        self.series.iter().map(|point| (point.gbps * 1e9 / 8.0, point.iops)).collect()
    }

    /// The report as text for a terminal.
    pub(crate) fn text(&self) -> String {
        let percentiles = &self.parameters.percentiles;
        let named: Vec<String> =
            percentiles.iter().map(|percent| format!("p{percent} us")).collect();
        let mut header = vec!["<", "IOPS", "Gb/s", "min us", "mean us"];
        header.extend(named.iter().map(String::as_str));
        header.extend(["max us", "errors"]);
        let cells = |rates: &IoRates, name, errors| rates.cells(name, errors, percentiles);
        let mut table = TextTable::new(&header);
        for (name, rates) in [("read", &self.read), ("write", &self.write), ("trim", &self.trim)] {
            if rates.ios > 0 {
                table.row(cells(rates, name.to_owned(), None));
            }
        }
        table.row(cells(&self.total, "total".to_owned(), Some(self.errors)));
        let mut text = table.to_string();
        if self.flows.len() > 1 {
            let mut table = TextTable::new(&header);
            for flow in &self.flows {
                let name = match &flow.subnqn {
                    Some(subnqn) => format!("{subnqn} namespace {}", flow.nsid),
                    None => flow.connect.clone(),
                };
                table.row(cells(&flow.total, name, Some(flow.errors)));
            }
            let _ = write!(text, "\n{table}");
        }
        if let Some(verify) = &self.verify {
            let read_back = if verify.read_back { "; what was written was read back" } else { "" };
            let _ = writeln!(
                text,
                "\nverify: {} blocks good, {} never written, {} wrong{read_back}",
                thousands(verify.blocks_good),
                thousands(verify.blocks_unwritten),
                thousands(verify.blocks_wrong),
            );
        }
        if let Some(bytes) = self.resumed_bytes.filter(|&bytes| bytes > 0) {
            let _ = writeln!(text, "\nresumed: {} bytes had been done before", thousands(bytes));
        }
        let _ = writeln!(
            text,
            "\n{:.1} s measured{}, {:.2} CPU seconds of this host{}",
            self.elapsed_s,
            if self.interrupted { " (ended early)" } else { "" },
            self.cpu_seconds,
            match self.total.ios {
                0 => String::new(),
                #[expect(clippy::cast_precision_loss, reason = "a ratio")]
                ios => format!(" ({:.2} a million I/Os)", self.cpu_seconds * 1e6 / ios as f64),
            }
        );
        text
    }
}

impl FlowReport {
    fn new(
        space: &TargetSpace,
        flow: &FlowTotals,
        rates: &impl Fn(&DirectionCounters) -> IoRates,
    ) -> Self {
        let all = [flow.read.clone(), flow.write.clone(), flow.trim.clone()];
        let [read, write, trim] = all.each_ref().map(rates);
        Self {
            connect: space.connect.clone(),
            subnqn: space.subnqn.clone(),
            nsid: space.nsid,
            size: space.size,
            block_size: space.block_size,
            total: rates(&sum(&all)),
            read,
            write,
            trim,
            errors: flow.errors,
            verify_errors: flow.verified.errors,
        }
    }
}

impl IoRates {
    pub(crate) fn new(counters: &DirectionCounters, seconds: f64, percentiles: &[f64]) -> Self {
        let latency = &counters.latency;
        #[expect(clippy::cast_precision_loss, reason = "microseconds with a fraction")]
        let micros = |nanos: Option<u64>| nanos.map(|nanos| nanos as f64 / 1e3);
        Self {
            iops: per_second(counters.ios(), seconds),
            bandwidth_gbps: gigabits(counters.bytes, seconds),
            latency_us: LatencyReport {
                min: micros(latency.min()),
                mean: latency.mean().map(|mean| mean / 1e3),
                p50: micros(latency.quantile(0.5)),
                p99: micros(latency.quantile(0.99)),
                p99_9: micros(latency.quantile(0.999)),
                max: micros(latency.max()),
                percentiles: percentiles
                    .iter()
                    .map(|percent| (percent.to_string(), micros(latency.quantile(percent / 100.0))))
                    .collect(),
            },
            ios: counters.ios(),
            bytes: counters.bytes,
        }
    }

    fn cells(&self, name: String, errors: Option<u64>, percentiles: &[f64]) -> Vec<String> {
        let micros = |value: Option<f64>| value.map_or_else(|| "-".into(), |v| format!("{v:.1}"));
        let latency = &self.latency_us;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a rate, rounded to be shown"
        )]
        let iops = self.iops.round() as u64;
        let mut cells = vec![
            name,
            thousands(iops),
            format!("{:.2}", self.bandwidth_gbps),
            micros(latency.min),
            micros(latency.mean),
        ];
        let of = |percent: &f64| latency.percentiles.get(&percent.to_string()).copied().flatten();
        cells.extend(percentiles.iter().map(|percent| micros(of(percent))));
        cells.extend([micros(latency.max), errors.map_or_else(String::new, thousands)]);
        cells
    }
}

/// The devices of a target, described by their first spaces.
fn targets(target: &Target) -> Vec<TargetReport> {
    let devices = target.queues().into_iter().enumerate();
    let described = devices.filter_map(|(index, (queues, queue_depth))| {
        let space = target.spaces().iter().find(|space| space.device == index)?;
        let identity = space.identity.clone();
        Some(TargetReport {
            connect: space.connect.clone(),
            kind: identity.kind,
            model: identity.model,
            serial: identity.serial,
            firmware: identity.firmware,
            queues,
            queue_depth,
        })
    });
    described.collect()
}

fn sum(all: &[DirectionCounters]) -> DirectionCounters {
    let mut sum = DirectionCounters::new();
    all.iter().for_each(|counters| sum.add(counters));
    sum
}

#[expect(clippy::cast_precision_loss, reason = "a rate, not a count")]
fn per_second(count: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { count as f64 / seconds } else { 0.0 }
}

fn gigabits(bytes: u64, seconds: f64) -> f64 {
    per_second(bytes, seconds) * 8.0 / 1e9
}

#[expect(clippy::cast_precision_loss, reason = "seconds with a fraction")]
pub(crate) fn seconds(nanos: Nanos) -> f64 {
    nanos as f64 / 1e9
}

/// A report with made-up figures, for tests.
#[cfg(test)]
pub(crate) fn fixture() -> RunReport {
    tests::report()
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use serde_json::Value;

    use super::*;
    use crate::args::{Cli, Command};
    use crate::stats::TimeSeries;
    use crate::target::TargetNeeds;

    pub(super) fn report() -> RunReport {
        RunReport::new(parameters(), &target(), &totals())
    }

    /// A target of one device, named as the flow of [`totals`].
    fn target() -> Target {
        let args = "nvmeof-perf run --device null --rw read".split(' ');
        let Command::Run(run) = Cli::parse_from(args).command else { panic!("not a run") };
        let needs = TargetNeeds { jobs: 1, depth: 1, shared: false, writes: false };
        Target::open(&run.target, &needs).unwrap()
    }

    fn totals() -> LoadResult {
        let mut read = DirectionCounters::new();
        for micros in 1..=1000 {
            read.record(micros * 1000, 4096);
        }
        let mut series = TimeSeries::default();
        series.record(0, 600, 600 * 4096);
        series.record(150_000_000, 400, 400 * 4096);
        let flow = FlowTotals {
            space: 0,
            read,
            write: DirectionCounters::new(),
            trim: DirectionCounters::new(),
            errors: 2,
            verified: VerifyCounters { good: 5, unwritten: 6, errors: 7 },
        };
        LoadResult {
            flows: vec![flow],
            series,
            measured: 200_000_000,
            cpu: 100_000_000,
            lost: 1,
            interrupted: false,
            read_back: false,
            done: Vec::new(),
            is_done: false,
            messages: vec!["what".into()],
        }
    }

    fn parameters() -> RunParameters {
        RunParameters {
            connect: vec!["tcp://h:1/n".into()],
            device: Vec::new(),
            stripe: None,
            nsid: None,
            nsids: None,
            rw: "randread".into(),
            read_percent: 100,
            random: true,
            bs: 4096,
            bssplit: None,
            random_distribution: "random".into(),
            qd: 1,
            shared_qd: false,
            jobs: 1,
            cpus: None,
            time_s: Some(0.2),
            ios: None,
            io_size: None,
            loops: None,
            ramp_s: 0.0,
            size: None,
            offset: 0,
            rate_iops: None,
            thinktime_us: None,
            thinktime_blocks: None,
            refill_buffers: false,
            percentiles: vec![99.99],
            seed: 1,
            hostnqn: None,
            hdgst: false,
            ddgst: false,
            verify: true,
        }
    }

    #[test]
    fn the_json_has_what_scripts_rely_on() {
        let report = report();
        let json: Value = serde_json::to_value(&report).unwrap();
        assert_eq!(json["schema_version"], 1);
        assert_eq!(json["iops"], 5000.0);
        let gbps = json["bandwidth_gbps"].as_f64().unwrap();
        assert!((gbps - 5000.0 * 4096.0 * 8.0 / 1e9).abs() < 1e-9);
        for of in [&json, &json["read"], &json["flows"][0]] {
            for key in ["min", "mean", "p50", "p99", "p99_9", "max"] {
                assert!(of["latency_us"][key].is_f64(), "{key} in {of}");
            }
        }
        let asked = json["latency_us"]["percentiles"]["99.99"].as_f64().unwrap();
        assert!((998.0..=1000.0).contains(&asked), "{asked}");
        assert_eq!(json["latency_us"]["min"], 1.0);
        assert_eq!(json["latency_us"]["max"], 1000.0);
        assert!((json["latency_us"]["p50"].as_f64().unwrap() - 500.0).abs() < 2.0);
        assert_eq!(json["write"]["iops"], 0.0);
        assert!(json["write"]["latency_us"]["p50"].is_null());
        assert_eq!((json["errors"].as_u64(), json["verify_errors"].as_u64()), (Some(3), Some(7)));
        assert_eq!(json["verify"]["blocks_unwritten"], 6);
        assert_eq!(json["series"].as_array().unwrap().len(), 2);
        assert_eq!(json["series"][1]["t"], 0.1);
        assert_eq!(json["series"][1]["iops"], 4000.0);
        let counts = json["latency_histogram_ns"].as_array().unwrap();
        assert!(counts.is_sorted_by_key(|count| count[0].as_u64()) && counts.len() > 500);
        assert_eq!(counts.iter().map(|count| count[1].as_u64().unwrap()).sum::<u64>(), 1000);
        assert_eq!(
            (&json["flows"][0]["nsid"], &json["flows"][0]["connect"]),
            (&1.into(), &"null".into())
        );
        assert_eq!(json["targets"][0]["kind"], "null");
        assert_eq!(json["parameters"]["bs"], 4096);
        assert_eq!(json["cpu_seconds"], 0.1);
        assert!(!report.is_clean());
    }

    #[test]
    fn the_table_has_its_numbers_under_their_names() {
        let text = report().text();
        let mut lines = text.lines();
        let header = lines.next().unwrap();
        let read = lines.next().unwrap();
        assert!(header.trim_start().starts_with("IOPS"), "{text}");
        let end = header.find("IOPS").unwrap() + 4;
        assert!(read[..end].ends_with("5,000"), "{text}");
        assert!(text.contains("7 wrong"), "{text}");
    }
}
