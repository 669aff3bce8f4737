//! The seam between a reactor and a fabric: one [`HostQueue`] per host connection, and a [`Source`] for what
//! the connections of a reactor share.
//!
//! Rules of the seam, kept by every fabric and checked by the shared tests:
//!
//! * a [`FabricOp`] that was accepted comes back exactly once (`Pulled` for a pull; `Sent` for a
//!   response that carried data; nothing for a response without data, whose slot is free at once);
//! * a [`FabricOp`] that was refused comes back in [`Rejected`];
//! * after [`HostQueue::close`], or when the peer goes away, every operation still held is given
//!   back as an event and then [`Event::Closed`] is produced exactly once, as the very last event;
//! * `receive` and `flush` never block, and do a bounded amount of work.

use std::any::Any;
use std::fmt::Debug;
use std::os::fd::BorrowedFd;

use nvmeof_core::dma::{Buffer, CorePool, Lent, Payload};
use nvmeof_wire::{Cqe, Sgl, Sqe};

/// Monotonic time in nanoseconds, handed in by the caller.
pub type Nanos = u64;

/// One host connection, which is one NVMe queue, owned by one reactor.
pub trait HostQueue: Debug {
    /// Reads and parses what has arrived, appending to `events`. Bounded per call for fairness;
    /// [`Progress::More`] asks for another call in the next turn. Also acts on a
    /// [`deadline`](Self::deadline) that `now` has passed.
    fn receive(&mut self, now: Nanos, events: &mut Vec<Event>) -> Progress;

    /// Takes an operation. Bytes move in [`flush`](Self::flush).
    ///
    /// # Errors
    /// The operation, untouched, and why it was not taken.
    fn submit(&mut self, op: FabricOp) -> Result<(), Rejected>;

    /// Sends the turn's output, appending [`Event::Sent`] for what has left: gone to the network, not
    /// merely into a queue of the system's.
    /// [`Progress::Idle`] when nothing is left to send or the fabric takes no more for now.
    ///
    /// `room` is how many bytes all connections together may send in this turn. A fabric that copies what it sends takes
    /// them off, sends whole what it began, and says [`Progress::More`] when there is no room for the rest.
    fn flush(&mut self, room: &mut usize, now: Nanos, events: &mut Vec<Event>) -> Progress;

    /// When to look, with [`depart`](Self::depart), for data that is still on its way out, since
    /// nothing announces that it has left; `None` while there is none.
    fn departing(&self) -> Option<Nanos> {
        None
    }

    /// Appends [`Event::Sent`] for what has left by now.
    fn depart(&mut self, _now: Nanos, _events: &mut Vec<Event>) {}

    /// Begins the teardown: later calls of `receive` or `flush` give back every operation and then
    /// [`Event::Closed`]. Calling it again changes nothing.
    fn close(&mut self, why: CloseReason);

    /// Tells the queue what the accepted Connect command settled.
    fn connected(&mut self, info: Connected);

    /// What to register, edge-triggered, for input and output readiness. Where it comes only later
    /// [`Event::Watch`] says so.
    fn fd(&self) -> Option<BorrowedFd<'_>>;

    /// When `receive` must be called even if nothing arrives: stalled handshake, half a PDU, linger.
    fn deadline(&self) -> Option<Nanos>;

    /// The target stood still for so long: every [`deadline`](Self::deadline) is that much later.
    fn excuse(&mut self, _nanos: Nanos) {}

    /// Makes the queue movable to another reactor. Refused while anything is in flight.
    fn park(self: Box<Self>) -> Result<Box<dyn ParkedQueue>, Box<dyn HostQueue>>;

    /// Stops (or resumes) handing on new commands; what is in flight goes on. After resuming,
    /// `receive` must be called: what came meanwhile is not announced again.
    fn set_paused(&mut self, paused: bool);

    /// Gives the queue the token that its [`Source`] tells of it by. Called once, before anything else.
    fn set_token(&mut self, _token: u64) {}

    /// Whether a [`Source`] tells of what arrives: then there is no need to look unasked.
    fn is_told(&self) -> bool {
        false
    }

    /// Says whether buffer memory is short: while it is, a host that moves its data too slowly has
    /// no grace ([`pace`](crate::pace)). Only for a fabric whose host can hold a buffer by being slow.
    fn set_memory_short(&mut self, _is_short: bool, _now: Nanos) {}

    /// Whether the host has sent what begins a connection of the fabric (TCP: its `ICReq`).
    fn has_greeted(&self) -> bool {
        true
    }

    /// Whether [`park`](Self::park) can ever work: not for a queue that is bound to what its reactor has.
    fn is_movable(&self) -> bool {
        true
    }

    /// Whether a response may carry this as [`Payload::Lent`]: not where a device must know the memory it sends
    /// from, and does not know this.
    fn takes_lent(&self, _lent: &Lent) -> bool {
        true
    }
}

