//! Leased buffers.

use std::fmt;
use std::ptr::NonNull;
use std::rc::Rc;

use super::core_state::Core;
use super::part_counts::PartCountId;
use super::registrar::ChunkId;
use super::slab::{ReservationId, SizeClass, SlotId};

/// An exclusive lease of memory. It starts on a page, stays on its reactor's thread and returns to
/// the pool when dropped.
///
/// A part of a [`SplitBuffer`](super::SplitBuffer) buffer is also a buffer, but starts where it was
/// split.
pub struct Buffer {
    base: NonNull<u8>,
    core: Rc<Core>,
    /// At most a chunk, so it fits in `u32`.
    len: u32,
    capacity: u32,
    promise: ReservationId,
    slot: SlotId,
    /// Count that the part belongs to; 0 if the buffer is whole.
    share: PartCountId,
}

impl Buffer {
    /// Creates the buffer of a slot just leased from `core`: `len` bytes at `base`.
    #[inline]
    pub(super) fn new(
        core: &Rc<Core>,
        base: NonNull<u8>,
        len: usize,
        class: SizeClass,
        slot: SlotId,
        promise: ReservationId,
    ) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "a class is at most a chunk of 2 MiB")]
        let (len, capacity) = (len.min(class.size()) as u32, class.size() as u32);
        Self { base, core: Rc::clone(core), len, capacity, promise, slot, share: 0 }
    }

    /// Returns the requested bytes, or what [`truncate`](Self::truncate) left of them.
    #[inline]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Returns true if [`len`](Self::len) is 0.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the available bytes: the size of the buffer's class, or of the part.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.capacity as usize
    }

    /// Returns the chunk of the buffer, whose number identifies it for devices.
    #[inline]
    pub fn chunk(&self) -> ChunkId {
        self.core.chunk_of(self.slot)
    }

    /// Shortens the buffer to `len` bytes; does nothing if it is not longer.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(u32::try_from(len).unwrap_or(u32::MAX));
    }

    /// Returns the bytes.
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: `base` is the start of `capacity >= len` bytes of mapped, initialized memory.
        // They belong to this value alone during its lifetime: a slot that the pool leases to it
        // (see `slab`), or a part that is handed out once (see `split_buffer`).
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.len()) }
    }

    /// Returns the bytes for writing.
    #[inline]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as in `as_slice`, and `&mut self` is the only access to these bytes.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.len()) }
    }

    /// Returns the address of the first byte: page-aligned unless it is a part, stable until the
    /// buffer is dropped.
    #[inline]
    pub fn as_ptr(&self) -> *const u8 {
        self.base.as_ptr()
    }

    /// Returns the address of the first byte, for writes by a device or the kernel.
    #[inline]
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.base.as_ptr()
    }
}

/// Methods for [`BufferReservation::pass`](super::BufferReservation::pass) only.
impl Buffer {
    pub(super) fn promise(&self) -> ReservationId {
        self.promise
    }

    /// Moves the buffer to `promise`, which has already counted it.
    pub(super) fn set_promise(&mut self, promise: ReservationId) {
        self.promise = promise;
    }
}

/// Methods for [`SplitBuffer`](super::SplitBuffer), and for checks whether a buffer is a part.
impl Buffer {
    pub(super) fn core(&self) -> &Rc<Core> {
        &self.core
    }

    pub(super) fn share(&self) -> PartCountId {
        self.share
    }

    /// Moves the buffer to `share`, which holds the previous count.
    pub(super) fn set_share(&mut self, share: PartCountId) {
        self.share = share;
    }

    /// Returns the `len` bytes at `at` as a separate buffer that counts in `share`.
    ///
    /// # Panics
    /// If the bytes are not inside the buffer.
    ///
    /// # Safety
    /// During the lifetime of the part, no code uses these bytes through `self` or another part.
    /// `share` has counted the part, and `self` is dropped only as another holder of it.
    pub(super) unsafe fn part(&self, at: u32, len: u32, share: PartCountId) -> Self {
        assert!(at.checked_add(len).is_some_and(|end| end <= self.capacity));
        // SAFETY: `at` lies in the buffer (asserted).
        let base = unsafe { self.base.add(at as usize) };
        let core = Rc::clone(&self.core);
        Self { base, core, len, capacity: len, promise: self.promise, slot: self.slot, share }
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl Drop for Buffer {
    #[inline]
    fn drop(&mut self) {
        if self.share != 0 && !self.core.part_ended(self.share) {
            return; // Other parts still use the slot.
        }
        self.core.give_back(self.slot, self.promise);
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer")
            .field("len", &self.len)
            .field("capacity", &self.capacity())
            .finish_non_exhaustive()
    }
}
