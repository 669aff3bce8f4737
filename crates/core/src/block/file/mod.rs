//! `file`: a regular file or a block device through io_uring, past the page cache where it goes.
//!
//! * [`open`]: what is opened and refused, the size;
//! * [`claim`]: what keeps a second server out;
//! * [`wwid`]: the identity that a block device has by itself;
//! * [`resize`]: more of it or less, while it is served;
//! * [`queue`]: which calls an operation takes and when a write counts as durable;
//! * [`medium`] and [`ring`]: the calls, and io_uring that makes them.
//!
//! That a block is read and written whole is the drive's doing where I/O is direct and blocks are
//! its sectors; through the page cache it is as good as the file system makes it.

mod claim;
mod medium;
mod open;
mod queue;
mod resize;
mod ring;
#[cfg(test)]
mod tests;
mod wwid;

use std::path::PathBuf;
use std::sync::Arc;

pub use claim::Claim;
pub use open::{OpenError, OpenErrorWhy, OpenFile};
pub use ring::start_kernel_worker;
pub use wwid::Backing;

use self::queue::{FileQueue, Health, Mode};
use self::ring::Ring;
use super::{BlockDevice, BlockError, BlockQueue, DeviceInfo};
use crate::dma::CorePool;

/// Operations one queue has in flight unless told otherwise.
pub const DEFAULT_DEPTH: usize = 256;

/// How to open a file as a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileConfig {
    /// Name in the configuration.
    pub name: String,
    /// The file or block device.
    pub path: PathBuf,
    /// Bytes. A file that is not there, or is empty, is made this size, sparse. One that is there
    /// has to have it. `None`: whatever is there.
    pub size: Option<u64>,
    /// Bytes of a logical block: 512 or 4096.
    pub block_size: u32,
    /// Open for reading only. What cannot be written to is opened so, too: see
    /// [`DeviceInfo::read_only`].
    pub read_only: bool,
    /// Whether to go past the page cache.
    pub direct: Direct,
    /// Operations in flight per queue, at most.
    pub queue_depth: usize,
}

/// Whether to go past the page cache (`O_DIRECT`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Direct {
    /// Where the file takes it for this block size; the log says if not and why.
    #[default]
    Auto,
    /// Or do not open it.
    Required,
    /// No: through the page cache.
    Never,
}

impl FileConfig {
    /// A file or block device as it is.
    pub fn new(name: impl Into<String>, path: impl Into<PathBuf>, block_size: u32) -> Self {
        Self {
            name: name.into(),
            path: path.into(),
            size: None,
            block_size,
            read_only: false,
            direct: Direct::Auto,
            queue_depth: DEFAULT_DEPTH,
        }
    }

    /// Looks whether the device could be opened; creates, locks and changes nothing.
    ///
    /// # Errors
    /// Why it could not.
    pub fn check(&self) -> Result<(), OpenError> {
        open::check(self)
    }
}

/// A file or block device, locked against other servers for as long as it lives.
#[derive(Debug)]
pub struct FileDevice {
    info: DeviceInfo,
    mode: Mode,
    opened: Arc<OpenFile>,
    /// The file was not there before this device was opened.
    is_made: bool,
    health: Arc<Health>,
}

impl FileDevice {
    /// Opens and locks it; creates the file if it is not there and a size is given.
    ///
    /// # Errors
    /// Says which file, what is wrong and what to do.
    pub fn open(config: &FileConfig) -> Result<Self, OpenError> {
        Self::take_over(config, &mut Vec::new())
    }

    /// The same, where the file may be that of a device that ends when this one is in use: of one
    /// of these [claims](Self::claim), which is taken out then.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn take_over(config: &FileConfig, claims: &mut Vec<Claim>) -> Result<Self, OpenError> {
        // First: without io_uring no file is to be made.
        ring::probe().map_err(|error| OpenError {
            path: config.path.clone(),
            why: OpenErrorWhy::NoRing(error),
        })?;
        let opened = OpenFile::take_over(config, claims)?;
        let info = DeviceInfo {
            name: config.name.clone(),
            size: opened.size,
            block_size: config.block_size,
            read_only: opened.read_only,
            volatile_cache: true,
            deallocate: opened.deallocate,
            deallocate_reads_zero: opened.deallocate,
            write_zeroes: true,
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
        Ok(Self { info, mode, opened: Arc::new(opened), is_made, health: Arc::default() })
    }

    /// The same file, more of it or less, or all there is of it now. Both work until one is dropped; a
    /// file grows at once, and is cut off when the larger one is gone.
    ///
    /// # Errors
    /// A block device has not so much; the file cannot grow.
    pub fn resized(&self, size: Option<u64>) -> Result<Self, OpenError> {
        let (block_size, read_only) = (self.info.block_size, self.info.read_only);
        let size = self.opened.resize(size, block_size, read_only)?;
        let (opened, health) = (Arc::clone(&self.opened), Arc::clone(&self.health));
        tracing::info!(device = %self.info.name, from = self.info.size, to = size, "resized");
        let info = DeviceInfo { size, ..self.info.clone() };
        Ok(Self { info, mode: self.mode, opened, is_made: false, health })
    }

    /// Removes the file if opening it as this device made it: the device is not to be.
    pub fn unmake(&self) {
        if !self.is_made {
            return;
        }
        if let Err(error) = std::fs::remove_file(&self.opened.path) {
            let path = self.opened.path.display();
            tracing::warn!(%path, %error, "a file that is not needed cannot be removed");
        }
    }

    /// The file behind it where it is a loop device.
    #[must_use]
    pub fn backing(&self) -> Option<Backing> {
        wwid::backing_of(&self.opened.file)
    }

    /// Its claim to the file, for another device to [take over](Self::take_over).
    #[must_use]
    pub fn claim(&self) -> Claim {
        self.opened.claim.clone()
    }

    /// Puts what was written on the medium, as a flush does.
    ///
    /// # Errors
    /// The system's: something is not on the medium.
    pub fn sync(&self) -> std::io::Result<()> {
        if self.info.read_only {
            return Ok(());
        }
        // Of an opening of its own: what was reported before is not reported once more.
        Ok(rustix::fs::fdatasync(self.opened.reopen_or_share()?)?)
    }

    /// Makes this the device that stays, after what was made of it with [`Self::resized`] is not used.
    pub fn prevail(&self) {
        self.opened.prevail(self.info.size);
    }

    /// The same, but its queues look for completions at the drive instead of being interrupted
    /// (`IORING_SETUP_IOPOLL`): for direct reads and writes only, and without a descriptor to sleep on. Where the file
    /// cannot be polled an operation is [`Unsupported`](BlockError::Unsupported).
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
            tracing::error!(device = %self.info.name, %error, "no io_uring queue to the file");
            queue::error(error.raw_os_error().unwrap_or(libc::EIO))
        };
        let file = self.opened.reopen_or_share().map_err(errno)?;
        let slots = FileQueue::<Ring>::slots(self.mode.depth);
        let ring = Ring::new(file, slots, self.mode.polled).map_err(errno)?;
        let health = Arc::clone(&self.health);
        Ok(Box::new(FileQueue::new(ring, self.info.clone(), self.mode, health)))
    }
}