/// A connection that belongs to no reactor: freshly accepted, or idle and on its way to another.
pub trait ParkedQueue: Send + Debug {
    /// Gives the connection to the reactor whose `home` it is, which then calls `receive`: bytes may
    /// be there of which no edge will tell.
    fn unpark(self: Box<Self>, home: &mut Home<'_>) -> Result<Box<dyn HostQueue>, TransportError>;

    /// The host's address, for people.
    fn peer(&self) -> String;

    /// The queue's number at its controller, 0 for the admin queue, if the host has said it already.
    fn number(&self) -> Option<u16> {
        None
    }

    /// Ends a connection for which there is no room; a fabric that can tells the host so.
    fn refuse(self: Box<Self>) {}
}

/// What a reactor has for its connections.
#[derive(Debug)]
pub struct Home<'a> {
    /// Its buffers.
    pub pool: &'a CorePool,
    /// What they share.
    pub sources: &'a mut Sources,
}

/// Something that tells of several connections of a reactor at once: a completion queue of an RDMA device.
///
/// A reactor polls it in every turn, and then calls [`HostQueue::receive`] of the queues it named.
pub trait Source: Debug {
    /// Looks for what has happened, and appends the token of each queue that has something to
    /// [`receive`](HostQueue::receive). Bounded; [`Progress::More`] asks for another call next turn.
    fn poll(&mut self, now: Nanos, ready: &mut Vec<u64>) -> Progress;

    /// Has [`fd`](Self::fd) become readable with what happens next. What happened until then is not announced:
    /// it has to be polled for once more before the reactor sleeps.
    fn arm(&mut self);

    /// What to register, for input.
    fn fd(&self) -> BorrowedFd<'_>;

    /// Whether a queue still uses it.
    fn is_used(&self) -> bool;

    /// What it has counted.
    fn counts(&self) -> SourceCounts;

    /// For a fabric to find its own.
    fn as_any(&mut self) -> &mut dyn Any;
}

/// What a [`Source`] has counted since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SourceCounts {
    /// Looks at the completion queue.
    pub polls: u64,
    /// Looks that found something.
    pub found: u64,
    /// Completions.
    pub completions: u64,
    /// Commands among them.
    pub requests: u64,
    /// Queue pairs that could not be taken away when they should have been, and whose memory is kept until
    /// they are.
    pub withheld: u64,
}

impl SourceCounts {
    /// Both together.
    pub fn add(&mut self, other: &Self) {
        self.polls += other.polls;
        self.found += other.found;
        self.completions += other.completions;
        self.requests += other.requests;
        self.withheld += other.withheld;
    }
}

/// The sources of a reactor, with what each belongs to.
#[derive(Debug, Default)]
pub struct Sources {
    list: Vec<Registered>,
}

/// A source, as its reactor keeps it.
#[derive(Debug)]
pub struct Registered {
    /// What it is of, for people: the device's name.
    pub name: String,
    /// It is in the reactor's epoll set.
    pub is_watched: bool,
    /// It.
    pub source: Box<dyn Source>,
}

impl Sources {
    /// The source of type `T` that `is_it` knows, if there is one.
    pub fn find<T: Source + 'static>(
        &mut self,
        mut is_it: impl FnMut(&T) -> bool,
    ) -> Option<&mut T> {
        self.list
            .iter_mut()
            .filter_map(|one| one.source.as_any().downcast_mut::<T>())
            .find(|source| is_it(source))
    }

    /// Takes a source in.
    pub fn add(&mut self, name: String, source: Box<dyn Source>) {
        self.list.push(Registered { name, is_watched: false, source });
    }

    /// All of them.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Registered> {
        self.list.iter_mut()
    }

    /// All of them, to look at.
    pub fn iter(&self) -> impl Iterator<Item = &Registered> {
        self.list.iter()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Drops those that no queue uses any more, each after a call of `each`.
    pub fn drop_unused(&mut self, mut each: impl FnMut(&Registered)) {
        self.list.retain(|one| {
            let is_used = one.source.is_used();
            if !is_used {
                each(one);
            }
            is_used
        });
    }
}

/// What a call of [`HostQueue::receive`] or [`HostQueue::flush`] left behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Nothing more to do until the descriptor is ready again, a deadline passes, or an operation
    /// is submitted.
    Idle,
    /// Something was done and more may be there: call again next turn.
    More,
}

/// What the accepted Connect command settled about a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connected {
    /// The queue is an admin queue (its in-capsule data is limited to 8192 bytes).
    pub admin: bool,
    /// Entries in the submission queue (1's based): how many commands the host may have out.
    pub depth: u16,
}

