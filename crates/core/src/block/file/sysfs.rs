//! Attributes of block devices in sysfs.

use std::os::fd::OwnedFd;
use std::path::PathBuf;

use rustix::fs::FileType;

/// Returns the sysfs folder of a block device, a link: resolve it before going up from it.
pub(super) fn block_folder(file: &OwnedFd) -> Option<PathBuf> {
    let stat = rustix::fs::fstat(file).ok()?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::BlockDevice {
        return None;
    }
    let (major, minor) = (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev));
    Some(PathBuf::from(format!("/sys/dev/block/{major}:{minor}")))
}

/// Returns a queue attribute of a block device from sysfs.
pub(super) fn queue_attribute(file: &OwnedFd, name: &str) -> Option<String> {
    let folder = block_folder(file)?;
    // A partition has no queue: that of its drive is one folder up.
    let queues = [folder.join("queue"), folder.join("../queue")];
    let mut texts = queues.iter().filter_map(|at| std::fs::read_to_string(at.join(name)).ok());
    texts.next().map(|text| text.trim().to_owned())
}
