//! Zero-copy reads: bytes that a device exposes instead of filling a buffer.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use rustix::fs::MemfdFlags;

use super::mapping::Mapping;

/// Maximum bytes of a zero-copy read.
pub const MAX_ZERO_COPY_BYTES: usize = 2 << 20;

/// Bytes of the mapped window of zeroes, repeated for longer runs.
///
/// All its pages are one page of memory, so it stays in the first-level cache, and its 16
/// translations stay in the TLB.
const ZERO_WINDOW: usize = 64 << 10;

/// Memory that a device exposes, and a file with the same bytes.
#[derive(Debug)]
pub struct ZeroCopyRegion {
    window: Mapping,
    /// Reads as the region does at every offset up to [`MAX_ZERO_COPY_BYTES`].
    file: Option<OwnedFd>,
}

impl ZeroCopyRegion {
    /// Returns a window of zeroes, and a file of [`MAX_ZERO_COPY_BYTES`] zero bytes that uses no
    /// memory.
    ///
    /// All devices share one region, so that several of them use no more of the TLB than one.
    ///
    /// # Errors
    /// No memory. A kernel without memfd is no error: the region then has no file.
    pub fn zeroes() -> io::Result<Arc<Self>> {
        static SHARED: Mutex<Weak<ZeroCopyRegion>> = Mutex::new(Weak::new());
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(zeroes) = shared.upgrade() {
            return Ok(zeroes);
        }
        let zeroes = Self::new_zeroes()?;
        *shared = Arc::downgrade(&zeroes);
        Ok(zeroes)
    }

    /// Returns the address and length of the repeated memory. It stays mapped during the region's
    /// lifetime.
    pub fn window(&self) -> (NonNull<u8>, usize) {
        (self.window.base(), self.window.len())
    }

    fn new_zeroes() -> io::Result<Arc<Self>> {
        let window = Mapping::zeroes(ZERO_WINDOW)?;
        let file = rustix::fs::memfd_create("nvmeof-zeroes", MemfdFlags::CLOEXEC)
            .and_then(|file| {
                rustix::fs::ftruncate(&file, MAX_ZERO_COPY_BYTES as u64).map(|()| file)
            })
            .inspect_err(|error| tracing::debug!(%error, "no file of zeroes to send from"))
            .ok();
        Ok(Arc::new(Self { window, file }))
    }
}

/// A reactor's handle of a region: it counts leases without atomics.
#[derive(Debug)]
pub struct ZeroCopySource {
    region: Arc<ZeroCopyRegion>,
}

impl ZeroCopySource {
    /// Creates a handle for the calling thread.
    pub fn new(region: &Arc<ZeroCopyRegion>) -> Rc<Self> {
        Rc::new(Self { region: Arc::clone(region) })
    }

    /// Returns `len` bytes of the region, which repeats; `None` above [`MAX_ZERO_COPY_BYTES`].
    pub fn data(self: &Rc<Self>, len: usize) -> Option<ZeroCopyData> {
        (len <= MAX_ZERO_COPY_BYTES).then(|| ZeroCopyData { source: Rc::clone(self), len })
    }
}

/// A run of bytes that does not change until this value is dropped.
pub struct ZeroCopyData {
    source: Rc<ZeroCopySource>,
    len: usize,
}

impl ZeroCopyData {
    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if the run is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the region of the run, which starts at the beginning of its window.
    pub fn region(&self) -> &Arc<ZeroCopyRegion> {
        &self.source.region
    }

    /// Returns the memory as `(address, length)` pieces in order. The addresses are valid for reads
    /// until this value is dropped.
    pub fn pieces(&self) -> impl Iterator<Item = (*const u8, usize)> + '_ {
        let window = self.source.region.window.len();
        let base = self.source.region.window.as_ptr().cast_const();
        (0..self.len).step_by(window).map(move |at| (base, window.min(self.len - at)))
    }

    /// Returns the same bytes as `(file, offset)`, for `sendfile`.
    pub fn file(&self) -> Option<(BorrowedFd<'_>, u64)> {
        self.source.region.file.as_ref().map(|file| (file.as_fd(), 0))
    }
}

impl fmt::Debug for ZeroCopyData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ZeroCopyData").field("len", &self.len).finish_non_exhaustive()
    }
}
