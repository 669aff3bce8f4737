//! Load generators on the hosts, one file per program.

mod fio;
pub(super) mod measured;
mod perf;

use anyhow::Result;

use super::machine::Machine;
use super::process::{Finished, Running};
use crate::sweep::setup::{Initiator, Job};

pub(super) use measured::Measured;

/// One job on one host.
#[derive(Debug, Clone)]
pub(super) struct Task<'a> {
    pub(super) job: &'a Job,
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
    /// CPUs to which the program is bound, if the place names them.
    pub(super) cpus: Option<String>,
    /// Folder on the host, for files of this task alone.
    pub(super) folder: String,
}

/// A load generator.
pub(super) trait Generator: Sync + std::fmt::Debug {
    /// Queries a host once, before anything runs: returns its versions, or the missing parts and
    /// their source.
    fn look(&self, machine: &Machine) -> Result<String>;

    /// Checks that the program can run this job.
    fn check(&self, job: &Job) -> Result<()>;

    /// Connects a host, if the program does not connect itself.
    ///
    /// The caller drops the returned process after the point, which disconnects the host.
    fn connect(&self, machine: &Machine, task: &Task<'_>) -> Result<Option<Running>>;

    /// Starts the load.
    fn start(&self, machine: &Machine, task: &Task<'_>) -> Result<Running>;

    /// Reads the measurements.
    fn read(&self, machine: &Machine, task: &Task<'_>, finished: &Finished) -> Result<Measured>;
}

/// Paths of the programs on a host.
#[derive(Debug, Clone)]
pub(super) struct Programs {
    pub(super) perf: String,
    pub(super) fio: String,
    /// SPDK's plugin for fio.
    pub(super) spdk_plugin: Option<String>,
}

/// Returns the generator that a plan names.
pub(super) fn generator(initiator: Initiator, programs: &Programs) -> Box<dyn Generator> {
    match initiator {
        Initiator::Perf => Box::new(perf::Perf { program: programs.perf.clone() }),
        Initiator::FioKernel => Box::new(fio::Kernel { fio: programs.fio.clone() }),
        Initiator::FioSpdk => {
            Box::new(fio::Spdk { fio: programs.fio.clone(), plugin: programs.spdk_plugin.clone() })
        }
    }
}

/// Splits `tcp://ADDR:PORT` into its parts.
fn split_address(address: &str) -> Option<(&str, &str, &str)> {
    let (fabric, rest) = address.split_once("://")?;
    let (host, port) = rest.rsplit_once(':')?;
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    Some((fabric, host, port))
}
