//! Budget that all cores share, and the credit that moves between them.
//!
//! Credit is always in exactly one of four places. It is *free*, *leased* (counted by a core, not
//! here), *open* or *granted*. A core with nothing waiting offers its surplus as open credit.
//! Granted credit was given to a waiting core that has not collected it yet.
//!
//! ```text
//!            take_free                       start_waiting
//!   free ───────────────▶ leased      idle ────────────────▶ waiting(bytes)
//!     ▲ ▲    give           │ ▲         ▲                       │
//!     │ └───────────────────┤ │         │ collect               │ distribute: free ≥ bytes,
//!     │ start_waiting       │ │ re-     │ stop_waiting          │ this core's turn
//!     │ of another core     │ │ claim   │                       ▼
//!     └──────── open ◀──────┘ │         └─────────────── granted(bytes) ──▶ leased
//!                 │  offer    │                           (core is woken)
//!                 └───────────┘
//! ```
//!
//! A waiting core with uncovered bytes in flight (*uncovered*, in place of waiting in the diagram)
//! is served first. Its grant covers those bytes, and may be partial. Then the cores with about
//! equal, highest urgency are served: those whose flow has little in flight first, and among these
//! round robin by core number. No other core takes free credit in that time.
//!
//! A core that starts to wait sets a *recall* flag on every other core, in the same word as that
//! core's open credit. A core that offers credit thus learns in the same step that another core
//! waits, so no credit stays open while a core waits for it. The flag stays set while any core
//! waits, and its owner gives the credit that it frees to the waiting cores.

use std::fmt;
use std::sync::{Arc, OnceLock};

use thiserror::Error;

use super::BufferCredit;
use crate::sync::{AtomicU64, AtomicUsize, Ordering, fence};

/// Callback after a waiting core was granted credit. Its reactor must run a turn soon, even if it
/// sleeps. Any core may call it; it must not block or call a pacer.
pub type Waker = Arc<dyn Fn() + Send + Sync>;

/// Sizes of a shared budget.
#[derive(Debug, Clone, Copy)]
pub struct CreditConfig {
    /// Bytes that may be in flight on all cores together, plus one I/O per core (see
    /// [`BufferCredit`]).
    pub budget: u64,
    /// The largest single I/O in bytes; must fit the budget.
    pub largest: u32,
    /// Number of cores that share it.
    pub cores: usize,
}

/// Rejection of a budget that the largest I/O does not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error(
    "a budget of {budget} bytes cannot hold one I/O of {largest} bytes: \
     raise the budget or lower max-transfer"
)]
pub struct BudgetTooSmall {
    /// The budget in bytes.
    pub budget: u64,
    /// The largest I/O in bytes.
    pub largest: u32,
}

/// Budget of bytes in flight that the cores of one daemon share. See [`BufferCredit`].
pub struct SharedCredit {
    budget: Padded<AtomicU64>,
    largest: u32,
    /// Nothing is granted outside the budget: neither one I/O to an idle core nor small commands.
    strict: bool,
    slots: Box<[CoreSlot]>,
    free: Padded<AtomicU64>,
    /// Bytes by which the budget shrank that are still in use; returned credit retires them first.
    owed: Padded<AtomicU64>,
    /// Cores with a wait state of waiting or uncovered (never fewer than there are).
    waiters: Padded<AtomicUsize>,
    /// Calls of `distribute` not served yet; the core that raises it from 0 serves all of them.
    pending: Padded<AtomicUsize>,
    /// The core served last; used by the core that hands out.
    rotor: AtomicUsize,
    /// Consecutive times that uncovered bytes came first; used by the core that hands out.
    uncovered_first: AtomicUsize,
}

/// State of one core that other cores can access.
#[repr(align(128))]
struct CoreSlot {
    /// Open credit in bytes, shifted left by one, and the recall flag.
    open: AtomicU64,
    /// A [`WaitState`].
    wait_state: AtomicU64,
    /// Urgency of the request and in-flight bytes of its flow; see [`SharedCredit::next_to_serve`].
    urgency: AtomicU64,
    load: AtomicU64,
    /// 1 if the core has its policy, otherwise 0.
    taken: AtomicUsize,
    waker: OnceLock<Waker>,
}

