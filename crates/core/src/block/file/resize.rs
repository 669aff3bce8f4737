//! Growing and shrinking a file while it is served.
//!
//! ```text
//!   resized: larger -> the file grows immediately    smaller -> recorded
//!   dropped: a device that shares the file with only one other -> the file is cut to its size
//!   either size is on the medium (fsync) before the call returns
//! ```

use std::io;
use std::sync::{MutexGuard, PoisonError};

use rustix::fs::FallocateFlags;

use super::config::FileConfig;
use super::error::{OpenError, OpenErrorReason, system};
use super::extent::FileExtent;
use super::open::{FileKind, OpenFile, block_device_size, check_size, check_whole};

impl OpenFile {
    /// Returns the resulting size for the requested bytes, or for all bytes. A file grows
    /// immediately.
    pub(super) fn resize(
        &self,
        wanted: Option<u64>,
        block_size: u32,
        read_only: bool,
    ) -> Result<u64, OpenError> {
        let size = self.resize_inner(wanted, block_size, read_only);
        size.map_err(|reason| OpenError { path: self.path.clone(), reason })
    }

    fn resize_inner(
        &self,
        wanted: Option<u64>,
        block_size: u32,
        read_only: bool,
    ) -> Result<u64, OpenErrorReason> {
        let mut extent = self.extent();
        let size = match (self.kind, wanted) {
            (FileKind::Block, _) => {
                let config = FileConfig { size: wanted, ..FileConfig::new("", "", block_size) };
                block_device_size(&self.file, &config)?
            }
            (FileKind::Regular, None) => extent.size,
            (FileKind::Regular, Some(wanted)) => {
                check_whole(wanted, block_size)?;
                if read_only {
                    let actual = system("read the size", rustix::fs::fstat(&self.file))?;
                    check_size(actual.st_size.unsigned_abs(), wanted)?;
                } else if wanted > extent.size {
                    self.zero_what_is_left(&extent, wanted)?;
                    system("enlarge the file", rustix::fs::ftruncate(&self.file, wanted))?;
                    system("sync it", rustix::fs::fsync(&self.file))?;
                }
                wanted
            }
        };
        let size = size - size % u64::from(block_size);
        extent.set(size);
        Ok(size)
    }

    /// Zeroes bytes of a larger device that is still in use, because added bytes must read as
    /// zeroes.
    fn zero_what_is_left(&self, extent: &FileExtent, wanted: u64) -> Result<(), OpenErrorReason> {
        let there = system("read the size", rustix::fs::fstat(&self.file))?.st_size.unsigned_abs();
        let len = there.min(wanted).saturating_sub(extent.size);
        if !extent.is_less || len == 0 {
            return Ok(());
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let zeroed = rustix::fs::fallocate(&self.file, flags, extent.size, len);
        system("zero what a larger device left (try again when that has ended)", zeroed)
    }

    /// Makes a device of this size the newest again.
    pub(super) fn revert_resize(&self, size: u64) {
        self.extent().set(size);
    }

    /// Truncates bytes that belonged only to a device no longer in use.
    pub(super) fn trim(&self) {
        let mut extent = self.extent();
        if !std::mem::take(&mut extent.is_less) || self.kind == FileKind::Block {
            return;
        }
        let cut = rustix::fs::ftruncate(&self.file, extent.size);
        // Without the sync, a power cut could restore the old size, which is not the configured
        // one.
        if let Err(error) = cut.and_then(|()| rustix::fs::fsync(&self.file)) {
            let error = io::Error::from(error);
            tracing::warn!(path = %self.path.display(), %error, "the file cannot be made smaller");
        }
    }

    fn extent(&self) -> MutexGuard<'_, FileExtent> {
        self.extent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
