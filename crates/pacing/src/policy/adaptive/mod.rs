//! Adaptive policy: finds its bound on the bytes in flight, as buffer credit with a controlled
//! budget.
//!
//! [`controller`] computes the budget from sums over all cores. This file keeps the sums and calls
//! it periodically.

mod ceiling;
mod coarse_search;
mod controller;
mod elasticity;
mod preemption;
mod preemption_reserve;
mod sample;
mod stall_timer;
#[cfg(all(test, not(loom)))]
mod tests;

use std::fmt;
use std::sync::{Arc, Mutex};

use controller::BudgetController;
pub use controller::BudgetMove;
use preemption::PreemptionMonitor;
use sample::{Totals, whole};
use stall_timer::StallTimer;

use super::{
    Admission, AdmissionPolicy, AdmissionRequest, BudgetTooSmall, BufferCredit, CompletedCommand,
    CreditConfig, Grant, SharedCredit, Waker,
};
use crate::Nanos;
use crate::due::is_due;
use crate::permit::CommandOutcome;
use crate::scheduler::VirtualTime;
use crate::sync::{AtomicU64, Ordering};

/// State that the cores share.
pub struct SharedAdaptive {
    credit: Arc<SharedCredit>,
    virtual_time: Arc<VirtualTime>,
    cores: Box<[Arc<CoreCounters>]>,
    /// Time of the controller's last update, and interval until the next.
    last_update: AtomicU64,
    update_interval: AtomicU64,
    /// Time in ns for which the data in the network lasts; `u64::MAX` while unknown.
    network_queue_ns: AtomicU64,
    /// Time in ns without a completion after which the commands of a core may hang, if others wait
    /// there.
    stall_timeout: AtomicU64,
    controller: Mutex<BudgetController>,
}

/// Sums of one core since the start. Only that core writes them.
#[derive(Debug, Default)]
#[repr(align(128))]
struct CoreCounters {
    commands: AtomicU64,
    bytes: AtomicU64,
    /// Bytes times ns in flight, divided by 2^10.
    residence: AtomicU64,
    /// Bytes times ns in the network, divided by 2^10.
    network: AtomicU64,
    /// Commands that were small relative to the others, and bypassed them.
    small: AtomicU64,
    /// Deferrals of commands.
    deferred: AtomicU64,
    /// Bytes that could have been sent while the core was preempted.
    missed: AtomicU64,
}

impl SharedAdaptive {
    /// Creates the state for this number of cores and this largest I/O in bytes.
    ///
    /// # Errors
    /// [`BudgetTooSmall`] cannot happen with a largest I/O above 0.
    pub fn new(cores: usize, largest: u32) -> Result<Arc<Self>, BudgetTooSmall> {
        let controller = BudgetController::new(cores, largest);
        let config = CreditConfig { budget: controller.budget(), largest, cores };
        Ok(Arc::new(Self {
            credit: BufferCredit::shared(config)?,
            virtual_time: VirtualTime::new(cores),
            cores: (0..cores).map(|_| Arc::default()).collect(),
            last_update: AtomicU64::new(0),
            update_interval: AtomicU64::new(0),
            network_queue_ns: AtomicU64::new(u64::MAX),
            stall_timeout: AtomicU64::new(controller.stall_timeout()),
            controller: Mutex::new(controller),
        }))
    }

