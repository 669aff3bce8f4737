//! Errors of opening a function, with the remedies.

use std::fmt::{self, Display, Formatter};
use std::io;
use std::path::PathBuf;

/// Reason why [`open`](super::open) failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VfioError {
    /// The text is no PCI address.
    #[error(
        "`{0}` is no PCI address; they look like 0000:01:00.0 (`nvmeof-tgt drives list` shows them)"
    )]
    Address(String),
    /// The function does not exist.
    #[error("there is no PCI function {0}: `nvmeof-tgt drives list` shows those with drives")]
    NoFunction(String),
    /// The function is no NVMe controller.
    #[error("{address} is no NVMe controller (PCI class {class:#08x}, not 0x010802)")]
    NotNvme {
        /// PCI address.
        address: String,
        /// Class code: base class, subclass, interface.
        class: u32,
    },
    /// The function is not behind an IOMMU.
    #[error(
        "{0} has no IOMMU: enable the IOMMU in the firmware (VT-d, AMD-Vi) and boot Linux with \
         intel_iommu=on or amd_iommu=on"
    )]
    NoIommu(String),
    /// Another driver or none is bound to the function.
    #[error(
        "{address} is bound to {}, not to vfio-pci: `nvmeof-tgt drives bind {address}`",
        driver.as_deref().unwrap_or("no driver")
    )]
    NotBound {
        /// PCI address.
        address: String,
        /// Current driver.
        driver: Option<String>,
    },
    /// The VFIO module is not loaded.
    #[error("{} is not there: load VFIO by `modprobe vfio-pci`", .0.display())]
    NoModule(PathBuf),
    /// VFIO's IOMMU module is not loaded.
    #[error("VFIO has no IOMMU backend (type 1, version 2): `modprobe vfio_iommu_type1`")]
    NoBackend,
    /// The process has no permission to open the file.
    #[error(
        "{} may not be opened: run as root, or give this user the file (`chown`)",
        .0.display()
    )]
    Permission(PathBuf),
    /// Another process has the group, or this one has the function.
    #[error("{address} is in use: {by}")]
    Busy {
        /// PCI address.
        address: String,
        /// Current owner.
        by: String,
    },
    /// Drivers of the kernel are bound to other functions of the group.
    #[error(
        "{address} cannot be taken, because its IOMMU group {group} has functions that the kernel drives: \
         {}; bind them to vfio-pci too, or unbind them",
        list(others)
    )]
    NotViable {
        /// PCI address.
        address: String,
        /// IOMMU group.
        group: u32,
        /// Functions that block the group.
        others: Vec<GroupBlocker>,
    },
    /// The IOMMU does not isolate interrupts.
    #[error(
        "the IOMMU does not remap interrupts, so Linux keeps {0} back: switch interrupt remapping on in the \
         firmware, or accept that a drive can raise any interrupt (`modprobe vfio_iommu_type1 \
         allow_unsafe_interrupts=1`)"
    )]
    UnsafeInterrupts(String),
    /// The function's data is invalid.
    #[error("{address} cannot be used: {why}")]
    Unusable {
        /// PCI address.
        address: String,
        /// Problem with it.
        why: &'static str,
    },
    /// A call failed with an error that has no variant here.
    #[error("{address}: {what} failed: {source}")]
    System {
        /// PCI address.
        address: String,
        /// The operation.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

/// A function that prevents the use of its group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupBlocker {
    /// PCI address.
    pub address: String,
    /// Driver of the function.
    pub driver: String,
}

impl Display for GroupBlocker {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.address, self.driver)
    }
}

/// Converts an error for `map_err`: adds the address and the operation.
pub(super) fn failed(address: &str, what: &'static str) -> impl FnOnce(io::Error) -> VfioError {
    move |source| VfioError::System { address: address.to_owned(), what, source }
}

fn list(obstacles: &[GroupBlocker]) -> String {
    if obstacles.is_empty() {
        return "none that sysfs names".to_owned();
    }
    obstacles.iter().map(GroupBlocker::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_that_is_not_viable_names_who_holds_it() {
        let others = vec![
            GroupBlocker { address: "0000:01:00.1".to_owned(), driver: "ahci".to_owned() },
            GroupBlocker { address: "0000:01:00.2".to_owned(), driver: "nvme".to_owned() },
        ];
        let error = VfioError::NotViable { address: "0000:01:00.0".to_owned(), group: 7, others };
        let text = error.to_string();
        assert!(text.contains("group 7"), "{text}");
        assert!(text.contains("0000:01:00.1 (ahci), 0000:01:00.2 (nvme)"), "{text}");
    }

    #[test]
    fn a_driver_that_is_not_there_is_said_so() {
        let error = VfioError::NotBound { address: "0000:01:00.0".to_owned(), driver: None };
        assert!(error.to_string().contains("bound to no driver"), "{error}");
    }
}
