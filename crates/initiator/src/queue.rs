//! One I/O queue.

use nvmeof_wire::Sqe;
use nvmeof_wire::nvm::{BlockIo, DSM_RANGE_SIZE, DSM_RANGES_MAX, DatasetManagement};
use nvmeof_wire::opcode::IoOpcode;

use crate::fabric::QueuePair;
use crate::{Buffer, Command, CompletedCommand, Error, Nanos, RejectedCommand, Transfer};

/// Interval of the checks for commands past their deadline.
const CHECK_EVERY: Nanos = 100_000_000;

/// An I/O command.
#[derive(Debug)]
pub struct Io {
    /// Token that the completion returns.
    pub token: u64,
    /// Namespace identifier.
    pub nsid: u32,
    /// First logical block.
    pub slba: u64,
    /// Logical blocks, 1 to 65536; ignored for Flush and Deallocate.
    pub blocks: u32,
    /// Operation of the command.
    pub kind: IoKind,
}

/// Operation of an I/O command. Buffers have the length of the blocks.
#[derive(Debug)]
pub enum IoKind {
    /// Reads into the buffer.
    Read(Buffer),
    /// Writes the buffer.
    Write {
        /// The data.
        data: Buffer,
        /// Force Unit Access: the data is on the medium before the command completes.
        fua: bool,
    },
    /// Compares with the buffer.
    Compare(Buffer),
    /// Writes the data of all completed writes to the medium.
    Flush,
    /// Writes zeros.
    WriteZeroes {
        /// Allows the controller to deallocate the blocks.
        deallocate: bool,
    },
    /// Reads without transferring data.
    Verify,
    /// Deallocates the ranges in the buffer (16 bytes each, NVM Figure 41).
    Deallocate(Buffer),
}

/// An I/O queue of a controller, created by
/// [`Controller::open_queue`](crate::Controller::open_queue). One thread uses and polls it; nothing
/// happens between polls.
#[derive(Debug)]
pub struct IoQueue {
    pair: Box<dyn QueuePair>,
    qid: u16,
    depth: u16,
    timeout: Nanos,
    next_check: Nanos,
    /// A flush has failed: the next poll ends the connection.
    cannot_send: bool,
}

impl IoQueue {
    pub(crate) fn new(pair: Box<dyn QueuePair>, qid: u16, depth: u16, timeout: Nanos) -> Self {
        Self { pair, qid, depth, timeout, next_check: 0, cannot_send: false }
    }

    /// Queue identifier.
    #[must_use]
    pub fn qid(&self) -> u16 {
        self.qid
    }

    /// Maximum commands outstanding.
    #[must_use]
    pub fn depth(&self) -> u16 {
        self.depth
    }

    /// Commands outstanding.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.pair.in_flight()
    }

    /// Queues a command; [`IoQueue::flush`] sends it.
    ///
    /// # Errors
    /// [`RejectedCommand`] has the command's buffer and the reason: the queue is full or its
    /// connection has ended.
    #[expect(clippy::result_large_err, reason = "a submission that fails hands the command back")]
    #[inline]
    pub fn submit(&mut self, io: Io, now: Nanos) -> Result<(), RejectedCommand> {
        let command = command(io);
        self.pair.submit(command, now.saturating_add(self.timeout))
    }

    /// Processes received data and appends completed commands to `done`. Does not block.
    ///
    /// # Errors
    /// If the connection has failed, or a command did not complete in time (the queue then ends the
    /// connection). Every outstanding command has been appended to `done` with the reason, and the
    /// queue cannot be used any more.
    #[inline]
    pub fn poll(&mut self, now: Nanos, done: &mut Vec<CompletedCommand>) -> Result<(), Error> {
        let received = self.pair.receive(done);
        // Responses can still arrive after a failed send, but no more follow.
        let unsent = || Error::Closed { peer: self.pair.peer().to_owned(), during: "" };
        if let Some(error) = received.err().or_else(|| self.cannot_send.then(unsent)) {
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

    /// Sends pending data until the peer accepts no more. Call it again after the next
    /// [`IoQueue::poll`], which can produce more to send.
    ///
    /// # Errors
    /// If the connection has failed; the next [`IoQueue::poll`] then ends the outstanding commands.
    #[inline]
    pub fn flush(&mut self) -> Result<(), Error> {
        let flushed = self.pair.flush();
        self.cannot_send |= flushed.is_err();
        flushed
    }

    /// Waits at most `timeout` until data arrives; for users that do not poll all the time.
    pub fn wait(&mut self, timeout: std::time::Duration) {
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::CommandError;

    /// A connection that accepts commands, completes none and cannot send, but whose reads succeed.
    #[derive(Debug, Default)]
    struct HalfDead(Vec<u64>);

    impl QueuePair for HalfDead {
        fn submit(&mut self, command: Command, _deadline: Nanos) -> Result<(), RejectedCommand> {
            self.0.push(command.token);
            Ok(())
        }

        fn receive(&mut self, _done: &mut Vec<CompletedCommand>) -> Result<(), Error> {
            Ok(())
        }

        fn flush(&mut self) -> Result<(), Error> {
            Err(Error::Closed { peer: String::new(), during: "" })
        }

        fn close(&mut self, _now: Nanos, done: &mut Vec<CompletedCommand>) {
            let lost = |token| {
                let result = Err(CommandError::ConnectionLost);
                CompletedCommand { token, result, buffer: None }
            };
            done.extend(self.0.drain(..).map(lost));
        }

        fn wait(&mut self, _timeout: Duration) {}

        fn is_overdue(&self, _now: Nanos) -> bool {
            false
        }

        fn in_flight(&self) -> usize {
            self.0.len()
        }

        fn peer(&self) -> &str {
            ""
        }
    }

    #[test]
    fn a_flush_that_fails_ends_what_is_outstanding_with_the_next_poll() {
        let mut queue = IoQueue::new(Box::new(HalfDead::default()), 1, 8, 1_000_000);
        for token in 0..3 {
            let io = Io { token, nsid: 1, slba: 0, blocks: 1, kind: IoKind::Flush };
            queue.submit(io, 0).expect("there is room");
        }
        let mut done = Vec::new();
        queue.poll(0, &mut done).expect("nothing is known to be wrong");
        assert!(queue.flush().is_err());
        assert!(queue.poll(0, &mut done).is_err());
        assert_eq!(done.len(), 3);
        assert_eq!(queue.in_flight(), 0);
    }
}
