//! `nvmeof-perf steady`: drive tests until a state is steady.

use std::process::ExitCode;

use anyhow::Result;

/// `nvmeof-perf steady`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

/// The whole command.
pub(crate) fn run(_args: &Args) -> Result<ExitCode> {
    anyhow::bail!("`nvmeof-perf steady` is not in this build")
}
