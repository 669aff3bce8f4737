//! Coordination between the supervisor and the reactors' queues about access to the device, without
//! a lock.
//!
//! ```text
//!            supervisor: error                 the device provably cannot write
//!   +---------+ -------------> +--------+ -----------------> +---------+
//!   | Running |                | Halted |                    | Stopped | queues reclaim buffers,
//!   +---------+ <-.            +--------+ ---.               +---------+ reset their rings,
//!                 |                | not     | permanently        |     then acknowledge
//!                 |                v proven  v                    |     (QueueShared::acked)
//!                 |          +-----------+ +--------+             |
//!                 |          | Abandoned | | Failed |<------------+ it does not return
//!                 |          +-----------+ +--------+             |
//!                 '-----------------------------------------------' all queues have acknowledged,
//!                                                device enabled again: next generation
//! ```
//!
//! The gate is one word, generation and mode, that only the supervisor writes. A queue loads it
//! once per poll; an unchanged gate costs only that load. A queue rings a doorbell only while it
//! sees its own generation running. The supervisor enables the controller only when every queue has
//! acknowledged the stop. So no doorbell of an old generation reaches a new one.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::event::{EventfdFlags, eventfd};

/// Permissions of the queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum QueueMode {
    /// Commands are submitted and completed.
    Running,
    /// Queues do not access the device. It may still write to buffers of commands in flight.
    Halted,
    /// The device cannot write: queues may reclaim buffers.
    Stopped,
    /// Like `Stopped`, permanently.
    Failed,
    /// Permanently stopped without proof that the device cannot write: buffers in flight are
    /// abandoned.
    Abandoned,
}

/// A generation of the controller, counted from 1, and the mode of the queues in it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct GateState(u64);

const MODE_BITS: u32 = 3;
const HALTED: u64 = 0;

impl GateState {
    /// A value that the gate never has: generations begin with 1.
    pub(super) const NONE: Self = Self(HALTED);

    pub(super) fn new(generation: u64, mode: QueueMode) -> Self {
        let mode = match mode {
            QueueMode::Halted => HALTED,
            QueueMode::Running => 1,
            QueueMode::Stopped => 2,
            QueueMode::Failed => 3,
            QueueMode::Abandoned => 4,
        };
        Self(generation << MODE_BITS | mode)
    }

    pub(super) fn generation(self) -> u64 {
        self.0 >> MODE_BITS
    }

    pub(super) fn mode(self) -> QueueMode {
        match self.0 & ((1 << MODE_BITS) - 1) {
            HALTED => QueueMode::Halted,
            1 => QueueMode::Running,
            2 => QueueMode::Stopped,
            3 => QueueMode::Failed,
            _ => QueueMode::Abandoned,
        }
    }
}

impl fmt::Debug for GateState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} #{}", self.mode(), self.generation())
    }
}

/// State of a controller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ControllerState {
    /// The controller accepts commands.
    Live,
    /// The controller is being reset, or is briefly disconnected. Operations wait.
    Resetting,
    /// The controller failed permanently, for this reason: operations end with an error.
    Failed(String),
}

/// State that the supervisor and all queues of a controller share.
#[derive(Debug)]
pub(super) struct ControllerGate {
    gate: AtomicU64,
    /// Time in ticks, as of the last turn of the supervisor.
    tick: AtomicU32,
    pub(super) queues: Box<[QueueShared]>,
    /// Wakes the supervisor.
    pub(super) supervisor: Event,
    /// Number of events that lost, or may have lost, the contents of the volatile cache: the device
    /// was disconnected, or a flush failed.
    pub(super) losses: AtomicU64,
    pub(super) counters: Counters,
    /// State of the controller. Callers hold the lock only briefly.
    state: Mutex<ControllerState>,
}

/// Event counters of a controller since it was opened.
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

impl ControllerGate {
    /// Creates the state: halted, before the first generation.
    pub(super) fn new(queues: Box<[QueueShared]>) -> io::Result<Self> {
        Ok(Self {
            gate: AtomicU64::new(GateState::new(1, QueueMode::Halted).0),
            tick: AtomicU32::new(0),
            queues,
            supervisor: Event::new()?,
            losses: AtomicU64::new(0),
            counters: Counters::default(),
            state: Mutex::new(ControllerState::Live),
        })
    }

    /// Loads the gate. Everything the supervisor did before it set the gate is visible afterwards.
    ///
    /// A queue claims itself, then loads the gate; the supervisor sets the gate, then checks the
    /// claims. All four accesses have one order (`SeqCst`), so at least one side sees the other.
    #[inline]
    pub(super) fn word(&self) -> GateState {
        GateState(self.gate.load(Ordering::SeqCst))
    }

