//! `file`: a regular file or a block device through io_uring, with direct I/O where possible.
//!
//! * [`open`]: checks on the path, and the size;
//! * [`claim`]: exclusion of other servers;
//! * [`sysfs`]: attributes of a block device;
//! * [`geometry`]: sizes that the file system or the block device prefers;
//! * [`wwid`]: the identity of a block device itself;
//! * [`resize`]: growing and shrinking while the file is served;
//! * [`queue`]: the calls of an operation, and the rule when a write is durable;
//! * [`backend`], [`ring`] and [`aio`]: the calls, and io_uring or Linux AIO that executes them.
//!
//! With direct I/O and blocks of the drive's sector size, the drive makes block reads and writes
//! atomic. Through the page cache, atomicity depends on the file system.

mod aio;
mod backend;
mod claim;
mod config;
mod error;
mod extent;
mod geometry;
mod open;
mod queue;
mod resize;
mod ring;
mod sysfs;
#[cfg(test)]
mod tests;
mod wwid;

use std::sync::Arc;

pub use claim::Claim;
pub use config::{DEFAULT_DEPTH, Direct, FileConfig};
pub use error::{OpenError, OpenErrorReason};
pub use open::OpenFile;
pub use ring::start_kernel_worker;
pub use wwid::Backing;

use self::aio::Aio;
use self::queue::{FileQueue, Health, Mode};
use self::ring::Ring;
use super::{BlockDevice, BlockError, BlockQueue, DeviceInfo};
use crate::dma::CorePool;

/// A file or block device, locked against other servers during its lifetime.
#[derive(Debug)]
pub struct FileDevice {
    info: DeviceInfo,
    mode: Mode,
    opened: Arc<OpenFile>,
    /// True if this device created the file.
    is_made: bool,
    health: Arc<Health>,
    /// Linux AIO executes the calls instead of io_uring.
    by_aio: bool,
}

impl FileDevice {
    /// Opens and locks the file; creates it if it is missing and a size is given.
    ///
    /// # Errors
    /// The error names the file, the problem and the remedy.
    pub fn open(config: &FileConfig) -> Result<Self, OpenError> {
        Self::take_over(config, &mut Vec::new())
    }

    /// Opens a file that may belong to a device that ends when this one is in use.
    ///
    /// `claims` are the [claims](Self::claim) of those devices. The claim to this file, if any, is
    /// removed.
    ///
    /// # Errors
    /// See [`open`](Self::open).
    pub fn take_over(config: &FileConfig, claims: &mut Vec<Claim>) -> Result<Self, OpenError> {
        // Checked first, so that no file is created without io_uring.
        ring::probe().map_err(|error| OpenError {
            path: config.path.clone(),
            reason: OpenErrorReason::NoRing(error),
        })?;
        Ok(Self::of(config, OpenFile::take_over(config, claims)?))
    }

    /// Opens a file for reading through Linux AIO (`io_submit`), which fio calls libaio.
    ///
    /// # Errors
    /// See [`open`](Self::open); io_uring is not necessary.
    pub fn open_aio(config: &FileConfig) -> Result<Self, OpenError> {
        let config = FileConfig { read_only: true, ..config.clone() };
        let mut device = Self::of(&config, OpenFile::open(&config)?);
        device.by_aio = true;
        Ok(device)
    }

    fn of(config: &FileConfig, opened: OpenFile) -> Self {
        let info = DeviceInfo {
            name: config.name.clone(),
            size: opened.size,
            block_size: config.block_size,
            read_only: opened.read_only,
            volatile_cache: true,
            deallocate: opened.deallocate,
            deallocate_reads_zero: opened.deallocate,
            write_zeroes: true,
            geometry: geometry::of_file(&opened.file),
            medium: opened.medium.clone(),
        };
        let depth = config.queue_depth.clamp(1, 16384);
        let mode = Mode { direct: opened.direct, depth, polled: false };
        tracing::info!(
            device = %info.name, path = %config.path.display(), size = info.size,
            block_size = info.block_size, read_only = info.read_only, mode = %opened.why_mode,
            "opened"
        );
        let is_made = opened.is_made;
        let (opened, health) = (Arc::new(opened), Arc::default());
        Self { info, mode, opened, is_made, health, by_aio: false }
    }