    /// Returns the policy of core number `core`; see [`SharedCredit::core`].
    #[must_use]
    pub fn core(self: &Arc<Self>, core: usize, waker: Waker) -> Adaptive {
        let credit = self.credit.core(core, waker);
        let counters = Arc::clone(&self.cores[core]);
        let shared = Arc::clone(self);
        Adaptive {
            credit,
            core,
            counters,
            preemption: Box::default(),
            stall_timer: StallTimer::default(),
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
    pub fn last_move(&self) -> Option<BudgetMove> {
        self.controller.try_lock().ok().map(|controller| controller.last_move())
    }

    /// Returns the preemption reserve in bytes; `None` as [`SharedAdaptive::last_move`].
    #[must_use]
    pub fn reserve_bytes(&self) -> Option<u64> {
        self.controller.try_lock().ok().map(|controller| whole(controller.reserve_bytes()))
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
        let last_update = self.last_update.load(Ordering::Relaxed);
        is_due(now, last_update, self.update_interval.load(Ordering::Relaxed), WENT_BACK)
    }

    /// Updates the budget. One core at a time does this; the others continue.
    #[cold]
    fn update(&self, now: Nanos, core: usize) {
        let Ok(mut controller) = self.controller.try_lock() else { return };
        if !self.is_due(now) {
            return;
        }
        let update_interval = controller.update(self.totals(), now);
        self.last_update.store(now, Ordering::Relaxed);
        self.update_interval.store(update_interval, Ordering::Relaxed);
        self.virtual_time.refresh(controller.network_is_busy());
        self.network_queue_ns.store(controller.network_queue_ns(), Ordering::Relaxed);
        self.stall_timeout.store(controller.stall_timeout(), Ordering::Relaxed);
        if controller.budget() != self.credit.budget() {
            self.credit.resize(controller.budget(), core);
        }
    }

    /// Enlarges the budget by `bytes` and leases them to `credit`. Fails while another core updates
    /// the budget.
    fn cover_hung(&self, credit: &mut BufferCredit, bytes: u64) -> bool {
        let Ok(mut controller) = self.controller.try_lock() else { return false };
        controller.cover_hung(credit.lease_more(bytes));
        true
    }

    fn totals(&self) -> Totals {
        let sum = |of: fn(&CoreCounters) -> &AtomicU64| {
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
            deferred: sum(|s| &s.deferred),
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
    counters: Arc<CoreCounters>,
    /// Boxed, so that the data of the hot path stays close together.
    preemption: Box<PreemptionMonitor>,
    stall_timer: StallTimer,
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
        add(&self.counters.small, 1);
    }

    /// Updates the budget, unless a preemption of this core is still being evaluated: the missed
    /// bytes belong to the same measurement as the time.
    #[cold]
    fn update(&self, now: Nanos) {
        if !self.preemption.is_pending(now, self.shared.network_queue_ns.load(Ordering::Relaxed)) {
            self.shared.update(now, self.core);
        }
    }

    /// Counts a deferral. If all commands in flight of the core may hang, it enlarges the budget,
    /// so that other commands need not wait for them. The core has the credit when it asks again.
    #[inline(never)]
    fn note_deferred(&mut self, bytes: u32, now: Nanos) {
        add(&self.counters.deferred, 1);
        let stall_timeout = self.shared.stall_timeout.load(Ordering::Relaxed);
        if self.stall_timer.has_expired(now, stall_timeout)
            && self.shared.cover_hung(&mut self.credit, bytes.into())
        {
            self.stall_timer.back_off(now);
        }
    }
}

impl AdmissionPolicy for Adaptive {
    fn largest(&self) -> u32 {
        self.credit.largest()
    }

    #[inline(always)]
    fn admit(&mut self, request: &AdmissionRequest, now: Nanos) -> Admission {
        let answer = self.credit.admit(request, now);
        if request.small && answer.grant().is_some() {
            self.note_small();
        }
        if answer == Admission::WaitForRelease {
            self.note_deferred(request.cost.bytes, now);
        }
        answer
    }

    #[inline(always)]
    fn release(&mut self, done: &CompletedCommand, grant: Grant, now: Nanos) {
        self.credit.release(done, grant, now);
        if done.outcome != CommandOutcome::Completed {
            return;
        }
        self.stall_timer.on_completion(now);
        let bytes = u64::from(done.cost.bytes);
        let held = now.saturating_sub(done.started);
        let counters = &*self.counters;
        let commands = add(&counters.commands, 1);
        add(&counters.bytes, bytes);
        add(&counters.residence, bytes.wrapping_mul(held) >> 10);
        add(&counters.network, bytes.wrapping_mul(done.network) >> 10);
        if commands.is_multiple_of(LOOK_EVERY) && self.shared.is_due(now) {
            self.update(now);
        }
    }

    #[inline]
    fn on_turn(&mut self, now: Nanos, after: Nanos) {
        if after > self.shared.stall_timeout.load(Ordering::Relaxed) / 2 {
            // The core itself was preempted; commands that completed since are not processed yet.
            self.stall_timer.restart(now);
        }
        let sent = self.counters.bytes.load(Ordering::Relaxed);
        let network_queue_ns = self.shared.network_queue_ns.load(Ordering::Relaxed);
        let take_reported = self.preemption.take_reported();
        let missed = self.preemption.on_turn(now, after, sent, network_queue_ns);
        if missed > 0 {
            add(&self.counters.missed, missed);
        }
        // The update that was postponed.
        if take_reported && self.shared.is_due(now) {
            self.update(now);
        }
    }

    #[inline]
    fn return_unused(&mut self) {
        self.preemption.on_idle();
        self.stall_timer.on_idle();
        self.credit.return_unused();
    }
}
