//! NVMe over fabrics semantics: subsystems, namespaces, hosts, controllers and their command sets.
//!
//! Sans-I/O: no sockets, no devices, no clock. A connection owns a [`Queue`]; capsules go in through
//! [`Queue::handle_command`], what is to be done comes out as a [`Disposition`], and time is a number of
//! nanoseconds the caller hands in. All validity of a command is decided here before a
//! [`Disposition::Io`] leaves: the caller may trust its extent, its lengths and its data pointer.
//!
//! | module | what |
//! |---|---|
//! | [`spec`], [`limits`] | the wanted state, as configured; the bounds everything is derived from |
//! | [`target`], `apply` | the running state and its declarative change |
//! | `subsystem`, `namespace`, `controller` | what hosts see |
//! | [`hosts`] | how much one host may have, and has |
//! | [`quiesce`] | who waits until the commands of what is gone have ended |
//! | [`queue`] | one connection: Connect, properties, admin and I/O commands, timers |
//! | `admin`, `discovery` | the admin command set and the discovery log |
//! | [`disposition`], [`failure`] | what is to be done with a command; why it failed and as what status |
//!
//! Section numbers are those of NVM Express Base 2.0 ("Base") and NVM Command Set 1.0 ("NVM").
#![forbid(unsafe_code)]

mod admin;
mod apply;
mod controller;
mod discovery;
mod namespace;
mod subsystem;

pub mod disposition;
pub mod failure;
pub mod hosts;
pub mod limits;
pub mod queue;
pub mod quiesce;
pub mod request;
pub mod spec;
pub mod target;

pub use controller::{ControllerKey, DeathReason};
pub use disposition::{DataSource, Disposition, Extent, IoCommand, IoKind, QueueOwner, Response};
pub use failure::Failure;
pub use hosts::{HostCounts, HostLimits, HostRules, Refusal, network_of};
pub use limits::Limits;
pub use queue::{ControllerBarrier, Queue, QueueInfo};
pub use quiesce::{Quiesce, QuiesceGuard};
pub use spec::{
    Access, AddressFamily, DeviceId, NamespaceSpec, PortId, PortSpec, ReferralSpec, SubsystemSpec,
    TargetSpec, TransportKind,
};
pub use target::{ApplyError, Changes, ControllerInfo, RetiredNamespace, Target, TargetCounts};

#[cfg(test)]
mod tests;

/// Nanoseconds of a monotonic clock, handed in by the caller.
pub type Nanos = u64;
