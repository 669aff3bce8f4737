//! A daemon that changes from one policy to another while it serves.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use nvmeof_workspace::checkout::{Workspace, output_of};
use tempfile::TempDir;

use super::activity::{self, StatsSample};
use super::load_generator::LoadGenerator;
use super::plan::BenchPolicy;
use crate::bench::server::DaemonServer;
use crate::output;

/// A running daemon, stopped by [`stop`](Self::stop) or when dropped.
#[derive(Debug)]
pub(super) struct SwitchingDaemon {
    server: DaemonServer,
    /// Its config without a policy.
    served: String,
    /// The policy in force.
    policy: BenchPolicy,
    config: PathBuf,
    stats: PathBuf,
    /// Path of `nvmeofctl`.
    control: PathBuf,
    /// Folder of the control socket. Not in the build's folder, whose path can exceed the limit of
    /// a socket's path.
    socket: TempDir,
}

impl SwitchingDaemon {
    /// Starts it under a policy. `command` is the program, `folder` is for its files, and `served`
    /// is the rest of its config.
    pub(super) fn start(
        workspace: &Workspace,
        mut command: Command,
        folder: &Path,
        served: String,
        policy: BenchPolicy,
        interval: &str,
    ) -> Result<Self> {
        let socket = tempfile::Builder::new()
            .prefix("nvmeof-bench-")
            .tempdir()
            .context("no temporary folder for a socket")?;
        let (config, stats) = (folder.join("target.toml"), folder.join("stats.jsonl"));
        write(&config, &served, policy, &socket)?;
        command.arg("--config").arg(&config).arg("--stats").arg(&stats);
        command.args(["--stats-interval", interval]);
        let control = workspace.release_binary("nvmeofctl");
        let server = DaemonServer::start(command)?;
        Ok(Self { server, served, policy, config, stats, control, socket })
    }

    /// Returns `tcp://ADDR:PORT/SUBNQN`.
    pub(super) fn address(&self) -> String {
        self.server.endpoint().address
    }

    /// Changes to the next policy, which inherits nothing from the one before.
    pub(super) fn hand_over(
        &mut self,
        loads: &mut [LoadGenerator],
        policy: BenchPolicy,
    ) -> Result<()> {
        // Without a limit, waiting commands start soon.
        self.go_on_with(BenchPolicy::None)?;
        loads.iter_mut().try_for_each(LoadGenerator::empty)?;
        self.go_on_with(policy)
    }

    /// Changes it to a policy without learned state, which is in force on return.
    fn go_on_with(&mut self, policy: BenchPolicy) -> Result<()> {
        if policy == self.policy {
            // The policy would continue with its learned state.
            self.set(if policy == BenchPolicy::None {
                BenchPolicy::Adaptive
            } else {
                BenchPolicy::None
            })?;
        }
        self.set(policy)
    }

    fn set(&mut self, policy: BenchPolicy) -> Result<()> {
        write(&self.config, &self.served, policy, &self.socket)?;
        let mut reload = Command::new(&self.control);
        reload.arg("--api").arg(format!("unix:{}", socket_in(&self.socket).display()));
        output_of(reload.arg("reload"))
            .with_context(|| format!("the daemon does not take {policy}"))?;
        self.policy = policy;
        Ok(())
    }

    /// Returns the size of its statistics so far, in bytes.
    pub(super) fn recorded(&self) -> Result<u64> {
        let shown = self.stats.display();
        Ok(fs::metadata(&self.stats).with_context(|| format!("cannot look at {shown}"))?.len())
    }

    /// Returns its statistics since the file had this size.
    pub(super) fn moments_since(&self, recorded: u64) -> Result<Vec<StatsSample>> {
        activity::read(&self.stats, recorded)
    }

    pub(super) fn stop(self) -> Result<()> {
        self.server.stop()
    }
}

fn write(config: &Path, served: &str, policy: BenchPolicy, socket: &TempDir) -> Result<()> {
    let api = format!("[api]\nsocket = \"{}\"\n", socket_in(socket).display());
    output::write(config, &format!("{served}{}{api}", policy.config()))
}

fn socket_in(folder: &TempDir) -> PathBuf {
    folder.path().join("api.sock")
}
