//! A VFIO container: one set of mappings through which all its functions access memory.

use std::collections::BTreeMap;
use std::fmt::{self, Debug, Formatter};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

use vfio_ioctls::{VfioContainer, VfioError as Ioctl};

use super::error::{VfioError, failed};
use super::host::SysfsRoots;
use super::info::IommuInfo;
use super::iova::IovaAllocator;
use super::sys;
use crate::nvme_driver::function::{DmaSpace, Iova};

/// Granule of mappings.
const PAGE: usize = 4096;

/// An open `/dev/vfio/vfio`, with an IOMMU once the first group is attached.
///
/// Mapping the same memory twice yields one mapping with two holders: the functions of a container
/// share their mappings. When the last group leaves, the kernel removes all mappings, and this
/// space stays empty.
pub(super) struct Container {
    vfio: VfioContainer,
    table: Mutex<Table>,
}

/// Current mappings.
#[derive(Debug, Default)]
struct Table {
    groups: usize,
    addresses: IovaAllocator,
    /// Mappings by device address.
    mapped: BTreeMap<u64, Mapped>,
    /// Device addresses by memory address and length.
    by_memory: BTreeMap<(usize, usize), u64>,
}

#[derive(Debug)]
struct Mapped {
    base: usize,
    len: usize,
    holders: usize,
}

impl Container {
    /// Opens a container without groups.
    pub(super) fn open(host: &SysfsRoots, address: &str) -> Result<Self, VfioError> {
        let file = host.container_file();
        let vfio = VfioContainer::new(None).map_err(|error| match error {
            Ioctl::OpenContainer(error) => match error.raw_os_error() {
                Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => VfioError::NoModule(file),
                Some(libc::EACCES | libc::EPERM) => VfioError::Permission(file),
                _ => failed(address, "opening VFIO's container")(error),
            },
            Ioctl::VfioExtension => VfioError::NoBackend,
            other => failed(address, "making a container")(io::Error::other(other)),
        })?;
        Ok(Self { vfio, table: Mutex::default() })
    }

    /// Attaches a group. The first one enables the IOMMU.
    pub(super) fn attach_group(&self, group: &impl AsFd) -> io::Result<()> {
        let mut table = self.table();
        sys::set_container(group, &self.vfio)?;
        let info = self.iommu(table.groups == 0).inspect_err(|_| {
            // This container cannot use the group, but another one may.
            let _ = sys::unset_container(group);
        })?;
        tracing::debug!(ranges = ?info.ranges, mappings = info.mappings_left, "IOMMU");
        table.addresses.report(&info.ranges);
        table.groups += 1;
        Ok(())
    }

    /// Returns the capabilities of the IOMMU, whose backend is set with the first group.
    fn iommu(&self, is_first: bool) -> io::Result<IommuInfo> {
        if is_first {
            sys::set_iommu(&self.vfio)?;
        }
        let info = IommuInfo::parse(&sys::iommu_info(&self.vfio)?);
        if info.page_sizes & (PAGE as u64) == 0 {
            return Err(io::Error::other("the IOMMU has no pages of 4 KiB"));
        }
        if info.ranges.is_empty() {
            return Err(io::Error::other(
                "the kernel does not report the addresses that its IOMMU maps",
            ));
        }
        Ok(info)
    }

    /// Returns true if further groups can join: at least one is attached.
    pub(super) fn is_live(&self) -> bool {
        self.table().groups > 0
    }

    /// Detaches a group, which `close` closes. All mappings end with the last group.
    pub(super) fn detach_group(&self, close: impl FnOnce()) {
        let mut table = self.table();
        close();
        table.groups = table.groups.saturating_sub(1);
        if table.groups == 0 {
            table.mapped.clear();
            table.by_memory.clear();
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of mappings the kernel still allows, for a message.
    fn mappings_left(&self) -> Option<u32> {
        IommuInfo::parse(&sys::iommu_info(&self.vfio).ok()?).mappings_left
    }

    /// Converts the error of a failed mapping to a message with the remedy.
    fn explain(&self, error: Ioctl, len: usize) -> io::Error {
        let Ioctl::IommuDmaMap(error) = error else { return io::Error::other(error) };
        let kind = io::Error::from(error).kind();
        let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
        let text = match error.errno() {
            // Out of memory, or of lockable memory.
            libc::ENOMEM => match limit {
                Some(limit) => format!(
                    "{len} bytes more cannot be locked: the limit is {limit} bytes (`ulimit -l`, LimitMEMLOCK= of \
                     the service, or `limits.buffer-memory` less)"
                ),
                None => format!("{len} bytes more cannot be locked: {error}"),
            },
            libc::ENOSPC => format!(
                "the kernel maps no more pieces of memory ({} left): raise dma_entry_limit of the module \
                 vfio_iommu_type1",
                self.mappings_left().unwrap_or(0)
            ),
            _ => format!("mapping {len} bytes for the IOMMU: {error}"),
        };
        io::Error::new(kind, text)
    }
}

impl DmaSpace for Container {
    unsafe fn map(&self, base: NonNull<u8>, len: usize) -> io::Result<Iova> {
        let start = base.addr().get();
        if len == 0 || !len.is_multiple_of(PAGE) || !start.is_multiple_of(PAGE) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "memory that is no whole pages",
            ));
        }
        let mut table = self.table();
        if table.groups == 0 {
            return Err(super::config::gone());
        }
        if let Some(iova) = table.by_memory.get(&(start, len)).copied() {
            let mapped = table.mapped.get_mut(&iova);
            let mapped = mapped.ok_or_else(|| io::Error::other("a mapping without an entry"))?;
            mapped.holders += 1;
            return Ok(Iova(iova));
        }
        let iova = table.addresses.take(len as u64).ok_or_else(|| {
            io::Error::new(io::ErrorKind::OutOfMemory, "the IOMMU has no addresses left")
        })?;
        // SAFETY: until the memory is unmapped or this space is dropped, which closes the
        // container, the caller keeps it valid. All its accesses are raw and volatile ones.
        if let Err(error) = unsafe { self.vfio.vfio_dma_map(iova, len, base.as_ptr()) } {
            table.addresses.give_back(iova);
            return Err(self.explain(error, len));
        }
        table.mapped.insert(iova, Mapped { base: start, len, holders: 1 });
        table.by_memory.insert((start, len), iova);
        Ok(Iova(iova))
    }

    /// If the memory has another holder, the devices still reach it until that one unmaps it, too.
    fn unmap(&self, iova: Iova, len: usize) -> io::Result<()> {
        let mut table = self.table();
        if table.groups == 0 {
            return Ok(()); // removed with the last group
        }
        let Some(mapped) = table.mapped.get_mut(&iova.0).filter(|mapped| mapped.len == len) else {
            return Err(io::Error::new(
                io::ErrorKind::NotFound,
                "nothing of that length is mapped there",
            ));
        };
        if mapped.holders > 1 {
            mapped.holders -= 1;
            return Ok(());
        }
        let memory = (mapped.base, len);
        self.vfio.vfio_dma_unmap(iova.0, len).map_err(io::Error::other)?;
        table.mapped.remove(&iova.0);
        table.by_memory.remove(&memory);
        table.addresses.give_back(iova.0);
        Ok(())
    }
}

impl Debug for Container {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let table = self.table();
        f.debug_struct("Container")
            .field("fd", &self.vfio.as_raw_fd())
            .field("groups", &table.groups)
            .field("mapped", &table.mapped.len())
            .finish_non_exhaustive()
    }
}
