//! The daemon under test: starts it, reads its counters, stops it.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::config::DaemonConfig;
use super::counters::{KernelCounters, TargetInterface};
use super::machine::{RemoteMachine, quoted};
use super::process::RunningProcess;
use crate::daemon_stats::{self, StatsSample};

/// Timeout for the daemon to be ready; it can have drives to open.
const READY: Duration = Duration::from_secs(30);
/// Interval of its statistics.
const INTERVAL: &str = "50ms";

/// A running daemon. Dropping it ends it.
#[derive(Debug)]
pub(super) struct DaemonProcess<'a> {
    machine: &'a RemoteMachine,
    running: RunningProcess,
    pid: u32,
    /// `tcp://ADDR:PORT`.
    pub(super) address: String,
    folder: String,
}

impl<'a> DaemonProcess<'a> {
    /// Starts it with this config, whose files go into `folder` on its machine.
    pub(super) fn start(
        machine: &'a RemoteMachine,
        program: &str,
        folder: &str,
        served: &DaemonConfig,
    ) -> Result<Self> {
        let config = format!("{folder}/target.toml");
        machine.write(&config, &served.text)?;
        let stats = format!("{folder}/stats.jsonl");
        let args = ["--config", &config, "--stats", &stats, "--stats-interval", INTERVAL];
        let mut running = machine.start(program, &args.map(str::to_owned))?;
        let until = Instant::now() + READY;
        let addresses = running.line("ready ", until)?;
        let address = addresses.split_whitespace().next().context("the daemon listens nowhere")?;
        let (address, pid) = (address.to_owned(), running.pid(until)?);
        Ok(Self { machine, running, pid, address, folder: folder.to_owned() })
    }

    /// Returns the counters of the daemon and its network.
    pub(super) fn counters(&self, wire: &TargetInterface) -> Result<KernelCounters> {
        KernelCounters::read(self.machine, self.pid, wire)
    }

    /// Checks that it still runs; the error gives the reason if not.
    pub(super) fn check(&mut self) -> Result<()> {
        if self.running.has_ended() {
            bail!(
                "the target on {} ended while it was measured: {}",
                self.machine,
                self.running.complaint()
            );
        }
        Ok(())
    }

    /// Stops it and returns its pacer's activity over time.
    pub(super) fn stop(mut self) -> Result<Vec<StatsSample>> {
        let finished = self.running.stop().context("the target does not stop")?;
        ensure!(
            finished.status.success(),
            "the target ended badly ({}): {}",
            finished.status,
            finished.complaint()
        );
        let file = format!("{}/stats.jsonl", self.folder);
        let text = self.machine.query(&format!("cat {}", quoted(&file)))?;
        daemon_stats::parse(&text).with_context(|| file)
    }
}
