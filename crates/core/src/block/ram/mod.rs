//! `ram`: a namespace in memory, allocated on first write.
//!
//! The bytes are one private anonymous mapping. A page that was never written reads from the
//! kernel's zero page, which does not count as memory of this process. A memfd would allocate a
//! page for every page read through its mapping, and files give no stable bytes to send from
//! anyway.
//!
//! **Atomicity.** Reads, writes and zeroing of one block exclude each other, from any reactor (NVMe
//! AWUN and AWUPF: one logical block); see [`memory`]. Therefore there are no zero-copy reads:
//! their bytes leave with a later system call, when another write may have changed part of a block.

mod memory;

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use self::memory::Memory;
use super::signal::Signal;
use super::{
    BlockDevice, BlockError, BlockOp, BlockOpKind, BlockQueue, Completed, DeviceInfo, Geometry,
    Rejected,
};
use crate::dma::CorePool;

/// Maximum bytes that a poll zeroes before other queues have their turn.
const ZERO_STEP: u64 = 2 << 20;

/// The RAM device.
#[derive(Debug)]
pub struct RamDevice {
    info: DeviceInfo,
    memory: Arc<Memory>,
}

impl RamDevice {
    /// Creates a device of `size` zero bytes, rounded down to whole blocks.
    ///
    /// # Errors
    /// The address space is exhausted.
    pub fn new(name: &str, size: u64, block_size: u32) -> Result<Self, BlockError> {
        let size = size - size % u64::from(block_size);
        let memory = Memory::new(size).map_err(|_| BlockError::NoMemory)?;
        let info = DeviceInfo {
            name: name.to_owned(),
            size,
            block_size,
            read_only: false,
            volatile_cache: false,
            deallocate: true,
            deallocate_reads_zero: true,
            write_zeroes: true,
            geometry: Geometry::default(),
            medium: None,
        };
        Ok(Self { info, memory: Arc::new(memory) })
    }

    /// Creates a larger or smaller device of the same bytes; added bytes are zero. Both work until
    /// one is dropped.
    ///
    /// The bytes of only the larger one are then freed, or read as zeroes if the device grows
    /// again.
    ///
    /// # Errors
    /// The address space is exhausted.
    pub fn resized(&self, size: u64) -> Result<Self, BlockError> {
        let size = size - size % u64::from(self.info.block_size);
        let memory = self.memory.resized(size).map_err(|_| BlockError::NoMemory)?;
        Ok(Self { info: DeviceInfo { size, ..self.info.clone() }, memory: Arc::new(memory) })
    }

    /// Makes this the current device again, after its successor from [`Self::resized`] was
    /// discarded unused.
    pub fn revert_resize(&self) {
        self.memory.revert_resize();
    }
}

impl BlockDevice for RamDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn quiesce_bound(&self) -> Option<Duration> {
        Some(Duration::ZERO)
    }

    fn open_queue(&self, _pool: &CorePool) -> Result<Box<dyn BlockQueue>, BlockError> {
        let more = Signal::new()
            .map_err(|e| BlockError::from_errno(e.raw_os_error().unwrap_or(libc::EIO)))?;
        Ok(Box::new(RamQueue {
            info: self.info.clone(),
            memory: Arc::clone(&self.memory),
            zeroing: VecDeque::new(),
            more,
            raised: false,
            done: Vec::new(),
        }))
    }
}

/// Copies as operations are submitted; zeroes in steps, one per poll.
#[derive(Debug)]
struct RamQueue {
    info: DeviceInfo,
    memory: Arc<Memory>,
    /// Operations that zero; the front one is done up to the given offset.
    zeroing: VecDeque<(BlockOp, u64)>,
    /// Raised while there is more to zero.
    more: Signal,
    raised: bool,
    done: Vec<Completed>,
}

impl RamQueue {
    fn zero_step(&mut self) {
        let Some((op, at)) = self.zeroing.front_mut() else { return };
        let end = op.offset + op.len;
        let len = (end - *at).min(ZERO_STEP);
        let result = self
            .memory
            .zero(*at, len)
            .map_err(|e| BlockError::from_errno(e.raw_os_error().unwrap_or(libc::EIO)));
        *at += len;
        if (*at == end || result.is_err())
            && let Some((op, _)) = self.zeroing.pop_front()
        {
            self.done.push(op.complete(result));
        }
    }
}

impl BlockQueue for RamQueue {
    fn submit(&mut self, mut op: BlockOp) -> Result<(), Rejected> {
        let result = op.check(&self.info);
        let len = usize::try_from(op.len).unwrap_or(usize::MAX);
        if result.is_ok() {
            match (op.kind, op.buf.as_mut()) {
                (BlockOpKind::Read, Some(buf)) => {
                    self.memory.read(op.offset, &mut buf.as_mut_slice()[..len]);
                }
                (BlockOpKind::Write { .. }, Some(buf)) => {
                    self.memory.write(op.offset, &buf.as_slice()[..len]);
                }
                (BlockOpKind::WriteZeroes { .. } | BlockOpKind::Deallocate, _) => {
                    let at = op.offset;
                    self.zeroing.push_back((op, at));
                    return Ok(());
                }
                _ => {}
            }
        }
        self.done.push(op.complete(result));
        Ok(())
    }

    fn poll(&mut self, done: &mut Vec<Completed>) {
        self.zero_step();
        if self.raised == self.zeroing.is_empty() {
            self.raised = !self.raised;
            if self.raised { self.more.raise() } else { self.more.clear() }
        }
        done.append(&mut self.done);
    }

    /// Copies complete when they are submitted; zeroing ends after the last completed step.
    fn cancel(&mut self, token: u64) {
        let mut at = 0;
        while let Some((op, _)) = self.zeroing.get(at) {
            if op.token != token {
                at += 1;
            } else if let Some((op, _)) = self.zeroing.remove(at) {
                self.done.push(op.complete(Err(BlockError::Cancelled)));
            }
        }
    }

    fn in_flight(&self) -> usize {
        self.done.len() + self.zeroing.len()
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.more.as_fd())
    }
}
