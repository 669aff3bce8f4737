//! The interface between a reactor and a fabric: one [`HostQueue`] per host connection.
//!
//! A [`CompletionSource`] reports completions for several connections of a reactor.
//!
//! Every fabric keeps these rules, and the shared tests check them:
//!
//! * An accepted [`FabricOp`] returns exactly once. A pull returns as `Pulled`, a response that
//!   carried data as `Sent`. A response without data returns nothing, and its slot is free
//!   immediately.
//! * A rejected [`FabricOp`] returns in [`Rejected`].
//! * After [`HostQueue::close`], or when the peer disconnects, every operation still in the queue
//!   returns as an event. [`Event::Closed`] follows exactly once, as the very last event.
//! * `receive` and `flush` never block, and do a bounded amount of work.

use std::any::Any;
use std::fmt::Debug;
use std::os::fd::BorrowedFd;

use nvmeof_core::dma::{Buffer, CorePool, Payload, ZeroCopyData};
use nvmeof_wire::{Cqe, Sgl, Sqe};

/// Monotonic time in nanoseconds, passed in by the caller.
pub type Nanos = u64;

/// One host connection, which is one NVMe queue, owned by one reactor.
pub trait HostQueue: Debug {
    /// Reads and parses arrived bytes, and appends to `events`.
    ///
    /// The work per call is bounded for fairness; [`Progress::More`] requests another call in the
    /// next turn. The call also acts on a [`deadline`](Self::deadline) that `now` has passed.
    fn receive(&mut self, now: Nanos, events: &mut Vec<Event>) -> Progress;

    /// Takes an operation. Bytes move in [`flush`](Self::flush).
    ///
    /// # Errors
    /// Returns the operation unchanged, with the reason.
    fn submit(&mut self, op: FabricOp) -> Result<(), Rejected>;

    /// Releases a command that gets no response: the host no longer counts it as outstanding.
    ///
    /// If another command of this identifier has arrived since, that one stays.
    fn forget(&mut self, cid: u16);

    /// Sends the turn's output, and appends [`Event::Sent`] for data that has left.
    ///
    /// Data has left once it is on the network; a kernel queue is not enough. Returns
    /// [`Progress::Idle`] when nothing is left to send or the fabric accepts no more for now.
    ///
    /// `room` is the number of bytes that all connections together are allowed to send in this
    /// turn. A fabric that copies the data it sends subtracts its bytes. It sends a started PDU
    /// whole, and returns [`Progress::More`] when there is no room for the rest.
    fn flush(&mut self, room: &mut usize, now: Nanos, events: &mut Vec<Event>) -> Progress;

    /// Time of the next [`poll_tx_done`](Self::poll_tx_done) call, to check for data that is still
    /// leaving.
    ///
    /// No event announces that data has left. `None` while no data is leaving.
    fn next_tx_poll(&self) -> Option<Nanos> {
        None
    }

    /// Appends [`Event::Sent`] for the data that has left by now.
    fn poll_tx_done(&mut self, _now: Nanos, _events: &mut Vec<Event>) {}

    /// Begins the teardown.
    ///
    /// Later calls of `receive` or `flush` return every operation and then [`Event::Closed`]. A
    /// second call changes nothing.
    fn close(&mut self, reason: CloseReason);

    /// Applies the parameters of the accepted Connect command.
    fn connected(&mut self, info: Connected);

    /// Descriptor to register, edge-triggered, for input and output readiness.
    ///
    /// If it appears only later, [`Event::RegisterFd`] reports it.
    fn fd(&self) -> Option<BorrowedFd<'_>>;

    /// Records that the descriptor reports a host that has closed: no edge follows for input.
    ///
    /// The caller then calls `receive`.
    fn hung_up(&mut self) {}

    /// Time at which `receive` must be called even if nothing arrives.
    ///
    /// Reasons are a stalled handshake, half a PDU and the linger time.
    fn deadline(&self) -> Option<Nanos>;

    /// Moves every [`deadline`](Self::deadline) by the time for which the target was stalled.
    fn extend_deadlines(&mut self, _nanos: Nanos) {}

