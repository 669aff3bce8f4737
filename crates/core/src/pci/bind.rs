//! Handing a function to `vfio-pci`, and back to the kernel's own driver.
//!
//! ```text
//!   nvme --bind-->    driver_override = vfio-pci, unbind, drivers_probe --> vfio-pci
//!   nvme <--unbind--  driver_override = (none),   unbind, drivers_probe <-- vfio-pci
//! ```
//!
//! What is to be written is a [`Plan`]: it can be shown instead of done, and a plan that fails on the way is taken
//! back. Nothing of it outlives a restart of the machine.

use std::fmt;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use super::address::Address;
use super::function::PciFunction;
use super::system::{PciError, System, link_name};
use super::users::{Usage, User, claim};

/// The kernel's driver that gives functions to programs.
pub const VFIO_DRIVER: &str = "vfio-pci";
/// The kernel's own driver of NVMe drives.
pub const NVME_DRIVER: &str = "nvme";

/// What goes to a file of sysfs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// The file.
    pub file: PathBuf,
    /// The text; a line end alone clears a setting.
    pub text: String,
}

/// What brings a function to a driver; no step if it is there already.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The function.
    pub function: PciFunction,
    /// The driver that has it afterwards.
    pub driver: &'static str,
    /// In order.
    pub steps: Vec<Step>,
}

/// Whoever writes steps: the system, or a test.
pub trait Writes {
    /// Writes a text to a file of sysfs, at once.
    ///
    /// # Errors
    /// The kernel's.
    fn write(&self, file: &Path, text: &str) -> io::Result<()>;
}

/// Writes to this machine's sysfs.
#[derive(Debug, Clone, Copy)]
pub struct Sysfs;

/// A function cannot be handed over. Each says what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Not what this is for.
    #[error("{address} is no NVMe drive (class {class:06x}): only drives are handed over")]
    NotNvme {
        /// The function.
        address: Address,
        /// Its class.
        class: u32,
    },
    /// A driver that it is not taken from.
    #[error(
        "{address} is bound to {driver}, and is left alone: only drives of {NVME_DRIVER}, {VFIO_DRIVER} or no driver \
         are handed over"
    )]
    OtherDriver {
        /// The function.
        address: Address,
        /// Its driver.
        driver: String,
    },
    /// Somebody has it.
    #[error("{address} is in use, and is left alone: {}", list(users))]
    InUse {
        /// The function.
        address: Address,
        /// Who.
        users: Vec<User>,
    },
    /// The machine does not translate the addresses of its devices.
    #[error(
        "{address} has no IOMMU group: the IOMMU is off; switch it on in the firmware and boot with \
         intel_iommu=on or amd_iommu=on"
    )]
    NoIommu {
        /// The function.
        address: Address,
    },
    /// The IOMMU cannot tell it from others that the kernel keeps.
    #[error(
        "{address} shares IOMMU group {group} with {}: a group is handed over as a whole, so these must be bound \
         to vfio-pci, or have no driver, too",
        list(others)
    )]
    Group {
        /// The function.
        address: Address,
        /// Its group.
        group: u32,
        /// What else is in it, with its driver.
        others: Vec<Companion>,
    },
    /// The driver's module is not loaded.
    #[error("the kernel's driver {driver} is not here: modprobe {driver}")]
    NoDriver {
        /// Which.
        driver: &'static str,
    },
    /// The system did not take a step. What had been done is taken back.
    #[error("{address}: cannot write {:?} to {}: {source}", text.trim(), file.display())]
    Write {
        /// The function.
        address: Address,
        /// The file.
        file: PathBuf,
        /// The text.
        text: String,
        /// Why.
        source: io::Error,
    },
    /// All was written, and another driver has it, or none. What had been done is taken back.
    #[error(
        "{address}: {driver} did not take it, {} has it; `dmesg` may tell why",
        now.as_deref().unwrap_or("no driver")
    )]
    NotTaken {
        /// The function.
        address: Address,
        /// The driver that was to have it.
        driver: &'static str,
        /// The driver that has it.
        now: Option<String>,
    },
    /// The system does not tell.
    #[error(transparent)]
    System(#[from] PciError),
}

