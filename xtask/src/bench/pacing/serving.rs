//! A daemon that goes from one policy to another while it serves.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use tempfile::TempDir;

use super::activity::{self, Moment};
use super::plan::{Policy, Served};
use crate::bench::server::Server;
use crate::workspace::{Workspace, output_of};

/// Started, and stopped by [`stop`](Self::stop) or when dropped.
#[derive(Debug)]
pub(super) struct Serving {
    server: Server,
    served: Served,
    /// In force.
    policy: Policy,
    config: PathBuf,
    stats: PathBuf,
    /// `nvmeofctl`.
    control: PathBuf,
    /// Of the socket to control it by. Not in the build's folder, whose path may be longer than a socket's may.
    socket: TempDir,
}

impl Serving {
    /// Starts it under a policy. `command` is the program, `folder` where its files go.
    pub(super) fn start(
        workspace: &Workspace,
        mut command: Command,
        folder: &Path,
        served: Served,
        policy: Policy,
        interval: &str,
    ) -> Result<Self> {
        let socket = tempfile::Builder::new()
            .prefix("nvmeof-bench-")
            .tempdir()
            .context("no temporary folder for a socket")?;
        let (config, stats) = (folder.join("target.toml"), folder.join("stats.jsonl"));
        write(&config, served, policy, &socket)?;
        command.arg("--config").arg(&config).arg("--stats").arg(&stats);
        command.args(["--stats-interval", interval]);
        let control = workspace.release_binary("nvmeofctl");
        let server = Server::start(command)?;
        Ok(Self { server, served, policy, config, stats, control, socket })
    }

    /// `tcp://ADDR:PORT/SUBNQN`.
    pub(super) fn address(&self) -> String {
        self.server.endpoint().address
    }

    /// Has it go on under a policy that knows nothing yet; it does when this returns.
    pub(super) fn go_on_with(&mut self, policy: Policy) -> Result<()> {
        if policy == self.policy {
            // It would go on with what it has learned.
            self.set(if policy == Policy::None { Policy::Adaptive } else { Policy::None })?;
        }
        self.set(policy)
    }

    fn set(&mut self, policy: Policy) -> Result<()> {
        write(&self.config, self.served, policy, &self.socket)?;
        let mut reload = Command::new(&self.control);
        reload.arg("--api").arg(format!("unix:{}", socket_in(&self.socket).display()));
        output_of(reload.arg("reload"))
            .with_context(|| format!("the daemon does not take {policy}"))?;
        self.policy = policy;
        Ok(())
    }

    /// How much it has recorded so far, in bytes.
    pub(super) fn recorded(&self) -> Result<u64> {
        let shown = self.stats.display();
        Ok(fs::metadata(&self.stats).with_context(|| format!("cannot look at {shown}"))?.len())
    }

    /// What it has counted since it had recorded so much.
    pub(super) fn moments_since(&self, recorded: u64) -> Result<Vec<Moment>> {
        activity::read(&self.stats, recorded)
    }

    pub(super) fn stop(self) -> Result<()> {
        self.server.stop()
    }
}

fn write(config: &Path, served: Served, policy: Policy, socket: &TempDir) -> Result<()> {
    let api = format!("[api]\nsocket = \"{}\"\n", socket_in(socket).display());
    fs::write(config, served.config(policy) + &api)
        .with_context(|| format!("cannot write {}", config.display()))
}

fn socket_in(folder: &TempDir) -> PathBuf {
    folder.path().join("api.sock")
}
