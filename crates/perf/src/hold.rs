//! `nvmeof-perf hold`: idle I/O queues, for measurements of what they cost a target.

use std::io::stdin;
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use clap::Args;
use nvmeof_console::say;
use nvmeof_initiator::{ConnectOptions, Controller, Endpoint, IoQueue};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, read};

use crate::args::HostArgs;
use crate::host;
use crate::open_files::allow_files;

const EXAMPLE: &str = "\
The line `holding ...` appears when all queues are connected. They stay until standard input ends.

Example:
  nvmeof-perf hold --connect tcp://127.0.0.1:4420/nqn.2026-11.io.nvmeof-tgt:demo --queues 1000";

/// Interval of the checks for the end of the input and for due Keep Alives.
const PAUSE: Duration = Duration::from_secs(1);
/// Descriptors of the process itself, with some to spare.
const OWN_FILES: u64 = 32;

/// `nvmeof-perf hold`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct HoldArgs {
    /// Subsystem to connect to, by TCP (tcp://) or RDMA (rdma://).
    #[arg(long, value_name = "tcp|rdma://ADDR:PORT/SUBNQN")]
    pub(crate) connect: Endpoint,
    /// I/O queues to connect.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65535))]
    pub(crate) queues: u32,
    /// I/O queues of a controller, at most as many as the target grants; each controller has an
    /// admin queue in addition.
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) queues_per_controller: u16,
    #[command(flatten)]
    pub(crate) host: HostArgs,
}

/// A controller and its queues, which nothing polls.
#[derive(Debug)]
struct HeldController {
    controller: Controller,
    queues: Vec<IoQueue>,
}

/// Connects the queues, and keeps their controllers alive until standard input ends.
pub(crate) fn hold(args: &HoldArgs) -> Result<()> {
    let options = host::options(&args.host, [&args.connect.address])?;
    let options = ConnectOptions { queues: args.queues_per_controller, ..options };
    // In the worst case, a controller grants one queue.
    let files = u64::from(args.queues) * 2 + OWN_FILES;
    let why = |why| anyhow!("--queues {} {why}, or lower --queues", args.queues);
    allow_files(files).map_err(why)?;
    let mut held = connect(args, &options)?;
    let queues: usize = held.iter().map(|one| one.queues.len()).sum();
    say!("holding {queues} I/O queues of {} controllers", held.len());
    while !input_ends_within(PAUSE)? {
        keep_alive(&mut held)?;
    }
    for HeldController { controller, queues } in held {
        drop(queues);
        controller.disconnect()?;
    }
    Ok(())
}

fn connect(args: &HoldArgs, options: &ConnectOptions) -> Result<Vec<HeldController>> {
    let mut held: Vec<HeldController> = Vec::new();
    let mut left = args.queues;
    let mut checked = Instant::now();
    while let Some(some) = NonZeroU32::new(left) {
        let mut controller = Controller::connect(&args.connect, options)?;
        let granted = u32::from(controller.info().queues).min(some.get());
        ensure!(granted > 0, "{} grants no I/O queues", args.connect);
        let opened = (0..granted).map(|_| controller.open_queue());
        let queues = opened.collect::<Result<Vec<_>, _>>().with_context(|| {
            format!("{} of {} queues are connected", args.queues - left, args.queues)
        })?;
        held.push(HeldController { controller, queues });
        left -= granted;
        if checked.elapsed() > PAUSE {
            keep_alive(&mut held)?;
            checked = Instant::now();
        }
    }
    Ok(held)
}

fn keep_alive(held: &mut [HeldController]) -> Result<()> {
    held.iter_mut().try_for_each(|one| Ok(one.controller.poll()?))
}

/// Waits for the end of standard input. Returns false after `time`.
fn input_ends_within(time: Duration) -> Result<bool> {
    let input = stdin();
    let mut fds = [PollFd::new(&input, PollFlags::IN)];
    let timeout = Timespec::try_from(time)?;
    match poll(&mut fds, Some(&timeout)) {
        Ok(0) | Err(Errno::INTR) => return Ok(false),
        other => other.context("cannot wait for standard input")?,
    };
    let mut bytes = [0_u8; 64];
    Ok(read(&input, &mut bytes).context("cannot read standard input")? == 0)
}
