//! The budget that all cores share, and how it passes between them.
//!
//! Credit is always in exactly one of four places: *free*; *leased* (a core's own count, not here);
//! *open* (a core has nothing waiting and lays its surplus where others can take it); or *granted*
//! (given to a core that waited and has not collected it yet).
//!
//! ```text
//!            take_free                       start_waiting
//!   free ───────────────▶ leased      idle ────────────────▶ waiting(bytes)
//!     ▲ ▲    give           │ ▲         ▲                       │
//!     │ └───────────────────┤ │         │ collect               │ hand_out: free ≥ bytes,
//!     │ start_waiting       │ │ take_   │ stop_waiting          │ this core's turn
//!     │ of another core     │ │ back    │                       ▼
//!     └──────── open ◀──────┘ │         └─────────────── granted(bytes) ──▶ leased
//!                 │  lay_open │                           (core is woken)
//!                 └───────────┘
//! ```
//!
//! A core that waits with something in flight beside the budget (*bare*, in place of waiting, in the diagram) is
//! served first: what it is given is for that, and may be a part. Then cores that wait for something about equally
//! urgent are served before all others that wait, those whose flow has little in flight first, and of these
//! round-robin by core number; nobody else takes free credit meanwhile.
//! A core that starts to wait sets a *recall* flag on every other core, in the same word as that
//! core's open credit, so that a core which lays credit open learns in the same step that somebody
//! waits: no credit is left lying beside a core that waits for it. The flag stays up while anybody
//! waits, and its owner gives what it frees to the cores that wait.

use std::fmt;
use std::sync::{Arc, OnceLock};

use thiserror::Error;

use super::BufferCredit;
use crate::sync::{AtomicU64, AtomicUsize, Ordering, fence};

/// Called when a core that waits has been granted credit: its reactor must run a turn soon, even
/// if it sleeps. Called from any core; it must not block nor call into a pacer.
pub type Waker = Arc<dyn Fn() + Send + Sync>;

/// Sizes of a shared budget.
#[derive(Debug, Clone, Copy)]
pub struct CreditConfig {
    /// Bytes that may be in flight on all cores together (and one I/O more on each, see
    /// [`BufferCredit`]).
    pub budget: u64,
    /// The largest single I/O in bytes; must fit the budget.
    pub largest: u32,
    /// Number of cores that share it.
    pub cores: usize,
}

/// The largest I/O does not fit the budget.
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

/// The budget of bytes in flight that the cores of one daemon share. See [`BufferCredit`].
pub struct SharedCredit {
    budget: Padded<AtomicU64>,
    largest: u32,
    /// Nothing is granted beside the budget: neither one I/O to a core that holds nothing, nor small
    /// ones.
    strict: bool,
    slots: Box<[Slot]>,
    free: Padded<AtomicU64>,
    /// Bytes the budget shrank by that are still out; what comes back pays for it first.
    owed: Padded<AtomicU64>,
    /// Cores with a ticket in state waiting or bare (never fewer than there are).
    waiters: Padded<AtomicUsize>,
    /// Calls of `hand_out` not served yet; whoever raises it from 0 serves them all.
    pending: Padded<AtomicUsize>,
    /// The core served last; used by the one that hands out.
    rotor: AtomicUsize,
    /// Times in a row that what was beside the budget came first; used by the one that hands out.
    bare_first: AtomicUsize,
}

/// What other cores see of one core.
#[repr(align(128))]
struct Slot {
    /// Open credit in bytes, shifted left by one, and the recall flag.
    open: AtomicU64,
    /// A [`Ticket`].
    ticket: AtomicU64,
    /// Of what it waits for, and what its flow has in flight, both in bytes; see [`SharedCredit::next_to_serve`].
    urgency: AtomicU64,
    load: AtomicU64,
    /// The core has its policy; 0 or 1.
    taken: AtomicUsize,
    waker: OnceLock<Waker>,
}

#[repr(align(128))]
struct Padded<T>(T);

/// Somebody waits: lowest bit of [`Slot::open`].
const RECALL: u64 = 1;

