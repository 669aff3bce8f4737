//! One reactor's queue to a file: the calls of an operation, and its completion.
//!
//! ```text
//!   Read  ---> Move --all bytes--------------------------------------> done
//!   Write ---> Move --all bytes, no FUA or written with DSYNC--------> done
//!                   '-all bytes, FUA--> Sync ------------------------> done
//!   WriteZeroes -> Zero --whole range, no FUA------------------------> done
//!                   |  ^ '--whole range, FUA--> Sync ----------------> done
//!                   '--' step, or the next way if the file does not support this one
//!   Deallocate --> Zero ---------------------------------------------> done
//!   Flush -------> Sync ---------------------------------------------> done
//! ```
//!
//! **Durability.** A sync starts after the writes it covers have completed, and one runs at a time.
//! Operations that reach `Sync` while it runs share the next one. So no sync of this queue consumes
//! another one's report of a lost write.
//!
//! **A failed sync** may have lost any write completed before, of any queue, and the kernel reports
//! this once. It marks the pages clean, and the drive drops what it could not write. This is a
//! *loss*, counted for the whole device. Each queue reports it once:
//!
//! * operations that wait for a sync when their queue detects the loss fail: with the error of the
//!   sync itself, or with [`BlockError::FlushLost`];
//! * writes in flight in any queue are repeated from the start;
//! * from then on the syncs of the queue are trusted again. They cover writes completed after the
//!   report. Writes completed earlier, and not covered before the loss, stay in doubt.
//!
//! So no successful flush covers a write that may be lost, unless a flush that came after the
//! completion of that write has failed before. (If two queues sync concurrently, one may report its
//! success before the other has processed its failure. The kernel reports a lost page to both of
//! them, but data that a drive dropped to only one.)
//!
//! Some failures concern only their own operation: a write that fails in direct mode, or a write
//! with DSYNC that fails twice. If the second attempt succeeds, the first failure may have been
//! that of the sync in it: a loss.
//!
//! **Cancelled** operations ([`BlockQueue::cancel`]) end with the call that the medium has. Calls
//! go to the kernel with each poll and are not withdrawn: the result of a write that is cancelled
//! in the kernel does not prove that nothing was written.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::super::{
    BlockError, BlockOp, BlockOpKind, BlockQueue, Completed, DeviceInfo, RejectReason, Rejected,
};
use super::backend::{FileBackend, FileCall, FileResult, ZERO_CALL, ZERO_WRITE};

/// State that the queues of one device share.
#[derive(Debug, Default)]
pub(super) struct Health {
    /// Number of failed syncs: completed writes may be lost, and the kernel reports this only once.
    losses: AtomicU64,
}

/// I/O mode of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mode {
    /// Direct I/O: the result of a write itself shows whether it is lost.
    pub(super) direct: bool,
    /// Maximum operations in flight.
    pub(super) depth: usize,
    /// The queue polls the drive for completions; nothing signals them.
    pub(super) polled: bool,
}

#[derive(Debug)]
pub(super) struct FileQueue<M> {
    medium: M,
    info: DeviceInfo,
    is_polled: bool,
    health: Arc<Health>,
    /// Losses that this queue has reported.
    reported_losses: u64,
    slots: Box<[Option<InFlightOp>]>,
    free: Vec<usize>,
    sync: SyncQueue,
    ways: ZeroMethods,
    /// Operations completed without a call.
    done: Vec<Completed>,
    answers: Vec<FileResult>,
}

/// An operation from submit to completion. Its buffer is in `op` or with the medium.
#[derive(Debug)]
struct InFlightOp {
    op: BlockOp,
    stage: Stage,
    /// Losses of the device when the first call was made.
    losses: u64,
    /// Error number of a write with DSYNC that is retried; 0: none.
    failure: i32,
    /// The requester is gone: no further call is made for the operation.
    is_cancelled: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Bytes up to `done` are moved; with `dsync`, the call in flight makes its bytes durable.
    Move { done: u32, dsync: bool },
    /// Bytes up to `done` are zeroed; the call in flight uses `way`.
    Zero { done: u64, way: ZeroMethod },
    /// Waits for a sync.
    Sync,
}

/// Methods to zero a range, in the order of attempts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ZeroMethod {
    KeepAllocated,
    Free,
    WriteZeroes,
}

/// Call variants that the file supports, as found so far.
#[derive(Debug, Clone, Copy)]
struct ZeroMethods {
    dsync: bool,
    keep_allocated: bool,
    free: bool,
}

/// The running sync and the operations waiting for one. It uses the slot after all others.
#[derive(Debug, Default)]
struct SyncQueue {
    running: Vec<usize>,
    waiting: Vec<usize>,
}

