//! `nvmeof-perf`: loads NVMe-oF targets, measures them, and verifies what they store.
#![forbid(unsafe_code)]

mod args;
mod discover;
mod host;
mod job;
mod lane;
mod pattern;
mod plan;
mod progress;
mod report;
mod rng;
mod run;
mod stats;
mod table;
mod units;
mod verify;

use std::process::ExitCode;

use clap::Parser;

use crate::args::{Cli, Command};

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match &cli.command {
        Command::Run(args) => run::run(args),
        Command::Discover(args) => discover::discover(args).map(|()| ExitCode::SUCCESS),
    };
    result.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        if error.is::<plan::Misfit>() { ExitCode::from(run::USAGE) } else { ExitCode::FAILURE }
    })
}
