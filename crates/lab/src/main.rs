//! The laboratory: experiments with the target, in the simulator and on real machines.
//!
//! `cargo xtask sweep`, `plots` and `bench` build this program and hand their arguments over, so
//! that xtask itself builds without the simulator. Messages and examples therefore name
//! `cargo xtask`.
//!
//! | module | content |
//! |---|---|
//! | `sweep` | runs the points of a plan in the simulator, on this machine or over ssh |
//! | `plots` | the plots and tables of the documentation |
//! | `bench` | performance of the daemon, measured from outside |
//! | `suite` | acceptance suite of `adaptive`, in the simulator |
//! | `page_test` | comparison of a report, as a browser shows it, with its results |
//! | `averages`, `daemon_stats`, `interrupt`, `listen`, `output`, `points`, `rows` | shared parts |
#![forbid(unsafe_code)]

mod averages;
mod bench;
mod daemon_stats;
mod interrupt;
mod listen;
mod output;
mod page_test;
mod plots;
mod points;
mod rows;
mod suite;
mod sweep;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use nvmeof_console::complain;
use nvmeof_workspace::running_program;

#[derive(Debug, Parser)]
#[command(
    name = running_program::NAME,
    bin_name = running_program::NAME,
    about = "Measure nvmeof-tgt, in the simulator and on real machines",
    after_help = "Example: cargo xtask sweep --plan configs/sweeps/test-03.toml --where sim"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a plan's points in the simulator, on this machine or on hosts over ssh, and report
    Sweep(sweep::SweepArgs),
    /// Draw the plots and tables of the documentation, from the simulator and from real runs
    Plots(plots::PlotsArgs),
    /// Measure the target end to end
    Bench(bench::BenchArgs),
    /// Run the acceptance suite of the pacing policies on the simulated machine
    Suite(suite::command::SuiteArgs),
    /// Test sweeps over ssh between network namespaces: a stage of `cargo xtask test`
    #[command(hide = true)]
    RemoteTest,
    /// Compare a sweep's page with its results: a part of a stage of `cargo xtask test`
    #[command(hide = true)]
    PageTest(page_test::PageTestArgs),
}

fn main() -> ExitCode {
    match nvmeof_console::parse() {
        Ok(cli) => nvmeof_console::status("error", run(&cli)),
        Err(code) => code,
    }
}

fn run(cli: &Cli) -> ExitCode {
    let result = match &cli.command {
        Command::Sweep(args) => sweep::run(args),
        Command::Plots(args) => plots::run(args),
        Command::Bench(args) => bench::run(args),
        Command::Suite(args) => suite::command::run(args),
        Command::RemoteTest => sweep::remote_test::run(),
        Command::PageTest(args) => page_test::run(args),
    };
    result.unwrap_or_else(|error| {
        complain!("error: {error:#}");
        ExitCode::FAILURE
    })
}