impl<M: FileBackend> FileQueue<M> {
    /// Creates a queue of `mode.depth` operations; the medium needs [`slots`](Self::slots) slots.
    pub(super) fn new(medium: M, info: DeviceInfo, mode: Mode, health: Arc<Health>) -> Self {
        Self {
            medium,
            info,
            is_polled: mode.polled,
            reported_losses: health.losses.load(Ordering::Acquire),
            health,
            slots: (0..mode.depth).map(|_| None).collect(),
            free: (0..mode.depth).rev().collect(),
            sync: SyncQueue::default(),
            ways: ZeroMethods { dsync: mode.direct, keep_allocated: true, free: true },
            done: Vec::new(),
            answers: Vec::new(),
        }
    }

    /// Returns the slots that a medium needs for `depth` operations: one each and one for the sync.
    pub(super) fn slots(depth: usize) -> usize {
        depth + 1
    }

    fn start(&mut self, slot: usize, op: BlockOp) {
        let stage = self.ways.first_stage(op.kind);
        let losses = self.health.losses.load(Ordering::Acquire);
        self.slots[slot] = Some(InFlightOp { op, stage, losses, failure: 0, is_cancelled: false });
        self.step(slot);
    }

    /// Issues the call for the stage of the operation.
    fn step(&mut self, slot: usize) {
        let Some(running) = in_flight(&mut self.slots, slot) else { return };
        let op = &mut running.op;
        let call = match running.stage {
            Stage::Move { done, dsync } => {
                let (offset, len) = (op.offset + u64::from(done), to_u32(op.len) - done);
                if op.kind == BlockOpKind::Read {
                    FileCall::Read { offset, skip: done, len }
                } else {
                    FileCall::Write { offset, skip: done, len, dsync }
                }
            }
            Stage::Zero { done, way } => {
                let (offset, len) = (op.offset + done, op.len - done);
                match way {
                    ZeroMethod::KeepAllocated => {
                        FileCall::Zero { offset, len: zero_step(offset, len), free: false }
                    }
                    ZeroMethod::Free => {
                        FileCall::Zero { offset, len: zero_step(offset, len), free: true }
                    }
                    ZeroMethod::WriteZeroes => {
                        FileCall::WriteZeroes { offset, len: to_u32(len.min(ZERO_WRITE)) }
                    }
                }
            }
            Stage::Sync => {
                self.sync.waiting.push(slot);
                self.start_sync();
                return;
            }
        };
        let buf = op.buf.take();
        self.medium.issue(slot, call, buf);
    }

    fn start_sync(&mut self) {
        if self.sync.running.is_empty() && !self.sync.waiting.is_empty() {
            std::mem::swap(&mut self.sync.running, &mut self.sync.waiting);
            self.medium.issue(self.slots.len(), FileCall::Sync, None);
        }
    }

    fn answered(&mut self, answer: FileResult, done: &mut Vec<Completed>) {
        let FileResult { slot, result, buf } = answer;
        if slot == self.slots.len() {
            return self.sync_answered(result, done);
        }
        let Some(running) = in_flight(&mut self.slots, slot) else { return };
        running.op.buf = buf;
        let next = match running.stage {
            _ if is_transient(result) => Next::Again,
            Stage::Move { dsync: true, .. } if is_media(result) && running.failure == 0 => {
                running.failure = -result;
                Next::Again
            }
            Stage::Move { done, dsync } => {
                moved(running, done, dsync, result, self.info.block_size, &mut self.ways)
            }
            Stage::Zero { done, way } => zeroed(running, done, way, result, &mut self.ways),
            Stage::Sync => Next::Again,
        };
        let losses = self.health.losses.load(Ordering::Acquire);
        let next = match next {
            Next::Done(Ok(())) | Next::Again if running.is_in_doubt(losses) => {
                running.stage = self.ways.first_stage(running.op.kind);
                running.losses = losses;
                Next::Again
            }
            next => next,
        };
        match next {
            Next::Again if running.is_cancelled => {
                self.finish(slot, Err(BlockError::Cancelled), done);
            }
            Next::Again => self.step(slot),
            Next::Done(result) => self.finish(slot, result, done),
        }
    }

    fn sync_answered(&mut self, result: i32, done: &mut Vec<Completed>) {
        let mut covered = std::mem::take(&mut self.sync.running);
        if is_transient(result) {
            // Nothing is covered yet: waiting operations may join.
            self.sync.waiting.append(&mut covered);
            self.drop_cancelled(done);
        } else {
            if result < 0 && result != -libc::ECANCELED {
                self.count_loss(-result);
            }
            let losses = self.health.losses.load(Ordering::Acquire);
            let is_news = losses != self.reported_losses;
            let outcome = match to_result(result) {
                Ok(()) if is_news => Err(BlockError::FlushLost),
                outcome => outcome,
            };
            for slot in covered.drain(..) {
                self.finish(slot, outcome.clone(), done);
            }
            if is_news {
                self.reported_losses = losses;
                // Waiting operations may have been answered before the loss, too.
                for slot in std::mem::take(&mut self.sync.waiting) {
                    self.finish(slot, Err(BlockError::FlushLost), done);
                }
            }
        }
        self.sync.running = covered;
        self.start_sync();
    }

