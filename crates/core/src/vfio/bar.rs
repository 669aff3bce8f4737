//! Mapped registers of a controller.

use std::io;
use std::os::fd::AsFd;
use std::ptr::{self, NonNull};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, Ordering, fence};

use rustix::mm::{MapFlags, MremapFlags, ProtFlags};

use crate::nvme_driver::function::Registers;

const PAGE: usize = 4096;

/// BAR0 of a function, mapped into this process until [`revoke`](Self::revoke).
///
/// The mapping holds the device open, and the kernel cannot remove a drive whose device is open. So
/// the device's owner revokes the mapping before it closes the device. Remaining holders of the
/// registers then read all ones and write nothing, as with a missing function.
///
/// Order: on x86-64, accesses of a BAR happen in program order, and after the preceding writes of
/// memory. The fences here prevent the compiler from reordering them.
#[derive(Debug)]
pub(super) struct Bar {
    base: NonNull<u8>,
    /// Bytes of registers; whole pages, all mapped.
    len: usize,
    revoked: AtomicBool,
    /// Held while the mapping is replaced.
    revoking: Mutex<()>,
}

// SAFETY: a mapping belongs to the process. Every access through `base` is a volatile one, of
// memory that the device may change at any time anyway.
unsafe impl Send for Bar {}
// SAFETY: as for `Send`. Two threads that write one register concurrently interfere like two
// writers of a device, which is no data race in memory.
unsafe impl Sync for Bar {}

impl Bar {
    /// Maps `len` bytes, in whole pages, at an offset of a device's file.
    pub(super) fn map(device: &impl AsFd, offset: u64, len: usize) -> io::Result<Self> {
        if len == 0 || !len.is_multiple_of(PAGE) || u32::try_from(len - 1).is_err() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "registers of an odd size"));
        }
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping at an address the kernel chooses affects no other memory.
        let base = unsafe { rustix::mm::mmap(ptr::null_mut(), len, prot, flags, device, offset) }?;
        let base = NonNull::new(base.cast())
            .ok_or_else(|| io::Error::other("the kernel mapped registers at address zero"))?;
        Ok(Self { base, len, revoked: AtomicBool::new(false), revoking: Mutex::new(()) })
    }

    /// Returns the bytes of the registers.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Releases the device: from here on all registers read as all ones.
    ///
    /// Concurrent accesses of other threads reach the device or its replacement, and never other
    /// memory.
    pub(super) fn revoke(&self) -> io::Result<()> {
        let _only = self.revoking.lock().unwrap_or_else(PoisonError::into_inner);
        if self.revoked.load(Ordering::Acquire) {
            return Ok(());
        }
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new mapping at an address the kernel chooses, of the number of bytes written
        // here.
        let ones = unsafe {
            let ones = rustix::mm::mmap_anonymous(ptr::null_mut(), self.len, prot, flags)?;
            ptr::write_bytes(ones.cast::<u8>(), 0xff, self.len);
            ones
        };
        // Later writes are never read, although they land in the pages of ones.
        self.revoked.store(true, Ordering::Release);
        let base = self.base.as_ptr().cast();
        // SAFETY: moves the pages of ones, to which only this function has the address, over the
        // device's, which `self` owns, in one step. So `base` is always mapped, and it belongs to
        // this value until drop.
        let moved = unsafe {
            rustix::mm::mremap_fixed(ones, self.len, self.len, MremapFlags::MAYMOVE, base)
        };
        if let Err(error) = moved {
            // SAFETY: the mapping did not move, and no other code has its address.
            let _ = unsafe { rustix::mm::munmap(ones, self.len) };
            return Err(error.into());
        }
        Ok(())
    }

    /// Returns the address of `width` bytes at an offset inside the registers that is a multiple of
    /// the width.
    #[inline]
    fn at(&self, offset: u32, width: usize) -> Option<*mut u8> {
        let offset = offset as usize;
        let inside = offset.checked_add(width).is_some_and(|end| end <= self.len);
        // SAFETY: the offset is inside the mapping, which has `len` bytes. It stays a raw address:
        // a reference would allow reads that the program does not make, and a read of a register
        // may have effects.
        (inside && offset.is_multiple_of(width)).then(|| unsafe { self.base.as_ptr().add(offset) })
    }
}

impl Registers for Bar {
    #[inline]
    fn read32(&self, offset: u32) -> u32 {
        let Some(at) = self.at(offset, 4) else { return u32::MAX };
        // SAFETY: `at` checked that it is inside the mapping, which exists until drop, and aligned:
        // the base is page-aligned.
        let value = unsafe { at.cast::<u32>().read_volatile() };
        fence(Ordering::Acquire);
        if self.revoked.load(Ordering::Acquire) { u32::MAX } else { u32::from_le(value) }
    }

