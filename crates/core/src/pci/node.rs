//! Device nodes by their numbers: a node has many names, and one number.

use std::io;
use std::path::Path;
use std::str::FromStr;

use rustix::fs::{AtFlags, CWD, FileType, FsWord, StatxFlags, statfs, statx};
use rustix::io::Errno;

/// The kernel's number for filesystems in user space (Linux, `include/uapi/linux/magic.h`).
const FUSE: FsWord = 0x6573_5546;

/// What a device node stands for, whatever it is called and wherever it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId {
    /// Block devices and character devices have numbers of their own.
    pub kind: NodeKind,
    /// Which driver.
    pub major: u32,
    /// Which of its devices.
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
    /// What the file at a path is, symlinks followed; none for what is no device node. Files of a filesystem in user
    /// space that tells us nothing, as of another user's, are none.
    ///
    /// # Errors
    /// The system's.
    pub fn at(path: &Path) -> io::Result<Option<Self>> {
        // What the kernel knows already is enough: a server that is gone is not waited for.
        let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
        let stat = match statx(CWD, path, flags, StatxFlags::TYPE) {
            Ok(stat) => stat,
            // Its program has ended, or lets nobody else in, root neither.
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

    /// From sysfs's text of the two numbers, `259:0`.
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

    /// The path of a descriptor says nothing of what it is: the numbers do.
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
