//! `null`: reads zeroes and discards writes. It measures the cost of everything except a device.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::{
    BlockDevice, BlockError, BlockOp, BlockOpKind, BlockQueue, Completed, DeviceInfo, Geometry,
    Rejected,
};
use crate::dma::{CorePool, ZeroCopyData, ZeroCopyRegion, ZeroCopySource};

/// The null device.
#[derive(Debug)]
pub struct NullDevice {
    info: DeviceInfo,
    zeroes: Arc<ZeroCopyRegion>,
}

impl NullDevice {
    /// Creates a device of `size` bytes, rounded down to whole blocks.
    ///
    /// # Errors
    /// A page of zeroes cannot be allocated.
    pub fn new(name: &str, size: u64, block_size: u32) -> Result<Self, BlockError> {
        let zeroes = ZeroCopyRegion::zeroes().map_err(|_| BlockError::NoMemory)?;
        let info = DeviceInfo {
            name: name.to_owned(),
            size: size - size % u64::from(block_size),
            block_size,
            read_only: false,
            volatile_cache: false,
            deallocate: true,
            deallocate_reads_zero: true,
            write_zeroes: true,
            geometry: Geometry::default(),
            medium: None,
        };
        Ok(Self { info, zeroes })
    }
}

impl BlockDevice for NullDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn quiesce_bound(&self) -> Option<Duration> {
        Some(Duration::ZERO)
    }

    fn open_queue(&self, _pool: &CorePool) -> Result<Box<dyn BlockQueue>, BlockError> {
        Ok(Box::new(NullQueue {
            info: self.info.clone(),
            zeroes: ZeroCopySource::new(&self.zeroes),
            done: Vec::new(),
        }))
    }
}

/// Executes each operation when it is submitted; `poll` only returns it.
#[derive(Debug)]
struct NullQueue {
    info: DeviceInfo,
    zeroes: Rc<ZeroCopySource>,
    done: Vec<Completed>,
}

impl BlockQueue for NullQueue {
    fn submit(&mut self, mut op: BlockOp) -> Result<(), Rejected> {
        let result = op.check(&self.info);
        if let (Ok(()), BlockOpKind::Read, Some(buf)) = (&result, op.kind, op.buf.as_mut()) {
            let len = usize::try_from(op.len).unwrap_or(usize::MAX);
            buf.as_mut_slice()[..len].fill(0);
        }
        self.done.push(op.complete(result));
        Ok(())
    }

    fn poll(&mut self, done: &mut Vec<Completed>) {
        done.append(&mut self.done);
    }

    fn in_flight(&self) -> usize {
        self.done.len()
    }

    fn zero_copy_read(&mut self, offset: u64, len: u32) -> Option<ZeroCopyData> {
        let end = offset.checked_add(u64::from(len))?;
        (end <= self.info.size).then(|| self.zeroes.data(len as usize))?
    }
}
