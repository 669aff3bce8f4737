//! The machines of a sweep, as the user names them.

use std::thread::available_parallelism;

use anyhow::{Result, bail, ensure};
use nvmeof_report::RunOrigin;
use nvmeof_workspace::checkout::{Workspace, run_checked};

use super::backend::real::NamedMachines;
use super::plan::SweepPlan;
use crate::listen::ListenAddress;

#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Machines (--where local and remote)")]
pub(super) struct MachineArgs {
    /// Address at which the target listens and to which hosts connect; port 0 or none: any [default
    /// for local: tcp://127.0.0.1]
    #[arg(long, value_name = "tcp|rdma://ADDR[:PORT]")]
    listen: Option<ListenAddress>,
    /// The target's machine, as an ssh destination [default: this one]
    #[arg(long, value_name = "USER@HOST")]
    target: Option<String>,
    /// A host's machine, as an ssh destination; the plan's hosts take them in turn [default:
    /// host.ssh of the plan]
    #[arg(long = "host", value_name = "USER@HOST")]
    hosts: Vec<String>,
    /// An argument for ssh, as -p2222
    #[arg(long = "ssh-option", value_name = "ARG", allow_hyphen_values = true)]
    ssh_options: Vec<String>,
    /// CPUs of the target's reactors [default for local: the first half; for remote: the number in
    /// the plan]
    #[arg(long, value_name = "LIST")]
    target_cpus: Option<String>,
    /// CPUs of each host's load generator [default for local: the second half; for remote: all]
    #[arg(long, value_name = "LIST")]
    host_cpus: Option<String>,
    /// Files, block devices or PCI addresses of the target that are the plan's drives; jobs that
    /// write to them destroy their data [default: null devices instead, each of whose reads takes
    /// 87 us longer]
    #[arg(long, value_name = "PATH|PCI,...", value_delimiter = ',')]
    drives: Vec<String>,
    /// nvmeof-tgt on the target [default: the release build here, nvmeof-tgt elsewhere]
    #[arg(long, value_name = "PATH")]
    tgt: Option<String>,
    /// nvmeof-perf on the hosts [default: the release build here, nvmeof-perf elsewhere]
    #[arg(long, value_name = "PATH")]
    perf: Option<String>,
    /// fio on the hosts
    #[arg(long, value_name = "PATH", default_value = "fio")]
    fio: String,
    /// SPDK's plugin for fio on the hosts
    #[arg(long, value_name = "PATH")]
    spdk_plugin: Option<String>,
    /// Use the existing release builds
    #[arg(long)]
    no_build: bool,
}

impl MachineArgs {
    /// Rejects machine options: the simulator has no machines.
    pub(super) fn refuse_all(&self) -> Result<()> {
        let given = [
            ("--listen", self.listen.is_some()),
            ("--target", self.target.is_some()),
            ("--host", !self.hosts.is_empty()),
            ("--target-cpus", self.target_cpus.is_some()),
            ("--host-cpus", self.host_cpus.is_some()),
            ("--drives", !self.drives.is_empty()),
        ];
        match given.iter().find(|(_, given)| *given) {
            Some((name, _)) => bail!("{name} is for --where local and remote"),
            None => Ok(()),
        }
    }

    /// Returns the machines of a place; builds the programs of this one.
    pub(super) fn machines(&self, place: RunOrigin, plan: &SweepPlan) -> Result<NamedMachines> {
        let is_local = place == RunOrigin::Local;
        let hosts = self.hosts(is_local, plan)?;
        let listen = match (self.listen, is_local) {
            (Some(listen), _) => listen,
            (None, true) => "tcp://127.0.0.1".parse().map_err(anyhow::Error::msg)?,
            (None, false) => bail!(
                "--where remote: say where the target listens for the hosts with --listen rdma://ADDR or \
                 tcp://ADDR"
            ),
        };
        ensure!(
            !listen.address.is_unspecified(),
            "--listen {listen}: hosts need an address to connect to, as one of the target's interfaces has"
        );
        let all = available_parallelism().map_or(1, usize::from);
        let half = (all / 2).max(1);
        let wanted = plan.points.iter().map(|point| point.setup.cores as usize).max().unwrap_or(1);
        let target_cpus = match &self.target_cpus {
            Some(list) => cpus(list)?,
            None if is_local => (0..half).collect(),
            None => (0..wanted).collect(),
        };
        let host_cpus = match &self.host_cpus {
            Some(list) => Some(list.clone()),
            None if is_local && all > 1 => Some(format!("{half}-{}", all - 1)),
            None => None,
        };
        let (target_here, hosts_here) = (self.target.is_none(), hosts.is_empty());
        let tgt = self.program(&self.tgt, "nvmeof-tgt", target_here)?;
        let perf = self.program(&self.perf, "nvmeof-perf", hosts_here)?;
        Ok(NamedMachines {
            place,
            listen,
            target: self.target.clone(),
            hosts,
            ssh_options: self.ssh_options.clone(),
            target_cpus,
            host_cpus,
            drives: self.drives.clone(),
            tgt,
            perf,
            fio: self.fio.clone(),
            spdk_plugin: self.spdk_plugin.clone(),
        })
    }

    /// Returns the given program; without one, on this machine, its release build, which is
    /// updated.
    fn program(&self, given: &Option<String>, name: &str, is_here: bool) -> Result<String> {
        match given {
            Some(path) => Ok(path.clone()),
            None if !is_here => Ok(name.to_owned()),
            None => {
                let workspace = Workspace::find()?;
                if !self.no_build {
                    let build = ["build", "--release", "--locked", "-p", name];
                    run_checked(&mut workspace.cargo(build))?;
                }
                Ok(workspace.release_binary(name).display().to_string())
            }
        }
    }

    fn hosts(&self, is_local: bool, plan: &SweepPlan) -> Result<Vec<String>> {
        if is_local {
            ensure!(
                self.hosts.is_empty() && self.target.is_none(),
                "--host and --target are for --where remote; local is this machine alone"
            );
            return Ok(Vec::new());
        }
        if !self.hosts.is_empty() {
            return Ok(self.hosts.clone());
        }
        let planned = plan.points.first().map(|point| &point.setup.ssh);
        let named: Option<Vec<String>> = planned.and_then(|ssh| ssh.iter().cloned().collect());
        match named {
            Some(named) if !named.is_empty() => Ok(named),
            _ => bail!(
                "--where remote: name the hosts with --host USER@HOST, or by host.ssh in the plan"
            ),
        }
    }
}

/// Parses numbers and ranges, as `0-3,8`.
fn cpus(text: &str) -> Result<Vec<usize>> {
    let mut list = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let range = first.trim().parse::<usize>().ok().zip(last.trim().parse::<usize>().ok());
        match range.filter(|(first, last)| first <= last && *last < 4096) {
            Some((first, last)) => list.extend(first..=last),
            None => {
                bail!("--target-cpus {text}: not a list of CPUs; write numbers and ranges (0-3,8)")
            }
        }
    }
    Ok(list)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus() {
        assert_eq!(cpus("0-2,5").unwrap(), [0, 1, 2, 5]);
        for bad in ["", "a", "3-1", "0-99999999"] {
            assert!(cpus(bad).is_err(), "{bad}");
        }
    }
}
