//! State of a function and its IOMMU group in sysfs, read before any open.

#[cfg(test)]
pub(super) mod fixture;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::error::{GroupBlocker, VfioError, failed};

/// Class code: mass storage, non-volatile memory, NVM Express (PCI Code and ID Assignment 1.11,
/// section 1.2).
const NVME_CLASS: u32 = 0x01_08_02;
/// Driver that assigns functions to processes.
const DRIVER: &str = "vfio-pci";
/// Drivers that leave a function's memory accesses alone, so the rest of its group can be assigned.
const HARMLESS: &[&str] = &[DRIVER, "pci-stub", "pcieport"];

/// Root folders of the system's files: the real ones, or a fixture's.
#[derive(Debug, Clone)]
pub(super) struct SysfsRoots {
    sys: PathBuf,
    dev: PathBuf,
}

/// A function that can be opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct VfioCandidate {
    pub(super) address: String,
    pub(super) group: u32,
}

impl SysfsRoots {
    /// Returns the folders of this machine.
    pub(super) fn system() -> Self {
        Self { sys: PathBuf::from("/sys"), dev: PathBuf::from("/dev/vfio") }
    }

    /// Returns the file of containers.
    pub(super) fn container_file(&self) -> PathBuf {
        self.dev.join("vfio")
    }

    /// Returns the file of a group.
    pub(super) fn group_file(&self, group: u32) -> PathBuf {
        self.dev.join(group.to_string())
    }

    /// Checks that a function is an NVMe controller behind an IOMMU, bound to `vfio-pci`.
    pub(super) fn place(&self, address: &str) -> Result<VfioCandidate, VfioError> {
        if !is_address(address) {
            return Err(VfioError::Address(address.to_owned()));
        }
        let folder = self.sys.join("bus/pci/devices").join(address);
        if !folder.is_dir() {
            return Err(VfioError::NoFunction(address.to_owned()));
        }
        let class = class_of(&folder).map_err(failed(address, "reading the class"))?;
        if class != NVME_CLASS {
            return Err(VfioError::NotNvme { address: address.to_owned(), class });
        }
        let Some(group) = name_behind(&folder.join("iommu_group")).and_then(|n| n.parse().ok())
        else {
            return Err(VfioError::NoIommu(address.to_owned()));
        };
        let driver = name_behind(&folder.join("driver"));
        if driver.as_deref() != Some(DRIVER) {
            return Err(VfioError::NotBound { address: address.to_owned(), driver });
        }
        Ok(VfioCandidate { address: address.to_owned(), group })
    }

    /// Returns the functions of a group with other kernel drivers.
    pub(super) fn obstacles(&self, group: u32) -> Vec<GroupBlocker> {
        let folder = self.sys.join("kernel/iommu_groups").join(group.to_string()).join("devices");
        let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
        let mut found: Vec<GroupBlocker> = entries
            .filter_map(|entry| {
                let entry = entry.ok()?;
                let driver = name_behind(&entry.path().join("driver"))?;
                let address = entry.file_name().into_string().ok()?;
                let harmless = HARMLESS.contains(&driver.as_str());
                (!harmless).then_some(GroupBlocker { address, driver })
            })
            .collect();
        found.sort_by(|one, other| one.address.cmp(&other.address));
        found
    }
}

/// Checks for domain, bus, device and function in hexadecimal: `0000:01:00.0`. A domain may have
/// more than four digits.
fn is_address(text: &str) -> bool {
    let hex = |part: &str, digits: std::ops::RangeInclusive<usize>| {
        digits.contains(&part.len()) && part.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
    };
    let mut parts = text.split(':');
    let (Some(domain), Some(bus), Some(rest), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return false;
    };
    let Some((device, function)) = rest.split_once('.') else { return false };
    hex(domain, 4..=8)
        && hex(bus, 2..=2)
        && hex(device, 2..=2)
        && matches!(function.as_bytes(), [b'0'..=b'7'])
}

