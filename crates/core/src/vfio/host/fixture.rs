//! A simulated machine of tests: PCI functions, their drivers and groups, as files in a folder.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use super::SysfsRoots;

/// A simulated machine in a folder, removed with this value.
#[derive(Debug)]
pub(in crate::vfio) struct Fixture {
    folder: tempfile::TempDir,
}

impl Fixture {
    pub(in crate::vfio) fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        for path in ["sys/bus/pci/devices", "sys/bus/pci/drivers", "dev"] {
            fs::create_dir_all(folder.path().join(path)).expect("folders");
        }
        Self { folder }
    }

    pub(in crate::vfio) fn host(&self) -> SysfsRoots {
        SysfsRoots { sys: self.path("sys"), dev: self.path("dev") }
    }

    /// Adds a function with a class, a driver and a group.
    pub(in crate::vfio) fn add(
        &self,
        address: &str,
        class: &str,
        driver: Option<&str>,
        group: Option<u32>,
    ) {
        let function = self.path("sys/bus/pci/devices").join(address);
        fs::create_dir_all(&function).expect("a function");
        fs::write(function.join("class"), format!("{class}\n")).expect("its class");
        if let Some(driver) = driver {
            let target = self.path("sys/bus/pci/drivers").join(driver);
            fs::create_dir_all(&target).expect("a driver");
            symlink(target, function.join("driver")).expect("a link");
        }
        if let Some(group) = group {
            let target = self.path("sys/kernel/iommu_groups").join(group.to_string());
            fs::create_dir_all(target.join("devices")).expect("a group");
            symlink(&function, target.join("devices").join(address)).expect("a link");
            symlink(target, function.join("iommu_group")).expect("a link");
        }
    }

    pub(in crate::vfio) fn path(&self, below: impl AsRef<Path>) -> std::path::PathBuf {
        self.folder.path().join(below)
    }
}
