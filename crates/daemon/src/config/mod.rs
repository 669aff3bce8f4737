//! The config as values that the daemon uses directly.
//!
//! [`config_file`](crate::config_file) reads and validates the whole text, and
//! [`limits`](crate::limits) derives the other limits. `device` has a file for each type of device:
//! its values, and their validation. `table`, `values` and `report` serve every table.

mod device;
pub(crate) mod identity;
mod problem;
pub(crate) mod report;
pub(crate) mod table;
pub(crate) mod values;

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use nvmeof_core::pci::Capacities;
use nvmeof_pacing::{PolicyConfig, TenantLimits};
use nvmeof_wire::Nqn;

pub(crate) use device::Names;
pub use device::{Device, DeviceKind, Drive};
pub use problem::{ConfigError, Problem};

/// A valid config.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// CPUs that run a reactor, in order; at least one.
    pub reactors: Vec<usize>,
    /// Reactors never sleep.
    pub busy_poll: bool,
    /// Maximum time for commands in flight to complete when the daemon stops.
    pub drain_timeout: Duration,
    /// Log level.
    pub log: LogLevel,
    /// Format of log lines.
    pub log_format: LogFormat,
    /// Control API; not served if `None`.
    pub api: Option<Api>,
    /// SPDK's JSON-RPC; not served if `None`.
    pub rpc: Option<Rpc>,
    /// `[limits]`; [`Limits::of`](crate::limits::Limits::of) derives the others.
    pub limits: LimitSettings,
    /// Pacing policy.
    pub pacing: PolicyConfig,
    /// Share of each host that is not among `hosts`.
    pub host_defaults: HostQosConfig,
    /// Hosts with their own share; no two are the same.
    pub hosts: Vec<Host>,
    /// Addresses that hosts connect to; at least one without `rpc`.
    pub listeners: Vec<Listener>,
    /// Problem to report for each listener, in order, if its port is already in use.
    pub port_taken: Vec<Problem>,
    /// Block devices, each after its bases.
    pub devices: Vec<Device>,
    /// Configured capacities of root complexes; only warnings depend on them.
    pub root_complexes: Capacities,
    /// Subsystems that hosts see.
    pub subsystems: Vec<Subsystem>,
    /// Other discovery services that hosts are referred to.
    pub referrals: Vec<Referral>,
    /// The discovery service.
    pub discovery: Discovery,
    /// Valid settings that are probably unintended; to be logged.
    pub warnings: Vec<Problem>,
}

/// `[limits]` as configured, each key within its bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitSettings {
    /// Connections of all hosts together, one queue each.
    pub connections: u32,
    /// I/O queues per controller.
    pub io_queues: u16,
    /// Entries per queue.
    pub queue_depth: u16,
    /// Maximum bytes per command.
    pub max_transfer: u32,
    /// Maximum bytes of data that a write carries in its capsule; the target requests the rest.
    pub in_capsule: u32,
    /// Maximum bytes of memory for data buffers.
    pub buffer_memory: u64,
    /// Minimum keep-alive timeout of a host.
    pub keep_alive_min: Duration,
    /// Maximum time from a new connection to its Connect.
    pub connect_timeout: Duration,
    /// Maximum time that a host may stall within a PDU or a data transfer.
    pub pdu_timeout: Duration,
}

impl Default for LimitSettings {
    fn default() -> Self {
        Self {
            connections: 256,
            io_queues: 32,
            queue_depth: 128,
            max_transfer: 1 << 20,
            in_capsule: 8192,
            buffer_memory: 256 << 20,
            keep_alive_min: Duration::from_secs(1),
            connect_timeout: Duration::from_secs(10),
            pdu_timeout: Duration::from_secs(30),
        }
    }
}

/// Log level: lines of this severity and above are logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogLevel {
    /// Nothing.
    Off,
    /// Failures.
    Error,
    /// Possible problems.
    Warn,
    /// Events.
    Info,
    /// Causes of events.
    Debug,
    /// Every step.
    Trace,
}

/// Control API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Api {
    /// Path of the UNIX socket.
    pub socket: PathBuf,
    /// Permission bits of the socket.
    pub mode: u32,
    /// Additional TCP addresses.
    pub listen: Vec<SocketAddr>,
    /// File with the token for TCP; without one no token is required.
    pub token_file: Option<PathBuf>,
    /// Allows access from the network without a token, and a token file that other users can read.
    pub insecure: bool,
}

/// Server of SPDK's JSON-RPC.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rpc {
    /// Path of the UNIX socket.
    pub socket: PathBuf,
    /// Permission bits of the socket.
    pub mode: u32,
}

