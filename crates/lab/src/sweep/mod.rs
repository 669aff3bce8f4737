//! `cargo xtask sweep`: runs every point of a plan and reports the results.
//!
//! ```text
//! plan (TOML) -> points -> backend (sim, local, remote) -> results -> JSON lines, CSV, HTML, table
//! ```
//!
//! | file | content |
//! |---|---|
//! | `options` | the machines that the user names |
//! | `compare` | two files of results |
//! | `plan` | from TOML to checked points |
//! | `setup` | configuration of a point for any backend |
//! | `backend` | the simulator and real machines |
//! | `run` | the points, some concurrently, without those of an earlier run |
//! | `results` | the file of results that survives an interruption |

mod backend;
mod compare;
mod options;
mod plan;
pub(crate) mod remote_test;
mod results;
mod run;
mod setup;
#[cfg(test)]
mod tests;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use nvmeof_console::{complain, show};
use nvmeof_report::{Point, RunOrigin, VariedKey, csv, sweep};
use nvmeof_workspace::checkout::Workspace;

use crate::interrupt;
use backend::SweepBackend;
use backend::real::RealMachines;
use backend::sim::Simulator;
use plan::SweepPlan;
use results::ResultsFile;

/// clap's exit code for invalid arguments.
const USAGE: u8 = 2;

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  cargo xtask sweep --plan configs/sweeps/test-03.toml --where sim --html report.html\n  \
        cargo xtask sweep --plan configs/sweeps/test-03.toml --where local --json local.jsonl --html local.html\n  \
        cargo xtask sweep --plan configs/sweeps/test-03.toml --where remote --listen rdma://192.0.2.1 \\\n      \
        --host root@host1 --host root@host2 --json remote.jsonl\n  \
        cargo xtask sweep --compare before.jsonl after.jsonl"
)]
pub(crate) struct SweepArgs {
    /// Plan to run
    #[arg(long, value_name = "FILE", required_unless_present = "compare")]
    plan: Option<PathBuf>,
    /// Place to run it
    #[arg(long = "where", value_name = "PLACE", value_enum, required_unless_present = "compare")]
    backend: Option<BackendName>,
    /// Run nothing: compare two files of --json point by point, with confidence intervals
    #[arg(long, num_args = 2, value_names = ["A", "B"], conflicts_with_all = ["plan", "backend", "json", "csv"])]
    compare: Vec<PathBuf>,
    /// A platform of configs/platforms, or a file like them
    #[arg(long, value_name = "A|B|FILE", default_value = "A")]
    platform: String,
    /// Everything random follows from it, and from the number of the repetition
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// At most 0.2 s a point, after at most 0.1 s, and each only once: to see that a plan works
    #[arg(long)]
    short: bool,
    /// Write every result here as it comes, one JSON object a line
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write all results here with the columns of io_pacing's file
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Write a page with plots here
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Leave out what the file of --json has already
    #[arg(long, requires = "json")]
    resume: bool,
    #[command(flatten)]
    machines: options::MachineArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum BackendName {
    /// In the simulator
    Sim,
    /// Target and nvmeof-perf on this machine, each on its own CPUs
    Local,
    /// Hosts over ssh, and the target here or over ssh
    Remote,
}

impl BackendName {
    /// Returns the name in plans and results.
    fn name(self) -> &'static str {
        match self {
            Self::Sim => "sim",
            Self::Local => "local",
            Self::Remote => "remote",
        }
    }
}

pub(crate) fn run(args: &SweepArgs) -> Result<ExitCode> {
    let (Some(file), Some(backend)) = (&args.plan, args.backend) else { return compare::run(args) };
    let mut plan = match prepare(args, file, backend) {
        Ok(plan) => plan,
        Err(error) => return Ok(refused(&error)),
    };
    // Fail now, not after hours of measuring.
    args.csv.iter().chain(&args.html).try_for_each(|file| writable(file))?;
    let backend: Box<dyn SweepBackend> = match backend {
        BackendName::Sim => {
            let simulator = simulator(args, &plan);
            match simulator {
                Ok(simulator) => Box::new(simulator),
                Err(error) => return Ok(refused(&error)),
            }
        }
        BackendName::Local | BackendName::Remote => {
            let (backend, left_out) = machines(args, backend, &mut plan)?;
            left_out.iter().for_each(|point| complain!("skipped: {point}"));
            Box::new(backend)
        }
    };
    sweep(args, &plan, backend.as_ref())
}

fn refused(error: &anyhow::Error) -> ExitCode {
    complain!("error: {error:#}");
    ExitCode::from(USAGE)
}

