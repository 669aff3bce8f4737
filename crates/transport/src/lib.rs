//! The fabrics: how capsules and data of one NVMe queue reach a host and come back.
//!
//! A reactor sees every fabric through one trait, [`HostQueue`]: it is handed commands as
//! [`Event`]s and gives back [`FabricOp`]s. Nothing here knows what a command means.

pub mod fault;
pub mod loopback;
mod pace;
mod payload;
pub mod queue;
pub mod rdma;
pub mod tcp;

pub use pace::MIN_RATE;
pub use queue::{
    CloseReason, Connected, Event, FabricError, FabricOp, Home, HostQueue, Nanos, ParkedQueue,
    Progress, RejectReason, Rejected, Source, SourceCounts, Sources, TransportError,
};
