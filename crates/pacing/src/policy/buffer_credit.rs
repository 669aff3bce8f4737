//! Bound on the bytes in flight, leased by the cores from one shared budget.

use std::sync::Arc;

use super::shared_credit::{CreditConfig, CreditRequest, SharedCredit};
use super::{
    Admission, AdmissionPolicy, AdmissionRequest, BudgetTooSmall, CompletedCommand, Grant,
};
use crate::Nanos;

/// Bounds the bytes in flight: one core's policy over a [`SharedCredit`].
///
/// The core leases credit in quanta and grants from its lease without touching shared memory. When
/// the lease is short it asks the shared budget. If that is exhausted, or other cores wait for it,
/// the core waits in turn and is woken. Credit that it frees while others wait goes to them first.
///
/// A command that is small relative to the others ([`SmallCommandRule`](crate::SmallCommandRule))
/// does not wait for credit: 1/16 of the budget is available in addition, as an *overdraft* for
/// these commands.
///
/// A core with nothing in flight always gets one I/O (*minimum grant*). If the budget is exhausted,
/// that I/O is not counted against it until the core gets credit again, which *covers* it first.
/// The bytes in flight thus never exceed the budget by more than one I/O per core and the
/// overdraft. Where all cores have commands waiting they fall to the budget, or to one I/O per
/// core. (A *strict* budget, as that of one tenant, has neither.)
///
/// If the budget became smaller than an I/O, that I/O starts by the minimum grant, whatever else
/// the core has in flight. It does so once no bytes of the larger budget are in use.
///
/// Unused credit never stays out of reach. A deferred core keeps none, except an enlargement of the
/// budget for its request, until it asks again. A core with nothing waiting offers its credit to
/// other cores.
#[derive(Debug)]
pub struct BufferCredit {
    shared: Arc<SharedCredit>,
    core: usize,
    /// Credit that this core holds, used or not, in bytes.
    leased: u64,
    /// Bytes in flight under the lease.
    in_flight: u64,
    minimum_grant: MinimumGrant,
    /// Bytes of small commands in flight beyond the lease.
    overdraft: u64,
    /// Request of this core to the shared budget; `None` when it does not wait.
    credit_request: Option<CreditRequest>,
}

/// Minimum grant: the one I/O that a core may start whatever the budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MinimumGrant {
    Free,
    /// It is in flight, with `covered` bytes in the lease and `uncovered` bytes uncovered.
    Out {
        covered: u64,
        uncovered: u64,
    },
}

/// Overdraft of small commands when the budget is exhausted: 1/`OVERDRAFT_PART` of the budget.
const OVERDRAFT_PART: u64 = 16;

const LEASED: Grant = Grant(0);
const MINIMUM_GRANT: Grant = Grant(1);
const OVERDRAFT: Grant = Grant(2);

impl BufferCredit {
    /// Creates the budget that the cores share; [`SharedCredit::core`] then makes each core's
    /// policy.
    ///
    /// # Errors
    /// [`BudgetTooSmall`] if the largest I/O does not fit the budget.
    pub fn shared(config: CreditConfig) -> Result<Arc<SharedCredit>, BudgetTooSmall> {
        SharedCredit::new(config)
    }

    pub(super) fn new(shared: Arc<SharedCredit>, core: usize) -> Self {
        Self {
            shared,
            core,
            leased: 0,
            in_flight: 0,
            minimum_grant: MinimumGrant::Free,
            overdraft: 0,
            credit_request: None,
        }
    }

    /// Returns the bytes of the lease that no I/O uses.
    fn surplus(&self) -> u64 {
        self.leased - self.in_flight
    }

    fn grant(&mut self, bytes: u64) -> Admission {
        self.in_flight += bytes;
        Admission::Granted(LEASED)
    }

    /// Handles a short lease: takes more, uses the minimum grant, or waits.
    #[cold]
    fn admit_short(&mut self, bytes: u64, request: &AdmissionRequest) -> Admission {
        self.leased += self.shared.reclaim(self.core);
        self.collect();
        loop {
            self.cover();
            if let uncovered @ 1.. = self.uncovered() {
                let more = self.shared.take_free_up_to(uncovered, self.credit_request.is_some());
                self.leased += more;
                if more > 0 {
                    continue;
                }
                self.wait_for(CreditRequest { bytes: uncovered, uncovered: true }, request);
            } else if self.has_or_takes(bytes) {
                return self.grant(bytes);
            } else if self.may_use_minimum_grant(bytes) {
                return self.grant_minimum(bytes, request);
            } else {
                self.wait_for(CreditRequest { bytes, uncovered: false }, request);
            }
            self.collect();
            if self.credit_request.is_some() {
                return Admission::WaitForRelease;
            }
        }
    }

    /// Covers the minimum grant first; otherwise each core would have it in addition to its part of
    /// the budget.
    fn cover(&mut self) {
        let surplus = self.surplus();
        if let MinimumGrant::Out { covered, uncovered } = &mut self.minimum_grant {
            let more = surplus.min(*uncovered);
            (*covered, *uncovered) = (*covered + more, *uncovered - more);
            self.in_flight += more;
        }
    }

    /// Returns whether `bytes` of the lease are unused, after taking free credit that no core waits
    /// for.
    fn has_or_takes(&mut self, bytes: u64) -> bool {
        if self.surplus() < bytes {
            let short = bytes - self.surplus();
            self.leased += self.shared.take_free(short, self.credit_request.is_some());
        }
        self.surplus() >= bytes
    }

