//! The folder the host and the guest both write: scripts and binaries go in, logs come out.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Scripts that every boot gets: libraries, and those whose parts another script runs, too.
pub(crate) const COMMON: &[(&str, &str)] = &[
    ("lib.sh", include_str!("../../vm/lib.sh")),
    ("target-ours.sh", include_str!("../../vm/target-ours.sh")),
    ("target-nvmet.sh", include_str!("../../vm/target-nvmet.sh")),
    ("target-nothing.sh", include_str!("../../vm/target-nothing.sh")),
    ("fabric-tcp.sh", include_str!("../../vm/fabric-tcp.sh")),
    ("fabric-rdma.sh", include_str!("../../vm/fabric-rdma.sh")),
    ("rdma-python.py", include_str!("../../vm/rdma-python.py")),
    ("vfio-drives.sh", include_str!("../../vm/vfio-drives.sh")),
    ("vfio-daemon.sh", include_str!("../../vm/vfio-daemon.sh")),
    ("on-uevent.sh", include_str!("../../vm/on-uevent.sh")),
    ("deb-lib.sh", include_str!("../../vm/deb-lib.sh")),
    ("admin.sh", include_str!("../../vm/admin.sh")),
    ("digests.sh", include_str!("../../vm/digests.sh")),
    ("events.sh", include_str!("../../vm/events.sh")),
    ("recovery.sh", include_str!("../../vm/recovery.sh")),
];

/// Empties or creates a folder.
pub(crate) fn fresh(folder: PathBuf) -> Result<PathBuf> {
    if folder.exists() {
        fs::remove_dir_all(&folder)
            .with_context(|| format!("cannot empty {}", folder.display()))?;
    }
    fs::create_dir_all(&folder)?;
    Ok(folder)
}

/// A fresh share for one boot of one guest.
#[derive(Debug)]
pub(crate) struct SharedFolder {
    folder: PathBuf,
}

impl SharedFolder {
    /// Empties or creates the folder and copies the scripts into it.
    pub(crate) fn create(folder: PathBuf, script: &str, settings: &[(&str, &str)]) -> Result<Self> {
        let shared_folder = Self { folder: fresh(folder)? };
        for (name, text) in COMMON {
            shared_folder.add_script(name, text)?;
        }
        shared_folder.add_script("run.sh", script)?;
        let settings: String = settings.iter().map(|(k, v)| format!("{k}={v}\n")).collect();
        fs::write(shared_folder.folder.join("settings"), settings)?;
        Ok(shared_folder)
    }

    /// Copies a program into the share.
    ///
    /// The original can lie on a filesystem that the guest does not see. A build can also replace
    /// it while the guest runs it.
    pub(crate) fn add_program(&self, path: &Path) -> Result<()> {
        self.add_file(path)
    }

    /// Copies a folder's own files into the share, as a folder of its name.
    pub(crate) fn add_folder(&self, path: &Path) -> Result<()> {
        let folder = self.folder.join(path.file_name().context("a folder without a name")?);
        fs::create_dir_all(&folder)?;
        for entry in fs::read_dir(path)? {
            let entry = entry?;
            if entry.file_type()?.is_file() {
                fs::copy(entry.path(), folder.join(entry.file_name()))?;
            }
        }
        Ok(())
    }

    /// Copies any file into the share.
    pub(crate) fn add_file(&self, path: &Path) -> Result<()> {
        self.copy(path, path.file_name().context("a program without a name")?)
    }

    /// Returns the share's path on this machine.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    fn copy(&self, path: &Path, name: &OsStr) -> Result<()> {
        fs::copy(path, self.folder.join(name))
            .with_context(|| format!("cannot copy {} for the guest", path.display()))?;
        Ok(())
    }

    fn add_script(&self, name: &str, text: &str) -> Result<()> {
        let path = self.folder.join(name);
        fs::write(&path, text)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        Ok(())
    }
}
