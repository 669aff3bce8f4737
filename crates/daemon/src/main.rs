//! `nvmeof-tgt`: the NVMe-over-Fabrics target daemon.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

/// Serve NVMe namespaces to hosts over NVMe/TCP.
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "Example:\n  nvmeof-tgt --config configs/loopback.toml\n\n\
        Signals: SIGHUP reads the config again, SIGUSR1 logs what is held, SIGTERM and SIGINT \
        drain and stop.\nExit status: 0 stopped in good order, 1 failed, 2 the config or the \
        command line is wrong."
)]
struct Args {
    /// Config file (TOML); configs/target.toml documents every key
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Check the config, say what it would cost, and stop
    #[arg(long)]
    check: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    nvmeof_tgt::run(&args.config, args.check)
}
