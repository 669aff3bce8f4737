//! NVMe/TCP 1.0, the target's side: one socket, one queue.
//!
//! | file | content |
//! |---|---|
//! | `queue` | [`HostQueue`](crate::HostQueue) for a socket: the life cycle of the connection |
//! | `handshake` | ICReq and ICResp |
//! | `receive`, `pdu_reader` | socket to bytes, bytes to events (no I/O in the latter) |
//! | `command_window` | the window of outstanding commands, memory for in-capsule data |
//! | `transfer` | R2Ts and the pulls that wait for their data |
//! | `send` | responses and data, one vectored send per turn while they are small |
//! | `tx_tracker` | detection that data has left the socket |
//! | `send_method` | choice between copying large zero-copy data and sending it from its file |
//! | `terminate` | C2HTermReq |
//! | `digest` | CRC32C |
//! | `listener` | [`listen`] |
//! | `sys` | the only `unsafe` |
//!
//! # Choices that were measured
//!
//! Machine: a virtual machine with two cores of an AMD EPYC (family 25, model 17), Linux 6.18, over
//! the loopback interface. Target and client each ran on their own core, but shared the machine
//! with builds. The figures are medians of 5 to 7 interleaved runs; the ratios are more reliable
//! than the rates.
//!
//! **Non-blocking calls and `epoll`, not `io_uring`** (`benches/socket_engine.rs`): 72 bytes in,
//! 24 + 4096 out, thousands of requests per second. The programs spin except in the columns
//! "sleeping":
//!
//! | requests in flight | `epoll` | calls only | `io_uring` | multishot | `epoll`, sleeping | `io_uring`, sleeping |
//! |---|---|---|---|---|---|---|
//! | 1 | 109 | 114 | 98 | 94 | 38 | 40 |
//! | 32 | 828 | 892 | 857 | 782 | 829 | 791 |
//! | 128 | 1115 | 1181 | 1136 | 1100 | 1003 | 1052 |
//! | 4 connections of 1 | 150 | 159 | 146 | 146 | 141 | 138 |
//!
//! A turn is one `recv` and one `sendmsg` with either interface. A ring saves a system call only if
//! many sockets are ready in one turn, and costs one completion per call. Calling a busy queue
//! without `epoll` is another 5 to 8 % faster; the reactor decides that.
//!
//! **Zero-copy data of 32 KiB and more leaves by `sendfile` while that is cheaper**
//! (`benches/send_file.rs`). The table compares one vectored send for the responses of a turn with
//! a header and `sendfile` for each response. It gives the ratio of rates, zeroes / filled pages:
//!
//! | | 4 KiB | 8 KiB | 16 KiB | 32 KiB | 64 KiB | 128 KiB | 512 KiB |
//! |---|---|---|---|---|---|---|---|
//! | 1 per turn | 0.7 / 0.8 | 1.0 / 1.1 | 1.3 / 1.2 | 1.6 / 1.9 | 2.6 / 2.0 | 2.1 / 1.7 | 2.3 / 1.4 |
//! | 8 per turn | 0.4 / 0.4 | 0.6 / 0.6 | 0.9 / 0.9 | 1.5 / 1.3 | 1.9 / 1.6 | 1.9 / 1.6 | 2.7 / 1.2 |
//!
//! With a whole target and host, the gain becomes a loss while their cores are close to each other.
//! At 128 KiB and 8 commands in flight, close cores reach 48 k/s by copying and 35 k/s by
//! `sendfile`. Distant cores reach 14 k/s and 27 k/s. The cores of a virtual machine alternate
//! between both. The send method is therefore chosen at run time (`send_method`).
//!
//! Corking the turn as well gained nothing beyond the noise from 32 KiB on.
//!
//! **A response counts as sent when its data is on the network, not when the socket has it**
//! (`tx_tracker`). Setup: eight connections over a link of 2 Gb/s, which is a token-bucket queue on
//! a pair of veth devices. The hosts issue 128 KiB reads, 32 in flight per connection; the budget
//! is 2 MiB. The first row gives the most bytes that the sockets' queues contained, in two runs:
//!
//! | a response is sent when the kernel has | no checks | sent it (`SIOCOUTQNSD`) | had it acknowledged (`SIOCOUTQ`) |
//! |---|---|---|---|
//! | MiB in the queues, maximum | 10.0 / 5.0 | 6.1 / 6.4 | 2.1 / 2.0 |
//! | Gb/s delivered | 1.05 / 0.57 | 0.62 / 0.83 | 0.43 / 0.46 |
//!
//! The machine was busy with other work, so only the bandwidths of the last column are meaningful.
//! A permit that waits for acknowledgements is kept for one more round trip. If the host stops
//! sending, it waits for a delayed acknowledgement. The permit is therefore released when the data
//! is sent.
//!
//! A check costs 290 ns, 20 % of the cost of a 4 KiB command, and is skipped while little data is
//! queued. 4 KiB reads, 32 in flight, over the loopback interface, reached 0.98 of the rate without
//! checks. That is the median of 33 pairs of consecutive runs (quartiles 0.88 and 1.08: the machine
//! was busy).
//!
//! **A turn sends at most 1 MiB** (`send`). Setup: 128 KiB reads at depth 256 over the loopback
//! interface, from memory with a latency of 1 ms. The first column gives the buffers in flight. The
//! figures are Gb/s, medians of three runs with the two CPUs near each other:
//!
//! | buffers | 512 KiB per turn | 1 MiB | 1.5 MiB | no limit |
//! |---|---|---|---|---|
//! | 32 | 27.4 / 28.3 | 25.4 / 25.0 | 22.6 / 22.2 | 15.1 / 17.2 |
//! | 40 | 28.6 / 27.9 | 30.2 / 27.2 | 27.8 / 27.0 | 19.0 / 20.5 |
//! | 48 | 26.8 / 27.1 | 27.8 / 28.2 | | 22.3 / 21.1 |
//! | 96 | 25.2 / 25.7 | 27.6 / 27.8 | | 27.2 / 26.5 |
//!
//! Without a limit, all ready responses leave together. Their permits then start the same number of
//! commands together, and nothing leaves until these are ready. Less than 1 MiB costs time at the
//! host, which wakes more often.
//!
//! **Overhead of the fabric over the kernel's work**: `benches/null_target.rs` against the bare
//! calls of `socket_engine`, one after the other on the busy machine. 4 KiB reads, 32 in flight,
//! reached 314 k/s of 339 k/s.

