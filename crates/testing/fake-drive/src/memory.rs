//! The fake's access to host memory: a table of mappings, like that of an IOMMU.
//!
//! This is the only `unsafe` code of the fake. The caller that maps memory guarantees that it stays
//! valid until `unmap` has returned ([`DmaSpace::map`]). Every access here holds the table's shared
//! lock, and `unmap` holds it exclusively. So all accesses have ended when `unmap` returns.

use std::io;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use nvmeof_core::nvme_driver::function::{DmaSpace, Iova};

const PAGE: u64 = 4096;

/// Unused addresses behind every mapping, so that an overrun is a fault.
const GUARD: u64 = 16 * PAGE;

/// An access of the device outside its mappings, refused and recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IommuFault {
    /// First byte.
    pub iova: u64,
    /// Bytes.
    pub len: u64,
    /// True for a write.
    pub write: bool,
    /// The function had no permission to access memory (bus master bit).
    pub bus_master_off: bool,
}

/// Mappings of an IOMMU, for one or more fakes. It never reuses an address.
#[derive(Debug)]
pub(crate) struct Iommu {
    table: RwLock<Table>,
    fail_map: AtomicBool,
    fail_unmap: AtomicBool,
}

/// One fake's access to the memory that its IOMMU maps.
#[derive(Debug)]
pub(crate) struct Space {
    iommu: Arc<Iommu>,
    faults: Mutex<Vec<IommuFault>>,
    bus_master: AtomicBool,
}

#[derive(Debug)]
struct Table {
    /// In ascending order, not adjacent.
    mappings: Vec<Mapping>,
    next: u64,
}

#[derive(Debug)]
struct Mapping {
    iova: u64,
    len: u64,
    base: NonNull<u8>,
}

// SAFETY: the address is only used to access memory that its mapper keeps valid, and treats as
// shared with a device, until it is unmapped; that holds on any thread.
unsafe impl Send for Mapping {}
// SAFETY: as above. A shared `Mapping` changes nothing but that memory.
unsafe impl Sync for Mapping {}

impl Iommu {
    /// Creates an IOMMU without mappings; the first is at address `first`.
    pub(crate) fn new(first: u64) -> Self {
        Self {
            table: RwLock::new(Table { mappings: Vec::new(), next: first }),
            fail_map: AtomicBool::new(false),
            fail_unmap: AtomicBool::new(false),
        }
    }

    pub(crate) fn fail_next_map(&self) {
        self.fail_map.store(true, Ordering::SeqCst);
    }

    pub(crate) fn fail_next_unmap(&self) {
        self.fail_unmap.store(true, Ordering::SeqCst);
    }

    pub(crate) fn mappings(&self) -> Vec<(Iova, u64)> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        table.mappings.iter().map(|mapping| (Iova(mapping.iova), mapping.len)).collect()
    }
}

impl Space {
    /// Creates the access of a fake that is not bus master yet.
    pub(crate) fn new(iommu: Arc<Iommu>) -> Self {
        Self { iommu, faults: Mutex::default(), bus_master: AtomicBool::new(false) }
    }

    pub(crate) fn iommu(&self) -> &Arc<Iommu> {
        &self.iommu
    }

    pub(crate) fn set_bus_master(&self, on: bool) {
        self.bus_master.store(on, Ordering::SeqCst);
    }

    pub(crate) fn bus_master(&self) -> bool {
        self.bus_master.load(Ordering::SeqCst)
    }