fn class_of(folder: &Path) -> io::Result<u32> {
    let text = fs::read_to_string(folder.join("class"))?;
    let digits = text.trim().trim_start_matches("0x");
    u32::from_str_radix(digits, 16)
        .map_err(|_| io::Error::other(format!("the file contains `{digits}`")))
}

/// Returns the last component of a link's target; `None` without a link.
fn name_behind(link: &Path) -> Option<String> {
    fs::read_link(link).ok()?.file_name()?.to_str().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::fixture::Fixture;
    use super::*;

    #[test]
    fn addresses_are_told_from_what_only_looks_like_one() {
        for good in ["0000:01:00.0", "0000:ff:1f.7", "10000:e1:00.0"] {
            assert!(is_address(good), "{good}");
        }
        let bad = [
            "",
            "01:00.0",
            "0000:01:00",
            "0000:01:00.8",
            "0000:01:00.0/..",
            "../0000:01:00.0",
            "0000:1:00.0",
            "0000:01:00.00",
            "0000:01:00.0:1",
            "0000:01:0g.0",
        ];
        for bad in bad {
            assert!(!is_address(bad), "{bad}");
        }
    }

    #[test]
    fn a_drive_with_vfio_has_a_place() {
        let fixture = Fixture::new();
        fixture.add("0000:01:00.0", "0x010802", Some("vfio-pci"), Some(12));
        let place = fixture.host().place("0000:01:00.0").expect("a place");
        assert_eq!(place, VfioCandidate { address: "0000:01:00.0".to_owned(), group: 12 });
    }

    #[test]
    fn what_is_in_the_way_is_named() {
        let fixture = Fixture::new();
        fixture.add("0000:00:02.0", "0x030000", Some("vfio-pci"), Some(1));
        fixture.add("0000:02:00.0", "0x010802", Some("nvme"), Some(2));
        fixture.add("0000:03:00.0", "0x010802", None, Some(3));
        fixture.add("0000:04:00.0", "0x010802", Some("vfio-pci"), None);
        let host = fixture.host();
        let why = |address: &str| host.place(address).expect_err("a reason");
        assert!(matches!(why("nvme0"), VfioError::Address(_)));
        assert!(matches!(why("0000:09:00.0"), VfioError::NoFunction(_)));
        assert!(matches!(why("0000:00:02.0"), VfioError::NotNvme { class: 0x03_00_00, .. }));
        let VfioError::NotBound { driver, .. } = why("0000:02:00.0") else { panic!("not bound") };
        assert_eq!(driver.as_deref(), Some("nvme"));
        assert!(matches!(why("0000:03:00.0"), VfioError::NotBound { driver: None, .. }));
        assert!(matches!(why("0000:04:00.0"), VfioError::NoIommu(_)));
    }

    #[test]
    fn a_class_that_is_no_number_is_an_error() {
        let fixture = Fixture::new();
        fixture.add("0000:01:00.0", "storage", Some("vfio-pci"), Some(1));
        let error = fixture.host().place("0000:01:00.0").expect_err("no class");
        assert!(error.to_string().contains("storage"), "{error}");
    }

    #[test]
    fn a_group_tells_who_drives_its_functions() {
        let fixture = Fixture::new();
        fixture.add("0000:01:00.0", "0x010802", Some("vfio-pci"), Some(5));
        fixture.add("0000:00:01.0", "0x060400", Some("pcieport"), Some(5));
        fixture.add("0000:01:00.2", "0x010601", Some("ahci"), Some(5));
        fixture.add("0000:01:00.1", "0x010802", Some("nvme"), Some(5));
        fixture.add("0000:01:00.3", "0x010802", None, Some(5));
        fixture.add("0000:02:00.0", "0x010802", Some("nvme"), Some(6));
        let found = fixture.host().obstacles(5);
        let names: Vec<String> = found.iter().map(GroupBlocker::to_string).collect();
        assert_eq!(names, ["0000:01:00.1 (nvme)", "0000:01:00.2 (ahci)"]);
        assert!(fixture.host().obstacles(99).is_empty());
    }
}
