//! A bound on the bytes in flight, leased by the cores from one shared budget.

use std::sync::Arc;

use super::shared_credit::{Asked, CreditConfig, SharedCredit};
use super::{Admission, Ask, BudgetTooSmall, Done, Grant, Policy};
use crate::Nanos;

/// Bounds the bytes in flight: one core's end of a [`SharedCredit`].
///
/// The core leases credit in quanta and grants out of its lease, touching no shared memory. When
/// the lease is short it asks the shared budget; when that is out, or other cores wait for it, the
/// core waits in turn and is woken. What it frees while others wait goes to them first.
///
/// A command that is small beside the others ([`SmallRule`](crate::SmallRule)) does not wait for
/// credit to come back: a sixteenth of the budget is set aside beside it for such commands.
///
/// A core with nothing in flight always gets one I/O (*the floor*): if the budget is out, that
/// I/O is not counted against it, until the core is given credit again, which *covers* it first. So the
/// bytes in flight never exceed the budget by more than one I/O a core and the sixteenth for small
/// commands, and where all cores have commands waiting they come down to the budget, or to one I/O a core.
/// (A *strict* budget, as that of one tenant, has neither.) Where the budget became smaller than an I/O,
/// that I/O goes by the floor, whatever else the core has in flight, once nothing is out of the larger one.
///
/// Unused credit never stays out of reach: a core that is refused keeps none (but what the budget became larger by
/// for what it asked, until it asks again), and one that has nothing waiting puts it where others can take it.
#[derive(Debug)]
pub struct BufferCredit {
    shared: Arc<SharedCredit>,
    core: usize,
    /// Credit this core holds, used or not, in bytes.
    leased: u64,
    /// Bytes in flight under the lease.
    in_flight: u64,
    floor: Floor,
    /// Bytes of small commands that are out beside the lease.
    overdraft: u64,
    /// What this core waits for in the shared budget; `None` when it does not wait.
    asked: Option<Asked>,
}

/// The one I/O that a core may start whatever the budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Floor {
    Free,
    /// It is out, so many of its bytes in the lease, and so many beside it.
    Out {
        covered: u64,
        bare: u64,
    },
}

/// The part of the budget that small commands may take beside it while it is out: one in so many.
const OVERDRAFT_PART: u64 = 16;

const LEASED: Grant = Grant(0);
const FLOOR: Grant = Grant(1);
const OVERDRAFT: Grant = Grant(2);

