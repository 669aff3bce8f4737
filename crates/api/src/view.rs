//! The state's items: as the config has them, and what came of it.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::document::{Device, Listener, Namespace, PacingSection, Subsystem};

/// A subsystem.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SubsystemView {
    /// As the config has it.
    pub config: Subsystem,
    /// Serial number that hosts see.
    pub serial: String,
    /// Model number that hosts see.
    pub model: String,
    /// Hosts that are connected.
    pub controllers: Vec<ControllerView>,
}

/// A host's association with a subsystem.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ControllerView {
    /// Its ID in the subsystem.
    pub cntlid: u16,
    /// The host, by NQN.
    pub host: String,
}

/// A namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NamespaceView {
    /// Its subsystem.
    pub subsystem: String,
    /// As the config has it.
    pub config: Namespace,
    /// UUID that hosts see: 32 hexadecimal digits.
    pub uuid: String,
    /// NGUID that hosts see: 32 hexadecimal digits.
    pub nguid: String,
    /// EUI64 that hosts see: 16 hexadecimal digits.
    pub eui64: String,
    /// What the UUID follows where the config names none: the medium's own identity, or the place of the bytes.
    #[serde(default)]
    pub medium: String,
    /// Bytes of a block.
    pub block_size: u32,
    /// Bytes in all.
    pub size: u64,
}

/// A host that may connect to a subsystem.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HostView {
    /// Its NQN.
    pub nqn: String,
    /// Controllers it has there.
    pub controllers: Vec<u16>,
}

/// A listener.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ListenerView {
    /// What the API calls it: `tcp:192.0.2.1:4420`, with the real port.
    pub id: String,
    /// As the config has it.
    pub config: Listener,
    /// Whether hosts can connect there.
    pub listening: bool,
    /// Why they cannot, and when it is tried again; nothing if they can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<ListenerWait>,
    /// Hosts' controllers that came through it.
    pub controllers: usize,
}

/// A listener that does not listen, and is tried again by itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ListenerWait {
    /// Why the last try failed: its address is not there, say.
    pub error: String,
    /// Seconds since it does not listen.
    pub seconds: u64,
    /// Tries that failed.
    pub tries: u32,
    /// Milliseconds until the next one.
    pub next_try_ms: u64,
}

/// A device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DeviceView {
    /// As the config has it.
    pub config: Device,
    /// Bytes in all.
    pub size: u64,
    /// Bytes of a block.
    pub block_size: u32,
    /// Hosts cannot write to it.
    pub read_only: bool,
    /// It is no longer there: all its commands fail until it is back and the config is reloaded.
    pub gone: bool,
    /// What uses it, in words.
    pub used_by: Vec<String>,
}

/// How commands are admitted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PacingView {
    /// As the config has it.
    pub config: PacingSection,
    /// The policy in force.
    pub policy: String,
    /// Bytes that may be in flight on all reactors together, if they are bounded.
    pub budget_bytes: Option<u64>,
    /// Nanoseconds from one command to the next on the whole target, if there is such.
    pub period_ns: Option<u64>,
    /// Bytes in flight.
    pub bytes_in_flight: u64,
    /// Commands in flight.
    pub in_flight: u64,
    /// Commands that wait for admission.
    pub waiting: u64,
}

/// A connection: one queue of a host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ConnectionView {
    /// Its name, for as long as the daemon runs.
    pub id: u64,
    /// The host, by NQN; nothing before it has said so.
    pub host: Option<String>,
    /// The subsystem, by NQN; nothing before the host has said so.
    pub subsystem: Option<String>,
    /// The controller's ID in the subsystem.
    pub cntlid: Option<u16>,
    /// The queue's number: 0 for the admin queue.
    pub qid: Option<u16>,
    /// Entries of the queue.
    pub depth: Option<u16>,
    /// The host's address.
    pub peer: String,
    /// The listener it came through: `tcp:192.0.2.1:4420`; nothing if that is gone.
    pub listener: Option<String>,
    /// The reactor that serves it.
    pub reactor: usize,
    /// Commands between capsule and response.
    pub in_flight: u32,
    /// Those of them that wait for admission.
    pub waiting: u32,
}