#[repr(align(128))]
struct Padded<T>(T);

/// Another core waits: lowest bit of [`CoreSlot::open`].
const RECALL: u64 = 1;

/// Urgencies closer than this many of the largest waiting I/Os count as equal. A core is overtaken
/// at most until the flows of other cores have caught up by that.
const ABOUT_EQUAL: u64 = 4;

/// Consecutive times that uncovered bytes come first, per core.
const UNCOVERED_FIRST: usize = 8;

/// Wait state of a core.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WaitState {
    Idle,
    /// Waits for this number of bytes.
    Waiting(u64),
    /// Has this number of uncovered bytes in flight, and waits for credit for all or some of them.
    Uncovered(u64),
    /// Was granted this number of bytes and has not collected them.
    Granted(u64),
}

impl WaitState {
    const fn pack(self) -> u64 {
        match self {
            WaitState::Idle => 0,
            WaitState::Waiting(bytes) => bytes << 2 | 1,
            WaitState::Uncovered(bytes) => bytes << 2 | 3,
            WaitState::Granted(bytes) => bytes << 2 | 2,
        }
    }

    const fn unpack(word: u64) -> Self {
        match word & 3 {
            1 => WaitState::Waiting(word >> 2),
            2 => WaitState::Granted(word >> 2),
            3 => WaitState::Uncovered(word >> 2),
            _ => WaitState::Idle,
        }
    }
}

/// Bytes that a core waits for, and whether they cover bytes that are in flight outside the budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CreditRequest {
    pub(super) bytes: u64,
    pub(super) uncovered: bool,
}

impl CreditRequest {
    const fn wait_state(self) -> WaitState {
        if self.uncovered {
            WaitState::Uncovered(self.bytes)
        } else {
            WaitState::Waiting(self.bytes)
        }
    }
}

impl SharedCredit {
    /// Creates the state; see [`BufferCredit::shared`].
    pub(super) fn new(config: CreditConfig) -> Result<Arc<Self>, BudgetTooSmall> {
        Self::build(config, false)
    }

    /// Creates a budget that is never exceeded; a core may have to wait even for its first I/O.
    ///
    /// # Errors
    /// [`BudgetTooSmall`] if the largest I/O does not fit the budget.
    pub(crate) fn strict(config: CreditConfig) -> Result<Arc<Self>, BudgetTooSmall> {
        Self::build(config, true)
    }

    fn build(config: CreditConfig, strict: bool) -> Result<Arc<Self>, BudgetTooSmall> {
        let CreditConfig { budget, largest, cores } = config;
        let budget = budget.min(u64::MAX >> 2);
        if u64::from(largest) > budget {
            return Err(BudgetTooSmall { budget, largest });
        }
        let slot = |_| CoreSlot {
            open: AtomicU64::new(0),
            wait_state: AtomicU64::new(WaitState::Idle.pack()),
            urgency: AtomicU64::new(0),
            load: AtomicU64::new(0),
            taken: AtomicUsize::new(0),
            waker: OnceLock::new(),
        };
        Ok(Arc::new(Self {
            budget: Padded(AtomicU64::new(budget)),
            largest,
            strict,
            slots: (0..cores).map(slot).collect(),
            free: Padded(AtomicU64::new(budget)),
            owed: Padded(AtomicU64::new(0)),
            waiters: Padded(AtomicUsize::new(0)),
            pending: Padded(AtomicUsize::new(0)),
            rotor: AtomicUsize::new(0),
            uncovered_first: AtomicUsize::new(0),
        }))
    }

    /// Returns the policy of core number `core` (from 0). `waker` is called when that core waited
    /// and was granted credit. A core that had a policy before keeps its first waker.
    ///
    /// # Panics
    /// If the core does not exist, or has its policy already.
    #[must_use]
    pub fn core(self: &Arc<Self>, core: usize, waker: Waker) -> BufferCredit {
        let taken = self.slots[core].taken.swap(1, Ordering::AcqRel);
        assert!(taken == 0, "core {core} has its policy already");
        self.slots[core].waker.get_or_init(|| waker);
        BufferCredit::new(Arc::clone(self), core)
    }

