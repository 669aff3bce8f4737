//! NVMe functions and their attributes from the system.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::address::Address;
use super::link::Link;
use super::system::{PciError, System, link_name, names, text};
use super::topology::PciLocation;

/// Class code of an NVMe I/O controller: mass storage, non-volatile memory, NVM Express (PCI Code
/// and ID Assignment; NVMe over PCIe Transport 2.1.1).
pub(super) const NVME_CLASS: u32 = 0x01_08_02;
/// Bytes per sector in sysfs's `size`, independent of the drive's block size.
const SECTOR: u64 = 512;

/// A PCI function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PciFunction {
    /// PCI address.
    pub address: Address,
    /// Class code: class, subclass, programming interface.
    pub class: u32,
    /// Vendor and device ID.
    pub ids: (u16, u16),
    /// Location in the PCI topology.
    pub place: PciLocation,
    /// Physical slot of the function's bus, by the name the firmware gave it.
    pub slot: Option<String>,
    /// NUMA node of the root complex.
    pub numa_node: Option<u32>,
    /// IOMMU group; `None` without an IOMMU.
    pub iommu_group: Option<u32>,
    /// PCIe link.
    pub links: Links,
    /// Driver that the function is bound to.
    pub driver: Option<String>,
    /// The only driver that may bind it, if set.
    pub driver_override: Option<String>,
    /// Controller of the kernel's NVMe driver.
    pub controller: Option<KernelController>,
}

/// Link of a function: current and best.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Links {
    /// Link as currently trained.
    pub now: Option<Link>,
    /// Best link that function and port both support.
    pub best: Option<Link>,
}

/// A controller of the kernel's NVMe driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelController {
    /// Name: `nvme0`.
    pub name: String,
    /// Model number.
    pub model: Option<String>,
    /// Serial number.
    pub serial: Option<String>,
    /// Firmware revision.
    pub firmware: Option<String>,
    /// State: `live`, `resetting`, ...
    pub state: Option<String>,
    /// Namespaces, by the names of their block devices.
    pub namespaces: Vec<Namespace>,
}

/// A namespace as a block device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Namespace {
    /// Name of the block device: `nvme0n1`. For a multipath namespace, the usable device, not its
    /// path `nvme0c0n1`.
    pub name: String,
    /// Size in bytes.
    pub bytes: u64,
    /// Bytes per logical block.
    pub block_size: Option<u32>,
}

impl PciFunction {
    /// Returns true if the class code is that of an NVMe drive.
    #[must_use]
    pub fn is_nvme(&self) -> bool {
        self.class == NVME_CLASS
    }

    /// Returns true if both functions belong to one drive, for example a dual-port drive.
    ///
    /// Model and serial number must be equal. Without the kernel's driver on both it is unknown,
    /// and false.
    #[must_use]
    pub fn is_same_drive(&self, other: &Self) -> bool {
        let (Some(one), Some(other)) = (&self.controller, &other.controller) else { return false };
        one.serial.is_some() && one.serial == other.serial && one.model == other.model
    }

    /// Returns the bytes of all namespaces that the kernel sees.
    #[must_use]
    pub fn bytes(&self) -> Option<u64> {
        let controller = self.controller.as_ref()?;
        Some(controller.namespaces.iter().map(|namespace| namespace.bytes).sum())
    }
}

impl System {
    /// Returns all NVMe functions, by address.
    ///
    /// # Errors
    /// The list of PCI functions cannot be read. A machine without PCI has none.
    pub fn nvme_functions(&self) -> Result<Vec<PciFunction>, PciError> {
        let slots = self.slots();
        let mut functions: Vec<PciFunction> = names(&self.sys.join("bus/pci/devices"))?
            .iter()
            .filter_map(|name| name.parse().ok())
            .filter(|address| self.class(*address) == Some(NVME_CLASS))
            .filter_map(|address| self.read_function(address, &slots))
            .collect();
        functions.sort_by_key(|function| function.address);
        Ok(functions)
    }

    /// Returns the attributes of a function; `None` if there is none at this address.
    #[must_use]
    pub fn function(&self, address: Address) -> Option<PciFunction> {
        self.read_function(address, &self.slots())
    }

    /// Returns the functions of an IOMMU group except bridges, by address.
    ///
    /// # Errors
    /// The group cannot be read.
    pub fn group_functions(&self, group: u32) -> Result<Vec<PciFunction>, PciError> {
        let folder = self.sys.join("kernel/iommu_groups").join(group.to_string()).join("devices");
        let functions = names(&folder)?;
        let addresses = functions.iter().filter_map(|name| name.parse().ok());
        let functions = addresses.filter_map(|address| self.function(address));
        // Class 06 is that of bridges.
        Ok(functions.filter(|function| function.class >> 16 != 0x06).collect())
    }

    /// Returns the link of a port, which all functions below it share.
    pub(super) fn port_link(&self, port: Address) -> Option<Link> {
        link(&self.function_folder(port), "max")
    }

