//! Admission policies: may a command start now.

mod adaptive;
mod any;
mod buffer_credit;
#[cfg(all(loom, test))]
mod model;
mod shared_credit;
mod spdk_io_pacing;
mod token_bucket;
mod unpaced;

use std::fmt::Debug;

pub use adaptive::{Adaptive, AdaptiveState, AdaptiveStatus, SharedAdaptive};
pub use any::AnyPolicy;
pub use buffer_credit::BufferCredit;
pub use shared_credit::{BudgetTooSmall, CreditConfig, SharedCredit, Waker};
pub use spdk_io_pacing::{
    PrototypeConfig, PrototypePacer, PrototypePool, PrototypeTuner, SharedIoPacing,
};
pub(crate) use token_bucket::RateLimit;
pub use token_bucket::{RateSpec, SharedTokenBucket, TokenBucket, TokenBucketConfig};
pub use unpaced::Unpaced;

use crate::permit::CommandOutcome;
use crate::{Cost, Nanos};

/// Longest policy chain of one pacer. A permit carries the grants of all policies inline, and the
/// grant of tenant limits in the last slot.
pub const MAX_POLICIES: usize = 3;

/// Decides whether a command may start now. Each core has its own object; cores interact only
/// through the state that a policy shares.
///
/// A policy never sees a command without data. It is asked for the same command on every turn until
/// it grants it, the command is withdrawn, or a more urgent one replaces it.
pub trait AdmissionPolicy: Debug + Send {
    /// Returns the largest cost in bytes that this policy can ever grant. It must not change.
    fn largest(&self) -> u32 {
        u32::MAX
    }

    /// Returns whether commands must be held until their data has left the machine, because what is
    /// in the network counts. Otherwise a transport may release them as soon as it needs their
    /// buffers no more. The answer may change over time.
    fn needs_network_times(&self) -> bool {
        true
    }

    /// Asks whether this command may start at `now`. A grant is outstanding until
    /// [`AdmissionPolicy::release`].
    fn admit(&mut self, request: &AdmissionRequest, now: Nanos) -> Admission;

    /// Releases the grant of a command that completed or was withdrawn.
    fn release(&mut self, done: &CompletedCommand, grant: Grant, now: Nanos);

    /// Starts a turn at `now` with commands waiting, `_after` ns after the start of the last one;
    /// see [`Pacer::on_turn`](crate::Pacer::on_turn). It is the only way for a policy to detect a
    /// preemption of its core; most do not need it.
    fn on_turn(&mut self, _now: Nanos, _after: Nanos) {}

    /// Returns unused credit that is kept for the next command. No command will start on this core
    /// for now, because none waits or another policy deferred it. Called often, so it must be cheap
    /// when there is nothing to return.
    fn return_unused(&mut self) {}
}

/// Request to admit a waiting command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AdmissionRequest {
    /// Its cost; never 0 bytes.
    pub cost: Cost,
    /// The device it is for, see [`FlowConfig::device`](crate::FlowConfig::device).
    pub device: u32,
    /// Time that its flow can wait by the scheduler, in bytes; lower is more urgent. Of two cores
    /// that wait for the same budget, one that is lower by more than a few I/Os comes first. Cores
    /// with about equal urgency are served by load, and otherwise in turn.
    pub urgency: u64,
    /// Bytes in flight of its flow over its weight, if the scheduler provides them, plus those of
    /// its device and port on all cores. A stalled flow counts more. Of two requests with about
    /// equal urgency the one with less load comes first.
    pub load: u64,
    /// It is small relative to the commands in flight, and bypassed the queue.
    pub small: bool,
}

/// A command that has completed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompletedCommand {
    /// Its cost; never 0 bytes.
    pub cost: Cost,
    /// Its device.
    pub device: u32,
    /// Its outcome.
    pub outcome: CommandOutcome,
    /// Time of its admission.
    pub started: Nanos,
    /// Time in ns that its data was in the network: for a read since the data was complete in
    /// memory, for a write until it had arrived. The remaining time is that of the device. At least
    /// 1, and 0 if unreported; see [`Permit::device_done`](crate::Permit::device_done) and
    /// [`Permit::host_data_arrived`](crate::Permit::host_data_arrived).
    pub network: Nanos,
}

impl AdmissionRequest {
    /// Copies the value field by field. A value passed through dynamic dispatch has an address. If
    /// that were the address of the original, the compiler would keep the original in memory on
    /// every other path, too.
    #[inline(always)]
    pub(crate) fn copy_fields(&self) -> Self {
        let Self { cost, device, urgency, load, small } = *self;
        Self { cost, device, urgency, load, small }
    }
}

impl CompletedCommand {
    /// As [`AdmissionRequest::copy_fields`].
    #[inline(always)]
    pub(crate) fn copy_fields(&self) -> Self {
        let Self { cost, device, outcome, started, network } = *self;
        Self { cost, device, outcome, started, network }
    }
}

/// The answer of a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// It may start.
    Granted(Grant),
    /// It may start, although another core waits for a command that is more urgent by more than a
    /// few I/Os. The grant keeps this core busy, and virtual time must not advance.
    GrantedOutOfOrder(Grant),
    /// Not before a release, on this core or on another one, whose policy then wakes this core.
    WaitForRelease,
    /// Not before this time.
    WaitUntil(Nanos),
    /// Not before a release of the same device on this core; commands for other devices may start
    /// before.
    DeviceBusy,
}

impl Admission {
    /// Returns the grant, in order or not.
    #[inline(always)]
    #[must_use]
    pub fn grant(self) -> Option<Grant> {
        match self {
            Admission::Granted(grant) | Admission::GrantedOutOfOrder(grant) => Some(grant),
            Admission::WaitForRelease | Admission::WaitUntil(_) | Admission::DeviceBusy => None,
        }
    }
}

/// State of a policy about one granted command, which the permit carries. Only the policy
/// interprets it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Grant(pub u16);

/// The grants of a whole chain, in its order, packed so that they travel in one register.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Grants(u64);

impl Grants {
    #[inline]
    pub(crate) fn set(&mut self, at: usize, grant: Grant) {
        self.0 |= u64::from(grant.0) << (16 * at);
    }

    #[inline]
    pub(crate) fn get(self, at: usize) -> Grant {
        let [low, high, ..] = (self.0 >> (16 * at)).to_le_bytes();
        Grant(u16::from_le_bytes([low, high]))
    }

    /// Returns the grant of the tenant limits; 0 if there is nothing to release.
    #[inline]
    pub(crate) fn tenant(self) -> Grant {
        self.get(MAX_POLICIES)
    }

    #[inline]
    pub(crate) fn set_tenant(&mut self, grant: Grant) {
        self.set(MAX_POLICIES, grant);
    }
}

const _: () = assert!((MAX_POLICIES + 1) * size_of::<Grant>() <= size_of::<Grants>());
