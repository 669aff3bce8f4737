//! One limit of one tenant on one core, and its waiting queues.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use super::{Core, Tally, Tenant, Waits};
use crate::permit::Outcome;
use crate::policy::{
    Admission, Ask, BufferCredit, Done, Grant, Policy, SharedCredit, SharedTokens, TokenBucket,
};
use crate::{Charge, Cost, Nanos};

/// Request of a command to a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wish {
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
pub(super) struct Door {
    pub(super) tenant: u64,
    tally: Arc<Tally>,
    limit: Limit,
    /// Waiting queues, by start tag.
    pub(super) waiting: BinaryHeap<Reverse<(u128, u32)>>,
    /// While closed: the wake-up condition.
    pub(super) until: Option<Until>,
    /// Time when it closed.
    since: Nanos,
    /// Start tag of the last command granted.
    pub(super) virtual_time: u128,
    /// Flows that have this limit.
    pub(super) members: u32,
    /// Outstanding grants.
    pub(super) lent: u64,
    /// The limiter is in `Gates::touched`, and in `Gates::closed`.
    pub(super) touched: bool,
    pub(super) listed: bool,
}

#[derive(Debug)]
enum Limit {
    Rate { iops: Option<Bucket>, bandwidth: Option<Bucket>, io_paid: bool },
    InFlight { shared: Arc<SharedCredit>, credit: BufferCredit },
}

#[derive(Debug)]
struct Bucket {
    shared: Arc<SharedTokens>,
    tokens: TokenBucket,
}

/// Wake-up condition of a limiter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Until {
    Time(Nanos),
    Release,
}

impl Bucket {
    fn of(shared: Option<&Arc<SharedTokens>>) -> Option<Self> {
        shared.map(|shared| Self { shared: Arc::clone(shared), tokens: shared.core() })
    }

    /// Changes to the bucket of `wanted`. The same bucket stays, with its reservation.
    fn become_of(&mut self, wanted: &Arc<SharedTokens>) {
        if !Arc::ptr_eq(&self.shared, wanted) {
            *self = Self { shared: Arc::clone(wanted), tokens: wanted.core() };
        }
    }

    fn admit(&mut self, bytes: u32, now: Nanos) -> Result<(), Until> {
        match self.tokens.admit(&ask(bytes), now) {
            Admission::Granted(_) | Admission::OutOfTurn(_) => Ok(()),
            Admission::At(when) => Err(Until::Time(when)),
            Admission::AfterRelease | Admission::NotThisDevice => Err(Until::Release),
        }
    }

    fn take_back(&mut self, bytes: u32, now: Nanos) {
        self.tokens.release(&withdrawn(bytes, now), Grant::default(), now);
    }
}

impl Door {
    /// Creates the limiter for the rates of a tenant, if it has any.
    pub(super) fn rate(tenant: &Tenant) -> Option<Self> {
        let (iops, bandwidth) = (tenant.iops.as_ref(), tenant.bandwidth.as_ref());
        tenant.limits.has_rate().then(|| {
            let (iops, bandwidth) = (Bucket::of(iops), Bucket::of(bandwidth));
            Self::new(tenant, Limit::Rate { iops, bandwidth, io_paid: false })
        })
    }

    /// Creates the limiter for the bytes in flight of a tenant, if they are limited.
    pub(super) fn in_flight(tenant: &Tenant, core: &Core) -> Option<Self> {
        tenant.credit.as_ref().map(|shared| {
            let credit = shared.core(core.index, Arc::clone(&core.waker));
            Self::new(tenant, Limit::InFlight { shared: Arc::clone(shared), credit })
        })
    }

    fn new(tenant: &Tenant, limit: Limit) -> Self {
        Self {
            tenant: tenant.id,
            tally: Arc::clone(&tenant.tally),
            limit,
            waiting: BinaryHeap::new(),
            until: None,
            since: 0,
            virtual_time: 0,
            members: 0,
            lent: 0,
            touched: false,
            listed: false,
        }
    }

    /// Returns whether it limits the rates of this tenant, whatever their current values.
    pub(super) fn is_rate_of(&self, tenant: &Tenant) -> bool {
        matches!(self.limit, Limit::Rate { .. }) && self.tenant == tenant.id
    }

