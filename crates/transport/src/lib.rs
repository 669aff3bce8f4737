//! Fabrics: transports that carry the capsules and data of one NVMe queue to and from a host.
//!
//! A reactor uses every fabric through one trait, [`HostQueue`]: it receives commands as [`Event`]s
//! and submits [`FabricOp`]s. This crate does not interpret commands.
//!
//! `benches/` holds the programs that measured the choices of [`tcp`].

mod pace;
pub mod queue;
pub mod rdma;
pub mod tcp;

pub use pace::MIN_RATE;
pub use queue::{
    CloseReason, CompletionSource, Connected, CqCounters, DetachedQueue, Event, FabricError,
    FabricOp, HostQueue, Nanos, PollGroup, Progress, ReactorResources, RejectReason, Rejected,
    TransportError,
};
