//! `cargo xtask bench scaling`: the cost of connections, namespaces and reactors, as curves.
//!
//! Every point starts the daemon, connects idle I/O queues that a sleeping process holds, and
//! measures one active queue next to them. The rounds go over all points, so that other load of the
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
use std::process::ExitCode;

use anyhow::{Context, Result};
use nvmeof_console::{complain, say, show as print};
use nvmeof_workspace::checkout::{Workspace, run_checked};

use super::output_files::OutputFiles;
use super::server;
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
    #[command(flatten)]
    files: OutputFiles,
}

/// A point and what was measured there.
#[derive(Debug)]
struct PointRounds {
    point: ScalingPoint,
    rounds: Vec<Round>,
    /// Reason why there are no more.
    failure: Option<String>,
}

pub(super) fn run(args: &ScalingArgs) -> Result<ExitCode> {
    let workspace = Workspace::find()?;
    require_programs()?;
    let points = points::chosen(args)?;
    let cpus = points::cpus(&points);
    server::time_of(cpus.iter().copied())?; // Fails before the build if a CPU does not exist.
    args.files.check()?;
    if !args.no_build {
        let build = ["build", "--release", "--locked", "-p", "nvmeof-tgt", "-p", "nvmeof-perf"];
        run_checked(&mut workspace.cargo(build))?;
    }
    let folder = workspace.target().join("bench-scaling");
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let bench = ScalingBench { args, workspace: &workspace, folder };
    interrupt::handle_signals()?;
    let before = server::time_of(cpus.iter().copied())?;
    let results = measure(&bench, points, args.repeat);
    let stolen = server::time_of(cpus.iter().copied())?.stolen_since(before);
    report(args, &results, &points::list(&cpus), stolen)?;
    if interrupt::is_noted() {
        return Ok(interrupt::STATUS.into());
    }
    let has_failed = results.iter().any(|result| result.failure.is_some());
    Ok(if has_failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Measures all rounds, until an interrupt. A point that fails has no further ones.
fn measure(bench: &ScalingBench<'_>, points: Vec<ScalingPoint>, repeat: u32) -> Vec<PointRounds> {
    let begin = |point| PointRounds { point, rounds: Vec::new(), failure: None };
    let mut results: Vec<PointRounds> = points.into_iter().map(begin).collect();
    for round in 0..repeat {
        for result in results.iter_mut().filter(|result| result.failure.is_none()) {
            let measured = bench.round(&result.point);
            if interrupt::is_noted() {
                // The same signal has ended the daemon and the hosts.
                return results;
            }
            match measured {
                Ok(measured) => result.rounds.push(measured),
                Err(error) => {
                    complain!("left out from now on: {}: {error:#}", result.point);
                    result.failure = Some(format!("{error:#}"));
                }
            }
        }
        complain!("round {} of {repeat} done", round + 1);
    }
    results
}

fn report(args: &ScalingArgs, results: &[PointRounds], cpus: &str, stolen: f64) -> Result<()> {
    let about = format!(
        "{}; {}; {} round(s), {} a load, {} s idle; {stolen:.1} % of the time of CPUs {cpus} taken \
         by other machines. Medians of the rounds.",
        machine(),
        show::placement(results),
        args.repeat,
        args.time,
        args.idle,
    );
    say!("{about}\n");
    print(show::text(results));
    args.files.write(
        || show::markdown(results, &about),
        || show::page(results, &about),
        || show::json(results, &about),
    )
}
