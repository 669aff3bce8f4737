//! A load that continues while the daemon changes its policy, counted in turns.

use std::io::{BufRead, BufReader, Lines, Read, Write};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::bench::server::KilledChild;
use crate::interrupt;

/// Maximum number of checks for outstanding I/Os, and the duration of a check.
const LOOKS: u32 = 500;
const LOOK: Duration = Duration::from_millis(20);

/// The load generator; killed when dropped.
#[derive(Debug)]
pub(super) struct LoadGenerator {
    child: KilledChild,
    /// `None` after the last turn.
    lines: Option<ChildStdin>,
    results: Lines<BufReader<ChildStdout>>,
    /// Namespaces that it loads.
    nsids: Vec<u32>,
}

impl LoadGenerator {
    /// Starts it on these namespaces, with the arguments of its load in `command`.
    pub(super) fn start(mut command: Command, nsids: &[u32]) -> Result<Self> {
        // No progress line of the load generator: it would overwrite this program's, and its
        // thread would use the measured CPU.
        command
            .arg("--intervals")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let child = command.spawn().context("cannot start the load generator")?;
        let mut child = KilledChild(child);
        let lines = child.0.stdin.take();
        let results = child.0.stdout.take().context("the load generator has no standard output")?;
        let results = BufReader::new(results).lines();
        Ok(Self { child, lines, results, nsids: nsids.to_vec() })
    }

    /// Changes the outstanding I/Os, in the form of `nvmeof-perf run --intervals`, without
    /// counting.
    pub(super) fn change_to(&mut self, depths: &str) -> Result<()> {
        self.say(&format!("- {depths}"))
    }

    /// Counts for this time; returns the report.
    pub(super) fn count(&mut self, time: Duration) -> Result<Value> {
        self.begin_count()?;
        interrupt::sleep(time);
        self.end_count()
    }

    pub(super) fn begin_count(&mut self) -> Result<()> {
        self.say("counted")
    }

    /// Ends the counted interval; returns its report.
    pub(super) fn end_count(&mut self) -> Result<Value> {
        self.say("-")?;
        match self.results.next().transpose()? {
            Some(line) => serde_json::from_str(&line)
                .with_context(|| format!("the load generator said {line}")),
            None => bail!("the load generator ended early: {}", self.complaints()),
        }
    }

    /// Waits until nothing is outstanding, or until an interrupt.
    pub(super) fn empty(&mut self) -> Result<()> {
        self.change_to(&depths(&self.nsids, 0))?;
        let mut left = Value::Null;
        for _ in 0..LOOKS {
            left = self.count(LOOK)?["in_flight"].take();
            if left == 0 || interrupt::is_noted() {
                return Ok(());
            }
        }
        bail!("{left} I/Os do not come back, for {:?}: does the daemon still serve?", LOOK * LOOKS)
    }

    fn say(&mut self, line: &str) -> Result<()> {
        let lines = self.lines.as_mut().context("there are no more turns")?;
        let written = writeln!(lines, "{line}");
        written.with_context(|| format!("the load generator has ended: {}", self.complaints()))
    }

    /// Returns its standard error; only after its end.
    fn complaints(&mut self) -> String {
        let mut text = String::new();
        if let Some(mut errors) = self.child.0.stderr.take() {
            // Keep the readable part.
            let _ = errors.read_to_string(&mut text);
        }
        text.trim().to_owned()
    }

    /// Ends it; an error if an I/O has failed.
    pub(super) fn stop(mut self) -> Result<()> {
        // It ends when its input closes.
        drop(self.lines.take());
        let status = self.child.0.wait()?;
        ensure!(
            status.success(),
            "the load generator ended badly: {status}; {}",
            self.complaints()
        );
        Ok(())
    }
}

/// Returns the same depth for all namespaces, in the form of the load generator's intervals.
pub(super) fn depths(nsids: &[u32], depth: u32) -> String {
    nsids.iter().map(|nsid| format!("{nsid}={depth}")).collect::<Vec<_>>().join(" ")
}
