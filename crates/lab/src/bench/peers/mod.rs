//! `cargo xtask bench peers`: two running targets, measured in turns by the same host.
//!
//! | file | content |
//! |---|---|
//! | `lines` | the loads |
//! | `host` | the host: nvmeof-perf or spdk_nvme_perf |
//! | `show` | the table and the page |

mod host;
mod lines;
mod show;

use std::fs;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use nvmeof_console::{complain, say, show};
use nvmeof_workspace::checkout::{Workspace, run_checked};
use rustix::process::{Pid, Signal, kill_process};

use super::load::LineSample;
use super::output_files::OutputFiles;
use super::server::{self, TargetProcess};
use super::{machine, require_programs};
use crate::interrupt;
use host::{Host, HostChoice, PeerAddress};
use lines::{LINES, PeerLine};

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Both targets run already, pinned by whoever started them, and serve the same kind of namespace.\n\
    A target that polls takes all of its CPU: with --pid for both and --stop-other they can share one.\n\n\
    Example: cargo xtask bench peers --connect tcp://127.0.0.1:4420/nqn.2026-11.io.nvmeof-tgt:demo \\\n             \
    --connect tcp://127.0.0.1:4421/nqn.2016-06.io.spdk:cnode1 --html peers.html --markdown peers.md"
)]
pub(super) struct PeersArgs {
    /// A subsystem of a running target: give A first, then B
    #[arg(long, value_name = "tcp://ADDR:PORT/SUBNQN", required = true)]
    connect: Vec<PeerAddress>,
    /// Process of the target, for its CPU time: of A, then of B
    #[arg(long, value_name = "PID")]
    pid: Vec<u32>,
    /// Stop the process of the other target (SIGSTOP) while one is measured
    #[arg(long, requires = "pid")]
    stop_other: bool,
    /// Namespace to load
    #[arg(long, value_name = "NSID", default_value_t = 1)]
    nsid: u32,
    /// Measure the lines that write, too: they overwrite the namespace on both targets
    #[arg(long)]
    destroy_data: bool,
    /// Load generator
    #[arg(long, value_enum, default_value_t = HostChoice::Auto)]
    host: HostChoice,
    /// CPU of the load generator
    #[arg(long, value_name = "CPU", default_value_t = 1)]
    initiator_cpu: usize,
    /// Seconds to measure each line in each round
    #[arg(long, value_name = "SECONDS", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=3600))]
    time: u64,
    /// Rounds over all lines
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeat: u32,
    /// Only lines whose name contains this
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Use the existing release binary of nvmeof-perf
    #[arg(long)]
    no_build: bool,
    #[command(flatten)]
    files: OutputFiles,
}

/// One round of one line: the samples of A and B.
type Pair = [LineSample; 2];

/// All rounds of one line.
#[derive(Debug)]
struct LinePairs {
    line: &'static PeerLine,
    pairs: Vec<Pair>,
    /// Reason why there are no more.
    failure: Option<String>,
}

/// A target that is measured.
#[derive(Debug)]
struct Peer<'a> {
    address: &'a PeerAddress,
    process: Option<TargetProcess>,
}

