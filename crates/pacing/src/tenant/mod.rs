//! Limits of tenants: hosts and namespaces that may have so many I/Os or bytes a second, or so many
//! bytes in flight, and no more.
//!
//! ```text
//!              the flow's own                       shared by all flows of the core
//!   enqueue ─▶ without a buffer ─┐  rate of its host,     ┌─▶ express, starts at once
//!          ─▶ small             ─┼▶ rate of its namespace,─┼─▶ small     ─┐ order and
//!          ─▶ lane              ─┘  in flight of its host  └─▶ lane's turn ─┴▶ policies ─▶ permit
//! ```
//!
//! A limit is as a policy that only some flows have, and
//! that comes before the order among the flows: a flow that is over its limit is not in that order, so
//! it holds up nobody. Each of the three queues of a flow waits for itself, so a command that came with
//! its data waits for a rate, never for data. It passes one limit after the other, and keeps what it has of one
//! while it waits for the next: given back, both might be busy in turn for ever. At most one command of each queue has
//! passed limits and waits for others, or for the chain of policies.
//!
//! A [`Tenant`] is what the cores share: token buckets whose whole state is a word, and a strict budget
//! ([`SharedCredit`]). What waits at one limit on one core is served in the order of start tags, bytes
//! over weight (start-time fair queueing), so flows of one tenant share what it may have by weight.
//!
//! A flow without limits does not come here at all.

mod door;
mod gates;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::Nanos;
use crate::policy::{CreditConfig, Limit, SharedCredit, SharedTokens, Waker};
use crate::setup::{ConfigError, Machine};

pub(crate) use gates::{Assigned, Gates, Kind};

/// What a tenant may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TenantLimits {
    /// I/Os a second; those that move no data and a flush among them are for the caller to count or
    /// not, see [`Charge`](crate::Charge).
    pub iops: Option<u64>,
    /// Bytes moved a second.
    pub bandwidth: Option<u64>,
    /// What may start at once after a quiet time, as the time in which it comes.
    pub burst: Nanos,
    /// Bytes of buffers in flight; at least one largest I/O.
    pub in_flight: Option<u64>,
}

impl TenantLimits {
    /// Is there any?
    #[must_use]
    pub fn is_any(&self) -> bool {
        self.has_rate() || self.in_flight.is_some()
    }

    fn has_rate(&self) -> bool {
        self.iops.is_some() || self.bandwidth.is_some()
    }
}

/// A tenant as all cores share it. It is the same one for as long as [`Tenant::change`] makes it from
/// itself; limits themselves never change.
#[derive(Debug)]
pub struct Tenant {
    id: u64,
    limits: TenantLimits,
    iops: Option<Arc<SharedTokens>>,
    bandwidth: Option<Arc<SharedTokens>>,
    credit: Option<Arc<SharedCredit>>,
    tally: Arc<Tally>,
}

/// The tenants of a flow.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tenants<'a> {
    /// Whose command it is.
    pub host: Option<&'a Arc<Tenant>>,
    /// What it is for. Only its rates count: bytes in flight are a host's.
    pub namespace: Option<&'a Arc<Tenant>>,
}

/// A core as tenants know it.
#[derive(Clone)]
pub struct Core {
    /// Its number, from 0.
    pub index: usize,
    /// Called when it waited for bytes in flight and may go on.
    pub waker: Waker,
}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Core").field("index", &self.index).finish_non_exhaustive()
    }
}

/// How often, and for how long, a tenant was held back by its limits, on all cores together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TenantCounts {
    /// Commands that had to wait for the rate.
    pub held_by_rate: u64,
    /// Time that commands waited for the rate, in ns: that of each core on which any did, added up.
    pub rate_ns: Nanos,
    /// Commands that had to wait for bytes in flight.
    pub held_by_in_flight: u64,
    /// As `rate_ns`, of bytes in flight.
    pub in_flight_ns: Nanos,
    /// Bytes in flight or about to be, as far as they are bounded; a little more than are, since a
    /// core takes some ahead.
    pub taken: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Tally {
    rate: Waits,
    in_flight: Waits,
}