    /// Returns the uncovered bytes in flight.
    fn uncovered(&self) -> u64 {
        match self.minimum_grant {
            MinimumGrant::Free => 0,
            MinimumGrant::Out { uncovered, .. } => uncovered,
        }
    }

    /// Returns whether the minimum grant applies: with nothing in flight, or if no lease can ever
    /// suffice, since the bytes in flight may never be released.
    fn may_use_minimum_grant(&self, bytes: u64) -> bool {
        let is_next = self.in_flight == 0 || self.shared.is_below(bytes);
        is_next && !self.shared.is_strict() && self.minimum_grant == MinimumGrant::Free
    }

    /// Enlarges the budget, until it is set again, by credit for an I/O of `bytes`, and by the
    /// uncovered bytes, which would take that credit otherwise. The core holds the credit and is
    /// woken to ask again. Returns the enlargement.
    pub(super) fn lease_more(&mut self, bytes: u64) -> u64 {
        let more = bytes + self.uncovered();
        self.stop_waiting();
        self.shared.grow(more);
        self.leased += more;
        self.cover();
        self.shared.wake(self.core);
        more
    }

    fn grant_minimum(&mut self, bytes: u64, request: &AdmissionRequest) -> Admission {
        self.minimum_grant = MinimumGrant::Out { covered: 0, uncovered: bytes };
        self.cover();
        match self.shared.is_urgent(self.core, bytes, request.urgency) {
            true => Admission::Granted(MINIMUM_GRANT),
            false => Admission::GrantedOutOfOrder(MINIMUM_GRANT),
        }
    }

    /// Waits in turn, and keeps no surplus.
    fn wait_for(&mut self, credit_request: CreditRequest, request: &AdmissionRequest) {
        let surplus = self.surplus();
        self.leased = self.in_flight;
        let before = self.credit_request.replace(credit_request);
        let changed = before != Some(credit_request);
        self.shared.set_urgency(self.core, request.urgency, request.load);
        match before {
            None => self.shared.start_waiting(self.core, credit_request),
            Some(before) if changed => {
                self.shared.change_request(self.core, before, credit_request);
            }
            Some(_) => {}
        }
        if changed || surplus > 0 {
            self.shared.give(surplus, self.core);
        }
    }

    /// Collects the credit that was granted while this core waited.
    fn collect(&mut self) {
        if self.credit_request.is_none() {
            return;
        }
        if let Some(granted) = self.shared.collect(self.core) {
            self.leased += granted;
            self.credit_request = None;
            self.shared.settle(self.core);
        }
    }

    /// Gives the surplus to the waiting cores.
    #[cold]
    fn give_surplus(&mut self) {
        let surplus = self.surplus();
        self.leased = self.in_flight;
        if surplus > 0 {
            self.shared.give(surplus, self.core);
        }
        self.shared.settle(self.core);
    }

    /// Releases a grant outside the lease; it may have been covered since.
    #[cold]
    fn release_unleased(&mut self, bytes: u32, grant: Grant) {
        if grant == OVERDRAFT {
            self.overdraft -= u64::from(bytes);
            return;
        }
        if let MinimumGrant::Out { covered, .. } =
            std::mem::replace(&mut self.minimum_grant, MinimumGrant::Free)
        {
            self.release_leased(covered);
        }
    }

    #[inline(always)]
    fn release_leased(&mut self, bytes: u64) {
        self.in_flight = self.in_flight.wrapping_sub(bytes);
        if self.shared.others_wait(self.core) {
            self.give_surplus();
        }
    }

    #[cold]
    fn stop_waiting(&mut self) {
        if let Some(granted) = self.shared.stop_waiting(self.core) {
            self.leased += granted;
        }
        self.credit_request = None;
    }
}

impl AdmissionPolicy for BufferCredit {
    fn largest(&self) -> u32 {
        self.shared.largest()
    }

    #[inline(always)]
    fn admit(&mut self, request: &AdmissionRequest, _now: Nanos) -> Admission {
        let bytes = u64::from(request.cost.bytes);
        let in_flight = self.in_flight.wrapping_add(bytes);
        if in_flight <= self.leased {
            self.in_flight = in_flight;
            Admission::Granted(LEASED)
        } else if request.small
            && !self.shared.is_strict()
            && self.overdraft + bytes <= self.shared.share() / OVERDRAFT_PART
        {
            self.overdraft += bytes;
            Admission::Granted(OVERDRAFT)
        } else {
            self.admit_short(bytes, &request.copy_fields())
        }
    }

    #[inline(always)]
    fn release(&mut self, done: &CompletedCommand, grant: Grant, _now: Nanos) {
        if grant != LEASED {
            return self.release_unleased(done.cost.bytes, grant);
        }
        self.release_leased(u64::from(done.cost.bytes));
    }

    #[inline]
    fn return_unused(&mut self) {
        if self.credit_request.is_some() {
            self.stop_waiting();
        }
        let surplus = self.surplus();
        if surplus > 0 {
            self.leased = self.in_flight;
            if self.shared.offer(self.core, surplus) {
                self.shared.settle(self.core);
            }
        }
    }
}

impl Drop for BufferCredit {
    fn drop(&mut self) {
        self.stop_waiting();
        let held = self.leased + self.shared.reclaim(self.core);
        self.shared.give(held, self.core);
        self.shared.leave(self.core);
    }
}
