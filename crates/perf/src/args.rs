//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, Args, Parser, Subcommand, ValueEnum};
use nvmeof_initiator::{Address, Endpoint};
use nvmeof_wire::Nqn;

use crate::target::{DeviceSpec, is_same_target};
use crate::units::{self, CpuList, IoMix, NamespaceList, Percentiles, RateLimits};
use crate::workload::distribution::{self, Distribution};
use crate::workload::sizes::{self, BlockSplit};
use crate::{engines, hold, scale, steady};

const RUN_EXAMPLE: &str = "\
Example:
  nvmeof-perf run --connect tcp://127.0.0.1:4420/nqn.2026-11.io.nvmeof-tgt:demo \\
      --rw randrw:70 --bs 4k --qd 32 --jobs 2 --time 10s --ramp 2s --json result.json
  nvmeof-perf run --connect rdma://10.0.1.1:4420/nqn.2026-11.io.nvmeof-tgt:demo --rw randread --bs 128k
  nvmeof-perf run --device /dev/nvme1n1 --device /dev/nvme2n1 --stripe 8k --rw randread

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
    /// Generate load, measure it, and optionally verify it.
    Run(Box<RunArgs>),
    /// Test a drive by the SNIA performance test specification until its state is steady.
    Steady(steady::SteadyArgs),
    /// Compare I/O methods: system calls, io_uring and the VFIO driver.
    Engines(engines::EnginesArgs),
    /// Measure how bandwidth grows with the number of drives.
    Scale(scale::ScaleArgs),
    /// Connect I/O queues and keep them idle, to measure what they cost a target.
    Hold(hold::HoldArgs),
    /// List the entries of a target's discovery service.
    Discover(DiscoverArgs),
}

/// Identity of the host and its connection options.
#[derive(Debug, Clone, Args)]
pub(crate) struct HostArgs {
    /// Host NQN [default: /etc/nvme/hostnqn if there is one, else a random UUID].
    #[arg(long, value_name = "NQN", value_parser = nqn)]
    pub(crate) hostnqn: Option<Nqn>,
    /// Host identifier, a UUID [default: /etc/nvme/hostid if there is one, else that of the host
    /// NQN].
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

/// Targets of the load: namespaces over a fabric, devices of this machine, or both.
#[derive(Debug, Clone, Args)]
#[command(group = ArgGroup::new("where").required(true).multiple(true).args(["connect", "device"]))]
pub(crate) struct TargetArgs {
    /// Subsystem to load, by TCP (tcp://) or RDMA (rdma://); may be given several times. An IPv6
    /// address goes in brackets.
    #[arg(long, value_name = "tcp|rdma://ADDR:PORT/SUBNQN")]
    pub(crate) connect: Vec<Endpoint>,
    /// Namespaces of the subsystems, as numbers and ranges (1-3,8) [default: all of each
    /// subsystem].
    #[arg(long, value_name = "LIST", value_parser = units::namespaces)]
    pub(crate) nsid: Option<NamespaceList>,
    /// Device of this machine to load: a file or block device, a drive under the VFIO driver
    /// (pci:0000:61:00.0, or pci:0000:61:00.0/2 for its namespace 2), null or ram:SIZE; may be
    /// given several times.
    #[arg(long, value_name = "PATH|pci:ADDRESS|null|ram:SIZE")]
    pub(crate) device: Vec<DeviceSpec>,
    /// Load the devices as one, striped over them in chunks of this many bytes.
    #[arg(long, value_name = "SIZE", requires = "device", value_parser = nonzero_size)]
    pub(crate) stripe: Option<u64>,
    /// Overwrite this device even if it is not empty. Takes any form that --device takes for it;
    /// may be given several times. All data on the device is lost.
    #[arg(long, value_name = "DEVICE")]
    pub(crate) destroy_data: Vec<String>,
    #[command(flatten)]
    pub(crate) host: HostArgs,
}

impl TargetArgs {
    /// Devices of this machine, for reading.
    pub(crate) fn devices(device: Vec<DeviceSpec>) -> Self {
        let host = HostArgs {
            hostnqn: None,
            hostid: None,
            hdgst: false,
            ddgst: false,
            keep_alive: Duration::ZERO,
        };
        let (connect, destroy_data) = (Vec::new(), Vec::new());
        Self { connect, nsid: None, device, stripe: None, destroy_data, host }
    }

