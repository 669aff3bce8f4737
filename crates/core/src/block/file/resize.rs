//! A file that grows or shrinks while it is served.
//!
//! ```text
//!   resized: larger -> the file grows at once    smaller -> remembered
//!   dropped: the device that only one other shares the file with -> the file is cut to what that one has
//!   either size is on the medium (fsync) before the call returns
//! ```

use std::io;
use std::sync::{MutexGuard, PoisonError};

use rustix::fs::FallocateFlags;

use super::FileConfig;
use super::open::{Kind, OpenError, OpenErrorWhy, OpenFile};
use super::open::{block_device_size, check_size, check_whole, system};

/// How much of a file is in use.
#[derive(Debug, Clone, Copy)]
pub(super) struct Extent {
    size: u64,
    /// The file has more, which is to go.
    is_less: bool,
}

impl Extent {
    pub(super) fn of(size: u64) -> Self {
        Self { size, is_less: false }
    }

    fn set(&mut self, size: u64) {
        self.is_less |= size < self.size;
        self.size = size;
    }
}

impl OpenFile {
    /// Bytes it can have of these; of all there are if none are given. A file grows at once.
    pub(super) fn resize(
        &self,
        wanted: Option<u64>,
        block_size: u32,
        read_only: bool,
    ) -> Result<u64, OpenError> {
        let size = self.resize_inner(wanted, block_size, read_only);
        size.map_err(|why| OpenError { path: self.path.clone(), why })
    }

    fn resize_inner(
        &self,
        wanted: Option<u64>,
        block_size: u32,
        read_only: bool,
    ) -> Result<u64, OpenErrorWhy> {
        let mut extent = self.extent();
        let size = match (self.kind, wanted) {
            (Kind::Block, _) => {
                let config = FileConfig { size: wanted, ..FileConfig::new("", "", block_size) };
                block_device_size(&self.file, &config)?
            }
            (Kind::Regular, None) => extent.size,
            (Kind::Regular, Some(wanted)) => {
                check_whole(wanted, block_size)?;
                if read_only {
                    let actual = system("read its size", rustix::fs::fstat(&self.file))?;
                    check_size(actual.st_size.unsigned_abs(), wanted)?;
                } else if wanted > extent.size {
                    self.zero_what_is_left(&extent, wanted)?;
                    system("make it larger", rustix::fs::ftruncate(&self.file, wanted))?;
                    system("sync it", rustix::fs::fsync(&self.file))?;
                }
                wanted
            }
        };
        let size = size - size % u64::from(block_size);
        extent.set(size);
        Ok(size)
    }

    /// Zeroes what a larger device left behind that is still in use: what comes again is zero.
    fn zero_what_is_left(&self, extent: &Extent, wanted: u64) -> Result<(), OpenErrorWhy> {
        let there = system("read its size", rustix::fs::fstat(&self.file))?.st_size.unsigned_abs();
        let len = there.min(wanted).saturating_sub(extent.size);
        if !extent.is_less || len == 0 {
            return Ok(());
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let zeroed = rustix::fs::fallocate(&self.file, flags, extent.size, len);
        system("zero what a larger device left (try again when that has ended)", zeroed)
    }

    /// A device of this size is the newest again.
    pub(super) fn prevail(&self, size: u64) {
        self.extent().set(size);
    }

    /// Cuts off what only a device had that is no longer used.
    pub(super) fn trim(&self) {
        let mut extent = self.extent();
        if !std::mem::take(&mut extent.is_less) || self.kind == Kind::Block {
            return;
        }
        let cut = rustix::fs::ftruncate(&self.file, extent.size);
        // Or it has its old size again after a power cut, and is not the size that is configured.
        if let Err(error) = cut.and_then(|()| rustix::fs::fsync(&self.file)) {
            let error = io::Error::from(error);
            tracing::warn!(path = %self.path.display(), %error, "the file cannot be made smaller");
        }
    }

    fn extent(&self) -> MutexGuard<'_, Extent> {
        self.extent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
