//! The seam under a job: a queue that takes I/Os and gives them back, whatever is behind it.
//!
//! | file | what is behind it |
//! |---|---|
//! | `fabric` | an I/O queue of a controller that was connected over a fabric |
//! | `local` | a queue of a block device of this machine: a file, a kernel's device, a drive under our own driver |
//!
//! An I/O owns its buffer until it is done. Each kind of queue has its own kind of memory, and nothing is copied.

mod fabric;
mod local;

pub(crate) use fabric::FabricQueue;
pub(crate) use local::LocalQueue;
use nvmeof_core::dma::{CHUNK, CorePool, LeaseError};
use nvmeof_initiator::Nanos;

/// One job's way to a device; nothing happens on it but in [`Queue::poll`] and [`Queue::flush`].
pub(crate) trait Queue: std::fmt::Debug {
    /// I/Os it takes now.
    fn room(&self) -> usize;

    /// Takes an I/O in, to be started by [`Queue::flush`] at the latest.
    ///
    /// # Errors
    /// The I/O, handed back: there is no room or no memory, or the queue has failed and
    /// [`Queue::poll`] says why.
    fn submit(&mut self, io: Io, now: Nanos) -> Result<(), Io>;

    /// Appends what is done to `done`. Does not wait.
    ///
    /// # Errors
    /// The queue has failed: what was outstanding has been appended, and it is of no more use.
    fn poll(&mut self, now: Nanos, done: &mut Vec<Done>) -> Result<(), Lost>;

    /// Starts what was taken in.
    ///
    /// # Errors
    /// The queue has failed; the next [`Queue::poll`] ends what is outstanding.
    fn flush(&mut self) -> Result<(), Lost>;
}

/// An I/O of whole logical blocks.
#[derive(Debug)]
pub(crate) struct Io {
    /// Comes back with its end; the highest bit is the queue's.
    pub(crate) token: u64,
    /// Namespace, where the queue reaches several.
    pub(crate) nsid: u32,
    /// First logical block.
    pub(crate) slba: u64,
    /// Logical blocks.
    pub(crate) blocks: u32,
    pub(crate) op: Op,
}

/// What an I/O does. Buffers are as long as the blocks are.
#[derive(Debug)]
pub(crate) enum Op {
    /// Fills the buffer.
    Read(Buffer),
    /// Writes the buffer.
    Write(Buffer),
    /// The blocks' contents are no longer wanted.
    Trim,
}

/// The end of an I/O.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) token: u64,
    /// Or what went wrong, in words.
    pub(crate) result: Result<(), String>,
    /// The I/O's buffer, if it had one.
    pub(crate) buffer: Option<Buffer>,
}

/// A queue that is of no more use, and why.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Lost(pub(crate) String);

impl Op {
    /// The buffer, back from an I/O that was not taken.
    pub(crate) fn into_buffer(self) -> Option<Buffer> {
        match self {
            Self::Read(buffer) | Self::Write(buffer) => Some(buffer),
            Self::Trim => None,
        }
    }
}

/// Where the memory of a queue's I/Os comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Memory {
    /// The initiator's buffers.
    Fabric,
    /// Leases of the pool that local devices reach.
    Local,
}

/// Memory of an I/O.
#[derive(Debug)]
pub(crate) enum Buffer {
    /// The initiator's.
    Fabric(nvmeof_initiator::Buffer),
    /// Leased from the pool that local devices reach: one lease, or several where an I/O is larger than one may be.
    Local(Leases),
}

/// What of the pool an I/O has.
#[derive(Debug)]
pub(crate) enum Leases {
    One(nvmeof_core::dma::Buffer),
    /// All but the last are of [`CHUNK`] bytes.
    Several(Vec<nvmeof_core::dma::Buffer>),
}

impl Leases {
    /// `len` bytes of the pool.
    pub(crate) fn of(pool: &CorePool, len: usize) -> Result<Self, LeaseError> {
        if len <= CHUNK {
            return pool.lease(len).map(Self::One);
        }
        let lens = (0..len.div_ceil(CHUNK)).map(|part| CHUNK.min(len - part * CHUNK));
        lens.map(|len| pool.lease(len)).collect::<Result<_, _>>().map(Self::Several)
    }
}

impl Buffer {
    /// The bytes, piece by piece; pieces are whole blocks.
    pub(crate) fn piece(&self, number: usize) -> Option<&[u8]> {
        match self {
            Self::Fabric(buffer) => (number == 0).then(|| buffer.as_slice()),
            Self::Local(Leases::One(lease)) => (number == 0).then(|| lease.as_slice()),
            Self::Local(Leases::Several(leases)) => leases.get(number).map(|l| l.as_slice()),
        }
    }

    /// Hands over the bytes to be changed, piece by piece.
    pub(crate) fn for_each_piece(&mut self, mut change: impl FnMut(&mut [u8])) {
        match self {
            Self::Fabric(buffer) => change(buffer.as_mut_slice()),
            Self::Local(Leases::One(lease)) => change(lease.as_mut_slice()),
            Self::Local(Leases::Several(leases)) => {
                leases.iter_mut().for_each(|lease| change(lease.as_mut_slice()));
            }
        }
    }

    /// Bytes.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Fabric(buffer) => buffer.len(),
            Self::Local(Leases::One(lease)) => lease.len(),
            Self::Local(Leases::Several(leases)) => leases.iter().map(|lease| lease.len()).sum(),
        }
    }

    /// Which memory it is.
    #[inline]
    pub(crate) fn memory(&self) -> Memory {
        match self {
            Self::Fabric(_) => Memory::Fabric,
            Self::Local(_) => Memory::Local,
        }
    }
}
