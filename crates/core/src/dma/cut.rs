//! One buffer for several operations at once, without a copy.
//!
//! ```text
//!  Buffer --new--> Cut --part--> Buffer, Buffer, ...   disjoint, each with its own bytes
//!     ^             |               | dropped, in any order
//!     '---rejoin----'<--------------'
//! ```

#[cfg(test)]
mod tests;

use std::fmt;
use std::mem::ManuallyDrop;

use super::buffer::Buffer;
use super::shares::ShareId;

/// A buffer whose bytes are given out in parts. It shows none of them itself until it is
/// [whole](Self::rejoin) again.
///
/// Parts are buffers like any other, and may be cut in turn. What is left of a slot goes back to the
/// pool with the last of them, also if the cut was dropped before.
pub struct Cut {
    /// Dropped as a part of its own share.
    buffer: ManuallyDrop<Buffer>,
    share: ShareId,
    /// Bytes given out.
    at: u32,
}

impl Cut {
    /// Begins at the first byte.
    pub fn new(buffer: Buffer) -> Self {
        let share = buffer.core().cut(buffer.share());
        Self { buffer: ManuallyDrop::new(buffer), share, at: 0 }
    }

    /// The next `len` bytes; `None` if there are not as many left.
    pub fn part(&mut self, len: usize) -> Option<Buffer> {
        let len = u32::try_from(len).ok()?;
        let (at, end) = (self.at, self.at.checked_add(len)?);
        if end as usize > self.buffer.len() {
            return None;
        }
        self.at = end;
        self.buffer.core().part_begun(self.share);
        // SAFETY: bytes below `self.at` are given out once and `self` shows none; `rejoin` hands the
        // buffer out only when the count says that no part lives, and its drop counts as a part's.
        Some(unsafe { self.buffer.part(at, len, self.share) })
    }

    /// Bytes not given out yet.
    pub fn left(&self) -> usize {
        self.buffer.len() - self.at as usize
    }

    /// The buffer as it was before, with what was written to its parts.
    ///
    /// # Errors
    /// Parts of it still live.
    pub fn rejoin(self) -> Result<Buffer, Self> {
        if !self.buffer.core().rejoin(self.share) {
            return Err(self);
        }
        let mut this = ManuallyDrop::new(self);
        // SAFETY: `this` is never dropped nor used again, so the buffer is taken once.
        Ok(unsafe { ManuallyDrop::take(&mut this.buffer) })
    }
}

impl Drop for Cut {
    fn drop(&mut self) {
        // SAFETY: taken once, in the only place besides `rejoin`, which does not come here.
        let mut buffer = unsafe { ManuallyDrop::take(&mut self.buffer) };
        // It goes as one more holder of the share, whose end is the end of the buffer's own hold.
        buffer.set_share(self.share);
    }
}

impl fmt::Debug for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cut").field("buffer", &*self.buffer).field("at", &self.at).finish()
    }
}
