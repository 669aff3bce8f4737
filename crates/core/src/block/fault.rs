//! `fault`: a device layered on another one that injects faults on demand and by a seeded plan.
//!
//! It fails, stalls, holds, reorders or rejects operations, or disappears. It tests everything
//! above a device.
//!
//! A [removed](FaultControl::remove) device fails every operation, new or in flight, and opens no
//! queue. When it is [restored](FaultControl::restore) it behaves like a drive that was only
//! unplugged: written data is still there.

use std::fmt::Debug;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use nvmeof_random::SplitMix64;

use super::signal::{Signal, any_of};
use super::{
    BlockDevice, BlockError, BlockOp, BlockOpKind, BlockQueue, Clock, Completed, DeviceInfo,
    RejectReason, Rejected,
};
use crate::dma::{CorePool, ZeroCopyData};

/// Automatic faults. Shares are operations in a million.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FaultPlan {
    /// Seed of every choice; each queue draws its own sequence from it, in order of opening.
    pub seed: u64,
    /// Share that fails with a media error, before the device receives it.
    pub errors: u32,
    /// Share of reads that complete with one bit flipped.
    pub corruptions: u32,
    /// Share of submissions rejected as if the queue were full.
    pub rejects: u32,
    /// Delivers completions in random order, some of them polls later.
    pub reorder: bool,
    /// Share that is stalled for `stall` before the device receives it.
    pub stalls: u32,
    /// Duration of a stall.
    pub stall: Duration,
    /// Bytes of the device that cannot be read or written.
    pub bad: Vec<Range<u64>>,
}

/// The fault device.
#[derive(Debug)]
pub struct FaultDevice {
    info: DeviceInfo,
    base: Arc<dyn BlockDevice>,
    control: Arc<FaultControl>,
    clock: Clock,
}

/// Handle that injects faults into a [`FaultDevice`], from any thread.
#[derive(Debug, Default)]
pub struct FaultControl {
    state: Mutex<State>,
    /// No fault is planned or ordered: operations pass through.
    quiet: AtomicBool,
    gone: AtomicBool,
    /// Number of events for which queues must be woken.
    calls: AtomicU64,
    queues: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    plan: FaultPlan,
    gone: bool,
    fail_next: Vec<BlockError>,
    reject_next: u32,
    hold: bool,
    /// Number of releases; held operations of an earlier count proceed.
    released: u64,
    stalled: usize,
    wakers: Vec<Weak<Signal>>,
}

impl FaultDevice {
    /// Layers the faults of `plan` on `base`, and returns the handle to inject more. Stalls never
    /// end, because this device has no clock.
    pub fn new(base: Arc<dyn BlockDevice>, plan: FaultPlan) -> (Self, Arc<FaultControl>) {
        let name = base.info().name.clone();
        Self::with_clock(&name, base, plan, || 0)
    }

    /// Like [`new`](Self::new), with another name and a clock that times the stalls.
    pub fn with_clock(
        name: &str,
        base: Arc<dyn BlockDevice>,
        plan: FaultPlan,
        clock: Clock,
    ) -> (Self, Arc<FaultControl>) {
        let control = Arc::new(FaultControl::default());
        control.set_plan(plan);
        let info = DeviceInfo { name: name.to_owned(), ..base.info().clone() };
        (Self { info, base, control: Arc::clone(&control), clock }, control)
    }
}

impl BlockDevice for FaultDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn open_queue(&self, pool: &CorePool) -> Result<Box<dyn BlockQueue>, BlockError> {
        if self.control.is_gone() {
            return Err(BlockError::Gone);
        }
        let base = self.base.open_queue(pool)?;
        let errno = |e: io::Error| BlockError::from_errno(e.raw_os_error().unwrap_or(libc::EIO));
        let wakers = Wakers::new(base.as_ref()).map_err(errno)?;
        let number = self.control.queues.fetch_add(1, Ordering::Relaxed);
        let mut state = self.control.state();
        state.wakers.retain(|waker| waker.strong_count() > 0);
        state.wakers.push(Arc::downgrade(&wakers.own));
        let rng = SplitMix64::stream(state.plan.seed, number);
        drop(state);
        Ok(Box::new(FaultQueue {
            base,
            control: Arc::clone(&self.control),
            clock: self.clock,
            rng,
            stalled: Vec::new(),
            late: Vec::new(),
            failed: Vec::new(),
            corrupt: Vec::new(),
            wakers,
        }))
    }

    /// Bound of the base: a stalled operation ends when it is cancelled.
    fn quiesce_bound(&self) -> Option<Duration> {
        self.base.quiesce_bound()
    }

    fn is_gone(&self) -> bool {
        self.control.is_gone() || self.base.is_gone()
    }
}

impl FaultControl {
    /// Replaces the plan; sequences that have begun continue.
    pub fn set_plan(&self, plan: FaultPlan) {
        self.change(|state| state.plan = plan);
    }

