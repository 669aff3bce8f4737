//! Adaptive policy: finds its bound on the bytes in flight, as buffer credit with a controlled
//! budget.
//!
//! [`control`] computes the budget from sums over all cores. This file keeps the sums and calls it
//! periodically.

mod attendance;
mod ceiling;
mod control;
mod measured;
mod reserve;
mod search;
mod silence;
#[cfg(all(test, not(loom)))]
mod tests;
mod trend;

use std::fmt;
use std::sync::{Arc, Mutex};

use attendance::Attendance;
use control::Controller;
pub use control::Move;
use measured::{Totals, whole};
use silence::Silence;

use super::{
    Admission, Ask, BudgetTooSmall, BufferCredit, CreditConfig, Done, Grant, Policy, SharedCredit,
    Waker,
};
use crate::Nanos;
use crate::due::is_due;
use crate::order::VirtualTime;
use crate::permit::Outcome;
use crate::sync::{AtomicU64, Ordering};

/// State that the cores share.
pub struct SharedAdaptive {
    credit: Arc<SharedCredit>,
    virtual_time: Arc<VirtualTime>,
    cores: Box<[Arc<Sums>]>,
    /// Time of the controller's last update, and interval until the next.
    looked: AtomicU64,
    pause: AtomicU64,
    /// Time in ns for which the data in the network lasts; `u64::MAX` while unknown.
    lasts: AtomicU64,
    /// Time in ns without a completion after which the commands of a core may hang, if others wait
    /// there.
    patience: AtomicU64,
    controller: Mutex<Controller>,
}

/// Sums of one core since the start. Only that core writes them.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Sums {
    commands: AtomicU64,
    bytes: AtomicU64,
    /// Bytes times ns in flight, divided by 2^10.
    residence: AtomicU64,
    /// Bytes times ns in the network, divided by 2^10.
    network: AtomicU64,
    /// Commands that were small relative to the others, and bypassed them.
    small: AtomicU64,
    /// Deferrals of commands.
    refused: AtomicU64,
    /// Bytes that could have been sent while the core was preempted.
    missed: AtomicU64,
}

impl SharedAdaptive {
    /// Creates the state for this number of cores and this largest I/O in bytes.
    ///
    /// # Errors
    /// [`BudgetTooSmall`] cannot happen with a largest I/O above 0.
    pub fn new(cores: usize, largest: u32) -> Result<Arc<Self>, BudgetTooSmall> {
        let controller = Controller::new(cores, largest);
        let config = CreditConfig { budget: controller.budget(), largest, cores };
        Ok(Arc::new(Self {
            credit: BufferCredit::shared(config)?,
            virtual_time: VirtualTime::new(cores),
            cores: (0..cores).map(|_| Arc::default()).collect(),
            looked: AtomicU64::new(0),
            pause: AtomicU64::new(0),
            lasts: AtomicU64::new(u64::MAX),
            patience: AtomicU64::new(controller.patience()),
            controller: Mutex::new(controller),
        }))
    }

    /// Returns the policy of core number `core`; see [`SharedCredit::core`].
    #[must_use]
    pub fn core(self: &Arc<Self>, core: usize, waker: Waker) -> Adaptive {
        let credit = self.credit.core(core, waker);
        let sums = Arc::clone(&self.cores[core]);
        let shared = Arc::clone(self);
        Adaptive {
            credit,
            core,
            sums,
            attendance: Box::default(),
            silence: Silence::default(),
            shared,
        }
    }

    /// Returns the virtual time of the scheduler.
    #[must_use]
    pub fn virtual_time(&self) -> &Arc<VirtualTime> {
        &self.virtual_time
    }

    /// Returns the current budget in bytes.
    #[must_use]
    pub fn budget(&self) -> u64 {
        self.credit.budget()
    }

    #[cfg(all(test, not(loom)))]
    pub(crate) fn credit(&self) -> &Arc<SharedCredit> {
        &self.credit
    }

    /// Returns the reason of the last change of the budget; `None` while another core updates it.
    #[must_use]
    pub fn last_move(&self) -> Option<Move> {
        self.controller.try_lock().ok().map(|controller| controller.last_move())
    }

    /// Returns the preemption reserve in bytes; `None` as [`SharedAdaptive::last_move`].
    #[must_use]
    pub fn reserved(&self) -> Option<u64> {
        self.controller.try_lock().ok().map(|controller| whole(controller.reserved()))
    }

    /// Returns the bytes since the start that could have been sent while cores were preempted.
    #[must_use]
    pub fn missed(&self) -> u64 {
        self.totals().missed
    }

    /// Returns whether an update is due. A clock that jumped back makes it due, and restarts the
    /// interval.
    #[inline]
    fn is_due(&self, now: Nanos) -> bool {
        let looked = self.looked.load(Ordering::Relaxed);
        is_due(now, looked, self.pause.load(Ordering::Relaxed), WENT_BACK)
    }

    /// Updates the budget. One core at a time does this; the others continue.
    #[cold]
    fn look(&self, now: Nanos, core: usize) {
        let Ok(mut controller) = self.controller.try_lock() else { return };
        if !self.is_due(now) {
            return;
        }
        let pause = controller.look(self.totals(), now);
        self.looked.store(now, Ordering::Relaxed);
        self.pause.store(pause, Ordering::Relaxed);
        self.virtual_time.refresh(controller.network_is_busy());
        self.lasts.store(controller.network_lasts(), Ordering::Relaxed);
        self.patience.store(controller.patience(), Ordering::Relaxed);
        if controller.budget() != self.credit.budget() {
            self.credit.resize(controller.budget(), core);
        }
    }

