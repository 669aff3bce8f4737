//! The config: `target.toml`, read, checked and turned into values the daemon can use as they are.
//!
//! ```text
//! text --parse--> RawConfig (each value with its place) --validate--> Config
//!                     |                                     |
//!                     '----------> Problem(s) <-------------'   file:line:column: key: what; allowed
//! ```
//!
//! Unknown keys are refused. Whatever is wrong is told with its line, all of it at once, and a
//! config with any problem is not used at all: not at start, and not on reload.
//! `configs/target.toml` documents every key; tests hold it to the code.

mod cpus;
pub(crate) mod identity;
pub(crate) mod loaded;
mod machine;
mod parse;
mod problem;
mod rate;
mod raw;
mod suggest;
#[cfg(test)]
mod tests;
mod units;
mod validate;

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nvmeof_core::block::fault::FaultPlan;
use nvmeof_core::block::{FileConfig, Latency};
use nvmeof_core::pci::Capacities;
use nvmeof_pacing::{PolicyConfig, TenantLimits};
use nvmeof_wire::Nqn;

use crate::limits::Limits;

pub use machine::Machine;
pub use problem::{ConfigError, Problem};
pub use units::show_size;

use loaded::Loaded;
use problem::Report;

/// A config that has been checked.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// CPUs to run a reactor on, in order; at least one.
    pub reactors: Vec<usize>,
    /// Reactors never sleep.
    pub busy_poll: bool,
    /// How long commands in flight may take to end when the daemon stops.
    pub drain_timeout: Duration,
    /// What is logged.
    pub log: LogLevel,
    /// In which form.
    pub log_format: LogFormat,
    /// Where it can be controlled; nowhere if not given.
    pub api: Option<Api>,
    /// Every bound, as configured and as derived.
    pub limits: Limits,
    /// How commands are admitted.
    pub pacing: PolicyConfig,
    /// What a host may have that is not among `hosts`.
    pub host_defaults: Share,
    /// Hosts with something of their own; no two are the same.
    pub hosts: Vec<Host>,
    /// Where hosts connect; at least one.
    pub listeners: Vec<Listener>,
    /// What to say of each listener, in order, if its port turns out to be taken.
    pub port_taken: Vec<Problem>,
    /// What is served, each device behind those it is made of.
    pub devices: Vec<Device>,
    /// What root complexes carry, where somebody has said so; only warnings depend on it.
    pub root_complexes: Capacities,
    /// What hosts see.
    pub subsystems: Vec<Subsystem>,
    /// Other discovery services that hosts are told of.
    pub referrals: Vec<Referral>,
    /// What is allowed but probably not meant; to be logged.
    pub warnings: Vec<Problem>,
}

/// What is logged: this and what is more severe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogLevel {
    /// Nothing.
    Off,
    /// What failed.
    Error,
    /// What may be wrong.
    Warn,
    /// What happened.
    Info,
    /// What led to it.
    Debug,
    /// Every step.
    Trace,
}

/// Where the daemon can be controlled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Api {
    /// Path of its UNIX socket.
    pub socket: PathBuf,
    /// Who may use it: the socket's permission bits.
    pub mode: u32,
    /// TCP addresses besides.
    pub listen: Vec<SocketAddr>,
    /// File with the token that is asked for over TCP; none is if not given.
    pub token_file: Option<PathBuf>,
    /// It may be open to whoever reaches it, and the token to whoever is on this machine.
    pub insecure: bool,
}

/// The form of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// An object of JSON.
    Json,
}

/// A fabric.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Fabric {
    /// NVMe/TCP.
    Tcp,
    /// NVMe/RDMA.
    Rdma,
}

/// Where hosts connect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listener {
    /// Its fabric.
    pub fabric: Fabric,
    /// Local address; may be the unspecified one.
    pub address: IpAddr,
    /// Port; 0 lets the system choose.
    pub port: u16,
    /// What only RDMA has; the defaults for another fabric.
    pub rdma: Rdma,
}