/// Format of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// Text.
    Text,
    /// One JSON object.
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

/// An address that hosts connect to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listener {
    /// Its fabric.
    pub fabric: Fabric,
    /// Local address; may be the unspecified one.
    pub address: IpAddr,
    /// Port; 0 lets the system choose.
    pub port: u16,
    /// At "::", IPv4 hosts are left to another listener at the same port.
    pub v6_only: bool,
    /// Settings for RDMA; the defaults for another fabric.
    pub rdma: Rdma,
    /// Subsystems that it serves; all if `None`.
    pub subsystems: Option<BTreeSet<Nqn>>,
    /// A read's successful response is folded into its data even if the host uses SQ flow control.
    pub folds_always: bool,
}

impl Listener {
    /// Returns true if both are the same socket, whatever they serve.
    #[must_use]
    pub fn is_same_socket(&self, other: &Self) -> bool {
        let socket = |one: &Self| (one.fabric, one.address, one.port, one.v6_only);
        socket(self) == socket(other) && self.rdma == other.rdma
    }

    /// Returns true if both have the same address, whatever their other keys. Two with port 0 do
    /// not.
    #[must_use]
    pub fn is_at(&self, other: &Self) -> bool {
        let at = |one: &Self| (one.fabric, one.address, one.port);
        self.port != 0 && at(self) == at(other)
    }
}

/// Connection settings of an RDMA listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rdma {
    /// RDMA device that the address must belong to; any if `None`.
    pub device: Option<String>,
    /// Index in the device's GID table that the address must have; any if `None`.
    pub gid_index: Option<u8>,
    /// Traffic class of sent packets; the system's if `None`.
    pub traffic_class: Option<u8>,
    /// Retries if a host does not respond; the host's choice if `None`.
    pub retry_count: Option<u8>,
    /// Retries if a host had no receive posted; 7 means forever.
    pub rnr_retry_count: u8,
    /// Connections of a reactor share an SRQ if the device supports it.
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

/// The discovery service.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Discovery {
    /// Unique NQN, in addition to the well-known one.
    pub nqn: Option<Nqn>,
    /// Only hosts that may connect to a subsystem may connect to it.
    pub is_restricted: bool,
    /// Its TCP listeners are announced by multicast DNS.
    pub is_announced: bool,
}

/// An NVM subsystem.
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
    /// Lowest controller ID that is assigned.
    pub cntlid_min: u16,
    /// Highest controller ID that is assigned.
    pub cntlid_max: u16,
    /// Namespaces, each backed by a different device.
    pub namespaces: Vec<Namespace>,
}

/// A namespace of a subsystem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Namespace {
    /// Namespace ID.
    pub nsid: u32,
    /// Name of the backing device, which exists.
    pub device: String,
    /// Weight relative to other namespaces while all have commands waiting.
    pub weight: u16,
    /// Rate limits; the limit on bytes in flight is unset.
    pub limits: TenantLimits,
    /// UUID; derived from the device if `None`.
    pub uuid: Option<[u8; 16]>,
    /// Medium that `uuid` was saved for; on another medium `uuid` is ignored.
    pub medium: Option<String>,
    /// NGUID; derived from the UUID if `None`.
    pub nguid: Option<[u8; 16]>,
    /// EUI-64; derived from the UUID if `None`.
    pub eui64: Option<[u8; 8]>,
}

/// Share of one host across all subsystems.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HostQosConfig {
    /// Limits on rates and on bytes in flight.
    pub limits: TenantLimits,
    /// Weight relative to other hosts; multiplied by the weights of namespaces.
    pub weight: u16,
    /// Maximum queues of all kinds; no limit if `None`.
    pub max_connections: Option<u32>,
    /// Maximum I/O queues; no limit if `None`.
    pub max_queues: Option<u32>,
}

/// A host with its own share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// NQN of the host.
    pub nqn: Nqn,
    /// Share of the host.
    pub share: HostQosConfig,
}

/// Another discovery service that hosts are referred to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Referral {
    /// Its fabric.
    pub fabric: Fabric,
    /// Its address.
    pub address: IpAddr,
    /// Its port.
    pub port: u16,
    /// NQN of its discovery subsystem.
    pub nqn: Nqn,
}

impl Config {
    /// Returns the device with this name.
    #[must_use]
    pub fn device(&self, name: &str) -> Option<&Device> {
        self.devices.iter().find(|device| device.name == name)
    }
}

impl LogLevel {
    /// Returns the name in the config, which is also a directive of `tracing`.
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

impl Fabric {
    /// Returns the name in the config and in the URLs of the ready line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Rdma => "rdma",
        }
    }
}