    /// Returns true if `--destroy-data` names this device or subsystem in any form.
    pub(crate) fn destroys(&self, name: &str) -> bool {
        self.destroy_data.iter().any(|one| is_same_target(one, name))
    }
}

/// `nvmeof-perf run`.
#[derive(Debug, Args)]
#[command(after_help = RUN_EXAMPLE, args_override_self = true)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) target: TargetArgs,
    /// Workload: read, write, randread, randwrite, rw:PCT or randrw:PCT; PCT is the share of reads.
    /// Or trim, randtrim, and trimwrite or randtrimwrite, which trim each block and then write it.
    #[arg(long, value_name = "WORKLOAD", value_parser = units::mix)]
    pub(crate) rw: IoMix,
    /// Bytes of an I/O, a multiple of the namespace's block size.
    #[arg(long, value_name = "SIZE", default_value = "4k", value_parser = nonzero_size)]
    pub(crate) bs: u64,
    /// Instead of --bs: I/Os of several sizes, with their shares in percent: 4k/70:64k/30. After a
    /// comma, other sizes for writes and trims.
    #[arg(long, value_name = "SPLIT", overrides_with = "bs", conflicts_with = "verify", value_parser = sizes::block_split)]
    pub(crate) bssplit: Option<BlockSplit>,
    /// Distribution of random I/Os: random, zipf:THETA, pareto:SHARE, hot:VISITS/SPACE (hot:90/10),
    /// zoned:VISITS/SPACE:... in percent, or zoned_abs:VISITS/SIZE:...
    #[arg(long, value_name = "HOW", default_value = "random", value_parser = distribution::distribution)]
    pub(crate) random_distribution: Distribution,
    /// I/Os kept outstanding, per namespace and job.
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub(crate) qd: u32,
    /// I/Os kept outstanding per job over all namespaces, which take turns: fio's iodepth.
    #[arg(long, value_name = "N", conflicts_with = "qd", value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub(crate) shared_qd: Option<u32>,
    /// Threads, each with its own connections.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) jobs: u16,
    /// Maximum time to measure [default: 10s, or without end with --io-size, --loops and
    /// --intervals].
    #[arg(long, value_name = "TIME", value_parser = nonzero_time)]
    pub(crate) time: Option<Duration>,
    /// End after this many bytes, over all namespaces and jobs together, unless the time expires
    /// first.
    #[arg(long, value_name = "SIZE", value_parser = nonzero_size)]
    pub(crate) io_size: Option<u64>,
    /// End when all jobs together have loaded the used part of every namespace this many times.
    #[arg(long, value_name = "N", conflicts_with = "io_size", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) loops: Option<u32>,
    /// Save the progress of a run with --io-size or --loops in this file; an interrupted run
    /// resumes from there.
    #[arg(long, value_name = "FILE", conflicts_with = "verify")]
    pub(crate) resume: Option<PathBuf>,
    /// End after this many I/Os, unless the time expires first.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) ios: Option<u64>,
    /// Time to run before measuring.
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = units::duration)]
    pub(crate) ramp: Duration,
    /// Write a line "load begins" to standard error when everything is connected and the ramp
    /// begins.
    #[arg(long)]
    pub(crate) announce: bool,
    /// Count in intervals that lines of standard input start. A line is a name, or - to count
    /// nothing, and then NSID=DEPTH pairs: from now on each job keeps DEPTH I/Os of that namespace
    /// outstanding, up to --qd. When the next line arrives, or the last one has arrived, a line of
    /// JSON on standard output reports the I/Os completed in the interval; nothing else is written
    /// there. The end of the input ends the run.
    #[arg(
        long,
        conflicts_with_all = [
            "time", "ramp", "verify", "resume", "io_size", "loops", "ios", "shared_qd", "percentiles", "output_format"
        ]
    )]
    pub(crate) intervals: bool,
    /// Bytes of each namespace to use [default: all from --offset on].
    #[arg(long, value_name = "SIZE", value_parser = nonzero_size)]
    pub(crate) size: Option<u64>,
    /// First byte of each namespace to use.
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = units::size)]
    pub(crate) offset: u64,
    /// Maximum rate in total: I/Os a second (50k), or 500MiB/s, or 10gbit/s; or several of them
    /// (50k,500MiB/s).
    #[arg(long, value_name = "RATE", value_parser = units::rates)]
    pub(crate) rate: Option<RateLimits>,
    /// Maximum rate of reads, as --rate; writes that are not limited continue.
    #[arg(long, value_name = "RATE", value_parser = units::rates)]
    pub(crate) rate_read: Option<RateLimits>,
    /// Maximum rate of writes, as --rate; reads that are not limited continue.
    #[arg(long, value_name = "RATE", value_parser = units::rates)]
    pub(crate) rate_write: Option<RateLimits>,
    /// Pause of a job after every --thinktime-blocks I/Os, once they have completed.
    #[arg(long, value_name = "TIME", value_parser = nonzero_time)]
    pub(crate) thinktime: Option<Duration>,
    /// I/Os of a job between two pauses.
    #[arg(long, value_name = "N", default_value_t = 1, requires = "thinktime", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) thinktime_blocks: u32,
    /// Give every write its own contents, instead of those that its buffer has.
    #[arg(long, conflicts_with = "verify")]
    pub(crate) refill_buffers: bool,
    /// Seed of addresses and verified data; with the seed of an earlier run, verifies the data
    /// which that run wrote.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Write blocks that carry their address, seed, generation and a checksum, and check every
    /// block read.
    #[arg(long)]
    pub(crate) verify: bool,
    /// CPUs to pin the jobs to, in turn (0-3,8).
    #[arg(long, value_name = "LIST", value_parser = units::cpus)]
    pub(crate) cpus: Option<CpuList>,
    /// Latency percentiles to report, in percent (50,99,99.99).
    #[arg(long, value_name = "LIST", default_value = "50,99,99.9", value_parser = units::percentiles)]
    pub(crate) percentiles: Percentiles,
    /// Write the result to this file as JSON; - is standard output.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Form of the JSON: that of nvmeof-perf, or that of fio 3 for tools that read it. fio-json
    /// without --json goes to standard output.
    #[arg(long, value_name = "FORM", value_enum, default_value_t = OutputFormat::Json)]
    pub(crate) output_format: OutputFormat,
}

