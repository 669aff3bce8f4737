//! Device nodes by their numbers: a node can have several names, but has one number.

use std::io;
use std::path::Path;
use std::str::FromStr;

use rustix::fs::{AtFlags, CWD, FileType, FsWord, StatxFlags, statfs, statx};
use rustix::io::Errno;

/// Magic number of FUSE filesystems (Linux, `include/uapi/linux/magic.h`).
const FUSE: FsWord = 0x6573_5546;

/// Identity of a device node, independent of its name and location.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId {
    /// Type; block devices and character devices are numbered separately.
    pub kind: NodeKind,
    /// Number of the driver.
    pub major: u32,
    /// Number of the device within the driver.
    pub minor: u32,
}

/// Kinds of device nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NodeKind {
    /// A block device.
    Block,
    /// A character device.
    Character,
}

impl NodeId {
    /// Returns the identity of the file at a path, symlinks followed; `None` if it is no device
    /// node.
    ///
    /// Files of an inaccessible FUSE filesystem, for example of another user, count as none.
    ///
    /// # Errors
    /// The system's error.
    pub fn at(path: &Path) -> io::Result<Option<Self>> {
        // Cached attributes are enough: the call does not wait for a server that is gone.
        let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
        let stat = match statx(CWD, path, flags, StatxFlags::TYPE) {
            Ok(stat) => stat,
            // The FUSE program has ended, or denies access to other users, including root.
            Err(Errno::NOTCONN) => return Ok(None),
            Err(Errno::ACCESS) if statfs(path).is_ok_and(|fs| fs.f_type == FUSE) => {
                return Ok(None);
            }
            Err(error) => return Err(error.into()),
        };
        let kind = match FileType::from_raw_mode(u32::from(stat.stx_mode)) {
            FileType::BlockDevice => NodeKind::Block,
            FileType::CharacterDevice => NodeKind::Character,
            _ => return Ok(None),
        };
        Ok(Some(Self { kind, major: stat.stx_rdev_major, minor: stat.stx_rdev_minor }))
    }

    /// Parses sysfs's text of the two numbers, `259:0`.
    #[must_use]
    pub fn parse(kind: NodeKind, text: &str) -> Option<Self> {
        let (major, minor) = text.split_once(':')?;
        Some(Self { kind, major: u32::from_str(major).ok()?, minor: u32::from_str(minor).ok()? })
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsRawFd as _;

    use super::*;

    /// The path of a descriptor does not identify its target: the numbers do.
    #[test]
    fn a_descriptor_of_a_node_has_its_numbers() {
        let folder = tempfile::tempdir().unwrap();
        let other_name = folder.path().join("some name");
        std::os::unix::fs::symlink("/dev/null", &other_name).unwrap();
        let file = File::open(&other_name).unwrap();
        let descriptor = format!("/proc/self/fd/{}", file.as_raw_fd());
        let null = NodeId { kind: NodeKind::Character, major: 1, minor: 3 };
        assert_eq!(NodeId::at(Path::new(&descriptor)).unwrap(), Some(null));
        let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let descriptor = format!("/proc/self/fd/{}", socket.as_raw_fd());
        assert_eq!(NodeId::at(Path::new(&descriptor)).unwrap(), None);
        assert_eq!(NodeId::at(folder.path()).unwrap(), None);
        assert!(NodeId::at(&folder.path().join("nothing")).is_err());
    }

    #[test]
    fn numbers_of_sysfs() {
        let kind = NodeKind::Block;
        assert_eq!(NodeId::parse(kind, "259:12"), Some(NodeId { kind, major: 259, minor: 12 }));
        for text in ["", "259", "259:", ":1", "1:2:3", "a:b"] {
            assert_eq!(NodeId::parse(kind, text), None, "{text}");
        }
    }
}