    pub(crate) fn take_faults(&self) -> Vec<IommuFault> {
        std::mem::take(&mut *self.faults.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn faults(&self) -> Vec<IommuFault> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Copies host memory at `iova` to `to`.
    pub(crate) fn read(&self, iova: u64, to: &mut [u8]) -> Result<(), IommuFault> {
        self.access(iova, to.len() as u64, false, |from| {
            // SAFETY: `access` passes the start of `to.len()` mapped bytes, valid while it runs;
            // `to` is memory of the fake, which is not mapped. The host does not change data that
            // the device reads.
            unsafe { ptr::copy_nonoverlapping(from.as_ptr(), to.as_mut_ptr(), to.len()) }
        })
    }

    /// Copies `from` to host memory at `iova`.
    pub(crate) fn write(&self, iova: u64, from: &[u8]) -> Result<(), IommuFault> {
        self.access(iova, from.len() as u64, true, |to| {
            // SAFETY: as in `read`; the host does not access data that the device writes.
            unsafe { ptr::copy_nonoverlapping(from.as_ptr(), to.as_ptr(), from.len()) }
        })
    }

    /// Checks whether the device can reach `len` bytes at `iova`; records a fault if not.
    pub(crate) fn check(&self, iova: u64, len: u64, write: bool) -> Result<(), IommuFault> {
        self.access(iova, len, write, |_| ())
    }

    /// Reads a dword that the host may change concurrently.
    pub(crate) fn load(&self, iova: u64) -> Result<u32, IommuFault> {
        self.word(iova, false, |word| word.load(Ordering::Acquire)).map(u32::from_le)
    }

    /// Writes a dword that the host may read concurrently; earlier writes are visible to a reader
    /// of it.
    pub(crate) fn store(&self, iova: u64, value: u32) -> Result<(), IommuFault> {
        self.word(iova, true, |word| word.store(value.to_le(), Ordering::Release))
    }

    fn word<T>(
        &self,
        iova: u64,
        write: bool,
        act: impl FnOnce(&AtomicU32) -> T,
    ) -> Result<T, IommuFault> {
        assert!(iova.is_multiple_of(4), "dwords the fake shares with its host are aligned");
        self.access(iova, 4, write, |at| {
            // SAFETY: four mapped bytes, valid while `access` runs. They are aligned, because
            // mappings start at page boundaries of both address spaces and `iova` is a multiple of
            // 4. The host uses them atomically or volatile.
            act(unsafe { AtomicU32::from_ptr(at.as_ptr().cast()) })
        })
    }

    /// Calls `act` with the address of `len` bytes at `iova` in a single mapping, which exists
    /// while it runs.
    fn access<T>(
        &self,
        iova: u64,
        len: u64,
        write: bool,
        act: impl FnOnce(NonNull<u8>) -> T,
    ) -> Result<T, IommuFault> {
        let table = self.iommu.table.read().unwrap_or_else(PoisonError::into_inner);
        let bus_master = self.bus_master();
        if bus_master && let Some(at) = table.find(iova, len) {
            return Ok(act(at));
        }
        drop(table);
        let fault = IommuFault { iova, len, write, bus_master_off: !bus_master };
        self.faults.lock().unwrap_or_else(PoisonError::into_inner).push(fault);
        Err(fault)
    }
}

impl Table {
    fn find(&self, iova: u64, len: u64) -> Option<NonNull<u8>> {
        let behind = self.mappings.partition_point(|mapping| mapping.iova <= iova);
        let mapping = self.mappings.get(behind.checked_sub(1)?)?;
        let offset = iova - mapping.iova;
        if offset.checked_add(len)? > mapping.len {
            return None;
        }
        // SAFETY: `offset` is at most the mapping's length, and it maps one allocation of that
        // length.
        Some(unsafe { mapping.base.add(usize::try_from(offset).ok()?) })
    }
}

impl DmaSpace for Iommu {
    unsafe fn map(&self, base: NonNull<u8>, len: usize) -> io::Result<Iova> {
        let invalid = || io::Error::from(io::ErrorKind::InvalidInput);
        if self.fail_map.swap(false, Ordering::SeqCst) {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        let len = u64::try_from(len).map_err(|_| invalid())?;
        if len == 0 || !len.is_multiple_of(PAGE) || !(base.addr().get() as u64).is_multiple_of(PAGE)
        {
            return Err(invalid());
        }
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let iova = table.next;
        table.next = iova.checked_add(len + GUARD).ok_or(io::ErrorKind::OutOfMemory)?;
        table.mappings.push(Mapping { iova, len, base });
        Ok(Iova(iova))
    }

    fn unmap(&self, iova: Iova, len: usize) -> io::Result<()> {
        if self.fail_unmap.swap(false, Ordering::SeqCst) {
            return Err(io::ErrorKind::Other.into());
        }
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let found = table
            .mappings
            .iter()
            .position(|mapping| mapping.iova == iova.0 && mapping.len == len as u64);
        let index = found.ok_or(io::ErrorKind::InvalidInput)?;
        table.mappings.remove(index);
        Ok(())
    }
}

/// Memory pages of a test host, mapped until they are dropped.
#[cfg(test)]
#[derive(Debug)]
pub(crate) struct Pages {
    memory: Vec<std::cell::UnsafeCell<Page>>,
    iommu: Arc<Iommu>,
    iova: Iova,
}

#[cfg(test)]
#[derive(Debug, Clone, Copy)]
#[repr(C, align(4096))]
struct Page([u8; 4096]);

#[cfg(test)]
impl Pages {
    pub(crate) fn new(iommu: &Arc<Iommu>, len: usize) -> Self {
        let pages = len.div_ceil(4096);
        let memory: Vec<_> = (0..pages).map(|_| Page([0; 4096]).into()).collect();
        let base = NonNull::from(&memory[..]).cast();
        // SAFETY: the memory lives as long as `self`, whose drop unmaps it first. It is only
        // accessed by address, below.
        let iova = unsafe { iommu.map(base, pages * 4096) }.unwrap();
        Self { memory, iommu: Arc::clone(iommu), iova }
    }

    /// Returns the device address of byte `at`.
    pub(crate) fn at(&self, at: usize) -> u64 {
        self.iova.0 + at as u64
    }

    pub(crate) fn get(&self, at: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        assert!(at + len <= self.len());
        // SAFETY: inside the pages (asserted); the fake runs in the test's own thread, not
        // concurrently.
        unsafe { ptr::copy_nonoverlapping(self.base().add(at), bytes.as_mut_ptr(), len) };
        bytes
    }

    pub(crate) fn put(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.len());
        // SAFETY: as in `get`. The cells allow writes through a shared reference.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.base().add(at), bytes.len()) };
    }

    fn base(&self) -> *mut u8 {
        self.memory.as_ptr().cast_mut().cast()
    }

    fn len(&self) -> usize {
        size_of_val(&self.memory[..])
    }
}

#[cfg(test)]
impl Drop for Pages {
    fn drop(&mut self) {
        self.iommu.unmap(self.iova, self.len()).unwrap();
    }
}
