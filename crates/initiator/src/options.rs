//! Options of a host for a controller.

use std::time::Duration;

use nvmeof_wire::Nqn;

/// Parameters of a connection.
#[derive(Debug, Clone)]
pub struct ConnectOptions {
    /// Host NQN.
    pub hostnqn: Nqn,
    /// Host Identifier.
    pub hostid: [u8; 16],
    /// Header digest.
    pub hdgst: bool,
    /// Data digest.
    pub ddgst: bool,
    /// I/O queues to request; the controller can grant fewer.
    pub queues: u16,
    /// Commands of an I/O queue; the controller can support fewer.
    pub depth: u16,
    /// Keep Alive Timeout; zero turns it off.
    pub keep_alive: Duration,
    /// Timeout of each TCP connection and each admin command.
    pub connect_timeout: Duration,
    /// Timeout of each I/O command.
    pub io_timeout: Duration,
}

impl Default for ConnectOptions {
    /// One queue of 128 commands, no digests, a keep alive of 15 s, an I/O timeout of 30 s. The
    /// host identifier is zero except for the last byte.
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
