//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use nvmeof_initiator::{Address, Endpoint};
use nvmeof_wire::Nqn;

use crate::units::{self, CpuList, Mix, NamespaceList, Rate};

const RUN_EXAMPLE: &str = "\
Example:
  nvmeof-perf run --connect tcp://127.0.0.1:4420/nqn.2026-11.io.nvmeof-tgt:demo \\
      --rw randrw:70 --bs 4k --qd 32 --jobs 2 --time 10s --ramp 2s --json result.json
  nvmeof-perf run --connect rdma://10.0.1.1:4420/nqn.2026-11.io.nvmeof-tgt:demo --rw randread --bs 128k

Exit code: 0 success, 1 an I/O or verification error or no connection, 2 wrong usage.";

const DISCOVER_EXAMPLE: &str = "\
Example:
  nvmeof-perf discover --connect tcp://127.0.0.1:4420
  nvmeof-perf discover --connect rdma://10.0.1.1:4420";

/// Load generator and verifier for NVMe-oF targets.
#[derive(Debug, Parser)]
#[command(name = "nvmeof-perf", version, arg_required_else_help = true, after_help = RUN_EXAMPLE)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Generate load, measure it, and verify it if asked to.
    Run(Box<RunArgs>),
    /// List what a target's discovery service offers.
    Discover(DiscoverArgs),
}

/// Who the host is and how it connects.
#[derive(Debug, Args)]
pub(crate) struct HostArgs {
    /// Host NQN [default: /etc/nvme/hostnqn if there is one, else a random UUID].
    #[arg(long, value_name = "NQN", value_parser = nqn)]
    pub(crate) hostnqn: Option<Nqn>,
    /// Host identifier, a UUID [default: /etc/nvme/hostid if there is one, else that of the host NQN].
    #[arg(long, value_name = "UUID", value_parser = uuid)]
    pub(crate) hostid: Option<[u8; 16]>,
    /// Protect PDU headers with a digest; TCP only.
    #[arg(long)]
    pub(crate) hdgst: bool,
    /// Protect data with a digest; TCP only.
    #[arg(long)]
    pub(crate) ddgst: bool,
    /// Keep Alive Timeout; 0 turns it off.
    #[arg(long, value_name = "TIME", default_value = "15s", value_parser = units::duration)]
    pub(crate) keep_alive: Duration,
}

/// `nvmeof-perf run`.
#[derive(Debug, Args)]
#[command(after_help = RUN_EXAMPLE, args_override_self = true)]
pub(crate) struct RunArgs {
    /// Subsystem to load, by TCP (tcp://) or RDMA (rdma://); may be given several times. An IPv6 address goes
    /// in brackets.
    #[arg(long, required = true, value_name = "tcp|rdma://ADDR:PORT/SUBNQN")]
    pub(crate) connect: Vec<Endpoint>,
    /// Namespaces, as numbers and ranges (1-3,8) [default: all of each subsystem].
    #[arg(long, value_name = "LIST", value_parser = units::namespaces)]
    pub(crate) nsid: Option<NamespaceList>,
    /// Workload: read, write, randread, randwrite, rw:PCT or randrw:PCT; PCT is the share of reads.
    #[arg(long, value_name = "WORKLOAD", value_parser = units::mix)]
    pub(crate) rw: Mix,
    /// Bytes of an I/O, a multiple of the namespace's block size.
    #[arg(long, value_name = "SIZE", default_value = "4k", value_parser = nonzero_size)]
    pub(crate) bs: u64,
    /// I/Os kept outstanding, per namespace and job.
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub(crate) qd: u32,
    /// I/Os kept outstanding per job over all namespaces, which take turns: what fio calls iodepth.
    #[arg(long, value_name = "N", conflicts_with = "qd", value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub(crate) shared_qd: Option<u32>,
    /// Threads, each with connections of its own.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) jobs: u16,
    /// How long to measure.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = nonzero_time)]
    pub(crate) time: Duration,
    /// End after this many I/Os, if the time is not up before.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) ios: Option<u64>,
    /// How long to run before measuring.
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = units::duration)]
    pub(crate) ramp: Duration,
    /// Bytes of each namespace to use [default: all from --offset on].
    #[arg(long, value_name = "SIZE", value_parser = nonzero_size)]
    pub(crate) size: Option<u64>,
    /// First byte of each namespace to use.
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = units::size)]
    pub(crate) offset: u64,
    /// At most this much in total: I/Os a second (50k), or 500MiB/s, or 10gbit/s.
    #[arg(long, value_name = "RATE", value_parser = units::rate)]
    pub(crate) rate: Option<Rate>,
    /// Seed of addresses and verified data; verify what an earlier run wrote with the same seed.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Write blocks that carry their address, seed, generation and a checksum, and check every block read.
    #[arg(long)]
    pub(crate) verify: bool,
    /// CPUs to pin the jobs to, in turn (0-3,8).
    #[arg(long, value_name = "LIST", value_parser = units::cpus)]
    pub(crate) cpus: Option<CpuList>,
    /// Write the result to this file as JSON; - is standard output.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) host: HostArgs,
}

