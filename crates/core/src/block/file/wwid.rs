//! The identity that a block device of the kernel's has by itself, out of sysfs.
//!
//! ```text
//!   drive      /sys/block/X/wwid (NVMe), device/wwid (SCSI), dm/uuid, md/uuid, serial (virtio)
//!   partition  that of its drive, its number, and where it starts
//! ```

use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use super::open::block_folder;

/// The identity of an open block device; `None` if the kernel has none for it, as for a loop
/// device.
pub(super) fn of_block_device(file: &OwnedFd) -> Option<String> {
    of_folder(&fs::canonicalize(block_folder(file)?).ok()?)
}

/// The identity of the block device with this folder in sysfs.
fn of_folder(folder: &Path) -> Option<String> {
    let Some(number) = text(&folder.join("partition")) else { return of_drive(folder) };
    // A partition that was made anew somewhere else is another disk; one that grew is the same.
    let start = text(&folder.join("start"))?;
    Some(format!("{}-part{number}-start{start}", of_drive(folder.parent()?)?))
}

fn of_drive(folder: &Path) -> Option<String> {
    const PLACES: [(&str, &str); 5] = [
        ("wwid", ""),
        ("device/wwid", ""),
        ("dm/uuid", "dm."),
        ("md/uuid", "md."),
        ("serial", "serial."),
    ];
    let found = |(place, prefix): (&str, &str)| {
        let text = text(&folder.join(PathBuf::from(place)))?;
        Some(format!("{prefix}{text}"))
    };
    PLACES.into_iter().find_map(found)
}

/// What a file of sysfs says, in one line without runs of blanks; `None` if nothing.
fn text(path: &Path) -> Option<String> {
    let bytes = fs::read(path).ok()?;
    let text = String::from_utf8_lossy(&bytes).replace('\0', " ");
    let words: Vec<&str> = text.split_whitespace().collect();
    (!words.is_empty()).then(|| words.join(" "))
}

#[cfg(test)]
mod tests {
    use super::of_folder;
    use std::fs;
    use std::path::Path;

    fn put(folder: &Path, name: &str, text: &str) {
        let path = folder.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn a_drive_is_known_by_what_its_kind_has() {
        let files = [
            ("wwid", "eui.00253851b1a2c3d4\n", "eui.00253851b1a2c3d4"),
            (
                "device/wwid",
                "t10.ATA     QEMU HARDDISK   QM00001 \n",
                "t10.ATA QEMU HARDDISK QM00001",
            ),
            ("dm/uuid", "LVM-abc\n", "dm.LVM-abc"),
            ("md/uuid", "a0b1\n", "md.a0b1"),
            ("serial", "vol-1\n", "serial.vol-1"),
        ];
        for (name, text, wwid) in files {
            let folder = tempfile::tempdir().unwrap();
            put(folder.path(), name, text);
            assert_eq!(of_folder(folder.path()).as_deref(), Some(wwid));
        }
    }

    #[test]
    fn a_device_without_identity_has_none() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(of_folder(folder.path()), None);
        // As device-mapper without a name of its own, and virtio without a serial number.
        put(folder.path(), "dm/uuid", "\n");
        put(folder.path(), "serial", "");
        assert_eq!(of_folder(folder.path()), None);
    }

    #[test]
    fn a_partition_is_a_part_of_its_drive() {
        let drive = tempfile::tempdir().unwrap();
        put(drive.path(), "sda1/partition", "1\n");
        put(drive.path(), "sda1/start", "2048\n");
        let partition = drive.path().join("sda1");
        assert_eq!(of_folder(&partition), None, "of a drive that has none");
        put(drive.path(), "device/wwid", "naa.5000c500\n");
        assert_eq!(of_folder(&partition).as_deref(), Some("naa.5000c500-part1-start2048"));
    }
}
