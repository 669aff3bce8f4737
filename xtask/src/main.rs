//! All developer commands of this repository: `cargo xtask run`, `test`, `vm`, `sweep`, `plots`,
//! `bench`, `fuzz`, `deb` and `ci`.
//!
//! The commands run the tools of a Debian or Ubuntu machine (apt, dpkg, xz, QEMU), so that this
//! crate itself builds quickly. It links only those workspace crates that `sweep` and `plots`
//! require: pacing, sim and report.

mod api_fuzz;
mod at_once;
mod bench;
mod browser;
mod checks;
mod ci;
mod daemon_stats;
mod deb;
mod fuzz;
mod interrupt;
mod listen;
mod middle;
mod plots;
mod run;
mod setup;
mod sweep;
mod test;
mod this_program;
mod vm;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use nvmeof_console::complain;

#[derive(Debug, Parser)]
#[command(
    name = "cargo xtask",
    bin_name = "cargo xtask",
    about = "Build, serve, test and try nvmeof-tgt",
    after_help = "Example: cargo xtask run"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Install what is missing, build, serve configs/loopback.toml and print how to connect
    Run(run::Args),
    /// Set up and run every test; what CI runs
    Test(test::Args),
    /// Boot a QEMU machine in which Debian's kernel is the NVMe-oF host of our target
    Vm(vm::Args),
    /// Run a plan's points in the simulator, on this machine or on hosts over ssh, and report
    Sweep(sweep::Args),
    /// Draw the plots and tables of the documentation, from the simulator and from real runs
    Plots(plots::Args),
    /// Measure the target end to end
    Bench(bench::Args),
    /// Run the fuzz targets on what a peer may send
    Fuzz(fuzz::Args),
    /// Build the Debian package, and check it
    Deb(deb::Args),
    /// Run .ci/run in a clean clone of HEAD, as CI does
    Ci(ci::Args),
}

fn main() -> ExitCode {
    match nvmeof_console::parse() {
        Ok(cli) => nvmeof_console::status("error", run(&cli)),
        Err(code) => code,
    }
}

fn run(cli: &Cli) -> ExitCode {
    let outcome = match &cli.command {
        Command::Run(args) => run::run(args),
        Command::Test(args) => test::run(args),
        Command::Vm(args) => vm::run(args),
        Command::Sweep(args) => sweep::run(args),
        Command::Plots(args) => plots::run(args),
        Command::Bench(args) => bench::run(args),
        Command::Fuzz(args) => fuzz::run(args),
        Command::Deb(args) => deb::run(args),
        Command::Ci(args) => ci::run(args),
    };
    outcome.unwrap_or_else(|error| {
        complain!("error: {error:#}");
        ExitCode::FAILURE
    })
}
