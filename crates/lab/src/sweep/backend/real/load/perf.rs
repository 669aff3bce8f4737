//! `nvmeof-perf`, the project's load generator.

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::super::machine::{RemoteMachine, quoted};
use super::super::process::{FinishedProcess, RunningProcess};
use super::measured::{LoadResult, NamespaceResult, real};
use super::{LoadProgram, LoadTask};
use crate::sweep::setup::HostJob;

/// `nvmeof-perf`, by its path on the host.
#[derive(Debug)]
pub(super) struct PerfProgram {
    pub(super) program: String,
}

impl LoadProgram for PerfProgram {
    fn versions(&self, machine: &RemoteMachine) -> Result<String> {
        let version = machine.query(&format!("{} --version", quoted(&self.program)));
        Ok(version
            .with_context(|| {
                format!(
                    "no nvmeof-perf on {machine}: copy the release build there, or say where it is with \
                     --perf PATH"
                )
            })?
            .trim()
            .to_owned())
    }

    fn check(&self, job: &HostJob) -> Result<()> {
        ensure!(
            job.blocks.len() == 1,
            "{}: nvmeof-perf has one block size a run; use fio, or a job for each size",
            job.title()
        );
        Ok(())
    }

    fn connect(&self, _: &RemoteMachine, _: &LoadTask<'_>) -> Result<Option<RunningProcess>> {
        Ok(None)
    }

    fn start(&self, machine: &RemoteMachine, task: &LoadTask<'_>) -> Result<RunningProcess> {
        machine.start(&self.program, &arguments(task))
    }

    fn read(
        &self,
        _: &RemoteMachine,
        _: &LoadTask<'_>,
        finished: &FinishedProcess,
    ) -> Result<LoadResult> {
        ensure!(finished.status.success(), "nvmeof-perf failed: {}", finished.complaint());
        let json = serde_json::from_str(&finished.stdout);
        measured(&json.context("nvmeof-perf wrote no JSON")?)
    }
}

fn arguments(task: &LoadTask<'_>) -> Vec<String> {
    let job = task.job;
    let nsids: Vec<_> = task.nsids.iter().map(u32::to_string).collect();
    let reads = (job.reads * 100.0).round();
    let workload = match reads {
        reads if reads >= 100.0 => "randread".to_owned(),
        reads if reads <= 0.0 => "randwrite".to_owned(),
        reads => format!("randrw:{reads}"),
    };
    let micros = |nanos: u64| format!("{}us", nanos / 1000);
    let pairs = [
        ("--connect", format!("{}/{}", task.address, task.nqn)),
        ("--nsid", nsids.join(",")),
        ("--rw", workload),
        ("--bs", job.blocks[0].0.to_string()),
        ("--shared-qd", job.queue_depth.to_string()),
        ("--jobs", job.threads.to_string()),
        ("--ramp", micros(task.ramp)),
        ("--time", micros(task.time)),
        ("--seed", task.seed.to_string()),
        ("--hostnqn", format!("nqn.2026-11.io.nvmeof-tgt:sweep-host-{}", task.host + 1)),
        ("--json", "-".to_owned()),
    ];
    let cpus = task.cpus.iter().map(|cpus| ("--cpus", cpus.clone()));
    let pairs = pairs.into_iter().chain(cpus);
    let words = pairs.flat_map(|(key, value)| [key.to_owned(), value]);
    ["run".to_owned(), "--announce".to_owned()].into_iter().chain(words).collect()
}

fn measured(json: &Value) -> Result<LoadResult> {
    let number = |of: &Value, pointer: &str| {
        let found = of.pointer(pointer).and_then(Value::as_f64);
        found.with_context(|| format!("nvmeof-perf reports no {pointer}"))
    };
    let count = |pointer: &str| {
        let found = json.pointer(pointer).and_then(Value::as_u64);
        found.with_context(|| format!("nvmeof-perf reports no {pointer}"))
    };
    let errors = count("/errors")?;
    ensure!(errors == 0, "{errors} I/Os failed: {}", json["messages"]);
    ensure!(json["interrupted"] == false, "nvmeof-perf was interrupted");
    let ios = count("/ios")?;
    ensure!(ios > 0, "no I/O was done: the time is too short, or the target is stuck");
    let histogram = json["latency_histogram_ns"].as_array().into_iter().flatten();
    let histogram = histogram.filter_map(|pair| Some((pair[0].as_u64()?, pair[1].as_u64()?)));
    let spaces = json["flows"].as_array().into_iter().flatten().map(|flow| {
        let nsid = flow["nsid"].as_u64().and_then(|nsid| u32::try_from(nsid).ok());
        Ok(NamespaceResult {
            nsid: nsid.context("nvmeof-perf reports a flow without a namespace")?,
            gbps: number(flow, "/bandwidth_gbps")?,
            // No command completed, so there is no latency.
            mean_us: number(flow, "/latency_us/mean").unwrap_or_default(),
            p99_us: number(flow, "/latency_us/p99").unwrap_or_default(),
        })
    });
    let series = json["series"].as_array().into_iter().flatten();
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a latency in ns")]
    let max = (number(json, "/latency_us/max")? * 1e3).ceil() as u64;
    Ok(LoadResult {
        ios,
        bytes: count("/bytes")?,
        seconds: number(json, "/elapsed_s")?,
        latency_sum_ns: number(json, "/latency_us/mean")? * 1e3 * real(ios),
        latency_max_ns: max,
        histogram: histogram.collect(),
        cpu_s: number(json, "/cpu_seconds")?,
        spaces: spaces.collect::<Result<_>>()?,
        series: series.map(|sample| number(sample, "/gbps")).collect::<Result<_>>()?,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_result_is_taken_apart_and_one_with_errors_is_none() {
        let good = json!({
            "errors": 0, "interrupted": false, "ios": 4, "bytes": 16384, "elapsed_s": 0.5, "cpu_seconds": 0.25,
            "latency_us": { "mean": 10.0, "max": 20.5, "p99": 20.0 }, "messages": ["lost"],
            "latency_histogram_ns": [[8000, 3], [20500, 1]],
            "series": [{ "t": 0.0, "gbps": 1.5 }],
            "flows": [{ "nsid": 2, "bandwidth_gbps": 0.5, "latency_us": { "mean": null, "p99": null } }],
        });
        let read = measured(&good).unwrap();
        assert_eq!((read.ios, read.bytes, read.latency_max_ns), (4, 16384, 20500));
        assert_eq!(read.figures().latency_us.p99, 20.5);
        assert_eq!(
            read.spaces,
            [NamespaceResult { nsid: 2, gbps: 0.5, mean_us: 0.0, p99_us: 0.0 }]
        );
        assert_eq!(read.series, [1.5]);
        let mut bad = good.clone();
        bad["errors"] = json!(2);
        assert!(measured(&bad).unwrap_err().to_string().contains("lost"));
        let mut none = good;
        none["ios"] = json!(0);
        assert!(measured(&none).unwrap_err().to_string().contains("no I/O"));
        assert!(measured(&json!({})).is_err());
    }
}