    /// Fails the next operation submitted to any queue with `error`; calls add up.
    pub fn fail_next(&self, error: BlockError) {
        self.change(|state| state.fail_next.insert(0, error));
    }

    /// Rejects the next `count` submissions to any queue as if it were full.
    pub fn reject_next(&self, count: u32) {
        self.change(|state| state.reject_next += count);
    }

    /// Holds operations from now on until [`release`](Self::release).
    pub fn hold(&self) {
        self.change(|state| state.hold = true);
    }

    /// Passes held operations to the device and holds no new ones.
    pub fn release(&self) {
        self.change(|state| {
            state.hold = false;
            state.released += 1;
        });
        self.wake();
    }

    /// Number of operations stalled now, until a release or for a time.
    pub fn stalled(&self) -> usize {
        self.state().stalled
    }

    /// Removes the device: operations it has, and new ones, fail with [`BlockError::Gone`].
    pub fn remove(&self) {
        self.change(|state| state.gone = true);
        self.wake();
    }

    /// Restores the device, for open queues and new ones.
    pub fn restore(&self) {
        self.change(|state| state.gone = false);
    }

    fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state();
        change(&mut state);
        self.gone.store(state.gone, Ordering::Release);
        self.quiet.store(state.is_quiet(), Ordering::Release);
    }

    fn wake(&self) {
        for waker in self.state().wakers.iter().filter_map(Weak::upgrade) {
            waker.raise();
        }
        // Last: a queue that counts the call finds the signal it must clear.
        self.calls.fetch_add(1, Ordering::Release);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Decides the fault of an operation.
    fn verdict(&self, op: &BlockOp, rng: &mut SplitMix64, clock: Clock) -> FaultAction {
        let mut state = self.state();
        if state.gone {
            return FaultAction::Fail(BlockError::Gone);
        }
        if state.reject_next > 0 {
            state.reject_next -= 1;
            self.quiet.store(state.is_quiet(), Ordering::Release);
            return FaultAction::Reject;
        }
        if let Some(error) = state.fail_next.pop() {
            self.quiet.store(state.is_quiet(), Ordering::Release);
            return FaultAction::Fail(error);
        }
        if rng.chance(state.plan.rejects) {
            return FaultAction::Reject;
        }
        let end = op.offset.saturating_add(op.len);
        let touches = |bad: &Range<u64>| op.offset < bad.end && bad.start < end;
        let bad = op.kind != BlockOpKind::Flush && state.plan.bad.iter().any(touches);
        if bad || rng.chance(state.plan.errors) {
            return FaultAction::Fail(BlockError::Media { errno: libc::EIO });
        }
        if state.hold {
            state.stalled += 1;
            return FaultAction::Hold(Until::Released { after: state.released });
        }
        if rng.chance(state.plan.stalls) {
            state.stalled += 1;
            let stall = u64::try_from(state.plan.stall.as_nanos()).unwrap_or(u64::MAX);
            return FaultAction::Hold(Until::Time(clock().saturating_add(stall)));
        }
        let corrupt = op.kind == BlockOpKind::Read && rng.chance(state.plan.corruptions);
        if corrupt { FaultAction::Corrupt } else { FaultAction::Pass }
    }
}

impl State {
    fn is_quiet(&self) -> bool {
        let none = FaultPlan { seed: self.plan.seed, ..FaultPlan::default() };
        let ordered = self.gone || self.hold || self.reject_next > 0 || !self.fail_next.is_empty();
        self.plan == none && !ordered
    }
}

enum FaultAction {
    Pass,
    Corrupt,
    Fail(BlockError),
    Reject,
    Hold(Until),
}

/// Condition that ends a hold.
#[derive(Debug, Clone, Copy)]
enum Until {
    /// When there were more releases than `after`.
    Released { after: u64 },
    /// At this time.
    Time(u64),
}

#[derive(Debug)]
struct FaultQueue {
    base: Box<dyn BlockQueue>,
    control: Arc<FaultControl>,
    clock: Clock,
    rng: SplitMix64,
    stalled: Vec<(BlockOp, Until)>,
    /// Completed operations that a later poll delivers.
    late: Vec<Completed>,
    failed: Vec<Completed>,
    /// Tokens of reads to corrupt.
    corrupt: Vec<u64>,
    wakers: Wakers,
}

impl FaultQueue {
    fn let_go(&mut self) {
        let (gone, released) = {
            let state = self.control.state();
            (state.gone, state.released)
        };
        let now = (self.clock)();
        let mut at = 0;
        while at < self.stalled.len() {
            let over = match self.stalled[at].1 {
                Until::Released { after } => after != released,
                Until::Time(due) => due <= now,
            };
            if !over && !gone {
                at += 1;
                continue;
            }
            let (op, until) = self.stalled.remove(at);
            if gone {
                self.failed.push(op.complete(Err(BlockError::Gone)));
            } else if let Err(rejected) = self.base.submit(op) {
                // The base is full: a later poll submits it.
                self.stalled.insert(at, (rejected.op, until));
                self.wakers.raise();
                return;
            }
            self.control.state().stalled -= 1;
        }
    }

