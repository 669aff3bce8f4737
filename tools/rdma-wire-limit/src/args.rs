//! The command line.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand, ValueEnum};
use serde::{Deserialize, Serialize};

/// Default listen address of a server.
pub(crate) const PORT: u16 = 18515;
/// Maximum bytes of a request.
pub(crate) const MAX_BLOCK: u32 = 16 << 20;
/// Maximum number of outstanding requests.
pub(crate) const MAX_DEPTH: u32 = 4096;
/// Maximum duration: the kernel stores every completion event until the end (README).
const MAX_TIME: Duration = Duration::from_secs(600);

/// Raw RDMA READ and WRITE between two ends: the maximum bandwidth and minimum latency of a path.
#[derive(Debug, Parser)]
#[command(version, after_help = EXAMPLE)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) end: End,
}

const EXAMPLE: &str = "\
Example:
  on one machine:    rdma-wire-limit server
  on the other one:  rdma-wire-limit client 10.0.1.1 --op read --bs 128k --qd 32 --time 10s --json read.json

Exit codes: 0 success, 1 failure, 2 wrong use.";

#[derive(Debug, Subcommand)]
pub(crate) enum End {
    /// Provides memory to clients, one after the other
    #[command(after_help = "Example: rdma-wire-limit server --device mlx5_0")]
    Server(ServerArgs),
    /// Reads from or writes to a server's memory, and measures
    #[command(
        after_help = "Example: rdma-wire-limit client 10.0.1.1 --op write --bs 4k --qd 1 --time 5s"
    )]
    Client(ClientArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct ServerArgs {
    /// Address and TCP port for clients; the measured path is that of --device
    #[arg(long, default_value_t = SocketAddr::from(([0, 0, 0, 0], PORT)))]
    pub(crate) listen: SocketAddr,
    /// Stop after the first client
    #[arg(long)]
    pub(crate) once: bool,
    /// Maximum memory that a client can request
    #[arg(long, value_name = "SIZE", default_value = "1g", value_parser = size)]
    pub(crate) memory: u64,
    #[command(flatten)]
    pub(crate) path: PathArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ClientArgs {
    /// The server: ADDRESS, or ADDRESS:PORT ([ADDRESS]:PORT for IPv6)
    #[arg(value_parser = server)]
    pub(crate) server: SocketAddr,
    /// Measured operation
    #[arg(long, value_enum, default_value_t = Op::Read)]
    pub(crate) op: Op,
    /// Bytes of a request, up to 16m
    #[arg(long, value_name = "SIZE", default_value = "128k", value_parser = block)]
    pub(crate) bs: u32,
    /// Requests outstanding
    #[arg(long, value_name = "N", default_value_t = 32,
          value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_DEPTH)))]
    pub(crate) qd: u32,
    /// Measured time, up to 600s
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = time)]
    pub(crate) time: Duration,
    /// Time to run before the measurement
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = ramp)]
    pub(crate) ramp: Duration,
    /// Also write the result here
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Method of waiting for completions
    #[arg(long, value_enum, default_value_t = Wait::Spin)]
    pub(crate) wait: Wait,
    #[command(flatten)]
    pub(crate) path: PathArgs,
}