    /// Enlarges the budget by `bytes` and leases them to `credit`. Fails while another core updates
    /// the budget.
    fn make_up_for_hung(&self, credit: &mut BufferCredit, bytes: u64) -> bool {
        let Ok(mut controller) = self.controller.try_lock() else { return false };
        controller.make_up_for_hung(credit.lease_more(bytes));
        true
    }

    fn totals(&self) -> Totals {
        let sum = |of: fn(&Sums) -> &AtomicU64| {
            self.cores
                .iter()
                .fold(0u64, |sum, core| sum.wrapping_add(of(core).load(Ordering::Relaxed)))
        };
        Totals {
            commands: sum(|s| &s.commands),
            bytes: sum(|s| &s.bytes),
            residence: sum(|s| &s.residence),
            network: sum(|s| &s.network),
            small: sum(|s| &s.small),
            refused: sum(|s| &s.refused),
            missed: sum(|s| &s.missed),
        }
    }
}

impl fmt::Debug for SharedAdaptive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedAdaptive").field("credit", &self.credit).finish_non_exhaustive()
    }
}

/// A clock that is this many ns behind has jumped back: the longest interval, not a setting.
const WENT_BACK: Nanos = 1_000_000_000;
/// Commands of a core between two checks whether an update is due.
const LOOK_EVERY: u64 = 8;

/// Policy of one core.
#[derive(Debug)]
pub struct Adaptive {
    credit: BufferCredit,
    core: usize,
    sums: Arc<Sums>,
    /// Boxed, so that the data of the hot path stays close together.
    attendance: Box<Attendance>,
    silence: Silence,
    shared: Arc<SharedAdaptive>,
}

/// Adds to a sum that only this core writes.
#[inline(always)]
fn add(sum: &AtomicU64, more: u64) -> u64 {
    let sum_now = sum.load(Ordering::Relaxed).wrapping_add(more);
    sum.store(sum_now, Ordering::Relaxed);
    sum_now
}

impl Adaptive {
    #[inline(never)]
    fn note_small(&self) {
        add(&self.sums.small, 1);
    }

    /// Updates the budget, unless a preemption of this core is still being evaluated: the missed
    /// bytes belong to the same measurement as the time.
    #[cold]
    fn look(&self, now: Nanos) {
        if !self.attendance.is_unclear(now, self.shared.lasts.load(Ordering::Relaxed)) {
            self.shared.look(now, self.core);
        }
    }

    /// Counts a deferral. If all commands in flight of the core may hang, it enlarges the budget,
    /// so that other commands need not wait for them. The core has the credit when it asks again.
    #[inline(never)]
    fn note_refused(&mut self, bytes: u32, now: Nanos) {
        add(&self.sums.refused, 1);
        let patience = self.shared.patience.load(Ordering::Relaxed);
        if self.silence.is_too_long(now, patience)
            && self.shared.make_up_for_hung(&mut self.credit, bytes.into())
        {
            self.silence.was_broken(now);
        }
    }
}

impl Policy for Adaptive {
    fn largest(&self) -> u32 {
        self.credit.largest()
    }

    #[inline(always)]
    fn admit(&mut self, ask: &Ask, now: Nanos) -> Admission {
        let answer = self.credit.admit(ask, now);
        if ask.small && answer.grant().is_some() {
            self.note_small();
        }
        if answer == Admission::AfterRelease {
            self.note_refused(ask.cost.bytes, now);
        }
        answer
    }

    #[inline(always)]
    fn release(&mut self, done: &Done, grant: Grant, now: Nanos) {
        self.credit.release(done, grant, now);
        if done.outcome != Outcome::Completed {
            return;
        }
        self.silence.heard(now);
        let bytes = u64::from(done.cost.bytes);
        let held = now.saturating_sub(done.started);
        let sums = &*self.sums;
        let commands = add(&sums.commands, 1);
        add(&sums.bytes, bytes);
        add(&sums.residence, bytes.wrapping_mul(held) >> 10);
        add(&sums.network, bytes.wrapping_mul(done.network) >> 10);
        if commands.is_multiple_of(LOOK_EVERY) && self.shared.is_due(now) {
            self.look(now);
        }
    }

    #[inline]
    fn turn(&mut self, now: Nanos, after: Nanos) {
        if after > self.shared.patience.load(Ordering::Relaxed) / 2 {
            // The core itself was preempted; commands that completed since are not processed yet.
            self.silence.begin_anew(now);
        }
        let sent = self.sums.bytes.load(Ordering::Relaxed);
        let lasts = self.shared.lasts.load(Ordering::Relaxed);
        let has_told = self.attendance.has_told();
        let missed = self.attendance.turn(now, after, sent, lasts);
        if missed > 0 {
            add(&self.sums.missed, missed);
        }
        // The update that was postponed.
        if has_told && self.shared.is_due(now) {
            self.look(now);
        }
    }

    #[inline]
    fn rest(&mut self) {
        self.attendance.rest();
        self.silence.rest();
        self.credit.rest();
    }
}
