//! `split`: a range of another device as a device, like a partition but without a table on the
//! medium.
//!
//! The range must begin and end on a block boundary; there is no other restriction. Operations pass
//! to the base with another offset and return as the base completes them. The split keeps no state
//! for them.

#[cfg(test)]
mod tests;

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;

use super::{
    BlockDevice, BlockError, BlockOp, BlockOpKind, BlockQueue, Completed, DeviceInfo, Rejected,
};
use crate::dma::{CorePool, ZeroCopyData};

/// The split device.
#[derive(Debug)]
pub struct SplitDevice {
    info: DeviceInfo,
    base: Arc<dyn BlockDevice>,
    offset: u64,
}

/// Reason why a device does not contain the range.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
pub enum SplitError {
    /// The range begins or ends within a block.
    #[error("bytes {offset}+{size} are not whole blocks of {block_size} bytes")]
    Misaligned {
        /// First byte.
        offset: u64,
        /// Bytes.
        size: u64,
        /// Bytes per block of the base.
        block_size: u32,
    },
    /// The range is empty or ends beyond the base.
    #[error("bytes {offset}+{size} are not inside {base:?}, which has {base_size} bytes")]
    OutOfRange {
        /// First byte.
        offset: u64,
        /// Bytes.
        size: u64,
        /// The base's name.
        base: String,
        /// Bytes of the base.
        base_size: u64,
    },
}

impl SplitDevice {
    /// Creates a device of `size` bytes of `base` from `offset`, or of all bytes from there.
    ///
    /// # Errors
    /// The base does not contain the range.
    pub fn new(
        name: &str,
        base: Arc<dyn BlockDevice>,
        offset: u64,
        size: Option<u64>,
    ) -> Result<Self, SplitError> {
        let below = base.info();
        let size = size.unwrap_or_else(|| below.size.saturating_sub(offset));
        let block_size = below.block_size;
        if size == 0 || offset.checked_add(size).is_none_or(|end| end > below.size) {
            let (base, base_size) = (below.name.clone(), below.size);
            return Err(SplitError::OutOfRange { offset, size, base, base_size });
        }
        if (offset | size) & (u64::from(block_size) - 1) != 0 {
            return Err(SplitError::Misaligned { offset, size, block_size });
        }
        // Without the size: a range that grew with its base is the same disk.
        let medium = below.medium.as_ref().map(|medium| format!("{medium}+{offset}"));
        let geometry = below.geometry.at_offset(offset);
        let info = DeviceInfo { name: name.to_owned(), size, medium, geometry, ..below.clone() };
        Ok(Self { info, base, offset })
    }
}

impl BlockDevice for SplitDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn open_queue(&self, pool: &CorePool) -> Result<Box<dyn BlockQueue>, BlockError> {
        Ok(Box::new(SplitQueue {
            base: self.base.open_queue(pool)?,
            info: self.info.clone(),
            offset: self.offset,
            refused: Vec::new(),
        }))
    }

    fn quiesce_bound(&self) -> Option<Duration> {
        self.base.quiesce_bound()
    }

    fn is_gone(&self) -> bool {
        self.base.is_gone()
    }
}

#[derive(Debug)]
struct SplitQueue {
    base: Box<dyn BlockQueue>,
    info: DeviceInfo,
    offset: u64,
    /// Operations outside the range; the base never sees them.
    refused: Vec<Completed>,
}

impl BlockQueue for SplitQueue {
    fn submit(&mut self, mut op: BlockOp) -> Result<(), Rejected> {
        if let Err(error) = op.check(&self.info) {
            self.refused.push(op.complete(Err(error)));
            return Ok(());
        }
        if op.kind == BlockOpKind::Flush {
            return self.base.submit(op);
        }
        let offset = op.offset;
        op.offset += self.offset;
        self.base.submit(op).map_err(|mut rejected| {
            rejected.op.offset = offset;
            rejected
        })
    }

    fn poll(&mut self, done: &mut Vec<Completed>) {
        done.append(&mut self.refused);
        self.base.poll(done);
    }

    fn in_flight(&self) -> usize {
        self.base.in_flight() + self.refused.len()
    }

    fn cancel(&mut self, token: u64) {
        self.base.cancel(token);
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        self.base.event_fd()
    }

    fn needs_polls(&self) -> bool {
        self.base.needs_polls()
    }

    fn next_due(&self) -> Option<u64> {
        self.base.next_due()
    }

    fn zero_copy_read(&mut self, offset: u64, len: u32) -> Option<ZeroCopyData> {
        let end = offset.checked_add(u64::from(len))?;
        if end > self.info.size {
            return None;
        }
        self.base.zero_copy_read(offset + self.offset, len)
    }
}
