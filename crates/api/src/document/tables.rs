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

/// `[rpc]`: SPDK's JSON-RPC. Read at start only.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct RpcSection {
    /// Path of its UNIX socket.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub socket: Option<String>,
    /// The socket's permission bits: `"0660"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
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
    /// Port; 0 lets the system choose. 4420 by default, 8009 if it serves discovery only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// NQNs of the subsystems that it serves, none for discovery only; all by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subsystems: Option<Vec<String>>,
    /// For TCP: `always` (default) or `if-disabled`, when a read's successful response is folded
    /// into its data.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fold_responses: Option<String>,
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

/// `[discovery]`: the discovery service.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct DiscoverySection {
    /// Unique NQN, in addition to the well-known one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nqn: Option<String>,
    /// Only hosts that may connect to a subsystem may connect to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restricted: Option<bool>,
    /// Announces the TCP listeners by multicast DNS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mdns: Option<bool>,
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
    #[schema(minimum = 1, maximum = 4294967294_u32)]
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
