//! Moves drives between the kernel driver and the VFIO driver, so that one command measures every
//! engine.
//!
//! ```text
//!                       +-- rebind(Vfio) ----> vfio-pci: the VFIO driver, LBA formats
//!   original driver ----+                         |   ^
//!       ^               +-- rebind(Kernel) --> nvme: the kernel's engines
//!       '-- restore: at the end, interrupted or failed
//! ```
//!
//! The users of a drive are checked each time, as `nvmeof-tgt drives bind` does. A drive in use
//! keeps its driver.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;

use nvmeof_console::complain;
use nvmeof_core::pci::users::Usage;
use nvmeof_core::pci::{
    Address, BindError, BindPlan, NVME_DRIVER, PciFunction, Sysfs, SysfsWriter, System, VFIO_DRIVER,
};

use crate::patience::{Patience, Refusal};

/// Driver of a drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DriverKind {
    /// `vfio-pci`, for the VFIO driver.
    Vfio,
    /// The kernel's NVMe driver.
    Kernel,
}

/// Rebinds drives, and restores their drivers when it is dropped at the latest.
pub(super) struct DriveRebinder {
    system: System,
    writes: Box<dyn SysfsWriter>,
    /// Drives that may be rebound. Drives that share an IOMMU group are rebound together.
    allowed: Vec<Address>,
    /// Earlier drivers of the drives to rebind.
    original: BTreeMap<Address, DriverKind>,
    /// Drives that were rebound: only transient users open them.
    moved: BTreeSet<Address>,
}

impl fmt::Debug for DriveRebinder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DriveRebinder")
            .field("allowed", &self.allowed)
            .field("original", &self.original)
            .finish()
    }
}

impl DriveRebinder {
    /// Rebinds drives of this machine.
    pub(super) fn this() -> Self {
        Self::of(System::this(), Box::new(Sysfs))
    }

    /// Rebinds drives of a machine, with `writes` for its sysfs.
    pub(super) fn of(system: System, writes: Box<dyn SysfsWriter>) -> Self {
        Self {
            system,
            writes,
            allowed: Vec::new(),
            original: BTreeMap::new(),
            moved: BTreeSet::new(),
        }
    }

    /// The system whose drives it searches.
    pub(super) fn system(&self) -> &System {
        &self.system
    }

    /// Sets the drives that may be rebound.
    pub(super) fn allow(&mut self, allowed: Vec<Address>) {
        self.allowed = allowed;
    }

    /// Binds a drive to a driver.
    ///
    /// # Errors
    /// The reason and the remedy; the drive keeps its driver.
    pub(super) fn rebind(&mut self, address: Address, kind: DriverKind) -> Result<(), String> {
        let function = self.function(address)?;
        let now = DriverKind::of(&function).ok_or_else(|| {
            let driver = function.driver.as_deref().unwrap_or("no driver");
            format!(
                "{address} is not rebound: bound to {driver}, not to {NVME_DRIVER} or {VFIO_DRIVER}"
            )
        })?;
        if now == kind {
            return Ok(());
        }
        let spaces = function.controller.map_or(0, |controller| controller.namespaces.len());
        if spaces > 1 {
            return Err(format!(
                "{address} is not rebound: it has {spaces} namespaces, and which is which is not the same on both \
                 sides; measure it twice, with `nvmeof-tgt drives bind` between"
            ));
        }
        // Stored also before a failure: every partial change is undone at the end.
        self.original.entry(address).or_insert(now);
        self.move_to(address, kind, self.moved.contains(&address))?;
        self.moved.insert(address);
        Ok(())
    }

    /// The block device that the kernel created for a drive. It appears after a short delay.
    ///
    /// # Errors
    /// There is none, or more than one.
    pub(super) fn block_device(&self, address: Address) -> Result<PathBuf, String> {
        Patience::FOR_UDEV.retry(|| {
            let controller = self.function(address).map_err(Refusal::Final)?.controller;
            let spaces = controller.map(|controller| controller.namespaces).unwrap_or_default();
            match &spaces[..] {
                [one] if self.system.dev.join(&one.name).exists() => {
                    Ok(self.system.dev.join(&one.name))
                }
                [_, _, ..] => {
                    let count = spaces.len();
                    let why = format!("{address} has {count} namespaces: name the one to read");
                    Err(Refusal::Final(why))
                }
                _ => Err(Refusal::Transient(format!(
                    "{address}: the kernel driver is bound again, but created no block device; \
                     `dmesg` may show the reason"
                ))),
            }
        })
    }

    /// Restores the drivers of all drives; returns an error for each that keeps its driver.
    pub(super) fn restore(&mut self) -> Vec<String> {
        let original = std::mem::take(&mut self.original);
        let stays = original.into_iter().filter_map(|(address, kind)| {
            let why = self.move_to(address, kind, true).err()?;
            let (driver, command) = match kind {
                DriverKind::Vfio => (VFIO_DRIVER, "bind"),
                DriverKind::Kernel => (NVME_DRIVER, "unbind"),
            };
            Some(format!(
                "{address} was not rebound to {driver}: {why}; `nvmeof-tgt drives {command} {address}` does that"
            ))
        });
        stays.collect()
    }

