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
//! | `conditions` | the block of a run, with which reports begin |
//! | `plan` | from TOML to checked points |
//! | `published` | published rows with the conditions of a point |
//! | `setup` | configuration of a point for any backend |
//! | `backend` | the simulator and real machines |
//! | `run` | the points, some concurrently, without those of an earlier run |
//! | `results` | the file of results that survives an interruption |

mod backend;
mod compare;
mod conditions;
#[cfg(test)]
mod grid_tests;
mod options;
mod plan;
mod published;
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
use nvmeof_report::sweep::PlanResults;
use nvmeof_report::{Point, RunOrigin, VariedKey, csv, sweep};
use nvmeof_workspace::checkout::Workspace;

use crate::{interrupt, output};
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
        cargo xtask sweep --plan configs/sweeps/test-03.toml --plan configs/sweeps/test-05.toml --where sim \\\n      \
        --set load.block-size=64KiB --time 2s --html both.html\n  \
        cargo xtask sweep --compare before.jsonl after.jsonl"
)]
pub(crate) struct SweepArgs {
    /// Plan to run; several, as --plan A --plan B, make one report with a table of contents
    #[arg(long = "plan", value_name = "FILE", required_unless_present = "compare")]
    plans: Vec<PathBuf>,
    /// Place to run it
    #[arg(long = "where", value_name = "PLACE", value_enum, required_unless_present = "compare")]
    backend: Option<BackendName>,
    /// Run nothing: compare two files of --json point by point, with confidence intervals
    #[arg(long, num_args = 2, value_names = ["A", "B"], conflicts_with_all = ["plans", "backend", "set", "time", "json", "csv"])]
    compare: Vec<PathBuf>,
    /// A platform of configs/platforms, or a file like them
    #[arg(long, value_name = "A|B|FILE", default_value = "A")]
    platform: String,
    /// Everything random follows from it, and from the number of the repetition
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Set a key of the plan, which then does not vary, as load.block-size=64KiB
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Measured time of each point, as 10s: short for --set load.time=TIME
    #[arg(long, value_name = "TIME")]
    time: Option<String>,
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

/// A plan with its results.
#[derive(Debug)]
struct FinishedPlan {
    plan: SweepPlan,
    points: Vec<Point>,
    /// Runs that failed, and results that are unreliable.
    failures: Vec<String>,
    is_interrupted: bool,
}

pub(crate) fn run(args: &SweepArgs) -> Result<ExitCode> {
    let Some(backend) = args.backend else { return compare::run(args) };
    let plans: Result<Vec<_>> =
        args.plans.iter().map(|file| prepare(args, file, backend)).collect();
    let plans = match plans {
        Ok(plans) => plans,
        Err(error) => return Ok(refused(&error)),
    };
    // Fail now, not after hours of measuring.
    args.csv.iter().chain(&args.html).try_for_each(|file| output::check_writable(file))?;
    let mut simulators = Vec::new();
    if backend == BackendName::Sim {
        match plans.iter().map(|plan| simulator(args, plan)).collect() {
            Ok(all) => simulators = all,
            Err(error) => return Ok(refused(&error)),
        }
    } else {
        interrupt::handle_signals()?;
    }
    let mut results = match &args.json {
        Some(file) => ResultsFile::open(file, args.resume)?,
        None => ResultsFile::default(),
    };
    let mut simulators = simulators.into_iter();
    let (mut finished, mut has_stopped) = (Vec::new(), false);
    for plan in plans {
        let name = plan.name.clone();
        match run_plan(args, backend, plan, simulators.next(), &mut results) {
            Ok(one) => finished.push(one),
            Err(error) if finished.is_empty() => return Err(error),
            // The finished plans are reported.
            Err(error) => {
                complain!("error: {name}: {error:#}");
                has_stopped = true;
            }
        }
        let is_interrupted = finished.last().is_some_and(|plan| plan.is_interrupted);
        if has_stopped || is_interrupted || results.has_failed() {
            break;
        }
    }
    report(args, &finished, has_stopped)
}

/// Runs a plan in its simulator, or on the machines without one, and shows its results.
fn run_plan(
    args: &SweepArgs,
    backend: BackendName,
    mut plan: SweepPlan,
    simulator: Option<Simulator>,
    results: &mut ResultsFile,
) -> Result<FinishedPlan> {
    let backend: Box<dyn SweepBackend> = match simulator {
        Some(simulator) => Box::new(simulator),
        None => {
            let (backend, left_out) = machines(args, backend, &mut plan)?;
            left_out.iter().for_each(|point| complain!("skipped: {point}"));
            Box::new(backend)
        }
    };
    // From here on there are new results, which replace those of an earlier run.
    results.begin()?;
    Ok(finish(args.seed, plan, backend.as_ref(), results))
}

fn refused(error: &anyhow::Error) -> ExitCode {
    complain!("error: {error:#}");
    ExitCode::from(USAGE)
}

/// Runs a plan and shows its results.
fn finish(
    seed: u64,
    plan: SweepPlan,
    backend: &dyn SweepBackend,
    results: &mut ResultsFile,
) -> FinishedPlan {
    let (points, mut failures) =
        run::SweepRuns::of(&plan, &backend.platform(), seed).all(backend, results);
    for failure in &failures {
        complain!("error: {failure}");
    }
    show(format_args!("{}\n", sweep::markdown(&points)));
    for point in points.iter().filter(|point| !point.problems.is_empty()) {
        let failure = format!("{}, {}: {}", plan.name, point.label(), point.problems.join("; "));
        complain!("error: {failure}");
        failures.push(failure);
    }
    FinishedPlan { plan, points, failures, is_interrupted: backend.is_interrupted() }
}

/// Writes the reports of all plans that have run; `has_stopped`: another one could not.
fn report(args: &SweepArgs, finished: &[FinishedPlan], has_stopped: bool) -> Result<ExitCode> {
    let of = |one: &FinishedPlan| one.points.clone();
    let points: Vec<Point> = finished.iter().flat_map(of).collect();
    let results = finished.iter();
    let results = results.map(|one| PlanResults { points: &one.points, about: &one.plan.about });
    let results: Vec<_> = results.collect();
    show(sweep::markdown_contents(&results));
    if let Some(file) = &args.csv {
        output::write(file, &csv::document(&points))?;
    }
    if let Some(file) = &args.html {
        output::write(file, &sweep::overview(&results)?)?;
    }
    let is_interrupted = finished.iter().any(|plan| plan.is_interrupted);
    if is_interrupted || has_stopped && interrupt::is_noted() {
        let (file, more) = match &args.json {
            Some(file) => (file.display().to_string(), "; continue with --resume"),
            None => ("nowhere, for want of --json".to_owned(), ""),
        };
        complain!("interrupted after {} points; they are kept in {file}{more}", points.len());
        return Ok(ExitCode::from(interrupt::STATUS));
    }
    let is_sound = !has_stopped && finished.iter().all(|plan| plan.failures.is_empty());
    Ok(if is_sound { ExitCode::SUCCESS } else { ExitCode::FAILURE })
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
    let (points, failures) = runs.all(&simulator, &mut ResultsFile::default());
    let broken = points.iter().flat_map(|point| &point.problems);
    let problems: Vec<_> = failures.iter().chain(broken).map(String::as_str).collect();
    anyhow::ensure!(problems.is_empty(), "{}: {}", plan.name, problems.join("; "));
    Ok(points)
}

/// Returns the plan with the points that are for this backend.
fn prepare(args: &SweepArgs, file: &Path, backend: BackendName) -> Result<SweepPlan> {
    let time = args.time.iter().map(|time| format!("load.time={time}"));
    let settings: Vec<String> = args.set.iter().cloned().chain(time).collect();
    let mut plan = SweepPlan::load_with(file, &settings)?;
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

fn stem(file: &Path) -> Option<String> {
    Some(file.file_stem()?.to_str()?.to_owned())
}
