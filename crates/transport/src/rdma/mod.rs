//! NVMe/RDMA, the target's side: one queue pair, one queue. Generic over [`nvmeof_verbs::Device`].
//!
//! | file | content |
//! |---|---|
//! | `listener` | decision about a connection request, and the response (no I/O) |
//! | `registration` | local keys of the pool's memory and of the zeroes for zero-copy reads |
//! | `cq_poller` | a device's completion queue on one reactor, and the routes of its completions |
//! | `srq` | the shared receive queue (SRQ) of a source's connections |
//! | `cm_worker` | worker threads for blocking CM and verbs calls |
//! | `qp` | the allowed operations of a queue pair, by state: the table of transitions |
//! | `any_qp` | a queue pair in any state, as its queue has it |
//! | `kind` | kinds of work in identifiers |
//! | `receives` | incoming capsules, and their memory |
//! | `capsule` | bytes to command and data pointer (no I/O) |
//! | `slab` | registered memory in small equal slots |
//! | `numbers` | maps by number |
//! | `params` | parameters that a target offers, and timeouts |
//! | `queue` | [`HostQueue`](crate::HostQueue) for a queue pair |
//! | `queue/detached` | an accepted connection request, before a reactor has made its queue |
//! | `queue/lifecycle` | completions, events, deadlines, and the end |
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

mod any_qp;
pub mod capsule;
mod cm_worker;
mod cq_poller;
mod kind;
mod listener;
mod numbers;
mod params;
mod post;
pub mod qp;
mod queue;
mod receives;
mod registration;
mod slab;
mod srq;

#[cfg(test)]
mod tests;

pub use capsule::MAX_DESCRIPTORS;
pub use cm_worker::CmWorker;
pub use cq_poller::CqPoller;
pub use listener::{Limits, Reject, admit};
pub use params::RdmaParams;
pub use qp::{Accepted, Draining, Init, Qp, Ready};
pub use queue::DetachedRdma;
pub use registration::{Registration, served};
