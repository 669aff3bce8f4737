//! A container: one set of mappings that every function in it sees memory by.

use std::collections::BTreeMap;
use std::fmt::{self, Debug, Formatter};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

use vfio_ioctls::{VfioContainer, VfioError as Ioctl};

use super::error::{VfioError, failed};
use super::host::Host;
use super::info::IommuInfo;
use super::iova::Addresses;
use super::sys;
use crate::nvme_driver::seam::{DmaSpace, Iova};

/// The granule of mappings.
const PAGE: usize = 4096;

/// `/dev/vfio/vfio`, opened, with an IOMMU as soon as the first group is in.
///
/// The same memory mapped twice is one mapping, with as many holders: the functions of a container share what they
/// reach. When the last group has left, the kernel has taken every mapping away, and this space stays empty.
pub(super) struct Container {
    vfio: VfioContainer,
    table: Mutex<Table>,
}

/// What is mapped.
#[derive(Debug, Default)]
struct Table {
    groups: usize,
    addresses: Addresses,
    /// By address as devices see it.
    mapped: BTreeMap<u64, Mapped>,
    /// The same by where the memory is, and its length.
    by_memory: BTreeMap<(usize, usize), u64>,
}

#[derive(Debug)]
struct Mapped {
    base: usize,
    len: usize,
    holders: usize,
}

impl Container {
    /// Opens a container, which has no group yet.
    pub(super) fn open(host: &Host, address: &str) -> Result<Self, VfioError> {
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

    /// Lets a group in. The first one brings the IOMMU with it.
    pub(super) fn let_in(&self, group: &impl AsFd) -> io::Result<()> {
        let mut table = self.table();
        sys::set_container(group, &self.vfio)?;
        let info = self.iommu(table.groups == 0).inspect_err(|_| {
            // It is of no use in here, and may be in another.
            let _ = sys::unset_container(group);
        })?;
        tracing::debug!(ranges = ?info.ranges, mappings = info.mappings_left, "IOMMU");
        table.addresses.report(&info.ranges);
        table.groups += 1;
        Ok(())
    }

    /// What the IOMMU can do, which gets its backend with the first group.
    fn iommu(&self, is_first: bool) -> io::Result<IommuInfo> {
        if is_first {
            sys::set_iommu(&self.vfio)?;
        }
        let info = IommuInfo::parse(&sys::iommu_info(&self.vfio)?);
        if info.page_sizes & (PAGE as u64) == 0 {
            return Err(io::Error::other("the IOMMU has no pages of 4 KiB"));
        }
        if info.ranges.is_empty() {
            return Err(io::Error::other("the kernel does not say which addresses its IOMMU maps"));
        }
        Ok(info)
    }

    /// Whether a group that [`let_in`](Self::let_in) took can still be joined: it is not left by all.
    pub(super) fn is_live(&self) -> bool {
        self.table().groups > 0
    }

    /// Lets a group go, which `close` closes: with the last one all mappings are gone.
    pub(super) fn let_go(&self, close: impl FnOnce()) {
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

    /// How many more mappings the kernel allows, for a message.
    fn mappings_left(&self) -> Option<u32> {
        IommuInfo::parse(&sys::iommu_info(&self.vfio).ok()?).mappings_left
    }

    /// Says what a failed mapping means.
    fn explain(&self, error: Ioctl, len: usize) -> io::Error {
        let Ioctl::IommuDmaMap(error) = error else { return io::Error::other(error) };
        let kind = io::Error::from(error).kind();
        let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
        let text = match error.errno() {
            // The pages, or what may be locked of them.
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
        // SAFETY: the caller keeps the memory valid, and everybody to raw and volatile accesses of it, until it is
        // unmapped or this space is dropped, which closes the container.
        if let Err(error) = unsafe { self.vfio.vfio_dma_map(iova, len, base.as_ptr()) } {
            table.addresses.give_back(iova);
            return Err(self.explain(error, len));
        }
        table.mapped.insert(iova, Mapped { base: start, len, holders: 1 });
        table.by_memory.insert((start, len), iova);
        Ok(Iova(iova))
    }

    /// With another holder of the same memory the devices still reach it, until that one unmaps it too.
    fn unmap(&self, iova: Iova, len: usize) -> io::Result<()> {
        let mut table = self.table();
        if table.groups == 0 {
            return Ok(()); // went with the last group
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