    #[inline]
    fn write32(&self, offset: u32, value: u32) {
        let Some(at) = self.at(offset, 4) else { return };
        fence(Ordering::Release);
        // SAFETY: as for `read32`.
        unsafe { at.cast::<u32>().write_volatile(value.to_le()) };
    }

    #[inline]
    fn read64(&self, offset: u32) -> u64 {
        let Some(at) = self.at(offset, 8) else { return u64::MAX };
        // SAFETY: as for `read32`.
        let value = unsafe { at.cast::<u64>().read_volatile() };
        fence(Ordering::Acquire);
        if self.revoked.load(Ordering::Acquire) { u64::MAX } else { u64::from_le(value) }
    }

    #[inline]
    fn write64(&self, offset: u32, value: u64) {
        let Some(at) = self.at(offset, 8) else { return };
        fence(Ordering::Release);
        // SAFETY: as for `read32`.
        unsafe { at.cast::<u64>().write_volatile(value.to_le()) };
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        // SAFETY: `base` and `len` are this value's mapping, of the device or of ones. Addresses
        // into it live no longer than a method call.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "munmap of registers: {unmapped:?}");
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;
    use std::sync::Arc;
    use std::thread;

    use super::*;

    /// Returns a file that replaces a device, and two of its pages mapped.
    fn mapped() -> (std::fs::File, Bar) {
        let file = tempfile::tempfile().expect("a file");
        file.set_len(4 * PAGE as u64).expect("its size");
        let bar = Bar::map(&file, PAGE as u64, 2 * PAGE).expect("a mapping");
        (file, bar)
    }

    fn at(file: &std::fs::File, offset: u64) -> u64 {
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, PAGE as u64 + offset).expect("eight bytes");
        u64::from_le_bytes(bytes)
    }

    #[test]
    fn accesses_reach_the_file_in_little_endian() {
        let (file, bar) = mapped();
        file.write_all_at(&[1, 2, 3, 4, 5, 6, 7, 8], PAGE as u64 + 8).expect("write");
        assert_eq!(bar.read32(8), 0x0403_0201);
        assert_eq!(bar.read32(12), 0x0807_0605);
        assert_eq!(bar.read64(8), 0x0807_0605_0403_0201);
        bar.write32(0x1000, 0x1122_3344);
        bar.write64(0x1ff8, 0x0102_0304_0506_0708);
        assert_eq!(at(&file, 0x1000), 0x1122_3344);
        assert_eq!(at(&file, 0x1ff8), 0x0102_0304_0506_0708);
    }

    #[test]
    fn what_is_outside_or_askew_is_all_ones() {
        let (file, bar) = mapped();
        for offset in [0x2000, 0x1ffd, 2, u32::MAX, u32::MAX - 3] {
            assert_eq!(bar.read32(offset), u32::MAX, "{offset:#x}");
            bar.write32(offset, 0);
        }
        for offset in [0x2000, 0x1ffc, 4, u32::MAX - 7] {
            assert_eq!(bar.read64(offset), u64::MAX, "{offset:#x}");
            bar.write64(offset, 5);
        }
        for offset in (0..0x2000).step_by(8) {
            assert_eq!(at(&file, offset), 0, "{offset:#x} was written");
        }
    }

    #[test]
    fn odd_sizes_are_refused() {
        let (file, _bar) = mapped();
        for len in [0, 1, PAGE + 1] {
            assert!(Bar::map(&file, 0, len).is_err(), "{len}");
        }
    }

    #[test]
    fn revoked_registers_read_as_ones_and_reach_nothing() {
        let (file, bar) = mapped();
        bar.write32(0, 7);
        bar.revoke().expect("revoked");
        bar.revoke().expect("twice is once");
        bar.write32(0, 9);
        bar.write64(8, 9);
        assert_eq!(bar.read32(0), u32::MAX);
        assert_eq!(bar.read64(8), u64::MAX);
        assert_eq!(at(&file, 0), 7);
        assert_eq!(at(&file, 8), 0);
    }

    #[test]
    fn revoking_disturbs_no_reader() {
        for _ in 0..50 {
            let (_file, bar) = mapped();
            let bar = Arc::new(bar);
            bar.write64(16, 0x1234);
            let reader = {
                let bar = Arc::clone(&bar);
                thread::spawn(move || {
                    loop {
                        match bar.read64(16) {
                            0x1234 => {}
                            u64::MAX => break,
                            other => panic!("{other:#x} is neither the register's nor ones"),
                        }
                    }
                })
            };
            bar.revoke().expect("revoked");
            reader.join().expect("the reader");
        }
    }
}