    /// Returns whether it limits exactly the budget of this tenant.
    pub(super) fn is_in_flight_of(&self, tenant: &Tenant) -> bool {
        match (&self.limit, &tenant.credit) {
            (Limit::InFlight { shared, .. }, Some(wanted)) => Arc::ptr_eq(shared, wanted),
            _ => false,
        }
    }

    /// Adopts the current rates of the tenant. Returns true if they changed.
    pub(super) fn renew(&mut self, tenant: &Tenant) -> bool {
        let Limit::Rate { iops, bandwidth, io_paid } = &mut self.limit else { return false };
        let same =
            |bucket: &Option<Bucket>, wanted: &Option<Arc<SharedTokens>>| match (bucket, wanted) {
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
            Limit::Rate { .. } => u32::MAX,
            Limit::InFlight { shared, .. } => shared.largest(),
        }
    }

    /// Asks to pass one command. A grant counts until [`Self::take_back`] or [`Self::give_back`].
    pub(super) fn admit(&mut self, wish: Wish, now: Nanos) -> Result<(), Until> {
        match &mut self.limit {
            Limit::Rate { iops, bandwidth, io_paid } => {
                let Some(bytes) = wish.charge.bytes() else { return Ok(()) };
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
            Limit::InFlight { credit, .. } => {
                credit.admit(&ask(wish.bytes), now).grant().ok_or(Until::Release)?;
                self.lent += 1;
                Ok(())
            }
        }
    }

    /// Reclaims the grant of a command that will not start.
    pub(super) fn take_back(&mut self, wish: Wish, now: Nanos) {
        match &mut self.limit {
            Limit::Rate { iops, bandwidth, .. } => {
                let Some(bytes) = wish.charge.bytes() else { return };
                if let Some(iops) = iops {
                    iops.take_back(1, now);
                }
                if let Some(bandwidth) = bandwidth {
                    bandwidth.take_back(bytes, now);
                }
            }
            Limit::InFlight { .. } => self.give_back(wish.bytes, now),
        }
    }

    /// Releases the grant of a command that has completed.
    pub(super) fn give_back(&mut self, bytes: u32, now: Nanos) {
        if let Limit::InFlight { credit, .. } = &mut self.limit {
            credit.release(&withdrawn(bytes, now), Grant::default(), now);
            self.lent -= 1;
        }
    }

    /// Adds a waiting queue.
    pub(super) fn wait(&mut self, tag: u128, queue: u32, until: Until, now: Nanos) {
        if self.until.is_none() {
            self.since = now;
        }
        self.until = Some(until);
        self.waiting.push(Reverse((tag, queue)));
    }

    /// Counts one more command that has to wait.
    pub(super) fn count_held(&self) {
        self.waits().held();
    }

    /// Opens the limiter: no queue waits.
    pub(super) fn open(&mut self, now: Nanos) {
        if self.until.take().is_some() {
            self.waits().waited(now.saturating_sub(self.since));
        }
    }

    /// Returns what it keeps for a command that never comes.
    pub(super) fn rest(&mut self, now: Nanos) {
        match &mut self.limit {
            Limit::Rate { iops, bandwidth, io_paid } => {
                if let Some(iops) = iops {
                    if std::mem::take(io_paid) {
                        iops.take_back(1, now);
                    }
                    iops.tokens.rest();
                }
                if let Some(bandwidth) = bandwidth {
                    bandwidth.tokens.rest();
                }
            }
            Limit::InFlight { credit, .. } => credit.rest(),
        }
    }

    fn waits(&self) -> &Waits {
        match self.limit {
            Limit::Rate { .. } => &self.tally.rate,
            Limit::InFlight { .. } => &self.tally.in_flight,
        }
    }
}

fn ask(bytes: u32) -> Ask {
    Ask { cost: Cost { bytes }, device: 0, urgency: 0, load: 0, small: false }
}

fn withdrawn(bytes: u32, now: Nanos) -> Done {
    Done { cost: Cost { bytes }, device: 0, outcome: Outcome::Withdrawn, started: now, network: 0 }
}
