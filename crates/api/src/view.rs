//! Items of the state: their config and their run-time data.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::document::{Device, Listener, Namespace, PacingConfig, Subsystem};

/// A subsystem.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SubsystemView {
    /// Config of the subsystem.
    pub config: Subsystem,
    /// Serial number that hosts see.
    pub serial: String,
    /// Model number that hosts see.
    pub model: String,
    /// Controllers of connected hosts.
    pub controllers: Vec<ControllerView>,
}

/// A host's association with a subsystem.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ControllerView {
    /// Controller ID in the subsystem.
    pub cntlid: u16,
    /// The host, by NQN.
    pub host: String,
}

/// A namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NamespaceView {
    /// Its subsystem.
    pub subsystem: String,
    /// Config of the namespace.
    pub config: Namespace,
    /// UUID that hosts see: 32 hexadecimal digits.
    pub uuid: String,
    /// NGUID that hosts see: 32 hexadecimal digits.
    pub nguid: String,
    /// EUI64 that hosts see: 16 hexadecimal digits.
    pub eui64: String,
    /// Base of the default UUID: the medium's own identity, or the place of the data.
    #[serde(default)]
    pub medium: String,
    /// Bytes of a block.
    pub block_size: u32,
    /// Size in bytes.
    pub size: u64,
}

/// A host that may connect to a subsystem.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HostView {
    /// Its NQN.
    pub nqn: String,
    /// Its controllers in the subsystem.
    pub controllers: Vec<u16>,
}

/// A listener.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ListenerView {
    /// ID in the API, like `tcp:192.0.2.1:4420`, with the actual port.
    pub id: String,
    /// Config of the listener.
    pub config: Listener,
    /// True if hosts can connect.
    pub listening: bool,
    /// Failure and retry, if hosts cannot connect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<ListenerWait>,
    /// Number of controllers connected through it.
    pub controllers: usize,
}

/// A listener that failed to bind and is retried automatically.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ListenerWait {
    /// Error of the last attempt, for example a missing address.
    pub error: String,
    /// Seconds since it last listened.
    pub seconds: u64,
    /// Failed attempts.
    pub tries: u32,
    /// Milliseconds until the next attempt.
    pub next_try_ms: u64,
}

/// A device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DeviceView {
    /// Config of the device.
    pub config: Device,
    /// Size in bytes.
    pub size: u64,
    /// Bytes of a block.
    pub block_size: u32,
    /// True if hosts cannot write to it.
    pub read_only: bool,
    /// True if the device is missing: its commands fail until it returns and the config is
    /// reloaded.
    pub gone: bool,
    /// Descriptions of its users.
    pub used_by: Vec<String>,
}

/// Pacing policy and its state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PacingView {
    /// Config of the policy.
    pub config: PacingConfig,
    /// The policy in force.
    pub policy: String,
    /// Budget: maximum bytes in flight on all reactors, if limited.
    pub budget_bytes: Option<u64>,
    /// Nanoseconds between commands on the whole target, if the policy sets a period.
    pub period_ns: Option<u64>,
    /// Bytes in flight.
    pub bytes_in_flight: u64,
    /// Commands in flight.
    pub in_flight: u64,
    /// Commands waiting for admission.
    pub waiting: u64,
}

/// A connection: one queue of a host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ConnectionView {
    /// ID, unique until the daemon restarts.
    pub id: u64,
    /// The host, by NQN; absent before its Connect.
    pub host: Option<String>,
    /// The subsystem, by NQN; absent before the Connect.
    pub subsystem: Option<String>,
    /// The controller's ID in the subsystem.
    pub cntlid: Option<u16>,
    /// Queue ID: 0 for the admin queue.
    pub qid: Option<u16>,
    /// Entries of the queue.
    pub depth: Option<u16>,
    /// The host's address.
    pub peer: String,
    /// Its listener, like `tcp:192.0.2.1:4420`; absent if that was removed.
    pub listener: Option<String>,
    /// The reactor that serves it.
    pub reactor: usize,
    /// Commands between capsule and response.
    pub in_flight: u32,
    /// Commands among them that wait for admission.
    pub waiting: u32,
}