    /// Counts a loss: completed writes of any queue may be lost.
    fn count_loss(&self, errno: i32) {
        let losses = self.health.losses.fetch_add(1, Ordering::AcqRel) + 1;
        // A failing disk fails repeatedly.
        if losses.is_power_of_two() {
            let error = std::io::Error::from_raw_os_error(errno);
            tracing::error!(device = %self.info.name, %error, losses,
                "flush failed: earlier completed writes may be lost; each queue reports the error \
                 once");
        }
    }

    /// Ends cancelled operations that wait for a sync: the medium has nothing of them.
    fn drop_cancelled(&mut self, done: &mut Vec<Completed>) {
        for slot in std::mem::take(&mut self.sync.waiting) {
            if self.slots[slot].as_ref().is_some_and(|running| running.is_cancelled) {
                self.finish(slot, Err(BlockError::Cancelled), done);
            } else {
                self.sync.waiting.push(slot);
            }
        }
    }

    fn finish(&mut self, slot: usize, result: Result<(), BlockError>, done: &mut Vec<Completed>) {
        let Some(running) = self.slots[slot].take() else {
            debug_assert!(false, "the operation of slot {slot} ends twice");
            return;
        };
        self.free.push(slot);
        // The sync within the write may have failed, which also concerns other writes.
        if running.failure != 0 && !matches!(result, Err(BlockError::Media { .. })) {
            self.count_loss(running.failure);
        }
        done.push(running.op.complete(result));
    }
}

impl<M: FileBackend> BlockQueue for FileQueue<M> {
    fn submit(&mut self, op: BlockOp) -> Result<(), Rejected> {
        if let Err(error) = op.check(&self.info) {
            self.done.push(op.complete(Err(error)));
            return Ok(());
        }
        if op.len == 0 && op.kind != BlockOpKind::Flush {
            self.done.push(op.complete(Ok(())));
            return Ok(());
        }
        match self.free.pop() {
            Some(slot) => self.start(slot, op),
            None => return Err(Rejected { op, reason: RejectReason::QueueFull }),
        }
        Ok(())
    }

    fn poll(&mut self, done: &mut Vec<Completed>) {
        done.append(&mut self.done);
        self.medium.submit();
        let mut answers = std::mem::take(&mut self.answers);
        self.medium.reap(&mut answers);
        if !answers.is_empty() {
            for answer in answers.drain(..) {
                self.answered(answer, done);
            }
            // Follow-up calls must be with the kernel before the reactor sleeps.
            self.medium.submit();
        }
        self.answers = answers;
    }

    fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len() + self.done.len()
    }

    fn cancel(&mut self, token: u64) {
        for running in self.slots.iter_mut().flatten().filter(|r| r.op.token == token) {
            running.is_cancelled = true;
        }
        let mut done = std::mem::take(&mut self.done);
        self.drop_cancelled(&mut done);
        self.done = done;
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        self.medium.event_fd()
    }

    fn next_due(&self) -> Option<u64> {
        // Nothing signals polled results: poll now.
        (self.is_polled && self.in_flight() > 0).then_some(0)
    }
}

enum Next {
    Again,
    Done(Result<(), BlockError>),
}

/// Processes the result of a read or write call.
fn moved(
    running: &mut InFlightOp,
    done: u32,
    dsync: bool,
    result: i32,
    block_size: u32,
    ways: &mut ZeroMethods,
) -> Next {
    let write = running.op.is_write();
    if dsync && result == -libc::EOPNOTSUPP {
        ways.dsync = false;
        running.stage = Stage::Move { done, dsync: false };
        return Next::Again;
    }
    let Ok(count) = u32::try_from(result) else {
        return Next::Done(to_result(result));
    };
    let len = to_u32(running.op.len);
    let at = done.saturating_add(count);
    if at >= len {
        if running.op.kind == (BlockOpKind::Write { fua: true }) && !dsync {
            running.stage = Stage::Sync;
            return Next::Again;
        }
        return Next::Done(Ok(()));
    }
    // Continue at a block boundary, as direct I/O requires.
    let at = at - at % block_size;
    if at == done {
        // A read at the end of a file that shrank, or a write without progress.
        let errno = if write { libc::ENOSPC } else { libc::ENODATA };
        return Next::Done(Err(BlockError::from_errno(errno)));
    }
    running.stage = Stage::Move { done: at, dsync };
    Next::Again
}

