//! Users of a drive.
//!
//! ```text
//!   function -> namespaces -> partitions -> holders (dm, md, ...) -> their partitions, holders ...
//!      |             '-------------+--------------'
//!      |                           '- mounted, swap, loop, nvmet, multi-device filesystem
//!      '- device nodes, VFIO group <- programs that have them open
//! ```
//!
//! A drive with two ports is two functions, each with separate namespaces unless the kernel joins
//! them. A user of one function is a user of the other.
//!
//! This module sends no command to a drive and opens no node, except in [`claim`](fn@claim), which
//! closes the gap between check and use. It opens each namespace exclusively, which fails if the
//! kernel or a program has done so.

mod blocks;
mod claim;
mod mounts;
mod processes;
mod signature;
mod user;

use super::function::PciFunction;
use super::system::{PciError, System};

pub use claim::{Claim, claim};
pub use user::User;

use blocks::Blocks;
use mounts::Mounts;
use processes::Processes;

/// Users of a machine's block devices, read once for all drives.
#[derive(Debug)]
pub struct Usage {
    blocks: Blocks,
    mounts: Mounts,
    processes: Processes,
    functions: Vec<PciFunction>,
}

impl Usage {
    /// Reads the users from the system.
    ///
    /// # Errors
    /// The system's own tables cannot be read. Missing permissions may hide open files of a
    /// process: see [`Self::is_partial`].
    pub fn read(system: &System) -> Result<Self, PciError> {
        Ok(Self {
            blocks: Blocks::read(system)?,
            mounts: Mounts::read(system)?,
            processes: Processes::read(system)?,
            functions: system.nvme_functions()?,
        })
    }

    /// Returns true if the open files of some processes could not be read completely.
    #[must_use]
    pub fn is_partial(&self) -> bool {
        self.processes.unseen
    }

    /// Returns the users of this function, or of another one of the same drive, most severe first;
    /// empty if none is known.
    #[must_use]
    pub fn of(&self, function: &PciFunction) -> Vec<User> {
        let mut users = Vec::new();
        let functions = ports(function, &self.functions);
        let disks = disks(&functions);
        let controllers: Vec<String> = functions
            .iter()
            .filter_map(|function| Some(function.controller.as_ref()?.name.clone()))
            .collect();
        let tree = self.blocks.above(&disks);
        self.mounts.users(&self.blocks, &tree, &mut users);
        self.blocks.users(&tree, &controllers, &mut users);
        self.processes.users(&functions, &tree, &mut users);
        users
    }

    /// Returns the users of this block device (`nvme0n1`, `sda1`), its partitions, and the devices
    /// layered on it.
    ///
    /// The result is empty if none is known. Other uses of the surrounding drive do not count.
    #[must_use]
    pub fn of_block(&self, name: &str) -> Vec<User> {
        let mut users = Vec::new();
        let tree = self.blocks.above(&[name]);
        self.mounts.users(&self.blocks, &tree, &mut users);
        self.blocks.users(&tree, &[], &mut users);
        self.processes.users(&[], &tree, &mut users);
        users
    }
}

/// Returns a function, and those of `all` that are other ports of the same drive.
fn ports<'a>(function: &'a PciFunction, all: &'a [PciFunction]) -> Vec<&'a PciFunction> {
    let others = all
        .iter()
        .filter(|other| other.address != function.address && other.is_same_drive(function));
    std::iter::once(function).chain(others).collect()
}

/// Returns the namespaces of functions, each once.
fn disks<'a>(functions: &[&'a PciFunction]) -> Vec<&'a str> {
    let controllers = functions.iter().filter_map(|function| function.controller.as_ref());
    let mut disks: Vec<&str> = Vec::new();
    for namespace in controllers.flat_map(|controller| &controller.namespaces) {
        if !disks.contains(&namespace.name.as_str()) {
            disks.push(&namespace.name);
        }
    }
    disks
}
