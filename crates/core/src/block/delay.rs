//! `delay`: a device around another one that hands completions out later.
//!
//! ```text
//!  submit --> base --done--> Lane (reads | all else) --latency over--> handed out by poll
//! ```
//!
//! The latency is added after the base has finished, failed operations included: the data is in
//! its buffer all that time, as it is with a slow drive behind a fast cache. Each direction has one
//! latency, so what finishes first is due first, and a lane is a queue without any sorting. With
//! *jitter*, each operation has a random latency more, and is handed out when that is over, whatever
//! came before: a lane has a heap for those.
//!
//! Nothing here sleeps: [`BlockQueue::next_due`] tells the reactor when to poll.

#[cfg(test)]
mod tests;

use std::cmp::{self, Reverse};
use std::collections::{BinaryHeap, VecDeque};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::{
    BlockDevice, BlockError, BlockOp, BlockOpKind, BlockQueue, Completed, DeviceInfo, Rejected,
};
use crate::dma::{CorePool, Lent};
use crate::rng::Rng;

/// Operations a queue makes room for at start. One that has had more keeps the room it took.
const ROOM: usize = 128;

/// What is added to an operation, by its direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Latency {
    /// Added to reads.
    pub read: Duration,
    /// Added to writes and to everything else that is no read.
    pub write: Duration,
    /// Most that is added to a read besides: between nothing and this, all equally likely.
    pub read_jitter: Duration,
    /// The same for everything else.
    pub write_jitter: Duration,
}

/// Where a queue takes the time from: nanoseconds that do not go back.
pub type Clock = fn() -> u64;

/// The delay device.
#[derive(Debug)]
pub struct DelayDevice {
    info: DeviceInfo,
    base: Arc<dyn BlockDevice>,
    latency: Arc<Shared>,
    clock: Clock,
    seed: u64,
}

/// The latencies in nanoseconds, as all queues read them.
#[derive(Debug, Default)]
struct Shared {
    read: AtomicU64,
    write: AtomicU64,
    read_jitter: AtomicU64,
    write_jitter: AtomicU64,
    queues: AtomicU64,
}

impl DelayDevice {
    /// `base` under another name, slower by `latency`. Its queues ask `clock` when the base has
    /// finished something, and while something waits.
    pub fn new(name: &str, base: Arc<dyn BlockDevice>, latency: Latency, clock: Clock) -> Self {
        let info = DeviceInfo { name: name.to_owned(), ..base.info().clone() };
        let device = Self { info, base, latency: Arc::default(), clock, seed: 0 };
        device.set_latency(latency);
        device
    }

    /// The same with another seed of its jitter; each queue draws its own sequence from it, in order of
    /// opening.
    #[must_use]
    pub fn seeded(self, seed: u64) -> Self {
        Self { seed, ..self }
    }

    /// Changes the latency, for what the base finishes from now on. What finished before keeps
    /// its time, and nothing of its direction overtakes it unless one of them has jitter.
    pub fn set_latency(&self, latency: Latency) {
        let shared = &self.latency;
        for (place, value) in [
            (&shared.read, latency.read),
            (&shared.write, latency.write),
            (&shared.read_jitter, latency.read_jitter),
            (&shared.write_jitter, latency.write_jitter),
        ] {
            place.store(nanos(value), Ordering::Relaxed);
        }
    }
}

impl BlockDevice for DelayDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn open_queue(&self, pool: &CorePool) -> Result<Box<dyn BlockQueue>, BlockError> {
        Ok(Box::new(DelayQueue::new(self, self.base.open_queue(pool)?)))
    }

    /// The latency as it is now, and the base's bound. What the base has done is still held back
    /// when it was cancelled: a drive that is so slow would have it.
    fn quiesce_bound(&self) -> Option<Duration> {
        let load = |value: &AtomicU64| value.load(Ordering::Relaxed);
        let latency = &self.latency;
        let read = load(&latency.read).saturating_add(load(&latency.read_jitter));
        let write = load(&latency.write).saturating_add(load(&latency.write_jitter));
        let base = self.base.quiesce_bound()?;
        Some(base.saturating_add(Duration::from_nanos(read.max(write))))
    }

    fn is_gone(&self) -> bool {
        self.base.is_gone()
    }
}

#[derive(Debug)]
struct DelayQueue {
    base: Box<dyn BlockQueue>,
    latency: Arc<Shared>,
    clock: Clock,
    rng: Rng,
    running: Running,
    /// Scratch space, kept for its capacity.
    finished: Vec<Completed>,
    reads: Lane,
    others: Lane,
}

impl DelayQueue {
    fn new(device: &DelayDevice, base: Box<dyn BlockQueue>) -> Self {
        let number = device.latency.queues.fetch_add(1, Ordering::Relaxed);
        Self {
            base,
            latency: Arc::clone(&device.latency),
            clock: device.clock,
            rng: Rng::new(device.seed.wrapping_add(number.wrapping_mul(0x9e37_79b9_7f4a_7c15))),
            running: Running::default(),
            finished: Vec::with_capacity(ROOM),
            reads: Lane::default(),
            others: Lane::default(),
        }
    }
}

impl BlockQueue for DelayQueue {
    fn submit(&mut self, mut op: BlockOp) -> Result<(), Rejected> {
        let caller = Caller { token: op.token, read: op.kind == BlockOpKind::Read };
        op.token = self.running.begin(caller);
        self.base.submit(op).map_err(|mut rejected| {
            self.running.end(rejected.op.token);
            rejected.op.token = caller.token;
            rejected
        })
    }