fn sweep(args: &SweepArgs, plan: &SweepPlan, backend: &dyn SweepBackend) -> Result<ExitCode> {
    let mut results = match &args.json {
        Some(file) => ResultsFile::open(file, args.resume)?,
        None => ResultsFile::default(),
    };
    let runs = run::SweepRuns::of(plan, &backend.platform(), args.seed);
    let (points, failures) = runs.all(backend, &mut results)?;
    for failure in &failures {
        complain!("error: {failure}");
    }
    show(sweep::markdown(&points));
    write(args, plan, &points)?;
    let broken: Vec<_> = points.iter().filter(|point| !point.problems.is_empty()).collect();
    for point in &broken {
        complain!("error: {}, {}: {}", plan.name, point.label(), point.problems.join("; "));
    }
    if backend.is_interrupted() {
        let (file, more) = match &args.json {
            Some(file) => (file.display().to_string(), "; continue with --resume"),
            None => ("nowhere, for want of --json".to_owned(), ""),
        };
        complain!("interrupted after {} points; they are kept in {file}{more}", points.len());
        return Ok(ExitCode::from(interrupt::STATUS));
    }
    let sound = failures.is_empty() && broken.is_empty();
    Ok(if sound { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs the matching points of a shipped plan in the simulator.
pub(crate) fn simulate(
    workspace: &Workspace,
    plan: &str,
    platform: &str,
    wanted: impl Fn(&[VariedKey]) -> bool,
) -> Result<Vec<Point>> {
    let mut plan = SweepPlan::load(&workspace.root().join(format!("configs/sweeps/{plan}.toml")))?;
    let (name, file) = self::platform(workspace, platform)?;
    let simulator = Simulator::new(&name, &file)?;
    plan.points.retain(|point| point.runs_on(&name, "sim") && wanted(&point.varied));
    run::check(&plan, &simulator)?;
    let runs = run::SweepRuns::of(&plan, &name, 1);
    let (points, failures) = runs.all(&simulator, &mut ResultsFile::default())?;
    let broken = points.iter().flat_map(|point| &point.problems);
    let problems: Vec<_> = failures.iter().chain(broken).map(String::as_str).collect();
    anyhow::ensure!(problems.is_empty(), "{}: {}", plan.name, problems.join("; "));
    Ok(points)
}

/// Returns the plan with the points that are for this backend.
fn prepare(args: &SweepArgs, file: &Path, backend: BackendName) -> Result<SweepPlan> {
    let mut plan = SweepPlan::load(file)?;
    if args.short {
        plan.shorten();
    }
    // Points for one platform alone describe that machine's behavior: real machines use the first
    // platform.
    let name = stem(Path::new(&args.platform)).unwrap_or_default();
    plan.points.retain(|point| point.runs_on(&name, backend.name()));
    anyhow::ensure!(
        !plan.points.is_empty(),
        "{}: no point is for --platform {name} --where {}",
        file.display(),
        backend.name()
    );
    if backend == BackendName::Sim {
        args.machines.refuse_all()?;
    }
    Ok(plan)
}

fn simulator(args: &SweepArgs, plan: &SweepPlan) -> Result<Simulator> {
    let (name, file) = platform(&Workspace::find()?, &args.platform)?;
    let simulator = Simulator::new(&name, &file)?;
    run::check(plan, &simulator)?;
    Ok(simulator)
}

/// Returns the checked machines, and the points that they cannot run, which are removed from the
/// plan.
fn machines(
    args: &SweepArgs,
    backend: BackendName,
    plan: &mut SweepPlan,
) -> Result<(RealMachines, Vec<String>)> {
    let place = if backend == BackendName::Local { RunOrigin::Local } else { RunOrigin::Remote };
    let machines = args.machines.machines(place, plan)?;
    interrupt::handle_signals()?;
    let backend = RealMachines::new(machines, &plan.points)?;
    let left_out = run::leave_out(plan, &backend)?;
    Ok((backend, left_out))
}

/// Returns name and file of a platform that is given by its name or by its file.
fn platform(workspace: &Workspace, wanted: &str) -> Result<(String, PathBuf)> {
    let folder = workspace.root().join("configs/platforms");
    let named = folder.join(format!("{wanted}.toml"));
    let by_name = !wanted.contains('/') && named.is_file();
    let file = if by_name { named } else { PathBuf::from(wanted) };
    if !file.is_file() {
        let mut names: Vec<_> = fs::read_dir(&folder)
            .with_context(|| format!("cannot read {}", folder.display()))?
            .filter_map(|entry| stem(&entry.ok()?.path()))
            .collect();
        names.sort();
        anyhow::bail!(
            "--platform {wanted}: no such platform, and no such file; there are {}",
            names.join(", ")
        );
    }
    let name = stem(&file).context("--platform: a file without a name")?;
    Ok((name, file))
}

/// Checks that a file can be written, without changing its content.
fn writable(file: &Path) -> Result<()> {
    let opened = fs::File::options().create(true).append(true).open(file);
    opened.map(|_| ()).with_context(|| format!("cannot write {}", file.display()))
}

fn stem(file: &Path) -> Option<String> {
    Some(file.file_stem()?.to_str()?.to_owned())
}

fn write(args: &SweepArgs, plan: &SweepPlan, points: &[Point]) -> Result<()> {
    let put = |file: &PathBuf, text: String| {
        fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
    };
    if let Some(file) = &args.csv {
        put(file, csv::document(points))?;
    }
    if let Some(file) = &args.html {
        put(file, sweep::page(points, &plan.about)?)?;
    }
    Ok(())
}
