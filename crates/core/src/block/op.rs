//! Operations on a block device and their results.

use thiserror::Error;

use super::DeviceInfo;
use crate::dma::Buffer;

/// An operation on a range of a device.
#[derive(Debug)]
pub struct BlockOp {
    /// Token of the caller, returned with the completion; several operations may share one.
    pub token: u64,
    /// Kind of operation.
    pub kind: BlockOpKind,
    /// First byte; a multiple of the block size.
    pub offset: u64,
    /// Bytes; a multiple of the block size. 0 for a flush.
    pub len: u64,
    /// Memory of at least `len` bytes for reads and writes, otherwise `None`.
    pub buf: Option<Buffer>,
}

/// Kind of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockOpKind {
    /// Fills the buffer from the device.
    Read,
    /// Writes the buffer to the device.
    Write {
        /// Completes only when the data is on the medium.
        fua: bool,
    },
    /// Completes when every write completed before is on the medium.
    Flush,
    /// Makes the range read as zeroes.
    WriteZeroes {
        /// Completes only when the zeroes are on the medium.
        fua: bool,
        /// Allows the device to free the range.
        deallocate: bool,
    },
    /// Declares the contents of the range unused.
    Deallocate,
}

/// A completed operation.
#[derive(Debug)]
pub struct Completed {
    /// The operation's token.
    pub token: u64,
    /// The operation's buffer.
    pub buf: Option<Buffer>,
    /// Result of the operation.
    pub result: Result<(), BlockError>,
}

/// An operation that a queue did not take.
#[derive(Debug, Error)]
#[error("operation {} was not taken: {reason}", .op.token)]
pub struct Rejected {
    /// The operation, unchanged.
    pub op: BlockOp,
    /// Reason.
    pub reason: RejectReason,
}

/// Reason why a queue did not take an operation.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
pub enum RejectReason {
    /// The queue is full: poll, then retry.
    #[error("the queue is full")]
    QueueFull,
    /// The operation can never succeed.
    #[error("{0}")]
    Invalid(BlockError),
}

/// Reason why an operation failed, or a queue could not be opened.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
pub enum BlockError {
    /// The range is not inside the device.
    #[error("bytes {offset}+{len} are outside the device")]
    OutOfRange {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// Offset or length is no multiple of the block size, or the buffer is missing or short.
    #[error("bytes {offset}+{len} are not whole blocks, or the buffer does not fit them")]
    Misaligned {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// A write to a read-only device.
    #[error("the device is read-only")]
    ReadOnly,
    /// The medium cannot be read or written.
    #[error("the medium failed: {}", std::io::Error::from_raw_os_error(*.errno))]
    Media {
        /// The system's error number.
        errno: i32,
    },
    /// Writes completed before may not be on the medium, and no later flush covers them.
    ///
    /// A flush failed, on this queue or another one, or the drive lost power. Each queue reports it
    /// once, with every flush (and FUA write that needs one) that it has when it detects the
    /// failure. Later flushes cover the writes completed since.
    #[error("a flush failed before: completed writes may be lost")]
    FlushLost,
    /// The medium has no space left.
    #[error("no space left on the medium")]
    NoSpace,
    /// The device has disappeared.
    #[error("the device is missing")]
    Gone,
    /// The device does not support the operation.
    #[error("the device does not support this")]
    Unsupported,
    /// Out of memory.
    #[error("out of memory")]
    NoMemory,
    /// The kernel cannot start a worker thread.
    #[error(
        "the kernel cannot start a thread for io_uring: raise the limit of threads (TasksMax=, ulimit -u)"
    )]
    NoThread,
    /// The kernel grants no more AIO contexts.
    #[error(
        "the kernel grants no more AIO contexts: raise the sysctl fs.aio-max-nr, or use fewer threads"
    )]
    NoAioContext,
    /// The drive grants no more queues: use fewer reactors, or fewer of its namespaces.
    #[error("all {granted} I/O queues that the drive grants are in use")]
    NoQueue {
        /// Number of queues the drive grants.
        granted: usize,
    },
    /// The operation was cancelled before it completed.
    #[error("cancelled")]
    Cancelled,
    /// Another error of the system.
    #[error("{}", std::io::Error::from_raw_os_error(*.0))]
    Io(
        /// The system's error number.
        i32,
    ),
}

