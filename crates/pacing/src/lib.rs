//! Admission control and scheduling of commands on one reactor.
//!
//! A reactor (one pinned thread) owns one [`Pacer`] and sees only this:
//!
//! ```text
//! enqueue(flow, cost, token) -> queue of the flow
//! next(now)                  -> (token, Permit) of a command that may start, or None
//! release(permit, ..)        -> the command completed, its grants are returned
//! next_wakeup()              -> time of the next call if nothing else happens
//! ```
//!
//! Two small traits decide, one question each:
//! * [`Scheduler`] selects *the next command* from the flow queues ([`DeficitRoundRobin`], or
//!   [`scheduler::AdaptiveScheduler`] under `adaptive`).
//! * [`AdmissionPolicy`] decides *whether that command may start now*. Policies form a chain that
//!   grants all or nothing ([`policy::Unpaced`], [`policy::BufferCredit`], [`policy::TokenBucket`],
//!   [`policy::Adaptive`]).
//!
//! The limits of a [`Tenant`] (a host, a namespace) come first. A flow that exceeds its limits does
//! not delay flows that are within theirs ([`tenant`]).
//!
//! [`SharedPolicy`] makes both from a [`PolicyConfig`]. [`Pacer::replace`] changes them while the
//! target serves.
//!
//! `examples/custom_policy.rs` is a policy of a few lines, and a loop around a pacer.
//!
//! # Rules every policy keeps
//! * Admission depends on no outside event. After any release, and on every turn, [`Pacer::next`]
//!   starts every command that can start. Call it until it returns `None` at the end of **every**
//!   turn.
//! * A command without data (`Cost::NO_DATA`) never waits behind data, and is still counted.
//! * Small commands are counted like any other.
//! * A core with nothing in flight may always start one command, even if the shared budget is
//!   exhausted.
//! * A command that can never fit is rejected by `enqueue` ([`TooLarge`]).
//! * A [`Permit`] is released exactly once: it cannot be cloned, and [`Pacer::release`] consumes
//!   it.
//!
//! Time is a number of nanoseconds that the caller passes, so virtual time and replay work. Nothing
//! here allocates once the flows are added, except [`Pacer::replace`].

#![forbid(unsafe_code)]

mod catalog;
mod chain;
mod due;
mod flow_queues;
mod pacer;
mod permit;
pub mod policy;
pub mod scheduler;
mod small_commands;
mod sync;
pub mod tenant;
#[cfg(test)]
mod tests;

pub use catalog::{
    ConfigError, PacedMachine, PolicyConfig, PolicyKey, PolicyName, PolicyStatus, SharedPolicy,
    TunerName,
};
pub use flow_queues::{FlowConfig, FlowId, FlowStats};
pub use pacer::{Pacer, PacerConfig, PacerCounters, PacerParts, TooLarge};
pub use permit::{CommandOutcome, Permit, leaked_permits};
pub use policy::{
    AdaptiveState, AdaptiveStatus, AdmissionPolicy, BufferCredit, PrototypeConfig, PrototypePacer,
    PrototypePool, PrototypeTuner, RateSpec, SharedCredit, TokenBucketConfig, Waker,
};
pub use scheduler::{DeficitRoundRobin, Scheduler, Selection};
pub use small_commands::SmallCommandRule;
pub use tenant::{CoreHandle, Tenant, TenantLimits, TenantStats, Tenants};

/// Monotonic time in nanoseconds; only differences mean anything.
pub type Nanos = u64;

/// Resources that a command takes while it is in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cost {
    /// Data buffer in bytes. 0 for a command without data, or with in-capsule data that lies in the
    /// queue's reservation: this command never waits.
    pub bytes: u32,
}

impl Cost {
    /// A command without a data buffer: it is counted, but never waits.
    pub const NO_DATA: Cost = Cost { bytes: 0 };

    /// Creates the cost of a command that needs a buffer of `bytes`.
    #[must_use]
    pub const fn data(bytes: u32) -> Self {
        Self { bytes }
    }
}

/// Amount that a command counts against the limits of its [`Tenant`]s.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Charge(u32);

impl Charge {
    /// No charge: the command is not limited.
    pub const NONE: Charge = Charge(0);

    /// Creates the charge of an I/O that moves `bytes`, in a buffer, in its capsule, or nowhere.
    #[must_use]
    #[inline]
    pub const fn io(bytes: u32) -> Self {
        Self(bytes.saturating_add(1))
    }

    /// Returns the bytes of an I/O that counts.
    #[inline]
    pub(crate) const fn bytes(self) -> Option<u32> {
        self.0.checked_sub(1)
    }
}
