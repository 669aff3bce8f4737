//! One buffer for several concurrent operations, without a copy.
//!
//! ```text
//!  Buffer --new--> SplitBuffer --part--> Buffer, Buffer, ...   disjoint, each with its own bytes
//!     ^              |                | dropped, in any order
//!     '----merge-----'<---------------'
//! ```

#[cfg(test)]
mod tests;

use std::fmt;
use std::mem::ManuallyDrop;

use super::buffer::Buffer;
use super::part_counts::PartCountId;

/// A buffer whose bytes are handed out in parts. It gives no access to them until they are
/// [merged](Self::merge).
///
/// Parts are ordinary buffers and may be split in turn. The slot returns to the pool with the last
/// of them, even if the `SplitBuffer` was dropped before.
pub struct SplitBuffer {
    /// Dropped as a part of `share`.
    buffer: ManuallyDrop<Buffer>,
    share: PartCountId,
    /// Bytes handed out.
    at: u32,
}

impl SplitBuffer {
    /// Starts at the first byte.
    pub fn new(buffer: Buffer) -> Self {
        let share = buffer.core().cut(buffer.share());
        Self { buffer: ManuallyDrop::new(buffer), share, at: 0 }
    }

    /// Returns the next `len` bytes; `None` if fewer are left.
    pub fn part(&mut self, len: usize) -> Option<Buffer> {
        let len = u32::try_from(len).ok()?;
        let (at, end) = (self.at, self.at.checked_add(len)?);
        if end as usize > self.buffer.len() {
            return None;
        }
        self.at = end;
        self.buffer.core().part_begun(self.share);
        // SAFETY: bytes below `self.at` are handed out once and `self` gives no access to them.
        // `merge` returns the buffer only when the count shows that no part lives, and the drop of
        // `self` counts as that of a part.
        Some(unsafe { self.buffer.part(at, len, self.share) })
    }

    /// Returns the bytes not handed out yet.
    pub fn left(&self) -> usize {
        self.buffer.len() - self.at as usize
    }

    /// Merges the parts: returns the original buffer, with the bytes written to its parts.
    ///
    /// # Errors
    /// Some parts still live.
    pub fn merge(self) -> Result<Buffer, Self> {
        if !self.buffer.core().merge(self.share) {
            return Err(self);
        }
        let mut this = ManuallyDrop::new(self);
        // SAFETY: `this` is neither dropped nor used again, so the buffer is taken once.
        Ok(unsafe { ManuallyDrop::take(&mut this.buffer) })
    }
}

impl Drop for SplitBuffer {
    fn drop(&mut self) {
        // SAFETY: taken once; the only other place is `merge`, which prevents this drop.
        let mut buffer = unsafe { ManuallyDrop::take(&mut self.buffer) };
        // It is dropped as one more holder of the share, whose end releases the buffer's own hold.
        buffer.set_share(self.share);
    }
}

impl fmt::Debug for SplitBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SplitBuffer").field("buffer", &*self.buffer).field("at", &self.at).finish()
    }
}
