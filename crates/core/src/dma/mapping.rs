//! Owned anonymous mappings: the only source of memory from the kernel.

use std::io;
use std::ptr::{self, NonNull};

use rustix::mm::{Advice, MapFlags, ProtFlags};

/// Bytes per ordinary page, the granule of memory in the kernel.
pub(crate) const PAGE: usize = 4096;

/// An anonymous private mapping, unmapped on drop.
///
/// Its bytes are zero until written. The type returns raw pointers only; its owner controls all
/// accesses to the bytes.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping belongs to the process, not to a thread. `Mapping` returns no reference to its
// bytes, so moving or sharing it shares only an address.
unsafe impl Send for Mapping {}
// SAFETY: as for `Send`: `&Mapping` provides an address, a length and advice to the kernel.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps ordinary pages, readable and writable, at an address that is a multiple of `align`.
    pub(crate) fn ordinary(len: usize, align: usize) -> io::Result<Self> {
        debug_assert!(align.is_power_of_two() && len.is_multiple_of(PAGE));
        let slack = if align > PAGE { align } else { 0 };
        let whole =
            Self::map(len + slack, ProtFlags::READ | ProtFlags::WRITE, MapFlags::NORESERVE)?;
        Ok(whole.narrow(len, align))
    }

    /// Maps one or more huge pages of 2 MiB; fails if none is free.
    pub(crate) fn huge(len: usize) -> io::Result<Self> {
        Self::map(len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::HUGETLB | MapFlags::HUGE_2MB)
    }

    /// Maps read-only zeroes: every page of the mapping is the kernel's zero page.
    pub(crate) fn zeroes(len: usize) -> io::Result<Self> {
        let mapping = Self::map(len, ProtFlags::READ, MapFlags::NORESERVE)?;
        // A huge page of zeroes would occupy 2 MiB of cache instead of 4 KiB. The result is
        // ignored: a kernel without huge pages refuses this advice and does not need it.
        let _ = mapping.advise(0, len, Advice::LinuxNoHugepage);
        Ok(mapping)
    }

    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns the pages of `[offset, offset + len)` to the kernel: they read as zeroes again. The
    /// caller prevents all other accesses to them during the call.
    pub(crate) fn discard(&self, offset: usize, len: usize) -> io::Result<()> {
        self.advise(offset, len, Advice::LinuxDontNeed)
    }

    fn advise(&self, offset: usize, len: usize, advice: Advice) -> io::Result<()> {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.len));
        // SAFETY: the range lies in this mapping (asserted), which lives as long as `self`. The
        // advice used here changes contents at most to zeroes, and there is no Rust reference into
        // the range: owners access it through raw pointers under their own rules.
        unsafe { rustix::mm::madvise(self.as_ptr().add(offset).cast(), len, advice) }?;
        Ok(())
    }

    fn map(len: usize, prot: ProtFlags, flags: MapFlags) -> io::Result<Self> {
        // SAFETY: a new private mapping at an address the kernel chooses affects no other memory.
        let base = unsafe {
            rustix::mm::mmap_anonymous(ptr::null_mut(), len, prot, flags | MapFlags::PRIVATE)
        }?;
        let base = NonNull::new(base.cast())
            .ok_or_else(|| io::Error::other("the kernel mapped memory at address zero"))?;
        Ok(Self { base, len })
    }

    /// Keeps `len` bytes at the first multiple of `align`, and unmaps the rest.
    fn narrow(self, len: usize, align: usize) -> Self {
        let before = self.base.addr().get().next_multiple_of(align) - self.base.addr().get();
        let after = self.len - before - len;
        let whole = std::mem::ManuallyDrop::new(self);
        // SAFETY: `before + len + after` is the whole mapping, which `whole` owned and no longer
        // frees. Both ends are unmapped once, and the returned value owns the rest.
        unsafe {
            let base = whole.base.add(before);
            if before > 0 {
                let _ = rustix::mm::munmap(whole.base.as_ptr().cast(), before);
            }
            if after > 0 {
                let _ = rustix::mm::munmap(base.as_ptr().add(len).cast(), after);
            }
            Self { base, len }
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `base` and `len` are a mapping this value owns. A holder of addresses into it
        // also holds the mapping (buffers, zero-copy reads and device queues keep their owner
        // alive).
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "munmap of an owned mapping: {unmapped:?}");
    }
}
