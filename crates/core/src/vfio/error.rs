//! Why a function could not be taken, and what to do about it.

use std::fmt::{self, Display, Formatter};
use std::io;
use std::path::PathBuf;

/// Why [`open`](super::open) failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VfioError {
    /// Not written as PCI addresses are.
    #[error(
        "`{0}` is no PCI address; they look like 0000:01:00.0 (`nvmeof-tgt drives list` shows them)"
    )]
    Address(String),
    /// The system has no such function.
    #[error("there is no PCI function {0}: `nvmeof-tgt drives list` shows those with drives")]
    NoFunction(String),
    /// A function, but not an NVMe controller.
    #[error("{address} is no NVMe controller (PCI class {class:#08x}, not 0x010802)")]
    NotNvme {
        /// Where it is.
        address: String,
        /// Its class code: base class, subclass, interface.
        class: u32,
    },
    /// No IOMMU stands before the function.
    #[error(
        "{0} is behind no IOMMU: switch it on in the firmware (VT-d, AMD-Vi) and boot Linux with \
         intel_iommu=on or amd_iommu=on"
    )]
    NoIommu(String),
    /// The kernel's own driver, or none, has it.
    #[error(
        "{address} is bound to {}, not to vfio-pci: `nvmeof-tgt drives bind {address}`",
        driver.as_deref().unwrap_or("no driver")
    )]
    NotBound {
        /// Where it is.
        address: String,
        /// The driver that has it.
        driver: Option<String>,
    },
    /// The kernel has no VFIO, or not yet.
    #[error("{} is not there: load VFIO by `modprobe vfio-pci`", .0.display())]
    NoModule(PathBuf),
    /// VFIO is there, its IOMMU part is not.
    #[error("VFIO has no IOMMU backend (type 1, version 2): `modprobe vfio_iommu_type1`")]
    NoBackend,
    /// The file may not be opened.
    #[error(
        "{} may not be opened: run as root, or give this user the file (`chown`)",
        .0.display()
    )]
    Permission(PathBuf),
    /// Another process has the group, or this one has the function.
    #[error("{address} is in use: {by}")]
    Busy {
        /// Where it is.
        address: String,
        /// Who has it.
        by: String,
    },
    /// Other functions of the group are with drivers of the kernel.
    #[error(
        "{address} cannot be taken, because its IOMMU group {group} has functions that the kernel drives: \
         {}; bind them to vfio-pci too, or unbind them",
        list(others)
    )]
    NotViable {
        /// Where it is.
        address: String,
        /// Its group.
        group: u32,
        /// The others that hold it up.
        others: Vec<Obstacle>,
    },
    /// The IOMMU does not keep interrupts apart.
    #[error(
        "the IOMMU does not remap interrupts, so Linux keeps {0} back: switch interrupt remapping on in the \
         firmware, or accept that a drive can raise any interrupt (`modprobe vfio_iommu_type1 \
         allow_unsafe_interrupts=1`)"
    )]
    UnsafeInterrupts(String),
    /// The function's answers make no sense.
    #[error("{address} cannot be used: {why}")]
    Unusable {
        /// Where it is.
        address: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A call failed in a way that has no message of its own.
    #[error("{address}: {what} failed: {source}")]
    System {
        /// Where it is.
        address: String,
        /// What was tried.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

/// A function that keeps a group from being handed over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Obstacle {
    /// Where it is.
    pub address: String,
    /// The driver that has it.
    pub driver: String,
}

impl Display for Obstacle {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.address, self.driver)
    }
}

/// What `map_err` of a call needs: where, and what was tried.
pub(super) fn failed(address: &str, what: &'static str) -> impl FnOnce(io::Error) -> VfioError {
    move |source| VfioError::System { address: address.to_owned(), what, source }
}

fn list(obstacles: &[Obstacle]) -> String {
    if obstacles.is_empty() {
        return "none that sysfs names".to_owned();
    }
    obstacles.iter().map(Obstacle::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_that_is_not_viable_names_who_holds_it() {
        let others = vec![
            Obstacle { address: "0000:01:00.1".to_owned(), driver: "ahci".to_owned() },
            Obstacle { address: "0000:01:00.2".to_owned(), driver: "nvme".to_owned() },
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
