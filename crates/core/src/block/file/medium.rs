//! The few calls the `file` device makes of a medium, apart from how they are made: io_uring
//! ([`Ring`](super::ring::Ring)) in the daemon, a log or a script around it in tests.

use std::fmt::Debug;
use std::os::fd::BorrowedFd;

use crate::dma::Buffer;

/// Bytes of the longest [`Call::WriteZeroes`].
pub(super) const ZERO_WRITE: u64 = 256 << 10;

/// Bytes of the longest [`Call::Zero`], and what longer ranges are cut at multiples of: between two
/// calls an operation can be cancelled.
pub(super) const ZERO_CALL: u64 = 64 << 20;

/// One call. `skip` and `len` name the bytes of the buffer that goes with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Call {
    /// Fill `len` bytes of the buffer from `skip` on.
    Read { offset: u64, skip: u32, len: u32 },
    /// Write `len` bytes of the buffer from `skip` on; `dsync`: answered when they are on the
    /// medium (`RWF_DSYNC`).
    Write { offset: u64, skip: u32, len: u32, dsync: bool },
    /// Write `len` zero bytes, at most [`ZERO_WRITE`].
    WriteZeroes { offset: u64, len: u32 },
    /// Zero a range of at most [`ZERO_CALL`] without moving data (`fallocate`): keeps it allocated,
    /// or frees it.
    Zero { offset: u64, len: u64, free: bool },
    /// Put every write answered before on the medium (`fdatasync`).
    Sync,
}

/// The answer to a call.
#[derive(Debug)]
pub(super) struct Answer {
    /// The slot it was issued with.
    pub(super) slot: usize,
    /// Bytes moved, 0, or a negated error number.
    pub(super) result: i32,
    /// The buffer issued with it.
    pub(super) buf: Option<Buffer>,
}

/// Where calls go. A slot has at most one call out; its buffer is the medium's until then.
/// Dropping a medium ends or awaits every call before the buffers go back.
pub(super) trait Medium: Debug {
    /// Takes a call; it starts with the next [`submit`](Self::submit) at the latest.
    fn issue(&mut self, slot: usize, call: Call, buf: Option<Buffer>);

    /// Starts every call taken.
    fn submit(&mut self);

    /// Appends the answers that are there.
    fn reap(&mut self, answers: &mut Vec<Answer>);

    /// Readable when answers are there.
    fn event_fd(&self) -> Option<BorrowedFd<'_>>;
}
