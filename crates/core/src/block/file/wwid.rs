//! The identity of a kernel block device itself, read from sysfs.
//!
//! ```text
//!   drive      /sys/block/X/wwid (NVMe), device/wwid (SCSI), dm/uuid, md/uuid, serial (virtio)
//!   partition  identity of its drive, its number, and its first sector
//! ```
//!
//! A loop device has none: its identity is the backing file, as long as that is attached.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use super::sysfs::block_folder;

/// Returns the identity of an open block device; `None` if the kernel has none, as for a loop
/// device.
pub(super) fn of_block_device(file: &OwnedFd) -> Option<String> {
    of_folder(&fs::canonicalize(block_folder(file)?).ok()?)
}

/// The backing file of an open loop device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backing {
    /// Path of the file, as the kernel reports it.
    pub path: PathBuf,
    /// Start of the device in the file: byte offset, and the first sector of a partition.
    pub place: String,
}

/// Returns the backing file of an open loop device or its partition; `None` for other devices.
pub(super) fn backing_of(file: &OwnedFd) -> Option<Backing> {
    backing_in(&fs::canonicalize(block_folder(file)?).ok()?)
}

fn backing_in(folder: &Path) -> Option<Backing> {
    let in_loop = |name: &str| {
        [folder, folder.parent()?].iter().find_map(|at| line(&at.join("loop").join(name)))
    };
    let path = PathBuf::from(in_loop("backing_file")?);
    let offset = in_loop("offset").unwrap_or_default();
    let start = line(&folder.join("partition")).and_then(|_| line(&folder.join("start")));
    let place = match start {
        Some(start) => format!("+{offset}-start{start}"),
        None => format!("+{offset}"),
    };
    Some(Backing { path, place })
}

/// Returns the first line of a sysfs file; `None` if it is missing or empty.
fn line(path: &Path) -> Option<String> {
    let text = fs::read(path).ok()?;
    let line = String::from_utf8_lossy(&text).lines().next()?.to_owned();
    (!line.is_empty()).then_some(line)
}

/// Returns the identity of the block device with this folder in sysfs.
fn of_folder(folder: &Path) -> Option<String> {
    let Some(number) = text(&folder.join("partition")) else { return of_drive(folder) };
    // A partition that was recreated at another place is another disk; one that grew is the same.
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

/// Returns the text of a sysfs file on one line with single blanks; `None` if it is missing or
/// empty.
fn text(path: &Path) -> Option<String> {
    let bytes = fs::read(path).ok()?;
    let text = String::from_utf8_lossy(&bytes).replace('\0', " ");
    let words: Vec<&str> = text.split_whitespace().collect();
    (!words.is_empty()).then(|| words.join(" "))
}

#[cfg(test)]
mod tests {
    use super::{backing_in, of_folder};
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
        // Like device-mapper without a UUID, and virtio without a serial number.
        put(folder.path(), "dm/uuid", "\n");
        put(folder.path(), "serial", "");
        assert_eq!(of_folder(folder.path()), None);
    }

    #[test]
    fn a_loop_device_is_the_file_behind_it() {
        let drive = tempfile::tempdir().unwrap();
        assert_eq!(backing_in(drive.path()), None);
        put(drive.path(), "loop/backing_file", "/srv/a  b.img\n");
        put(drive.path(), "loop/offset", "512\n");
        put(drive.path(), "loop0p1/partition", "1\n");
        put(drive.path(), "loop0p1/start", "2048\n");
        for (folder, place) in
            [(drive.path().to_owned(), "+512"), (drive.path().join("loop0p1"), "+512-start2048")]
        {
            let backing = backing_in(&folder).unwrap();
            assert_eq!(backing.path, Path::new("/srv/a  b.img"));
            assert_eq!(backing.place, place);
            assert_eq!(of_folder(&folder), None);
        }
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
