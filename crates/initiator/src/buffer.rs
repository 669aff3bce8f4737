//! Memory that holds a command's data.

use std::any::Any;

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes};

/// Alignment of a [`Buffer`] in bytes.
const PAGE: usize = 4096;

#[derive(FromBytes, IntoBytes, Immutable)]
#[repr(C, align(4096))]
struct Page([u8; PAGE]);

/// Page-aligned memory of a fixed length. It moves into a command and returns with its completion.
///
/// A fabric that has to register memory with a device does so on the first use of the buffer. The
/// buffer keeps the registration, so no later command pays for it again. Dropping the buffer
/// removes the registration before the memory is freed.
pub struct Buffer {
    /// Registration of the pages by a fabric. It is declared above them because fields are dropped
    /// in order: the device releases the memory before the system gets it.
    registration: Option<Box<dyn Any + Send + Sync>>,
    /// The pages are not replaced while the buffer lives. They are a `Vec` because Rust assumes
    /// that only the owner accesses the contents of a `Box`.
    pages: Vec<Page>,
    len: usize,
}

impl Buffer {
    /// Allocates `len` zero bytes. The pages are touched only when they are used.
    ///
    /// # Panics
    /// If the system cannot allocate the memory: [`Buffer::try_zeroed`] returns `None` instead.
    #[must_use]
    pub fn zeroed(len: usize) -> Self {
        Self::try_zeroed(len).expect("memory for a data buffer")
    }

    /// Allocates `len` zero bytes, or returns `None` if the system cannot allocate the memory.
    #[must_use]
    pub fn try_zeroed(len: usize) -> Option<Self> {
        let pages = Page::new_vec_zeroed(len.div_ceil(PAGE)).ok()?;
        Some(Self { registration: None, pages, len })
    }

    /// Returns the registration of a fabric, if it has this type.
    #[inline]
    pub(crate) fn registration<T: Any>(&self) -> Option<&T> {
        self.registration.as_deref()?.downcast_ref()
    }

    /// Stores a registration until the memory is freed or another one is stored. `None` drops the
    /// stored one.
    pub(crate) fn keep(&mut self, registration: Option<Box<dyn Any + Send + Sync>>) {
        self.registration = registration;
    }

    /// Returns a pointer to the first byte, without a reference to the bytes.
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

    /// Returns true if the buffer has no bytes.
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

    /// The bytes, mutable.
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
