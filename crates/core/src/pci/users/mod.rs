//! Who uses a drive.
//!
//! ```text
//!   function -> namespaces -> partitions -> holders (dm, md, ...) -> their partitions, holders ...
//!      |             '-------------+--------------'
//!      |                           '- mounted, swap, loop, nvmet, multi-device filesystem
//!      '- device nodes, VFIO group <- programs that have them open
//! ```
//!
//! A drive with two ports is two functions, each with namespaces of its own where the kernel does not join them: who
//! uses one uses the other.
//!
//! Nothing here asks a drive or opens a node, but for [`claim`], which closes the gap between looking and taking:
//! it opens each namespace exclusively, which fails where the kernel or a program has done so.

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
        /// Where, as the process that sees it says.
        at: PathBuf,
        /// A process that sees it, if this one does not.
        seen_by: Option<u32>,
    },
    /// Swap space.
    Swap {
        /// The block device.
        device: String,
    },
    /// A block device made of it.
    Holder {
        /// The part of the drive.
        device: String,
        /// The block device made of it.
        holder: String,
        /// What that is.
        kind: String,
    },
    /// A member of a filesystem over several devices.
    Filesystem {
        /// The block device.
        device: String,
        /// Which filesystem.
        kind: &'static str,
    },
    /// A file of another kind of the kernel's serves it.
    Kernel {
        /// The block device.
        device: String,
        /// What does.
        by: String,
    },
    /// Opened exclusively by the kernel or a program.
    Exclusive {
        /// The block device.
        device: String,
    },
    /// A program has it open.
    Process {
        /// Its process ID.
        pid: u32,
        /// Its name.
        command: String,
        /// The device node, below `/dev`.
        node: String,
    },
    /// What is on it says that it is part of something that is not active now.
    Member {
        /// The block device.
        device: String,
        /// Of what.
        of: &'static str,
    },
    /// It could not be found out whether it is in use.
    Unknown {
        /// The block device.
        device: String,
        /// Why not.
        why: String,
    },
}

impl User {
    /// Whether it may be done with the drive by itself: a program, not a mount or an array.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        matches!(self, Self::Process { .. } | Self::Exclusive { .. })
    }
}

/// What uses the block devices of a machine, read once for all drives.
#[derive(Debug)]
pub struct Usage {
    blocks: Blocks,
    mounts: Mounts,
    processes: Processes,
    functions: Vec<PciFunction>,
}

impl Usage {
    /// Reads it.
    ///
    /// # Errors
    /// The system's own tables cannot be read. What a process has open may stay unseen for lack of rights:
    /// [`Self::is_partial`].
    pub fn read(system: &System) -> Result<Self, PciError> {
        Ok(Self {
            blocks: Blocks::read(system)?,
            mounts: Mounts::read(system)?,
            processes: Processes::read(system)?,
            functions: system.nvme_functions()?,
        })
    }

    /// Whether there are processes whose open files could not all be seen.
    #[must_use]
    pub fn is_partial(&self) -> bool {
        self.processes.unseen
    }

    /// Who uses this function, or another one of the same drive, the gravest first; empty if nobody is known to.
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

    /// Who uses this block device (`nvme0n1`, `sda1`), a partition of it, or what is made of it; empty if nobody is known
    /// to. Who uses the drive around it otherwise does not count.
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

/// A function, and those of `all` that are other ports of the same drive.
fn ports<'a>(function: &'a PciFunction, all: &'a [PciFunction]) -> Vec<&'a PciFunction> {
    let others = all
        .iter()
        .filter(|other| other.address != function.address && other.is_same_drive(function));
    std::iter::once(function).chain(others).collect()
}

/// The namespaces of functions, each once.
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
    /// One word for programs: `mount`, `swap`, `holder`, `filesystem`, `kernel`, `exclusive`, `process`,
    /// `member`, `unknown`.
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
