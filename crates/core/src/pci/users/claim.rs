//! Claiming a drive's namespaces, so that no other user can start to use them.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;

use super::super::function::PciFunction;
use super::super::system::{System, names};
use super::signature::signature;
use super::{User, disks, ports};

/// The namespaces of a drive, opened exclusively.
///
/// Until it is dropped, nothing can be mounted, no partition opened exclusively, and no array
/// created on them. It may outlive the block devices.
#[derive(Debug)]
pub struct Claim {
    _disks: Vec<File>,
}

/// Claims every namespace of a drive, through all its ports, and checks them for signatures of
/// arrays and pools.
///
/// A drive without namespaces, or without the kernel's driver, has nothing to claim.
///
/// # Errors
/// The users of the drive, its array membership, or the reason why that is unknown.
pub fn claim(system: &System, function: &PciFunction) -> Result<Claim, Vec<User>> {
    let all = system.nvme_functions().map_err(|error| {
        vec![User::Unknown { device: function.address.to_string(), why: error.to_string() }]
    })?;
    let mut claimed = Vec::new();
    let mut users = Vec::new();
    for device in disks(&ports(function, &all)) {
        match open(system, device, libc::O_EXCL) {
            Ok(disk) => {
                members(system, device, &disk, &mut users);
                claimed.push(disk);
            }
            Err(error) => users.push(refused(device, &error)),
        }
    }
    if users.is_empty() { Ok(Claim { _disks: claimed }) } else { Err(users) }
}

fn members(system: &System, disk: &str, file: &File, users: &mut Vec<User>) {
    let mut look = |device: &str, file: io::Result<&File>| match file.and_then(signature) {
        Ok(None) => {}
        Ok(Some(of)) => users.push(User::Member { device: device.to_owned(), of }),
        Err(error) => users.push(refused(device, &error)),
    };
    look(disk, Ok(file));
    let folder = system.block_folder(disk);
    let entries = names(&folder).unwrap_or_default();
    for entry in entries.iter().filter(|entry| folder.join(entry).join("partition").exists()) {
        match open(system, entry, 0) {
            Ok(file) => look(entry, Ok(&file)),
            Err(error) => look(entry, Err(error)),
        }
    }
}

fn open(system: &System, device: &str, flags: i32) -> io::Result<File> {
    let flags = flags | libc::O_NONBLOCK;
    OpenOptions::new().read(true).custom_flags(flags).open(system.dev.join(device))
}

fn refused(device: &str, error: &io::Error) -> User {
    let device = device.to_owned();
    if error.raw_os_error() == Some(libc::EBUSY) {
        return User::Exclusive { device };
    }
    User::Unknown { device, why: error.to_string() }
}
