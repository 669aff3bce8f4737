//! `fault`: a device around another one that fails, holds, reorders or rejects operations, on
//! demand and by a seeded plan. For tests of everything above a device.

use std::fmt::Debug;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rustix::event::epoll;

use super::signal::Signal;
use super::{
    BlockDevice, BlockError, BlockOp, BlockOpKind, BlockQueue, Completed, DeviceInfo, Rejected,
    RejectedWhy,
};
use crate::dma::{CorePool, Lent};
use crate::rng::Rng;

/// What goes wrong by itself. Shares are operations in a million.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FaultPlan {
    /// Seed of every choice; each queue draws its own sequence from it, in order of opening.
    pub seed: u64,
    /// Share that fails with a media error, before the device sees it.
    pub errors: u32,
    /// Share of reads that come back with one bit turned.
    pub corruptions: u32,
    /// Share of submissions rejected as if the queue were full.
    pub rejects: u32,
    /// Whether completions come in random order, some polls late.
    pub reorder: bool,
    /// Bytes of the device that cannot be read or written.
    pub bad: Option<Range<u64>>,
}

/// The device.
#[derive(Debug)]
pub struct FaultDevice {
    base: Arc<dyn BlockDevice>,
    control: Arc<FaultControl>,
}

/// What a test does to a [`FaultDevice`], from any thread.
#[derive(Debug, Default)]
pub struct FaultControl {
    state: Mutex<State>,
    /// Nothing is planned or ordered: operations go straight through.
    quiet: AtomicBool,
    queues: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    plan: FaultPlan,
    fail_next: Vec<BlockError>,
    reject_next: u32,
    hold: bool,
    /// Counts releases; held operations of an earlier count go on.
    released: u64,
    held: usize,
    wakers: Vec<Weak<Signal>>,
}

impl FaultDevice {
    /// `base` with the faults of `plan`, and the handle to order more.
    pub fn new(base: Arc<dyn BlockDevice>, plan: FaultPlan) -> (Self, Arc<FaultControl>) {
        let control = Arc::new(FaultControl::default());
        control.set_plan(plan);
        (Self { base, control: Arc::clone(&control) }, control)
    }
}

impl BlockDevice for FaultDevice {
    fn info(&self) -> &DeviceInfo {
        self.base.info()
    }

    fn open_queue(&self, pool: &CorePool) -> Result<Box<dyn BlockQueue>, BlockError> {
        let base = self.base.open_queue(pool)?;
        let errno = |e: io::Error| BlockError::from_errno(e.raw_os_error().unwrap_or(libc::EIO));
        let wakers = Wakers::new(base.as_ref()).map_err(errno)?;
        let number = self.control.queues.fetch_add(1, Ordering::Relaxed);
        let mut state = self.control.state();
        state.wakers.retain(|waker| waker.strong_count() > 0);
        state.wakers.push(Arc::downgrade(&wakers.own));
        let seed = state.plan.seed.wrapping_add(number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        drop(state);
        Ok(Box::new(FaultQueue {
            base,
            control: Arc::clone(&self.control),
            rng: Rng::new(seed),
            held: Vec::new(),
            late: Vec::new(),
            failed: Vec::new(),
            corrupt: Vec::new(),
            wakers,
        }))
    }
}

impl FaultControl {
    /// Replaces the plan; sequences already begun go on.
    pub fn set_plan(&self, plan: FaultPlan) {
        self.change(|state| state.plan = plan);
    }

    /// The next operation submitted to any queue fails with `error`; calls add up.
    pub fn fail_next(&self, error: BlockError) {
        self.change(|state| state.fail_next.insert(0, error));
    }

    /// The next `count` submissions to any queue are rejected as if it were full.
    pub fn reject_next(&self, count: u32) {
        self.change(|state| state.reject_next += count);
    }

    /// From now on operations are taken and stay where they are until [`release`](Self::release).
    pub fn hold(&self) {
        self.change(|state| state.hold = true);
    }

    /// Lets held operations go to the device, and new ones pass.
    pub fn release(&self) {
        self.change(|state| {
            state.hold = false;
            state.released += 1;
        });
        self.wake();
    }

    /// Operations held now.
    pub fn held(&self) -> usize {
        self.state().held
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state();
        change(&mut state);
        self.quiet.store(state.is_quiet(), Ordering::Release);
    }

