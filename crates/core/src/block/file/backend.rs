//! Calls that the `file` device makes, independent of their execution.
//!
//! The daemon uses io_uring ([`Ring`](super::ring::Ring)); tests wrap it with a log or a script.

use std::fmt::Debug;
use std::os::fd::BorrowedFd;

use crate::dma::Buffer;

/// Maximum bytes of a [`FileCall::WriteZeroes`].
pub(super) const ZERO_WRITE: u64 = 256 << 10;

/// Maximum bytes of a [`FileCall::Zero`]. Longer ranges are split at multiples of it, so that an
/// operation can be cancelled between two calls.
pub(super) const ZERO_CALL: u64 = 64 << 20;

/// A call. `skip` and `len` select the bytes of its buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FileCall {
    /// Reads `len` bytes into the buffer at `skip`.
    Read { offset: u64, skip: u32, len: u32 },
    /// Writes `len` bytes of the buffer from `skip`. With `dsync` it completes when they are on the
    /// medium (`RWF_DSYNC`).
    Write { offset: u64, skip: u32, len: u32, dsync: bool },
    /// Writes `len` zero bytes, at most [`ZERO_WRITE`].
    WriteZeroes { offset: u64, len: u32 },
    /// Zeroes a range of at most [`ZERO_CALL`] without moving data (`fallocate`): keeps it
    /// allocated, or frees it.
    Zero { offset: u64, len: u64, free: bool },
    /// Puts every write completed before on the medium (`fdatasync`).
    Sync,
}

/// Result of a call.
#[derive(Debug)]
pub(super) struct FileResult {
    /// Slot of the call.
    pub(super) slot: usize,
    /// Bytes moved, 0, or a negated error number.
    pub(super) result: i32,
    /// Buffer of the call.
    pub(super) buf: Option<Buffer>,
}

/// Target of calls. A slot has at most one call in flight, and the medium owns its buffer until the
/// result. Dropping a medium cancels or awaits every call before the buffers are released.
pub(super) trait FileBackend: Debug {
    /// Takes a call; it starts with the next [`submit`](Self::submit) at the latest.
    fn issue(&mut self, slot: usize, call: FileCall, buf: Option<Buffer>);

    /// Starts all issued calls.
    fn submit(&mut self);

    /// Appends the available results.
    fn reap(&mut self, answers: &mut Vec<FileResult>);

    /// Descriptor that is readable when results are available.
    fn event_fd(&self) -> Option<BorrowedFd<'_>>;
}
