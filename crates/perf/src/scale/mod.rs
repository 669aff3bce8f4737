//! `nvmeof-perf scale`: bandwidth over the number of drives.

use std::process::ExitCode;

use anyhow::Result;

/// `nvmeof-perf scale`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

/// The whole command.
pub(crate) fn run(_args: &Args) -> Result<ExitCode> {
    anyhow::bail!("`nvmeof-perf scale` is not in this build")
}