impl BlockOp {
    /// Creates a read into `buf`.
    pub fn read(token: u64, offset: u64, buf: Buffer) -> Self {
        Self { token, kind: BlockOpKind::Read, offset, len: buf.len() as u64, buf: Some(buf) }
    }

    /// Creates a write of `buf`.
    pub fn write(token: u64, offset: u64, buf: Buffer, fua: bool) -> Self {
        let len = buf.len() as u64;
        Self { token, kind: BlockOpKind::Write { fua }, offset, len, buf: Some(buf) }
    }

    /// Creates a flush.
    pub fn flush(token: u64) -> Self {
        Self { token, kind: BlockOpKind::Flush, offset: 0, len: 0, buf: None }
    }

    /// Creates an operation that zeroes a range.
    pub fn write_zeroes(token: u64, offset: u64, len: u64, fua: bool, deallocate: bool) -> Self {
        let kind = BlockOpKind::WriteZeroes { fua, deallocate };
        Self { token, kind, offset, len, buf: None }
    }

    /// Creates a deallocation of a range.
    pub fn deallocate(token: u64, offset: u64, len: u64) -> Self {
        Self { token, kind: BlockOpKind::Deallocate, offset, len, buf: None }
    }

    /// Completes this operation with `result`.
    pub fn complete(self, result: Result<(), BlockError>) -> Completed {
        Completed { token: self.token, buf: self.buf, result }
    }

    /// Returns true if the operation changes the device.
    pub fn is_write(&self) -> bool {
        !matches!(self.kind, BlockOpKind::Read | BlockOpKind::Flush)
    }

    /// Checks the operation. Every device calls this before it takes one.
    ///
    /// # Errors
    /// The error with which the operation must complete.
    pub fn check(&self, info: &DeviceInfo) -> Result<(), BlockError> {
        let (offset, len) = (self.offset, self.len);
        if self.kind == BlockOpKind::Flush {
            return Ok(());
        }
        if info.read_only && self.is_write() {
            return Err(BlockError::ReadOnly);
        }
        if offset.checked_add(len).is_none_or(|end| end > info.size) {
            return Err(BlockError::OutOfRange { offset, len });
        }
        let block = u64::from(info.block_size) - 1;
        let moves_data = matches!(self.kind, BlockOpKind::Read | BlockOpKind::Write { .. });
        let fits = self.buf.as_ref().is_some_and(|buf| buf.len() as u64 >= len);
        if offset & block != 0 || len & block != 0 || (moves_data && !fits) {
            return Err(BlockError::Misaligned { offset, len });
        }
        Ok(())
    }
}

impl BlockError {
    /// Converts a system error number.
    pub fn from_errno(errno: i32) -> Self {
        match errno {
            // EFBIG: limit of the process (RLIMIT_FSIZE) or of the file system.
            libc::ENOSPC | libc::EDQUOT | libc::EFBIG => Self::NoSpace,
            libc::ENODEV | libc::ENXIO | libc::ESHUTDOWN | libc::ENOMEDIUM => Self::Gone,
            libc::EOPNOTSUPP | libc::ENOSYS | libc::ENOTTY => Self::Unsupported,
            libc::ENOMEM | libc::ENOBUFS => Self::NoMemory,
            libc::EROFS | libc::EPERM => Self::ReadOnly,
            libc::ECANCELED => Self::Cancelled,
            libc::EIO | libc::EILSEQ | libc::ENODATA | libc::EREMOTEIO | libc::EUCLEAN => {
                Self::Media { errno }
            }
            errno => Self::Io(errno),
        }
    }
}
