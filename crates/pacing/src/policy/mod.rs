//! May a command start now.

mod adaptive;
mod buffer_credit;
mod known;
#[cfg(all(loom, test))]
mod model;
mod none;
mod prototype;
mod shared_credit;
mod token_bucket;

use std::any::Any;
use std::fmt::Debug;

pub use adaptive::{Adaptive, Move, SharedAdaptive};
pub use buffer_credit::BufferCredit;
pub(crate) use known::Known;
pub use none::None;
pub use prototype::SharedPrototype;
pub use shared_credit::{BudgetTooSmall, CreditConfig, SharedCredit, Waker};
pub(crate) use token_bucket::Limit;
pub use token_bucket::{SharedTokens, TokenBucket};

use crate::permit::Outcome;
use crate::{Cost, Nanos};

/// Longest chain of policies one pacer takes: a permit carries the grants of all inline, and in the
/// last place what the limits of tenants granted.
pub const MAX_POLICIES: usize = 3;

/// Decides whether a command may start now. One object a core; cores meet only in what a policy
/// shares of its own accord.
///
/// A policy never sees a command without data, and is asked for the same command again on every
/// turn until it grants it, the command is withdrawn, or a more urgent one takes its place.
pub trait Policy: Any + Debug + Send {
    /// The largest cost this policy can ever grant, in bytes. Must not change.
    fn largest(&self) -> u32 {
        u32::MAX
    }

    /// May this command start at `now`? A grant stays out until [`Policy::release`].
    fn admit(&mut self, ask: &Ask, now: Nanos) -> Admission;

    /// A command that was granted is over (or was withdrawn) and gives back its grant.
    fn release(&mut self, done: &Done, grant: Grant, now: Nanos);

    /// The core begins a turn at `now` with commands waiting, so long after it began the last, see
    /// [`Pacer::turn`](crate::Pacer::turn). A policy cannot know otherwise that its core was away; most need not know.
    fn turn(&mut self, _now: Nanos, _after: Nanos) {}

    /// No command will start on this core for now, since none waits or another policy refused:
    /// hand back whatever is held for the next one. Called often, so it must be cheap when there
    /// is nothing to do.
    fn rest(&mut self) {}
}

/// A command that waits for admission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ask {
    /// What it takes; never 0 bytes.
    pub cost: Cost,
    /// The device it is for, see [`FlowConfig::device`](crate::FlowConfig::device).
    pub device: u32,
    /// How long its flow can wait by the order among the flows, in bytes: of two cores that wait for
    /// the same budget the one with a figure lower by more than a few I/Os comes first. Those about
    /// equal go by their load, and else take turns.
    pub urgency: u64,
    /// What its flow has in flight over its weight, in bytes, as far as the order tells, more of one of which
    /// nothing comes back, and what its device and its path have on all cores: of two that are about equally
    /// urgent the one with less comes first.
    pub load: u64,
    /// It is small beside what else is under way, and jumped the queue.
    pub small: bool,
}

/// A command that is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Done {
    /// What it took; never 0 bytes.
    pub cost: Cost,
    /// The device it was for.
    pub device: u32,
    /// How it ended.
    pub outcome: Outcome,
    /// When it was admitted.
    pub started: Nanos,
    /// How long the network had its data, in ns: a read's from when it had landed, a write's until it
    /// had come. The rest of its time was its device's. At least 1, and 0 if nobody told, see
    /// [`Permit::landed`](crate::Permit::landed) and [`Permit::came`](crate::Permit::came).
    pub network: Nanos,
}

impl Ask {
    /// A copy, field by field: what is lent through a table has an address, and where the compiler
    /// takes that of the original, all of it goes through memory on every other way, too.
    #[inline(always)]
    pub(crate) fn apart(&self) -> Self {
        let Self { cost, device, urgency, load, small } = *self;
        Self { cost, device, urgency, load, small }
    }
}

impl Done {
    /// As [`Ask::apart`].
    #[inline(always)]
    pub(crate) fn apart(&self) -> Self {
        let Self { cost, device, outcome, started, network } = *self;
        Self { cost, device, outcome, started, network }
    }
}

/// The answer of a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// It may start.
    Granted(Grant),
    /// It may start, though what another core waits with is more urgent by more than a few I/Os: it is
    /// there to keep this core at work, and says nothing about how far everybody is served.
    OutOfTurn(Grant),
    /// Not before something is released, on this core or on another (whose policy then wakes
    /// this one).
    AfterRelease,
    /// Not before this time.
    At(Nanos),
    /// Not before something of the same device is released on this core; commands for other
    /// devices may start meanwhile.
    NotThisDevice,
}

impl Admission {
    /// What was granted, in turn or not.
    #[inline(always)]
    #[must_use]
    pub fn grant(self) -> Option<Grant> {
        match self {
            Admission::Granted(grant) | Admission::OutOfTurn(grant) => Some(grant),
            Admission::AfterRelease | Admission::At(_) | Admission::NotThisDevice => Option::None,
        }
    }
}

/// What a policy remembers about one command it granted; the permit carries it back. Its meaning
/// is the policy's own.
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

    /// What the limits of tenants granted; 0 for nothing that goes back.
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
