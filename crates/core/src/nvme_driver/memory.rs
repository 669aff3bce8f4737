//! Memory shared by the driver and the drive: rings, lists, data of admin commands.
//!
//! The drive may read and write it at any time, so there is never a Rust reference to its bytes.
//! Every access is an atomic one of 4 or 8 aligned bytes, inside the memory (asserted).

use std::fmt;
use std::io;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::function::{DmaSpace, Iova};
use crate::dma::{Mapping, PAGE};

/// Zeroed pages of the driver, mapped for a device. They are unmapped before they return to the
/// system; pages that the device might still reach are abandoned instead.
pub(super) struct DmaMemory {
    mapping: ManuallyDrop<Mapping>,
    iova: Iova,
    space: Arc<dyn DmaSpace>,
    is_mapped: bool,
}

impl DmaMemory {
    /// Allocates and maps at least `len` bytes, in whole pages.
    pub(super) fn new(space: &Arc<dyn DmaSpace>, len: usize) -> io::Result<Self> {
        let mapping = Mapping::ordinary(len.max(1).next_multiple_of(PAGE), PAGE)?;
        // SAFETY: `mapping` lives until `drop` has seen `unmap` succeed, and permanently if it did
        // not. All accesses are those of this file: atomic, so that another party may change the
        // bytes at any time.
        let iova = unsafe { space.map(mapping.base(), mapping.len()) }?;
        let mapping = ManuallyDrop::new(mapping);
        Ok(Self { mapping, iova, space: Arc::clone(space), is_mapped: true })
    }

    /// Returns the device address of byte `at`.
    pub(super) fn address(&self, at: usize) -> u64 {
        self.iova.0 + at as u64
    }

    /// Loads the 8 bytes at `at` (acquire).
    #[inline]
    pub(super) fn load64(&self, at: usize) -> u64 {
        u64::from_le(self.word(at).load(Ordering::Acquire))
    }

    /// Stores the 8 bytes at `at`.
    #[inline]
    pub(super) fn store64(&self, at: usize, value: u64) {
        self.word(at).store(value.to_le(), Ordering::Relaxed);
    }

    /// Loads the 4 bytes at `at` (acquire).
    #[inline]
    pub(super) fn load32(&self, at: usize) -> u32 {
        u32::from_le(self.half_word(at).load(Ordering::Acquire))
    }

    /// Stores the 4 bytes at `at` (release).
    #[inline]
    pub(super) fn store32(&self, at: usize, value: u32) {
        self.half_word(at).store(value.to_le(), Ordering::Release);
    }

    /// Writes `bytes`, in groups of 8, from `at`.
    #[inline]
    pub(super) fn write(&self, at: usize, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        debug_assert!(rest.is_empty());
        assert!(at.is_multiple_of(8) && at + words.len() * 8 <= self.mapping.len(), "inside");
        for (index, word) in words.iter().enumerate() {
            // SAFETY: as in `word`. The whole run was checked once: `word` would check each of its
            // words, on the I/O path.
            let place =
                unsafe { AtomicU64::from_ptr(self.mapping.as_ptr().add(at + index * 8).cast()) };
            place.store(u64::from_le_bytes(*word).to_le(), Ordering::Relaxed);
        }
    }

    /// Reads groups of 8 bytes from `at` into `bytes`.
    pub(super) fn read(&self, at: usize, bytes: &mut [u8]) {
        let (words, rest) = bytes.as_chunks_mut::<8>();
        debug_assert!(rest.is_empty());
        for (index, word) in words.iter_mut().enumerate() {
            *word = self.load64(at + index * 8).to_le_bytes();
        }
    }

    /// Zeroes `len` bytes, in groups of 8, from `at`.
    pub(super) fn clear(&self, at: usize, len: usize) {
        for index in 0..len / 8 {
            self.store64(at + index * 8, 0);
        }
    }

    /// Unmaps the memory, unless this has been done; returns true if the device cannot reach it.
    pub(super) fn unmap(&mut self) -> bool {
        if self.is_mapped {
            match self.space.unmap(self.iova, self.mapping.len()) {
                Ok(()) => self.is_mapped = false,
                Err(error) => tracing::error!(%error, "memory cannot be taken from a device"),
            }
        }
        !self.is_mapped
    }

    #[inline]
    fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8) && at + 8 <= self.mapping.len(), "inside the memory");
        // SAFETY: inside the mapping and aligned (asserted; the mapping starts on a page), which
        // lives as long as `self`. The driver accesses it only by atomics; the device is no thread
        // of this program. A slice would promise that no other party writes the bytes.
        unsafe { AtomicU64::from_ptr(self.mapping.as_ptr().add(at).cast()) }
    }

    #[inline]
    fn half_word(&self, at: usize) -> &AtomicU32 {
        assert!(at.is_multiple_of(4) && at + 4 <= self.mapping.len(), "inside the memory");
        // SAFETY: as in `word`. Memory accessed as half words (shadow doorbells) is never accessed
        // as words, except before the device gets its address.
        unsafe { AtomicU32::from_ptr(self.mapping.as_ptr().add(at).cast()) }
    }
}

impl fmt::Debug for DmaMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DmaMemory")
            .field("iova", &self.iova)
            .field("len", &self.mapping.len())
            .finish_non_exhaustive()
    }
}

impl Drop for DmaMemory {
    fn drop(&mut self) {
        if self.unmap() {
            // SAFETY: taken once, here, and nothing uses `self` afterwards. An `Option` would be
            // checked at every access of the I/O path.
            drop(unsafe { ManuallyDrop::take(&mut self.mapping) });
        }
    }
}
