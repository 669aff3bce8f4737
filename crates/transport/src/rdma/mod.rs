//! NVMe/RDMA, the target's side: one queue pair, one queue. Generic over [`nvmeof_verbs::Device`].
//!
//! | file | what |
//! |---|---|
//! | `listener` | whether a connection request is taken, and with what answer (no I/O) |
//! | `registration` | the pool's memory and lent zeroes, known to a device: local keys |
//! | `source` | a device's completion queue on one reactor: whose completion is it |
//! | `shared` | the receive queue that the connections of a source share |
//! | `usher` | what may wait in the kernel, beside the reactors: accepting, and the end of queue pairs |
//! | `pair` | what may be done with a queue pair, by state: the table of transitions |
//! | `capsule` | bytes to command and data pointer (no I/O) |
//! | `slab` | registered memory in small equal slots |
//! | `numbers` | maps by number |
//! | `queue` | [`HostQueue`](crate::HostQueue) for a queue pair |
//! | `queue/life` | completions, events, deadlines, and the end |
//! | `queue/receives` | capsules on their way in, and the memory they go to |
//! | `queue/commands` | commands the host has out, and where their data is |
//! | `queue/transfers` | data on its way: which part is next |
//! | `queue/ring` | what the send queue holds, by position |
//! | `queue/outgoing` | work that waits for room, and the chain of a turn |
//! | `post` | the only `unsafe` |
//!
//! # Life of a command
//!
//! ```text
//!  receive completes --> capsule out of its slot, receive posted again at once
//!      |                            (in-capsule data leaves in its buffer, a fresh one takes the place)
//!      v
//!  Event::Command --> Pull: READ ... READ, as many at once as were negotiated --> Event::Pulled
//!                 `-> Respond: WRITE ... WRITE, SEND in one chain
//!                        last WRITE completes --> Event::Sent: buffer and permit go back
//!                        SEND is retired by any later completion
//! ```

pub mod capsule;
mod listener;
mod numbers;
pub mod pair;
mod post;
mod queue;
mod registration;
mod shared;
mod slab;
mod source;
mod usher;

#[cfg(test)]
mod tests;

pub use listener::{Limits, ParkedRdma, Reject, admit};
pub use pair::{Accepted, Draining, Init, Pair, Ready};
pub use registration::{Registration, served};
pub use source::DeviceSource;
pub use usher::Usher;

use crate::queue::Nanos;

/// Keyed descriptors a command may have (MSDBD).
pub const MAX_DESCRIPTORS: usize = 16;

/// What a target offers its RDMA hosts, and how long it waits for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RdmaParams {
    /// Most bytes behind the command in a capsule (IOCCSZ without the command): data or descriptors. IOCCSZ is
    /// said of I/O queues, but hosts go by it on an admin queue, too.
    pub in_capsule: u32,
    /// Most bytes of data of a command.
    pub max_transfer: u32,
    /// Most entries of an I/O queue.
    pub queue_depth: u16,
    /// Most entries of an admin queue.
    pub admin_depth: u16,
    /// How long a host may take from its request to an accepted Connect command.
    pub handshake_timeout: Nanos,
    /// How long the device may take to give back the work of a connection that ended, before the queue pair
    /// is taken away from under it.
    pub drain_timeout: Nanos,
    /// How long a host may leave a transfer, or a response, where it is.
    pub transfer_timeout: Nanos,
    /// Receives that the connections of a completion queue share; 0 for receives of their own.
    pub shared_receives: u32,
    /// Entries of a completion queue; connections that do not fit in one get another.
    pub cq_depth: u32,
    /// Times to try again when a host had no receive posted; 7 is for ever.
    pub rnr_retries: u8,
    /// Times to try again when a host does not answer, 0 to 7; `None` for what the host says.
    pub retries: Option<u8>,
    /// Traffic class (RoCE: DSCP and ECN); `None` for the system's.
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
