//! Binding a function to `vfio-pci`, and back to the kernel's NVMe driver.
//!
//! ```text
//!   nvme --bind-->    driver_override = vfio-pci, unbind, drivers_probe --> vfio-pci
//!   nvme <--unbind--  driver_override = (none),   unbind, drivers_probe <-- vfio-pci
//! ```
//!
//! A [`BindPlan`] holds the writes to sysfs. It can be shown instead of executed, and a plan that
//! fails on the way is rolled back. No change survives a reboot.

use std::fmt;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use super::address::Address;
use super::function::PciFunction;
use super::system::{PciError, System, link_name};
use super::users::{Usage, User, claim};

/// Kernel driver that passes functions to processes.
pub const VFIO_DRIVER: &str = "vfio-pci";
/// Kernel driver of NVMe drives.
pub const NVME_DRIVER: &str = "nvme";

/// A write to a sysfs file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SysfsWrite {
    /// The file.
    pub file: PathBuf,
    /// The text; a single line end clears a setting.
    pub text: String,
}

/// Steps that bind a function to a driver; empty if it is already bound.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BindPlan {
    /// The function.
    pub function: PciFunction,
    /// Driver that has the function afterwards.
    pub driver: &'static str,
    /// Writes, in order.
    pub steps: Vec<SysfsWrite>,
}

/// Executes steps: the system, or a test.
pub trait SysfsWriter {
    /// Writes a text to a sysfs file, in one call.
    ///
    /// # Errors
    /// The kernel's error.
    fn write(&self, file: &Path, text: &str) -> io::Result<()>;
}

/// Writes to this machine's sysfs.
#[derive(Debug, Clone, Copy)]
pub struct Sysfs;

/// Error that prevents the binding of a function. Each message names the remedy.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// The function is no NVMe drive.
    #[error("{address} is no NVMe drive (class {class:06x}): only drives are handed over")]
    NotNvme {
        /// The function.
        address: Address,
        /// Class code of the function.
        class: u32,
    },
    /// Functions are not taken from the current driver.
    #[error(
        "{address} is bound to {driver} and stays unchanged: only drives of {NVME_DRIVER}, \
         {VFIO_DRIVER} or no driver are handed over"
    )]
    OtherDriver {
        /// The function.
        address: Address,
        /// Driver of the function.
        driver: String,
    },
    /// The drive is in use.
    #[error("{address} is in use and stays unchanged: {}", list(users))]
    InUse {
        /// The function.
        address: Address,
        /// Users of the drive.
        users: Vec<User>,
    },
    /// The machine has no active IOMMU.
    #[error(
        "{address} has no IOMMU group: the IOMMU is off; enable the IOMMU in the firmware and \
         boot with \
         intel_iommu=on or amd_iommu=on"
    )]
    NoIommu {
        /// The function.
        address: Address,
    },
    /// The IOMMU cannot isolate the function from others that the kernel drives.
    #[error(
        "{address} shares IOMMU group {group} with {}: a group is handed over as a whole, so these must be bound \
         to vfio-pci, or have no driver, too",
        list(others)
    )]
    Group {
        /// The function.
        address: Address,
        /// IOMMU group of the function.
        group: u32,
        /// Other functions of the group, with their drivers.
        others: Vec<GroupMember>,
    },
    /// The driver's module is not loaded.
    #[error("the kernel's driver {driver} is not here: modprobe {driver}")]
    NoDriver {
        /// Name of the driver.
        driver: &'static str,
    },
    /// The system refused a write. Earlier steps are rolled back.
    #[error("{address}: cannot write {:?} to {}: {source}", text.trim(), file.display())]
    Write {
        /// The function.
        address: Address,
        /// The file.
        file: PathBuf,
        /// The text.
        text: String,
        /// The system's error.
        source: io::Error,
    },
    /// All steps succeeded, but another driver or none has the function. The steps are rolled back.
    #[error(
        "{address}: {driver} did not bind the function, {} has it; `dmesg` may show the reason",
        now.as_deref().unwrap_or("no driver")
    )]
    NotTaken {
        /// The function.
        address: Address,
        /// Requested driver.
        driver: &'static str,
        /// Current driver.
        now: Option<String>,
    },
    /// The system's state cannot be read.
    #[error(transparent)]
    System(#[from] PciError),
}

/// A function in the same IOMMU group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupMember {
    /// PCI address.
    pub address: Address,
    /// Driver of the function.
    pub driver: String,
}

impl BindError {
    /// Returns true if the error may be temporary: a program like udev probes the drive, as it
    /// does for every new one, or the kernel's driver took it during the change.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        match self {
            Self::InUse { users, .. } => users.iter().all(User::may_pass),
            Self::NotTaken { driver, now, .. } => {
                *driver == VFIO_DRIVER && now.as_deref() == Some(NVME_DRIVER)
            }
            _ => false,
        }
    }
}

impl BindPlan {
    /// Plans to bind a drive to [`VFIO_DRIVER`]. `along` lists functions that are bound together
    /// with it.
    ///
    /// # Errors
    /// The function is no drive, is in use, has no IOMMU group or shares it, or the driver is not
    /// loaded. Nothing has changed then.
    pub fn bind(
        system: &System,
        usage: &Usage,
        function: &PciFunction,
        along: &[Address],
    ) -> Result<Self, BindError> {
        check(usage, function, VFIO_DRIVER)?;
        let address = function.address;
        let group = function.iommu_group.ok_or(BindError::NoIommu { address })?;
        let others: Vec<GroupMember> = system
            .group_functions(group)?
            .into_iter()
            .filter(|other| other.address != address && !along.contains(&other.address))
            .filter_map(|other| Some(GroupMember { address: other.address, driver: other.driver? }))
            .filter(|other| !matches!(other.driver.as_str(), VFIO_DRIVER | "pci-stub" | "pcieport"))
            .collect();
        if !others.is_empty() {
            return Err(BindError::Group { address, group, others });
        }
        Self::to(system, function, VFIO_DRIVER, "vfio-pci\n")
    }