    /// Rebinds a drive. With `patient`, waits for processes that briefly open a drive just rebound
    /// (udev does).
    fn move_to(&self, address: Address, kind: DriverKind, patient: bool) -> Result<(), String> {
        let patience = if patient { Patience::FOR_UDEV } else { Patience::NONE };
        patience.retry(|| self.try_to(address, kind))
    }

    fn try_to(&self, address: Address, kind: DriverKind) -> Result<(), Refusal> {
        let other = |why: &dyn fmt::Display| Refusal::Final(why.to_string());
        let usage = Usage::read(&self.system).map_err(|error| other(&error))?;
        let function = self.function(address).map_err(Refusal::Final)?;
        let plan = match kind {
            DriverKind::Vfio
                if usage.is_partial() && DriverKind::of(&function) != Some(DriverKind::Vfio) =>
            {
                return Err(Refusal::Final(format!(
                    "{address} may be in use: the open files of some programs are not visible; \
                     run the command as root, with the /proc of the machine"
                )));
            }
            DriverKind::Vfio => BindPlan::bind(&self.system, &usage, &function, &self.allowed),
            DriverKind::Kernel => BindPlan::unbind(&self.system, &usage, &function),
        };
        match plan.and_then(|plan| plan.run(&self.system, &*self.writes)) {
            Ok(()) => Ok(()),
            Err(error @ BindError::InUse { .. }) => Err(Refusal::Transient(error.to_string())),
            Err(error) => Err(other(&error)),
        }
    }

    fn function(&self, address: Address) -> Result<PciFunction, String> {
        self.system.function(address).ok_or_else(|| format!("{address} is missing"))
    }
}

impl Drop for DriveRebinder {
    fn drop(&mut self) {
        for problem in self.restore() {
            complain!("error: {problem}");
        }
    }
}

impl DriverKind {
    fn of(function: &PciFunction) -> Option<Self> {
        match function.driver.as_deref() {
            Some(VFIO_DRIVER) => Some(DriverKind::Vfio),
            Some(NVME_DRIVER) => Some(Self::Kernel),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use nvmeof_sysfs_fixture::{Machine, at, folder, host};

    use super::*;

    const ADDRESS: &str = "0000:01:00.0";

    /// A machine with a drive bound to the kernel driver.
    fn machine() -> (tempfile::TempDir, Machine, DriveRebinder) {
        let folder = tempfile::tempdir_in(folder()).unwrap();
        let mut machine = Machine::new(folder.path()).unwrap();
        machine.drive(&host(0), ADDRESS).unwrap();
        let rebinder = DriveRebinder::of(machine.system(), Box::new(machine.kernel()));
        (folder, machine, rebinder)
    }

    fn driver(machine: &Machine) -> Option<String> {
        machine.system().function(at(ADDRESS)).unwrap().driver
    }

    #[test]
    fn a_drive_changes_sides_and_is_given_back() {
        let (_folder, machine, mut rebinder) = machine();
        let path = rebinder.block_device(at(ADDRESS)).unwrap();
        assert_eq!(path, machine.system().dev.join("nvme0n1"));
        for _ in 0..2 {
            rebinder.rebind(at(ADDRESS), DriverKind::Vfio).unwrap();
            assert_eq!(driver(&machine).as_deref(), Some(VFIO_DRIVER));
            rebinder.rebind(at(ADDRESS), DriverKind::Kernel).unwrap();
            assert_eq!(driver(&machine).as_deref(), Some(NVME_DRIVER));
        }
        rebinder.rebind(at(ADDRESS), DriverKind::Vfio).unwrap();
        assert_eq!(rebinder.restore(), Vec::<String>::new());
        assert_eq!(driver(&machine).as_deref(), Some(NVME_DRIVER));
    }

    #[test]
    fn what_ends_early_gives_back_too() {
        let (_folder, machine, mut rebinder) = machine();
        rebinder.rebind(at(ADDRESS), DriverKind::Vfio).unwrap();
        // The first driver counts.
        let mut others = DriveRebinder::of(machine.system(), Box::new(machine.kernel()));
        others.rebind(at(ADDRESS), DriverKind::Kernel).unwrap();
        drop(others);
        assert_eq!(driver(&machine).as_deref(), Some(VFIO_DRIVER));
        drop(rebinder);
        assert_eq!(driver(&machine).as_deref(), Some(NVME_DRIVER));
    }

    #[test]
    fn a_drive_that_is_in_use_stays_where_it_is() {
        let (_folder, machine, mut rebinder) = machine();
        machine.mount(None, "30 1 259:0 / /data rw - ext4 /dev/nvme0n1 rw").unwrap();
        let why = rebinder.rebind(at(ADDRESS), DriverKind::Vfio).unwrap_err();
        assert!(why.contains("in use") && why.contains("/data"), "{why}");
        assert_eq!(rebinder.restore(), Vec::<String>::new());
        assert_eq!(driver(&machine).as_deref(), Some(NVME_DRIVER));
        let gone = rebinder.rebind(at("0000:09:00.0"), DriverKind::Vfio).unwrap_err();
        assert!(gone.contains("is missing"), "{gone}");
    }
}
