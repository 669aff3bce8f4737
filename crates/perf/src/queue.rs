//! The interface below a job: a queue that takes I/Os and completes them, over any backend.
//!
//! | file | backend |
//! |---|---|
//! | `fabric` | an I/O queue of a controller connected over a fabric |
//! | `local` | a queue of a local block device: file, kernel device, drive under the VFIO driver |
//!
//! An I/O owns its buffer until it has completed. Each kind of queue has its own kind of memory,
//! and no data is copied.

mod fabric;
mod local;

pub(crate) use fabric::FabricQueue;
pub(crate) use local::LocalQueue;
use nvmeof_core::dma::{CHUNK, CorePool, LeaseError};
use nvmeof_initiator::Nanos;

/// A job's route to a device. Work happens only in [`DeviceQueue::poll`] and
/// [`DeviceQueue::flush`].
pub(crate) trait DeviceQueue: std::fmt::Debug {
    /// Number of I/Os that it accepts now.
    fn room(&self) -> usize;

    /// Accepts an I/O, and starts it in [`DeviceQueue::flush`] at the latest.
    ///
    /// # Errors
    /// Returns the I/O: there is no room or no memory, or the queue has failed and
    /// [`DeviceQueue::poll`] returns the reason.
    fn submit(&mut self, io: Io, now: Nanos) -> Result<(), Io>;

    /// Appends completed I/Os to `done`. Does not block.
    ///
    /// # Errors
    /// The queue has failed. Its outstanding I/Os are in `done`, and it is unusable from now on.
    fn poll(&mut self, now: Nanos, done: &mut Vec<IoDone>) -> Result<(), QueueFailed>;

    /// Starts the accepted I/Os.
    ///
    /// # Errors
    /// The queue has failed; the next [`DeviceQueue::poll`] ends the outstanding I/Os.
    fn flush(&mut self) -> Result<(), QueueFailed>;
}

/// An I/O of whole logical blocks.
#[derive(Debug)]
pub(crate) struct Io {
    /// Returned with the completion; the highest bit belongs to the queue.
    pub(crate) token: u64,
    /// Namespace, if the queue reaches several.
    pub(crate) nsid: u32,
    /// First logical block.
    pub(crate) slba: u64,
    /// Logical blocks.
    pub(crate) blocks: u32,
    pub(crate) op: IoOp,
}

/// Operation of an I/O. Buffers are as long as the blocks.
#[derive(Debug)]
pub(crate) enum IoOp {
    /// Fills the buffer.
    Read(IoBuffer),
    /// Writes the buffer.
    Write(IoBuffer),
    /// Deallocates the blocks.
    Trim,
}

/// Completion of an I/O.
#[derive(Debug)]
pub(crate) struct IoDone {
    pub(crate) token: u64,
    /// An error is text for the user.
    pub(crate) result: Result<(), String>,
    /// The I/O's buffer, if it had one.
    pub(crate) buffer: Option<IoBuffer>,
}

/// A failed queue, and the reason.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct QueueFailed(pub(crate) String);

impl IoOp {
    /// Returns the buffer of an I/O that was not accepted.
    pub(crate) fn into_buffer(self) -> Option<IoBuffer> {
        match self {
            Self::Read(buffer) | Self::Write(buffer) => Some(buffer),
            Self::Trim => None,
        }
    }
}

/// Kind of memory of a queue's I/Os.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IoMemory {
    /// The initiator's buffers.
    Fabric,
    /// Leases of the pool that local devices access.
    Local,
}

/// Memory of an I/O.
#[derive(Debug)]
pub(crate) enum IoBuffer {
    /// A buffer of the initiator.
    Fabric(nvmeof_initiator::Buffer),
    /// Leased from the pool that local devices access; several leases if the I/O exceeds the
    /// maximum of one.
    Local(IoLeases),
}

/// The leases of an I/O.
#[derive(Debug)]
pub(crate) enum IoLeases {
    One(nvmeof_core::dma::Buffer),
    /// All but the last have [`CHUNK`] bytes.
    Several(Vec<nvmeof_core::dma::Buffer>),
}

impl IoLeases {
    /// Leases `len` bytes of the pool.
    pub(crate) fn of(pool: &CorePool, len: usize) -> Result<Self, LeaseError> {
        if len <= CHUNK {
            return pool.lease(len).map(Self::One);
        }
        let lens = (0..len.div_ceil(CHUNK)).map(|part| CHUNK.min(len - part * CHUNK));
        lens.map(|len| pool.lease(len)).collect::<Result<_, _>>().map(Self::Several)
    }
}

impl IoBuffer {
    /// Returns the bytes of one piece; pieces are whole blocks.
    pub(crate) fn piece(&self, number: usize) -> Option<&[u8]> {
        match self {
            Self::Fabric(buffer) => (number == 0).then(|| buffer.as_slice()),
            Self::Local(IoLeases::One(lease)) => (number == 0).then(|| lease.as_slice()),
            Self::Local(IoLeases::Several(leases)) => leases.get(number).map(|l| l.as_slice()),
        }
    }

    /// Passes each piece to `change` as mutable bytes.
    pub(crate) fn for_each_piece(&mut self, mut change: impl FnMut(&mut [u8])) {
        match self {
            Self::Fabric(buffer) => change(buffer.as_mut_slice()),
            Self::Local(IoLeases::One(lease)) => change(lease.as_mut_slice()),
            Self::Local(IoLeases::Several(leases)) => {
                leases.iter_mut().for_each(|lease| change(lease.as_mut_slice()));
            }
        }
    }

    /// Length in bytes.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Fabric(buffer) => buffer.len(),
            Self::Local(IoLeases::One(lease)) => lease.len(),
            Self::Local(IoLeases::Several(leases)) => leases.iter().map(|lease| lease.len()).sum(),
        }
    }

    /// Kind of memory.
    #[inline]
    pub(crate) fn memory(&self) -> IoMemory {
        match self {
            Self::Fabric(_) => IoMemory::Fabric,
            Self::Local(_) => IoMemory::Local,
        }
    }
}
