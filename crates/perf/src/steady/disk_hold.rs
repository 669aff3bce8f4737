//! Exclusive hold of a block device of the kernel whose data is to be erased.

use std::fs::File;

use nvmeof_core::pci::System;
use nvmeof_core::pci::users::Usage;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::patience::{Patience, Refusal};

/// A drive to hold.
#[derive(Debug, Clone, Copy)]
pub(super) struct HoldableDisk<'a> {
    pub(super) system: &'a System,
    /// Name below `/dev`.
    pub(super) name: &'a str,
    /// Serial number at the time of the check that its data may be destroyed; empty if it has none.
    pub(super) serial: &'a str,
    /// Maximum wait for users that pass.
    pub(super) patience: Patience,
}

impl HoldableDisk<'_> {
    pub(super) fn path(&self) -> String {
        format!("/dev/{}", self.name)
    }

    /// Opens the drive exclusively: until the file is closed, nothing can mount it.
    ///
    /// # Errors
    /// It is in use, or the name is that of another drive by now.
    pub(super) fn hold(&self) -> Result<File, String> {
        let held = self.patience.retry(|| self.try_hold())?;
        let now = self.system.disk(self.name).serial.unwrap_or_default();
        if now.trim() != self.serial {
            let path = self.path();
            return Err(format!(
                "{path} has become another drive: its serial number was `{}` and is `{now}`",
                self.serial
            ));
        }
        Ok(held)
    }

    fn try_hold(&self) -> Result<File, Refusal> {
        let path = self.path();
        let usage = Usage::read(self.system).map_err(|error| Refusal::Final(error.to_string()))?;
        let users = usage.of_block(self.name);
        if let Some(user) = users.iter().find(|user| !user.may_pass()) {
            return Err(Refusal::Final(format!("{path} is in use by now: {user}")));
        }
        if let Some(user) = users.first() {
            return Err(Refusal::Transient(format!("{path} is in use by now: {user}")));
        }
        let flags = OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC;
        let held = rustix::fs::open(self.system.dev.join(self.name), flags, Mode::empty());
        held.map(File::from).map_err(|error| {
            let why = format!("{path} cannot be held: {error}");
            if error == Errno::BUSY { Refusal::Transient(why) } else { Refusal::Final(why) }
        })
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::path::Path;
    use std::time::Duration;

    use nvmeof_core::pci::{NodeId, NodeKind};
    use nvmeof_sysfs_fixture::{self as fixture, Machine};

    use super::*;

    const LONG: Patience = Patience { most: Duration::from_secs(600), pause: Duration::ZERO };

    fn machine() -> (tempfile::TempDir, Machine) {
        let folder = tempfile::tempdir_in(fixture::folder()).unwrap();
        let machine = Machine::new(folder.path()).unwrap();
        machine.block("devices/virtual/block", "sda", 640).unwrap();
        machine.write("sys/devices/virtual/block/sda/device/serial", "SN1  \n").unwrap();
        (folder, machine)
    }

    fn hold(system: &System, serial: &str, patience: Patience) -> Result<File, String> {
        HoldableDisk { system, name: "sda", serial, patience }.hold()
    }

    /// The identity of an open node; the process that has it open then ends.
    fn seen_once(descriptor: &Path) -> io::Result<Option<NodeId>> {
        let process = descriptor.parent().and_then(Path::parent).unwrap();
        std::fs::remove_dir_all(process)?;
        Ok(NodeId::parse(NodeKind::Block, "259:640"))
    }

    #[test]
    fn a_program_that_closes_the_drive_is_waited_for() {
        let (_folder, machine) = machine();
        machine.process(77, "udev-worker", "4026531841", &["/dev/sda"]).unwrap();
        let error = hold(&machine.system(), "SN1", Patience::NONE).unwrap_err();
        assert!(error.contains("open in pid 77 (udev-worker)"), "{error}");
        let system = System { node: seen_once, ..machine.system() };
        hold(&system, "SN1", LONG).unwrap();
    }

    #[test]
    fn a_mount_is_not_waited_for() {
        let (_folder, machine) = machine();
        machine.process(77, "udev-worker", "4026531841", &["/dev/sda"]).unwrap();
        machine.mount(None, "30 1 259:640 / /data rw - ext4 /dev/sda rw").unwrap();
        let error = hold(&machine.system(), "SN1", LONG).unwrap_err();
        assert!(
            error.contains("/dev/sda is in use by now: ") && error.contains("/data"),
            "{error}"
        );
    }

    #[test]
    fn another_drive_of_the_same_name_is_not_held() {
        let (_folder, machine) = machine();
        hold(&machine.system(), "SN1", Patience::NONE).unwrap();
        for serial in ["SN2", ""] {
            let error = hold(&machine.system(), serial, Patience::NONE).unwrap_err();
            assert!(error.contains("another drive") && error.contains("`SN1`"), "{error}");
        }
    }
}