impl BufferCredit {
    /// The budget that the cores share; then [`SharedCredit::core`] makes each core's policy.
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
            floor: Floor::Free,
            overdraft: 0,
            asked: None,
        }
    }

    /// Bytes of the lease that no I/O uses.
    fn surplus(&self) -> u64 {
        self.leased - self.in_flight
    }

    fn grant(&mut self, bytes: u64) -> Admission {
        self.in_flight += bytes;
        Admission::Granted(LEASED)
    }

    /// The lease is short: get more, or use the floor, or wait.
    #[cold]
    fn admit_short(&mut self, bytes: u64, ask: &Ask) -> Admission {
        self.leased += self.shared.take_back(self.core);
        self.collect();
        loop {
            self.cover();
            if let bare @ 1.. = self.bare() {
                let more = self.shared.take_free_up_to(bare, self.asked.is_some());
                self.leased += more;
                if more > 0 {
                    continue;
                }
                self.wait_for(Asked { bytes: bare, bare: true }, ask);
            } else if self.has_or_takes(bytes) {
                return self.grant(bytes);
            } else if self.may_use_floor(bytes) {
                return self.grant_floor(bytes, ask);
            } else {
                self.wait_for(Asked { bytes, bare: false }, ask);
            }
            self.collect();
            if self.asked.is_some() {
                return Admission::AfterRelease;
            }
        }
    }

    /// What is out by the floor comes first, or each core would have that beside its part of the budget.
    fn cover(&mut self) {
        let surplus = self.surplus();
        if let Floor::Out { covered, bare } = &mut self.floor {
            let more = surplus.min(*bare);
            (*covered, *bare) = (*covered + more, *bare - more);
            self.in_flight += more;
        }
    }

    /// Is so much of the lease unused, with what is free and nobody waits for?
    fn has_or_takes(&mut self, bytes: u64) -> bool {
        if self.surplus() < bytes {
            let short = bytes - self.surplus();
            self.leased += self.shared.take_free(short, self.asked.is_some());
        }
        self.surplus() >= bytes
    }

    /// Bytes in flight beside the lease.
    fn bare(&self) -> u64 {
        match self.floor {
            Floor::Free => 0,
            Floor::Out { bare, .. } => bare,
        }
    }

    /// With nothing in flight, or where no lease can ever be enough: what is in flight may never come back.
    fn may_use_floor(&self, bytes: u64) -> bool {
        let is_next = self.in_flight == 0 || self.shared.is_below(bytes);
        is_next && !self.shared.is_strict() && self.floor == Floor::Free
    }

    /// The budget becomes larger, until it is set again, by credit for an I/O of so many bytes, which the core has when it
    /// asks again, soon; and by what is out by the floor, which would have it otherwise. Yields by how much.
    pub(super) fn lease_more(&mut self, bytes: u64) -> u64 {
        let more = bytes + self.bare();
        self.stop_waiting();
        self.shared.grow(more);
        self.leased += more;
        self.cover();
        self.shared.wake(self.core);
        more
    }

    fn grant_floor(&mut self, bytes: u64, ask: &Ask) -> Admission {
        self.floor = Floor::Out { covered: 0, bare: bytes };
        self.cover();
        match self.shared.is_urgent(self.core, bytes, ask.urgency) {
            true => Admission::Granted(FLOOR),
            false => Admission::OutOfTurn(FLOOR),
        }
    }

    /// Waits in turn, keeping nothing meanwhile.
    fn wait_for(&mut self, asked: Asked, ask: &Ask) {
        let surplus = self.surplus();
        self.leased = self.in_flight;
        let before = self.asked.replace(asked);
        let changed = before != Some(asked);
        self.shared.hurry(self.core, ask.urgency, ask.load);
        match before {
            None => self.shared.start_waiting(self.core, asked),
            Some(before) if changed => self.shared.change_ask(self.core, before, asked),
            Some(_) => {}
        }
        if changed || surplus > 0 {
            self.shared.give(surplus, self.core);
        }
    }

    /// Takes what was granted to this core while it waited.
    fn collect(&mut self) {
        if self.asked.is_none() {
            return;
        }
        if let Some(granted) = self.shared.collect(self.core) {
            self.leased += granted;
            self.asked = None;
            self.shared.settle(self.core);
        }
    }

    /// Gives the surplus to the cores that wait.
    #[cold]
    fn give_surplus(&mut self) {
        let surplus = self.surplus();
        self.leased = self.in_flight;
        if surplus > 0 {
            self.shared.give(surplus, self.core);
        }
        self.shared.settle(self.core);
    }

    /// What was granted beside the lease comes back; it may have been covered meanwhile.
    #[cold]
    fn release_unleased(&mut self, bytes: u32, grant: Grant) {
        if grant == OVERDRAFT {
            self.overdraft -= u64::from(bytes);
            return;
        }
        if let Floor::Out { covered, .. } = std::mem::replace(&mut self.floor, Floor::Free) {
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
        self.asked = None;
    }
}

impl Policy for BufferCredit {
    fn largest(&self) -> u32 {
        self.shared.largest()
    }

    #[inline(always)]
    fn admit(&mut self, ask: &Ask, _now: Nanos) -> Admission {
        let bytes = u64::from(ask.cost.bytes);
        let in_flight = self.in_flight.wrapping_add(bytes);
        if in_flight <= self.leased {
            self.in_flight = in_flight;
            Admission::Granted(LEASED)
        } else if ask.small
            && !self.shared.is_strict()
            && self.overdraft + bytes <= self.shared.share() / OVERDRAFT_PART
        {
            self.overdraft += bytes;
            Admission::Granted(OVERDRAFT)
        } else {
            self.admit_short(bytes, &ask.apart())
        }
    }

    #[inline(always)]
    fn release(&mut self, done: &Done, grant: Grant, _now: Nanos) {
        if grant != LEASED {
            return self.release_unleased(done.cost.bytes, grant);
        }
        self.release_leased(u64::from(done.cost.bytes));
    }

    #[inline]
    fn rest(&mut self) {
        if self.asked.is_some() {
            self.stop_waiting();
        }
        let surplus = self.surplus();
        if surplus > 0 {
            self.leased = self.in_flight;
            if self.shared.lay_open(self.core, surplus) {
                self.shared.settle(self.core);
            }
        }
    }
}

impl Drop for BufferCredit {
    fn drop(&mut self) {
        self.stop_waiting();
        let held = self.leased + self.shared.take_back(self.core);
        self.shared.give(held, self.core);
        self.shared.leave(self.core);
    }
}
