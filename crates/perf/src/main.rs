//! `nvmeof-perf`: loads NVMe-oF targets, measures them, and verifies what they store.
#![forbid(unsafe_code)]

mod args;
mod blank_check;
mod buffers;
mod discover;
mod engines;
mod fio;
mod hold;
mod host;
mod intervals;
mod job;
mod load;
mod machine;
mod open_files;
mod patience;
mod pattern;
mod plan;
mod progress;
mod queue;
mod rate_limit;
mod report;
mod results;
mod resume;
mod run;
mod scale;
mod stats;
mod steady;
mod stream;
mod table;
mod target;
mod tool;
mod units;
mod verify;
mod workload;

use std::process::ExitCode;

use anyhow::Context as _;
use nvmeof_console::complain;

use crate::args::{Cli, Command};

fn main() -> ExitCode {
    match nvmeof_console::parse() {
        Ok(cli) => nvmeof_console::status("error", run(&cli)),
        Err(code) => code,
    }
}

fn run(cli: &Cli) -> ExitCode {
    let signals = nvmeof_console::outlive_file_limits().context("cannot handle signals");
    let result = signals.and_then(|()| match &cli.command {
        Command::Run(args) => run::run(args),
        Command::Steady(args) => steady::run(args),
        Command::Engines(args) => engines::run(args),
        Command::Scale(args) => scale::run(args),
        Command::Hold(args) => hold::hold(args).map(|()| ExitCode::SUCCESS),
        Command::Discover(args) => discover::discover(args).map(|()| ExitCode::SUCCESS),
    });
    result.unwrap_or_else(|error| {
        complain!("error: {error:#}");
        if error.is::<plan::UsageError>() { ExitCode::from(run::USAGE) } else { ExitCode::FAILURE }
    })
}
