//! What makes the load on a host: one file a program.

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
    /// From 0.
    pub(super) host: usize,
    /// `tcp://ADDR:PORT`, as the daemon says it.
    pub(super) address: String,
    pub(super) nqn: String,
    /// Of the job's devices, in the plan's order.
    pub(super) nsids: Vec<u32>,
    /// Nanoseconds.
    pub(super) ramp: u64,
    pub(super) time: u64,
    pub(super) seed: u64,
    /// CPUs to stay on, if the place says so.
    pub(super) cpus: Option<String>,
    /// On the host, for files of this task alone.
    pub(super) folder: String,
}

/// A program that makes load.
pub(super) trait Generator: Sync + std::fmt::Debug {
    /// What is asked of a host once, before anything runs: its versions, or what it lacks and how to get it.
    fn look(&self, machine: &Machine) -> Result<String>;

    /// Whether it can do this job at all.
    fn check(&self, job: &Job) -> Result<()>;

    /// Connects a host, if the program does not do that itself. What it hands back is dropped, and so
    /// disconnects, when the point is over.
    fn connect(&self, machine: &Machine, task: &Task<'_>) -> Result<Option<Running>>;

    /// Starts the load.
    fn start(&self, machine: &Machine, task: &Task<'_>) -> Result<Running>;

    /// Takes what it measured.
    fn read(&self, machine: &Machine, task: &Task<'_>, finished: &Finished) -> Result<Measured>;
}

/// Where the programs are on a host.
#[derive(Debug, Clone)]
pub(super) struct Programs {
    pub(super) perf: String,
    pub(super) fio: String,
    /// SPDK's plugin for fio.
    pub(super) spdk_plugin: Option<String>,
}

/// The program a plan calls by this name.
pub(super) fn generator(initiator: Initiator, programs: &Programs) -> Box<dyn Generator> {
    match initiator {
        Initiator::Perf => Box::new(perf::Perf { program: programs.perf.clone() }),
        Initiator::FioKernel => Box::new(fio::Kernel { fio: programs.fio.clone() }),
        Initiator::FioSpdk => {
            Box::new(fio::Spdk { fio: programs.fio.clone(), plugin: programs.spdk_plugin.clone() })
        }
    }
}

/// Address and port of `tcp://ADDR:PORT`.
fn split_address(address: &str) -> Option<(&str, &str, &str)> {
    let (fabric, rest) = address.split_once("://")?;
    let (host, port) = rest.rsplit_once(':')?;
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    Some((fabric, host, port))
}