/// Something the reactor has to act on.
#[derive(Debug)]
pub enum Event {
    /// A command capsule, with its in-capsule data if it had any.
    Command {
        /// The submission queue entry, as it came.
        sqe: Sqe,
        /// In-capsule data, from the queue's own reserve.
        data: Option<Buffer>,
    },
    /// A pull has ended; on success `buf` holds the host's data.
    Pulled {
        /// Token of the [`FabricOp::Pull`].
        token: u64,
        /// The buffer of the operation.
        buf: Buffer,
        /// Whether the data is there and good.
        result: Result<(), FabricError>,
    },
    /// The data of a response has left (or its connection is going): its permit may go back.
    Sent {
        /// Token of the [`FabricOp::Respond`].
        token: u64,
        /// The data of the operation, if the fabric had use for it up to now; else it has been
        /// dropped already.
        data: Option<Payload>,
    },
    /// A capsule arrived but its data is bad. Answer with the status the error maps to.
    CommandFailed {
        /// The submission queue entry, as it came; or with a data pointer that fits whatever it wants, where
        /// the pointer itself is what is bad.
        sqe: Sqe,
        /// What is wrong with the data.
        error: FabricError,
    },
    /// [`HostQueue::fd`] gives a descriptor that it did not give before: register it.
    Watch,
    /// The connection is gone and nothing more will come: drop the queue.
    Closed {
        /// Why it ended.
        reason: CloseReason,
    },
}

/// Work a reactor gives to a fabric.
#[derive(Debug)]
pub enum FabricOp {
    /// Fetch `buf.len()` bytes of a command's data from the host (TCP: R2T and H2CData; RDMA: READ).
    Pull {
        /// Chosen by the caller, given back in [`Event::Pulled`].
        token: u64,
        /// The command this data belongs to.
        cid: u16,
        /// Where the data is on the host.
        sgl: Sgl,
        /// Where it goes; not empty.
        buf: Buffer,
    },
    /// Send a response, after its data if it has any.
    Respond {
        /// Chosen by the caller, given back in [`Event::Sent`] if there is data.
        token: u64,
        /// The completion queue entry.
        cqe: Cqe,
        /// Where the data goes on the host.
        sgl: Sgl,
        /// The data.
        data: Option<Payload>,
        /// The completion says nothing but success, so a fabric may imply it (TCP: SUCCESS flag).
        elidable: bool,
    },
}

/// An operation that was not taken, handed back.
#[derive(Debug, thiserror::Error)]
#[error("operation not taken: {why}")]
pub struct Rejected {
    /// The operation, whole.
    pub op: FabricOp,
    /// Why it was not taken.
    pub why: RejectReason,
}

/// Why an operation was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RejectReason {
    /// The connection is closing or closed.
    #[error("the connection is closing")]
    Closing,
    /// More operations than the queue's depth allows.
    #[error("the queue holds as many operations as its depth allows")]
    QueueFull,
    /// The operation can never work (an empty pull, an SGL this fabric cannot use).
    #[error("the operation is not possible on this fabric")]
    Invalid,
}

/// What can go wrong with the data of one command while its connection lives on, or dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FabricError {
    /// The data digest does not match the data.
    #[error("data digest mismatch")]
    DataDigest,
    /// The fabric could not move the data (RDMA: a work request failed).
    #[error("data transfer failed")]
    Transfer,
    /// The connection ended before the data arrived.
    #[error("connection closed")]
    Closed,
    /// A descriptor of a type that this fabric does not take, or not there.
    #[error("an SGL descriptor has a type that is not allowed here")]
    SglType,
    /// Descriptors that do not go together, or with what came.
    #[error("the length of an SGL is invalid")]
    SglLength,
    /// Descriptors or data outside the capsule.
    #[error("an SGL offset is outside the capsule")]
    SglOffset,
    /// More descriptors than the controller takes (MSDBD), or none.
    #[error("the number of SGL descriptors is invalid")]
    SglCount,
}

/// Why a connection ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CloseReason {
    /// The host closed the connection in good order.
    #[error("closed by the host")]
    PeerClosed,
    /// The host ended the connection because of an error it saw.
    #[error("terminated by the host: {0}")]
    PeerTerminated(String),
    /// The host broke the protocol; it was told so where the fabric has a way.
    #[error("protocol error: {0}")]
    Protocol(String),
    /// The host was silent where it must not be.
    #[error("timed out: {0}")]
    Timeout(&'static str),
    /// The network failed.
    #[error("connection lost: {0}")]
    Lost(String),
    /// No memory for the connection.
    #[error("no memory: {0}")]
    NoMemory(String),
    /// The controller of this queue is gone.
    #[error("the controller is gone")]
    ControllerGone,
    /// The daemon is stopping, or the listener or host was removed.
    #[error("closed by the target")]
    Shutdown,
}

/// Why a connection or a listener could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum TransportError {
    /// A system call failed.
    #[error("{what}: {source}")]
    Io {
        /// What was being done, and to what.
        what: String,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The reactor's pool cannot hold what the queue must reserve.
    #[error("no memory for the queue's own buffers: {0}")]
    NoMemory(String),
}
