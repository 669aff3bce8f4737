//! What a host asks of a controller.

use std::time::Duration;

use nvmeof_wire::Nqn;

/// How to connect.
#[derive(Debug, Clone)]
pub struct Options {
    /// Host NQN.
    pub hostnqn: Nqn,
    /// Host Identifier.
    pub hostid: [u8; 16],
    /// Header digest.
    pub hdgst: bool,
    /// Data digest.
    pub ddgst: bool,
    /// I/O queues to ask for; the controller may grant fewer.
    pub queues: u16,
    /// Commands an I/O queue is to hold; the controller may support fewer.
    pub depth: u16,
    /// Keep Alive Timeout; zero turns it off.
    pub keep_alive: Duration,
    /// For TCP connections and admin commands, each.
    pub connect_timeout: Duration,
    /// For I/O commands, each.
    pub io_timeout: Duration,
}

impl Default for Options {
    /// One queue of 128 commands, no digests, a keep alive of 15 s, I/O timeout 30 s, host identifier zero
    /// but for the last byte.
    fn default() -> Self {
        let hostid = 1_u128.to_be_bytes();
        Self {
            hostnqn: Nqn::from_uuid(&hostid),
            hostid,
            hdgst: false,
            ddgst: false,
            queues: 1,
            depth: 128,
            keep_alive: Duration::from_secs(15),
            connect_timeout: Duration::from_secs(10),
            io_timeout: Duration::from_secs(30),
        }
    }
}
