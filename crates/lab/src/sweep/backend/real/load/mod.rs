//! Load generators on the hosts, one file per program.

mod fio;
pub(super) mod measured;
mod perf;

use anyhow::Result;

use super::machine::RemoteMachine;
use super::process::{FinishedProcess, RunningProcess};
use crate::sweep::setup::{HostJob, Initiator};

pub(super) use measured::LoadResult;

/// One job on one host.
#[derive(Debug, Clone)]
pub(super) struct LoadTask<'a> {
    pub(super) job: &'a HostJob,
    /// Index of the host, from 0.
    pub(super) host: usize,
    /// `tcp://ADDR:PORT`, as the daemon reports it.
    pub(super) address: String,
    pub(super) nqn: String,
    /// Namespace IDs of the job's devices, in the plan's order.
    pub(super) nsids: Vec<u32>,
    /// Ramp time in nanoseconds.
    pub(super) ramp: u64,
    pub(super) time: u64,
    pub(super) seed: u64,
    /// CPUs to which the program is bound, if the user names them.
    pub(super) cpus: Option<String>,
    /// Folder on the host, for files of this task alone.
    pub(super) folder: String,
}

/// A load generator.
pub(super) trait LoadProgram: Sync + std::fmt::Debug {
    /// Queries a host once, before anything runs: returns its versions, or the missing parts and
    /// their source.
    fn versions(&self, machine: &RemoteMachine) -> Result<String>;

    /// Checks that the program can run this job.
    fn check(&self, job: &HostJob) -> Result<()>;

    /// Connects a host, if the program does not connect itself.
    ///
    /// The caller drops the returned process after the point, which disconnects the host.
    fn connect(
        &self,
        machine: &RemoteMachine,
        task: &LoadTask<'_>,
    ) -> Result<Option<RunningProcess>>;

    /// Starts the load.
    fn start(&self, machine: &RemoteMachine, task: &LoadTask<'_>) -> Result<RunningProcess>;

    /// Reads the measurements.
    fn read(
        &self,
        machine: &RemoteMachine,
        task: &LoadTask<'_>,
        finished: &FinishedProcess,
    ) -> Result<LoadResult>;
}

/// Paths of the programs on a host.
#[derive(Debug, Clone)]
pub(super) struct ProgramPaths {
    pub(super) perf: String,
    pub(super) fio: String,
    /// SPDK's plugin for fio.
    pub(super) spdk_plugin: Option<String>,
}

/// Returns the generator that a plan names.
pub(super) fn generator(initiator: Initiator, programs: &ProgramPaths) -> Box<dyn LoadProgram> {
    match initiator {
        // A load without a fabric is refused before it would be started.
        Initiator::Perf | Initiator::Local => {
            Box::new(perf::PerfProgram { program: programs.perf.clone() })
        }
        Initiator::FioKernel => Box::new(fio::FioKernel { fio: programs.fio.clone() }),
        Initiator::FioSpdk => Box::new(fio::FioSpdk {
            fio: programs.fio.clone(),
            plugin: programs.spdk_plugin.clone(),
        }),
    }
}

/// Splits `tcp://ADDR:PORT` into its parts.
fn split_address(address: &str) -> Option<(&str, &str, &str)> {
    let (fabric, rest) = address.split_once("://")?;
    let (host, port) = rest.rsplit_once(':')?;
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    Some((fabric, host, port))
}
