//! Memory that a command's data is moved from or into.

use std::any::Any;

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes};

/// Alignment of a [`Buffer`] in bytes.
const PAGE: usize = 4096;

#[derive(FromBytes, IntoBytes, Immutable)]
#[repr(C, align(4096))]
struct Page([u8; PAGE]);

/// Page-aligned memory of a fixed length. It moves into a command and comes back with its completion.
///
/// A fabric that has to make memory known to a device does so when the buffer is used for the first time, and
/// the buffer keeps what came of it: no later command pays for that again, and no device knows memory that is
/// no buffer any more.
pub struct Buffer {
    /// What a fabric keeps about the pages. Above them, because fields are dropped in order: a device forgets
    /// the memory before the system gets it back.
    registration: Option<Box<dyn Any + Send + Sync>>,
    /// Never exchanged for others while the buffer lives. A `Vec` and not a `Box`, of which Rust assumes
    /// that nobody else touches its contents.
    pages: Vec<Page>,
    len: usize,
}

impl Buffer {
    /// `len` bytes of zeros. Memory is touched only as it is used.
    ///
    /// # Panics
    /// The machine does not give that much memory: [`Buffer::try_zeroed`] says so instead.
    #[must_use]
    pub fn zeroed(len: usize) -> Self {
        Self::try_zeroed(len).expect("memory for a data buffer")
    }

    /// `len` bytes of zeros, or `None` if the machine does not give that much memory.
    #[must_use]
    pub fn try_zeroed(len: usize) -> Option<Self> {
        let pages = Page::new_vec_zeroed(len.div_ceil(PAGE)).ok()?;
        Some(Self { registration: None, pages, len })
    }

    /// What a fabric keeps about the memory, if it is of this type.
    #[inline]
    pub(crate) fn registration<T: Any>(&self) -> Option<&T> {
        self.registration.as_deref()?.downcast_ref()
    }

    /// Has the buffer keep something until its memory goes, or until something else is to be kept. `None`
    /// lets go of what is kept.
    pub(crate) fn keep(&mut self, registration: Option<Box<dyn Any + Send + Sync>>) {
        self.registration = registration;
    }

    /// Its first byte. Does not look at the bytes.
    #[inline]
    pub(crate) fn base(&mut self) -> *mut u8 {
        self.pages.as_mut_ptr().cast()
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

    #[test]
    fn memory_that_is_not_to_be_had_is_no_panic() {
        assert!(Buffer::try_zeroed(isize::MAX as usize).is_none());
        assert_eq!(Buffer::try_zeroed(3).map(|buffer| buffer.len()), Some(3));
    }

    #[test]
    fn what_is_kept_about_the_memory_goes_with_it() {
        let kept = std::sync::Arc::new(());
        let mut buffer = Buffer::zeroed(1);
        buffer.keep(Some(Box::new(kept.clone())));
        assert!(buffer.registration::<std::sync::Arc<()>>().is_some());
        assert!(buffer.registration::<u8>().is_none());
        buffer.keep(Some(Box::new(7_u8)));
        assert_eq!(std::sync::Arc::strong_count(&kept), 1);
        assert_eq!(buffer.registration::<u8>(), Some(&7));
        buffer.keep(Some(Box::new(kept.clone())));
        drop(buffer);
        assert_eq!(std::sync::Arc::strong_count(&kept), 1);
    }
}
