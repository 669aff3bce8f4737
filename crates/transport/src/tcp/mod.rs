//! NVMe/TCP 1.0, the target's side: one socket, one queue.
//!
//! | file | what |
//! |---|---|
//! | `queue` | [`HostQueue`](crate::HostQueue) for a socket: the connection's life |
//! | `handshake` | ICReq and ICResp |
//! | `receive`, `pdu_in` | socket to bytes, bytes to events (no I/O in the latter) |
//! | `capsules` | commands a host may have out, memory for in-capsule data |
//! | `transfer` | R2Ts: whose data is on its way |
//! | `send` | responses and data, one vectored send a turn while they are small |
//! | `depart` | when data that the socket took has left it |
//! | `path` | whether large lent data is copied or sent from its file |
//! | `terminate` | C2HTermReq |
//! | `digest` | CRC32C |
//! | `listener` | [`listen`] |
//! | `sys` | the only `unsafe` |
//!
//! # Choices that were measured
//!
//! On a virtual machine with two cores of an AMD EPYC (family 25, model 17), Linux 6.18, over the loopback
//! interface, target and client each on a core of its own but sharing the machine with builds: medians of
//! 5 to 7 interleaved runs, of which the ratios are worth more than the rates.
//!
//! **Non-blocking calls and `epoll`, not `io_uring`** (`examples/socket_engine.rs`: 72 bytes in, 24 + 4096
//! out, thousands of requests a second; spinning but where it says otherwise):
//!
//! | requests out | `epoll` | calls only | `io_uring` | multishot | `epoll`, sleeping | `io_uring`, sleeping |
//! |---|---|---|---|---|---|---|
//! | 1 | 109 | 114 | 98 | 94 | 38 | 40 |
//! | 32 | 828 | 892 | 857 | 782 | 829 | 791 |
//! | 128 | 1115 | 1181 | 1136 | 1100 | 1003 | 1052 |
//! | 4 connections of 1 | 150 | 159 | 146 | 146 | 141 | 138 |
//!
//! A turn is one `recv` and one `sendmsg` either way; a ring saves a system call only where many sockets
//! are ready in one turn, and pays for it with a completion a call. Calling a busy queue without asking
//! `epoll` first is 5 to 8 % better still, which is for the reactor to do.
//!
//! **Lent data of 32 KiB and more goes out by `sendfile` where that is cheaper at the time**
//! (`examples/send_file.rs`; responses of a turn
//! in one vectored send, against header and `sendfile` for each; ratio of rates, zeroes / filled pages):
//!
//! | | 4 KiB | 8 KiB | 16 KiB | 32 KiB | 64 KiB | 128 KiB | 512 KiB |
//! |---|---|---|---|---|---|---|---|
//! | 1 a turn | 0.7 / 0.8 | 1.0 / 1.1 | 1.3 / 1.2 | 1.6 / 1.9 | 2.6 / 2.0 | 2.1 / 1.7 | 2.3 / 1.4 |
//! | 8 a turn | 0.4 / 0.4 | 0.6 / 0.6 | 0.9 / 0.9 | 1.5 / 1.3 | 1.9 / 1.6 | 1.9 / 1.6 | 2.7 / 1.2 |
//!
//! With a whole target and host the gain turns into a loss while their cores are close to each other
//! (128 KiB, 8 out: 48 k/s copied against 35 k/s by `sendfile`; far from each other, 14 against 27), which
//! a virtual machine's cores are by turns. So the way is chosen as it goes (`path`).
//!
//! Corking the turn as well gained nothing that stands out of the noise from 32 KiB on.
//!
//! **A response counts as sent when its data has gone to the network, not when the socket took it**
//! (`depart`). Eight connections over a link of 2 Gb/s (a token-bucket queue on a pair of veth devices),
//! 128 KiB reads, 32 out on each, and a budget of 2 MiB; the most bytes that the sockets' queues held, in
//! two runs:
//!
//! | a response is sent when the kernel has | no looks | sent it (`SIOCOUTQNSD`) | had it acknowledged (`SIOCOUTQ`) |
//! |---|---|---|---|
//! | MiB in the queues, at most | 10.0 / 5.0 | 6.1 / 6.4 | 2.1 / 2.0 |
//! | Gb/s that came through | 1.05 / 0.57 | 0.62 / 0.83 | 0.43 / 0.46 |
//!
//! The machine was busy with other work, so that the bandwidths say little but for the last column: a
//! permit that waits for acknowledgements is held for a round trip more, and for a delayed one where a
//! host falls silent. So it goes when its data is sent. A look costs 290 ns, as much as a fifth of a
//! 4 KiB command, and is left out while there is little to see: 4 KiB reads, 32 out, over the loopback
//! interface came to 0.98 of the rate without looks, the median of 33 pairs of runs one after the other
//! (quartiles 0.88 and 1.08: the machine was busy).
//!
//! **A turn sends a MiB and no more** (`send`). 128 KiB reads at depth 256 over the loopback interface, from memory
//! that is 1 ms away, with as many buffers in flight; Gb/s, medians of three runs with the two CPUs near each other:
//!
//! | buffers | 512 KiB a turn | 1 MiB | 1.5 MiB | all there is |
//! |---|---|---|---|---|
//! | 32 | 27.4 / 28.3 | 25.4 / 25.0 | 22.6 / 22.2 | 15.1 / 17.2 |
//! | 40 | 28.6 / 27.9 | 30.2 / 27.2 | 27.8 / 27.0 | 19.0 / 20.5 |
//! | 48 | 26.8 / 27.1 | 27.8 / 28.2 | | 22.3 / 21.1 |
//! | 96 | 25.2 / 25.7 | 27.6 / 27.8 | | 27.2 / 26.5 |
//!
//! All there is: what was ready together left together, its permits started as many together, and nothing left until
//! these were ready. Less than a MiB costs at the host, which is woken more often.
//!
//! **What the fabric adds to the kernel's work** (`examples/null_target.rs` against the bare calls of
//! `socket_engine`, one after the other on the busy machine): 4 KiB reads, 32 out, 314 k/s of 339 k/s.

mod capsules;
mod depart;
mod digest;
mod handshake;
mod listener;
mod path;
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