    /// Records that the core has no policy any more.
    pub(super) fn leave(&self, core: usize) {
        self.slots[core].taken.store(0, Ordering::Release);
    }

    /// Returns whether nothing is granted outside the budget.
    #[inline]
    pub(super) fn is_strict(&self) -> bool {
        self.strict
    }

    /// Returns the budget in bytes.
    #[must_use]
    pub fn budget(&self) -> u64 {
        self.budget.0.load(Ordering::Relaxed)
    }

    /// Changes the budget while serving; a strict one stays at least the largest I/O. Bytes in
    /// flight above a smaller budget are not granted again when they are released. One caller at a
    /// time; `core` is the caller, which is not woken.
    pub fn resize(&self, budget: u64, core: usize) {
        let least = if self.strict { u64::from(self.largest) } else { 1 };
        let budget = budget.max(least).min(u64::MAX >> 2);
        let before = self.budget.0.swap(budget, Ordering::Relaxed);
        if budget >= before {
            self.give(budget - before, core);
            return;
        }
        self.owed.0.fetch_add(before - budget, Ordering::AcqRel);
        fence(Ordering::SeqCst);
        let recalled = self.recall(None);
        self.give(recalled, core);
    }

    /// Returns whether the whole budget is below `bytes`, with no more of it in use than exists.
    pub(super) fn is_below(&self, bytes: u64) -> bool {
        self.budget() < bytes && self.owed.0.load(Ordering::Relaxed) == 0
    }

    /// Enlarges the budget by `bytes`, which the caller holds. As [`SharedCredit::resize`], one
    /// caller at a time.
    pub(super) fn grow(&self, bytes: u64) {
        self.budget.0.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Returns an even part of the budget for one core, in bytes.
    #[inline]
    pub(super) fn share(&self) -> u64 {
        self.budget() / self.slots.len().max(1) as u64
    }

    /// Returns the largest I/O in bytes.
    #[must_use]
    pub fn largest(&self) -> u32 {
        self.largest
    }

    /// Returns the bytes that no I/O uses, as the cores report them: free, open or granted. With
    /// nothing in flight or waiting this equals the budget. For metrics and tests.
    #[must_use]
    pub fn unused(&self) -> u64 {
        let of_slot = |slot: &CoreSlot| {
            let granted = match WaitState::unpack(slot.wait_state.load(Ordering::Relaxed)) {
                WaitState::Granted(bytes) => bytes,
                WaitState::Idle | WaitState::Waiting(_) | WaitState::Uncovered(_) => 0,
            };
            granted + (slot.open.load(Ordering::Relaxed) >> 1)
        };
        self.free.0.load(Ordering::Relaxed) + self.slots.iter().map(of_slot).sum::<u64>()
    }

    /// Returns the bytes that are not unused. They exceed the budget after a reduction, while more
    /// is in flight. For metrics.
    #[must_use]
    pub fn taken(&self) -> u64 {
        let owed = self.owed.0.load(Ordering::Relaxed);
        (self.budget() + owed).saturating_sub(self.unused())
    }

    /// Takes at least `short` free bytes, or none: while other cores wait, or if too few are free.
    pub(super) fn take_free(&self, short: u64, i_wait: bool) -> u64 {
        if self.waiters.0.load(Ordering::Relaxed) > usize::from(i_wait) {
            return 0;
        }
        self.take(short, 0)
    }

    /// Takes at most `most` free bytes, if no other core waits.
    pub(super) fn take_free_up_to(&self, most: u64, i_wait: bool) -> u64 {
        if self.waiters.0.load(Ordering::Relaxed) > usize::from(i_wait) {
            return 0;
        }
        self.take_up_to(most)
    }

    /// Reclaims the open credit of a core, or the rest of it.
    pub(super) fn reclaim(&self, core: usize) -> u64 {
        let open = &self.slots[core].open;
        if open.load(Ordering::Relaxed) >> 1 == 0 {
            return 0;
        }
        open.fetch_and(RECALL, Ordering::AcqRel) >> 1
    }

    /// Offers credit as open, or gives it to waiting cores (then true).
    pub(super) fn offer(&self, core: usize, bytes: u64) -> bool {
        let open = &self.slots[core].open;
        if open.fetch_add(bytes << 1, Ordering::AcqRel) & RECALL == 0 {
            return false;
        }
        let bytes = open.fetch_and(RECALL, Ordering::AcqRel) >> 1;
        self.give(bytes, core);
        true
    }

    /// Frees credit and hands it to the waiting cores.
    pub(super) fn give(&self, bytes: u64, core: usize) {
        self.free.0.fetch_add(bytes, Ordering::AcqRel);
        self.retire_owed();
        self.distribute(core);
    }

    /// Retires free credit permanently, as much as the budget has shrunk.
    fn retire_owed(&self) {
        let mut owed = self.owed.0.load(Ordering::Acquire);
        while owed > 0 {
            // Claims the debt before the credit, so that no two cores retire the same debt.
            let claim = owed.min(self.free.0.load(Ordering::Acquire));
            if claim == 0 {
                return;
            }
            match self.owed.0.compare_exchange(
                owed,
                owed - claim,
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Err(now) => owed = now,
                Ok(_) => {
                    let short = claim - self.take_up_to(claim);
                    if short == 0 {
                        return;
                    }
                    owed = self.owed.0.fetch_add(short, Ordering::AcqRel) + short;
                }
            }
        }
    }

    /// Takes free credit, at most `most`.
    fn take_up_to(&self, most: u64) -> u64 {
        let taking = |free: u64| Some(free - free.min(most));
        let before = self.free.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, taking);
        before.unwrap_or(0).min(most)
    }

