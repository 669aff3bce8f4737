//! The load generator: its arguments, its report, and the median of its reports.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nvmeof_workspace::checkout::output_of;
use serde_json::{Value, json};

use super::lines::BenchLine;
use crate::averages::median;

/// Bytes of the namespace in memory that are used: more than the caches hold.
const RAM_SIZE: &str = "256m";

/// A target to load.
#[derive(Debug, Clone)]
pub(super) struct Endpoint {
    /// `tcp://ADDR:PORT/SUBNQN`.
    pub(super) address: String,
    /// Namespace without a medium.
    pub(super) null: u32,
    /// Namespace in memory.
    pub(super) ram: u32,
}

/// Returns the arguments that measure a line, without the time.
pub(super) fn arguments(line: &BenchLine, endpoint: &Endpoint) -> Vec<String> {
    let nsid = if line.ram { endpoint.ram } else { endpoint.null };
    let mut args = run(endpoint, nsid, line.rw, line.bs, line.qd);
    if line.ram {
        args.extend(owned(&["--size", RAM_SIZE]));
    }
    if line.digests {
        args.extend(owned(&["--hdgst", "--ddgst"]));
    }
    args
}

/// Returns arguments that write the namespace in memory once, so that no line pays for its first
/// touch.
pub(super) fn fill(endpoint: &Endpoint) -> Vec<String> {
    let mut args = run(endpoint, endpoint.ram, "write", "128k", 8);
    // 256 MiB in 128 KiB each.
    args.extend(owned(&["--size", RAM_SIZE, "--ios", "2048", "--time", "60s"]));
    args
}

/// Returns arguments for `hosts` connections that are idle for `time`.
///
/// Each reads one block, and its next turn is long after the end.
pub(super) fn idle(endpoint: &Endpoint, hosts: usize, time: Duration) -> Vec<String> {
    let mut args = run(endpoint, endpoint.null, "randread", "4k", 1);
    for _ in 1..hosts {
        args.extend(["--connect".to_owned(), endpoint.address.clone()]);
    }
    args.extend(owned(&["--rate", "0.1", "--time"]));
    args.push(format!("{}s", time.as_secs()));
    args
}

fn run(endpoint: &Endpoint, nsid: u32, rw: &str, bs: &str, qd: u32) -> Vec<String> {
    let (nsid, qd) = (nsid.to_string(), qd.to_string());
    owned(&[
        "run",
        "--connect",
        &endpoint.address,
        "--nsid",
        &nsid,
        "--rw",
        rw,
        "--bs",
        bs,
        "--qd",
        &qd,
    ])
}

fn owned(args: &[&str]) -> Vec<String> {
    args.iter().map(|&arg| arg.to_owned()).collect()
}

/// Runs the load generator to its end and returns its report, which it writes to `json`.
pub(super) fn report_of(mut command: Command, json: &Path) -> Result<Value> {
    command.arg("--json").arg(json);
    output_of(&mut command)?;
    let text = fs::read(json).with_context(|| format!("cannot read {}", json.display()))?;
    Ok(serde_json::from_slice(&text)?)
}

/// One run of one line.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct LineSample {
    /// I/Os per second.
    pub(super) iops: f64,
    /// 10^9 bits of data per second.
    pub(super) gbps: f64,
    /// Microseconds.
    pub(super) p50: f64,
    /// Microseconds.
    pub(super) p99: f64,
    /// CPU seconds of the target per million I/Os, connecting included.
    pub(super) cpu: Option<f64>,
}

impl LineSample {
    /// Parses the load generator's output; `cpu` is the target's CPU time during the run.
    pub(super) fn read(result: &Value, cpu: Option<Duration>) -> Result<Self> {
        let number = |pointer: &str| {
            result
                .pointer(pointer)
                .and_then(Value::as_f64)
                .with_context(|| format!("nvmeof-perf reports no {pointer}"))
        };
        let errors = number("/errors")?;
        ensure!(errors == 0.0, "{errors} I/Os failed: {}", result["messages"]);
        let ios = number("/ios")?;
        Ok(Self {
            iops: number("/iops")?,
            gbps: number("/bandwidth_gbps")?,
            p50: number("/latency_us/p50")?,
            p99: number("/latency_us/p99")?,
            cpu: cpu.map(|cpu| cpu.as_secs_f64() / ios * 1e6),
        })
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "iops": self.iops,
            "gbps": self.gbps,
            "p50_us": self.p50,
            "p99_us": self.p99,
            "target_cpu_seconds_per_million_ios": self.cpu,
        })
    }
}

/// Median and range of several values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Spread {
    pub(super) median: f64,
    pub(super) min: f64,
    pub(super) max: f64,
}

impl Spread {
    /// Computes the spread of at least one value; not-a-number otherwise.
    pub(super) fn of(values: &[f64]) -> Self {
        let mut values = values.to_vec();
        values.sort_by(f64::total_cmp);
        let at = |index: usize| values.get(index).copied().unwrap_or(f64::NAN);
        let last = values.len().saturating_sub(1);
        let median = median(&values).unwrap_or(f64::NAN);
        Self { median, min: at(0), max: at(last) }
    }

    pub(super) fn json(&self) -> Value {
        json!({ "median": self.median, "min": self.min, "max": self.max })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(errors: u64) -> Value {
        json!({
            "iops": 5e5, "bandwidth_gbps": 16.4, "ios": 250_000, "errors": errors,
            "latency_us": { "p50": 60.5, "p99": 90.0 }, "messages": ["lost"],
        })
    }

    #[test]
    fn cpu_time_is_per_million_ios() {
        let sample =
            LineSample::read(&result(0), Some(Duration::from_millis(500))).expect("complete");
        assert_eq!(sample.cpu, Some(2.0));
        assert_eq!((sample.iops, sample.p50, sample.p99), (5e5, 60.5, 90.0));
    }

    #[test]
    fn a_run_with_errors_is_no_measurement() {
        let error = LineSample::read(&result(3), None).expect_err("it failed");
        assert!(error.to_string().contains("lost"), "{error}");
        assert!(LineSample::read(&json!({}), None).is_err());
    }

    #[test]
    fn medians() {
        let spread = Spread::of(&[3.0, 1.0, 2.0]);
        assert_eq!((spread.median, spread.min, spread.max), (2.0, 1.0, 3.0));
        assert_eq!(Spread::of(&[1.0, 4.0]).median, 2.5);
        assert!(Spread::of(&[]).median.is_nan());
    }
}
