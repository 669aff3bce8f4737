//! One limit of one tenant on one core, and its waiting queues.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use super::{CoreHandle, Tenant, TenantCounters, WaitCounters};
use crate::permit::CommandOutcome;
use crate::policy::{
    Admission, AdmissionPolicy, AdmissionRequest, BufferCredit, CompletedCommand, Grant,
    SharedCredit, SharedTokenBucket, TokenBucket,
};
use crate::{Charge, Cost, Nanos};

/// Request of a command to a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LimitRequest {
    /// Bytes of its buffer.
    pub(super) bytes: u32,
    /// Amount that it counts against a rate.
    pub(super) charge: Charge,
}

/// Limiter of one limit. Queues that are deferred wait here, lowest start tag first.
///
/// ```text
///   open ── deferred: Until::Time or Until::Release ──▶ closed, at least one queue waits
///     ▲                                                  │
///     └── the time has come, or bytes were released ─────┘  the first queue asks again
/// ```
#[derive(Debug)]
pub(super) struct Limiter {
    pub(super) tenant: u64,
    counters: Arc<TenantCounters>,
    limit: LimiterKind,
    /// Waiting queues, by start tag.
    pub(super) waiting: BinaryHeap<Reverse<(u128, u32)>>,
    /// While closed: the wake-up condition.
    pub(super) until: Option<BlockedUntil>,
    /// Time when it closed.
    since: Nanos,
    /// Start tag of the last command granted.
    pub(super) virtual_time: u128,
    /// Flows that have this limit.
    pub(super) limited_flows: u32,
    /// Outstanding grants.
    pub(super) outstanding: u64,
    /// The limiter is in `TenantLimiters::touched`, and in `TenantLimiters::closed`.
    pub(super) touched: bool,
    pub(super) listed: bool,
}

#[derive(Debug)]
enum LimiterKind {
    Rate { iops: Option<Bucket>, bandwidth: Option<Bucket>, io_paid: bool },
    InFlight { shared: Arc<SharedCredit>, credit: BufferCredit },
}

#[derive(Debug)]
struct Bucket {
    shared: Arc<SharedTokenBucket>,
    tokens: TokenBucket,
}

/// Wake-up condition of a limiter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BlockedUntil {
    Time(Nanos),
    Release,
}

impl Bucket {
    fn of(shared: Option<&Arc<SharedTokenBucket>>) -> Option<Self> {
        shared.map(|shared| Self { shared: Arc::clone(shared), tokens: shared.core() })
    }

    /// Changes to the bucket of `wanted`. The same bucket stays, with its reservation.
    fn become_of(&mut self, wanted: &Arc<SharedTokenBucket>) {
        if !Arc::ptr_eq(&self.shared, wanted) {
            *self = Self { shared: Arc::clone(wanted), tokens: wanted.core() };
        }
    }

    fn admit(&mut self, bytes: u32, now: Nanos) -> Result<(), BlockedUntil> {
        match self.tokens.admit(&request(bytes), now) {
            Admission::Granted(_) | Admission::GrantedOutOfOrder(_) => Ok(()),
            Admission::WaitUntil(when) => Err(BlockedUntil::Time(when)),
            Admission::WaitForRelease | Admission::DeviceBusy => Err(BlockedUntil::Release),
        }
    }

    fn cancel(&mut self, bytes: u32, now: Nanos) {
        self.tokens.release(&cancelled(bytes, now), Grant::default(), now);
    }
}

impl Limiter {
    /// Creates the limiter for the rates of a tenant, if it has any.
    pub(super) fn rate(tenant: &Tenant) -> Option<Self> {
        let (iops, bandwidth) = (tenant.iops.as_ref(), tenant.bandwidth.as_ref());
        tenant.limits.has_rate().then(|| {
            let (iops, bandwidth) = (Bucket::of(iops), Bucket::of(bandwidth));
            Self::new(tenant, LimiterKind::Rate { iops, bandwidth, io_paid: false })
        })
    }

    /// Creates the limiter for the bytes in flight of a tenant, if they are limited.
    pub(super) fn in_flight(tenant: &Tenant, core: &CoreHandle) -> Option<Self> {
        tenant.credit.as_ref().map(|shared| {
            let credit = shared.core(core.index, Arc::clone(&core.waker));
            Self::new(tenant, LimiterKind::InFlight { shared: Arc::clone(shared), credit })
        })
    }

    fn new(tenant: &Tenant, limit: LimiterKind) -> Self {
        Self {
            tenant: tenant.id,
            counters: Arc::clone(&tenant.counters),
            limit,
            waiting: BinaryHeap::new(),
            until: None,
            since: 0,
            virtual_time: 0,
            limited_flows: 0,
            outstanding: 0,
            touched: false,
            listed: false,
        }
    }

    /// Returns whether it limits the rates of this tenant, whatever their current values.
    pub(super) fn is_rate_of(&self, tenant: &Tenant) -> bool {
        matches!(self.limit, LimiterKind::Rate { .. }) && self.tenant == tenant.id
    }

    /// Returns whether it limits exactly the budget of this tenant.
    pub(super) fn is_in_flight_of(&self, tenant: &Tenant) -> bool {
        match (&self.limit, &tenant.credit) {
            (LimiterKind::InFlight { shared, .. }, Some(wanted)) => Arc::ptr_eq(shared, wanted),
            _ => false,
        }
    }

