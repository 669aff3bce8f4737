//! RDMA: queue pairs, completion queues, registered memory, and connections.
//!
//! | module | contents |
//! |---|---|
//! | [`work`] | work requests and completions |
//! | [`provider`] | traits of a provider: [`Device`], [`PendingConnection`], [`Endpoint`], [`CompletionQueue`] |
//! | [`ffi`] | rdma-core's binary interface |
//! | [`system`] | the rdma-core provider, loaded at run time |
//!
//! Both ends of NVMe/RDMA are written against the traits of [`provider`].
//! `examples/ping.rs` tests the rdma-core provider on a machine with an RDMA device.

pub mod error;
pub mod ffi;
pub mod provider;
pub mod system;
pub mod work;

pub use error::VerbsError;
pub use provider::{
    AcceptParams, CompletionQueue, ConnectParams, ConnectionEvent, Device, DeviceKind,
    DeviceLimits, Endpoint, EndpointSpec, LastWqe, MemoryRegion, PendingConnection, PostError,
    PrivateData, SharedReceiveQueue,
};
pub use work::{AccessFlags, SendOp, SendWr, Sge, SgeList, WcStatus, WorkCompletion, WrId};
