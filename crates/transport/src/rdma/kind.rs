//! Kinds of work, in the top byte of an identifier.

/// A receive of the queue pair.
pub(super) const RECEIVE: u8 = 1;
/// A receive of the shared queue.
pub(super) const SHARED_RECEIVE: u8 = 2;
/// An RDMA READ of a pull.
pub(super) const READ: u8 = 3;
/// An RDMA WRITE of a response's data.
pub(super) const WRITE: u8 = 4;
/// The SEND of a response.
pub(super) const SEND: u8 = 5;
/// Work without an operation, at the end of the send queue.
pub(super) const MARKER: u8 = 6;