/// The device and its settings.
#[derive(Debug, clap::Args)]
pub(crate) struct PathArgs {
    /// RDMA device; required if there are several
    #[arg(long, value_name = "NAME")]
    pub(crate) device: Option<String>,
    /// Port of the device
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) device_port: u8,
    /// Index in the device's table of addresses [default: its first IPv4 address over RoCE v2]
    #[arg(long, value_name = "N")]
    pub(crate) gid_index: Option<u8>,
    /// Largest packet, 256 to 4096 bytes [default: that of the network interface]
    #[arg(long, value_name = "BYTES")]
    pub(crate) mtu: Option<Mtu>,
    /// RDMA READs outstanding in the device; further ones wait in its send queue
    #[arg(long, value_name = "N", default_value_t = 16,
          value_parser = clap::value_parser!(u8).range(1..))]
    pub(crate) reads: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Op {
    /// RDMA READ: data from the server
    Read,
    /// RDMA WRITE: data to the server
    Write,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Wait {
    /// Polls continuously: takes a core
    Spin,
    /// Sleeps until an event of the device: each costs a system call and a wake-up
    Event,
}

/// Bytes of data in an RDMA packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
pub(crate) enum Mtu {
    #[value(name = "256")]
    B256,
    #[value(name = "512")]
    B512,
    #[value(name = "1024")]
    B1024,
    #[value(name = "2048")]
    B2048,
    #[value(name = "4096")]
    B4096,
}

impl Mtu {
    /// All values, the largest first.
    pub(crate) const ALL: [Self; 5] =
        [Self::B4096, Self::B2048, Self::B1024, Self::B512, Self::B256];

    pub(crate) fn bytes(self) -> u32 {
        match self {
            Self::B256 => 256,
            Self::B512 => 512,
            Self::B1024 => 1024,
            Self::B2048 => 2048,
            Self::B4096 => 4096,
        }
    }
}

/// Parses `512`, `4k`, `1m`, `1g`; powers of 1024.
fn size(text: &str) -> Result<u64, String> {
    let lower = text.to_ascii_lowercase();
    let digits = lower.trim_end_matches(['k', 'm', 'g']);
    let shift = match &lower[digits.len()..] {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        _ => return Err("give bytes, or a number with k, m or g (as in 128k)".to_owned()),
    };
    let number: u64 = digits
        .parse()
        .map_err(|_| "give bytes, or a number with k, m or g (as in 128k)".to_owned())?;
    number.checked_mul(1 << shift).ok_or_else(|| "this is more than there is".to_owned())
}

fn block(text: &str) -> Result<u32, String> {
    match u32::try_from(size(text)?) {
        Ok(bytes @ 1..=MAX_BLOCK) => Ok(bytes),
        _ => Err("a request is of 1 byte to 16m".to_owned()),
    }
}

/// Parses `10s`, `500ms`, `1m`; a plain number is seconds.
fn ramp(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "" | "s" => Duration::from_secs(1),
        "ms" => Duration::from_millis(1),
        "m" => Duration::from_secs(60),
        _ => return Err("give a time as 10s, 500ms or 1m".to_owned()),
    };
    let number: u32 = digits.parse().map_err(|_| "give a time as 10s, 500ms or 1m".to_owned())?;
    let time = unit * number;
    if time > MAX_TIME { Err("at most 600s".to_owned()) } else { Ok(time) }
}

fn time(text: &str) -> Result<Duration, String> {
    let time = ramp(text)?;
    if time.is_zero() { Err("must be longer than nothing".to_owned()) } else { Ok(time) }
}

fn server(text: &str) -> Result<SocketAddr, String> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Ok(SocketAddr::new(address, PORT));
    }
    text.parse().map_err(|_| "give the server's IP address, with or without :PORT".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
        let args = ["rdma-wire-limit", "client", "10.0.1.1", "--op", "write", "--bs", "4k"];
        let End::Client(client) = Args::parse_from(args).end else {
            panic!("a client was asked for")
        };
        assert_eq!((client.op, client.bs, client.qd), (Op::Write, 4096, 32));
        assert_eq!(client.server, SocketAddr::from(([10, 0, 1, 1], PORT)));
        assert_eq!(client.time, Duration::from_secs(10));
    }

    #[test]
    fn sizes_and_times() {
        assert_eq!(size("128k"), Ok(128 << 10));
        assert_eq!(size("1G"), Ok(1 << 30));
        for wrong in ["", "k", "1kk", "1x", "-1", "99999999999999g"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
        assert_eq!(block("16m"), Ok(16 << 20));
        assert!(block("0").is_err() && block("17m").is_err());
        assert_eq!(time("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(time("2"), Ok(Duration::from_secs(2)));
        assert!(time("0s").is_err() && time("1h").is_err() && time("11m").is_err());
        assert_eq!(ramp("0s"), Ok(Duration::ZERO));
    }

    #[test]
    fn a_server_may_be_named_with_its_port() {
        assert_eq!(server("10.0.1.1:7"), Ok(SocketAddr::from(([10, 0, 1, 1], 7))));
        assert!(server("[::1]:7").is_ok() && server("::1").is_ok());
        assert!(server("somewhere").is_err());
    }
}