/// Urgencies no further apart than this many of the largest I/Os that wait are as good as equal: a core is
/// passed over at most while the flows of others catch up that far.
const ABOUT_EQUAL: u64 = 4;

/// Times that what is beside the budget comes first in a row, for each core.
const BARE_FIRST: usize = 8;

/// Where a core stands with the shared budget.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ticket {
    Idle,
    /// Waits for so many bytes.
    Waiting(u64),
    /// Has so many bytes in flight beside the budget, and waits for credit for them, all or a part.
    Bare(u64),
    /// Got so many bytes and has not collected them.
    Granted(u64),
}

impl Ticket {
    const fn pack(self) -> u64 {
        match self {
            Ticket::Idle => 0,
            Ticket::Waiting(bytes) => bytes << 2 | 1,
            Ticket::Bare(bytes) => bytes << 2 | 3,
            Ticket::Granted(bytes) => bytes << 2 | 2,
        }
    }

    const fn unpack(word: u64) -> Self {
        match word & 3 {
            1 => Ticket::Waiting(word >> 2),
            2 => Ticket::Granted(word >> 2),
            3 => Ticket::Bare(word >> 2),
            _ => Ticket::Idle,
        }
    }
}

/// What a core waits for, in bytes, and whether it is for what it has in flight beside the budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Asked {
    pub(super) bytes: u64,
    pub(super) bare: bool,
}

impl Asked {
    const fn ticket(self) -> Ticket {
        if self.bare { Ticket::Bare(self.bytes) } else { Ticket::Waiting(self.bytes) }
    }
}

impl SharedCredit {
    /// See [`BufferCredit::shared`].
    pub(super) fn new(config: CreditConfig) -> Result<Arc<Self>, BudgetTooSmall> {
        Self::build(config, false)
    }