    /// Plans to return a drive to [`NVME_DRIVER`].
    ///
    /// # Errors
    /// See [`Self::bind`], except IOMMU errors.
    pub fn unbind(
        system: &System,
        usage: &Usage,
        function: &PciFunction,
    ) -> Result<Self, BindError> {
        check(usage, function, NVME_DRIVER)?;
        Self::to(system, function, NVME_DRIVER, "\n")
    }

    /// Executes the plan and verifies the result. Claims the kernel's block devices for that time.
    ///
    /// # Errors
    /// The drive came into use, the system refused a step, or another driver has the function
    /// afterwards. In these cases the function is offered to its default drivers.
    pub fn run(&self, system: &System, writes: &dyn SysfsWriter) -> Result<(), BindError> {
        let address = self.function.address;
        if self.steps.is_empty() {
            return Ok(());
        }
        let was_kernels = self.function.driver.as_deref() == Some(NVME_DRIVER);
        let _claim = if was_kernels {
            let claim = claim(system, &self.function);
            Some(claim.map_err(|users| BindError::InUse { address, users })?)
        } else {
            None
        };
        let result = self.write_all(system, writes);
        if result.is_err() {
            self.take_back(system, writes);
        }
        result
    }

    fn to(
        system: &System,
        function: &PciFunction,
        driver: &'static str,
        driver_override: &str,
    ) -> Result<Self, BindError> {
        let wanted = Some(driver_override.trim()).filter(|name| !name.is_empty());
        let plan = Self { function: function.clone(), driver, steps: Vec::new() };
        let is_bound = function.driver.as_deref() == Some(driver);
        let is_set = function.driver_override.as_deref() == wanted;
        if is_bound && is_set {
            return Ok(plan);
        }
        if !system.sys.join("bus/pci/drivers").join(driver).is_dir() {
            return Err(BindError::NoDriver { driver });
        }
        let folder = system.function_folder(function.address);
        let mut steps = vec![(folder.join("driver_override"), driver_override.to_owned())];
        if !is_bound {
            let address = function.address.to_string();
            if function.driver.is_some() {
                steps.push((folder.join("driver/unbind"), address.clone()));
            }
            steps.push((system.sys.join("bus/pci/drivers_probe"), address));
        }
        let steps = steps.into_iter().map(|(file, text)| SysfsWrite { file, text });
        Ok(Self { steps: steps.collect(), ..plan })
    }

    fn write_all(&self, system: &System, writes: &dyn SysfsWriter) -> Result<(), BindError> {
        let address = self.function.address;
        for SysfsWrite { file, text } in &self.steps {
            writes.write(file, text).map_err(|source| {
                let (file, text) = (file.clone(), text.clone());
                BindError::Write { address, file, text, source }
            })?;
        }
        let now = link_name(&system.function_folder(address).join("driver"));
        if now.as_deref() == Some(self.driver) {
            return Ok(());
        }
        Err(BindError::NotTaken { address, driver: self.driver, now })
    }

    /// Offers the function to any matching driver, to the extent that the system permits it.
    fn take_back(&self, system: &System, writes: &dyn SysfsWriter) {
        let address = self.function.address;
        let folder = system.function_folder(address);
        let write = |file: &Path, text: &str| {
            if let Err(error) = writes.write(file, text) {
                tracing::error!(
                    %address, file = %file.display(), %error,
                    "cannot return the function to its driver; write the file manually"
                );
            }
        };
        write(&folder.join("driver_override"), "\n");
        if link_name(&folder.join("driver")).is_none() {
            write(&system.sys.join("bus/pci/drivers_probe"), &address.to_string());
        }
    }
}

impl SysfsWriter for Sysfs {
    fn write(&self, file: &Path, text: &str) -> io::Result<()> {
        // One write call: the kernel processes each as a whole.
        fs::OpenOptions::new().write(true).open(file)?.write_all(text.as_bytes())
    }
}

impl fmt::Display for SysfsWrite {
    /// Formats the step as a shell command.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "echo {} > {}", self.text.trim(), self.file.display())
    }
}

impl fmt::Display for GroupMember {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.address, self.driver)
    }
}

fn check(usage: &Usage, function: &PciFunction, driver: &str) -> Result<(), BindError> {
    let PciFunction { address, class, .. } = *function;
    if !function.is_nvme() {
        return Err(BindError::NotNvme { address, class });
    }
    if function.driver.as_deref() == Some(driver) {
        // The function is already bound to it.
        return Ok(());
    }
    let other =
        function.driver.as_deref().filter(|name| ![NVME_DRIVER, VFIO_DRIVER].contains(name));
    if let Some(driver) = other {
        return Err(BindError::OtherDriver { address, driver: driver.to_owned() });
    }
    let users = usage.of(function);
    if users.is_empty() { Ok(()) } else { Err(BindError::InUse { address, users }) }
}

fn list<T: fmt::Display>(items: &[T]) -> String {
    let texts: Vec<String> = items.iter().map(T::to_string).collect();
    texts.join("; ")
}
