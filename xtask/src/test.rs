//! placeholder
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}
pub(crate) fn run(_a:&Args)->anyhow::Result<std::process::ExitCode>{anyhow::bail!("x")}
