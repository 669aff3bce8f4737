//! Blocking reads: the kernel's synchronous calls.

mod call;
#[cfg(test)]
mod tests;

use nvmeof_core::block::{
    BlockDevice, BlockError, BlockOp, BlockOpKind, BlockQueue, Completed, DeviceInfo, FileConfig,
    Geometry, OpenError, OpenFile, RejectReason, Rejected,
};
use nvmeof_core::dma::CorePool;

pub(crate) use self::call::ReadCall;

/// A file or block device, read by synchronous calls. Read-only.
///
/// A queue executes an operation during its submission, and holds the completion until the next
/// poll.
#[derive(Debug)]
pub struct SyncDevice {
    info: DeviceInfo,
    file: OpenFile,
    call: ReadCall,
}

impl SyncDevice {
    /// Opens it for reading, regardless of `config`.
    ///
    /// # Errors
    /// The file, the failure and the remedy.
    pub(crate) fn open(config: &FileConfig, call: ReadCall) -> Result<Self, OpenError> {
        let file = OpenFile::open(&FileConfig { read_only: true, ..config.clone() })?;
        let info = DeviceInfo {
            name: config.name.clone(),
            size: file.size(),
            block_size: config.block_size,
            read_only: true,
            volatile_cache: false,
            deallocate: false,
            deallocate_reads_zero: false,
            geometry: Geometry::default(),
            write_zeroes: false,
            medium: file.medium().map(str::to_owned),
        };
        Ok(Self { info, file, call })
    }

    /// The file behind it.
    #[must_use]
    pub fn file(&self) -> &OpenFile {
        &self.file
    }
}

impl BlockDevice for SyncDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// Opens the file again, because `lseek` sets the position of the open file.
    fn open_queue(&self, _pool: &CorePool) -> Result<Box<dyn BlockQueue>, BlockError> {
        let file = self.file.reopen().map_err(|error| call::block_error(&error))?;
        let info = self.info.clone();
        Ok(Box::new(SyncQueue { info, file, call: self.call, held: None }))
    }
}

#[derive(Debug)]
struct SyncQueue {
    info: DeviceInfo,
    file: std::os::fd::OwnedFd,
    call: ReadCall,
    /// Completed, and not polled yet.
    held: Option<Completed>,
}

impl SyncQueue {
    fn run(&self, op: &mut BlockOp) -> Result<(), BlockError> {
        op.check(&self.info)?;
        match (op.kind, op.buf.as_mut()) {
            (BlockOpKind::Read, Some(buf)) => {
                let len = usize::try_from(op.len).unwrap_or(usize::MAX);
                let block = usize::try_from(self.info.block_size).unwrap_or(usize::MAX);
                self.call.read_all(&self.file, &mut buf.as_mut_slice()[..len], op.offset, block)
            }
            // No data was ever written.
            (BlockOpKind::Flush, _) => Ok(()),
            _ => Err(BlockError::Unsupported),
        }
    }
}

impl BlockQueue for SyncQueue {
    fn submit(&mut self, mut op: BlockOp) -> Result<(), Rejected> {
        if self.held.is_some() {
            return Err(Rejected { op, reason: RejectReason::QueueFull });
        }
        let result = self.run(&mut op);
        self.held = Some(op.complete(result));
        Ok(())
    }

    fn poll(&mut self, done: &mut Vec<Completed>) {
        done.extend(self.held.take());
    }

    fn in_flight(&self) -> usize {
        usize::from(self.held.is_some())
    }
}
