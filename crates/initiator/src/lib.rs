//! The host side of NVMe-oF: connects to a controller, submits commands, completes them.
//!
//! ```no_run
//! use nvmeof_initiator::{Buffer, ConnectOptions, Controller, Io, IoKind};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let endpoint = "tcp://127.0.0.1:4420/nqn.2026-11.io.nvmeof-tgt:demo".parse()?;
//! let mut controller = Controller::connect(&endpoint, &ConnectOptions::default())?;
//! let mut queue = controller.open_queue()?;
//! let read = Io { token: 1, nsid: 1, slba: 0, blocks: 8, kind: IoKind::Read(Buffer::zeroed(4096)) };
//! queue.submit(read, controller.clock().now()).map_err(|rejected| rejected.reason)?;
//! let mut done = Vec::new();
//! while done.is_empty() {
//!     queue.flush()?;
//!     queue.poll(controller.clock().now(), &mut done)?;
//! }
//! # Ok(()) }
//! ```
//!
//! | module | contents |
//! |---|---|
//! | [`controller`](Controller) | the host's sequence: Connect, enable, Identify, queues, keep alive, shutdown |
//! | [`queue`](IoQueue) | one I/O queue, polled by its one user |
//! | `fabric` | traits of a fabric for a queue; `tcp` and [`rdma`] implement them |
//!
//! The protocol is state machines without I/O. Only `tcp::socket` uses sockets, and only
//! `rdma::post` passes memory to RDMA devices. Data from a peer can end a connection, never the
//! process.
#![deny(unsafe_code)]

mod address;
mod admin;
mod buffer;
mod clock;
mod command_table;
mod controller;
mod discovery;
mod error;
mod fabric;
mod format;
mod options;
mod queue;
pub mod rdma;
mod tcp;
#[cfg(test)]
mod tests;

pub use address::{Address, AddressError, Endpoint, Fabric};
pub use buffer::Buffer;
pub use clock::{Clock, Nanos, nanos};
pub use controller::{Controller, ControllerInfo, NamespaceInfo};
pub use discovery::{DiscoveryEntry, DiscoveryLog, discover};
pub use error::{CommandError, Error};
pub use fabric::{Command, CompletedCommand, RejectReason, RejectedCommand, Transfer};
pub use format::FormatOutcome;
pub use options::ConnectOptions;
pub use queue::{Io, IoKind, IoQueue};
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub use tcp::fuzzing;

/// Maximum commands that one I/O queue can have outstanding, regardless of the controller.
pub const MAX_QUEUE_DEPTH: usize = command_table::MAX_SLOTS;
