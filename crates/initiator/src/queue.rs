//! One I/O queue.

use nvmeof_wire::Sqe;
use nvmeof_wire::nvm::{BlockIo, DSM_RANGE_SIZE, DSM_RANGES_MAX, DatasetManagement};
use nvmeof_wire::opcode::IoOpcode;

use crate::fabric::QueuePair;
use crate::{Buffer, Command, Completed, Error, Nanos, Rejected, Transfer};

/// Time between looks for commands past their deadline.
const CHECK_EVERY: Nanos = 100_000_000;

/// An I/O command.
#[derive(Debug)]
pub struct Io {
    /// Comes back with the completion.
    pub token: u64,
    /// Namespace.
    pub nsid: u32,
    /// First logical block.
    pub slba: u64,
    /// Logical blocks, 1 to 65536; without meaning for Flush and Deallocate.
    pub blocks: u32,
    /// What is to be done.
    pub kind: IoKind,
}

/// What an I/O command does. Buffers are as long as the blocks are.
#[derive(Debug)]
pub enum IoKind {
    /// Reads into the buffer.
    Read(Buffer),
    /// Writes the buffer.
    Write {
        /// The data.
        data: Buffer,
        /// Force Unit Access: on the medium before it completes.
        fua: bool,
    },
    /// Compares with the buffer.
    Compare(Buffer),
    /// All completed writes to the medium.
    Flush,
    /// Writes zeros.
    WriteZeroes {
        /// The blocks may be deallocated.
        deallocate: bool,
    },
    /// Reads without moving data.
    Verify,
    /// Deallocates the ranges in the buffer (16 bytes each, NVM Figure 41).
    Deallocate(Buffer),
}

/// An I/O queue of a controller; made by [`Controller::open_queue`](crate::Controller::open_queue), used by one
/// thread, and polled by it: nothing happens in between.
#[derive(Debug)]
pub struct IoQueue {
    pair: Box<dyn QueuePair>,
    qid: u16,
    depth: u16,
    timeout: Nanos,
    next_check: Nanos,
}

impl IoQueue {
    pub(crate) fn new(pair: Box<dyn QueuePair>, qid: u16, depth: u16, timeout: Nanos) -> Self {
        Self { pair, qid, depth, timeout, next_check: 0 }
    }

    /// Queue identifier.
    #[must_use]
    pub fn qid(&self) -> u16 {
        self.qid
    }

    /// Commands it can have outstanding.
    #[must_use]
    pub fn depth(&self) -> u16 {
        self.depth
    }

    /// Commands outstanding.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.pair.in_flight()
    }

    /// Takes a command in, to be sent by [`IoQueue::flush`].
    ///
    /// # Errors
    /// [`Rejected`] has the command's buffer and the reason: the queue is full or its connection has ended.
    #[inline]
    pub fn submit(&mut self, io: Io, now: Nanos) -> Result<(), Rejected> {
        let command = command(io);
        self.pair.submit(command, now.saturating_add(self.timeout))
    }

    /// Takes in what has arrived and appends the commands that have completed to `done`. Does not wait.
    ///
    /// # Errors
    /// If the connection has failed, or a command did not complete in time (the connection is then ended).
    /// Every outstanding command has been appended to `done` with the reason; the queue is of no more use.
    #[inline]
    pub fn poll(&mut self, now: Nanos, done: &mut Vec<Completed>) -> Result<(), Error> {
        if let Err(error) = self.pair.receive(done) {
            self.pair.close(now, done);
            return Err(error);
        }
        if now >= self.next_check {
            self.next_check = now.saturating_add(CHECK_EVERY);
            if self.pair.is_overdue(now) {
                self.pair.close(now, done);
                let after = std::time::Duration::from_nanos(self.timeout);
                let what = format!("a command on queue {}", self.qid);
                return Err(Error::Timeout { peer: self.pair.peer().to_owned(), what, after });
            }
        }
        Ok(())
    }

    /// Sends what is to be sent, as far as the peer takes it; to be called again after the next
    /// [`IoQueue::poll`], which may have made more to send.
    ///
    /// # Errors
    /// If the connection has failed; the next [`IoQueue::poll`] then ends the outstanding commands.
    #[inline]
    pub fn flush(&mut self) -> Result<(), Error> {
        self.pair.flush()
    }

    /// Waits until something arrives, at most this long; for users that do not poll all the time.
    pub fn wait(&self, timeout: std::time::Duration) {
        self.pair.wait(timeout);
    }
}

#[inline]
fn command(io: Io) -> Command {
    let blocks = |opcode| BlockIo::new(io.slba, io.blocks).encode(opcode, 0, io.nsid);
    let (sqe, transfer) = match io.kind {
        IoKind::Read(buffer) => (blocks(IoOpcode::READ), Transfer::In(buffer)),
        IoKind::Write { data, fua } => {
            let block_io = BlockIo { fua, ..BlockIo::new(io.slba, io.blocks) };
            (block_io.encode(IoOpcode::WRITE, 0, io.nsid), Transfer::Out(data))
        }
        IoKind::Compare(buffer) => (blocks(IoOpcode::COMPARE), Transfer::Out(buffer)),
        IoKind::Flush => (Sqe::io(IoOpcode::FLUSH, 0, io.nsid), Transfer::None),
        IoKind::WriteZeroes { deallocate } => {
            let block_io = BlockIo { deallocate, ..BlockIo::new(io.slba, io.blocks) };
            (block_io.encode(IoOpcode::WRITE_ZEROES, 0, io.nsid), Transfer::None)
        }
        IoKind::Verify => (blocks(IoOpcode::VERIFY), Transfer::None),
        IoKind::Deallocate(ranges) => {
            let count = ranges.len() / DSM_RANGE_SIZE as usize;
            let dsm = DatasetManagement {
                ranges: u16::try_from(count).unwrap_or(u16::MAX).clamp(1, DSM_RANGES_MAX),
                deallocate: true,
                integral_write: false,
                integral_read: false,
            };
            (dsm.encode(0, io.nsid), Transfer::Out(ranges))
        }
    };
    Command { token: io.token, sqe, transfer }
}
