//! All drives of the machine.

use nvmeof_core::nvme_driver::{Controller, ControllerOptions};
use nvmeof_core::pci::users::{Usage, User};
use nvmeof_core::pci::{Address, PciFunction, VFIO_DRIVER};

use super::Host;

/// A drive.
#[derive(Debug)]
pub(super) struct Drive {
    /// What the system knows of it.
    pub(super) function: PciFunction,
    /// Who uses it.
    pub(super) users: Vec<User>,
    /// What it says of itself.
    pub(super) says: Says,
}

/// What a drive says of itself.
#[derive(Debug)]
pub(super) enum Says {
    /// It has said so, to the kernel or to us.
    This(About),
    /// Why it could not be asked.
    Nothing(String),
}

/// Which drive it is.
#[derive(Debug, Default)]
pub(super) struct About {
    pub(super) model: Option<String>,
    pub(super) serial: Option<String>,
    pub(super) firmware: Option<String>,
    pub(super) namespaces: Vec<Space>,
}

/// A namespace.
#[derive(Debug)]
pub(super) struct Space {
    /// Its identifier; the kernel does not tell.
    pub(super) nsid: Option<u32>,
    /// The kernel's block device.
    pub(super) device: Option<String>,
    pub(super) bytes: u64,
    pub(super) block_size: Option<u32>,
}

/// All drives, by address.
#[derive(Debug)]
pub(super) struct Census {
    pub(super) drives: Vec<Drive>,
    pub(super) usage: Usage,
}

impl Census {
    /// Reads what the system knows. With `ask`, drives that are bound for us and free are opened and asked.
    pub(super) fn read(host: &Host, ask: bool) -> anyhow::Result<Self> {
        let usage = Usage::read(&host.system)?;
        let drives = host.system.nvme_functions()?.into_iter().map(|function| {
            let users = usage.of(&function);
            let says = says(host, &function, &users, ask);
            Drive { function, users, says }
        });
        Ok(Self { drives: drives.collect(), usage })
    }

    /// The one drive that a word of the command line names: an address, or a serial number.
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

    /// That no drive has this serial number, and which could not be asked.
    pub(super) fn nobody(&self, serial: &str) -> String {
        let mut text = format!("no drive says that its serial number is {serial}");
        for drive in &self.drives {
            if let Says::Nothing(why) = &drive.says {
                text += &format!("; {} was not asked: {why}", drive.function.address);
            }
        }
        text
    }
}

impl Drive {
    pub(super) fn about(&self) -> Option<&About> {
        match &self.says {
            Says::This(about) => Some(about),
            Says::Nothing(_) => None,
        }
    }

    pub(super) fn serial(&self) -> Option<&str> {
        self.about()?.serial.as_deref()
    }

    /// Bytes of all its namespaces.
    pub(super) fn bytes(&self) -> Option<u64> {
        let about = self.about()?;
        Some(about.namespaces.iter().map(|space| space.bytes).sum())
    }
}

fn says(host: &Host, function: &PciFunction, users: &[User], ask: bool) -> Says {
    if let Some(controller) = &function.controller {
        let spaces = controller.namespaces.iter().map(|namespace| Space {
            nsid: None,
            device: Some(namespace.name.clone()),
            bytes: namespace.bytes,
            block_size: namespace.block_size,
        });
        return Says::This(About {
            model: controller.model.clone(),
            serial: controller.serial.clone(),
            firmware: controller.firmware.clone(),
            namespaces: spaces.collect(),
        });
    }
    let Some(driver) = function.driver.as_deref() else {
        return Says::Nothing("it has no driver".to_owned());
    };
    if let Some(User::Process { pid, command, .. }) = users.first() {
        return Says::Nothing(format!("bound to {driver}, in use by pid {pid} ({command})"));
    }
    if driver != VFIO_DRIVER || !ask {
        return Says::Nothing(format!("bound to {driver}"));
    }
    match about(host, function) {
        Ok(about) => Says::This(about),
        Err(why) => Says::Nothing(format!("bound to {driver}: {why}")),
    }
}

/// Asks a drive that is free. That resets it.
fn about(host: &Host, function: &PciFunction) -> Result<About, String> {
    let function = (host.open)(&function.address.to_string())?;
    let controller = Controller::open(function, ControllerOptions::default())
        .map_err(|error| error.to_string())?;
    let nsids = controller.namespaces().map_err(|error| error.to_string())?;
    // One that cannot be served has no size that counts.
    let spaces = nsids.iter().filter_map(|nsid| controller.namespace(*nsid).ok());
    let namespaces = spaces.map(|space| Space {
        nsid: Some(space.nsid),
        device: None,
        bytes: space.size(),
        block_size: Some(space.block_size),
    });
    let identity = controller.identity();
    Ok(About {
        model: Some(identity.model.clone()),
        serial: Some(identity.serial.clone()),
        firmware: Some(identity.firmware.clone()),
        namespaces: namespaces.collect(),
    })
}