    /// Makes the queue movable to another reactor. Fails while anything is in flight.
    fn detach(self: Box<Self>) -> Result<Box<dyn DetachedQueue>, Box<dyn HostQueue>>;

    /// Stops (or resumes) the delivery of new commands; commands in flight continue.
    ///
    /// After resuming, the caller must call `receive`: commands that arrived during the pause are
    /// not announced again.
    fn set_paused(&mut self, paused: bool);

    /// Sets the token by which the [`CompletionSource`] of this queue reports it. Called once,
    /// first.
    ///
    /// Returns false if the queue has no source. If it has one, the reactor need not poll the
    /// queue, and [`detach`](Self::detach) never works.
    fn bind(&mut self, _token: u64) -> bool {
        false
    }

    /// Sets whether buffer memory is short.
    ///
    /// While it is, a host that moves its data too slowly has no grace ([`pace`](crate::pace)).
    /// Only fabrics whose host can occupy a buffer by being slow implement this.
    fn set_memory_short(&mut self, _is_short: bool, _now: Nanos) {}

    /// Sets whether a response counts as sent only when its data has left the machine.
    ///
    /// Otherwise it counts when the fabric needs its buffer no more. Only fabrics that must ask the
    /// kernel for the difference implement this.
    fn set_tx_tracked(&mut self, _is_tracked: bool) {}

    /// Returns true if the host has sent the first message of a connection (TCP: its `ICReq`).
    fn has_greeted(&self) -> bool {
        true
    }

    /// Returns true if a response can carry this memory as [`Payload::ZeroCopy`].
    ///
    /// False if a device must have registered the memory it sends from, and has not registered
    /// this.
    fn supports_zero_copy(&self, _data: &ZeroCopyData) -> bool {
        true
    }
}

/// A connection that no reactor owns: freshly accepted, or idle and moving to another reactor.
pub trait DetachedQueue: Send + Debug {
    /// Attaches the connection to the reactor that owns `home`.
    ///
    /// The reactor then calls `receive`: bytes can be waiting that no edge announces.
    fn attach(
        self: Box<Self>,
        home: &mut ReactorResources<'_>,
    ) -> Result<Box<dyn HostQueue>, TransportError>;

    /// Address of the host, for display.
    fn peer(&self) -> String;

    /// Queue number at its controller, 0 for the admin queue, if the host has sent it already.
    fn number(&self) -> Option<u16> {
        None
    }

    /// Ends a connection for which there is no room; a fabric that can report this to the host
    /// does.
    fn refuse(self: Box<Self>) {}
}

/// Resources of a reactor for its connections.
#[derive(Debug)]
pub struct ReactorResources<'a> {
    /// Its buffers.
    pub pool: &'a CorePool,
    /// Sources that the connections share.
    pub sources: &'a mut PollGroup,
}

/// A source of events for several connections of a reactor: a completion queue of an RDMA device.
///
/// The reactor polls it in every turn, and then calls [`HostQueue::receive`] of the reported
/// queues.
pub trait CompletionSource: Debug {
    /// Polls for events, and appends the token of each queue that has something to
    /// [`receive`](HostQueue::receive).
    ///
    /// The work is bounded; [`Progress::More`] requests another call in the next turn.
    fn poll(&mut self, now: Nanos, ready: &mut Vec<u64>) -> Progress;

    /// Makes [`fd`](Self::fd) become readable on the next event.
    ///
    /// Earlier events are not announced: the reactor polls once more before it sleeps.
    fn arm(&mut self);

    /// Descriptor to register for input.
    fn fd(&self) -> BorrowedFd<'_>;

    /// Returns true if a queue still uses the source.
    fn is_used(&self) -> bool;

    /// Returns the counters.
    fn counts(&self) -> CqCounters;

    /// Lets a fabric downcast to its own source type.
    fn as_any(&mut self) -> &mut dyn Any;
}