/// What one kind of limit did. Added to only where a command has to wait.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    held: AtomicU64,
    nanos: AtomicU64,
}

impl Waits {
    fn held(&self) {
        self.held.fetch_add(1, Ordering::Relaxed);
    }

    fn waited(&self, nanos: Nanos) {
        self.nanos.fetch_add(nanos, Ordering::Relaxed);
    }

    fn both(&self) -> (u64, Nanos) {
        (self.held.load(Ordering::Relaxed), self.nanos.load(Ordering::Relaxed))
    }
}

impl Tenant {
    /// A tenant of its own on `machine`.
    ///
    /// # Errors
    /// [`ConfigError`] says which limit means nothing and why.
    pub fn new(limits: TenantLimits, machine: Machine) -> Result<Arc<Self>, ConfigError> {
        static NEXT_ID: AtomicU64 = AtomicU64::new(0);
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        Self::build(id, limits, machine, None, Arc::default())
    }

    /// The same tenant with other limits, for [`Pacer::set_tenants`](crate::Pacer::set_tenants) on
    /// every core. What is in flight counts against the new bound as against the old one; the
    /// bound moves with this call. A rate that changes starts with a full burst.
    ///
    /// # Errors
    /// As [`Tenant::new`]; nothing has changed then.
    pub fn change(&self, limits: TenantLimits, machine: Machine) -> Result<Arc<Self>, ConfigError> {
        Self::build(self.id, limits, machine, Some(self), Arc::clone(&self.tally))
    }

    fn build(
        id: u64,
        limits: TenantLimits,
        machine: Machine,
        before: Option<&Self>,
        tally: Arc<Tally>,
    ) -> Result<Arc<Self>, ConfigError> {
        let same_burst = before.filter(|before| before.limits.burst == limits.burst);
        let bucket = |limit: Option<Limit>, kept: Option<Arc<SharedTokens>>| match (limit, kept) {
            (None, _) => Ok(None),
            (_, Some(kept)) => Ok(Some(kept)),
            (Some(limit), None) => SharedTokens::limit(limit, limits.burst, machine).map(Some),
        };
        let kept = same_burst.filter(|before| before.limits.iops == limits.iops);
        let iops = bucket(limits.iops.map(Limit::Ios), kept.and_then(|kept| kept.iops.clone()))?;
        let kept = same_burst.filter(|before| before.limits.bandwidth == limits.bandwidth);
        let kept = kept.and_then(|kept| kept.bandwidth.clone());
        let bandwidth = bucket(limits.bandwidth.map(Limit::Bytes), kept)?;
        let credit = match limits.in_flight {
            None => None,
            Some(budget) => {
                let Machine { cores, largest } = machine;
                // Made even if there is one to keep: it says whether the bound can work.
                let made = SharedCredit::strict(CreditConfig { budget, largest, cores })?;
                let kept = before.and_then(|before| before.credit.clone());
                if let Some(kept) = &kept {
                    kept.resize(budget, usize::MAX);
                }
                Some(kept.unwrap_or(made))
            }
        };
        Ok(Arc::new(Self { id, limits, iops, bandwidth, credit, tally }))
    }

    /// Its limits.
    #[must_use]
    pub fn limits(&self) -> &TenantLimits {
        &self.limits
    }

    /// The largest buffer that it can ever have in flight.
    pub(crate) fn largest(&self) -> u32 {
        self.credit.as_ref().map_or(u32::MAX, |credit| credit.largest())
    }

    /// What its limits did so far, and what is taken of them.
    #[must_use]
    pub fn counts(&self) -> TenantCounts {
        let (held_by_rate, rate_ns) = self.tally.rate.both();
        let (held_by_in_flight, in_flight_ns) = self.tally.in_flight.both();
        let taken = |credit: &Arc<SharedCredit>| credit.taken();
        let taken = self.credit.as_ref().map_or(0, taken);
        TenantCounts { held_by_rate, rate_ns, held_by_in_flight, in_flight_ns, taken }
    }
}

#[cfg(test)]
mod tests;
