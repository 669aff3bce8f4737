//! Limits of tenants: hosts and namespaces with a maximum of I/Os or bytes per second, or of bytes
//! in flight.
//!
//! ```text
//!              the flow's own                      shared by all flows of the core
//!   enqueue ─▶ without a buffer ─┐  rate of its host,       ┌─▶ express, starts immediately
//!          ─▶ small             ─┼▶ rate of its namespace, ─┼─▶ small     ─┐ scheduler and
//!          ─▶ flow queue        ─┘  in flight of its host   └─▶ flow queue ─┴▶ policies ─▶ permit
//! ```
//!
//! A limit is like a policy that applies to some flows only and comes before the scheduler. A flow
//! that exceeds its limit is not in the scheduler, so it delays no other flow. Each of the three
//! queues of a flow waits independently. A command with in-capsule data therefore waits for a rate,
//! but never for data.
//!
//! A command passes one limit after the other. It keeps the grant of one while it waits for the
//! next; if it returned the grant, two contended limits could alternate forever. In each queue at
//! most one command holds grants and waits for other limits, or for the chain of policies.
//!
//! A [`Tenant`] is the state that the cores share: token buckets with one word of state each, and a
//! strict budget ([`SharedCredit`]). Each core serves the commands that wait for one limit in the
//! order of their start tags, bytes over weight (start-time fair queueing). The flows of one tenant
//! thus share its limits by weight.
//!
//! A flow without limits bypasses this module.

mod limited_flow;
mod limiter;
mod limiters;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::Nanos;
use crate::catalog::{ConfigError, PacedMachine};
use crate::policy::{CreditConfig, RateLimit, SharedCredit, SharedTokenBucket, Waker};

pub(crate) use limited_flow::CommandClass;
pub(crate) use limiters::{Assigned, TenantLimiters};

/// Limits of a tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TenantLimits {
    /// I/Os per second. The caller decides whether a flush and I/Os without data count, see
    /// [`Charge`](crate::Charge).
    pub iops: Option<u64>,
    /// Bytes moved per second.
    pub bandwidth: Option<u64>,
    /// Burst that may start after a quiet time, as the time in which the rate supplies it.
    pub burst: Nanos,
    /// Bytes of buffers in flight; at least one largest I/O.
    pub in_flight: Option<u64>,
}

impl TenantLimits {
    /// Returns whether any limit is set.
    #[must_use]
    pub fn is_any(&self) -> bool {
        self.has_rate() || self.in_flight.is_some()
    }

    fn has_rate(&self) -> bool {
        self.iops.is_some() || self.bandwidth.is_some()
    }
}

/// A tenant, shared by all cores. Its limits never change: [`Tenant::change`] makes a new value
/// with the same identity.
#[derive(Debug)]
pub struct Tenant {
    id: u64,
    limits: TenantLimits,
    iops: Option<Arc<SharedTokenBucket>>,
    bandwidth: Option<Arc<SharedTokenBucket>>,
    credit: Option<Arc<SharedCredit>>,
    counters: Arc<TenantCounters>,
}

/// The tenants of a flow.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tenants<'a> {
    /// The host that sent the command.
    pub host: Option<&'a Arc<Tenant>>,
    /// The namespace that the command is for. Only its rates count: bytes in flight are limited per
    /// host.
    pub namespace: Option<&'a Arc<Tenant>>,
}

/// One core, for tenants.
#[derive(Clone)]
pub struct CoreHandle {
    /// Its number, from 0.
    pub index: usize,
    /// Called when the core waited for bytes in flight and may continue.
    pub waker: Waker,
}

impl std::fmt::Debug for CoreHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Core").field("index", &self.index).finish_non_exhaustive()
    }
}

/// Number and duration of throttling by the limits of a tenant, on all cores together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TenantStats {
    /// Commands that had to wait for the rate.
    pub throttled_by_rate: u64,
    /// Time in ns during which commands waited for the rate, summed over the cores.
    pub rate_ns: Nanos,
    /// Commands that had to wait for bytes in flight.
    pub throttled_by_in_flight: u64,
    /// As `rate_ns`, for bytes in flight.
    pub in_flight_ns: Nanos,
    /// Bytes in flight or about to be, if they are limited. Slightly more than are in flight,
    /// because a core takes some in advance.
    pub taken: u64,
}

#[derive(Debug, Default)]
pub(crate) struct TenantCounters {
    rate: WaitCounters,
    in_flight: WaitCounters,
}

