//! A queue to a block device of this machine.
//!
//! ```text
//!  submit --one lease--------> op ----> device queue --done--> returned by poll
//!         --several: parents, an op each      |   '--full: waits here, first in, first out
//!                                             '--done: one part less --the last--> returned
//! ```

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;

use nvmeof_core::block::{
    BlockDevice, BlockError, BlockOp, BlockQueue, Completed, RejectReason, Rejected,
};
use nvmeof_core::dma::{CHUNK, CorePool};
use nvmeof_initiator::Nanos;

use super::{DeviceQueue, Io, IoBuffer, IoDone, IoLeases, IoOp, QueueFailed};

/// Tokens of parts have this bit; the bits below hold the number of the I/O and of the part.
const PART: u64 = 1 << 63;
const PART_BITS: u32 = 16;

/// A queue of a block device.
///
/// It never rejects an I/O because the device is full; the I/O waits instead.
#[derive(Debug)]
pub(crate) struct LocalQueue {
    queue: Box<dyn BlockQueue>,
    name: String,
    block_size: u32,
    waiting: VecDeque<BlockOp>,
    completed: Vec<Completed>,
    /// I/Os in several parts, by number; free entries are `None`.
    split: Vec<Option<Split>>,
    is_gone: bool,
}

/// An I/O split into parts.
#[derive(Debug)]
struct Split {
    token: u64,
    leases: Vec<Option<nvmeof_core::dma::Buffer>>,
    left: usize,
    failed: Option<BlockError>,
}

impl LocalQueue {
    /// Opens a queue to `device` for the calling thread, for buffers of `pool`.
    pub(crate) fn open(device: &dyn BlockDevice, pool: &CorePool) -> Result<Self, QueueFailed> {
        let info = device.info();
        let queue = device
            .open_queue(pool)
            .map_err(|error| QueueFailed(format!("no queue to {}: {error}", info.name)))?;
        Ok(Self {
            queue,
            name: info.name.clone(),
            block_size: info.block_size,
            waiting: VecDeque::new(),
            completed: Vec::new(),
            split: Vec::new(),
            is_gone: false,
        })
    }

    /// A descriptor that is readable when a poll may find completions.
    ///
    /// `None` if the device has none, or has no room for the waiting operations.
    pub(crate) fn tells(&self) -> Option<BorrowedFd<'_>> {
        let must_be_polled = self.queue.next_due().is_some() || !self.waiting.is_empty();
        if must_be_polled { None } else { self.queue.event_fd() }
    }

    /// Submits an operation to the device, or keeps it until the device has room.
    #[inline]
    fn start(&mut self, op: BlockOp) {
        if !self.waiting.is_empty() {
            self.waiting.push_back(op);
            return;
        }
        self.try_start(op);
    }

    /// Tries to submit an operation.
    ///
    /// Returns false if the device has no room; the operation then waits at the front.
    #[inline]
    fn try_start(&mut self, op: BlockOp) -> bool {
        match self.queue.submit(op) {
            Ok(()) => true,
            Err(Rejected { op, reason: RejectReason::QueueFull }) => {
                self.waiting.push_front(op);
                false
            }
            Err(Rejected { op, reason: RejectReason::Invalid(error) }) => {
                self.completed.push(op.complete(Err(error)));
                true
            }
        }
    }

    fn start_waiting(&mut self) {
        while let Some(op) = self.waiting.pop_front() {
            if self.is_gone {
                self.completed.push(op.complete(Err(BlockError::Gone)));
            } else if !self.try_start(op) {
                return;
            }
        }
    }

    /// Starts the parts of an I/O that is larger than a lease.
    fn start_parts(
        &mut self,
        token: u64,
        offset: u64,
        leases: Vec<nvmeof_core::dma::Buffer>,
        op: fn(u64, u64, nvmeof_core::dma::Buffer) -> BlockOp,
    ) {
        let number = self.split.iter().position(Option::is_none).unwrap_or_else(|| {
            self.split.push(None);
            self.split.len() - 1
        });
        let left = leases.len();
        let places = (0..left).map(|_| None).collect();
        self.split[number] = Some(Split { token, leases: places, left, failed: None });
        for (part, lease) in (0_u64..).zip(leases) {
            let token = PART | (number as u64) << PART_BITS | part;
            self.start(op(token, offset + part * CHUNK as u64, lease));
        }
    }

    /// Converts a completion of the device into the completion of an I/O, if it ends one.
    #[inline]
    fn end(&mut self, completed: Completed) -> Option<IoDone> {
        let Completed { token, buf, result } = completed;
        self.is_gone |= result == Err(BlockError::Gone);
        if token & PART == 0 {
            let result = result.map_err(|error| error.to_string());
            let buffer = buf.map(|lease| IoBuffer::Local(IoLeases::One(lease)));
            return Some(IoDone { token, result, buffer });
        }
        self.end_part(token & !PART, buf, result.err())
    }

    fn end_part(
        &mut self,
        token: u64,
        lease: Option<nvmeof_core::dma::Buffer>,
        error: Option<BlockError>,
    ) -> Option<IoDone> {
        let number = usize::try_from(token >> PART_BITS).ok()?;
        let part = usize::try_from(token & ((1 << PART_BITS) - 1)).ok()?;
        let place = self.split.get_mut(number)?;
        let split = place.as_mut()?;
        *split.leases.get_mut(part)? = lease;
        split.failed = split.failed.take().or(error);
        split.left -= 1;
        if split.left > 0 {
            return None;
        }
        let Split { token, leases, failed, .. } = place.take()?;
        let result = failed.map_or(Ok(()), |error| Err(error.to_string()));
        let buffer = IoBuffer::Local(IoLeases::Several(leases.into_iter().flatten().collect()));
        Some(IoDone { token, result, buffer: Some(buffer) })
    }
}

