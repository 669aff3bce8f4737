//! When may a command start, and whose command is next.
//!
//! A reactor (one pinned thread) owns one [`Pacer`] and sees only this:
//!
//! ```text
//! enqueue(flow, cost, token) -> waiting lane of the flow
//! next(now)                  -> (token, Permit) of a command that may start, or None
//! release(permit, ..)        -> the command is over, its grants go back
//! next_wakeup()              -> when to look again if nothing else happens
//! ```
//!
//! Behind it two questions are kept apart, each a small trait:
//! * *whose command is next*: [`Order`], over the per-flow lanes ([`RoundRobin`], and
//!   [`order::Residence`] under `adaptive`);
//! * *may it start now*: [`Policy`], in a chain that grants all or nothing ([`policy::None`],
//!   [`policy::BufferCredit`], [`policy::TokenBucket`], [`policy::Adaptive`]).
//!
//! Before both, a flow that belongs to a [`Tenant`] with limits (a host, a namespace) passes those;
//! it holds up nobody who is within theirs ([`tenant`]).
//!
//! [`Shared`] makes both from a [`PolicyConfig`], and [`Pacer::replace`] puts others in force while
//! serving.
//!
//! # Rules every policy keeps
//! * Admission depends on no outside event: after any release, and on every turn, [`Pacer::next`]
//!   starts what can start. Call it until it yields `None` at the end of **every** turn.
//! * A command without data (`Cost::NO_DATA`) never waits behind data, and is still counted.
//! * Small I/O is counted like any other.
//! * A core that holds nothing may always start one I/O, even if the shared budget is out.
//! * A request that can never fit is refused when it is enqueued ([`TooLarge`]).
//! * A [`Permit`] is given back exactly once: it cannot be cloned, and [`Pacer::release`] takes it.
//!
//! Time is a number of nanoseconds handed in, so virtual time and replay work. Nothing here
//! allocates after the flows were added, but for [`Pacer::replace`].

#![forbid(unsafe_code)]

mod chain;
mod config;
mod due;
pub mod keys;
mod lanes;
pub mod order;
mod pacer;
mod permit;
pub mod policy;
mod setup;
mod small;
mod sync;
pub mod tenant;
#[cfg(test)]
mod tests;

pub use config::{
    Pace, PolicyConfig, PrototypeConfig, PrototypePacer, PrototypePool, PrototypeTuner,
    TokenBucketConfig,
};
pub use lanes::{FlowConfig, FlowId, FlowStats};
pub use order::{Order, Pick, RoundRobin};
pub use pacer::{Counts, Pacer, PacerConfig, Parts, TooLarge};
pub use permit::{Outcome, Permit, lost_permits};
pub use policy::{BufferCredit, Policy, SharedCredit, Waker};
pub use setup::{ConfigError, Machine, Shared, Snapshot};
pub use small::SmallRule;
pub use tenant::{Core, Tenant, TenantCounts, TenantLimits, Tenants};

/// Monotonic time in nanoseconds; only differences mean anything.
pub type Nanos = u64;

/// What a command takes while it is in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cost {
    /// Data buffer in bytes; 0 for a command without data (or with data that came in its capsule
    /// and sits in the queue's own reserve), which never waits.
    pub bytes: u32,
}

impl Cost {
    /// A command that needs no data buffer: it is counted, but never waits.
    pub const NO_DATA: Cost = Cost { bytes: 0 };

    /// A command that needs a buffer of `bytes`.
    #[must_use]
    pub const fn data(bytes: u32) -> Self {
        Self { bytes }
    }
}

/// What a command counts against the limits of its [`Tenant`]s.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Charge(u32);

impl Charge {
    /// Nothing: it is not limited.
    pub const NONE: Charge = Charge(0);

    /// One I/O that moves so many bytes, wherever they are: in a buffer, in its capsule, or nowhere.
    #[must_use]
    #[inline]
    pub const fn io(bytes: u32) -> Self {
        Self(bytes.saturating_add(1))
    }

    /// The bytes of an I/O that counts.
    #[inline]
    pub(crate) const fn bytes(self) -> Option<u32> {
        self.0.checked_sub(1)
    }
}