pub(super) fn run(args: &PeersArgs) -> Result<ExitCode> {
    let workspace = Workspace::find()?;
    require_programs()?;
    let peers = peers(args)?;
    server::time_of([args.initiator_cpu])?; // Fails early if the CPU does not exist.
    let folder = workspace.target().join("bench-peers");
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let host = Host::find(args.host, workspace.release_binary("nvmeof-perf"), &folder)?;
    if matches!(host, Host::Own { .. }) && !args.no_build {
        run_checked(&mut workspace.cargo(["build", "--release", "--locked", "-p", "nvmeof-perf"]))?;
    }
    let lines = chosen(args, &host)?;
    args.files.check()?;
    interrupt::handle_signals()?;
    let mut results: Vec<LinePairs> = lines
        .into_iter()
        .map(|line| LinePairs { line, pairs: Vec::new(), failure: None })
        .collect();
    'rounds: for round in 0..args.repeat {
        for result in results.iter_mut().filter(|result| result.failure.is_none()) {
            let pair = pair(args, &host, &peers, result.line, round);
            if interrupt::is_noted() {
                // The same signal has ended the host. The finished rounds are reported.
                break 'rounds;
            }
            match pair {
                Ok(pair) => result.pairs.push(pair),
                Err(error) => {
                    complain!("left out from now on: {error:#}");
                    result.failure = Some(format!("{error:#}"));
                }
            }
        }
        complain!("round {} of {} done", round + 1, args.repeat);
    }
    let about = format!(
        "A is {}, B is {}. {}; {} on CPU {}; {} round(s) of {} s a line, in turns.",
        peers[0].address,
        peers[1].address,
        machine(),
        host.name(),
        args.initiator_cpu,
        args.repeat,
        args.time,
    );
    say!("{}", show::note(&about));
    show(format_args!("\n{}", show::table(&results).text()));
    args.files.write(
        || show::markdown(&results, &about),
        || show::page(&results, &about),
        || show::json(&results),
    )?;
    if interrupt::is_noted() {
        return Ok(interrupt::STATUS.into());
    }
    let has_failed = results.iter().any(|result| result.failure.is_some());
    Ok(if has_failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn peers(args: &PeersArgs) -> Result<[Peer<'_>; 2]> {
    let [a, b] = args.connect.as_slice() else {
        bail!("--connect was given {} time(s): give it twice, A and B", args.connect.len());
    };
    let pids = match args.pid.as_slice() {
        [] => [None, None],
        &[a, b] => [Some(a), Some(b)],
        _ => bail!("--pid was given once or too often: give it for A and for B, or not at all"),
    };
    let [of_a, of_b] = pids.map(|pid| pid.map(TargetProcess));
    let peers = [Peer { address: a, process: of_a }, Peer { address: b, process: of_b }];
    for process in peers.iter().filter_map(|peer| peer.process) {
        process.cpu()?; // Fails early if the process does not exist.
    }
    Ok(peers)
}

/// Returns the lines to measure, and reports the others with the reason.
fn chosen(args: &PeersArgs, host: &Host) -> Result<Vec<&'static PeerLine>> {
    let wanted =
        |line: &&PeerLine| args.only.as_ref().is_none_or(|text| line.name().contains(text));
    let wanted: Vec<_> = LINES.iter().filter(wanted).collect();
    if wanted.is_empty() {
        let names: Vec<_> = LINES.iter().map(PeerLine::name).collect();
        bail!("--only matches no line; the lines are: {}", names.join("; "));
    }
    let mut chosen = Vec::new();
    for line in wanted {
        let lacks = host.lacks(line);
        let writes = (!args.destroy_data && !line.only_reads())
            .then_some("it writes, which --destroy-data allows");
        match lacks.or(writes) {
            Some(reason) => complain!("left out: {}: {reason}", line.name()),
            None => chosen.push(line),
        }
    }
    ensure!(!chosen.is_empty(), "no line is left to measure");
    Ok(chosen)
}

/// Measures a line on both targets. The first one changes from round to round.
fn pair(
    args: &PeersArgs,
    host: &Host,
    peers: &[Peer<'_>; 2],
    line: &PeerLine,
    round: u32,
) -> Result<Pair> {
    let sample = |side: usize| {
        let (peer, other) = (&peers[side], &peers[1 - side]);
        let _stopped = match other.process.filter(|_| args.stop_other) {
            Some(process) => Some(StoppedProcess::stop(process)?),
            None => None,
        };
        let cpu = || peer.process.map(TargetProcess::cpu).transpose();
        let time = Duration::from_secs(args.time);
        host.run(line, (peer.address, args.nsid), (args.initiator_cpu, time), cpu)
            .with_context(|| format!("cannot measure `{}` on {}", line.name(), peer.address))
    };
    if round.is_multiple_of(2) {
        let a = sample(0)?;
        Ok([a, sample(1)?])
    } else {
        let b = sample(1)?;
        Ok([sample(0)?, b])
    }
}

/// A process that does not run until this value is dropped.
#[derive(Debug)]
struct StoppedProcess(Pid);

impl StoppedProcess {
    fn stop(process: TargetProcess) -> Result<Self> {
        let pid = process.pid()?;
        kill_process(pid, Signal::STOP)
            .with_context(|| format!("cannot stop process {}", pid.as_raw_nonzero()))?;
        Ok(Self(pid))
    }
}

impl Drop for StoppedProcess {
    fn drop(&mut self) {
        // A process that has ended needs nothing.
        let _ = kill_process(self.0, Signal::CONT);
    }
}
