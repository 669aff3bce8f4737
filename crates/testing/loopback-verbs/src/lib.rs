//! An RDMA provider in memory, for tests of both ends. It is as strict as good hardware. The test
//! passes time explicitly, the seed determines random choices, and every failure can be injected.
//!
//! Nothing happens unless time passes ([`Fabric::advance`], [`Fabric::step`], [`Fabric::settle`]).
//! The order of concurrent work of two queue pairs depends on the seed. The work of one queue pair
//! keeps the order that RDMA guarantees and no more. Tests whose threads wait on descriptors let
//! the fabric follow the clock ([`Fabric::follow_clock`]). The fabric reads and writes memory as
//! early or late as hardware can, so a caller that reuses memory too early finds wrong bytes.
//!
//! | operation | at the poster | at the peer |
//! |---|---|---|
//! | SEND, no receive posted | waits `rnr_retries` rounds, then `ReceiverNotReady`, error | nothing |
//! | SEND, receive too short or with a wrong key | `Other(9)` or `Other(11)`, error | the receive: `Other(1)` or `Other(4)`, error |
//! | SEND that invalidates an invalid key | `RemoteAccess`, error | the receive: `Other(9)`, error |
//! | RDMA READ or WRITE, wrong key, range or rights | `RemoteAccess`, error | error |
//! | more RDMA READs than the peer accepts | `Other(9)`, error | error |
//! | wrong local key | `Other(4)`, error | nothing |
//! | a peer that failed or is gone | `Unreachable` after all retries, error | |
//! | a queue is full | the post fails with `ENOMEM` | |
//! | a completion queue is full | it breaks, its queue pairs fail | |
//!
//! "Error" is the error state: everything posted completes as flushed after a delay. Until then,
//! work in progress can still access memory. `Other` has the number of `enum ibv_wc_status`.
//! Polling a completion frees the queue's entries up to and including its work request. [`Faults`]
//! injects each of these failures without its cause. [`Counters`] count live objects and finished
//! work.
//!
//! ```
//! use nvmeof_loopback_verbs::Fabric;
//! use nvmeof_verbs::{
//!     AcceptParams, ConnectParams, ConnectionEvent, Device, Endpoint, EndpointSpec, PendingConnection,
//! };
//!
//! let fabric = Fabric::new(1);
//! let (target, host) = (fabric.device("target"), fabric.device("host"));
//! let address = "192.0.2.1:4420".parse().unwrap();
//! let mut listener = fabric.listen(&target, address).unwrap();
//! let (target_queue, host_queue) = (target.completions(64).unwrap(), host.completions(64).unwrap());
//! let spec = EndpointSpec {
//!     sends: 16,
//!     receives: 16,
//!     send_pieces: 2,
//!     receive_pieces: 2,
//!     inline: 0,
//!     traffic_class: None,
//!     retries: None,
//! };
//!
//! let route = fabric.route(&host, address);
//! let mut asking = host.open(route, &host_queue, None, &spec).unwrap();
//! let ask = ConnectParams { private_data: b"hello", reads_out: 4, reads_in: 4, retries: 7, rnr_retries: 7 };
//! asking.connect(&ask).unwrap();
//! fabric.settle();
//!
//! let ticket = listener.next_ticket().unwrap();
//! assert_eq!(&ticket.private_data().as_slice()[..6], b"hello\0");
//! let mut answering = target.open(ticket, &target_queue, None, &spec).unwrap();
//! let answer = AcceptParams { private_data: b"yes", reads_out: 4, reads_in: 4, rnr_retries: 7 };
//! answering.accept(&answer).unwrap();
//! fabric.settle();
//!
//! // The asking side is established once it has taken its event, the other side after that.
//! assert!(matches!(asking.next_event(), Some(ConnectionEvent::Established { .. })));
//! fabric.settle();
//! assert!(matches!(answering.next_event(), Some(ConnectionEvent::Established { .. })));
//! assert_eq!(fabric.counters().endpoints, 2);
//! ```

mod clock;
mod completions;
mod connection;
mod counters;
mod device;
mod endpoint;
mod engine;
mod fabric;
mod faults;
mod memory;
mod provider;
mod queue_pair;
mod signal;
mod state;
#[cfg(test)]
mod tests;

pub use clock::RealTime;
pub use completions::{LoopbackCompletions, LoopbackSharedReceives};
pub use connection::{
    LoopbackListener, LoopbackTicket, NO_ANSWER, NOBODY_LISTENS, REFUSED, REJECT_DATA, REPLY_DATA,
    REQUEST_DATA,
};
pub use counters::{Counters, EndpointCounters};
pub use device::{DeviceOptions, LoopbackDevice, LoopbackRegion};
pub use endpoint::LoopbackEndpoint;
pub use fabric::{Costs, Fabric};
pub use faults::{Faults, Side};
