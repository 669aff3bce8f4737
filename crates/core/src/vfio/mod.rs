//! PCI functions assigned to this process by VFIO: Linux's `vfio-pci`, with an IOMMU between
//! function and memory.
//!
//! ```text
//!   open(address) -> Device: Function      one function, exclusive to this process
//!                      |- Bar: Registers     BAR0, mapped            (bar.rs)
//!                      |- ConfigSpace        bus master, capabilities (config.rs)
//!                      |- eventfds           MSI-X vectors, removal
//!                      `- Group              /dev/vfio/N: functions not isolated (group.rs)
//!                           `- Container: DmaSpace   /dev/vfio/vfio: mappings     (container.rs)
//! ```
//!
//! Groups share a container if the kernel permits it, so that memory is mapped, and counted as
//! locked, once for all drives. Release follows the diagram from the top: the BAR is unmapped, then
//! the device closed, then its group. The last group that leaves a container ends all mappings.
//!
//! The system calls are in [`sys`]; [`info`] parses the kernel's results without unsafe code.
//!
//! Interface: Linux, `Documentation/driver-api/vfio.rst` and `include/uapi/linux/vfio.h` (type1
//! IOMMU, version 2).

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

pub use self::error::{GroupBlocker, VfioError};
use crate::nvme_driver::function::Function;

/// Opens the NVMe controller at a PCI address (`0000:01:00.0`), which is bound to `vfio-pci`.
///
/// It is exclusive to this process until the value is dropped. Registers that outlive it read as
/// all ones.
///
/// # Errors
/// The error names the reason and the remedy.
pub fn open(address: &str) -> Result<Arc<dyn Function>, VfioError> {
    Ok(Arc::new(device::Device::open(&host::SysfsRoots::system(), address)?))
}
