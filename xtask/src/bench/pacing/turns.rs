//! A load that goes on while the daemon goes from one policy to the next, and is counted in turns.

use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// The load generator; killed when dropped.
#[derive(Debug)]
pub(super) struct Load {
    child: Child,
    /// None when there are no more turns.
    lines: Option<ChildStdin>,
    results: Lines<BufReader<ChildStdout>>,
}

impl Load {
    /// Starts it, with the arguments of its load in `command`.
    pub(super) fn start(mut command: Command) -> Result<Self> {
        let spawned =
            command.arg("--turns").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = spawned.context("cannot start the load generator")?;
        let lines = child.stdin.take();
        let results = child.stdout.take().context("the load generator has no standard output")?;
        Ok(Self { child, lines, results: BufReader::new(results).lines() })
    }

    /// From now on so much is outstanding, as `nvmeof-perf run --turns` takes it, and nothing is counted.
    pub(super) fn change_to(&mut self, depths: &str) -> Result<()> {
        self.say(&format!("- {depths}"))
    }

    /// Counts for this time; what it counted.
    pub(super) fn count(&mut self, time: Duration) -> Result<Value> {
        self.say("counted")?;
        thread::sleep(time);
        self.say("-")?;
        let line = self.results.next().context("the load generator ended early")??;
        serde_json::from_str(&line).with_context(|| format!("the load generator said {line}"))
    }

    fn say(&mut self, line: &str) -> Result<()> {
        let lines = self.lines.as_mut().context("there are no more turns")?;
        writeln!(lines, "{line}").context("the load generator takes no more turns")
    }

    /// Ends it; an error if an I/O has failed.
    pub(super) fn stop(mut self) -> Result<()> {
        // It ends with its lines.
        drop(self.lines.take());
        let status = self.child.wait()?;
        ensure!(status.success(), "the load generator ended badly: {status}");
        Ok(())
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        // Not there any more after `stop`; both calls know.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
