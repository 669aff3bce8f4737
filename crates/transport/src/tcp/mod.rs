//! NVMe/TCP 1.0, the target's side: one socket, one queue.
//!
//! | file | what |
//! |---|---|
//! | `queue` | [`HostQueue`](crate::HostQueue) for a socket: the connection's life |
//! | `handshake` | ICReq and ICResp |
//! | `receive`, `pdu_in` | socket to bytes, bytes to events (no I/O in the latter) |
//! | `capsules` | commands a host may have out, memory for in-capsule data |
//! | `transfer` | R2Ts: whose data is on its way |
//! | `send` | responses and data, one vectored send a turn |
//! | `terminate` | C2HTermReq |
//! | `digest` | CRC32C |
//! | `listener` | [`listen`] |
//! | `sys` | the only `unsafe` |

mod capsules;
mod digest;
mod handshake;
mod listener;
mod pdu_in;
mod queue;
mod receive;
mod send;
mod sys;
mod terminate;
mod transfer;

#[cfg(test)]
mod tests;

use std::net::TcpStream;

pub use listener::listen;

use crate::queue::{Nanos, ParkedQueue};

/// What a target offers its TCP hosts, and how long it waits for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TcpParams {
    /// Most bytes of in-capsule data of a command on an I/O queue (IOCCSZ without the command).
    /// On an admin queue, and for fabrics commands, it is always 8192.
    pub in_capsule: u32,
    /// Most bytes of data of a command; MAXH2CDATA is derived from it.
    pub max_transfer: u32,
    /// Grant header digests to hosts that ask for them.
    pub header_digest: bool,
    /// Grant data digests to hosts that ask for them.
    pub data_digest: bool,
    /// How long a host may take to send its ICReq.
    pub handshake_timeout: Nanos,
    /// How long a host may be silent in the middle of a PDU or of data it was asked for, or take
    /// nothing of what it is sent.
    pub pdu_timeout: Nanos,
    /// How long a host that was sent a TermReq may take to close (TCP 3.7: 30 s at most).
    pub linger: Nanos,
}

const SECOND: Nanos = 1_000_000_000;

impl Default for TcpParams {
    fn default() -> Self {
        Self {
            in_capsule: 8192,
            max_transfer: 1 << 20,
            header_digest: true,
            data_digest: true,
            handshake_timeout: 10 * SECOND,
            pdu_timeout: 30 * SECOND,
            linger: 5 * SECOND,
        }
    }
}

/// An accepted connection, ready for whichever reactor unparks it.
#[must_use]
pub fn accepted(stream: TcpStream, params: TcpParams) -> Box<dyn ParkedQueue> {
    Box::new(queue::ParkedTcp::accepted(stream, params))
}
