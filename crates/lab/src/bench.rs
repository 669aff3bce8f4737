//! `cargo xtask bench`: performance of the target, measured from outside and end to end.
//!
//! | file | content |
//! |---|---|
//! | `lines` | the measurements |
//! | `server` | the daemon as a process: start, time, memory, CPU |
//! | `load` | one run of the load generator, and the median of several |
//! | `table` | output as a table |
//! | `output_files` | files of results |
//! | `pacing` | `bench pacing`: the daemon under each pacing policy |
//! | `peers` | `bench peers`: two running targets in turns |
//! | `median_interval` | confidence intervals of medians |
//! | `scaling` | `bench scaling`: the cost of connections, namespaces and reactors |
//! | `memory` | `bench memory`: memory per connection and per namespace |
//! | `instructions` | `bench instructions`: cost of an I/O in the VFIO driver, against a baseline |

pub(crate) mod instructions;
mod lines;
mod load;
mod median_interval;
mod memory;
mod output_files;
pub(crate) mod pacing;
mod peers;
mod scaling;
mod server;
mod table;

use std::fs;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use nvmeof_console::{complain, say, show};
use nvmeof_workspace::checkout::{Workspace, run_checked};
use nvmeof_workspace::prerequisites;
use serde_json::{Value, json};

use crate::listen::ListenAddress;
use crate::output;
use lines::{BenchLine, LINES};
use load::{Endpoint, LineSample, Spread};
use server::{DaemonServer, TargetProcess};

/// Number of daemon starts whose time is measured.
const STARTS: usize = 5;
/// Connected hosts without commands while idle CPU is measured.
const IDLE_HOSTS: usize = 10;
/// Time for these hosts to connect and to become idle.
const IDLE_SETTLE: Duration = Duration::from_secs(2);

#[derive(Debug, clap::Args)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    kind: BenchKind,
}

#[derive(Debug, clap::Subcommand)]
enum BenchKind {
    /// Measure the daemon over TCP on this machine, it and its host pinned to a CPU each
    E2e(E2eArgs),
    /// Measure the daemon over TCP on this machine under each pacing policy
    Pacing(pacing::PacingArgs),
    /// Measure two running targets in turns, with the same host
    Peers(peers::PeersArgs),
    /// Measure how connections, namespaces and reactors scale
    Scaling(scaling::ScalingArgs),
    /// Measure what a connection and a namespace cost of memory
    Memory(memory::MemoryArgs),
    /// Count the instructions of an I/O in the VFIO driver, and compare them with the baseline
    Instructions(instructions::InstructionsArgs),
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Example: cargo xtask bench e2e --time 2s --repeat 5 --markdown\n\n\
    `bench peers` compares two targets.\n\
    A busy neighbour on the same core costs more than any change wins: look at the spread.")]
struct E2eArgs {
    /// Address at which the daemon listens
    #[arg(long, value_name = "tcp://ADDR|rdma://ADDR", default_value_t)]
    listen: ListenAddress,
    /// CPU of our daemon
    #[arg(long, value_name = "CPU", default_value_t = 0)]
    target_cpu: usize,
    /// CPU of the load generator
    #[arg(long, value_name = "CPU", default_value_t = 1)]
    initiator_cpu: usize,
    /// Time to measure each point in each round, in the form of nvmeof-perf
    #[arg(long, value_name = "TIME", default_value = "2s")]
    time: String,
    /// Rounds over all lines
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeat: u32,
    /// Only lines whose name contains this
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Seconds to measure the idle daemon with ten hosts; 0 leaves it out
    #[arg(long, value_name = "SECONDS", default_value_t = 5)]
    idle: u64,
    /// Run both sides under SCHED_FIFO, for machines with other users
    #[arg(long)]
    realtime: bool,
    /// Use the existing release binaries
    #[arg(long)]
    no_build: bool,
    /// Print the table as Markdown
    #[arg(long)]
    markdown: bool,
    /// Write everything measured to this file as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

pub(crate) fn run(args: &BenchArgs) -> Result<ExitCode> {
    match &args.kind {
        BenchKind::E2e(args) => e2e(args),
        BenchKind::Pacing(args) => pacing::run(args),
        BenchKind::Peers(args) => peers::run(args),
        BenchKind::Scaling(args) => scaling::run(args),
        BenchKind::Memory(args) => memory::run(args),
        BenchKind::Instructions(args) => instructions::run(args),
    }
}

/// All measurements of one target, in the order of the lines.
struct TargetResults {
    name: &'static str,
    endpoint: Endpoint,
    /// The target's process, if it is known.
    process: Option<TargetProcess>,
    samples: Vec<Vec<LineSample>>,
    idle_percent: Option<f64>,
}

impl TargetResults {
    fn new(
        name: &'static str,
        endpoint: Endpoint,
        process: Option<TargetProcess>,
        lines: &[&BenchLine],
    ) -> Self {
        let samples = vec![Vec::new(); lines.len()];
        Self { name, endpoint, process, samples, idle_percent: None }
    }

