//! Who has to know the memory of buffers before a device can reach it.

use std::fmt::Debug;
use std::io;
use std::ptr::NonNull;

/// A chunk of the pool, by number: lower than [`SharedPool::chunks`](super::SharedPool::chunks), so that a table
/// has a place for each. A number is used again when its chunk is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChunkId(pub(super) u32);

impl ChunkId {
    /// Its place in a table.
    #[inline]
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Makes the pool's memory reachable for a device: an RDMA device registers it, an IOMMU maps it.
///
/// Called when memory comes and goes, seldom and on any thread, with the pool's lock held, but for what is told to one
/// that is [removed](super::SharedPool::remove_registrar), which may take long: it must not use the pool.
pub trait Registrar: Debug + Send + Sync {
    /// A chunk is there: `len` bytes at `base`, mapped until [`unmapping`](Self::unmapping) has returned. No
    /// buffer of it is leased before this call has returned.
    ///
    /// # Errors
    /// Why the device cannot reach it: the chunk is not used then, and `unmapping` is not called.
    fn mapped(&self, chunk: ChunkId, base: NonNull<u8>, len: usize) -> io::Result<()>;

    /// A chunk goes away, or the registrar is no longer wanted. No buffer of it is in use by the device.
    fn unmapping(&self, chunk: ChunkId);
}
