//! `cargo xtask sweep`: runs every point of a plan, and reports.
//!
//! ```text
//! plan (TOML) -> points -> place (sim; later local, remote) -> results -> JSON lines, CSV, HTML, table
//! ```
//!
//! | file | what |
//! |---|---|
//! | `plan` | from TOML to checked points |
//! | `setup` | what a point runs, wherever it runs |
//! | `place` | where it runs: one file a place |
//! | `run` | the points, some at once, those of an earlier run left out |
//! | `results` | the file of results that outlives an interruption |

mod place;
mod plan;
mod results;
mod run;
mod setup;
#[cfg(test)]
mod tests;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use nvmeof_report::{Point, Varied, csv, sweep};

use crate::workspace::Workspace;
use place::sim::Simulator;
use plan::Plan;
use results::Results;

/// What clap says for arguments that cannot be.
const USAGE: u8 = 2;

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: cargo xtask sweep --plan configs/sweeps/test-03.toml --where sim --html report.html"
)]
pub(crate) struct Args {
    /// What to run
    #[arg(long, value_name = "FILE")]
    plan: PathBuf,
    /// Where to run it
    #[arg(long = "where", value_enum)]
    place: PlaceName,
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
    /// Write all results here with the prototype's columns
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Write a page with plots here
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Leave out what the file of --json has already
    #[arg(long, requires = "json")]
    resume: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum PlaceName {
    /// In the simulator
    Sim,
    /// On this machine (not built yet)
    Local,
    /// On hosts over ssh (not built yet)
    Remote,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let prepared = match prepare(args) {
        Ok(prepared) => prepared,
        Err(error) => {
            eprintln!("error: {error:#}");
            return Ok(ExitCode::from(USAGE));
        }
    };
    let (plan, platform, simulator) = prepared;
    // Not after hours of measuring.
    args.csv.iter().chain(&args.html).try_for_each(|file| writable(file))?;
    let mut results = match &args.json {
        Some(file) => Results::open(file, args.resume)?,
        None => Results::default(),
    };
    let runs = run::Runs::of(&plan, &platform, "sim", args.seed);
    let (points, failures) = runs.all(&simulator, &mut results)?;
    for failure in &failures {
        eprintln!("error: {failure}");
    }
    print!("{}", sweep::markdown(&points));
    write(args, &plan, &points)?;
    let broken: Vec<_> = points.iter().filter(|point| !point.problems.is_empty()).collect();
    for point in &broken {
        eprintln!("error: {}, {}: {}", plan.name, point.label(), point.problems.join("; "));
    }
    let sound = failures.is_empty() && broken.is_empty();
    Ok(if sound { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs points of a plan we ship in the simulator, those whose varied values are wanted.
pub(crate) fn simulate(
    workspace: &Workspace,
    plan: &str,
    platform: &str,
    wanted: impl Fn(&[Varied]) -> bool,
) -> Result<Vec<Point>> {
    let mut plan = Plan::load(&workspace.root().join(format!("configs/sweeps/{plan}.toml")))?;
    let (name, file) = self::platform(workspace, platform)?;
    let simulator = Simulator::new(&name, &file)?;
    plan.points.retain(|point| point.runs_on(&name, "sim") && wanted(&point.varied));
    run::check(&plan, &simulator)?;
    let runs = run::Runs::of(&plan, &name, "sim", 1);
    let (points, failures) = runs.all(&simulator, &mut Results::default())?;
    let broken = points.iter().flat_map(|point| &point.problems);
    let problems: Vec<_> = failures.iter().chain(broken).map(String::as_str).collect();
    anyhow::ensure!(problems.is_empty(), "{}: {}", plan.name, problems.join("; "));
    Ok(points)
}

/// Everything that can be refused before anything runs.
fn prepare(args: &Args) -> Result<(Plan, String, Simulator)> {
    let place = match args.place {
        PlaceName::Sim => "sim",
        PlaceName::Local => anyhow::bail!("--where local is not built yet; --where sim is"),
        PlaceName::Remote => anyhow::bail!("--where remote is not built yet; --where sim is"),
    };
    let mut plan = Plan::load(&args.plan)?;
    if args.short {
        plan.shorten();
    }
    let (name, file) = platform(&Workspace::find()?, &args.platform)?;
    let simulator = Simulator::new(&name, &file)?;
    plan.points.retain(|point| point.runs_on(&name, place));
    anyhow::ensure!(
        !plan.points.is_empty(),
        "{}: no point is for --platform {name} --where {place}",
        args.plan.display()
    );
    run::check(&plan, &simulator)?;
    Ok((plan, name, simulator))
}

/// Name and file of a platform that is called by its name or by its file.
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

/// That a file can be written, what is in it being left as it is.
fn writable(file: &Path) -> Result<()> {
    let opened = fs::File::options().create(true).append(true).open(file);
    opened.map(|_| ()).with_context(|| format!("cannot write {}", file.display()))
}

fn stem(file: &Path) -> Option<String> {
    Some(file.file_stem()?.to_str()?.to_owned())
}

fn write(args: &Args, plan: &Plan, points: &[Point]) -> Result<()> {
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
