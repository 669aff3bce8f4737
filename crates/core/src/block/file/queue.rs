//! One reactor's queue to a file: what calls an operation takes, and when it is done.
//!
//! ```text
//!  Read  ---> Move --all bytes--------------------------------------> done
//!  Write ---> Move --all bytes, no FUA or written with DSYNC--------> done
//!                  '-all bytes, FUA--> Sync ------------------------> done
//!  WriteZeroes -> Zero --whole range, no FUA------------------------> done
//!                  |  ^ '--whole range, FUA--> Sync ----------------> done
//!                  '--' step, or the next way if the file does not know this one
//!  Deallocate --> Zero ---------------------------------------------> done
//!  Flush -------> Sync ---------------------------------------------> done
//! ```
//!
//! **Durability.** A sync starts after the writes it vouches for were answered, and one runs at
//! a time: operations that come to `Sync` meanwhile share the next one. So no sync of ours takes
//! the report of a lost write from another. Once one failed, none is believed any more.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::super::{
    BlockError, BlockOp, BlockOpKind, BlockQueue, Completed, DeviceInfo, Rejected, RejectedWhy,
};
use super::medium::{Answer, Call, Medium, ZERO_WRITE};

/// What the queues of one device share.
#[derive(Debug, Default)]
pub(super) struct Health {
    /// A sync failed: completed writes may be lost, and the kernel says so only once.
    sync_lost: AtomicBool,
}

/// How a queue uses its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mode {
    /// Past the page cache: a write's own answer tells whether it is lost.
    pub(super) direct: bool,
    /// Operations in flight at most.
    pub(super) depth: usize,
    /// Completions are looked for at the drive; nothing tells of them.
    pub(super) polled: bool,
}

#[derive(Debug)]
pub(super) struct FileQueue<M> {
    medium: M,
    info: DeviceInfo,
    is_polled: bool,
    health: Arc<Health>,
    slots: Box<[Option<Running>]>,
    free: Vec<usize>,
    sync: SyncQueue,
    ways: Ways,
    /// Done without a call.
    done: Vec<Completed>,
    answers: Vec<Answer>,
}

/// An operation between submit and done. Its buffer is in `op` or with the medium.
#[derive(Debug)]
struct Running {
    op: BlockOp,
    stage: Stage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Bytes up to `done` are moved; `dsync`: the call out vouches for the medium by itself.
    Move { done: u32, dsync: bool },
    /// Bytes up to `done` are zeroed, the call out does it this way.
    Zero { done: u64, way: Way },
    /// Waits for a sync.
    Sync,
}

/// Ways to zero a range, in the order they are tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    KeepAllocated,
    Free,
    WriteZeroes,
}

/// What the file turned out to know.
#[derive(Debug, Clone, Copy)]
struct Ways {
    dsync: bool,
    keep_allocated: bool,
    free: bool,
}

/// The sync that runs and the operations that wait for one. It has the slot behind the others.
#[derive(Debug, Default)]
struct SyncQueue {
    running: Vec<usize>,
    waiting: Vec<usize>,
}

impl<M: Medium> FileQueue<M> {
    /// A queue of `mode.depth` operations; the medium needs [`slots`](Self::slots) slots.
    pub(super) fn new(medium: M, info: DeviceInfo, mode: Mode, health: Arc<Health>) -> Self {
        Self {
            medium,
            info,
            is_polled: mode.polled,
            health,
            slots: (0..mode.depth).map(|_| None).collect(),
            free: (0..mode.depth).rev().collect(),
            sync: SyncQueue::default(),
            ways: Ways { dsync: mode.direct, keep_allocated: true, free: true },
            done: Vec::new(),
            answers: Vec::new(),
        }
    }

    /// Slots a medium needs for a queue of `depth` operations: one each and one for the sync.
    pub(super) fn slots(depth: usize) -> usize {
        depth + 1
    }

    fn start(&mut self, slot: usize, op: BlockOp) {
        let stage = match op.kind {
            BlockOpKind::Read => Stage::Move { done: 0, dsync: false },
            BlockOpKind::Write { fua } => Stage::Move { done: 0, dsync: fua && self.ways.dsync },
            BlockOpKind::WriteZeroes { deallocate, .. } => {
                Stage::Zero { done: 0, way: self.ways.first(deallocate) }
            }
            BlockOpKind::Deallocate => Stage::Zero { done: 0, way: Way::Free },
            BlockOpKind::Flush => Stage::Sync,
        };
        self.slots[slot] = Some(Running { op, stage });
        self.step(slot);
    }

