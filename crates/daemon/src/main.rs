//! `nvmeof-tgt`: the NVMe-over-Fabrics target daemon.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

/// Serve NVMe namespaces to hosts over NVMe/TCP.
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "Examples:\n  nvmeof-tgt --config configs/loopback.toml\n  \
        nvmeof-tgt --config configs/loopback.toml --stats stats.jsonl --stats-interval 1s\n\n\
        Signals: SIGHUP reads the config again, SIGUSR1 logs what is held and what was \
        counted, SIGTERM and SIGINT \
        drain and stop.\nExit status: 0 stopped in good order, 1 failed, 2 the config or the \
        command line is wrong."
)]
struct Args {
    /// Config file (TOML); configs/target.toml documents every key
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Write statistics to this file as JSON lines, a sample an interval and the sums at the end;
    /// docs/stats.md tells what they mean. A file that is there is lost
    #[arg(long, value_name = "FILE")]
    stats: Option<PathBuf>,
    /// Time from one sample to the next: a number and ms, s, min, h; 10ms to 1h
    #[arg(long, value_name = "TIME", default_value = "100ms", requires = "stats")]
    stats_interval: String,
    /// Check the config, say what it would cost, and stop
    #[arg(long)]
    check: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let stats = args.stats.as_deref().map(|file| (file, args.stats_interval.as_str()));
    nvmeof_tgt::run(&args.config, args.check, stats)
}
