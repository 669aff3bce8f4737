//! One file a command: its arguments, its calls, what it prints.

mod stats;
mod status;

use std::process::ExitCode;

use clap::Subcommand;

use crate::{Args, Client};

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show what runs, in short
    Status,
    /// Show what was counted since the daemon's start
    Stats,
}

/// Does it. The exit status is for what is no error but no success.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let client = || Client::new(&args.api, args.token_file.as_deref());
    match &args.command {
        Command::Status => status::run(&client()?, args.json)?,
        Command::Stats => stats::run(&client()?, args.json)?,
    }
    Ok(ExitCode::SUCCESS)
}
