//! Errors of opening and resizing files.

use std::borrow::Cow;
use std::io;
use std::path::PathBuf;

use thiserror::Error;

/// Error that prevents a file from being a device.
#[derive(Debug, Error)]
#[error("{}: {reason}", .path.display())]
pub struct OpenError {
    /// The file.
    pub path: PathBuf,
    /// The problem and the remedy.
    pub reason: OpenErrorReason,
}

/// Problem with a file.
#[derive(Debug, Error)]
pub enum OpenErrorReason {
    /// The file does not exist, and no size is given to create it.
    #[error("file does not exist; set \"size\" to create it")]
    Missing,
    /// The path is neither a regular file nor a block device.
    #[error("not a regular file or a block device but {0}")]
    FileKind(&'static str),
    /// Another process or device uses the file.
    #[error(
        "the file is in use: another process or device serves the file, or has mounted it; stop \
         that use, or choose another file"
    )]
    InUse,
    /// The block size is not supported.
    #[error("block size of {0} bytes is not supported: choose 512 or 4096")]
    BlockSize(u32),
    /// The drive's sectors are larger than the blocks.
    #[error("sectors of {sector} bytes exceed the block size {block_size}: choose {sector}")]
    Sector {
        /// Bytes per sector.
        sector: u32,
        /// Bytes per block.
        block_size: u32,
    },
    /// The size differs from the configured one.
    #[error("the file has {actual} bytes but {wanted} are configured: {advice}")]
    Size {
        /// Actual bytes.
        actual: u64,
        /// Configured bytes.
        wanted: u64,
        /// The remedy.
        advice: &'static str,
    },
    /// The file is smaller than one block.
    #[error("{size} bytes do not hold one block of {block_size}; give a size")]
    Empty {
        /// Actual bytes.
        size: u64,
        /// Bytes per block.
        block_size: u32,
    },
    /// Direct I/O is required but not supported.
    #[error(
        "the file does not support direct I/O ({0}): leave `direct` to \"auto\", or use larger \
         blocks"
    )]
    NotDirect(Cow<'static, str>),
    /// The kernel denies io_uring to this process.
    #[error(
        "io_uring is not available ({0}): see the sysctl kernel.io_uring_disabled, \
         and in a container the seccomp profile"
    )]
    NoRing(io::Error),
    /// A system call failed.
    #[error("cannot {what}: {source}")]
    System {
        /// The operation.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

/// Returns a system call's result, with the operation named in its error.
pub(super) fn system<T, E: Into<io::Error>>(
    what: &'static str,
    result: Result<T, E>,
) -> Result<T, OpenErrorReason> {
    result.map_err(|source| OpenErrorReason::System { what, source: source.into() })
}