impl DeviceQueue for LocalQueue {
    #[inline]
    fn room(&self) -> usize {
        if self.is_gone || !self.waiting.is_empty() { 0 } else { usize::MAX }
    }

    #[inline]
    fn submit(&mut self, io: Io, _now: Nanos) -> Result<(), Io> {
        let token = io.token;
        let offset = io.slba * u64::from(self.block_size);
        let write = |token, offset, lease| BlockOp::write(token, offset, lease, false);
        match io.op {
            _ if self.is_gone => return Err(io),
            IoOp::Read(IoBuffer::Local(IoLeases::One(lease))) => {
                self.start(BlockOp::read(token, offset, lease));
            }
            IoOp::Write(IoBuffer::Local(IoLeases::One(lease))) => {
                self.start(write(token, offset, lease));
            }
            IoOp::Read(IoBuffer::Local(IoLeases::Several(leases))) => {
                self.start_parts(token, offset, leases, BlockOp::read);
            }
            IoOp::Write(IoBuffer::Local(IoLeases::Several(leases))) => {
                self.start_parts(token, offset, leases, write);
            }
            IoOp::Trim => {
                let len = u64::from(io.blocks) * u64::from(self.block_size);
                self.start(BlockOp::deallocate(token, offset, len));
            }
            op => return Err(Io { op, ..io }),
        }
        Ok(())
    }

    #[inline]
    fn poll(&mut self, _now: Nanos, done: &mut Vec<IoDone>) -> Result<(), QueueFailed> {
        self.queue.poll(&mut self.completed);
        if !self.waiting.is_empty() {
            self.start_waiting();
        }
        while let Some(completed) = self.completed.pop() {
            done.extend(self.end(completed));
        }
        // Outstanding I/Os still complete; only after that is the queue unusable.
        if self.is_gone && self.queue.in_flight() == 0 && self.waiting.is_empty() {
            return Err(QueueFailed(format!(
                "{} is missing: the drive was removed, or has failed",
                self.name
            )));
        }
        Ok(())
    }

    /// Devices batch until they are polled, and the poll follows.
    #[inline]
    fn flush(&mut self) -> Result<(), QueueFailed> {
        Ok(())
    }
}