    /// Returns whether other cores wait for credit, by this core's recall flag.
    #[inline]
    pub(super) fn others_wait(&self, core: usize) -> bool {
        self.slots[core].open.load(Ordering::Relaxed) & RECALL != 0
    }

    /// Clears the recall flag if no core waits any more. The core itself must not be waiting.
    pub(super) fn settle(&self, core: usize) {
        let open = &self.slots[core].open;
        if !self.others_wait(core) || self.is_wanted() {
            return;
        }
        open.fetch_and(!RECALL, Ordering::AcqRel);
        // Pairs with the fences of start_waiting and resize: either they see the flag cleared, or
        // this core sees their request.
        fence(Ordering::SeqCst);
        if self.is_wanted() {
            let bytes = open.swap(RECALL, Ordering::AcqRel) >> 1;
            if bytes > 0 {
                self.give(bytes, core);
            }
        }
    }

    /// Returns whether a core waits for credit, or a smaller budget for its difference.
    fn is_wanted(&self) -> bool {
        self.waiters.0.load(Ordering::Relaxed) > 0 || self.owed.0.load(Ordering::Relaxed) > 0
    }

    /// Sets the urgency and the load of the request that this core waits with, or is about to.
    pub(super) fn set_urgency(&self, core: usize, urgency: u64, load: u64) {
        let slot = &self.slots[core];
        for (known, now) in [(&slot.urgency, urgency), (&slot.load, load)] {
            if known.load(Ordering::Relaxed) != now {
                known.store(now, Ordering::Relaxed);
            }
        }
    }

    /// Makes a core wait for its turn. The caller then calls [`SharedCredit::give`], even with 0
    /// bytes, since the credit may be free already.
    pub(super) fn start_waiting(&self, core: usize, credit_request: CreditRequest) {
        self.waiters.0.fetch_add(1, Ordering::AcqRel);
        self.slots[core].wait_state.store(credit_request.wait_state().pack(), Ordering::Release);
        fence(Ordering::SeqCst);
        let recalled = self.recall(Some(core));
        self.free.0.fetch_add(recalled, Ordering::AcqRel);
    }

    /// Sets the recall flag of every core but one, and returns their open credit.
    fn recall(&self, but: Option<usize>) -> u64 {
        let mut recalled = 0;
        for (_, slot) in self.slots.iter().enumerate().filter(|(at, _)| Some(*at) != but) {
            if slot.open.load(Ordering::Relaxed) != RECALL {
                recalled += slot.open.swap(RECALL, Ordering::AcqRel) >> 1;
            }
        }
        recalled
    }

