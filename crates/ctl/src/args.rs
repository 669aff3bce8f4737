//! The command line.

use std::path::PathBuf;

use clap::Parser;

use crate::commands::Command;

/// Control a running nvmeof-tgt.
#[derive(Debug, Parser)]
#[command(
    name = "nvmeofctl",
    version,
    after_help = "Examples:\n  nvmeofctl status\n  nvmeofctl --api unix:/tmp/api.sock stats --json\n\n\
        Exit status: 0 done, 1 refused or failed, 2 the command line is wrong."
)]
pub struct CtlArgs {
    /// URL of the daemon's API: unix:PATH, or http://ADDRESS:PORT
    #[arg(
        long,
        global = true,
        env = "NVMEOFCTL_API",
        value_name = "URL",
        default_value_t = format!("unix:{}", nvmeof_api::DEFAULT_SOCKET)
    )]
    pub api: String,
    /// File with the token that the daemon requires over TCP
    #[arg(long, global = true, env = "NVMEOFCTL_TOKEN_FILE", value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Write JSON, as returned by the API
    #[arg(long, global = true)]
    pub json: bool,
    /// Command to run.
    #[command(subcommand)]
    pub command: Command,
}
