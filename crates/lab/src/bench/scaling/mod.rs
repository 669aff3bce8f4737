//! `cargo xtask bench scaling`: the cost of connections, namespaces and reactors, as curves.
//!
//! Every point starts the daemon, connects idle I/O queues that a sleeping process holds, and
//! measures one active queue beside them. The rounds go over all points, so that other load of the
//! machine affects all of them alike.
//!
//! | file | content |
//! |---|---|
//! | `points` | the points of the curves, and the config of each |
//! | `held` | the process that holds idle queues |
//! | `measure` | one round of one point |
//! | `show` | the tables and the page |

mod held;
mod measure;
mod points;
mod show;

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use nvmeof_console::{complain, say, show as print};
use nvmeof_workspace::checkout::{Workspace, run_checked};

use super::server::{self, CpuTime};
use super::{machine, require_programs};
use crate::interrupt;
use measure::{Round, ScalingBench};
use points::{Curve, ScalingPoint};

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: cargo xtask bench scaling --curve connections --repeat 5 --html scaling.html"
)]
pub(crate) struct ScalingArgs {
    /// Curves to measure [default: all]
    #[arg(long, value_enum, value_delimiter = ',')]
    curve: Vec<Curve>,
    /// I/O queues, of which one is active
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,16,64,256,1024,4096", value_parser = clap::value_parser!(u32).range(1..=60000))]
    connections: Vec<u32>,
    /// Namespaces, of which one is loaded
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,16,128,1024", value_parser = clap::value_parser!(u32).range(1..=1024))]
    namespaces: Vec<u32>,
    /// Reactors, on the first CPUs; hosts have the other CPUs, or share the last one if there are
    /// none [default: 1, and powers of two up to the number of CPUs less one]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=1024))]
    reactors: Vec<u32>,
    /// CPU of the daemon, except in the curve of reactors
    #[arg(long, value_name = "CPU", default_value_t = 0)]
    target_cpu: usize,
    /// CPU of the hosts, except in the curve of reactors
    #[arg(long, value_name = "CPU", default_value_t = 1)]
    initiator_cpu: usize,
    /// Time of each load, in the form of nvmeof-perf
    #[arg(long, value_name = "TIME", default_value = "1s")]
    time: String,
    /// Seconds for which the CPU time of the idle daemon is measured
    #[arg(long, value_name = "SECONDS", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=600))]
    idle: u64,
    /// Rounds over all points
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeat: u32,
    /// Use the existing release binaries
    #[arg(long)]
    no_build: bool,
    /// Write the tables to this file as Markdown
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// Write tables and plots to this file as a page
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write every round to this file as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// A point and what was measured there.
#[derive(Debug)]
struct PointRounds {
    point: ScalingPoint,
    rounds: Vec<Round>,
}

pub(super) fn run(args: &ScalingArgs) -> Result<ExitCode> {
    let workspace = Workspace::find()?;
    require_programs()?;
    let points = points::chosen(args)?;
    if !args.no_build {
        let build = ["build", "--release", "--locked", "-p", "nvmeof-tgt", "-p", "nvmeof-perf"];
        run_checked(&mut workspace.cargo(build))?;
    }
    let folder = workspace.target().join("bench-scaling");
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let bench = ScalingBench { args, workspace: &workspace, folder };
    interrupt::handle_signals()?;
    let mut results: Vec<PointRounds> =
        points.into_iter().map(|point| PointRounds { point, rounds: Vec::new() }).collect();
    let cpus = [args.target_cpu, args.initiator_cpu];
    let before = server::time_of(cpus)?;
    for round in 0..args.repeat {
        for result in &mut results {
            let measured = bench.round(&result.point);
            if interrupt::is_noted() {
                return Ok(interrupt::STATUS.into());
            }
            let measured = measured.with_context(|| format!("cannot measure {}", result.point))?;
            result.rounds.push(measured);
        }
        complain!("round {} of {} done", round + 1, args.repeat);
    }
    report(args, &results, before)?;
    Ok(ExitCode::SUCCESS)
}

fn report(args: &ScalingArgs, results: &[PointRounds], before: CpuTime) -> Result<()> {
    let stolen = server::time_of([args.target_cpu, args.initiator_cpu])?.stolen_since(before);
    let about = format!(
        "{}; {} round(s), {} a load, {} s idle; {stolen:.1} % of both CPUs' time taken by other \
         machines. Medians of the rounds.",
        machine(),
        args.repeat,
        args.time,
        args.idle,
    );
    say!("{about}\n");
    print(show::text(results));
    write(args.markdown.as_ref(), || Ok(show::markdown(results, &about)))?;
    write(args.html.as_ref(), || show::page(results, &about))?;
    write(args.json.as_ref(), || {
        Ok(serde_json::to_string_pretty(&show::json(results, &about))? + "\n")
    })
}

fn write(path: Option<&PathBuf>, text: impl FnOnce() -> Result<String>) -> Result<()> {
    let Some(path) = path else { return Ok(()) };
    fs::write(path, text()?).with_context(|| format!("cannot write {}", path.display()))
}