    /// Issues the call the operation's stage asks for.
    fn step(&mut self, slot: usize) {
        let Some(running) = self.slots[slot].as_mut() else { return };
        let op = &mut running.op;
        let call = match running.stage {
            Stage::Move { done, dsync } => {
                let (offset, len) = (op.offset + u64::from(done), to_u32(op.len) - done);
                if op.kind == BlockOpKind::Read {
                    Call::Read { offset, skip: done, len }
                } else {
                    Call::Write { offset, skip: done, len, dsync }
                }
            }
            Stage::Zero { done, way } => {
                let (offset, len) = (op.offset + done, op.len - done);
                match way {
                    Way::KeepAllocated => Call::Zero { offset, len, free: false },
                    Way::Free => Call::Zero { offset, len, free: true },
                    Way::WriteZeroes => {
                        Call::WriteZeroes { offset, len: to_u32(len.min(ZERO_WRITE)) }
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
            self.medium.issue(self.slots.len(), Call::Sync, None);
        }
    }

    fn answered(&mut self, answer: Answer, done: &mut Vec<Completed>) {
        let Answer { slot, result, buf } = answer;
        if slot == self.slots.len() {
            return self.sync_answered(result, done);
        }
        let Some(running) = self.slots[slot].as_mut() else { return };
        running.op.buf = buf;
        let next = match running.stage {
            _ if is_transient(result) => Next::Again,
            Stage::Move { done, dsync } => {
                moved(running, done, dsync, result, self.info.block_size, &mut self.ways)
            }
            Stage::Zero { done, way } => zeroed(running, done, way, result, &mut self.ways),
            Stage::Sync => Next::Again,
        };
        match next {
            Next::Again => self.step(slot),
            Next::Done(result) => self.finish(slot, result, done),
        }
    }

    fn sync_answered(&mut self, result: i32, done: &mut Vec<Completed>) {
        let mut covered = std::mem::take(&mut self.sync.running);
        if is_transient(result) {
            // Nothing was vouched for yet: those that waited may join.
            self.sync.waiting.append(&mut covered);
        } else {
            if result < 0 && result != -libc::ECANCELED {
                self.lose_sync(result);
            }
            let outcome = if self.health.sync_lost.load(Ordering::Acquire) && result == 0 {
                Err(BlockError::FlushLost)
            } else {
                to_result(result)
            };
            for slot in covered.drain(..) {
                self.finish(slot, outcome.clone(), done);
            }
        }
        self.sync.running = covered;
        self.start_sync();
    }

    fn lose_sync(&self, result: i32) {
        if !self.health.sync_lost.swap(true, Ordering::AcqRel) {
            let error = std::io::Error::from_raw_os_error(-result);
            tracing::error!(device = %self.info.name, %error,
                "a flush failed: completed writes may be lost, so flushes and FUA writes fail until the device is opened anew");
        }
    }

    fn finish(
        &mut self,
        slot: usize,
        mut result: Result<(), BlockError>,
        done: &mut Vec<Completed>,
    ) {
        let Some(running) = self.slots[slot].take() else { return };
        self.free.push(slot);
        if let Stage::Move { dsync: true, .. } = running.stage {
            // The answer does not tell whether the write failed or the sync in it.
            if let Err(BlockError::Media { errno }) = result {
                self.lose_sync(-errno);
            } else if result.is_ok() && self.health.sync_lost.load(Ordering::Acquire) {
                result = Err(BlockError::FlushLost);
            }
        }
        done.push(running.op.complete(result));
    }
}

impl<M: Medium> BlockQueue for FileQueue<M> {
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
            None => return Err(Rejected { op, why: RejectedWhy::QueueFull }),
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
            // Calls that follow on an answer must be with the kernel before the reactor sleeps.
            self.medium.submit();
        }
        self.answers = answers;
    }

    fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len() + self.done.len()
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        self.medium.event_fd()
    }

    fn next_due(&self) -> Option<u64> {
        // Nothing tells of answers that are polled for: now.
        (self.is_polled && self.in_flight() > 0).then_some(0)
    }
}

enum Next {
    Again,
    Done(Result<(), BlockError>),
}

/// A read or write call was answered.
fn moved(
    running: &mut Running,
    done: u32,
    dsync: bool,
    result: i32,
    block_size: u32,
    ways: &mut Ways,
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
    // Go on from a block border: direct I/O takes no other.
    let at = at - at % block_size;
    if at == done {
        // A read at the end of a file that shrank, or a write that goes nowhere.
        let errno = if write { libc::ENOSPC } else { libc::ENODATA };
        return Next::Done(Err(BlockError::from_errno(errno)));
    }
    running.stage = Stage::Move { done: at, dsync };
    Next::Again
}

/// A call that zeroes was answered.
fn zeroed(running: &mut Running, done: u64, way: Way, result: i32, ways: &mut Ways) -> Next {
    let advisory = running.op.kind == BlockOpKind::Deallocate;
    if result == -libc::EOPNOTSUPP && way != Way::WriteZeroes {
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
    let at = if way == Way::WriteZeroes { done + count } else { running.op.len };
    if at < running.op.len {
        if count == 0 {
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

impl Ways {
    /// The first way to zero that the file may know.
    fn first(self, deallocate: bool) -> Way {
        match (deallocate, self.keep_allocated, self.free) {
            (true, _, true) | (_, false, true) => Way::Free,
            (_, true, _) => Way::KeepAllocated,
            (_, false, false) => Way::WriteZeroes,
        }
    }

    fn without(&mut self, way: Way) {
        match way {
            Way::KeepAllocated => self.keep_allocated = false,
            Way::Free => self.free = false,
            Way::WriteZeroes => {}
        }
    }
}

/// Answers that say nothing but "again".
fn is_transient(result: i32) -> bool {
    result == -libc::EINTR || result == -libc::EAGAIN
}

fn to_result(result: i32) -> Result<(), BlockError> {
    if result < 0 { Err(BlockError::from_errno(-result)) } else { Ok(()) }
}

/// Data operations are bounded by their buffers, which are far below 4 GiB.
fn to_u32(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}
