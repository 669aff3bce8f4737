//! `delay`: a device layered on another one that delivers completions later.
//!
//! ```text
//!  submit --> base --done--> line (reads | all others) --latency expired--> returned by poll
//! ```
//!
//! The latency is added after the base has completed the operation, including failed ones. The data
//! stays in its buffer for that time, as with a slow drive behind a fast cache. Each direction has
//! one latency, so completions are due in order and a delay line is a FIFO without sorting. With
//! *jitter*, each operation gets a random additional latency and is delivered when that expires, in
//! any order. A line has a heap for those.
//!
//! Nothing here sleeps: [`BlockQueue::next_due`] schedules the next poll of the reactor.

#[cfg(test)]
mod tests;

use std::cmp::{self, Reverse};
use std::collections::{BinaryHeap, VecDeque};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nvmeof_random::SplitMix64;

use super::{
    BlockDevice, BlockError, BlockOp, BlockOpKind, BlockQueue, Completed, DeviceInfo, Rejected,
};
use crate::dma::{CorePool, ZeroCopyData};
use crate::slot_table::SlotTable;

/// Operations a queue reserves room for at start. A queue that needed more keeps the larger room.
const ROOM: usize = 128;

/// Latency added to an operation, by its direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Latency {
    /// Added to reads.
    pub read: Duration,
    /// Added to writes and all other operations except reads.
    pub write: Duration,
    /// Maximum additional latency of a read, uniformly distributed from 0.
    pub read_jitter: Duration,
    /// Maximum additional latency of all other operations.
    pub write_jitter: Duration,
}

/// Source of time of a queue: monotonic nanoseconds.
pub type Clock = fn() -> u64;

/// The delay device.
#[derive(Debug)]
pub struct DelayDevice {
    info: DeviceInfo,
    base: Arc<dyn BlockDevice>,
    latency: Arc<LatencySettings>,
    clock: Clock,
    seed: u64,
}

/// The latencies in nanoseconds, as all queues read them.
#[derive(Debug, Default)]
struct LatencySettings {
    read: AtomicU64,
    write: AtomicU64,
    read_jitter: AtomicU64,
    write_jitter: AtomicU64,
    queues: AtomicU64,
}

impl DelayDevice {
    /// Layers `latency` on `base` under another name. Its queues read `clock` when the base has
    /// completed an operation, and while one waits.
    pub fn new(name: &str, base: Arc<dyn BlockDevice>, latency: Latency, clock: Clock) -> Self {
        let info = DeviceInfo { name: name.to_owned(), ..base.info().clone() };
        let device = Self { info, base, latency: Arc::default(), clock, seed: 0 };
        device.set_latency(latency);
        device
    }

    /// Sets the seed of the jitter; each queue draws its own sequence from it, in order of opening.
    #[must_use]
    pub fn seeded(self, seed: u64) -> Self {
        Self { seed, ..self }
    }

    /// Changes the latency of operations that the base completes from now on.
    ///
    /// Earlier completions keep their time. None of the same direction overtakes them, unless one
    /// of them has jitter.
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

    /// The current latency plus the bound of the base. A completion is still delayed after a
    /// cancel, as a drive of this latency would delay it.
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
    latency: Arc<LatencySettings>,
    clock: Clock,
    rng: SplitMix64,
    /// Operations at the base. The base sees the slot as the token, because a completion does not
    /// carry its direction.
    running: SlotTable<Caller>,
    /// Scratch space, kept for its capacity.
    finished: Vec<Completed>,
    reads: DelayLine,
    others: DelayLine,
}

impl DelayQueue {
    fn new(device: &DelayDevice, base: Box<dyn BlockQueue>) -> Self {
        let number = device.latency.queues.fetch_add(1, Ordering::Relaxed);
        Self {
            base,
            latency: Arc::clone(&device.latency),
            clock: device.clock,
            rng: SplitMix64::stream(device.seed, number),
            running: SlotTable::with_capacity(ROOM),
            finished: Vec::with_capacity(ROOM),
            reads: DelayLine::default(),
            others: DelayLine::default(),
        }
    }
}

impl BlockQueue for DelayQueue {
    fn submit(&mut self, mut op: BlockOp) -> Result<(), Rejected> {
        let caller = Caller { token: op.token, read: op.kind == BlockOpKind::Read };
        op.token = self.running.insert(caller).into();
        self.base.submit(op).map_err(|mut rejected| {
            take_caller(&mut self.running, rejected.op.token);
            rejected.op.token = caller.token;
            rejected
        })
    }