/// Counters of a [`CompletionSource`] since its creation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CqCounters {
    /// Polls of the completion queue.
    pub polls: u64,
    /// Polls that found a completion.
    pub busy_polls: u64,
    /// Completions.
    pub completions: u64,
    /// Command capsules among the completions.
    pub requests: u64,
    /// Queue pairs that could not be destroyed in time, and whose memory is quarantined until they
    /// are.
    pub quarantined_qps: u64,
}

impl CqCounters {
    /// Adds the counters of `other`.
    pub fn add(&mut self, other: &Self) {
        self.polls += other.polls;
        self.busy_polls += other.busy_polls;
        self.completions += other.completions;
        self.requests += other.requests;
        self.quarantined_qps += other.quarantined_qps;
    }
}

/// The sources of a reactor, each with the name of its device.
#[derive(Debug, Default)]
pub struct PollGroup {
    list: Vec<PollGroupEntry>,
}

/// A source and its registration in the reactor.
#[derive(Debug)]
pub struct PollGroupEntry {
    /// Name of the device, for display.
    pub name: String,
    /// True if the source is in the reactor's epoll set.
    pub is_watched: bool,
    /// The source.
    pub source: Box<dyn CompletionSource>,
}

impl PollGroup {
    /// Returns the source of type `T` that satisfies `is_it`, if there is one.
    pub fn find<T: CompletionSource + 'static>(
        &mut self,
        mut is_it: impl FnMut(&T) -> bool,
    ) -> Option<&mut T> {
        self.list
            .iter_mut()
            .filter_map(|one| one.source.as_any().downcast_mut::<T>())
            .find(|source| is_it(source))
    }

    /// Adds a source.
    pub fn add(&mut self, name: String, source: Box<dyn CompletionSource>) {
        self.list.push(PollGroupEntry { name, is_watched: false, source });
    }

    /// Iterates over the sources, to change them.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut PollGroupEntry> {
        self.list.iter_mut()
    }

    /// Iterates over the sources.
    pub fn iter(&self) -> impl Iterator<Item = &PollGroupEntry> {
        self.list.iter()
    }

    /// Returns true if there are no sources.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Drops the sources that no queue uses, each after a call of `each`.
    pub fn drop_unused(&mut self, mut each: impl FnMut(&PollGroupEntry)) {
        self.list.retain(|one| {
            let is_used = one.source.is_used();
            if !is_used {
                each(one);
            }
            is_used
        });
    }
}

/// Remaining work after a call of [`HostQueue::receive`] or [`HostQueue::flush`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// No more work until the descriptor is ready again, a deadline passes, or the caller submits
    /// an operation.
    Idle,
    /// Some work is done and more may remain: call again in the next turn.
    More,
}

/// Queue parameters from the accepted Connect command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connected {
    /// True for an admin queue, whose in-capsule data is limited to 8192 bytes.
    pub admin: bool,
    /// Entries in the submission queue (1's based): the maximum number of outstanding commands.
    pub depth: u16,
}

/// An event that the reactor has to act on.
#[derive(Debug)]
pub enum Event {
    /// A command capsule, with its in-capsule data if it had any.
    Command {
        /// The submission queue entry, as received.
        sqe: Sqe,
        /// In-capsule data, from the queue's own reservation.
        data: Option<Buffer>,
    },
    /// A pull has ended; after success `buf` contains the host's data.
    HostDataArrived {
        /// Token of the [`FabricOp::FetchHostData`].
        token: u64,
        /// The buffer of the operation.
        buf: Buffer,
        /// Success if the data has arrived intact.
        result: Result<(), FabricError>,
    },
    /// The data of a response has left, or its connection is ending: the permit can be released.
    Sent {
        /// Token of the [`FabricOp::Respond`].
        token: u64,
        /// The data of the operation, if the fabric kept it until now; otherwise the fabric has
        /// already dropped it.
        data: Option<Payload>,
    },
    /// A capsule arrived with bad data. The reactor responds with the status of the error.
    CommandFailed {
        /// The submission queue entry as received. If the data pointer itself is bad, a pointer
        /// that fits any length replaces it.
        sqe: Sqe,
        /// The fault in the data.
        error: FabricError,
    },
    /// [`HostQueue::fd`] returns a new descriptor: register it.
    RegisterFd,
    /// The connection has ended and no event follows: drop the queue.
    Closed {
        /// Reason of the end.
        reason: CloseReason,
    },
}

