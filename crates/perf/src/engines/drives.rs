//! Properties of the drives: format, size, names.

use nvmeof_core::block::{Direct, FileConfig, OpenFile};
use nvmeof_core::nvme_driver::{Controller, ControllerOptions};
use nvmeof_core::pci::{Address, PciFunction, System};
use nvmeof_engines::{OpenFunction, ReadSource, sector_size};
use nvmeof_report::engines::DriveInfo;

use crate::scale::of_node;
use crate::target::DeviceSpec;

/// A drive named on the command line.
#[derive(Debug, Clone)]
pub(super) struct DescribedDrive {
    pub(super) spec: DeviceSpec,
    /// Its PCI function, if it is a whole NVMe drive or a namespace of one.
    pub(super) function: Option<Address>,
    /// Name as on the command line.
    pub(super) name: String,
    /// Bytes of a block; 0 if unknown. Opening the drive then reports the reason.
    pub(super) lba_bytes: u32,
    pub(super) bytes: u64,
    pub(super) model: String,
    pub(super) serial: String,
    pub(super) firmware: String,
    /// Namespace of a drive under the VFIO driver.
    pub(super) nsid: u32,
    /// Member of an MD array that is compared: the array has the drive open.
    pub(super) in_array: bool,
}

impl DescribedDrive {
    /// Source that an engine opens.
    pub(super) fn source(&self) -> ReadSource {
        match &self.spec {
            DeviceSpec::Pci { address, .. } => {
                ReadSource::Drive { address: address.to_string(), nsid: self.nsid }
            }
            DeviceSpec::File(path) => ReadSource::Path {
                path: path.clone(),
                block_size: if self.lba_bytes == 0 { 4096 } else { self.lba_bytes },
                direct: Direct::Required,
                shared: self.in_array,
            },
            // Rejected earlier.
            DeviceSpec::Null { .. } | DeviceSpec::Ram { .. } => ReadSource::Path {
                path: self.name.clone().into(),
                block_size: 4096,
                direct: Direct::Required,
                shared: false,
            },
        }
    }

    /// Returns true if the VFIO driver reads it, not the kernel.
    pub(super) fn is_ours(&self) -> bool {
        matches!(self.spec, DeviceSpec::Pci { .. })
    }

    /// Reads format and size through the current driver.
    ///
    /// A failure is reported when the drive is opened for reading.
    pub(super) fn look(&mut self, open_function: OpenFunction<'_>) {
        match &self.spec {
            DeviceSpec::Pci { address, nsid } => {
                let (address, nsid) = (address.to_string(), *nsid);
                let _ = look_at_drive(self, &address, nsid, open_function);
            }
            DeviceSpec::File(path) => {
                if let Ok(block_size) = sector_size(path) {
                    self.lba_bytes = block_size;
                    let config = FileConfig {
                        read_only: true,
                        shared: true,
                        ..FileConfig::new("drive", path, block_size)
                    };
                    self.bytes = OpenFile::open(&config).map_or(0, |file| file.size());
                }
            }
            DeviceSpec::Null { .. } | DeviceSpec::Ram { .. } => {}
        }
    }

    pub(super) fn report(&self) -> DriveInfo {
        DriveInfo {
            name: self.name.clone(),
            model: self.model.clone(),
            serial: self.serial.clone(),
            firmware: self.firmware.clone(),
            bytes: self.bytes,
            lba_bytes: self.lba_bytes,
        }
    }
}

/// Reads the properties of all drives.
///
/// Properties that cannot be read stay unknown; opening the drive reports the reason.
pub(super) fn describe(
    specs: &[DeviceSpec],
    system: &System,
    open_function: OpenFunction<'_>,
) -> Vec<DescribedDrive> {
    let functions = system.nvme_functions().unwrap_or_default();
    specs.iter().map(|spec| one(spec, system, &functions, open_function)).collect()
}

fn one(
    spec: &DeviceSpec,
    system: &System,
    functions: &[PciFunction],
    open_function: OpenFunction<'_>,
) -> DescribedDrive {
    let function = match spec {
        DeviceSpec::Pci { address, .. } => functions.iter().find(|f| f.address == *address),
        DeviceSpec::File(path) => of_node(system, functions, &path.display().to_string()),
        DeviceSpec::Null { .. } | DeviceSpec::Ram { .. } => None,
    };
    let mut described = DescribedDrive {
        spec: spec.clone(),
        function: function.map(|function| function.address),
        name: spec.to_string(),
        lba_bytes: 0,
        bytes: 0,
        model: String::new(),
        serial: String::new(),
        firmware: String::new(),
        nsid: 1,
        in_array: false,
    };
    if let Some(controller) = function.and_then(|function| function.controller.as_ref()) {
        described.model = controller.model.clone().unwrap_or_default();
        described.serial = controller.serial.clone().unwrap_or_default();
        described.firmware = controller.firmware.clone().unwrap_or_default();
    }
    described.look(open_function);
    described
}

/// Opens a drive under the VFIO driver, reads its properties and closes it.
fn look_at_drive(
    described: &mut DescribedDrive,
    address: &str,
    nsid: Option<u32>,
    open_function: OpenFunction<'_>,
) -> Result<(), String> {
    let controller = open_drive(address, open_function)?;
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

/// Opens a drive under the VFIO driver for operations on the whole drive.
pub(super) fn open_drive(
    address: &str,
    open_function: OpenFunction<'_>,
) -> Result<std::sync::Arc<Controller>, String> {
    let function = open_function(address).map_err(|why| format!("{address}: {why}"))?;
    Controller::open(function, ControllerOptions::default()).map_err(|error| error.to_string())
}
