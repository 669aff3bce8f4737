//! Folders of the system's tables.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::node::NodeId;

/// Root folders of all reads.
#[derive(Debug, Clone)]
pub struct System {
    /// sysfs, `/sys`.
    pub sys: PathBuf,
    /// procfs, `/proc`.
    pub proc: PathBuf,
    /// Device nodes, `/dev`.
    pub dev: PathBuf,
    /// Returns the identity of the file at a path, if it is a device node.
    pub node: fn(&Path) -> io::Result<Option<NodeId>>,
}

/// Error that prevents reading the system's state.
#[derive(Debug, thiserror::Error)]
pub enum PciError {
    /// A file or folder cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

impl System {
    /// Returns the folders of this machine.
    #[must_use]
    pub fn this() -> Self {
        Self { sys: "/sys".into(), proc: "/proc".into(), dev: "/dev".into(), node: NodeId::at }
    }

    /// Returns a machine whose folders are `sys`, `proc` and `dev` below `root`.
    #[must_use]
    pub fn below(root: &Path) -> Self {
        let (sys, proc, dev) = (root.join("sys"), root.join("proc"), root.join("dev"));
        Self { sys, proc, dev, node: NodeId::at }
    }

    /// Returns the folder of a PCI function.
    pub(super) fn function_folder(&self, name: impl std::fmt::Display) -> PathBuf {
        self.sys.join("bus/pci/devices").join(name.to_string())
    }

    /// Returns the folder of a block device: `nvme0n1`, `nvme0n1p1`, `dm-0`.
    pub(super) fn block_folder(&self, name: &str) -> PathBuf {
        self.sys.join("class/block").join(name)
    }

    /// Returns the file name that a device node's path resolves to, symlinks followed: `dm-0` for
    /// `/dev/mapper/vg-root`. `None` for a path that is no device node.
    #[must_use]
    pub fn node_name(&self, path: &str) -> Option<String> {
        let below = path.strip_prefix("/dev/")?;
        let resolved = fs::canonicalize(self.dev.join(below)).ok();
        let name = match resolved.as_deref().and_then(Path::file_name) {
            Some(name) => name.to_str()?,
            None => below.rsplit('/').next()?,
        };
        Some(name.to_owned())
    }
}

/// Returns a file's text without surrounding white space; `None` if the file is missing or empty.
pub(super) fn text(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

/// Returns the last component of a symbolic link's target.
pub(super) fn link_name(path: &Path) -> Option<String> {
    let target = fs::read_link(path).ok()?;
    Some(target.file_name()?.to_str()?.to_owned())
}

/// Returns the names in a folder, sorted; empty if it does not exist.
///
/// # Errors
/// The folder exists and cannot be read.
pub(super) fn names(path: &Path) -> Result<Vec<String>, PciError> {
    let read = |source| PciError::Read { path: path.to_owned(), source };
    let entries = match fs::read_dir(path) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(read(error)),
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(read)?;
        if let Ok(name) = entry.file_name().into_string() {
            names.push(name);
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// Reads a file that must exist and be readable.
pub(super) fn required(path: &Path) -> Result<String, PciError> {
    fs::read_to_string(path).map_err(|source| PciError::Read { path: path.to_owned(), source })
}