    /// Adopts the current rates of the tenant. Returns true if they changed.
    pub(super) fn renew(&mut self, tenant: &Tenant) -> bool {
        let LimiterKind::Rate { iops, bandwidth, io_paid } = &mut self.limit else { return false };
        let same = |bucket: &Option<Bucket>, wanted: &Option<Arc<SharedTokenBucket>>| match (
            bucket, wanted,
        ) {
            (Some(bucket), Some(wanted)) => Arc::ptr_eq(&bucket.shared, wanted),
            (None, None) => true,
            _ => false,
        };
        if same(iops, &tenant.iops) && same(bandwidth, &tenant.bandwidth) {
            return false;
        }
        if !same(iops, &tenant.iops) {
            *io_paid = false;
        }
        for (bucket, wanted) in [(iops, &tenant.iops), (bandwidth, &tenant.bandwidth)] {
            match (bucket.as_mut(), wanted) {
                (Some(bucket), Some(wanted)) => bucket.become_of(wanted),
                _ => *bucket = Bucket::of(wanted.as_ref()),
            }
        }
        true
    }

    /// Returns the largest buffer that can ever pass.
    pub(super) fn largest(&self) -> u32 {
        match &self.limit {
            LimiterKind::Rate { .. } => u32::MAX,
            LimiterKind::InFlight { shared, .. } => shared.largest(),
        }
    }

    /// Asks to pass one command. A grant counts until [`Self::cancel`] or [`Self::release`].
    pub(super) fn admit(
        &mut self,
        limit_request: LimitRequest,
        now: Nanos,
    ) -> Result<(), BlockedUntil> {
        match &mut self.limit {
            LimiterKind::Rate { iops, bandwidth, io_paid } => {
                let Some(bytes) = limit_request.charge.bytes() else { return Ok(()) };
                // All I/Os cost the same here, so the next command uses a token that is already
                // paid.
                if let Some(iops) = iops.as_mut().filter(|_| !*io_paid) {
                    iops.admit(1, now)?;
                    *io_paid = true;
                }
                if let Some(bandwidth) = bandwidth {
                    bandwidth.admit(bytes, now)?;
                }
                *io_paid = false;
                Ok(())
            }
            LimiterKind::InFlight { credit, .. } => {
                credit
                    .admit(&request(limit_request.bytes), now)
                    .grant()
                    .ok_or(BlockedUntil::Release)?;
                self.outstanding += 1;
                Ok(())
            }
        }
    }

    /// Reclaims the grant of a command that will not start.
    pub(super) fn cancel(&mut self, limit_request: LimitRequest, now: Nanos) {
        match &mut self.limit {
            LimiterKind::Rate { iops, bandwidth, .. } => {
                let Some(bytes) = limit_request.charge.bytes() else { return };
                if let Some(iops) = iops {
                    iops.cancel(1, now);
                }
                if let Some(bandwidth) = bandwidth {
                    bandwidth.cancel(bytes, now);
                }
            }
            LimiterKind::InFlight { .. } => self.release(limit_request.bytes, now),
        }
    }

    /// Releases the grant of a command that has completed.
    pub(super) fn release(&mut self, bytes: u32, now: Nanos) {
        if let LimiterKind::InFlight { credit, .. } = &mut self.limit {
            credit.release(&cancelled(bytes, now), Grant::default(), now);
            self.outstanding -= 1;
        }
    }

    /// Adds a waiting queue.
    pub(super) fn wait(&mut self, tag: u128, queue: u32, until: BlockedUntil, now: Nanos) {
        if self.until.is_none() {
            self.since = now;
        }
        self.until = Some(until);
        self.waiting.push(Reverse((tag, queue)));
    }

    /// Counts one more command that has to wait.
    pub(super) fn count_throttled(&self) {
        self.waits().throttled();
    }

    /// Opens the limiter: no queue waits.
    pub(super) fn open(&mut self, now: Nanos) {
        if self.until.take().is_some() {
            self.waits().waited(now.saturating_sub(self.since));
        }
    }

    /// Returns what it keeps for a command that never comes.
    pub(super) fn return_unused(&mut self, now: Nanos) {
        match &mut self.limit {
            LimiterKind::Rate { iops, bandwidth, io_paid } => {
                if let Some(iops) = iops {
                    if std::mem::take(io_paid) {
                        iops.cancel(1, now);
                    }
                    iops.tokens.return_unused();
                }
                if let Some(bandwidth) = bandwidth {
                    bandwidth.tokens.return_unused();
                }
            }
            LimiterKind::InFlight { credit, .. } => credit.return_unused(),
        }
    }

    fn waits(&self) -> &WaitCounters {
        match self.limit {
            LimiterKind::Rate { .. } => &self.counters.rate,
            LimiterKind::InFlight { .. } => &self.counters.in_flight,
        }
    }
}

fn request(bytes: u32) -> AdmissionRequest {
    AdmissionRequest { cost: Cost { bytes }, device: 0, urgency: 0, load: 0, small: false }
}

fn cancelled(bytes: u32, now: Nanos) -> CompletedCommand {
    CompletedCommand {
        cost: Cost { bytes },
        device: 0,
        outcome: CommandOutcome::Cancelled,
        started: now,
        network: 0,
    }
}
