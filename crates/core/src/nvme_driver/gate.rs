//! How the warden and the reactors' queues agree on who may touch the device, without a lock.
//!
//! ```text
//!              warden: something is wrong       the device provably cannot write
//!   +---------+ ------------------> +--------+ -----------------> +---------+
//!   | Running |                     | Halted |                    | Stopped | queues take their buffers back,
//!   +---------+ <-.                 +--------+ ---.               +---------+ reset their rings, then say so
//!                 |                     | cannot  | for good           |     (QueueShared::acked)
//!                 |        be proven    v         v                    |
//!                 |               +-----------+ +--------+             |
//!                 |               | Abandoned | | Failed |<------------+ it does not come back
//!                 |               +-----------+ +--------+             |
//!                 '----------------------------------------------------' all queues have said so, device enabled
//!                                                                        anew: next generation
//! ```
//!
//! The gate is one word, generation and mode, that only the warden writes. A queue loads it once a poll; while it
//! is what it was, that load is all there is to it. A queue rings no doorbell but while it sees its own
//! generation running, and the warden enables the controller only when every queue has acknowledged the stop,
//! so no doorbell of an old generation reaches a new one.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::event::{EventfdFlags, eventfd};

use super::controller::ControllerState;

/// What queues may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// Commands are submitted and completed.
    Running,
    /// The device is left alone. It may still write to buffers of commands in flight.
    Halted,
    /// The device cannot write: buffers may be taken back.
    Stopped,
    /// As stopped, and for good.
    Failed,
    /// For good, and nothing proves that the device cannot write: buffers in flight are given up.
    Abandoned,
}

/// A generation of the controller, counted from 1, and what queues may do in it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Word(u64);

const MODE_BITS: u32 = 3;
const HALTED: u64 = 0;

impl Word {
    /// What no gate ever says: generations begin with 1.
    pub(super) const NONE: Self = Self(HALTED);

    pub(super) fn new(generation: u64, mode: Mode) -> Self {
        let mode = match mode {
            Mode::Halted => HALTED,
            Mode::Running => 1,
            Mode::Stopped => 2,
            Mode::Failed => 3,
            Mode::Abandoned => 4,
        };
        Self(generation << MODE_BITS | mode)
    }

    pub(super) fn generation(self) -> u64 {
        self.0 >> MODE_BITS
    }

    pub(super) fn mode(self) -> Mode {
        match self.0 & ((1 << MODE_BITS) - 1) {
            HALTED => Mode::Halted,
            1 => Mode::Running,
            2 => Mode::Stopped,
            3 => Mode::Failed,
            _ => Mode::Abandoned,
        }
    }
}

impl fmt::Debug for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} #{}", self.mode(), self.generation())
    }
}

/// What the warden and all queues of a controller share.
#[derive(Debug)]
pub(super) struct Shared {
    gate: AtomicU64,
    /// Time in units of the warden's, as it last looked.
    tick: AtomicU32,
    pub(super) queues: Box<[QueueShared]>,
    /// Wakes the warden.
    pub(super) warden: Event,
    /// How often what the volatile cache held was lost, or may have been: the device came back from
    /// nowhere, or a flush failed.
    pub(super) losses: AtomicU64,
    pub(super) counters: Counters,
    /// How the controller is. The lock is held for moments only.
    state: Mutex<ControllerState>,
}

/// What happened to a controller, counted since it was opened.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) timeouts: AtomicU64,
    pub(super) aborts: AtomicU64,
    pub(super) resets: AtomicU64,
    pub(super) events: AtomicU64,
    pub(super) violations: AtomicU64,
    pub(super) namespace_changes: AtomicU64,
    pub(super) resubmitted: AtomicU64,
    pub(super) leaked_buffers: AtomicU64,
    pub(super) leaked_bytes: AtomicU64,
}

impl Counters {
    pub(super) fn add(counter: &AtomicU64, count: u64) {
        counter.fetch_add(count, Ordering::Relaxed);
    }
}

impl Shared {
    /// Halted, before the first generation.
    pub(super) fn new(queues: Box<[QueueShared]>) -> io::Result<Self> {
        Ok(Self {
            gate: AtomicU64::new(Word::new(1, Mode::Halted).0),
            tick: AtomicU32::new(0),
            queues,
            warden: Event::new()?,
            losses: AtomicU64::new(0),
            counters: Counters::default(),
            state: Mutex::new(ControllerState::Live),
        })
    }

    /// What the gate says; what the warden did before it said so is seen afterwards.
    ///
    /// A queue claims itself, then looks at the gate; the warden changes the gate, then looks who has claimed
    /// itself. One order of all four accesses (`SeqCst`), so that one of the two sees the other.
    #[inline]
    pub(super) fn word(&self) -> Word {
        Word(self.gate.load(Ordering::SeqCst))
    }

    /// The warden's: changes the gate and wakes every queue in use.
    pub(super) fn set(&self, word: Word) {
        self.gate.store(word.0, Ordering::SeqCst);
        self.queues.iter().filter(|queue| queue.is_claimed()).for_each(QueueShared::wake);
    }

    /// How the controller is.
    pub(super) fn state(&self) -> ControllerState {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The warden's: how the controller is from now on.
    pub(super) fn set_state(&self, state: ControllerState) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = state;
    }

