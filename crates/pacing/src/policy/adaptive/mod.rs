//! Finds its own bound on the bytes in flight: buffer credit whose budget follows what it buys.
//!
//! [`control`] decides, from sums over all cores, what the budget is; this file keeps the sums and
//! asks it now and then.

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

/// What the cores share.
pub struct SharedAdaptive {
    credit: Arc<SharedCredit>,
    virtual_time: Arc<VirtualTime>,
    cores: Box<[Arc<Sums>]>,
    /// When the controller looked last, and after how long it looks again.
    looked: AtomicU64,
    pause: AtomicU64,
    /// How long what the network has lasts, in ns; `u64::MAX` while that is not known.
    lasts: AtomicU64,
    /// Nothing back for so long, in ns, on a core that has commands waiting: what it has in flight may hang.
    patience: AtomicU64,
    controller: Mutex<Controller>,
}

/// Sums of one core since the start, written by it alone.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Sums {
    commands: AtomicU64,
    bytes: AtomicU64,
    /// Bytes times ns in flight, over 2^10.
    residence: AtomicU64,
    /// Bytes times ns that the network had them, over 2^10.
    network: AtomicU64,
    /// Commands that were small beside the others, and went first.
    small: AtomicU64,
    /// Times a command was told to wait.
    refused: AtomicU64,
    /// Bytes that could have been sent while the core was away.
    missed: AtomicU64,
}

impl SharedAdaptive {
    /// For so many cores and this largest I/O in bytes.
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

    /// The policy of core number `core`; see [`SharedCredit::core`].
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

    /// The virtual time that the order among the flows goes by.
    #[must_use]
    pub fn virtual_time(&self) -> &Arc<VirtualTime> {
        &self.virtual_time
    }

    /// The budget in bytes now.
    #[must_use]
    pub fn budget(&self) -> u64 {
        self.credit.budget()
    }

    #[cfg(all(test, not(loom)))]
    pub(crate) fn credit(&self) -> &Arc<SharedCredit> {
        &self.credit
    }

    /// Why the budget last moved; `None` while another core decides that very moment.
    #[must_use]
    pub fn last_move(&self) -> Option<Move> {
        self.controller.try_lock().ok().map(|controller| controller.last_move())
    }

    /// Bytes of the budget that are for while cores are away; `None` as [`SharedAdaptive::last_move`].
    #[must_use]
    pub fn reserved(&self) -> Option<u64> {
        self.controller.try_lock().ok().map(|controller| whole(controller.reserved()))
    }

    /// Bytes since the start that could have been sent while cores were away.
    #[must_use]
    pub fn missed(&self) -> u64 {
        self.totals().missed
    }

    /// A clock that went back is due at once, and starts over.
    #[inline]
    fn is_due(&self, now: Nanos) -> bool {
        let looked = self.looked.load(Ordering::Relaxed);
        is_due(now, looked, self.pause.load(Ordering::Relaxed), WENT_BACK)
    }

    /// One core at a time decides; the others go on.
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

    /// The budget becomes larger by so many bytes, which `credit` has; not if another core decides that very moment.
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

/// A clock that is so many ns behind went back: as long as the longest pause, and not a setting.
const WENT_BACK: Nanos = 1_000_000_000;
/// Commands of a core between two questions whether it is time to look.
const LOOK_EVERY: u64 = 8;

/// One core's end of a [`SharedAdaptive`].
#[derive(Debug)]
pub struct Adaptive {
    credit: BufferCredit,
    core: usize,
    sums: Arc<Sums>,
    /// Apart, so that all that each command needs is close together.
    attendance: Box<Attendance>,
    silence: Silence,
    shared: Arc<SharedAdaptive>,
}

/// Adds to a sum that this core alone writes.
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

    /// Not in the middle of finding out what was missed on this core: that belongs to the same measurement as the time in which it was.
    #[cold]
    fn look(&self, now: Nanos) {
        if !self.attendance.is_unclear(now, self.shared.lasts.load(Ordering::Relaxed)) {
            self.shared.look(now, self.core);
        }
    }

    /// It has to wait, unless all that the core has in flight may hang: then others would wait as long as that does, and the
    /// core has credit for it as soon as it asks again.
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
            // It was the core that was away: what came back meanwhile is not known yet.
            self.silence.begin_anew(now);
        }
        let sent = self.sums.bytes.load(Ordering::Relaxed);
        let lasts = self.shared.lasts.load(Ordering::Relaxed);
        let has_told = self.attendance.has_told();
        let missed = self.attendance.turn(now, after, sent, lasts);
        if missed > 0 {
            add(&self.sums.missed, missed);
        }
        // What was put off.
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