    /// A budget that is never exceeded; a core may have to wait for others even for its first I/O.
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
        let slot = |_| Slot {
            open: AtomicU64::new(0),
            ticket: AtomicU64::new(Ticket::Idle.pack()),
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
            bare_first: AtomicUsize::new(0),
        }))
    }

    /// The policy of core number `core` (from 0). `waker` is called when that core waited and got
    /// credit; a core that had its policy before and comes again keeps its first.
    ///
    /// # Panics
    /// If there is no such core, or it has its policy.
    #[must_use]
    pub fn core(self: &Arc<Self>, core: usize, waker: Waker) -> BufferCredit {
        let taken = self.slots[core].taken.swap(1, Ordering::AcqRel);
        assert!(taken == 0, "core {core} has its policy already");
        self.slots[core].waker.get_or_init(|| waker);
        BufferCredit::new(Arc::clone(self), core)
    }

    /// The core has no policy any more.
    pub(super) fn leave(&self, core: usize) {
        self.slots[core].taken.store(0, Ordering::Release);
    }

    /// Is nothing granted beside the budget?
    #[inline]
    pub(super) fn is_strict(&self) -> bool {
        self.strict
    }

    /// The budget in bytes.
    #[must_use]
    pub fn budget(&self) -> u64 {
        self.budget.0.load(Ordering::Relaxed)
    }

    /// Changes the budget while serving; a strict one stays at least the largest I/O. What a smaller
    /// one leaves in flight too much is not granted again when it comes back. One caller at a time;
    /// `core` is the caller's number, which is not woken.
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

    /// Is all of the budget less than so many bytes, with no more of it out than there is?
    pub(super) fn is_below(&self, bytes: u64) -> bool {
        self.budget() < bytes && self.owed.0.load(Ordering::Relaxed) == 0
    }

    /// The budget is larger by so many bytes, which the caller has. As [`SharedCredit::resize`], one caller at a time.
    pub(super) fn grow(&self, bytes: u64) {
        self.budget.0.fetch_add(bytes, Ordering::Relaxed);
    }

    /// An even share of the budget for one core, in bytes.
    #[inline]
    pub(super) fn share(&self) -> u64 {
        self.budget() / self.slots.len().max(1) as u64
    }

    /// The largest I/O in bytes.
    #[must_use]
    pub fn largest(&self) -> u32 {
        self.largest
    }

    /// Bytes no I/O uses, as far as the cores have told: what is free, open or granted. When no
    /// core has anything in flight or waiting this is the budget; a figure for metrics and tests.
    #[must_use]
    pub fn unused(&self) -> u64 {
        let of_slot = |slot: &Slot| {
            let granted = match Ticket::unpack(slot.ticket.load(Ordering::Relaxed)) {
                Ticket::Granted(bytes) => bytes,
                Ticket::Idle | Ticket::Waiting(_) | Ticket::Bare(_) => 0,
            };
            granted + (slot.open.load(Ordering::Relaxed) >> 1)
        };
        self.free.0.load(Ordering::Relaxed) + self.slots.iter().map(of_slot).sum::<u64>()
    }

    /// Bytes that are not unused: more than the budget, while what was in flight when it was lowered is. A figure for
    /// metrics, as that.
    #[must_use]
    pub fn taken(&self) -> u64 {
        let owed = self.owed.0.load(Ordering::Relaxed);
        (self.budget() + owed).saturating_sub(self.unused())
    }

    /// Takes at least `short` free bytes, or none. While others wait, or there is too little: none.
    pub(super) fn take_free(&self, short: u64, i_wait: bool) -> u64 {
        if self.waiters.0.load(Ordering::Relaxed) > usize::from(i_wait) {
            return 0;
        }
        self.take(short, 0)
    }

    /// Takes free bytes, at most so many, if no others wait.
    pub(super) fn take_free_up_to(&self, most: u64, i_wait: bool) -> u64 {
        if self.waiters.0.load(Ordering::Relaxed) > usize::from(i_wait) {
            return 0;
        }
        self.take_up_to(most)
    }

    /// Takes back the credit a core laid open, or what is left of it.
    pub(super) fn take_back(&self, core: usize) -> u64 {
        let open = &self.slots[core].open;
        if open.load(Ordering::Relaxed) >> 1 == 0 {
            return 0;
        }
        open.fetch_and(RECALL, Ordering::AcqRel) >> 1
    }

    /// Lays credit open for others to take, or gives it to those that wait (then true).
    pub(super) fn lay_open(&self, core: usize, bytes: u64) -> bool {
        let open = &self.slots[core].open;
        if open.fetch_add(bytes << 1, Ordering::AcqRel) & RECALL == 0 {
            return false;
        }
        let bytes = open.fetch_and(RECALL, Ordering::AcqRel) >> 1;
        self.give(bytes, core);
        true
    }

    /// Makes credit free and hands it to the cores that wait.
    pub(super) fn give(&self, bytes: u64, core: usize) {
        self.free.0.fetch_add(bytes, Ordering::AcqRel);
        self.pay();
        self.hand_out(core);
    }

    /// Takes free credit out for good, as far as the budget has shrunk.
    fn pay(&self) {
        let mut owed = self.owed.0.load(Ordering::Acquire);
        while owed > 0 {
            // Claims the debt before the credit, so that nobody pays it twice.
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

    /// Takes what is free, at most `most`.
    fn take_up_to(&self, most: u64) -> u64 {
        let taking = |free: u64| Some(free - free.min(most));
        let before = self.free.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, taking);
        before.unwrap_or(0).min(most)
    }

    /// Do others wait for credit, as far as this core was told?
    #[inline]
    pub(super) fn others_wait(&self, core: usize) -> bool {
        self.slots[core].open.load(Ordering::Relaxed) & RECALL != 0
    }

    /// Takes the recall flag down if nobody waits any more. The core itself must not be waiting.
    pub(super) fn settle(&self, core: usize) {
        let open = &self.slots[core].open;
        if !self.others_wait(core) || self.is_wanted() {
            return;
        }
        open.fetch_and(!RECALL, Ordering::AcqRel);
        // Pairs with the fences of start_waiting and resize: either they see the flag down, or we
        // see what they want.
        fence(Ordering::SeqCst);
        if self.is_wanted() {
            let bytes = open.swap(RECALL, Ordering::AcqRel) >> 1;
            if bytes > 0 {
                self.give(bytes, core);
            }
        }
    }

    /// Does a core wait for credit, or a smaller budget for its difference?
    fn is_wanted(&self) -> bool {
        self.waiters.0.load(Ordering::Relaxed) > 0 || self.owed.0.load(Ordering::Relaxed) > 0
    }

    /// How urgent it is what this core waits for, or is about to, and how much is in flight before it.
    pub(super) fn hurry(&self, core: usize, urgency: u64, load: u64) {
        let slot = &self.slots[core];
        for (known, now) in [(&slot.urgency, urgency), (&slot.load, load)] {
            if known.load(Ordering::Relaxed) != now {
                known.store(now, Ordering::Relaxed);
            }
        }
    }

    /// A core starts to wait: its turn will come. The caller then calls
    /// [`SharedCredit::give`], if only with 0 bytes, since what it needs may be there.
    pub(super) fn start_waiting(&self, core: usize, asked: Asked) {
        self.waiters.0.fetch_add(1, Ordering::AcqRel);
        self.slots[core].ticket.store(asked.ticket().pack(), Ordering::Release);
        fence(Ordering::SeqCst);
        let recalled = self.recall(Some(core));
        self.free.0.fetch_add(recalled, Ordering::AcqRel);
    }

    /// Raises the recall flag of every core but one, and yields what they had laid open.
    fn recall(&self, but: Option<usize>) -> u64 {
        let mut recalled = 0;
        for (_, slot) in self.slots.iter().enumerate().filter(|(at, _)| Some(*at) != but) {
            if slot.open.load(Ordering::Relaxed) != RECALL {
                recalled += slot.open.swap(RECALL, Ordering::AcqRel) >> 1;
            }
        }
        recalled
    }

    /// A core that waits wants another amount. No effect if it was granted the old one meanwhile.
    pub(super) fn change_ask(&self, core: usize, from: Asked, to: Asked) {
        let (from, to) = (from.ticket().pack(), to.ticket().pack());
        let ticket = &self.slots[core].ticket;
        let _ = ticket.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// What a core that waits was granted, if it was.
    pub(super) fn collect(&self, core: usize) -> Option<u64> {
        let ticket = &self.slots[core].ticket;
        match Ticket::unpack(ticket.load(Ordering::Acquire)) {
            Ticket::Granted(bytes) => {
                // Only this core leaves the state granted.
                ticket.store(Ticket::Idle.pack(), Ordering::Release);
                Some(bytes)
            }
            Ticket::Idle | Ticket::Waiting(_) | Ticket::Bare(_) => None,
        }
    }

    /// A core stops waiting; yields what it was granted, if it was.
    pub(super) fn stop_waiting(&self, core: usize) -> Option<u64> {
        let ticket = &self.slots[core].ticket;
        match Ticket::unpack(ticket.swap(Ticket::Idle.pack(), Ordering::AcqRel)) {
            Ticket::Idle => None,
            Ticket::Granted(bytes) => Some(bytes),
            Ticket::Waiting(_) | Ticket::Bare(_) => {
                self.waiters.0.fetch_sub(1, Ordering::AcqRel);
                // Those behind it may want less.
                self.hand_out(core);
                None
            }
        }
    }

    /// Serves the cores that wait, in turn, as far as the free credit goes. One core at a time
    /// does this; a call meanwhile is left for that core to see to, so nobody spins or blocks.
    fn hand_out(&self, caller: usize) {
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

    /// Grants the core whose turn it is what it waits for; false if nobody waits or too little is
    /// free.
    fn serve_one(&self, caller: usize) -> bool {
        if self.waiters.0.load(Ordering::Acquire) == 0 {
            return false;
        }
        let Some((core, word, bytes)) = self.next_to_serve() else { return false };
        let ticket = &self.slots[core].ticket;
        let is_bare = is_bare(word);
        let taken = match is_bare {
            true => self.take_up_to(bytes.max(self.even_part())),
            false => self.take(bytes, self.even_part()),
        };
        if taken == 0 {
            return false;
        }
        let granted = Ticket::Granted(taken).pack();
        if ticket.compare_exchange(word, granted, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            // It stopped waiting or changed its mind: look again.
            self.free.0.fetch_add(taken, Ordering::AcqRel);
            return true;
        }
        self.waiters.0.fetch_sub(1, Ordering::AcqRel);
        self.rotor.store(core, Ordering::Relaxed);
        let bare_first = if is_bare { self.bare_first.load(Ordering::Relaxed) + 1 } else { 0 };
        self.bare_first.store(bare_first, Ordering::Relaxed);
        if core != caller {
            self.wake(core);
        }
        true
    }

    /// This core is to run a turn soon.
    pub(super) fn wake(&self, core: usize) {
        if let Some(waker) = self.slots[core].waker.get() {
            waker();
        }
    }

    /// The next core to be served, with its ticket. What is in flight beside the budget comes into it first, or there would
    /// always be more in flight than that by as much; but not for ever, or a core that has something in flight that hangs
    /// would have no more.
    ///
    /// Else, of those that wait for something about as urgent as it gets, it is the one whose flow, device and port have
    /// the fewest commands in flight, so that none is without work while others pile it up; of those with as few the next
    /// in turn. By urgency alone what is in flight goes to the flows of few cores at a time, and some ports and drives have
    /// nothing to do meanwhile.
    fn next_to_serve(&self) -> Option<(usize, u64, u64)> {
        let first = self.waiting().next()?;
        if self.bare_first.load(Ordering::Relaxed) < BARE_FIRST * self.slots.len()
            && let Some(bare) = self.waiting().find(|(_, word, _)| is_bare(*word))
        {
            return Some(bare);
        }
        let urgency = |core: usize| self.slots[core].urgency.load(Ordering::Relaxed);
        let load = |core: usize| self.slots[core].load.load(Ordering::Relaxed);
        let (last, largest) = self.last_urgent(|_| true, 1);
        let urgent = self.waiting().filter(|(core, ..)| urgency(*core) <= last);
        // What changed meanwhile must not leave everybody unserved.
        urgent.min_by_key(|(core, ..)| load(*core) / largest).or(Some(first))
    }

    /// Is what this core wants about as urgent as what any other core waits with, or more?
    pub(super) fn is_urgent(&self, core: usize, bytes: u64, urgency: u64) -> bool {
        let nobody_waits = self.waiters.0.load(Ordering::Relaxed) == 0;
        nobody_waits || urgency <= self.last_urgent(|other| other != core, bytes).0
    }

    /// Up to which urgency what waits on these cores is about as urgent as it gets, and the largest in bytes of that and
    /// of `largest`.
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

    /// The cores that wait, from the one after the core served last, with their tickets. Whoever waits for more than the
    /// budget became, to start it, holds nobody up; it starts by the floor.
    fn waiting(&self) -> impl Iterator<Item = (usize, u64, u64)> {
        let (last, budget) = (self.rotor.load(Ordering::Relaxed), self.budget());
        let turn = (1..=self.slots.len()).map(move |step| (last + step) % self.slots.len());
        turn.filter_map(move |core| {
            let word = self.slots[core].ticket.load(Ordering::Acquire);
            match Ticket::unpack(word) {
                Ticket::Waiting(bytes) if bytes <= budget => Some((core, word, bytes)),
                Ticket::Bare(bytes) => Some((core, word, bytes)),
                Ticket::Waiting(_) | Ticket::Idle | Ticket::Granted(_) => None,
            }
        })
    }

    /// The part of a core that waits of what is free. It has that, if it is more than it waits for: when the budget grows,
    /// the core that runs just then would have all that the others did not ask for, before they have a turn to ask for
    /// more.
    fn even_part(&self) -> u64 {
        let sharers = self.waiters.0.load(Ordering::Relaxed) as u64 + 1;
        self.free.0.load(Ordering::Acquire) / sharers
    }

    /// Takes `least` free bytes, up to a quantum or `most` if there is as much; or none.
    fn take(&self, least: u64, most: u64) -> u64 {
        // An eighth of an even share: a core seldom asks, and no core can hold much more than its
        // share of a scarce budget for long.
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

fn is_bare(word: u64) -> bool {
    matches!(Ticket::unpack(word), Ticket::Bare(_))
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