    fn poll(&mut self, done: &mut Vec<Completed>) {
        self.base.poll(&mut self.finished);
        if self.finished.is_empty() && self.reads.is_empty() && self.others.is_empty() {
            return;
        }
        // Read after the poll: the base completed these operations during it, not before.
        let now = (self.clock)();
        let load = |value: &AtomicU64| value.load(Ordering::Relaxed);
        let latency = &self.latency;
        let read = (load(&latency.read), load(&latency.read_jitter));
        let write = (load(&latency.write), load(&latency.write_jitter));
        for mut completed in self.finished.drain(..) {
            let Some(caller) = take_caller(&mut self.running, completed.token) else {
                debug_assert!(false, "the base completed an unknown operation");
                continue;
            };
            completed.token = caller.token;
            let (line, (latency, jitter)) =
                if caller.read { (&mut self.reads, read) } else { (&mut self.others, write) };
            let due = now.saturating_add(latency);
            if jitter == 0 {
                line.push(completed, due);
            } else {
                let more = self.rng.below(jitter.saturating_add(1));
                line.push_any_order(completed, due.saturating_add(more));
            }
        }
        self.reads.hand_out(now, done);
        self.others.hand_out(now, done);
    }

    fn in_flight(&self) -> usize {
        self.base.in_flight() + self.reads.len() + self.others.len()
    }

    /// Each operation passes to the base immediately, so the base cancels what waits there.
    fn cancel(&mut self, token: u64) {
        for (slot, caller) in self.running.iter() {
            if caller.token == token {
                self.base.cancel(slot.into());
            }
        }
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        self.base.event_fd()
    }

    fn needs_polls(&self) -> bool {
        self.base.needs_polls()
    }

    fn next_due(&self) -> Option<u64> {
        [self.base.next_due(), self.reads.due(), self.others.due()].into_iter().flatten().min()
    }

    /// A zero-copy read completes immediately, so only a read without latency is served this way.
    fn zero_copy_read(&mut self, offset: u64, len: u32) -> Option<ZeroCopyData> {
        let latency = &self.latency;
        if latency.read.load(Ordering::Relaxed) > 0
            || latency.read_jitter.load(Ordering::Relaxed) > 0
        {
            return None;
        }
        self.base.zero_copy_read(offset, len)
    }
}

/// Completions of one direction, each with its due time.
#[derive(Debug)]
struct DelayLine {
    /// In order of arrival. None overtakes its predecessor: a latency that was just shortened does
    /// not reorder them.
    in_order: VecDeque<(u64, Completed)>,
    /// Earliest on top. Completions due at the same time leave in order of arrival.
    any_order: BinaryHeap<Reverse<DelayedCompletion>>,
    /// Number of completions that have entered the heap.
    came: u64,
}

/// A completion in a heap.
#[derive(Debug)]
struct DelayedCompletion {
    due: u64,
    came: u64,
    completed: Completed,
}

impl Default for DelayLine {
    fn default() -> Self {
        let (in_order, any_order) = (VecDeque::with_capacity(ROOM), BinaryHeap::new());
        Self { in_order, any_order, came: 0 }
    }
}

impl DelayLine {
    fn push(&mut self, completed: Completed, due: u64) {
        self.in_order.push_back((due, completed));
    }

    fn push_any_order(&mut self, completed: Completed, due: u64) {
        self.came += 1;
        self.any_order.push(Reverse(DelayedCompletion { due, came: self.came, completed }));
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

impl DelayedCompletion {
    fn key(&self) -> (u64, u64) {
        (self.due, self.came)
    }
}

impl PartialEq for DelayedCompletion {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for DelayedCompletion {}

impl PartialOrd for DelayedCompletion {
    fn partial_cmp(&self, other: &Self) -> Option<cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for DelayedCompletion {
    fn cmp(&self, other: &Self) -> cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

/// Requester of an operation at the base.
#[derive(Debug, Clone, Copy)]
struct Caller {
    token: u64,
    read: bool,
}

/// Removes the caller of the operation that the base sees under this token.
#[inline]
fn take_caller(running: &mut SlotTable<Caller>, token: u64) -> Option<Caller> {
    running.remove(u32::try_from(token).ok()?)
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
