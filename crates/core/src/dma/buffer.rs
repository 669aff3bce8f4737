//! A leased buffer.

use std::fmt;
use std::ptr::NonNull;
use std::rc::Rc;

use super::chunk::Slot;
use super::core_pool::Core;
use super::reserve::ReserveState;

/// A lease of memory that nobody else has. It starts on a page, stays on its reactor's thread
/// and goes back to the pool when dropped.
pub struct Buffer {
    base: NonNull<u8>,
    len: usize,
    capacity: usize,
    /// `None` only while dropping.
    slot: Option<Slot>,
    core: Rc<Core>,
    reserve: Option<Rc<ReserveState>>,
}

impl Buffer {
    #[inline]
    pub(super) fn new(
        core: &Rc<Core>,
        slot: Slot,
        capacity: usize,
        len: usize,
        reserve: Option<Rc<ReserveState>>,
    ) -> Self {
        let base = slot.chunk.slot(slot.index, capacity);
        Self { base, len, capacity, slot: Some(slot), core: Rc::clone(core), reserve }
    }

    /// Bytes asked for, or what [`truncate`](Self::truncate) left of them.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether [`len`](Self::len) is 0.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes there are: the size of the buffer's class.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Shortens the buffer to `len` bytes; does nothing if it is not longer.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// The bytes.
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: `base` is the start of a slot of `capacity >= len` bytes of mapped, initialised
        // memory that the chunk lends to this value alone (see `Carved`), for as long as it lives.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }

    /// The bytes, to write.
    #[inline]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as in `as_slice`, and `&mut self` is the only way to the slot.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.len) }
    }

    /// Address of the first byte: page-aligned, stable until the buffer is dropped.
    #[inline]
    pub fn as_ptr(&self) -> *const u8 {
        self.base.as_ptr()
    }

    /// Address of the first byte, to write through (a device, the kernel).
    #[inline]
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.base.as_ptr()
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
        if let Some(slot) = self.slot.take() {
            self.core.push(slot);
        }
        if let Some(reserve) = &self.reserve {
            reserve.returned();
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer")
            .field("len", &self.len)
            .field("capacity", &self.capacity)
            .finish_non_exhaustive()
    }
}
