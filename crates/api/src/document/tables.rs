//! Tables of a config: every key, with its type.
//!
//! The daemon validates the values; `configs/target.toml` documents each key in detail.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Size;
/// `[api]`: the control API. Read at start only.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ApiSection {
    /// Path of its UNIX socket.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub socket: Option<String>,
    /// The socket's permission bits: `"0660"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// Additional TCP addresses: `"127.0.0.1:4480"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listen: Option<Vec<String>>,
    /// File with the token for TCP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_file: Option<String>,
    /// Accepts addresses beyond this machine without a token, and a token file that other users can
    /// read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub insecure: Option<bool>,
}

/// `[limits]`: limits. Read at start only.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct LimitsSection {
    /// Connections of all hosts together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connections: Option<u32>,
    /// I/O queues per controller.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub io_queues: Option<u32>,
    /// Entries per queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_depth: Option<u32>,
    /// Maximum bytes per command.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_transfer: Option<Size>,
    /// Maximum bytes of in-capsule data of a write.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_capsule: Option<Size>,
    /// Maximum memory for data in flight.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub buffer_memory: Option<Size>,
    /// Minimum keep-alive timeout of a host: `"1s"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_alive_min: Option<String>,
    /// Maximum time from a new connection to its Connect.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connect_timeout: Option<String>,
    /// Maximum time that a host may stall within a PDU or a data transfer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pdu_timeout: Option<String>,
}

/// `[pacing]`: the pacing policy.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct PacingSection {
    /// `adaptive`, `none`, `buffer-credit`, `token-bucket` or `prototype`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// Maximum bytes in flight on all reactors together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget: Option<Size>,
    /// Rate at which bytes start: `"180Gb/s"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<String>,
    /// Period between commands: `"5700ns"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub period: Option<String>,
    /// Burst after an idle time: bytes, or commands with a period.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst: Option<Size>,
    /// io_pacing: buffers in the pool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub buffers: Option<u32>,
    /// io_pacing: buffers that each reactor caches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache: Option<u32>,
    /// io_pacing: bytes of a grant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub credit: Option<Size>,
    /// io_pacing: commands below this number of bytes bypass pacing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bypass_below: Option<Size>,
    /// io_pacing: maximum commands in flight on one device of one reactor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drive_limit: Option<u32>,
    /// io_pacing: tuner that changes the period.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tuner: Option<String>,
    /// io_pacing: bytes above which the tuner acts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tuner_threshold: Option<Size>,
    /// io_pacing: interval of the tuner.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tuner_interval: Option<String>,
    /// io_pacing: step by which the tuner changes the period.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tuner_step: Option<String>,
}

/// `limit` of a host or a namespace: its rate limits.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Limit {
    /// I/Os per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub iops: Option<u64>,
    /// Data in both directions: `"10Gb/s"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<String>,
    /// Burst after an idle time, as the time in which it accumulates: `"10ms"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst: Option<String>,
}

/// `[host-defaults]`: limits of a host that its `[[host]]` does not set.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct HostDefaults {
    /// Rate limits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<Limit>,
    /// Weight relative to other hosts; 1 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<u16>,
    /// Maximum connections, one per queue; 0 for no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_connections: Option<u32>,
    /// Maximum I/O queues; 0 for no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_queues: Option<u32>,
    /// Maximum bytes in flight; 0 for no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_in_flight: Option<Size>,
}

/// `[[host]]`: limits of one host, across all subsystems.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Host {
    /// Its name.
    pub nqn: String,
    /// Rate limits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<Limit>,
    /// Weight relative to other hosts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<u16>,
    /// Maximum connections, one per queue; 0 for no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_connections: Option<u32>,
    /// Maximum I/O queues; 0 for no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_queues: Option<u32>,
    /// Maximum bytes in flight; 0 for no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_in_flight: Option<Size>,
}