mod command_window;
mod digest;
mod handshake;
mod listener;
mod pdu_reader;
mod queue;
mod receive;
mod send;
mod send_method;
mod sys;
mod terminate;
mod transfer;
mod tx_tracker;

#[cfg(test)]
mod tests;

use std::net::TcpStream;

pub use listener::listen;

use crate::queue::{DetachedQueue, Nanos};

/// Parameters that a target offers its TCP hosts, and the timeouts for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TcpParams {
    /// Maximum bytes of in-capsule data of a command on an I/O queue (IOCCSZ without the command).
    ///
    /// On an admin queue, and for fabrics commands, it is always 8192.
    pub in_capsule: u32,
    /// Maximum bytes of data of a command; MAXH2CDATA is derived from it.
    pub max_transfer: u32,
    /// Grants header digests to hosts that request them.
    pub header_digest: bool,
    /// Grants data digests to hosts that request them.
    pub data_digest: bool,
    /// Time in which a host has to send its ICReq.
    pub handshake_timeout: Nanos,
    /// Time for which a host can pause within a PDU or within requested data, or take no sent data.
    pub pdu_timeout: Nanos,
    /// Time in which a host that was sent a TermReq has to close (TCP 3.7: 30 s at most).
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

/// Wraps an accepted connection, ready for any reactor to unpark it.
#[must_use]
pub fn accepted(stream: TcpStream, params: TcpParams) -> Box<dyn DetachedQueue> {
    Box::new(queue::DetachedTcp::accepted(stream, params))
}
