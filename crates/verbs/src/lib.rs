//! RDMA: queue pairs, completion queues, registered memory, and the connections they belong to.
//!
//! | module | what |
//! |---|---|
//! | [`work`] | what is posted and what comes back |
//! | [`seam`] | what a provider does: [`Device`], [`Ticket`], [`Endpoint`], [`Completions`] |
//! | [`ffi`] | rdma-core's binary interface |
//! | [`system`] | the provider that is rdma-core, found at run time |
//! | [`loopback`] | a provider in memory, for tests |
//! | [`conformance`] | what every provider has to do, as checks |
//!
//! Both ends of NVMe/RDMA are written against the seam. A provider is rdma-core's libraries, found at run
//! time, or memory, for tests.

pub mod conformance;
pub mod error;
pub mod ffi;
pub mod loopback;
pub mod seam;
pub mod system;
pub mod work;

pub use error::VerbsError;
pub use seam::{
    AcceptParams, Completions, ConnectParams, ConnectionEvent, Device, DeviceKind, DeviceLimits,
    Endpoint, EndpointSpec, LastReceive, PrivateData, Refused, Region, SharedReceives, Ticket,
};
pub use work::{Access, Completion, CompletionStatus, Operation, Piece, Pieces, Work, WorkId};
