//! The tables of a config: every key that exists, with its type. What the values must be is for the
//! daemon to say; `configs/target.toml` tells of each key at length.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Size;
/// `[api]`: where the daemon can be controlled. Read at start only.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ApiSection {
    /// Path of its UNIX socket.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub socket: Option<String>,
    /// The socket's permission bits: `"0660"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// TCP addresses besides: `"127.0.0.1:4480"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listen: Option<Vec<String>>,
    /// File with the token that is asked for over TCP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_file: Option<String>,
    /// Addresses beyond this machine without a token, and a token file that others can read, are taken.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub insecure: Option<bool>,
}

/// `[limits]`: bounds. Read at start only.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct LimitsSection {
    /// Connections of all hosts together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connections: Option<u32>,
    /// I/O queues of one controller.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub io_queues: Option<u32>,
    /// Entries of one queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_depth: Option<u32>,
    /// Most bytes of one command.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_transfer: Option<Size>,
    /// Bytes of data a write may bring along.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_capsule: Option<Size>,
    /// Memory for data in flight, at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub buffer_memory: Option<Size>,
    /// Shortest keep-alive timeout a host gets: `"1s"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_alive_min: Option<String>,
    /// How long a new connection may take to introduce itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connect_timeout: Option<String>,
    /// How long a host may be silent in the middle of something.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pdu_timeout: Option<String>,
}

/// `[pacing]`: when commands may start.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct PacingSection {
    /// `adaptive`, `none`, `buffer-credit`, `token-bucket` or `prototype`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// Bytes in flight on all reactors together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget: Option<Size>,
    /// How fast bytes start: `"180Gb/s"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<String>,
    /// Time from one command to the next: `"5700ns"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub period: Option<String>,
    /// What may start at once after a quiet time: bytes, or commands behind a period.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst: Option<Size>,
    /// Prototype: buffers in the pool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub buffers: Option<u32>,
    /// Prototype: buffers that each reactor keeps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache: Option<u32>,
    /// Prototype: bytes of a grant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub credit: Option<Size>,
    /// Prototype: commands below so many bytes start at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bypass_below: Option<Size>,
    /// Prototype: commands in flight on one device of one reactor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drive_limit: Option<u32>,
    /// Prototype: what changes the period.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tuner: Option<String>,
    /// Prototype: bytes from which the tuner acts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tuner_threshold: Option<Size>,
    /// Prototype: how often the tuner looks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tuner_interval: Option<String>,
    /// Prototype: what the tuner changes the period by.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tuner_step: Option<String>,
}

/// `limit` of a host or a namespace: its rates.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Limit {
    /// I/Os a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub iops: Option<u64>,
    /// Data in both directions: `"10Gb/s"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<String>,
    /// What may start at once after a quiet time, as the time in which it comes: `"10ms"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst: Option<String>,
}

/// `[host-defaults]`: what a host may have, where its `[[host]]` says nothing else.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct HostDefaults {
    /// Its rates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<Limit>,
    /// Its share against other hosts'; 1 if left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<u16>,
    /// Connections, a queue each; 0 for any number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_connections: Option<u32>,
    /// I/O queues; 0 for any number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_queues: Option<u32>,
    /// Bytes in flight; 0 for no bound.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_in_flight: Option<Size>,
}

/// `[[host]]`: what one host may have, in all subsystems.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Host {
    /// Its name.
    pub nqn: String,
    /// Its rates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<Limit>,
    /// Its share against other hosts'.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<u16>,
    /// Connections, a queue each; 0 for any number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_connections: Option<u32>,
    /// I/O queues; 0 for any number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_queues: Option<u32>,
    /// Bytes in flight; 0 for no bound.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_in_flight: Option<Size>,
}

/// `[[listener]]`: where hosts connect.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Listener {
    /// `tcp` or `rdma`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Local address.
    pub address: String,
    /// Port; 0 lets the system choose. 4420 if left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// RDMA device that the address has to be at.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rdma_device: Option<String>,
    /// Index in the device's GID table that the address has to be at.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gid_index: Option<u8>,
    /// Traffic class of what is sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traffic_class: Option<u8>,
    /// Times to try again when a host does not answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_count: Option<u8>,
    /// Times to try again when a host had no receive posted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rnr_retry_count: Option<u8>,
    /// Whether the connections of a reactor share their receives.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shared_receives: Option<bool>,
    /// Entries of a completion queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_queue_depth: Option<u32>,
}

/// `[[device]]`: what is served. Which keys there are depends on its type.
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
    /// Create the file if it is not there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub create: Option<bool>,
    /// Hosts cannot write to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_only: Option<bool>,
    /// Past the page cache: `auto`, `on` or `off`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub direct: Option<String>,
    /// The device below.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base: Option<String>,
    /// Added to reads: `"1ms"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_latency: Option<String>,
    /// Added to everything else.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_latency: Option<String>,
    /// Most that is added to each read besides.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_jitter: Option<String>,
    /// Most that is added to everything else besides.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_jitter: Option<String>,
    /// Where a split begins.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offset: Option<Size>,
    /// The devices of a stripe.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub members: Option<Vec<String>>,
    /// What each member of a stripe takes in turn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chunk: Option<Size>,
    /// Of what is random.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// Commands of a million that fail.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub errors: Option<u32>,
    /// Reads of a million with one bit turned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub corruptions: Option<u32>,
    /// Commands of a million that there is no room for at first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rejects: Option<u32>,
    /// Commands of a million that get stuck.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stalls: Option<u32>,
    /// For how long.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stall: Option<String>,
    /// Whether commands end in random order.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reorder: Option<bool>,
    /// Ranges that can neither be read nor written: `"OFFSET+SIZE"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bad: Option<Vec<String>>,
    /// Whether the device is gone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gone: Option<bool>,
    /// The drive's PCI address: `0000:01:00.0`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pci: Option<String>,
    /// Which namespace of the drive.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nsid: Option<u32>,
    /// Entries of a drive's queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_depth: Option<u32>,
    /// How long a drive's command may take.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub io_timeout: Option<String>,
}

/// `[[subsystem]]`: what hosts see. Either `allow-any-host` or `hosts` has to be given.
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
    /// Lowest controller ID given out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cntlid_min: Option<u16>,
    /// Highest controller ID given out.
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
    /// Its number in the subsystem.
    pub nsid: u32,
    /// Name of the device behind it.
    pub device: String,
    /// Its share against other namespaces'; 1 if left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<u16>,
    /// What all hosts together may do with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<Limit>,
    /// Its UUID; follows from the medium or the place of its bytes if left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// The medium that the UUID was saved for; on another it does not count.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub medium: Option<String>,
    /// Its NGUID; follows from the UUID if left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nguid: Option<String>,
    /// Its EUI64; follows from the UUID if left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eui64: Option<String>,
}

/// `[[root-complex]]`: what one carries, where it was measured.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct RootComplex {
    /// PCI domain and root bus: `0000:60`.
    pub address: String,
    /// Of data in one direction, as `"42.6GB/s"`.
    pub bandwidth: String,
}

/// `[[referral]]`: another discovery service that hosts are told of.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Referral {
    /// `tcp` or `rdma`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Where hosts reach it.
    pub address: String,
    /// Its port; 8009 if left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// Name of its discovery subsystem.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nqn: Option<String>,
}