impl Listener {
    /// Whether both are at the same address, whatever their other keys; two that are at any port are not.
    #[must_use]
    pub fn is_at(&self, other: &Self) -> bool {
        let at = |one: &Self| (one.fabric, one.address, one.port);
        self.port != 0 && at(self) == at(other)
    }
}

/// How an RDMA listener's connections are set up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rdma {
    /// The RDMA device the address has to be at; any if none is named.
    pub device: Option<String>,
    /// The index in the device's GID table that the address has to be at; any if none is named.
    pub gid_index: Option<u8>,
    /// Traffic class of what is sent; the system's if none is given.
    pub traffic_class: Option<u8>,
    /// Times to try again when a host does not answer; what the host says if none is given.
    pub retry_count: Option<u8>,
    /// Times to try again when a host had no receive posted; 7 is for ever.
    pub rnr_retry_count: u8,
    /// Whether the connections of a reactor share their receives, where the device can.
    pub shared_receives: bool,
    /// Entries of a reactor's completion queue.
    pub completion_queue_depth: u32,
}

impl Default for Rdma {
    fn default() -> Self {
        Self {
            device: None,
            gid_index: None,
            traffic_class: None,
            retry_count: None,
            rnr_retry_count: 7,
            shared_receives: false,
            completion_queue_depth: 16384,
        }
    }
}

/// A block device to open. Two devices are the same if everything about them is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// Its name in the config; no two are the same.
    pub name: String,
    /// Bytes of a logical block: 512 or 4096; what stands on another device has that one's. `None` if
    /// only the open device knows: a drive, or what stands on one.
    pub block_size: Option<u32>,
    /// What it is made of.
    pub kind: DeviceKind,
}

/// What a device is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeviceKind {
    /// Nothing: reads zeroes, forgets writes.
    Null {
        /// Bytes.
        size: u64,
    },
    /// Memory, taken as it is written.
    Ram {
        /// Bytes.
        size: u64,
    },
    /// A file or a block device.
    File(FileConfig),
    /// Another device, slower.
    Delay {
        /// Name of the other device; it stands before this one.
        base: String,
        /// What is added to its own latency.
        latency: Latency,
        /// Seed of its jitter.
        seed: u64,
    },
    /// A range of another device.
    Split {
        /// Name of the other device; it stands before this one.
        base: String,
        /// First byte.
        offset: u64,
        /// Bytes; all that follow if not given.
        size: Option<u64>,
    },
    /// Several devices as one, in chunks dealt out in turn.
    Stripe {
        /// Their names, each once and in order; they stand before this one.
        members: Vec<String>,
        /// Bytes of a chunk.
        chunk: u64,
    },
    /// Another device, with faults.
    Fault {
        /// Name of the other device; it stands before this one.
        base: String,
        /// What goes wrong by itself.
        plan: FaultPlan,
        /// Whether it is not there.
        gone: bool,
    },
    /// A namespace of a drive that this process drives itself.
    Nvme(Drive),
}

/// A namespace of a drive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drive {
    /// The drive's PCI address: `0000:01:00.0`.
    pub pci: String,
    /// Its number on the drive.
    pub nsid: u32,
    /// Entries of a queue; the same for all namespaces of a drive.
    pub queue_depth: u16,
    /// How long a command may take; the same for all namespaces of a drive.
    pub io_timeout: Duration,
}

impl DeviceKind {
    /// Names of the devices that it stands on, directly.
    #[must_use]
    pub fn bases(&self) -> &[String] {
        match self {
            Self::Null { .. } | Self::Ram { .. } | Self::File(_) | Self::Nvme(_) => &[],
            Self::Delay { base, .. } | Self::Split { base, .. } | Self::Fault { base, .. } => {
                std::slice::from_ref(base)
            }
            Self::Stripe { members, .. } => members,
        }
    }
}