/// Processes the result of a call that zeroes.
fn zeroed(
    running: &mut InFlightOp,
    done: u64,
    way: ZeroMethod,
    result: i32,
    ways: &mut ZeroMethods,
) -> Next {
    let advisory = running.op.kind == BlockOpKind::Deallocate;
    if result == -libc::EOPNOTSUPP && way != ZeroMethod::WriteZeroes {
        if advisory {
            return Next::Done(Ok(()));
        }
        ways.without(way);
        let deallocate =
            matches!(running.op.kind, BlockOpKind::WriteZeroes { deallocate: true, .. });
        running.stage = Stage::Zero { done, way: ways.first(deallocate) };
        return Next::Again;
    }
    let Ok(count) = u64::try_from(result) else {
        return Next::Done(to_result(result));
    };
    let moved = match way {
        ZeroMethod::WriteZeroes => count,
        ZeroMethod::KeepAllocated | ZeroMethod::Free => {
            zero_step(running.op.offset + done, running.op.len - done)
        }
    };
    let at = done + moved;
    if at < running.op.len {
        if moved == 0 {
            return Next::Done(Err(BlockError::NoSpace));
        }
        running.stage = Stage::Zero { done: at, way };
        return Next::Again;
    }
    if matches!(running.op.kind, BlockOpKind::WriteZeroes { fua: true, .. }) {
        running.stage = Stage::Sync;
        return Next::Again;
    }
    Next::Done(Ok(()))
}

impl InFlightOp {
    /// Returns true if written data, about to be completed or synced, may be lost: there were
    /// losses since the operation began. (A write with DSYNC reports its own.)
    fn is_in_doubt(&self, losses: u64) -> bool {
        let is_durable = matches!(self.stage, Stage::Move { dsync: true, .. });
        losses != self.losses && self.op.is_write() && !is_durable
    }
}

impl ZeroMethods {
    /// Returns the first stage of an operation.
    fn first_stage(self, kind: BlockOpKind) -> Stage {
        match kind {
            BlockOpKind::Read => Stage::Move { done: 0, dsync: false },
            BlockOpKind::Write { fua } => Stage::Move { done: 0, dsync: fua && self.dsync },
            BlockOpKind::WriteZeroes { deallocate, .. } => {
                Stage::Zero { done: 0, way: self.first(deallocate) }
            }
            BlockOpKind::Deallocate => Stage::Zero { done: 0, way: ZeroMethod::Free },
            BlockOpKind::Flush => Stage::Sync,
        }
    }

    /// Returns the first method to zero that the file may support.
    fn first(self, deallocate: bool) -> ZeroMethod {
        match (deallocate, self.keep_allocated, self.free) {
            (true, _, true) | (_, false, true) => ZeroMethod::Free,
            (_, true, _) => ZeroMethod::KeepAllocated,
            (_, false, false) => ZeroMethod::WriteZeroes,
        }
    }

    fn without(&mut self, way: ZeroMethod) {
        match way {
            ZeroMethod::KeepAllocated => self.keep_allocated = false,
            ZeroMethod::Free => self.free = false,
            ZeroMethod::WriteZeroes => {}
        }
    }
}

/// Returns the bytes of the next zeroing call for a range at `offset`. Long ranges are split where
/// the holes of a file and the sectors of a drive end.
fn zero_step(offset: u64, len: u64) -> u64 {
    len.min(ZERO_CALL - offset % ZERO_CALL)
}

/// Returns true if the result means that the medium failed.
fn is_media(result: i32) -> bool {
    matches!(to_result(result), Err(BlockError::Media { .. }))
}

/// Results that only mean "retry".
fn is_transient(result: i32) -> bool {
    result == -libc::EINTR || result == -libc::EAGAIN
}

fn to_result(result: i32) -> Result<(), BlockError> {
    match result {
        0.. => Ok(()),
        _ => Err(error(-result)),
    }
}

/// Converts a system error number that io_uring returned.
pub(super) fn error(errno: i32) -> BlockError {
    match errno {
        // No call is cancelled during the life of a queue: the kernel has no thread for it
        // (`ring::start_kernel_worker`).
        libc::ECANCELED => BlockError::NoThread,
        _ => BlockError::from_errno(errno),
    }
}

/// Returns the operation of a slot whose call was issued or answered.
fn in_flight(slots: &mut [Option<InFlightOp>], slot: usize) -> Option<&mut InFlightOp> {
    let running = slots[slot].as_mut();
    debug_assert!(running.is_some(), "slot {slot} has no operation");
    running
}

/// Converts a length. Data operations are bounded by their buffers, which are far below 4 GiB.
fn to_u32(value: u64) -> u32 {
    debug_assert!(value <= u64::from(u32::MAX), "{value} bytes of one call");
    u32::try_from(value).unwrap_or(u32::MAX)
}
