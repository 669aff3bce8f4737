//! Drives of the kernel's block devices.

use std::path::PathBuf;

use super::system::{System, text};

/// Description of a block device's drive from sysfs; attributes missing there are `None`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Disk {
    /// Model.
    pub model: Option<String>,
    /// Serial number.
    pub serial: Option<String>,
    /// Firmware revision.
    pub firmware: Option<String>,
    /// True if the kernel refuses writes to the block device.
    pub read_only: bool,
}

impl System {
    /// Returns the drive of a block device, or of a partition, by its name below `/dev` (`nvme0n1`,
    /// `sda1`).
    #[must_use]
    pub fn disk(&self, name: &str) -> Disk {
        let Ok(folder) = std::fs::canonicalize(self.block_folder(name)) else {
            return Disk::default();
        };
        let read_only = text(&folder.join("ro")).as_deref() == Some("1");
        let is_partition = folder.join("partition").exists();
        let disk = if is_partition {
            folder.parent().map_or(folder.clone(), PathBuf::from)
        } else {
            folder
        };
        // The attributes are in the folder of the drive, of its parent, or of the linked device
        // (controller, SCSI unit).
        let mut places = vec![disk.clone(), disk.join("device")];
        places.extend(disk.parent().map(PathBuf::from));
        let first = |names: &[&str]| {
            let files = places.iter().flat_map(|place| names.iter().map(|name| place.join(name)));
            files.into_iter().find_map(|file| text(&file))
        };
        Disk {
            model: first(&["model"]),
            serial: first(&["serial"]).or_else(|| scsi_serial(&disk.join("device/vpd_pg80"))),
            firmware: first(&["firmware_rev", "rev"]),
            read_only,
        }
    }
}

/// Returns the serial number in a SCSI drive's page of vital product data (SPC, page 80h): text
/// after a header of four bytes. SATA drives have it, too.
fn scsi_serial(page: &std::path::Path) -> Option<String> {
    let bytes = std::fs::read(page).ok()?;
    let text = String::from_utf8_lossy(bytes.get(4..)?).trim_matches(['\0', ' ']).to_owned();
    (!text.is_empty()).then_some(text)
}
