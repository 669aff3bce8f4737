//! Summary of the running state.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Summary of the running state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Status {
    /// The daemon's version: `0.1.0`.
    pub version: String,
    /// The daemon's process identifier.
    pub pid: u32,
    /// Seconds since the daemon began to serve.
    pub uptime_seconds: u64,
    /// The file that `save` writes and `reload` reads.
    pub config_file: String,
    /// Revision of the state, for `If-Match`: it differs after every change and every start.
    pub revision: String,
    /// True if the file contains the running state, as last written or read by the daemon.
    pub saved: bool,
    /// URLs that hosts can connect to, like `tcp://192.0.2.1:4420`.
    pub listeners: Vec<String>,
    /// Listeners that wait for an address, a device or a port.
    #[serde(default)]
    pub waiting_listeners: Vec<WaitingListener>,
    /// The pacing policy in force.
    pub policy: String,
    /// Threads that serve hosts.
    pub reactors: usize,
    /// Devices that are open.
    pub devices: usize,
    /// Missing devices among them: their commands fail until they return and the config is
    /// reloaded.
    #[serde(default)]
    pub missing_devices: Vec<String>,
    /// Subsystems.
    pub subsystems: usize,
    /// Namespaces of all subsystems.
    pub namespaces: usize,
    /// Controllers: one per host and subsystem, including those for discovery.
    pub controllers: usize,
    /// Connections of hosts, one per queue.
    pub connections: usize,
    /// Removed controllers and namespace changes that wait for earlier commands to end.
    pub quiescing: usize,
    /// Commands between capsule and response.
    pub in_flight: usize,
    /// Changed keys that take effect at the next start.
    pub pending_restart: Vec<String>,
}

/// Summary of a listener that failed to bind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WaitingListener {
    /// URL of the listener, like `tcp://192.0.2.1:4420`.
    pub url: String,
    /// Error of the last attempt.
    pub error: String,
}
