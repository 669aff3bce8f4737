//! Memory that a command's data is moved from or into.

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes};

/// Alignment of a [`Buffer`] in bytes.
const PAGE: usize = 4096;

#[derive(FromBytes, IntoBytes, Immutable)]
#[repr(C, align(4096))]
struct Page([u8; PAGE]);

/// Page-aligned memory of a fixed length. It moves into a command and comes back with its completion.
pub struct Buffer {
    pages: Box<[Page]>,
    len: usize,
}

impl Buffer {
    /// `len` bytes of zeros. Memory is touched only as it is used.
    ///
    /// # Panics
    /// If the machine cannot give that much memory.
    #[must_use]
    pub fn zeroed(len: usize) -> Self {
        let pages = <[Page]>::new_box_zeroed_with_elems(len.div_ceil(PAGE))
            .expect("memory for a data buffer");
        Self { pages, len }
    }

    /// Length in bytes.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// No bytes at all?
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes.
    #[inline]
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        &self.pages.as_bytes()[..self.len]
    }

    /// The bytes, to be changed.
    #[inline]
    #[must_use]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.pages.as_mut_bytes()[..self.len]
    }
}

impl From<&[u8]> for Buffer {
    fn from(bytes: &[u8]) -> Self {
        let mut buffer = Self::zeroed(bytes.len());
        buffer.as_mut_slice().copy_from_slice(bytes);
        buffer
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_aligned_zeroed_and_of_the_length_asked_for() {
        for len in [0, 1, 512, 4096, 4097, 1 << 20] {
            let buffer = Buffer::zeroed(len);
            assert_eq!(buffer.as_slice().len(), len);
            assert!(buffer.as_slice().iter().all(|&b| b == 0));
            assert!(buffer.as_slice().as_ptr().addr().is_multiple_of(PAGE));
        }
        assert_eq!(Buffer::from(&b"abc"[..]).as_slice(), b"abc");
    }
}
