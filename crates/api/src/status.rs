//! What runs, in short.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What runs, in short.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Status {
    /// The daemon's version: `0.1.0`.
    pub version: String,
    /// The daemon's process identifier.
    pub pid: u32,
    /// Seconds since it serves.
    pub uptime_seconds: u64,
    /// The file that `save` writes and `reload` reads.
    pub config_file: String,
    /// The state's number: another one with every change, and after every start. What `If-Match` names.
    pub revision: String,
    /// Whether the file says what runs, as far as the daemon has written or read it.
    pub saved: bool,
    /// Where hosts connect: `tcp://192.0.2.1:4420`.
    pub listeners: Vec<String>,
    /// Where they are to connect and cannot yet: the listeners that wait for an address, a device or a port.
    #[serde(default)]
    pub waiting_listeners: Vec<WaitingListener>,
    /// The pacing policy in force.
    pub policy: String,
    /// Threads that serve hosts.
    pub reactors: usize,
    /// Devices that are open.
    pub devices: usize,
    /// Those of them that are not there: all their commands fail until they are back and the config is reloaded.
    #[serde(default)]
    pub missing_devices: Vec<String>,
    /// Subsystems.
    pub subsystems: usize,
    /// Namespaces of all subsystems.
    pub namespaces: usize,
    /// Controllers: one for each host at each subsystem, those for discovery among them.
    pub controllers: usize,
    /// Connections of hosts: one a queue.
    pub connections: usize,
    /// Controllers that are gone, and changes of namespaces, while commands of before have not ended.
    pub departing: usize,
    /// Commands between capsule and response.
    pub in_flight: usize,
    /// Keys that have changed and count at the next start.
    pub pending_restart: Vec<String>,
}

/// A listener that does not listen, in short.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WaitingListener {
    /// Where hosts are to connect: `tcp://192.0.2.1:4420`.
    pub url: String,
    /// Why they cannot.
    pub error: String,
}
