//! NVMe/RDMA, the target's side: one queue pair, one queue. Generic over [`nvmeof_verbs::Device`].
//!
//! | file | content |
//! |---|---|
//! | `listener` | decision about a connection request, and the response (no I/O) |
//! | `registration` | local keys: the pool's memory and lent zeroes, registered with a device |
//! | `cq_poller` | a device's completion queue on one reactor, and the routes of its completions |
//! | `srq` | the shared receive queue (SRQ) of a source's connections |
//! | `cm_worker` | worker threads for blocking CM and verbs calls |
//! | `qp` | the allowed operations of a queue pair, by state: the table of transitions |
//! | `capsule` | bytes to command and data pointer (no I/O) |
//! | `slab` | registered memory in small equal slots |
//! | `numbers` | maps by number |
//! | `queue` | [`HostQueue`](crate::HostQueue) for a queue pair |
//! | `queue/lifecycle` | completions, events, deadlines, and the end |
//! | `queue/receives` | incoming capsules, and their memory |
//! | `queue/commands` | outstanding commands of the host, and the location of their data |
//! | `queue/transfers` | data transfers, and their next part |
//! | `queue/ring` | content of the send queue, by position |
//! | `queue/outgoing` | work that waits for room, and the chain of a turn |
//! | `post` | the only `unsafe` |
//!
//! # Life of a command
//!
//! ```text
//!  receive completes --> capsule out of its slot, receive posted again immediately
//!      |                            (in-capsule data leaves in its buffer, a new one replaces it)
//!      v
//!  Event::Command --> Pull: READ ... READ, as many at a time as negotiated --> Event::HostDataArrived
//!                 `-> Respond: WRITE ... WRITE, SEND in one chain
//!                        last WRITE completes --> Event::Sent: buffer and permit are released
//!                        any later completion retires the SEND
//! ```

pub mod capsule;
mod cm_worker;
mod cq_poller;
mod listener;
mod numbers;
mod post;
pub mod qp;
mod queue;
mod registration;
mod slab;
mod srq;

#[cfg(test)]
mod tests;

pub use cm_worker::CmWorker;
pub use cq_poller::CqPoller;
pub use listener::{DetachedRdma, Limits, Reject, admit};
pub use qp::{Accepted, Draining, Init, Qp, Ready};
pub use registration::{Registration, served};

use crate::queue::Nanos;

/// Maximum keyed descriptors of a command (MSDBD).
pub const MAX_DESCRIPTORS: usize = 16;

/// Parameters that a target offers its RDMA hosts, and the timeouts for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RdmaParams {
    /// Maximum bytes after the command in a capsule (IOCCSZ without the command): data or
    /// descriptors.
    ///
    /// IOCCSZ is defined for I/O queues, but hosts apply it to an admin queue, too.
    pub in_capsule: u32,
    /// Maximum bytes of data of a command.
    pub max_transfer: u32,
    /// Maximum entries of an I/O queue.
    pub queue_depth: u16,
    /// Maximum entries of an admin queue.
    pub admin_depth: u16,
    /// Maximum time from a host's request to an accepted Connect command.
    pub handshake_timeout: Nanos,
    /// Time in which the device has to return the work of an ended connection.
    ///
    /// Afterwards the target destroys the queue pair regardless.
    pub drain_timeout: Nanos,
    /// Maximum time for which a host can delay a transfer or a response.
    pub transfer_timeout: Nanos,
    /// Receives that the connections of a completion queue share; 0 gives each queue its own.
    pub shared_receives: u32,
    /// Entries of a completion queue; connections that do not fit get another queue.
    pub cq_depth: u32,
    /// Retries if a host has no receive posted; 7 is unlimited.
    pub rnr_retries: u8,
    /// Retries if a host does not respond, 0 to 7; `None` uses the host's value.
    pub retries: Option<u8>,
    /// Traffic class (RoCE: DSCP and ECN); `None` uses the system's.
    pub traffic_class: Option<u8>,
}

const SECOND: Nanos = 1_000_000_000;

impl Default for RdmaParams {
    fn default() -> Self {
        Self {
            in_capsule: 8192,
            max_transfer: 1 << 20,
            queue_depth: 128,
            admin_depth: 32,
            handshake_timeout: 10 * SECOND,
            drain_timeout: 2 * SECOND,
            transfer_timeout: 30 * SECOND,
            shared_receives: 0,
            cq_depth: 16384,
            rnr_retries: 7,
            traffic_class: None,
            retries: None,
        }
    }
}
