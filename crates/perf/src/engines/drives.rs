//! What the drives are: format, size, names.

use nvmeof_core::block::{Direct, FileConfig, OpenFile};
use nvmeof_core::nvme_driver::{Controller, ControllerOptions};
use nvmeof_core::pci::{PciFunction, System};
use nvmeof_engines::{Source, Take, sector_size};
use nvmeof_report::engines::Drive;

use crate::scale::of_node;
use crate::target::DeviceSpec;

/// A drive of the command line.
#[derive(Debug, Clone)]
pub(super) struct Described {
    pub(super) spec: DeviceSpec,
    /// As the command line has it.
    pub(super) name: String,
    /// Bytes of a block; 0 if that is not known, and then opening it says why.
    pub(super) lba_bytes: u32,
    pub(super) bytes: u64,
    pub(super) model: String,
    pub(super) serial: String,
    pub(super) firmware: String,
    /// Namespace, of a drive under our own driver.
    pub(super) nsid: u32,
}

impl Described {
    /// What an engine opens.
    pub(super) fn source(&self) -> Source {
        match &self.spec {
            DeviceSpec::Pci { address, .. } => {
                Source::Drive { address: address.to_string(), nsid: self.nsid }
            }
            DeviceSpec::File(path) => Source::Path {
                path: path.clone(),
                block_size: if self.lba_bytes == 0 { 4096 } else { self.lba_bytes },
                direct: Direct::Required,
            },
            // Refused before.
            DeviceSpec::Null { .. } | DeviceSpec::Ram { .. } => Source::Path {
                path: self.name.clone().into(),
                block_size: 4096,
                direct: Direct::Required,
            },
        }
    }

    /// Whether our own driver reads it, and not the kernel.
    pub(super) fn is_ours(&self) -> bool {
        matches!(self.spec, DeviceSpec::Pci { .. })
    }

    pub(super) fn report(&self) -> Drive {
        Drive {
            name: self.name.clone(),
            model: self.model.clone(),
            serial: self.serial.clone(),
            firmware: self.firmware.clone(),
            bytes: self.bytes,
            lba_bytes: self.lba_bytes,
        }
    }
}

/// Looks at all of them. What cannot be looked at is not known, and said when it is opened.
pub(super) fn describe(specs: &[DeviceSpec], take: Take<'_>) -> Vec<Described> {
    let functions = System::this().nvme_functions().unwrap_or_default();
    specs.iter().map(|spec| one(spec, &functions, take)).collect()
}

fn one(spec: &DeviceSpec, functions: &[PciFunction], take: Take<'_>) -> Described {
    let mut described = Described {
        spec: spec.clone(),
        name: spec.to_string(),
        lba_bytes: 0,
        bytes: 0,
        model: String::new(),
        serial: String::new(),
        firmware: String::new(),
        nsid: 1,
    };
    match spec {
        DeviceSpec::Pci { address, nsid } => {
            // Why not is said when it is opened to be read.
            let _ = look_at_drive(&mut described, &address.to_string(), *nsid, take);
        }
        DeviceSpec::File(path) => {
            let text = path.display().to_string();
            let function = of_node(&System::this(), functions, &text);
            let controller = function.and_then(|function| function.controller.as_ref());
            if let Some(controller) = controller {
                described.model = controller.model.clone().unwrap_or_default();
                described.serial = controller.serial.clone().unwrap_or_default();
                described.firmware = controller.firmware.clone().unwrap_or_default();
            }
            if let Ok(block_size) = sector_size(path) {
                described.lba_bytes = block_size;
                let config =
                    FileConfig { read_only: true, ..FileConfig::new("drive", path, block_size) };
                described.bytes = OpenFile::open(&config).map_or(0, |file| file.size());
            }
        }
        DeviceSpec::Null { .. } | DeviceSpec::Ram { .. } => {}
    }
    described
}

/// Opens a drive under our own driver, asks what it is, and closes it.
fn look_at_drive(
    described: &mut Described,
    address: &str,
    nsid: Option<u32>,
    take: Take<'_>,
) -> Result<(), String> {
    let controller = open_drive(address, take)?;
    let identity = controller.identity();
    described.model.clone_from(&identity.model);
    described.serial.clone_from(&identity.serial);
    described.firmware.clone_from(&identity.firmware);
    let first = || controller.namespaces().ok().and_then(|all| all.first().copied());
    described.nsid = nsid.or_else(first).unwrap_or(1);
    let space = controller.namespace(described.nsid).map_err(|error| error.to_string())?;
    described.lba_bytes = space.block_size;
    described.bytes = space.size();
    Ok(())
}

/// Opens a drive under our own driver for what concerns the whole drive.
pub(super) fn open_drive(
    address: &str,
    take: Take<'_>,
) -> Result<std::sync::Arc<Controller>, String> {
    let function = take(address).map_err(|why| format!("{address}: {why}"))?;
    Controller::open(function, ControllerOptions::default()).map_err(|error| error.to_string())
}