    fn wake(&self) {
        for waker in self.state().wakers.iter().filter_map(Weak::upgrade) {
            waker.raise();
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is to happen to an operation.
    fn verdict(&self, op: &BlockOp, rng: &mut Rng) -> Verdict {
        let mut state = self.state();
        if state.reject_next > 0 {
            state.reject_next -= 1;
            self.quiet.store(state.is_quiet(), Ordering::Release);
            return Verdict::Reject;
        }
        if let Some(error) = state.fail_next.pop() {
            self.quiet.store(state.is_quiet(), Ordering::Release);
            return Verdict::Fail(error);
        }
        if rng.hits(state.plan.rejects) {
            return Verdict::Reject;
        }
        let touches = |bad: &Range<u64>| op.offset < bad.end && bad.start < op.offset + op.len;
        let bad = op.kind != BlockOpKind::Flush && state.plan.bad.as_ref().is_some_and(touches);
        if bad || rng.hits(state.plan.errors) {
            return Verdict::Fail(BlockError::Media { errno: libc::EIO });
        }
        if state.hold {
            state.held += 1;
            return Verdict::Hold { released: state.released };
        }
        let corrupt = op.kind == BlockOpKind::Read && rng.hits(state.plan.corruptions);
        if corrupt { Verdict::Corrupt } else { Verdict::Pass }
    }
}

impl State {
    fn is_quiet(&self) -> bool {
        let none = FaultPlan { seed: self.plan.seed, ..FaultPlan::default() };
        self.plan == none && self.fail_next.is_empty() && self.reject_next == 0 && !self.hold
    }
}

enum Verdict {
    Pass,
    Corrupt,
    Fail(BlockError),
    Reject,
    Hold { released: u64 },
}

#[derive(Debug)]
struct FaultQueue {
    base: Box<dyn BlockQueue>,
    control: Arc<FaultControl>,
    rng: Rng,
    /// Held operations, and the count of releases when they came.
    held: Vec<(BlockOp, u64)>,
    /// Done, to be handed out some polls later.
    late: Vec<Completed>,
    failed: Vec<Completed>,
    /// Tokens of reads to corrupt.
    corrupt: Vec<u64>,
    wakers: Wakers,
}

impl FaultQueue {
    fn let_go(&mut self) {
        let released = self.control.state().released;
        let mut at = 0;
        while at < self.held.len() {
            if self.held[at].1 == released {
                at += 1;
                continue;
            }
            let (op, since) = self.held.remove(at);
            match self.base.submit(op) {
                Ok(()) => self.control.state().held -= 1,
                Err(rejected) => {
                    // Full: it goes with a later poll.
                    self.held.insert(at, (rejected.op, since));
                    self.wakers.own.raise();
                    return;
                }
            }
        }
    }

    fn hand_out(&mut self, mut ready: Vec<Completed>, done: &mut Vec<Completed>) {
        for completed in &mut ready {
            let Some(at) = self.corrupt.iter().position(|token| *token == completed.token) else {
                continue;
            };
            self.corrupt.swap_remove(at);
            if let Some(buf) = completed.buf.as_mut().filter(|buf| !buf.is_empty()) {
                let bit = self.rng.below(buf.len() as u64 * 8);
                let byte = usize::try_from(bit / 8).unwrap_or(0);
                buf.as_mut_slice()[byte] ^= 1 << (bit % 8);
            }
        }
        if !self.control.state().plan.reorder {
            done.append(&mut self.late);
            done.append(&mut ready);
            return;
        }
        self.late.append(&mut ready);
        let mut at = self.late.len();
        while at > 0 {
            at -= 1;
            if self.rng.below(2) == 0 {
                let pick = self.rng.index(self.late.len());
                done.push(self.late.swap_remove(pick));
            }
        }
        if !self.late.is_empty() {
            self.wakers.own.raise();
        }
    }
}

impl BlockQueue for FaultQueue {
    fn submit(&mut self, op: BlockOp) -> Result<(), Rejected> {
        if self.control.quiet.load(Ordering::Acquire) {
            return self.base.submit(op);
        }
        match self.control.verdict(&op, &mut self.rng) {
            Verdict::Pass => self.base.submit(op),
            Verdict::Corrupt => {
                let token = op.token;
                self.base.submit(op)?;
                self.corrupt.push(token);
                Ok(())
            }
            Verdict::Fail(error) => {
                self.failed.push(op.complete(Err(error)));
                self.wakers.own.raise();
                Ok(())
            }
            Verdict::Reject => Err(Rejected { op, why: RejectedWhy::QueueFull }),
            Verdict::Hold { released } => {
                self.held.push((op, released));
                Ok(())
            }
        }
    }

    fn poll(&mut self, done: &mut Vec<Completed>) {
        self.wakers.own.clear();
        if !self.held.is_empty() {
            self.let_go();
        }
        let mut ready = std::mem::take(&mut self.failed);
        self.base.poll(&mut ready);
        self.hand_out(ready, done);
    }

    fn in_flight(&self) -> usize {
        self.base.in_flight() + self.held.len() + self.late.len() + self.failed.len()
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.wakers.both.as_ref().map_or(self.wakers.own.as_fd(), AsFd::as_fd))
    }

    fn next_due(&self) -> Option<u64> {
        self.base.next_due()
    }

    fn lend(&mut self, offset: u64, len: u32) -> Option<Lent> {
        if self.control.quiet.load(Ordering::Acquire) { self.base.lend(offset, len) } else { None }
    }
}

impl Drop for FaultQueue {
    fn drop(&mut self) {
        self.control.state().held -= self.held.len();
    }
}

/// Wakes whoever sleeps on the queue, together with the base's own descriptor if it has one.
#[derive(Debug)]
struct Wakers {
    own: Arc<Signal>,
    both: Option<OwnedFd>,
}

impl Wakers {
    fn new(base: &dyn BlockQueue) -> io::Result<Self> {
        let own = Arc::new(Signal::new()?);
        let Some(fd) = base.event_fd() else { return Ok(Self { own, both: None }) };
        let both = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let readable = epoll::EventFlags::IN;
        epoll::add(&both, fd, epoll::EventData::new_u64(0), readable)?;
        epoll::add(&both, own.as_fd(), epoll::EventData::new_u64(1), readable)?;
        Ok(Self { own, both: Some(both) })
    }
}