/// A function in the same IOMMU group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Companion {
    /// Its address.
    pub address: Address,
    /// Its driver.
    pub driver: String,
}

impl BindError {
    /// Whether it may be over in a moment: a program looks at the drive, as udev does at every new one, or the
    /// kernel's driver took it while we looked.
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

impl Plan {
    /// What hands a drive to [`VFIO_DRIVER`]. `along` are functions that are handed over in the same go.
    ///
    /// # Errors
    /// It is no drive, it is in use, it has no IOMMU group or shares it, the driver is not loaded. Nothing has been
    /// changed then.
    pub fn bind(
        system: &System,
        usage: &Usage,
        function: &PciFunction,
        along: &[Address],
    ) -> Result<Self, BindError> {
        check(usage, function, VFIO_DRIVER)?;
        let address = function.address;
        let group = function.iommu_group.ok_or(BindError::NoIommu { address })?;
        let others: Vec<Companion> = system
            .group_functions(group)?
            .into_iter()
            .filter(|other| other.address != address && !along.contains(&other.address))
            .filter_map(|other| Some(Companion { address: other.address, driver: other.driver? }))
            .filter(|other| !matches!(other.driver.as_str(), VFIO_DRIVER | "pci-stub" | "pcieport"))
            .collect();
        if !others.is_empty() {
            return Err(BindError::Group { address, group, others });
        }
        Self::to(system, function, VFIO_DRIVER, "vfio-pci\n")
    }

    /// What gives a drive back to [`NVME_DRIVER`].
    ///
    /// # Errors
    /// As [`Self::bind`], without the IOMMU.
    pub fn unbind(
        system: &System,
        usage: &Usage,
        function: &PciFunction,
    ) -> Result<Self, BindError> {
        check(usage, function, NVME_DRIVER)?;
        Self::to(system, function, NVME_DRIVER, "\n")
    }

    /// Does it, and sees that it worked. The kernel's block devices are claimed meanwhile.
    ///
    /// # Errors
    /// Somebody began to use it, the system refused a step, or another driver has it afterwards. Then the function
    /// is offered to the drivers it would have without us.
    pub fn run(&self, system: &System, writes: &dyn Writes) -> Result<(), BindError> {
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
        let steps = steps.into_iter().map(|(file, text)| Step { file, text });
        Ok(Self { steps: steps.collect(), ..plan })
    }

    fn write_all(&self, system: &System, writes: &dyn Writes) -> Result<(), BindError> {
        let address = self.function.address;
        for Step { file, text } in &self.steps {
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

    /// Leaves the function to whichever driver matches it, as far as the system lets us.
    fn take_back(&self, system: &System, writes: &dyn Writes) {
        let address = self.function.address;
        let folder = system.function_folder(address);
        let write = |file: &Path, text: &str| {
            if let Err(error) = writes.write(file, text) {
                tracing::error!(%address, file = %file.display(), %error, "cannot be taken back");
            }
        };
        write(&folder.join("driver_override"), "\n");
        if link_name(&folder.join("driver")).is_none() {
            write(&system.sys.join("bus/pci/drivers_probe"), &address.to_string());
        }
    }
}

impl Writes for Sysfs {
    fn write(&self, file: &Path, text: &str) -> io::Result<()> {
        // One write call: the kernel takes each as a whole.
        fs::OpenOptions::new().write(true).open(file)?.write_all(text.as_bytes())
    }
}

impl fmt::Display for Step {
    /// As a shell would do it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "echo {} > {}", self.text.trim(), self.file.display())
    }
}

impl fmt::Display for Companion {
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
        // It is not taken from anybody.
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