    fn poll(&mut self, done: &mut Vec<Completed>) {
        self.base.poll(&mut self.finished);
        if self.finished.is_empty() && self.reads.is_empty() && self.others.is_empty() {
            return;
        }
        // Asked after the base was polled: what it finished in that call was not done before.
        let now = (self.clock)();
        let load = |value: &AtomicU64| value.load(Ordering::Relaxed);
        let latency = &self.latency;
        let read = (load(&latency.read), load(&latency.read_jitter));
        let write = (load(&latency.write), load(&latency.write_jitter));
        for mut completed in self.finished.drain(..) {
            let Some(caller) = self.running.end(completed.token) else {
                debug_assert!(false, "the base finished what it was not asked for");
                continue;
            };
            completed.token = caller.token;
            let (lane, (latency, jitter)) =
                if caller.read { (&mut self.reads, read) } else { (&mut self.others, write) };
            let due = now.saturating_add(latency);
            if jitter == 0 {
                lane.push(completed, due);
            } else {
                let more = self.rng.below(jitter.saturating_add(1));
                lane.push_any_order(completed, due.saturating_add(more));
            }
        }
        self.reads.hand_out(now, done);
        self.others.hand_out(now, done);
    }

    fn in_flight(&self) -> usize {
        self.base.in_flight() + self.reads.len() + self.others.len()
    }

    /// Each operation is given to the base as it comes: what waits there is the base's to cancel.
    fn cancel(&mut self, token: u64) {
        for slot in self.running.slots_of(token) {
            self.base.cancel(slot);
        }
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        self.base.event_fd()
    }

    fn next_due(&self) -> Option<u64> {
        [self.base.next_due(), self.reads.due(), self.others.due()].into_iter().flatten().min()
    }

    /// Bytes that are lent are there at once, so only a read that is not slowed is lent.
    fn lend(&mut self, offset: u64, len: u32) -> Option<Lent> {
        let latency = &self.latency;
        if latency.read.load(Ordering::Relaxed) > 0
            || latency.read_jitter.load(Ordering::Relaxed) > 0
        {
            return None;
        }
        self.base.lend(offset, len)
    }
}

/// Completions of one direction, each with the time when it is due.
#[derive(Debug)]
struct Lane {
    /// In the order in which they came. None passes the one before it: a latency that was just
    /// shortened turns no order around.
    in_order: VecDeque<(u64, Completed)>,
    /// The earliest on top. What is due at the same time comes in the order in which it came.
    any_order: BinaryHeap<Reverse<Late>>,
    /// Completions that have come to the heap.
    came: u64,
}

/// A completion in a heap.
#[derive(Debug)]
struct Late {
    due: u64,
    came: u64,
    completed: Completed,
}

impl Default for Lane {
    fn default() -> Self {
        let (in_order, any_order) = (VecDeque::with_capacity(ROOM), BinaryHeap::new());
        Self { in_order, any_order, came: 0 }
    }
}

impl Lane {
    fn push(&mut self, completed: Completed, due: u64) {
        self.in_order.push_back((due, completed));
    }

    fn push_any_order(&mut self, completed: Completed, due: u64) {
        self.came += 1;
        self.any_order.push(Reverse(Late { due, came: self.came, completed }));
    }

    fn hand_out(&mut self, now: u64, done: &mut Vec<Completed>) {
        while let Some((_, completed)) = self.in_order.pop_front_if(|(due, _)| *due <= now) {
            done.push(completed);
        }
        while self.any_order.peek().is_some_and(|Reverse(late)| late.due <= now) {
            done.extend(self.any_order.pop().map(|Reverse(late)| late.completed));
        }
    }

    fn due(&self) -> Option<u64> {
        let in_order = self.in_order.front().map(|(due, _)| *due);
        in_order.into_iter().chain(self.any_order.peek().map(|Reverse(late)| late.due)).min()
    }

    fn len(&self) -> usize {
        self.in_order.len() + self.any_order.len()
    }

    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Late {
    fn key(&self) -> (u64, u64) {
        (self.due, self.came)
    }
}

impl PartialEq for Late {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Late {}

impl PartialOrd for Late {
    fn partial_cmp(&self, other: &Self) -> Option<cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Late {
    fn cmp(&self, other: &Self) -> cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

/// Who asked for an operation that is with the base.
#[derive(Debug, Clone, Copy)]
struct Caller {
    token: u64,
    read: bool,
}

/// What is with the base, which knows each operation by its slot: a completion does not tell its
/// direction.
#[derive(Debug)]
struct Running {
    slots: Vec<Option<Caller>>,
    free: Vec<u64>,
}

impl Default for Running {
    fn default() -> Self {
        Self { slots: Vec::with_capacity(ROOM), free: Vec::with_capacity(ROOM) }
    }
}

impl Running {
    fn begin(&mut self, caller: Caller) -> u64 {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() as u64 - 1
        });
        if let Some(place) = usize::try_from(slot).ok().and_then(|slot| self.slots.get_mut(slot)) {
            *place = Some(caller);
        }
        slot
    }

    /// The slots of all operations with this token.
    fn slots_of(&self, token: u64) -> Vec<u64> {
        let slots = (0_u64..).zip(&self.slots);
        let theirs = slots.filter(|(_, caller)| caller.is_some_and(|c| c.token == token));
        theirs.map(|(slot, _)| slot).collect()
    }

    fn end(&mut self, slot: u64) -> Option<Caller> {
        let caller = self.slots.get_mut(usize::try_from(slot).ok()?)?.take()?;
        self.free.push(slot);
        Some(caller)
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
