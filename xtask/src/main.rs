//! All developer commands of this repository: `cargo xtask run`, `test`, `vm`, `sweep`, `plots`,
//! `bench`, `fuzz`, `deb` and `ci`.
//!
//! The commands run the tools of a Debian or Ubuntu machine (apt, dpkg, xz, QEMU), so that this
//! crate itself builds quickly. `sweep`, `plots` and `bench` are commands of `nvmeof-lab`
//! (`crates/lab`), which xtask builds when one of them runs.

mod api_fuzz;
mod browser;
mod checks;
mod ci;
mod deb;
mod fuzz;
mod lab;
mod run;
mod setup;
mod spdk_rpc;
mod test;
mod vm;

use std::process::ExitCode;

use anyhow::Result;
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
    Run(run::RunArgs),
    /// Set up and run every test; what CI runs
    Test(test::TestArgs),
    /// Boot a QEMU machine in which one of Debian's kernels is the NVMe-oF host of our target
    Vm(vm::VmArgs),
    /// Run a plan's points in the simulator, on this machine or on hosts over ssh, and report
    #[command(disable_help_flag = true)]
    Sweep(lab::LabArgs),
    /// Draw the plots and tables of the documentation, from the simulator and from real runs
    #[command(disable_help_flag = true)]
    Plots(lab::LabArgs),
    /// Measure the target end to end
    #[command(disable_help_flag = true)]
    Bench(lab::LabArgs),
    /// Run the fuzz targets on what a peer may send
    Fuzz(fuzz::FuzzArgs),
    /// Build the Debian package, and check it
    Deb(deb::DebArgs),
    /// Run .ci/run in a clean clone of HEAD, as CI does
    Ci(ci::CiArgs),
}

fn main() -> ExitCode {
    let result = match lab::show_help() {
        Some(result) => result,
        None => match nvmeof_console::parse() {
            Ok(cli) => run(&cli),
            Err(code) => return code,
        },
    };
    let code = result.unwrap_or_else(|error| {
        complain!("error: {error:#}");
        ExitCode::FAILURE
    });
    nvmeof_console::status("error", code)
}

fn run(cli: &Cli) -> Result<ExitCode> {
    match &cli.command {
        Command::Run(args) => run::run(args),
        Command::Test(args) => test::run(args),
        Command::Vm(args) => vm::run(args),
        Command::Sweep(args) => lab::become_lab("sweep", args),
        Command::Plots(args) => lab::become_lab("plots", args),
        Command::Bench(args) => lab::become_lab("bench", args),
        Command::Fuzz(args) => fuzz::run(args),
        Command::Deb(args) => deb::run(args),
        Command::Ci(args) => ci::run(args),
    }
}
