//! One use of a drive.

use std::fmt;
use std::path::PathBuf;

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
                    "{device} is {of}, not active now (if no longer needed: wipefs -a \
                     /dev/{device})"
                )
            }
            Self::Unknown { device, why } => {
                write!(f, "cannot determine whether {device} is in use: {why}")
            }
        }
    }
}
