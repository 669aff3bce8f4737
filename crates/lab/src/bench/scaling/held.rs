//! Idle I/O queues, held by a process that sleeps.

use std::io::{BufRead, BufReader};
use std::process::{ChildStdout, Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::points::QUEUES_PER_CONTROLLER;
use crate::bench::load::Endpoint;
use crate::bench::server::KilledChild;

/// A running `nvmeof-perf hold`; killed when dropped.
#[derive(Debug)]
pub(super) struct HeldQueues {
    child: KilledChild,
    /// Kept open, so that the process can always write.
    output: BufReader<ChildStdout>,
}

impl HeldQueues {
    /// Connects `queues` I/O queues. `command` runs `nvmeof-perf`.
    pub(super) fn connect(mut command: Command, endpoint: &Endpoint, queues: u32) -> Result<Self> {
        command.args(["hold", "--connect", &endpoint.address]);
        command.args(["--queues", &queues.to_string()]);
        command.args(["--queues-per-controller", &QUEUES_PER_CONTROLLER.to_string()]);
        let child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start nvmeof-perf")?;
        let mut child = KilledChild(child);
        let stdout = child.0.stdout.take().context("nvmeof-perf has no standard output")?;
        let mut held = Self { child, output: BufReader::new(stdout) };
        let mut line = String::new();
        held.output.read_line(&mut line)?;
        ensure!(line.starts_with("holding "), "nvmeof-perf holds no {queues} queues");
        Ok(held)
    }

    /// Disconnects the queues. Fails if one was lost.
    pub(super) fn release(mut self) -> Result<()> {
        drop(self.child.0.stdin.take());
        let status = self.child.0.wait()?;
        ensure!(status.success(), "the host of the idle queues failed: {status}");
        Ok(())
    }
}
