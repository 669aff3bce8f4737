//! One round of one point.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use nvmeof_workspace::checkout::Workspace;
use serde_json::{Value, json};

use super::ScalingArgs;
use super::held::HeldQueues;
use super::points::{ScalingPoint, list};
use crate::bench::lines::BenchLine;
use crate::bench::load::{self, Endpoint, LineSample};
use crate::bench::server::{DaemonServer, TargetProcess};
use crate::{interrupt, output};

/// Time for the daemon to become idle.
const SETTLE: Duration = Duration::from_secs(1);
/// The loads of the active queue: one command, and a deep queue.
const LOADS: [BenchLine; 2] = [load(1), load(32)];

const fn load(qd: u32) -> BenchLine {
    let name = "4 KiB randread";
    BenchLine { name, ram: false, rw: "randread", bs: "4k", qd, digests: false }
}

/// Measurements of one daemon.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Round {
    /// Milliseconds from its start to `ready`.
    pub(super) start_ms: f64,
    /// Resident MiB then.
    pub(super) rss_mib: f64,
    /// Resident KiB in addition for each idle connection.
    pub(super) connection_kib: Option<f64>,
    /// Percent of a CPU while every connection is idle.
    pub(super) idle_percent: f64,
    /// One command outstanding.
    pub(super) one: LineSample,
    /// 32 commands outstanding on each queue.
    pub(super) deep: LineSample,
}

impl Round {
    pub(super) fn json(&self) -> Value {
        json!({
            "start_ms": self.start_ms,
            "rss_mib": self.rss_mib,
            "connection_kib": self.connection_kib,
            "idle_percent": self.idle_percent,
            "depth_1": self.one.json(),
            "depth_32": self.deep.json(),
        })
    }
}

pub(super) struct ScalingBench<'a> {
    pub(super) args: &'a ScalingArgs,
    pub(super) workspace: &'a Workspace,
    /// Folder of the config, of the files, and of the load generator's output.
    pub(super) folder: PathBuf,
}

impl ScalingBench<'_> {
    pub(super) fn round(&self, point: &ScalingPoint) -> Result<Round> {
        let config = self.folder.join("target.toml");
        output::write(&config, &point.config(&self.folder)?)?;
        let mut command = self.on(&point.target_cpus, "nvmeof-tgt");
        command.arg("--config").arg(&config);
        let server = DaemonServer::start(command)?;
        let process = server.process();
        let start_ms = server.ready_after().as_secs_f64() * 1e3;
        let rss_mib = process.rss_mib()?;
        let endpoint = Endpoint { null: point.nsid(), ..server.endpoint() };
        let host = || self.on(&point.host_cpus, "nvmeof-perf");
        let held = match point.idle_queues() {
            0 => None,
            queues => Some(HeldQueues::connect(host(), &endpoint, queues)?),
        };
        interrupt::sleep(SETTLE);
        let more_kib = (process.rss_mib()? - rss_mib) * 1024.0;
        let connection_kib = held.is_some().then(|| more_kib / f64::from(point.idle_connections()));
        let idle_percent = self.idle(process)?;
        let [one, deep] = LOADS.map(|line| self.load(&line, point, &endpoint, process));
        if let Some(held) = held {
            held.release()?;
        }
        server.stop()?;
        Ok(Round { start_ms, rss_mib, connection_kib, idle_percent, one: one?, deep: deep? })
    }

    /// Returns the percentage of a CPU that the idle daemon uses.
    fn idle(&self, process: TargetProcess) -> Result<f64> {
        let window = Duration::from_secs(self.args.idle);
        let before = process.cpu()?;
        interrupt::sleep(window);
        let spent = process.cpu()?.saturating_sub(before);
        Ok(spent.as_secs_f64() / window.as_secs_f64() * 100.0)
    }

    fn load(
        &self,
        line: &BenchLine,
        point: &ScalingPoint,
        endpoint: &Endpoint,
        process: TargetProcess,
    ) -> Result<LineSample> {
        let mut command = self.on(&point.host_cpus, "nvmeof-perf");
        command.args(load::arguments(line, endpoint)).args(["--time", &self.args.time]);
        command.args(["--jobs", &point.jobs.to_string(), "--cpus", &list(&point.host_cpus)]);
        let before = process.cpu()?;
        let result = load::report_of(command, &self.folder.join("point.json"))?;
        let cpu = process.cpu()?.saturating_sub(before);
        LineSample::read(&result, Some(cpu))
    }

    /// Returns a command that runs one of the workspace's binaries on these CPUs.
    fn on(&self, cpus: &[usize], binary: &str) -> Command {
        let mut command = Command::new("taskset");
        command.args(["--cpu-list", &list(cpus)]);
        command.arg(self.workspace.release_binary(binary));
        command
    }
}
