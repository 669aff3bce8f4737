//! Registration of buffer memory with devices.

use std::fmt::Debug;
use std::io;
use std::ptr::NonNull;

/// Number of a chunk of the pool: less than [`ChunkPool::chunks`](super::ChunkPool::chunks), so
/// that it can index a table. A number is reused when its chunk is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChunkId(pub(super) u32);

impl ChunkId {
    /// Returns the index into a table.
    #[inline]
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Makes the pool's memory reachable for a device: an RDMA device registers it, an IOMMU maps it.
///
/// The pool calls it rarely, when memory comes and goes, on any thread and with its lock held. The
/// calls to a [removed](super::ChunkPool::remove_registrar) registrar run without the lock,
/// because they can take long. It must not use the pool.
pub trait MemoryRegistrar: Debug + Send + Sync {
    /// Registers a new chunk: `len` bytes at `base`, mapped until [`unmapping`](Self::unmapping)
    /// has returned. No buffer of it is leased before this call has returned.
    ///
    /// # Errors
    /// The device cannot reach the chunk. The chunk is then not used, and `unmapping` is not
    /// called.
    fn mapped(&self, chunk: ChunkId, base: NonNull<u8>, len: usize) -> io::Result<()>;

    /// Deregisters a chunk that goes away, or all of a removed registrar. The device uses no buffer
    /// of it.
    fn unmapping(&self, chunk: ChunkId);
}
