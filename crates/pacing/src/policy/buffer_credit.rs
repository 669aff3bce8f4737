//! A bound on the bytes in flight, leased by the cores from one shared budget.

use std::sync::Arc;

use super::shared_credit::{CreditConfig, SharedCredit};
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
/// I/O is not counted against it. So the bytes in flight never exceed the budget by more than one
/// I/O a core and the sixteenth for small commands. (A *strict* budget, as that of one tenant, has
/// neither.) Where the budget became smaller than an I/O, that I/O goes by the floor.
///
/// Unused credit never stays out of reach: a core that is refused keeps none, and one that has
/// nothing waiting puts it where others can take it.
#[derive(Debug)]
pub struct BufferCredit {
    shared: Arc<SharedCredit>,
    core: usize,
    /// Credit this core holds, used or not, in bytes.
    leased: u64,
    /// Bytes in flight under the lease.
    in_flight: u64,
    /// The one I/O outside the budget is out.
    floor_out: bool,
    /// Bytes of small commands that are out beside the lease.
    overdraft: u64,
    /// The cost this core waits for in the shared budget; 0 when it does not wait.
    asked: u64,
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
        Self { shared, core, leased: 0, in_flight: 0, floor_out: false, overdraft: 0, asked: 0 }
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
        if self.surplus() < bytes {
            let short = bytes - self.surplus();
            self.leased += self.shared.take_free(short, self.asked != 0);
        }
        if self.surplus() >= bytes {
            return self.grant(bytes);
        }
        if self.in_flight == 0 && !self.floor_out && !self.shared.is_strict() {
            self.floor_out = true;
            return match self.shared.is_urgent(self.core, bytes, ask.urgency) {
                true => Admission::Granted(FLOOR),
                false => Admission::OutOfTurn(FLOOR),
            };
        }
        self.wait_for(bytes, ask);
        self.collect();
        if self.surplus() >= bytes {
            return self.grant(bytes);
        }
        Admission::AfterRelease
    }

    /// Waits in turn for `bytes`, keeping nothing meanwhile.
    fn wait_for(&mut self, bytes: u64, ask: &Ask) {
        let surplus = self.surplus();
        self.leased = self.in_flight;
        let changed = self.asked != bytes;
        self.shared.hurry(self.core, ask.urgency, ask.load);
        if self.asked == 0 {
            self.shared.start_waiting(self.core, bytes);
        } else if changed {
            self.shared.change_ask(self.core, self.asked, bytes);
        }
        self.asked = bytes;
        if changed || surplus > 0 {
            self.shared.give(surplus, self.core);
        }
    }

    /// Takes what was granted to this core while it waited.
    fn collect(&mut self) {
        if self.asked == 0 {
            return;
        }
        if let Some(granted) = self.shared.collect(self.core) {
            self.leased += granted;
            self.asked = 0;
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

    /// What was granted beside the lease comes back.
    #[cold]
    fn release_unleased(&mut self, bytes: u32, grant: Grant) {
        if grant == FLOOR {
            self.floor_out = false;
        } else {
            self.overdraft -= u64::from(bytes);
        }
    }

    #[cold]
    fn stop_waiting(&mut self) {
        if let Some(granted) = self.shared.stop_waiting(self.core) {
            self.leased += granted;
        }
        self.asked = 0;
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
        self.in_flight = self.in_flight.wrapping_sub(u64::from(done.cost.bytes));
        if self.shared.others_wait(self.core) {
            self.give_surplus();
        }
    }

    #[inline]
    fn rest(&mut self) {
        if self.asked != 0 {
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