    fn read_function(&self, address: Address, slots: &Slots) -> Option<PciFunction> {
        let folder = self.function_folder(address);
        let place = PciLocation::from_path(&fs::canonicalize(&folder).ok()?)?;
        Some(PciFunction {
            address,
            class: self.class(address)?,
            ids: (id(&folder.join("vendor"))?, id(&folder.join("device"))?),
            slot: slots.get(&slot_address(&place)).cloned(),
            numa_node: text(&folder.join("numa_node")).and_then(|node| node.parse().ok()),
            iommu_group: link_name(&folder.join("iommu_group")).and_then(|n| n.parse().ok()),
            links: self.links(&place),
            driver: link_name(&folder.join("driver")),
            driver_override: text(&folder.join("driver_override")).filter(|name| name != "(null)"),
            controller: self.controller(&folder),
            place,
        })
    }

    fn class(&self, address: Address) -> Option<u32> {
        let text = text(&self.function_folder(address).join("class"))?;
        u32::from_str_radix(text.strip_prefix("0x")?, 16).ok()
    }

    fn links(&self, place: &PciLocation) -> Links {
        let folder = self.function_folder(place.function);
        let best = link(&folder, "max");
        let port = place.port().and_then(|port| self.port_link(port));
        let best = match (best, port) {
            (Some(best), Some(port)) => Some(best.common(port)),
            (best, _) => best,
        };
        Links { now: link(&folder, "current"), best }
    }

    fn controller(&self, function: &Path) -> Option<KernelController> {
        let name = names(&function.join("nvme")).ok()?.into_iter().next()?;
        let folder = function.join("nvme").join(&name);
        let entries = names(&folder).ok()?;
        let disks = entries.iter().filter_map(|entry| namespace_disk(entry));
        Some(KernelController {
            model: text(&folder.join("model")),
            serial: text(&folder.join("serial")),
            firmware: text(&folder.join("firmware_rev")),
            state: text(&folder.join("state")),
            namespaces: disks.map(|disk| self.namespace(disk)).collect(),
            name,
        })
    }

    fn namespace(&self, name: String) -> Namespace {
        let folder = self.block_folder(&name);
        let sectors: u64 = text(&folder.join("size")).and_then(|n| n.parse().ok()).unwrap_or(0);
        let block_size = text(&folder.join("queue/logical_block_size"));
        Namespace {
            name,
            bytes: sectors.saturating_mul(SECTOR),
            block_size: block_size.and_then(|size| size.parse().ok()),
        }
    }

    /// Returns the names of all slots.
    fn slots(&self) -> Slots {
        let folder = self.sys.join("bus/pci/slots");
        // Slot names are informational: without the folder there are none.
        let slots = names(&folder).unwrap_or_default().into_iter();
        slots.filter_map(|slot| Some((text(&folder.join(&slot).join("address"))?, slot))).collect()
    }
}

/// Names of slots by the bus and device behind them: `0000:61:00`.
type Slots = BTreeMap<String, String>;

fn slot_address(place: &PciLocation) -> String {
    let Address { domain, bus, device, .. } = place.function;
    format!("{domain:04x}:{bus:02x}:{device:02x}")
}

fn id(path: &Path) -> Option<u16> {
    u16::from_str_radix(text(path)?.strip_prefix("0x")?, 16).ok()
}

/// Reads a link; `which` is "current" or "max".
fn link(folder: &Path, which: &str) -> Option<Link> {
    let speed = text(&folder.join(format!("{which}_link_speed")))?;
    let width = text(&folder.join(format!("{which}_link_width")))?;
    Link::parse(&speed, &width)
}

/// Returns the disk of an entry in a controller's folder: `nvme0n1` for itself and for the path
/// `nvme0c3n1`. `None` for entries that are no namespace (`ng0n1`, `hwmon2`).
fn namespace_disk(entry: &str) -> Option<String> {
    let (instance, rest) = digits(entry.strip_prefix("nvme")?)?;
    let rest = match rest.strip_prefix('c') {
        Some(rest) => digits(rest)?.1,
        None => rest,
    };
    let (nsid, rest) = digits(rest.strip_prefix('n')?)?;
    rest.is_empty().then(|| format!("nvme{instance}n{nsid}"))
}

/// Splits a text after its leading digits, at least one.
fn digits(text: &str) -> Option<(&str, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    (end > 0).then(|| text.split_at(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disks_of_namespaces() {
        assert_eq!(namespace_disk("nvme0n1").as_deref(), Some("nvme0n1"));
        assert_eq!(namespace_disk("nvme12c3n45").as_deref(), Some("nvme12n45"));
        for other in ["ng0n1", "nvme0", "nvme0n1p1", "hwmon3", "nvmen1", "nvme0cn1", "nvme0c1n"] {
            assert_eq!(namespace_disk(other), None, "{other}");
        }
    }
}
