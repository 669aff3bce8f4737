//! Which drive a block device of the kernel's is on.

use std::path::PathBuf;

use super::system::{System, text};

/// What sysfs tells of the drive that a block device is on; what it does not tell is not there.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Disk {
    /// Model.
    pub model: Option<String>,
    /// Serial number.
    pub serial: Option<String>,
    /// Firmware revision.
    pub firmware: Option<String>,
    /// Whether the kernel refuses writes to the block device.
    pub read_only: bool,
}

impl System {
    /// The drive of a block device, which may be a partition, by its name below `/dev` (`nvme0n1`, `sda1`).
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
        // A drive describes itself, or the device (controller, SCSI unit) that its folder is in or links to.
        let mut places = vec![disk.clone(), disk.join("device")];
        places.extend(disk.parent().map(PathBuf::from));
        let first = |names: &[&str]| {
            let files = places.iter().flat_map(|place| names.iter().map(|name| place.join(name)));
            files.into_iter().find_map(|file| text(&file))
        };
        Disk {
            model: first(&["model"]),
            serial: first(&["serial"]),
            firmware: first(&["firmware_rev", "rev"]),
            read_only,
        }
    }
}
