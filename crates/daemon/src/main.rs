//! `nvmeof-tgt`: the NVMe-over-Fabrics target daemon.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use nvmeof_console::complain;
use nvmeof_tgt::drives;

/// Serve NVMe namespaces to hosts over NVMe/TCP and NVMe/RDMA.
#[derive(Debug, Parser)]
#[command(
    version,
    long_version = nvmeof_build_info::VERSION,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "Examples:\n  nvmeof-tgt --config configs/loopback.toml\n  \
        nvmeof-tgt --config configs/loopback.toml --stats stats.jsonl --stats-interval 1s\n  \
        nvmeof-tgt drives list\n\n\
        Signals: SIGHUP reloads the config, SIGUSR1 logs resources and counters, \
        SIGTERM and SIGINT drain and stop.\n\
        Exit status: 0 stopped cleanly, 1 failed, 2 the config or the command line is wrong."
)]
struct Args {
    /// Config file (TOML); configs/target.toml documents every key
    #[arg(long, value_name = "FILE", required = true)]
    config: Option<PathBuf>,
    /// Write statistics to this file as JSON lines, one sample per interval and the sums at the
    /// end; docs/stats.md documents them. An existing file is overwritten
    #[arg(long, value_name = "FILE")]
    stats: Option<PathBuf>,
    /// Time between samples: a number and ms, s, min, h; 10ms to 1h
    #[arg(long, value_name = "TIME", default_value = "100ms", requires = "stats")]
    stats_interval: String,
    /// Check the config, print its costs, and exit
    #[arg(long)]
    check: bool,
    #[command(subcommand)]
    command: Option<Command>,
}

/// Subcommands of the daemon.
#[derive(Debug, Subcommand)]
enum Command {
    /// Show this machine's NVMe drives, bind them, return them to the kernel, erase them
    #[command(subcommand)]
    Drives(drives::Command),
}

fn main() -> ExitCode {
    let args = match nvmeof_console::parse() {
        Ok(args) => args,
        Err(code) => return code,
    };
    nvmeof_console::status("nvmeof-tgt", run(args))
}

fn run(args: Args) -> ExitCode {
    if let Err(error) = nvmeof_console::outlive_file_limits() {
        complain!("nvmeof-tgt: cannot handle SIGXFSZ: {error}");
        return ExitCode::FAILURE;
    }
    if let Some(Command::Drives(command)) = &args.command {
        return drives::run(command);
    }
    // Without a subcommand the parser requires `--config`.
    let Some(config) = args.config else { return ExitCode::from(2) };
    let stats = args.stats.as_deref().map(|file| (file, args.stats_interval.as_str()));
    nvmeof_tgt::run(&config, args.check, stats)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parses(line: &str) -> bool {
        Args::try_parse_from(line.split(' ')).is_ok()
    }

    #[test]
    fn the_command_lines_that_scripts_rely_on() {
        for line in [
            "nvmeof-tgt --config a.toml",
            "nvmeof-tgt --config a.toml --check",
            "nvmeof-tgt --config a.toml --stats b --stats-interval 1s",
            "nvmeof-tgt drives list",
            "nvmeof-tgt drives list --json --root-complex 0000:60=42.6",
            "nvmeof-tgt drives bind 0000:61:00.0 SERIAL",
            "nvmeof-tgt drives unbind --dry-run SERIAL",
            "nvmeof-tgt drives format --lbaf 1 --destroy-data SERIAL",
            "nvmeof-tgt drives format --block-size 4k --secure-erase user-data --destroy-data SERIAL",
            "nvmeof-tgt drives sanitize --action crypto-erase --destroy-data SERIAL",
        ] {
            assert!(parses(line), "{line}");
        }
        for line in [
            "nvmeof-tgt",
            "nvmeof-tgt --check",
            "nvmeof-tgt --config a.toml drives list",
            "nvmeof-tgt drives",
            "nvmeof-tgt drives bind",
            "nvmeof-tgt drives list --root-complex 60=1",
            "nvmeof-tgt drives list --root-complex 0000:60=0",
            "nvmeof-tgt drives format --destroy-data SERIAL",
            "nvmeof-tgt drives format --lbaf 1 --block-size 512 --destroy-data SERIAL",
            "nvmeof-tgt drives format --block-size 520 --destroy-data SERIAL",
            "nvmeof-tgt drives format --lbaf 1 --destroy-data",
            "nvmeof-tgt drives sanitize --destroy-data SERIAL",
        ] {
            assert!(!parses(line), "{line}");
        }
    }
}