/// What hosts see: an NVM subsystem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subsystem {
    /// Its name; no two are the same.
    pub nqn: Nqn,
    /// Hosts that may connect; `None`: any.
    pub hosts: Option<BTreeSet<Nqn>>,
    /// Serial number: 1 to 20 printable ASCII characters.
    pub serial: String,
    /// Model number: 1 to 40 printable ASCII characters.
    pub model: String,
    /// Lowest controller ID given out.
    pub cntlid_min: u16,
    /// Highest controller ID given out.
    pub cntlid_max: u16,
    /// Its namespaces, each over a device of its own.
    pub namespaces: Vec<Namespace>,
}

/// A namespace of a subsystem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Namespace {
    /// Its number in the subsystem.
    pub nsid: u32,
    /// Name of the device behind it; there is one of this name.
    pub device: String,
    /// Its share against other namespaces' while all have commands waiting.
    pub weight: u16,
    /// The rates it may have; bytes in flight are none of them.
    pub limits: TenantLimits,
    /// What hosts know it by; follows from what the device is made of if not given.
    pub uuid: Option<[u8; 16]>,
    /// The medium that `uuid` was saved for; on another it does not count.
    pub medium: Option<String>,
    /// Follows from the UUID if not given.
    pub nguid: Option<[u8; 16]>,
    /// As [`Namespace::nguid`].
    pub eui64: Option<[u8; 8]>,
}

/// What one host may have, in all subsystems together.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Share {
    /// Its rates, and its bytes in flight.
    pub limits: TenantLimits,
    /// Its share against other hosts'; it is multiplied with those of namespaces.
    pub weight: u16,
    /// Queues of every kind; `None`: any number.
    pub max_connections: Option<u32>,
    /// I/O queues; `None`: any number.
    pub max_queues: Option<u32>,
}

/// A host with something of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// Its name.
    pub nqn: Nqn,
    /// What it may have.
    pub share: Share,
}

/// Another discovery service that hosts are told of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Referral {
    /// Its fabric.
    pub fabric: Fabric,
    /// Its address.
    pub address: IpAddr,
    /// Its port.
    pub port: u16,
    /// Name of its discovery subsystem.
    pub nqn: Nqn,
}

impl Config {
    /// Reads and checks the file, for this machine.
    ///
    /// # Errors
    /// Everything that is wrong, with file, line and key.
    pub fn load(file: &Path) -> Result<Self, ConfigError> {
        Ok(Loaded::read(file)?.config)
    }

    /// Checks a text, for a machine; `file` is only what errors call it.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn parse(file: &str, text: &str, machine: &Machine) -> Result<Self, ConfigError> {
        let mut report = Report::new(file, text);
        let config = parse::parse(&mut report)
            .and_then(|raw| validate::validate(&mut report, &raw, machine));
        let warnings = report.finish()?;
        match config {
            Some(config) => Ok(Config { warnings, ..config }),
            // Whoever yields no config has reported why.
            None => Err(ConfigError { problems: Vec::new() }),
        }
    }

    /// The device of this name.
    #[must_use]
    pub fn device(&self, name: &str) -> Option<&Device> {
        self.devices.iter().find(|device| device.name == name)
    }
}

impl LogLevel {
    /// As the config writes it; also a directive that `tracing` takes.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        }
    }
}

/// A duration as the config writes it.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    units::parse_duration(text).map_err(|what| format!("{what}; {}", units::DURATION_FORM))
}

/// The policy's name as the config writes it.
#[must_use]
pub fn policy_name(policy: &PolicyConfig) -> &'static str {
    match policy {
        PolicyConfig::None => "none",
        PolicyConfig::BufferCredit { .. } => "buffer-credit",
        PolicyConfig::TokenBucket(_) => "token-bucket",
        PolicyConfig::Adaptive => "adaptive",
        PolicyConfig::Prototype(_) => "prototype",
    }
}

impl Fabric {
    /// As the config and the URLs of the ready line write it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Rdma => "rdma",
        }
    }
}