/// Counters of one kind of limit. They change only when a command has to wait.
#[derive(Debug, Default)]
pub(crate) struct WaitCounters {
    throttled: AtomicU64,
    nanos: AtomicU64,
}

impl WaitCounters {
    fn throttled(&self) {
        self.throttled.fetch_add(1, Ordering::Relaxed);
    }

    fn waited(&self, nanos: Nanos) {
        self.nanos.fetch_add(nanos, Ordering::Relaxed);
    }

    fn both(&self) -> (u64, Nanos) {
        (self.throttled.load(Ordering::Relaxed), self.nanos.load(Ordering::Relaxed))
    }
}

impl Tenant {
    /// Creates a new tenant on `machine`.
    ///
    /// # Errors
    /// [`ConfigError`] names the limit that is invalid, and the reason.
    pub fn new(limits: TenantLimits, machine: PacedMachine) -> Result<Arc<Self>, ConfigError> {
        static NEXT_ID: AtomicU64 = AtomicU64::new(0);
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        Self::build(id, limits, machine, None, Arc::default())
    }

    /// Creates the same tenant with other limits, for
    /// [`Pacer::set_tenants`](crate::Pacer::set_tenants) on every core. Bytes in flight count
    /// against the new bound as against the old one. The bound changes with this call. A rate that
    /// changes starts with a full burst.
    ///
    /// # Errors
    /// As [`Tenant::new`]; then nothing has changed.
    pub fn change(
        &self,
        limits: TenantLimits,
        machine: PacedMachine,
    ) -> Result<Arc<Self>, ConfigError> {
        Self::build(self.id, limits, machine, Some(self), Arc::clone(&self.counters))
    }

    fn build(
        id: u64,
        limits: TenantLimits,
        machine: PacedMachine,
        before: Option<&Self>,
        counters: Arc<TenantCounters>,
    ) -> Result<Arc<Self>, ConfigError> {
        let same_burst = before.filter(|before| before.limits.burst == limits.burst);
        let bucket = |limit: Option<RateLimit>, partial: Option<Arc<SharedTokenBucket>>| match (
            limit, partial,
        ) {
            (None, _) => Ok(None),
            (_, Some(partial)) => Ok(Some(partial)),
            (Some(limit), None) => SharedTokenBucket::limit(limit, limits.burst, machine).map(Some),
        };
        let partial = same_burst.filter(|before| before.limits.iops == limits.iops);
        let iops = bucket(
            limits.iops.map(RateLimit::Ios),
            partial.and_then(|partial| partial.iops.clone()),
        )?;
        let partial = same_burst.filter(|before| before.limits.bandwidth == limits.bandwidth);
        let partial = partial.and_then(|partial| partial.bandwidth.clone());
        let bandwidth = bucket(limits.bandwidth.map(RateLimit::Bytes), partial)?;
        let credit = match limits.in_flight {
            None => None,
            Some(budget) => {
                let PacedMachine { cores, largest } = machine;
                // Made even if one is kept: it checks whether the bound can work.
                let made = SharedCredit::strict(CreditConfig { budget, largest, cores })?;
                let partial = before.and_then(|before| before.credit.clone());
                if let Some(partial) = &partial {
                    partial.resize(budget, usize::MAX);
                }
                Some(partial.unwrap_or(made))
            }
        };
        Ok(Arc::new(Self { id, limits, iops, bandwidth, credit, counters }))
    }

    /// Returns its limits.
    #[must_use]
    pub fn limits(&self) -> &TenantLimits {
        &self.limits
    }

    /// Returns the largest buffer that the tenant can ever have in flight.
    pub(crate) fn largest(&self) -> u32 {
        self.credit.as_ref().map_or(u32::MAX, |credit| credit.largest())
    }

    /// Returns its throttling counters and the bytes taken.
    #[must_use]
    pub fn counts(&self) -> TenantStats {
        let (throttled_by_rate, rate_ns) = self.counters.rate.both();
        let (throttled_by_in_flight, in_flight_ns) = self.counters.in_flight.both();
        let taken = |credit: &Arc<SharedCredit>| credit.taken();
        let taken = self.credit.as_ref().map_or(0, taken);
        TenantStats { throttled_by_rate, rate_ns, throttled_by_in_flight, in_flight_ns, taken }
    }
}

#[cfg(test)]
mod tests;