/// An operation that a reactor submits to a fabric.
#[derive(Debug)]
pub enum FabricOp {
    /// Fetches `buf.len()` bytes of a command's data from the host (TCP: R2T and H2CData; RDMA:
    /// READ).
    FetchHostData {
        /// Chosen by the caller, returned in [`Event::HostDataArrived`].
        token: u64,
        /// Identifier of the command.
        cid: u16,
        /// Location of the data on the host.
        sgl: Sgl,
        /// Destination of the data; not empty.
        buf: Buffer,
    },
    /// Sends a response, after its data if it has any.
    Respond {
        /// Chosen by the caller, returned in [`Event::Sent`] if there is data.
        token: u64,
        /// The completion queue entry.
        cqe: Cqe,
        /// Destination of the data on the host.
        sgl: Sgl,
        /// The data.
        data: Option<Payload>,
        /// True if the completion reports nothing but success, so that a fabric can imply it (TCP:
        /// SUCCESS flag).
        elidable: bool,
    },
}

/// A rejected operation, returned to the caller.
#[derive(Debug, thiserror::Error)]
#[error("operation not taken: {reason}")]
pub struct Rejected {
    /// The operation, unchanged.
    pub op: FabricOp,
    /// Reason of the rejection.
    pub reason: RejectReason,
}

/// Reason for rejecting an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RejectReason {
    /// The connection is closing or closed.
    #[error("the connection is closing")]
    Closing,
    /// The queue already has as many operations as its depth allows.
    #[error("the queue holds as many operations as its depth allows")]
    QueueFull,
    /// The operation can never work: an empty pull, or an SGL that this fabric cannot use.
    #[error("the operation is not possible on this fabric")]
    Invalid,
}

/// Failure of the data of one command; its connection can survive or end.
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
    /// A descriptor is missing, or has a type that this fabric does not support.
    #[error("an SGL descriptor has a type that is not allowed here")]
    SglType,
    /// The lengths of descriptors contradict each other or the received data.
    #[error("the length of an SGL is invalid")]
    SglLength,
    /// Descriptors or data lie outside the capsule.
    #[error("an SGL offset is outside the capsule")]
    SglOffset,
    /// There is no descriptor, or more than the controller supports (MSDBD).
    #[error("the number of SGL descriptors is invalid")]
    SglCount,
}

/// Reason why a connection ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CloseReason {
    /// The host closed the connection cleanly.
    #[error("closed by the host")]
    PeerClosed,
    /// The host ended the connection because it detected an error.
    #[error("terminated by the host: {0}")]
    PeerTerminated(String),
    /// The host violated the protocol; the target reported this to the host if the fabric allows
    /// it.
    #[error("protocol error: {0}")]
    Protocol(String),
    /// The host sent or took nothing for too long.
    #[error("timed out: {0}")]
    Timeout(&'static str),
    /// The network failed.
    #[error("connection lost: {0}")]
    Lost(String),
    /// There is no memory for the connection.
    #[error("no memory: {0}")]
    NoMemory(String),
    /// The controller of this queue no longer exists.
    #[error("the controller no longer exists")]
    ControllerGone,
    /// The daemon is stopping, or an operator removed the listener or the host.
    #[error("closed by the target")]
    Shutdown,
}

/// Failure to set up a connection or a listener.
#[derive(Debug, thiserror::Error)]
pub enum TransportError {
    /// A system call failed.
    #[error("{what}: {source}")]
    Io {
        /// The failed operation and its object.
        what: String,
        /// The error of the system.
        source: std::io::Error,
    },
    /// The reactor's pool has no memory for the queue's reservation.
    #[error("no memory for the queue's own buffers: {0}")]
    NoMemory(String),
}