    /// Creates a larger or smaller device of the same file; `None` takes the current size. Both
    /// work until one is dropped.
    ///
    /// A file grows immediately, and is truncated when the larger device is gone.
    ///
    /// # Errors
    /// A block device is smaller than `size`, or the file cannot grow.
    pub fn resized(&self, size: Option<u64>) -> Result<Self, OpenError> {
        let (block_size, read_only) = (self.info.block_size, self.info.read_only);
        let size = self.opened.resize(size, block_size, read_only)?;
        let (opened, health) = (Arc::clone(&self.opened), Arc::clone(&self.health));
        tracing::info!(device = %self.info.name, from = self.info.size, to = size, "resized");
        let info = DeviceInfo { size, ..self.info.clone() };
        let (mode, by_aio) = (self.mode, self.by_aio);
        Ok(Self { info, mode, opened, is_made: false, health, by_aio })
    }

    /// Removes the file if this device created it, because the device is discarded.
    pub fn undo_create(&self) {
        if !self.is_made {
            return;
        }
        if let Err(error) = std::fs::remove_file(&self.opened.path) {
            let path = self.opened.path.display();
            tracing::warn!(%path, %error, "a file that is not needed cannot be removed");
        }
    }

    /// Returns the backing file of a loop device.
    #[must_use]
    pub fn backing(&self) -> Option<Backing> {
        wwid::backing_of(&self.opened.file)
    }

    /// Returns the claim to the file, for another device to [take over](Self::take_over).
    #[must_use]
    pub fn claim(&self) -> Claim {
        self.opened.claim.clone()
    }

    /// Puts completed writes on the medium, as a flush does.
    ///
    /// # Errors
    /// The system's error: some data is not on the medium.
    pub fn sync(&self) -> std::io::Result<()> {
        if self.info.read_only {
            return Ok(());
        }
        // On a separate open: an error that was already reported does not appear again.
        Ok(rustix::fs::fdatasync(self.opened.reopen_or_share()?)?)
    }

    /// Makes this the current device again, after its successor from [`Self::resized`] was
    /// discarded unused.
    pub fn revert_resize(&self) {
        self.opened.revert_resize(self.info.size);
    }

    /// Makes the queues poll the drive for completions instead of using interrupts
    /// (`IORING_SETUP_IOPOLL`).
    ///
    /// This supports direct reads and writes only, and the queues have no descriptor to sleep on.
    /// If the file cannot be polled, operations fail with [`Unsupported`](BlockError::Unsupported).
    #[must_use]
    pub fn polled(mut self) -> Self {
        self.mode.polled = true;
        self.info.deallocate = false;
        self.info.deallocate_reads_zero = false;
        self.info.write_zeroes = false;
        self
    }
}

impl Drop for FileDevice {
    fn drop(&mut self) {
        if Arc::strong_count(&self.opened) == 2 {
            self.opened.trim();
        }
    }
}

impl BlockDevice for FileDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn open_queue(&self, _pool: &CorePool) -> Result<Box<dyn BlockQueue>, BlockError> {
        let errno = |error: std::io::Error| {
            tracing::error!(device = %self.info.name, %error, "no queue to the file");
            queue::error(error.raw_os_error().unwrap_or(libc::EIO))
        };
        let file = self.opened.reopen_or_share().map_err(errno)?;
        let slots = FileQueue::<Ring>::slots(self.mode.depth);
        let health = Arc::clone(&self.health);
        if self.by_aio {
            let aio = Aio::new(file, slots).map_err(|error| match error.raw_os_error() {
                Some(libc::EAGAIN) => BlockError::NoAioContext,
                _ => errno(error),
            })?;
            return Ok(Box::new(FileQueue::new(aio, self.info.clone(), self.mode, health)));
        }
        let ring = Ring::new(file, slots, self.mode.polled).map_err(errno)?;
        Ok(Box::new(FileQueue::new(ring, self.info.clone(), self.mode, health)))
    }
}
