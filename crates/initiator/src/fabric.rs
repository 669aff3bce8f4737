//! What a fabric has to do for a queue: one small trait, so that a fabric is one folder.

use std::time::Duration;

use nvmeof_wire::Sqe;

use crate::{Buffer, CommandError, Error, Nanos};

/// The data of a command.
#[derive(Debug)]
pub enum Transfer {
    /// None.
    None,
    /// From the controller into the buffer, all of it.
    In(Buffer),
    /// From the buffer to the controller, all of it.
    Out(Buffer),
}

/// A command for a queue pair. The queue pair fills in command identifier and data pointer.
#[derive(Debug)]
pub struct Command {
    /// Comes back with the completion; chosen by the caller.
    pub token: u64,
    /// Submission queue entry.
    pub sqe: Sqe,
    /// Data.
    pub transfer: Transfer,
}

/// The end of a command.
#[derive(Debug)]
pub struct Completed {
    /// The command's token.
    pub token: u64,
    /// Result of the completion (dwords 0 and 1), or why there is none.
    pub result: Result<u64, CommandError>,
    /// The command's buffer, if it had one.
    pub buffer: Option<Buffer>,
}

/// A submission that was not taken; the command comes back.
#[derive(Debug)]
pub struct Rejected {
    /// The command as it was.
    pub command: Command,
    /// Why it was not taken.
    pub why: RejectReason,
}

/// Why a submission was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RejectReason {
    /// As many commands as the queue holds are outstanding.
    #[error("the queue is full")]
    Full,
    /// The connection has ended.
    #[error("the queue's connection has ended")]
    Closed,
    /// More data than a command can carry.
    #[error("more data than one command can carry")]
    TooLarge,
}

/// What the connection of a queue is to be like.
#[derive(Debug, Clone, Copy)]
pub(crate) struct QueueSpec {
    /// Queue identifier; 0 for the admin queue.
    pub(crate) qid: u16,
    /// The controller, unless it is not known yet.
    pub(crate) cntlid: Option<u16>,
    /// Most commands outstanding.
    pub(crate) depth: u16,
    /// Most bytes of in-capsule data of an I/O command; without meaning for an admin queue.
    pub(crate) in_capsule: u32,
    /// Bytes between a command and its in-capsule data.
    pub(crate) in_capsule_offset: u32,
    /// How long connecting may take.
    pub(crate) timeout: Duration,
}

/// Connects the queues of one controller.
pub(crate) trait Connector: std::fmt::Debug + Send {
    /// A fresh connection, on which nothing has been sent.
    fn connect(&self, queue: &QueueSpec) -> Result<Box<dyn QueuePair>, Error>;

    /// Bytes of in-capsule data it can put behind an I/O command, where the controller takes `room` bytes
    /// there and the data begin `offset` bytes into them.
    fn in_capsule(&self, room: u32, offset: u32) -> u32;

    /// Most bytes of data of a command, whatever the controller takes.
    fn max_transfer(&self) -> u64;
}

/// One connection that carries one NVMe queue.
pub(crate) trait QueuePair: std::fmt::Debug + Send {
    /// Takes a command in; bytes move in [`QueuePair::flush`]. `deadline` is when it has to be complete.
    #[expect(clippy::result_large_err, reason = "a submission that fails hands the command back")]
    fn submit(&mut self, command: Command, deadline: Nanos) -> Result<(), Rejected>;

    /// Takes in what has arrived and appends what has completed. Does not wait.
    fn receive(&mut self, done: &mut Vec<Completed>) -> Result<(), Error>;

    /// Sends what is to be sent, as far as the peer takes it. Does not wait.
    fn flush(&mut self) -> Result<(), Error>;

    /// Ends the connection; every command outstanding completes, those past their deadline at `now` with
    /// [`CommandError::TimedOut`], the rest with [`CommandError::ConnectionLost`].
    fn close(&mut self, now: Nanos, done: &mut Vec<Completed>);

    /// Waits until bytes may be received (or sent, if some are waiting for that), at most this long.
    fn wait(&mut self, timeout: Duration);

    /// Is a command past its deadline?
    fn is_overdue(&self, now: Nanos) -> bool;

    /// Commands outstanding.
    fn in_flight(&self) -> usize;

    /// The other end, for messages.
    fn peer(&self) -> &str;
}