    /// Sets the gate and wakes every queue in use. Only the supervisor calls it.
    pub(super) fn set(&self, word: GateState) {
        self.gate.store(word.0, Ordering::SeqCst);
        self.queues.iter().filter(|queue| queue.is_claimed()).for_each(QueueShared::wake);
    }

    /// Returns the state of the controller.
    pub(super) fn state(&self) -> ControllerState {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sets the state of the controller. Only the supervisor calls it.
    pub(super) fn set_state(&self, state: ControllerState) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = state;
    }

    /// Returns true if every queue in use has acknowledged `word`.
    pub(super) fn all_acked(&self, word: GateState) -> bool {
        let is_behind = |queue: &&QueueShared| queue.is_claimed() && queue.acked() != word;
        !self.queues.iter().any(|queue| is_behind(&queue))
    }

    /// Wakes queues in use that have not processed the gate. Only the supervisor calls it.
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

    /// Returns the number of queues in use.
    pub(super) fn claimed(&self) -> usize {
        self.queues.iter().filter(|queue| queue.is_claimed()).count()
    }
}

/// State that the supervisor and one queue share.
#[derive(Debug)]
pub(super) struct QueueShared {
    /// Gate word that the queue has processed.
    acked: AtomicU64,
    claimed: AtomicBool,
    /// Protocol violation of the device: see [`Violation`].
    violation: AtomicU32,
    /// By command slot: the command in flight and its submission time.
    watch: Box<[AtomicU64]>,
    /// Readable when completions may be available: the eventfd of the vector, which the supervisor
    /// also raises.
    event: Option<Event>,
}

/// Protocol violation by a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Violation {
    /// A completion names a command that is not in flight.
    UnknownCommand,
    /// A completion names another submission queue.
    OtherQueue,
}

/// A command in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TrackedCommand {
    pub(super) cid: u16,
    /// Submission time in ticks of the supervisor.
    pub(super) tick: u32,
}

const IN_FLIGHT: u64 = 1 << 63;

impl QueueShared {
    pub(super) fn new(slots: usize, event: Option<Event>) -> Self {
        Self {
            acked: AtomicU64::new(GateState::NONE.0),
            claimed: AtomicBool::new(false),
            violation: AtomicU32::new(0),
            watch: (0..slots).map(|_| AtomicU64::new(0)).collect(),
            event,
        }
    }

    /// Returns the number of commands that can be in flight.
    pub(super) fn slots(&self) -> usize {
        self.watch.len()
    }

    pub(super) fn is_claimed(&self) -> bool {
        // See `ControllerGate::word`.
        self.claimed.load(Ordering::SeqCst)
    }

    pub(super) fn set_claimed(&self, claimed: bool) {
        self.claimed.store(claimed, Ordering::SeqCst);
    }

    pub(super) fn acked(&self) -> GateState {
        GateState(self.acked.load(Ordering::Acquire))
    }

    /// Acknowledges `word`: a reader of it sees everything the queue did before.
    pub(super) fn ack(&self, word: GateState) {
        self.acked.store(word.0, Ordering::Release);
    }

    /// Records the submission of a command.
    #[inline]
    pub(super) fn begin(&self, slot: usize, cid: u16, tick: u32) {
        debug_assert!(slot < self.watch.len(), "slot {slot} would not be watched");
        if let Some(word) = self.watch.get(slot) {
            word.store(IN_FLIGHT | u64::from(cid) << 32 | u64::from(tick), Ordering::Relaxed);
        }
    }

    /// Records that a command is no longer in flight.
    #[inline]
    pub(super) fn end(&self, slot: usize) {
        debug_assert!(slot < self.watch.len(), "slot {slot} is not watched");
        if let Some(word) = self.watch.get(slot) {
            word.store(0, Ordering::Relaxed);
        }
    }

    /// Returns the commands in flight.
    pub(super) fn in_flight(&self) -> impl Iterator<Item = TrackedCommand> {
        self.watch.iter().map(|word| word.load(Ordering::Relaxed)).filter(|word| *word != 0).map(
            |word| {
                let [t0, t1, t2, t3, c0, c1, ..] = word.to_le_bytes();
                let cid = u16::from_le_bytes([c0, c1]);
                TrackedCommand { cid, tick: u32::from_le_bytes([t0, t1, t2, t3]) }
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
        // A failed write means that the counter is at its limit, so the event is raised anyway.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    pub(super) fn clear(&self) {
        // WouldBlock: the event was not raised.
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