    /// Changes the request of a waiting core. No effect if the old one was granted in between.
    pub(super) fn change_request(&self, core: usize, from: CreditRequest, to: CreditRequest) {
        let (from, to) = (from.wait_state().pack(), to.wait_state().pack());
        let wait_state = &self.slots[core].wait_state;
        let _ = wait_state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Returns the grant of a waiting core, if there is one.
    pub(super) fn collect(&self, core: usize) -> Option<u64> {
        let wait_state = &self.slots[core].wait_state;
        match WaitState::unpack(wait_state.load(Ordering::Acquire)) {
            WaitState::Granted(bytes) => {
                // Only this core leaves the state granted.
                wait_state.store(WaitState::Idle.pack(), Ordering::Release);
                Some(bytes)
            }
            WaitState::Idle | WaitState::Waiting(_) | WaitState::Uncovered(_) => None,
        }
    }

    /// Ends the wait of a core; returns its grant, if there is one.
    pub(super) fn stop_waiting(&self, core: usize) -> Option<u64> {
        let wait_state = &self.slots[core].wait_state;
        match WaitState::unpack(wait_state.swap(WaitState::Idle.pack(), Ordering::AcqRel)) {
            WaitState::Idle => None,
            WaitState::Granted(bytes) => Some(bytes),
            WaitState::Waiting(_) | WaitState::Uncovered(_) => {
                self.waiters.0.fetch_sub(1, Ordering::AcqRel);
                // Cores behind it may need less.
                self.distribute(core);
                None
            }
        }
    }

    /// Serves the waiting cores in turn while free credit lasts. One core at a time does this. A
    /// concurrent call is left to that core, so no core spins or blocks.
    fn distribute(&self, caller: usize) {
        let mut seen = self.pending.0.fetch_add(1, Ordering::AcqRel) + 1;
        if seen > 1 {
            return;
        }
        loop {
            while self.serve_one(caller) {}
            match self.pending.0.compare_exchange(seen, 0, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return,
                Err(more) => seen = more,
            }
        }
    }

    /// Grants the request of the next core; false if no core waits or too little is free.
    fn serve_one(&self, caller: usize) -> bool {
        if self.waiters.0.load(Ordering::Acquire) == 0 {
            return false;
        }
        let Some((core, word, bytes)) = self.next_to_serve() else { return false };
        let wait_state = &self.slots[core].wait_state;
        let is_uncovered = is_uncovered(word);
        let taken = match is_uncovered {
            true => self.take_up_to(bytes.max(self.even_part())),
            false => self.take(bytes, self.even_part()),
        };
        if taken == 0 {
            return false;
        }
        let granted = WaitState::Granted(taken).pack();
        if wait_state.compare_exchange(word, granted, Ordering::AcqRel, Ordering::Relaxed).is_err()
        {
            // It stopped waiting or changed its request: try again.
            self.free.0.fetch_add(taken, Ordering::AcqRel);
            return true;
        }
        self.waiters.0.fetch_sub(1, Ordering::AcqRel);
        self.rotor.store(core, Ordering::Relaxed);
        let uncovered_first =
            if is_uncovered { self.uncovered_first.load(Ordering::Relaxed) + 1 } else { 0 };
        self.uncovered_first.store(uncovered_first, Ordering::Relaxed);
        if core != caller {
            self.wake(core);
        }
        true
    }

    /// Wakes a core to run a turn soon.
    pub(super) fn wake(&self, core: usize) {
        if let Some(waker) = self.slots[core].waker.get() {
            waker();
        }
    }

    /// Returns the next core to be served, with its wait state. Uncovered bytes in flight come
    /// first; otherwise that much would always be in flight beyond the budget. The number of times
    /// in a row is bounded: otherwise a core with a hung command would never get more.
    ///
    /// Then the cores with about the highest urgency are candidates. Among them the flow, device
    /// and port with the fewest commands in flight come first, so that none idles while others pile
    /// up work. Equal ones are served in turn. By urgency alone, the flows of few cores at a time
    /// would hold everything in flight, and some ports and drives would idle.
    fn next_to_serve(&self) -> Option<(usize, u64, u64)> {
        let first = self.waiting().next()?;
        if self.uncovered_first.load(Ordering::Relaxed) < UNCOVERED_FIRST * self.slots.len()
            && let Some(uncovered) = self.waiting().find(|(_, word, _)| is_uncovered(*word))
        {
            return Some(uncovered);
        }
        let urgency = |core: usize| self.slots[core].urgency.load(Ordering::Relaxed);
        let load = |core: usize| self.slots[core].load.load(Ordering::Relaxed);
        let (last, largest) = self.last_urgent(|_| true, 1);
        let urgent = self.waiting().filter(|(core, ..)| urgency(*core) <= last);
        // A concurrent change must not leave all cores unserved.
        urgent.min_by_key(|(core, ..)| load(*core) / largest).or(Some(first))
    }

    /// Returns whether the request of this core is about as urgent as that of any waiting core, or
    /// more.
    pub(super) fn is_urgent(&self, core: usize, bytes: u64, urgency: u64) -> bool {
        let nobody_waits = self.waiters.0.load(Ordering::Relaxed) == 0;
        nobody_waits || urgency <= self.last_urgent(|other| other != core, bytes).0
    }

    /// Returns the limit of urgencies that count as highest among these cores, and the largest
    /// request in bytes, at least `largest`.
    fn last_urgent(&self, of: impl Fn(usize) -> bool, largest: u64) -> (u64, u64) {
        let (most, largest) = self.waiting().filter(|(core, ..)| of(*core)).fold(
            (u64::MAX, largest),
            |(most, largest), (core, _, bytes)| {
                let urgency = self.slots[core].urgency.load(Ordering::Relaxed);
                (urgency.min(most), bytes.max(largest))
            },
        );
        (most.saturating_add(largest.saturating_mul(ABOUT_EQUAL)), largest)
    }

    /// Iterates over the waiting cores with their tickets, from the one after the core served last.
    /// A request to start more than the current budget blocks no other core; it starts by the
    /// minimum grant.
    fn waiting(&self) -> impl Iterator<Item = (usize, u64, u64)> {
        let (last, budget) = (self.rotor.load(Ordering::Relaxed), self.budget());
        let turn = (1..=self.slots.len()).map(move |step| (last + step) % self.slots.len());
        turn.filter_map(move |core| {
            let word = self.slots[core].wait_state.load(Ordering::Acquire);
            match WaitState::unpack(word) {
                WaitState::Waiting(bytes) if bytes <= budget => Some((core, word, bytes)),
                WaitState::Uncovered(bytes) => Some((core, word, bytes)),
                WaitState::Waiting(_) | WaitState::Idle | WaitState::Granted(_) => None,
            }
        })
    }

    /// Returns a waiting core's even part of the free credit. It gets that part if its request is
    /// smaller. Otherwise, after a growth of the budget, the running core would take all credit
    /// that no core has requested yet. The other cores would have no turn to request more.
    fn even_part(&self) -> u64 {
        let sharers = self.waiters.0.load(Ordering::Relaxed) as u64 + 1;
        self.free.0.load(Ordering::Acquire) / sharers
    }

    /// Takes at least `least` free bytes, or none; up to a quantum or `most`, if available.
    fn take(&self, least: u64, most: u64) -> u64 {
        // 1/8 of an even part: a core asks rarely, and no core can hold much more than its part of
        // a scarce budget for long.
        let quantum = (self.share() / 8).max(4096).max(most);
        let mut free = self.free.0.load(Ordering::Acquire);
        while free >= least {
            let taken = free.min(least.max(quantum));
            match self.free.0.compare_exchange_weak(
                free,
                free - taken,
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => return taken,
                Err(now) => free = now,
            }
        }
        0
    }
}

fn is_uncovered(word: u64) -> bool {
    matches!(WaitState::unpack(word), WaitState::Uncovered(_))
}

impl fmt::Debug for SharedCredit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedCredit")
            .field("budget", &self.budget())
            .field("largest", &self.largest)
            .field("cores", &self.slots.len())
            .field("unused", &self.unused())
            .finish_non_exhaustive()
    }
}
