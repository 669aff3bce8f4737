//! Event log: the calls of a device to its medium, and the results its user received, in order.

use std::cell::RefCell;
use std::os::fd::BorrowedFd;
use std::rc::Rc;

use super::super::backend::{FileBackend, FileCall, FileResult};
use crate::block::{BlockOp, BlockOpKind, Completed};
use crate::dma::Buffer;

/// Bytes per block in the logged runs; every block is filled with one repeated number.
pub(super) const BLOCK: usize = 512;

/// The log, shared by the medium and the driver of the device.
pub(super) type Log = Rc<RefCell<Vec<Event>>>;

/// An entry; its position in the log is its time.
#[derive(Debug, Clone)]
pub(super) enum Event {
    /// A call was issued.
    Start { effect: Effect },
    /// The call issued at `start` completed.
    End { start: usize, result: i32 },
    /// An operation was submitted.
    Submit { kind: BlockOpKind, first: usize, values: Vec<u64> },
    /// The operation submitted at `submit` was completed.
    Ack { submit: usize, ok: bool },
}

/// Effect of a call on the medium.
#[derive(Debug, Clone)]
pub(super) enum Effect {
    /// Writes values to blocks from `first`.
    Put {
        first: usize,
        values: Vec<u64>,
        dsync: bool,
    },
    Sync,
    Nothing,
}

/// A medium with logged calls.
#[derive(Debug)]
pub(super) struct Logged<M> {
    inner: M,
    log: Log,
    started: Vec<usize>,
}

impl<M> Logged<M> {
    pub(super) fn new(inner: M, log: &Log, slots: usize) -> Self {
        Self { inner, log: Rc::clone(log), started: vec![usize::MAX; slots] }
    }
}

impl<M: FileBackend> FileBackend for Logged<M> {
    fn issue(&mut self, slot: usize, call: FileCall, buf: Option<Buffer>) {
        let effect = match call {
            FileCall::Read { .. } => Effect::Nothing,
            FileCall::Sync => Effect::Sync,
            FileCall::Write { offset, skip, len, dsync } => {
                let bytes = &buf.as_ref().unwrap().as_slice()[skip as usize..][..len as usize];
                Effect::Put { first: block(offset), values: values(bytes), dsync }
            }
            FileCall::WriteZeroes { offset, len } => zeroes(offset, u64::from(len)),
            FileCall::Zero { offset, len, .. } => zeroes(offset, len),
        };
        let mut log = self.log.borrow_mut();
        self.started[slot] = log.len();
        log.push(Event::Start { effect });
        drop(log);
        self.inner.issue(slot, call, buf);
    }

    fn submit(&mut self) {
        self.inner.submit();
    }

    fn reap(&mut self, answers: &mut Vec<FileResult>) {
        let known = answers.len();
        self.inner.reap(answers);
        let mut log = self.log.borrow_mut();
        for answer in &answers[known..] {
            log.push(Event::End { start: self.started[answer.slot], result: answer.result });
        }
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        self.inner.event_fd()
    }
}

/// Logs a submission; returns its position for [`ack`].
pub(super) fn submitted(log: &Log, op: &BlockOp) -> usize {
    let values = match op.kind {
        BlockOpKind::Write { .. } => values(op.buf.as_ref().unwrap().as_slice()),
        BlockOpKind::Read | BlockOpKind::Flush => Vec::new(),
        _ => vec![0; block(op.len)],
    };
    let mut log = log.borrow_mut();
    log.push(Event::Submit { kind: op.kind, first: block(op.offset), values });
    log.len() - 1
}

pub(super) fn ack(log: &Log, submit: usize, completed: &Completed) {
    log.borrow_mut().push(Event::Ack { submit, ok: completed.result.is_ok() });
}

pub(super) fn block(offset: u64) -> usize {
    assert_eq!(offset % BLOCK as u64, 0);
    usize::try_from(offset).unwrap() / BLOCK
}

fn zeroes(offset: u64, len: u64) -> Effect {
    Effect::Put { first: block(offset), values: vec![0; block(len)], dsync: false }
}

fn values(bytes: &[u8]) -> Vec<u64> {
    bytes.chunks(BLOCK).map(value).collect()
}

/// Returns the number that fills a block.
pub(super) fn value(block: &[u8]) -> u64 {
    let (words, rest) = block.as_chunks::<8>();
    assert!(rest.is_empty() && words.iter().all(|word| *word == words[0]), "a torn block");
    u64::from_le_bytes(words[0])
}