    /// Whether every queue in use has acknowledged `word`.
    pub(super) fn all_acked(&self, word: Word) -> bool {
        let is_behind = |queue: &&QueueShared| queue.is_claimed() && queue.acked() != word;
        !self.queues.iter().any(|queue| is_behind(&queue))
    }

    /// The warden's: wakes the queues in use that have not acted on what the gate says.
    pub(super) fn wake_behind(&self) {
        let word = self.word();
        let is_behind = |queue: &&QueueShared| queue.is_claimed() && queue.acked() != word;
        self.queues.iter().filter(is_behind).for_each(QueueShared::wake);
    }

    #[inline]
    pub(super) fn tick(&self) -> u32 {
        self.tick.load(Ordering::Relaxed)
    }

    pub(super) fn set_tick(&self, tick: u32) {
        self.tick.store(tick, Ordering::Relaxed);
    }

    /// Queues in use.
    pub(super) fn claimed(&self) -> usize {
        self.queues.iter().filter(|queue| queue.is_claimed()).count()
    }
}

/// What the warden and one queue share.
#[derive(Debug)]
pub(super) struct QueueShared {
    /// The gate's word that the queue has acted on.
    acked: AtomicU64,
    claimed: AtomicBool,
    /// The device broke the rules: see [`Violation`].
    violation: AtomicU32,
    /// By command slot: what is with the device since when.
    watch: Box<[AtomicU64]>,
    /// Readable when there may be completions: the vector's, which the warden raises too.
    event: Option<Event>,
}

/// How a device broke the rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Violation {
    /// A completion names a command that is not with the device.
    UnknownCommand,
    /// A completion names another submission queue.
    OtherQueue,
}

/// A command that is with the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Watched {
    pub(super) cid: u16,
    /// The warden's time when it was submitted.
    pub(super) tick: u32,
}

const IN_FLIGHT: u64 = 1 << 63;

impl QueueShared {
    pub(super) fn new(slots: usize, event: Option<Event>) -> Self {
        Self {
            acked: AtomicU64::new(Word::NONE.0),
            claimed: AtomicBool::new(false),
            violation: AtomicU32::new(0),
            watch: (0..slots).map(|_| AtomicU64::new(0)).collect(),
            event,
        }
    }

    /// Commands that can be with the device at once.
    pub(super) fn slots(&self) -> usize {
        self.watch.len()
    }

    pub(super) fn is_claimed(&self) -> bool {
        // See `Shared::word`.
        self.claimed.load(Ordering::SeqCst)
    }

    pub(super) fn set_claimed(&self, claimed: bool) {
        self.claimed.store(claimed, Ordering::SeqCst);
    }

    pub(super) fn acked(&self) -> Word {
        Word(self.acked.load(Ordering::Acquire))
    }

    /// The queue has acted on `word`: everything it did before is seen by who reads this.
    pub(super) fn ack(&self, word: Word) {
        self.acked.store(word.0, Ordering::Release);
    }

    /// A command was submitted.
    #[inline]
    pub(super) fn begin(&self, slot: usize, cid: u16, tick: u32) {
        if let Some(word) = self.watch.get(slot) {
            word.store(IN_FLIGHT | u64::from(cid) << 32 | u64::from(tick), Ordering::Relaxed);
        }
    }

    /// A command is no longer with the device.
    #[inline]
    pub(super) fn end(&self, slot: usize) {
        if let Some(word) = self.watch.get(slot) {
            word.store(0, Ordering::Relaxed);
        }
    }

    /// What is with the device.
    pub(super) fn in_flight(&self) -> impl Iterator<Item = Watched> {
        self.watch.iter().map(|word| word.load(Ordering::Relaxed)).filter(|word| *word != 0).map(
            |word| {
                let [t0, t1, t2, t3, c0, c1, ..] = word.to_le_bytes();
                let cid = u16::from_le_bytes([c0, c1]);
                Watched { cid, tick: u32::from_le_bytes([t0, t1, t2, t3]) }
            },
        )
    }

    pub(super) fn set_violation(&self, violation: Violation) {
        let code = match violation {
            Violation::UnknownCommand => 1,
            Violation::OtherQueue => 2,
        };
        self.violation.store(code, Ordering::Release);
    }

    pub(super) fn take_violation(&self) -> Option<Violation> {
        match self.violation.swap(0, Ordering::AcqRel) {
            0 => None,
            1 => Some(Violation::UnknownCommand),
            _ => Some(Violation::OtherQueue),
        }
    }

    pub(super) fn event(&self) -> Option<&Event> {
        self.event.as_ref()
    }

    /// Wakes the reactor, if it sleeps on the queue.
    pub(super) fn wake(&self) {
        if let Some(event) = &self.event {
            event.raise();
        }
    }
}

/// An eventfd as a flag.
#[derive(Debug)]
pub(super) struct Event(OwnedFd);

impl Event {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    pub(super) fn raise(&self) {
        // Fails only when the count is at its limit, and then it is raised anyway.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    pub(super) fn clear(&self) {
        // WouldBlock: it was not raised.
        let _ = rustix::io::read(&self.0, &mut [0_u8; 8]);
    }
}

impl From<OwnedFd> for Event {
    fn from(fd: OwnedFd) -> Self {
        Self(fd)
    }
}

impl AsFd for Event {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
