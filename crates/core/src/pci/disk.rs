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

    /// Returns an attribute of a block device in sysfs (`ro`, `md/level`); `None` if it is missing
    /// or empty.
    #[must_use]
    pub fn block_attribute(&self, name: &str, attribute: &str) -> Option<String> {
        text(&self.block_folder(name).join(attribute))
    }
}

/// Returns the serial number in a SCSI drive's page of vital product data (SPC, page 80h): text
/// after a header of four bytes. SATA drives have it, too.
fn scsi_serial(page: &std::path::Path) -> Option<String> {
    let bytes = std::fs::read(page).ok()?;
    let text = String::from_utf8_lossy(bytes.get(4..)?).trim_matches(['\0', ' ']).to_owned();
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The page of a drive: its number and length, then the text, padded by spaces or zeroes.
    #[test]
    fn the_serial_number_of_a_scsi_drive_is_in_its_page_of_vital_product_data() {
        let folder = tempfile::tempdir().unwrap();
        let (system, disk) = (System::below(folder.path()), "sys/class/block/sda");
        let device = folder.path().join(disk).join("device");
        std::fs::create_dir_all(&device).unwrap();
        let serial_of = |page: &[u8]| {
            std::fs::write(device.join("vpd_pg80"), page).unwrap();
            system.disk("sda").serial
        };
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(system.disk("sda").serial, None);
        assert_eq!(serial_of(b"\x00\x80\x00\x0c  SN 0001   "), text("SN 0001"));
        assert_eq!(serial_of(b"\x00\x80\x00\x08SN0002\0\0"), text("SN0002"));
        for short in [&b""[..], b"\x00\x80\x00", b"\x00\x80\x00\x00", b"\x00\x80\x00\x02  "] {
            assert_eq!(serial_of(short), None, "{short:?}");
        }
        // The attribute comes first.
        std::fs::write(device.join("serial"), "SN0003\n").unwrap();
        assert_eq!(serial_of(b"\x00\x80\x00\x06SN0002"), text("SN0003"));
        assert_eq!(system.block_attribute("sda", "device/serial"), text("SN0003"));
        assert_eq!(system.block_attribute("sda", "ro"), None);
    }
}
