//! Traits that a fabric implements for a queue. They are small, so that a fabric is one folder.

use std::time::Duration;

use nvmeof_wire::Sqe;

use crate::{Buffer, CommandError, Error, Nanos};

/// The data of a command.
#[derive(Debug)]
pub enum Transfer {
    /// No data.
    None,
    /// From the controller, filling the buffer.
    In(Buffer),
    /// The whole buffer to the controller.
    Out(Buffer),
}

/// A command for a queue pair. The queue pair sets the command identifier and the data pointer.
#[derive(Debug)]
pub struct Command {
    /// Token of the caller, which the completion returns.
    pub token: u64,
    /// Submission queue entry.
    pub sqe: Sqe,
    /// Data of the command.
    pub transfer: Transfer,
}

/// The end of a command.
#[derive(Debug)]
pub struct CompletedCommand {
    /// Token of the command.
    pub token: u64,
    /// Result of the completion (dwords 0 and 1), or the error.
    pub result: Result<u64, CommandError>,
    /// Buffer of the command, if it had one.
    pub buffer: Option<Buffer>,
}

/// A rejected submission, which returns the command.
#[derive(Debug)]
pub struct RejectedCommand {
    /// The command, unchanged.
    pub command: Command,
    /// Reason of the rejection.
    pub reason: RejectReason,
}

/// Reason of a rejected submission.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RejectReason {
    /// The queue is full: its maximum of commands is outstanding.
    #[error("the queue is full")]
    Full,
    /// The connection has ended.
    #[error("the queue's connection has ended")]
    Closed,
    /// More data than a command can carry.
    #[error("more data than one command can carry")]
    TooLarge,
}

/// Parameters of a queue's connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct QueueSpec {
    /// Queue identifier; 0 for the admin queue.
    pub(crate) qid: u16,
    /// Controller ID, unless it is not known yet.
    pub(crate) cntlid: Option<u16>,
    /// Maximum commands outstanding.
    pub(crate) depth: u16,
    /// Maximum bytes of in-capsule data of an I/O command; ignored for an admin queue.
    pub(crate) in_capsule: u32,
    /// Bytes between a command and its in-capsule data.
    pub(crate) in_capsule_offset: u32,
    /// Timeout for connecting.
    pub(crate) timeout: Duration,
}

/// Connects the queues of one controller.
pub(crate) trait Connector: std::fmt::Debug + Send {
    /// Returns a new connection on which nothing has been sent.
    fn connect(&self, queue: &QueueSpec) -> Result<Box<dyn QueuePair>, Error>;

    /// Returns the bytes of in-capsule data that this fabric can append to an I/O command. The
    /// controller accepts `room` bytes there, and the data begins at `offset` within them.
    fn in_capsule(&self, room: u32, offset: u32) -> u32;

    /// Maximum data bytes of a command, regardless of the controller.
    fn max_transfer(&self) -> u64;
}

/// One connection that carries one NVMe queue.
pub(crate) trait QueuePair: std::fmt::Debug + Send {
    /// Queues a command; [`QueuePair::flush`] sends it. It has to complete before `deadline`.
    #[expect(clippy::result_large_err, reason = "a submission that fails hands the command back")]
    fn submit(&mut self, command: Command, deadline: Nanos) -> Result<(), RejectedCommand>;

    /// Processes received data and appends completed commands. Does not block.
    fn receive(&mut self, done: &mut Vec<CompletedCommand>) -> Result<(), Error>;

    /// Sends pending data until the peer accepts no more. Does not block.
    fn flush(&mut self) -> Result<(), Error>;

    /// Ends the connection. Every outstanding command completes: those past their deadline at `now`
    /// with [`CommandError::TimedOut`], the rest with [`CommandError::ConnectionLost`].
    fn close(&mut self, now: Nanos, done: &mut Vec<CompletedCommand>);

    /// Waits at most `timeout` until bytes can be received, or sent if some are pending.
    fn wait(&mut self, timeout: Duration);

    /// Returns true if a command is past its deadline.
    fn is_overdue(&self, now: Nanos) -> bool;

    /// Commands outstanding.
    fn in_flight(&self) -> usize;

    /// Address of the peer, for messages.
    fn peer(&self) -> &str;
}
