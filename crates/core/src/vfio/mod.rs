//! PCI functions handed to this process by VFIO: Linux's `vfio-pci`, with an IOMMU between function and memory.
//!
//! ```text
//!   open(address) -> Device: Function      one function, ours alone
//!                      |- Bar: Registers     BAR0, mapped            (bar.rs)
//!                      |- ConfigSpace        bus master, capabilities (config.rs)
//!                      |- eventfds           MSI-X vectors, removal
//!                      `- Group              /dev/vfio/N: what the IOMMU cannot tell apart (group.rs)
//!                           `- Container: DmaSpace   /dev/vfio/vfio: one set of mappings   (container.rs)
//! ```
//!
//! Groups share a container where the kernel lets them, so that memory is mapped, and counted as locked, once for
//! all drives. Everything is given back in the order of the picture, from the top: the BAR is unmapped, then the
//! device closed, then its group; the last group that leaves a container takes all mappings with it.
//!
//! The system's calls are in [`sys`]; what the kernel answers is read in [`info`], without unsafe code.
//!
//! Interface: Linux, `Documentation/driver-api/vfio.rst` and `include/uapi/linux/vfio.h` (type1 IOMMU, version 2).

mod bar;
mod config;
mod container;
mod device;
mod error;
mod group;
mod host;
mod info;
mod iova;
mod sys;

use std::sync::Arc;

pub use self::error::{Obstacle, VfioError};
use crate::nvme_driver::seam::Function;

/// Takes the NVMe controller at a PCI address (`0000:01:00.0`), which is bound to `vfio-pci`.
///
/// It is ours alone until the value is dropped. Registers that were handed out and outlive it read as all ones.
///
/// # Errors
/// Why not, and what to do about it.
pub fn open(address: &str) -> Result<Arc<dyn Function>, VfioError> {
    Ok(Arc::new(device::Device::open(&host::Host::system(), address)?))
}