    fn hand_out(&mut self, mut ready: Vec<Completed>, done: &mut Vec<Completed>) {
        if self.control.is_gone() {
            for completed in ready.iter_mut().chain(&mut self.late) {
                completed.result = Err(BlockError::Gone);
            }
        }
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
            self.wakers.raise();
        }
    }
}

impl FaultQueue {
    /// Returns true if the queue itself has nothing to do.
    fn is_idle(&self) -> bool {
        let kept = self.stalled.len() + self.late.len() + self.failed.len() + self.corrupt.len();
        kept == 0
    }
}

impl BlockQueue for FaultQueue {
    fn submit(&mut self, op: BlockOp) -> Result<(), Rejected> {
        if self.control.quiet.load(Ordering::Acquire) {
            return self.base.submit(op);
        }
        match self.control.verdict(&op, &mut self.rng, self.clock) {
            FaultAction::Pass => self.base.submit(op),
            FaultAction::Corrupt => {
                let token = op.token;
                self.base.submit(op)?;
                self.corrupt.push(token);
                Ok(())
            }
            FaultAction::Fail(error) => {
                self.failed.push(op.complete(Err(error)));
                self.wakers.raise();
                Ok(())
            }
            FaultAction::Reject => {
                // Possibly nothing is in flight whose completion would signal free space.
                self.wakers.raise();
                Err(Rejected { op, reason: RejectReason::QueueFull })
            }
            FaultAction::Hold(until) => {
                self.stalled.push((op, until));
                Ok(())
            }
        }
    }

    fn poll(&mut self, done: &mut Vec<Completed>) {
        self.wakers.clear(self.control.calls.load(Ordering::Acquire));
        if self.is_idle() && self.control.quiet.load(Ordering::Acquire) {
            self.base.poll(done);
            return;
        }
        if !self.stalled.is_empty() {
            self.let_go();
        }
        let mut ready = std::mem::take(&mut self.failed);
        self.base.poll(&mut ready);
        self.hand_out(ready, done);
    }

    fn in_flight(&self) -> usize {
        self.base.in_flight() + self.stalled.len() + self.late.len() + self.failed.len()
    }

    /// Held or stalled operations never reach the base.
    fn cancel(&mut self, token: u64) {
        let stalled = self.stalled.extract_if(.., |(op, _)| op.token == token);
        let before = self.failed.len();
        self.failed.extend(stalled.map(|(op, _)| op.complete(Err(BlockError::Cancelled))));
        let count = self.failed.len() - before;
        if count > 0 {
            self.control.state().stalled -= count;
            self.wakers.raise();
        }
        self.base.cancel(token);
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.wakers.both.as_ref().map_or(self.wakers.own.as_fd(), AsFd::as_fd))
    }

    fn needs_polls(&self) -> bool {
        self.base.needs_polls()
    }

    fn next_due(&self) -> Option<u64> {
        let stalled = self.stalled.iter().filter_map(|(_, until)| match until {
            Until::Time(due) => Some(*due),
            Until::Released { .. } => None,
        });
        stalled.chain(self.base.next_due()).min()
    }

    fn zero_copy_read(&mut self, offset: u64, len: u32) -> Option<ZeroCopyData> {
        if self.control.quiet.load(Ordering::Acquire) {
            self.base.zero_copy_read(offset, len)
        } else {
            None
        }
    }
}

impl Drop for FaultQueue {
    fn drop(&mut self) {
        self.control.state().stalled -= self.stalled.len();
    }
}

/// Wakes a reactor that sleeps on the queue; includes the base's own descriptor if it has one.
#[derive(Debug)]
struct Wakers {
    own: Arc<Signal>,
    both: Option<OwnedFd>,
    /// Raised here, and not cleared.
    raised: bool,
    /// Number of control calls that this queue has processed.
    calls: u64,
}

impl Wakers {
    fn new(base: &dyn BlockQueue) -> io::Result<Self> {
        let own = Arc::new(Signal::new()?);
        let both = match base.event_fd() {
            Some(fd) => any_of([fd, own.as_fd()])?,
            None => None,
        };
        Ok(Self { own, both, raised: false, calls: 0 })
    }

    fn raise(&mut self) {
        if !std::mem::replace(&mut self.raised, true) {
            self.own.raise();
        }
    }

    fn clear(&mut self, calls: u64) {
        if std::mem::take(&mut self.raised) || calls != self.calls {
            self.own.clear();
        }
        self.calls = calls;
    }
}