/// `nvmeof-perf discover`.
#[derive(Debug, Args)]
#[command(after_help = DISCOVER_EXAMPLE)]
pub(crate) struct DiscoverArgs {
    /// Discovery service to ask.
    #[arg(long, value_name = "tcp|rdma://ADDR:PORT")]
    pub(crate) connect: Address,
    /// Write the entries to this file as JSON; - is standard output.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) host: HostArgs,
}

fn nqn(text: &str) -> Result<Nqn, String> {
    Nqn::relaxed(text).map_err(|error| error.to_string())
}

/// A UUID with or without hyphens.
pub(crate) fn uuid(text: &str) -> Result<[u8; 16], String> {
    let digits: String = text.trim().chars().filter(|&c| c != '-').collect();
    u128::from_str_radix(&digits, 16)
        .ok()
        .filter(|_| digits.len() == 32)
        .map(u128::to_be_bytes)
        .ok_or_else(|| format!("`{text}` is not a UUID (xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx)"))
}

fn nonzero_size(text: &str) -> Result<u64, String> {
    match units::size(text)? {
        0 => Err("it must be more than 0".into()),
        size => Ok(size),
    }
}

fn nonzero_time(text: &str) -> Result<Duration, String> {
    let time = units::duration(text)?;
    if time.is_zero() { Err("it must be more than 0".into()) } else { Ok(time) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn parse(args: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(std::iter::once("nvmeof-perf").chain(args.split_whitespace()))
    }

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_option_of_a_run() {
        let cli = parse(
            "run --connect tcp://[::1]:4420/a --connect rdma://h:1/b --nsid 2 --rw randrw:70 --bs 128k \
             --qd 8 --jobs 2 --time 3s --ramp 1s --size 1g --offset 1m --rate 10k --seed 9 --ios 7 --hostnqn nqn.x \
             --hostid 00000000-0000-0000-0000-0000000000ff --hdgst --ddgst --verify --cpus 0-1 --json -",
        )
        .unwrap();
        let Command::Run(run) = cli.command else { panic!("not a run") };
        assert_eq!(run.connect.len(), 2);
        assert_eq!((run.bs, run.qd, run.jobs), (131_072, 8, 2));
        assert_eq!(run.nsid, Some(NamespaceList(vec![2])));
        assert_eq!((run.time, run.ramp), (Duration::from_secs(3), Duration::from_secs(1)));
        assert_eq!((run.size, run.offset, run.seed), (Some(1 << 30), 1 << 20, 9));
        assert_eq!(run.host.hostid.unwrap()[15], 255);
        assert_eq!(run.ios, Some(7));
        assert_eq!(run.connect[1].address.fabric, nvmeof_initiator::Fabric::Rdma);
        assert!(run.host.hdgst && run.host.ddgst && run.verify);
    }

    #[test]
    fn wrong_usage_is_said_and_is_exit_code_2() {
        for (args, says) in [
            ("run --rw read", "--connect"),
            ("run --connect tcp://h:1/x", "--rw"),
            ("run --connect h:1/x --rw read", "rdma://ADDR:PORT/SUBNQN"),
            ("run --connect rdma://h:1 --rw read", "names no subsystem"),
            ("run --connect tcp://h:1 --rw read", "names no subsystem"),
            ("run --connect tcp://h:1/x --rw readwrite", "randrw:PCT"),
            ("run --connect tcp://h:1/x --rw read --bs 4q", "k, m, g or t"),
            ("run --connect tcp://h:1/x --rw read --bs 0", "more than 0"),
            ("run --connect tcp://h:1/x --rw read --qd 0", "0 is not in 1..=65536"),
            ("run --connect tcp://h:1/x --rw read --time 5x", "500ms"),
            ("run --connect tcp://h:1/x --rw read --nsid 0", "from 1 on"),
            ("run --connect tcp://h:1/x --rw read --qd 2 --shared-qd 3", "--shared-qd"),
            ("run --connect tcp://h:1/x --rw read --hostid 12", "UUID"),
            ("run --connect tcp://h:1/x --rw read --sise 1", "--size"),
            ("discover --connect tcp://h:1/nqn", "discovery address"),
        ] {
            let error = parse(args).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{args}");
            assert!(error.to_string().contains(says), "{args}: {error}");
        }
    }
}