/// Form of a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OutputFormat {
    /// That of nvmeof-perf, for scripts.
    Json,
    /// That of fio 3.
    FioJson,
}

/// `nvmeof-perf discover`.
#[derive(Debug, Args)]
#[command(after_help = DISCOVER_EXAMPLE)]
pub(crate) struct DiscoverArgs {
    /// Discovery service to query.
    #[arg(long, value_name = "tcp|rdma://ADDR:PORT")]
    pub(crate) connect: Address,
    /// Write the entries to this file as JSON; - is standard output.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) host: HostArgs,
}

fn nqn(text: &str) -> Result<Nqn, String> {
    Nqn::new(text).map_err(|error| error.to_string())
}

/// Parses a UUID with or without hyphens.
pub(crate) fn uuid(text: &str) -> Result<[u8; 16], String> {
    let digits: String = text.trim().chars().filter(|&c| c != '-').collect();
    u128::from_str_radix(&digits, 16)
        .ok()
        .filter(|_| digits.len() == 32)
        .map(u128::to_be_bytes)
        .ok_or_else(|| format!("`{text}` is not a UUID (xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx)"))
}

pub(crate) fn nonzero_size(text: &str) -> Result<u64, String> {
    match units::size(text)? {
        0 => Err("must be more than 0".into()),
        size => Ok(size),
    }
}

pub(crate) fn nonzero_time(text: &str) -> Result<Duration, String> {
    let time = units::duration(text)?;
    if time.is_zero() { Err("must be more than 0".into()) } else { Ok(time) }
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
        assert_eq!(run.target.connect.len(), 2);
        assert_eq!((run.bs, run.qd, run.jobs), (131_072, 8, 2));
        assert_eq!(run.target.nsid, Some(NamespaceList(vec![2])));
        assert_eq!((run.time, run.ramp), (Some(Duration::from_secs(3)), Duration::from_secs(1)));
        assert_eq!((run.size, run.offset, run.seed), (Some(1 << 30), 1 << 20, 9));
        assert_eq!(run.target.host.hostid.unwrap()[15], 255);
        assert_eq!(run.ios, Some(7));
        assert_eq!(run.target.connect[1].address.fabric, nvmeof_initiator::Fabric::Rdma);
        assert!(run.target.host.hdgst && run.target.host.ddgst && run.verify);
    }

    #[test]
    fn what_fio_users_know() {
        let cli = parse(
            "run --device null --rw randtrimwrite --bssplit 4k/70:64k/30 --random-distribution zipf:1.2 --io-size 1g \
             --rate 10k,1g/s --thinktime 5ms --thinktime-blocks 8 --refill-buffers --percentiles 50,99.99 \
             --resume state.json --output-format fio-json",
        )
        .unwrap();
        let Command::Run(run) = cli.command else { panic!("not a run") };
        assert_eq!(run.random_distribution, Distribution::Zipf(1.2));
        assert_eq!((run.io_size, run.time, run.thinktime_blocks), (Some(1 << 30), None, 8));
        assert_eq!(run.rate.unwrap().0.len(), 2);
        assert_eq!(run.percentiles.0, [50.0, 99.99]);
        assert_eq!(run.output_format, OutputFormat::FioJson);
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
            ("run --connect tcp://h:1/x --rw read --verify --bssplit 4k:8k", "--verify"),
            ("run --connect tcp://h:1/x --rw read --loops 2 --io-size 1g", "--io-size"),
            ("run --connect tcp://h:1/x --rw read --random-distribution zipf:0", "more than 0"),
            ("run --connect tcp://h:1/x --rw read --thinktime-blocks 2", "--thinktime"),
            ("run --connect tcp://h:1/x --rw read --percentiles 101", "50,99,99.99"),
            ("run --device tcp://h:1/x --rw read", "--connect takes that"),
            ("run --device null --rw read --stripe 0", "more than 0"),
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
