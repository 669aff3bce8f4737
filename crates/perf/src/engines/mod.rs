//! `nvmeof-perf engines`: ways to do I/O, side by side.

use std::process::ExitCode;

use anyhow::Result;

/// `nvmeof-perf engines`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

/// The whole command.
pub(crate) fn run(_args: &Args) -> Result<ExitCode> {
    anyhow::bail!("`nvmeof-perf engines` is not in this build")
}
