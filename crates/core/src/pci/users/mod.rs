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

use std::fmt;
use std::path::PathBuf;

use super::function::PciFunction;
use super::system::{PciError, System};

pub use claim::{Claim, claim};

use blocks::Blocks;
use mounts::Mounts;
use processes::Processes;

/// One use of a drive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum User {
    /// A mounted filesystem.
    Mount {
        /// The block device that is mounted.
        device: String,
        /// Mount point, as seen by the process.
        at: PathBuf,
        /// A process that sees the mount, if this one does not.
        seen_by: Option<u32>,
    },
    /// Swap space.
    Swap {
        /// The block device.
        device: String,
    },
    /// A block device layered on the drive.
    Holder {
        /// Part of the drive.
        device: String,
        /// Block device layered on it.
        holder: String,
        /// Kind of the holder.
        kind: String,
    },
    /// Membership in a multi-device filesystem.
    Filesystem {
        /// The block device.
        device: String,
        /// Kind of the filesystem.
        kind: &'static str,
    },
    /// Another part of the kernel serves the device.
    Kernel {
        /// The block device.
        device: String,
        /// The part of the kernel.
        by: String,
    },
    /// An exclusive open by the kernel or a program.
    Exclusive {
        /// The block device.
        device: String,
    },
    /// An open by a program.
    Process {
        /// Process ID.
        pid: u32,
        /// Name of the program.
        command: String,
        /// Device node, below `/dev`.
        node: String,
    },
    /// A signature on the device of an array or pool that is not active now.
    Member {
        /// The block device.
        device: String,
        /// Kind of the array or pool.
        of: &'static str,
    },
    /// Unknown use.
    Unknown {
        /// The block device.
        device: String,
        /// Reason.
        why: String,
    },
}

impl User {
    /// Returns true if the use may end without an operator's action: a program, not a mount or an
    /// array.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        matches!(self, Self::Process { .. } | Self::Exclusive { .. })
    }
}

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

impl User {
    /// Returns one word for programs: `mount`, `swap`, `holder`, `filesystem`, `kernel`,
    /// `exclusive`, `process`, `member`, `unknown`.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Mount { .. } => "mount",
            Self::Swap { .. } => "swap",
            Self::Holder { .. } => "holder",
            Self::Filesystem { .. } => "filesystem",
            Self::Kernel { .. } => "kernel",
            Self::Exclusive { .. } => "exclusive",
            Self::Process { .. } => "process",
            Self::Member { .. } => "member",
            Self::Unknown { .. } => "unknown",
        }
    }
}

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mount { device, at, seen_by } => {
                write!(f, "{device} is mounted at {}", at.display())?;
                match seen_by {
                    Some(pid) => write!(f, " in the mount namespace of pid {pid}"),
                    None if at.as_os_str() == "/" => write!(f, ": the root disk"),
                    None => Ok(()),
                }
            }
            Self::Swap { device } => write!(f, "{device} is swap space"),
            Self::Holder { device, holder, kind } => {
                write!(f, "{device} is part of {holder} ({kind})")
            }
            Self::Filesystem { device, kind } => {
                write!(f, "{device} is a member of a mounted {kind} filesystem")
            }
            Self::Kernel { device, by } => write!(f, "{device} is used by {by}"),
            Self::Exclusive { device } => write!(
                f,
                "{device} is opened exclusively, by the kernel (a filesystem, ZFS, a RAID) or a program"
            ),
            Self::Process { pid, command, node } => {
                write!(f, "/dev/{node} is open in pid {pid} ({command})")
            }
            Self::Member { device, of } => {
                write!(
                    f,
                    "{device} is {of}, not active now (if it is given up: wipefs -a /dev/{device})"
                )
            }
            Self::Unknown { device, why } => {
                write!(f, "cannot tell whether {device} is used: {why}")
            }
        }
    }
}