/// `[[listener]]`: an address that hosts connect to.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Listener {
    /// `tcp` or `rdma`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Local address.
    pub address: String,
    /// Port; 0 lets the system choose. 4420 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// RDMA device that the address must belong to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rdma_device: Option<String>,
    /// Index in the device's GID table that the address must have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gid_index: Option<u8>,
    /// Traffic class of sent packets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traffic_class: Option<u8>,
    /// Retries if a host does not respond.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_count: Option<u8>,
    /// Retries if a host had no receive posted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rnr_retry_count: Option<u8>,
    /// True if the connections of a reactor share an SRQ.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shared_receives: Option<bool>,
    /// Entries of a completion queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_queue_depth: Option<u32>,
}

/// `[[device]]`: a block device. Its keys depend on its type.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Device {
    /// Its name.
    pub name: String,
    /// `null`, `ram`, `file`, `nvme`, `split`, `stripe`, `delay` or `fault`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Bytes, in whole blocks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<Size>,
    /// Bytes of a block: 512 or 4096.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub block_size: Option<Size>,
    /// The file or block device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Creates the file if it does not exist.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub create: Option<bool>,
    /// Hosts cannot write to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_only: Option<bool>,
    /// Bypass of the page cache: `auto`, `on` or `off`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub direct: Option<String>,
    /// The base device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base: Option<String>,
    /// Latency added to reads: `"1ms"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_latency: Option<String>,
    /// Latency added to all other commands.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_latency: Option<String>,
    /// Maximum jitter added to each read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_jitter: Option<String>,
    /// Maximum jitter added to each other command.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_jitter: Option<String>,
    /// Offset of a split.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offset: Option<Size>,
    /// Members of a stripe.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub members: Option<Vec<String>>,
    /// Chunk size of a stripe.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chunk: Option<Size>,
    /// Seed of random faults and jitter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// Commands per million that fail.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub errors: Option<u32>,
    /// Reads per million with one flipped bit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub corruptions: Option<u32>,
    /// Commands per million that are rejected at first for lack of room.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rejects: Option<u32>,
    /// Commands per million that stall.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stalls: Option<u32>,
    /// Length of a stall.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stall: Option<String>,
    /// True if commands complete in random order.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reorder: Option<bool>,
    /// Ranges that cannot be read or written: `"OFFSET+SIZE"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bad: Option<Vec<String>>,
    /// True if the device is missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gone: Option<bool>,
    /// The drive's PCI address: `0000:01:00.0`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pci: Option<String>,
    /// Namespace ID on the drive.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nsid: Option<u32>,
    /// Entries of a drive's queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_depth: Option<u32>,
    /// Timeout of a drive's command.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub io_timeout: Option<String>,
}

/// `[[subsystem]]`: an NVM subsystem. Either `allow-any-host` or `hosts` is required.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Subsystem {
    /// Its name.
    pub nqn: String,
    /// Every host may connect.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow_any_host: Option<bool>,
    /// The hosts that may connect, by NQN.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hosts: Option<Vec<String>>,
    /// Serial number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    /// Model number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Lowest controller ID that is assigned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cntlid_min: Option<u16>,
    /// Highest controller ID that is assigned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cntlid_max: Option<u16>,
    /// Its namespaces.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub namespace: Vec<Namespace>,
}

/// `[[subsystem.namespace]]`: a device as hosts see it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Namespace {
    /// Namespace ID.
    pub nsid: u32,
    /// Name of the backing device.
    pub device: String,
    /// Weight relative to other namespaces; 1 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<u16>,
    /// Rate limits for all hosts together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<Limit>,
    /// UUID; derived from the medium or the place of the data by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// Medium that the UUID was saved for; on another medium the UUID is ignored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub medium: Option<String>,
    /// NGUID; derived from the UUID by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nguid: Option<String>,
    /// EUI-64; derived from the UUID by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eui64: Option<String>,
}

/// `[[root-complex]]`: measured capacity of a root complex.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct RootComplex {
    /// PCI domain and root bus: `0000:60`.
    pub address: String,
    /// Bandwidth of data in one direction, like `"42.6GB/s"`.
    pub bandwidth: String,
}

/// `[[referral]]`: another discovery service that hosts are referred to.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Referral {
    /// `tcp` or `rdma`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Address that hosts can reach.
    pub address: String,
    /// Port; 8009 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// Name of its discovery subsystem.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nqn: Option<String>,
}
