//! `delay`: a device around another one that hands completions out later.
//!
//! ```text
//!  submit --> base --done--> Lane (reads | all else) --latency over--> handed out by poll
//! ```
//!
//! The latency is added after the base has finished, failed operations included: the data is in
//! its buffer all that time, as it is with a slow drive behind a fast cache. Each direction has one
//! latency, so what finishes first is due first, and a lane is a queue without any sorting.
//!
//! Nothing here sleeps: [`BlockQueue::next_due`] tells the reactor when to poll.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::{
    BlockDevice, BlockError, BlockOp, BlockOpKind, BlockQueue, Completed, DeviceInfo, Rejected,
};
use crate::dma::{CorePool, Lent};

/// Operations a queue makes room for at start. One that has had more keeps the room it took.
const ROOM: usize = 128;

/// What is added to an operation, by its direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Latency {
    /// Added to reads.
    pub read: Duration,
    /// Added to writes and to everything else that is no read.
    pub write: Duration,
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
}

/// The latencies in nanoseconds, as all queues read them.
#[derive(Debug, Default)]
struct Shared {
    read: AtomicU64,
    write: AtomicU64,
}

impl DelayDevice {
    /// `base` under another name, slower by `latency`. Its queues ask `clock` when the base has
    /// finished something, and while something waits.
    pub fn new(name: &str, base: Arc<dyn BlockDevice>, latency: Latency, clock: Clock) -> Self {
        let info = DeviceInfo { name: name.to_owned(), ..base.info().clone() };
        let device = Self { info, base, latency: Arc::default(), clock };
        device.set_latency(latency);
        device
    }

    /// Changes the latency, for what the base finishes from now on. What finished before keeps
    /// its time, and nothing of its direction overtakes it.
    pub fn set_latency(&self, latency: Latency) {
        self.latency.read.store(nanos(latency.read), Ordering::Relaxed);
        self.latency.write.store(nanos(latency.write), Ordering::Relaxed);
    }
}

impl BlockDevice for DelayDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn open_queue(&self, pool: &CorePool) -> Result<Box<dyn BlockQueue>, BlockError> {
        Ok(Box::new(DelayQueue::new(self, self.base.open_queue(pool)?)))
    }
}

#[derive(Debug)]
struct DelayQueue {
    base: Box<dyn BlockQueue>,
    latency: Arc<Shared>,
    clock: Clock,
    running: Running,
    /// Scratch space, kept for its capacity.
    finished: Vec<Completed>,
    reads: Lane,
    others: Lane,
}

impl DelayQueue {
    fn new(device: &DelayDevice, base: Box<dyn BlockQueue>) -> Self {
        Self {
            base,
            latency: Arc::clone(&device.latency),
            clock: device.clock,
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
        let latency = &self.latency;
        let (read, write) =
            (latency.read.load(Ordering::Relaxed), latency.write.load(Ordering::Relaxed));
        for mut completed in self.finished.drain(..) {
            let Some(caller) = self.running.end(completed.token) else {
                debug_assert!(false, "the base finished what it was not asked for");
                continue;
            };
            completed.token = caller.token;
            let (lane, latency) =
                if caller.read { (&mut self.reads, read) } else { (&mut self.others, write) };
            lane.push(completed, now.saturating_add(latency));
        }
        self.reads.hand_out(now, done);
        self.others.hand_out(now, done);
    }

    fn in_flight(&self) -> usize {
        self.base.in_flight() + self.reads.0.len() + self.others.0.len()
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        self.base.event_fd()
    }

    fn next_due(&self) -> Option<u64> {
        [self.base.next_due(), self.reads.due(), self.others.due()].into_iter().flatten().min()
    }

    /// Bytes that are lent are there at once, so only a read that is not slowed is lent.
    fn lend(&mut self, offset: u64, len: u32) -> Option<Lent> {
        if self.latency.read.load(Ordering::Relaxed) > 0 {
            return None;
        }
        self.base.lend(offset, len)
    }
}

/// Completions in the order in which they came, each with the time when it is due. None passes the
/// one before it: a latency that was just shortened turns no order around.
#[derive(Debug)]
struct Lane(VecDeque<(u64, Completed)>);

impl Default for Lane {
    fn default() -> Self {
        Self(VecDeque::with_capacity(ROOM))
    }
}

impl Lane {
    fn push(&mut self, completed: Completed, due: u64) {
        self.0.push_back((due, completed));
    }

    fn hand_out(&mut self, now: u64, done: &mut Vec<Completed>) {
        while let Some((_, completed)) = self.0.pop_front_if(|(due, _)| *due <= now) {
            done.push(completed);
        }
    }

    fn due(&self) -> Option<u64> {
        self.0.front().map(|(due, _)| *due)
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
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

    fn end(&mut self, slot: u64) -> Option<Caller> {
        let caller = self.slots.get_mut(usize::try_from(slot).ok()?)?.take()?;
        self.free.push(slot);
        Some(caller)
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
