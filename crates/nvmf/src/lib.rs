//! NVMe over fabrics semantics: subsystems, namespaces, hosts, controllers and their command sets.
//!
//! Sans-I/O: no sockets, no devices, no clock. A connection owns a [`Queue`]. Capsules enter
//! through [`Queue::handle_command`], the required action is returned as a [`Disposition`], and the
//! caller passes time as a number of nanoseconds. This crate validates a command completely before
//! it returns a [`Disposition::Io`]. The caller may trust its extent, its lengths and its data
//! pointer.
//!
//! | module | contents |
//! |---|---|
//! | [`spec`], [`limits`] | the desired state, as configured; limits and derived values |
//! | [`target`], `apply` | the running state and its declarative change |
//! | `subsystem`, `namespace`, `controller` | the entities that hosts see |
//! | [`hosts`] | limits and usage of each host |
//! | [`quiesce`] | waiting for the last commands of ended queues and controllers |
//! | [`queue`] | one connection: Connect, properties, admin and I/O commands, timers |
//! | `admin`, `discovery` | the admin command set and the discovery log |
//! | [`disposition`], [`failure`] | required actions of a command; failures and status codes |
//!
//! `examples/embedded_target` serves a RAM device to a host in the same program.
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

pub use controller::{ControllerKey, TeardownReason};
pub use disposition::{DataSource, Disposition, Extent, IoCommand, IoKind, QueueOwner, Response};
pub use failure::Failure;
pub use hosts::{HostLimits, HostQuotas, HostUsage, network_of};
pub use limits::Limits;
pub use queue::{ConnectRefusal, ControllerBarrier, Queue, QueueInfo};
pub use quiesce::{Quiesce, QuiesceGuard};
pub use spec::{
    Access, AddressFamily, DeviceId, DiscoverySpec, NamespaceSpec, PortId, PortSpec, ReferralSpec,
    SubsystemSpec, TargetSpec, TransportKind,
};
pub use target::{ApplyError, Changes, ControllerInfo, RetiredNamespace, Target, TargetCounts};

#[cfg(test)]
mod tests;

/// Nanoseconds of a monotonic clock, passed in by the caller.
pub type Nanos = u64;