    /// Returns the CPU time spent so far, if the process is known.
    fn cpu(&self) -> Result<Option<Duration>> {
        self.process.map(TargetProcess::cpu).transpose()
    }
}

/// Measurements of the daemon's start.
struct StartTimes {
    ready_ms: Spread,
    rss_mib: Spread,
}

fn e2e(args: &E2eArgs) -> Result<ExitCode> {
    let workspace = Workspace::find()?;
    ensure!(
        args.target_cpu != args.initiator_cpu,
        "--target-cpu and --initiator-cpu are both {}: each side needs a CPU of its own",
        args.target_cpu
    );
    require_programs()?;
    let cpus = [args.target_cpu, args.initiator_cpu];
    server::time_of(cpus)?; // Fails before the build if a CPU does not exist.
    let lines = chosen(args)?;
    if !args.no_build {
        let build = ["build", "--release", "--locked", "-p", "nvmeof-tgt", "-p", "nvmeof-perf"];
        run_checked(&mut workspace.cargo(build))?;
    }
    if args.realtime {
        go_first()?;
    }
    let folder = workspace.target().join("bench-e2e");
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let bench = E2eBench { args, workspace: &workspace, folder };

    let machine = machine();
    say!("machine: {machine}");
    let (server, starts) = bench.start()?;
    let mut outcomes =
        vec![TargetResults::new("ours", server.endpoint(), Some(server.process()), &lines)];
    let before = server::time_of(cpus)?;
    bench.measure(&lines, &mut outcomes)?;
    let stolen = server::time_of(cpus)?.stolen_since(before);
    server.stop()?;

    let shown = table::lines(&lines, &outcomes, args.markdown);
    show(format_args!("\n{shown}\n{}", table::totals(&starts, &outcomes)));
    say!(
        "{} round(s) of {} a point; {}; {stolen:.1} % of both CPUs' time taken by other machines\n\
         medians (lowest-highest)",
        args.repeat,
        args.time,
        if args.realtime { "SCHED_FIFO" } else { "ordinary scheduling" },
    );
    if let Some(path) = &args.json {
        let text = serde_json::to_string_pretty(&report(
            args, &machine, stolen, &lines, &starts, &outcomes,
        ))?;
        output::write(path, &(text + "\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn require_programs() -> Result<()> {
    for program in ["taskset", "chrt"] {
        ensure!(
            prerequisites::find_program(program).is_some(),
            "there is no `{program}`: install util-linux"
        );
    }
    Ok(())
}

/// Returns a command that runs one of the workspace's binaries, all its threads on one CPU.
fn pinned(workspace: &Workspace, realtime: bool, cpu: usize, binary: &str) -> Command {
    let mut command = Command::new("taskset");
    command.args(["--cpu-list", &cpu.to_string()]);
    if realtime {
        command.args(["chrt", "--fifo", "10"]);
    }
    command.arg(workspace.release_binary(binary));
    command
}

/// Gives this process priority over all processes it measures, because it times the daemon's start
/// and reads its CPU time.
///
/// Otherwise it sleeps.
fn go_first() -> Result<()> {
    let pid = std::process::id().to_string();
    run_checked(Command::new("chrt").args(["--fifo", "--pid", "20", &pid]))
        .context("--realtime takes root, or CAP_SYS_NICE")
}

fn chosen(args: &E2eArgs) -> Result<Vec<&'static BenchLine>> {
    let wanted = |line: &&BenchLine| {
        // RDMA has its own checks, and no digests.
        let is_possible = args.listen.has_digests() || !line.digests;
        is_possible && args.only.as_ref().is_none_or(|text| line.name.contains(text.as_str()))
    };
    let lines: Vec<_> = LINES.iter().filter(wanted).collect();
    if lines.is_empty() {
        let names: Vec<_> = LINES.iter().map(|line| line.name).collect();
        bail!("--only matches no line; the lines are: {}", names.join("; "));
    }
    Ok(lines)
}

struct E2eBench<'a> {
    args: &'a E2eArgs,
    workspace: &'a Workspace,
    /// Folder of the config and of the load generator's output.
    folder: PathBuf,
}

impl E2eBench<'_> {
    /// Starts the daemon several times, and leaves the last one running.
    fn start(&self) -> Result<(DaemonServer, StartTimes)> {
        let config = self.folder.join("target.toml");
        output::write(&config, &server::config(self.args.target_cpu, self.args.listen))?;
        let (mut ready_ms, mut rss_mib) = (Vec::new(), Vec::new());
        loop {
            let mut command = self.pinned(self.args.target_cpu, "nvmeof-tgt");
            command.arg("--config").arg(&config);
            let server = DaemonServer::start(command)?;
            ready_ms.push(server.ready_after().as_secs_f64() * 1e3);
            rss_mib.push(server.process().rss_mib()?);
            if ready_ms.len() == STARTS {
                let starts =
                    StartTimes { ready_ms: Spread::of(&ready_ms), rss_mib: Spread::of(&rss_mib) };
                return Ok((server, starts));
            }
            server.stop()?;
        }
    }

    /// Returns a command that runs one of the workspace's binaries, all its threads on one CPU.
    fn pinned(&self, cpu: usize, binary: &str) -> Command {
        pinned(self.workspace, self.args.realtime, cpu, binary)
    }

    /// Measures idle CPU first, then the rounds.
    ///
    /// Each round measures every line on every target, so that other load of the machine affects
    /// all of them alike.
    fn measure(&self, lines: &[&BenchLine], outcomes: &mut [TargetResults]) -> Result<()> {
        for outcome in outcomes.iter_mut() {
            if self.args.idle > 0 {
                outcome.idle_percent = self.idle(outcome)?;
            }
            if lines.iter().any(|line| line.ram) {
                self.perf(load::fill(&outcome.endpoint))?;
            }
        }
        for round in 0..self.args.repeat {
            for (index, line) in lines.iter().enumerate() {
                let mut order: Vec<_> = outcomes.iter_mut().collect();
                if round % 2 == 1 {
                    order.reverse();
                }
                for outcome in order {
                    let sample = self.point(line, outcome)?;
                    outcome.samples[index].push(sample);
                }
            }
            complain!("round {} of {} done", round + 1, self.args.repeat);
        }
        Ok(())
    }

    fn point(&self, line: &BenchLine, outcome: &TargetResults) -> Result<LineSample> {
        let mut args = load::arguments(line, &outcome.endpoint);
        args.extend(["--time".to_owned(), self.args.time.clone()]);
        let before = outcome.cpu()?;
        let result = self.perf(args).with_context(|| {
            format!("cannot measure `{}` on {}", line.name, outcome.endpoint.address)
        })?;
        let after = outcome.cpu()?;
        let cpu = before.zip(after).map(|(before, after)| after.saturating_sub(before));
        LineSample::read(&result, cpu)
    }

    /// Runs the load generator to its end and returns its report.
    fn perf(&self, args: Vec<String>) -> Result<Value> {
        let mut command = self.pinned(self.args.initiator_cpu, "nvmeof-perf");
        command.args(args);
        load::report_of(command, &self.folder.join("point.json"))
    }

    /// Returns the percentage of a CPU that the target uses while hosts are connected and send no
    /// commands.
    fn idle(&self, outcome: &TargetResults) -> Result<Option<f64>> {
        let Some(process) = outcome.process else { return Ok(None) };
        let window = Duration::from_secs(self.args.idle);
        let mut hosts = self.pinned(self.args.initiator_cpu, "nvmeof-perf");
        hosts.args(load::idle(&outcome.endpoint, IDLE_HOSTS, IDLE_SETTLE * 2 + window));
        let hosts = thread::spawn(move || nvmeof_workspace::checkout::output_of(&mut hosts));
        thread::sleep(IDLE_SETTLE);
        let before = process.cpu()?;
        thread::sleep(window);
        let spent = process.cpu()?.saturating_sub(before);
        match hosts.join() {
            Ok(result) => result.context("the idle hosts")?,
            Err(_) => bail!("the thread that watches the idle hosts panicked"),
        };
        Ok(Some(spent.as_secs_f64() / window.as_secs_f64() * 100.0))
    }
}

/// Returns the processor, the kernel and the number of CPUs.
fn machine() -> String {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "))
        .map_or("unknown processor", |(_, name)| name);
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let cpus = cpuinfo.lines().filter(|line| line.starts_with("processor")).count();
    format!("{model}, {cpus} CPUs, Linux {}", kernel.trim())
}

fn report(
    args: &E2eArgs,
    machine: &str,
    stolen: f64,
    lines: &[&BenchLine],
    starts: &StartTimes,
    outcomes: &[TargetResults],
) -> Value {
    let targets: Vec<_> = outcomes
        .iter()
        .map(|outcome| {
            let lines: Vec<_> = lines
                .iter()
                .zip(&outcome.samples)
                .map(|(line, samples)| {
                    json!({
                        "line": line.name,
                        "samples": samples.iter().map(LineSample::json).collect::<Vec<_>>(),
                    })
                })
                .collect();
            json!({
                "name": outcome.name,
                "connect": outcome.endpoint.address,
                "idle_percent": outcome.idle_percent,
                "lines": lines,
            })
        })
        .collect();
    json!({
        "schema_version": 1,
        "machine": machine,
        "stolen_percent": stolen,
        "time": args.time,
        "repeat": args.repeat,
        "realtime": args.realtime,
        "ready_ms": starts.ready_ms.json(),
        "rss_at_start_mib": starts.rss_mib.json(),
        "targets": targets,
    })
}
