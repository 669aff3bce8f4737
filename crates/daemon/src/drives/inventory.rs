//! All drives of the machine.

use nvmeof_core::nvme_driver::{Controller, ControllerOptions};
use nvmeof_core::pci::users::{Usage, User};
use nvmeof_core::pci::{Address, PciFunction, VFIO_DRIVER};

use super::Host;

/// A drive.
#[derive(Debug)]
pub(super) struct Drive {
    /// Properties that the system reports.
    pub(super) function: PciFunction,
    /// Users of the drive.
    pub(super) users: Vec<User>,
    /// Properties that the drive reports.
    pub(super) says: IdentifyResult,
}

/// Properties that a drive reports about itself.
#[derive(Debug)]
pub(super) enum IdentifyResult {
    /// Reported by the drive, through the kernel or to the VFIO driver.
    This(DriveIdentity),
    /// Not available, for this reason.
    Nothing(String),
}

/// Identity and namespaces of a drive.
#[derive(Debug, Default)]
pub(super) struct DriveIdentity {
    pub(super) model: Option<String>,
    pub(super) serial: Option<String>,
    pub(super) firmware: Option<String>,
    pub(super) namespaces: Vec<DriveNamespace>,
}

/// A namespace.
#[derive(Debug)]
pub(super) struct DriveNamespace {
    /// Namespace ID; the kernel does not report it.
    pub(super) nsid: Option<u32>,
    /// Block device of the kernel.
    pub(super) device: Option<String>,
    pub(super) bytes: u64,
    pub(super) block_size: Option<u32>,
}

/// All drives, by address.
#[derive(Debug)]
pub(super) struct DriveInventory {
    pub(super) drives: Vec<Drive>,
    pub(super) usage: Usage,
}

impl DriveInventory {
    /// Reads the system. With `ask`, it also opens and queries unused drives on `vfio-pci`.
    pub(super) fn read(host: &Host, ask: bool) -> anyhow::Result<Self> {
        let usage = Usage::read(&host.system)?;
        let drives = host.system.nvme_functions()?.into_iter().map(|function| {
            let users = usage.of(&function);
            let says = says(host, &function, &users, ask);
            Drive { function, users, says }
        });
        Ok(Self { drives: drives.collect(), usage })
    }

    /// Finds the one drive that a command-line argument names by address or serial number.
    pub(super) fn find(&self, host: &Host, name: &str) -> Result<PciFunction, String> {
        if let Ok(address) = name.parse::<Address>() {
            return host.system.function(address).ok_or_else(|| {
                format!(
                    "there is no PCI function {address}; `nvmeof-tgt drives list` shows all drives"
                )
            });
        }
        let named: Vec<&Drive> = self.drives.iter().filter(|d| d.serial() == Some(name)).collect();
        match named[..] {
            [one] => Ok(one.function.clone()),
            [] => Err(self.nobody(name)),
            _ => {
                let all: Vec<String> =
                    named.iter().map(|drive| drive.function.address.to_string()).collect();
                Err(format!("{name} is the serial number of {}: name one address", all.join(", ")))
            }
        }
    }

    /// Formats the error that no drive has this serial number, and lists drives that were not
    /// queried.
    pub(super) fn nobody(&self, serial: &str) -> String {
        let mut text = format!("no drive has the serial number {serial}");
        for drive in &self.drives {
            if let IdentifyResult::Nothing(why) = &drive.says {
                text += &format!("; {} was not asked: {why}", drive.function.address);
            }
        }
        text
    }
}

impl Drive {
    pub(super) fn about(&self) -> Option<&DriveIdentity> {
        match &self.says {
            IdentifyResult::This(about) => Some(about),
            IdentifyResult::Nothing(_) => None,
        }
    }

    pub(super) fn serial(&self) -> Option<&str> {
        self.about()?.serial.as_deref()
    }

    /// Returns the bytes of all namespaces.
    pub(super) fn bytes(&self) -> Option<u64> {
        let about = self.about()?;
        Some(about.namespaces.iter().map(|space| space.bytes).sum())
    }
}

fn says(host: &Host, function: &PciFunction, users: &[User], ask: bool) -> IdentifyResult {
    if let Some(controller) = &function.controller {
        let spaces = controller.namespaces.iter().map(|namespace| DriveNamespace {
            nsid: None,
            device: Some(namespace.name.clone()),
            bytes: namespace.bytes,
            block_size: namespace.block_size,
        });
        return IdentifyResult::This(DriveIdentity {
            model: controller.model.clone(),
            serial: controller.serial.clone(),
            firmware: controller.firmware.clone(),
            namespaces: spaces.collect(),
        });
    }
    let Some(driver) = function.driver.as_deref() else {
        return IdentifyResult::Nothing("no driver is bound".to_owned());
    };
    if let Some(User::Process { pid, command, .. }) = users.first() {
        return IdentifyResult::Nothing(format!(
            "bound to {driver}, in use by pid {pid} ({command})"
        ));
    }
    if driver != VFIO_DRIVER || !ask {
        return IdentifyResult::Nothing(format!("bound to {driver}"));
    }
    match about(host, function) {
        Ok(about) => IdentifyResult::This(about),
        Err(why) => IdentifyResult::Nothing(format!("bound to {driver}: {why}")),
    }
}

/// Queries an unused drive, which resets it.
fn about(host: &Host, function: &PciFunction) -> Result<DriveIdentity, String> {
    let function = (host.open)(&function.address.to_string())?;
    let controller = Controller::open(function, ControllerOptions::default())
        .map_err(|error| error.to_string())?;
    let nsids = controller.namespaces().map_err(|error| error.to_string())?;
    // A namespace that cannot be served has no usable size.
    let spaces = nsids.iter().filter_map(|nsid| controller.namespace(*nsid).ok());
    let namespaces = spaces.map(|space| DriveNamespace {
        nsid: Some(space.nsid),
        device: None,
        bytes: space.size(),
        block_size: Some(space.block_size),
    });
    let identity = controller.identity();
    Ok(DriveIdentity {
        model: Some(identity.model.clone()),
        serial: Some(identity.serial.clone()),
        firmware: Some(identity.firmware.clone()),
        namespaces: namespaces.collect(),
    })
}
