//! RDMA: queue pairs, completion queues, registered memory, and connections.
//!
//! | module | contents |
//! |---|---|
//! | [`work`] | work requests and completions |
//! | [`seam`] | traits of a provider: [`Device`], [`Ticket`], [`Endpoint`], [`Completions`] |
//! | [`ffi`] | rdma-core's binary interface |
//! | [`system`] | the rdma-core provider, loaded at run time |
//! | [`loopback`] | a provider in memory, for tests |
//! | [`conformance`] | checks that every provider has to pass |
//!
//! Both ends of NVMe/RDMA are written against the traits of [`seam`].

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
