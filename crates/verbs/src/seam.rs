//! What a provider of RDMA does. Calls never wait unless they say so.
//!
//! ```text
//!   listener --CONNECT_REQUEST--> Ticket --Device::open--> Endpoint --accept --> Established
//!   resolved route -------------> Ticket --Device::open--> Endpoint --connect -> Established | Rejected
//!                                    `--reject                 |
//!                                                              `--disconnect--> every posted work request
//!                                                                 completes as flushed --> drop
//! ```
//!
//! The order of states is not kept here: users put types around an endpoint that know what it may do.

use std::fmt::Debug;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::error::VerbsError;
use crate::work::{Access, Completion, Piece, Work, WorkId};

/// What a device can do; each at least 1 but for `inline` and `shared_receives`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceLimits {
    /// Work requests a queue pair's send or receive queue may hold.
    pub queue_depth: u32,
    /// Entries a completion queue may have.
    pub completions: u32,
    /// Pieces a work request may name.
    pub pieces: u32,
    /// Bytes one work request may move.
    pub message: u32,
    /// RDMA READs of one queue pair that may be outstanding with us as the reader (ORD).
    pub reads_out: u8,
    /// The same with us as the one read from (IRD).
    pub reads_in: u8,
    /// Entries of a shared receive queue; 0 if the device has none.
    pub shared_receives: u32,
}

/// What a device's packets are: what a protocol may ask of it depends on that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceKind {
    /// InfiniBand's transport, over InfiniBand or Ethernet (RoCE).
    #[default]
    InfiniBand,
    /// RDMA over TCP. What an RDMA READ brings is written by the peer, as it were: the memory it goes to has
    /// to be open for remote writing; and the peer speaks first on a connection.
    Iwarp,
    /// None of these.
    Other,
}

/// An RDMA device: what queue pairs, completion queues and registrations belong to.
pub trait Device: Debug + Send + Sync + Sized + 'static {
    /// See [`Completions`].
    type Completions: Completions;
    /// See [`Endpoint`].
    type Endpoint: Endpoint;
    /// See [`Ticket`].
    type Ticket: Ticket<Device = Self>;
    /// See [`SharedReceives`].
    type SharedReceives: SharedReceives;
    /// See [`Region`].
    type Region: Region;

    /// The device's name, for messages.
    fn name(&self) -> &str;

    /// What it can do.
    fn limits(&self) -> DeviceLimits;

    /// What its packets are.
    fn kind(&self) -> DeviceKind {
        DeviceKind::InfiniBand
    }

    /// False once it was removed, or does not answer any more.
    fn is_there(&self) -> bool {
        true
    }

    /// Registers `len` bytes at `base` until the region is dropped.
    ///
    /// # Errors
    /// [`VerbsError::LockedMemory`], or what else the system says.
    ///
    /// # Safety
    /// The memory stays mapped until the region is dropped.
    unsafe fn register(
        self: &Arc<Self>,
        base: *mut u8,
        len: usize,
        access: Access,
    ) -> Result<Self::Region, VerbsError>;

    /// A completion queue of `depth` entries, with a descriptor to wait on.
    ///
    /// # Errors
    /// What the system says.
    fn completions(self: &Arc<Self>, depth: u32) -> Result<Self::Completions, VerbsError>;

    /// A receive queue that queue pairs share, with room for `depth` receives of `pieces` pieces;
    /// `None` if the device has none.
    ///
    /// # Errors
    /// What the system says.
    fn shared_receives(
        self: &Arc<Self>,
        depth: u32,
        pieces: u32,
    ) -> Result<Option<Self::SharedReceives>, VerbsError>;

    /// Makes the queue pair of a connection that is asked for or to be asked for; every completion of it
    /// goes to `completions`. The endpoint's events come by its own descriptor from now on.
    ///
    /// # Errors
    /// The ticket, so that it can be [rejected](Ticket::reject), and what the system says.
    fn open(
        self: &Arc<Self>,
        ticket: Self::Ticket,
        completions: &Self::Completions,
        shared: Option<&Self::SharedReceives>,
        spec: &EndpointSpec,
    ) -> Result<Self::Endpoint, (VerbsError, Self::Ticket)>;
}

/// Sizes of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndpointSpec {
    /// Work requests posted to the send queue at once.
    pub sends: u32,
    /// Receives posted at once; without meaning with shared receives.
    pub receives: u32,
    /// Pieces of a send.
    pub send_pieces: u32,
    /// Pieces of a receive.
    pub receive_pieces: u32,
    /// Bytes that a send may carry inline; a provider that cannot makes it fewer
    /// ([`Endpoint::inline`]).
    pub inline: u32,
    /// Traffic class (RoCE: DSCP and ECN) of what is sent; `None` for the system's.
    pub traffic_class: Option<u8>,
    /// Times to try again when the peer does not answer, 0 to 7; `None` for what the side that asks for the
    /// connection says.
    pub retries: Option<u8>,
}

/// A connection before its queue pair: one that a host asks for, or a route that was resolved. Dropping it
/// rejects the one and forgets the other.
pub trait Ticket: Debug + Send {
    /// The device.
    type Device: Device;

    /// The device it has to be opened on.
    fn device(&self) -> &Arc<Self::Device>;

    /// What the peer sent with its request; empty for a route.
    fn private_data(&self) -> &PrivateData;

    /// RDMA READs the peer can have outstanding towards us (what we have to be able to be read from), and
    /// those it takes from us, as it says; 0 and 0 for a route.
    fn reads(&self) -> (u8, u8);

    /// The peer's address.
    fn peer(&self) -> SocketAddr;

    /// Our address.
    fn local(&self) -> SocketAddr;

    /// Refuses, telling the peer why.
    fn reject(self, private_data: &[u8]);
}

/// The bytes that go with a connection request or its answer. The connection manager pads them with zeroes:
/// their number says nothing.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PrivateData {
    bytes: [u8; Self::MAX],
    len: u8,
}

impl PrivateData {
    /// Most bytes there are.
    pub const MAX: usize = 224;
    /// None.
    pub const EMPTY: Self = Self { bytes: [0; Self::MAX], len: 0 };

    /// Keeps the first [`Self::MAX`] bytes.
    #[must_use]
    pub fn new(from: &[u8]) -> Self {
        let mut data = Self::EMPTY;
        for (to, from) in data.bytes.iter_mut().zip(from) {
            *to = *from;
            data.len += 1;
        }
        data
    }

    /// The bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl Debug for PrivateData {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("PrivateData").field(&self.as_slice()).finish()
    }
}

/// How a connection is accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AcceptParams<'a> {
    /// For the peer.
    pub private_data: &'a [u8],
    /// RDMA READs of ours that may be outstanding (initiator depth).
    pub reads_out: u8,
    /// RDMA READs of the peer's (responder resources).
    pub reads_in: u8,
    /// Times to try again when the peer had no receive posted, 7 for ever.
    pub rnr_retries: u8,
}

/// How a connection is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectParams<'a> {
    /// For the peer.
    pub private_data: &'a [u8],
    /// RDMA READs of ours that may be outstanding.
    pub reads_out: u8,
    /// RDMA READs of the peer's.
    pub reads_in: u8,
    /// Times to try again when the peer does not answer, 0 to 7.
    pub retries: u8,
    /// Times to try again when the peer had no receive posted, 7 for ever.
    pub rnr_retries: u8,
}

/// What becomes of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionEvent {
    /// It stands; sends may be posted. What the peer sent with its acceptance, for the side that asked.
    Established {
        /// From the peer.
        private_data: PrivateData,
        /// RDMA READs of ours that the peer takes at once; 0 if it did not say.
        reads_out: u8,
    },
    /// The peer does not want it.
    Rejected {
        /// The connection manager's reason.
        status: i32,
        /// From the peer.
        private_data: PrivateData,
    },
    /// The peer cannot be reached, or does not answer.
    Failed {
        /// The connection manager's reason.
        status: i32,
    },
    /// The peer, or [`Endpoint::disconnect`], ended it.
    Disconnected,
    /// The device goes away: drop everything that belongs to it.
    DeviceRemoved,
    /// The address is at another device or gone: the connection does not work any more.
    AddressChanged,
    /// The queue pair has failed; every work request comes back.
    QueuePairError,
}

/// What is known of the receives that a failed queue pair took of a shared queue. Unlike receives of its own
/// they do not all come back: those that nothing came into stay in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LastReceive {
    /// It takes no more: every one that it took has completed (InfiniBand specification, Last WQE Reached).
    Reached,
    /// It may take or complete some yet.
    Awaited,
    /// The device does not say. When the endpoint was dropped, none is taken any more.
    Untold,
}

/// A chain of work requests that was not taken whole.
#[derive(Debug, thiserror::Error)]
#[error("{taken} work requests of a chain were posted: {source}")]
pub struct Refused {
    /// So many from its start are posted and will complete as always.
    pub taken: usize,
    /// Why not the others.
    pub source: std::io::Error,
}

/// A queue pair and the connection it belongs to. When dropped, first the device stops using the memory of
/// everything posted, then the connection is gone.
pub trait Endpoint: Debug + Send {
    /// The queue pair's number; [`Completion::queue_pair`].
    fn number(&self) -> u32;

    /// Bytes that a send may carry inline.
    fn inline(&self) -> u32;

    /// Posts a receive into `pieces`.
    ///
    /// # Errors
    /// What the system says; nothing is posted then.
    ///
    /// # Safety
    /// The memory is the caller's, registered under the pieces' keys for writing, and used for nothing else
    /// until the receive completed or the endpoint was dropped.
    unsafe fn post_receive(&mut self, id: WorkId, pieces: &[Piece]) -> std::io::Result<()>;

    /// Posts a chain with one doorbell. They are carried out in order.
    ///
    /// # Errors
    /// How many were posted, and why not all.
    ///
    /// # Safety
    /// As for [`Self::post_receive`], for every work request until it or a later one of this endpoint has
    /// completed (what is written from memory may be read meanwhile); inline pieces until the call returns.
    unsafe fn post_send(&mut self, chain: &[Work]) -> Result<(), Refused>;

    /// Accepts. Receives should have been posted before. May wait in the kernel until the peer's hardware
    /// address is known, for a second or so.
    ///
    /// # Errors
    /// What the system says.
    fn accept(&mut self, params: &AcceptParams<'_>) -> Result<(), VerbsError>;

    /// Asks for the connection; the answer is an event.
    ///
    /// # Errors
    /// What the system says.
    fn connect(&mut self, params: &ConnectParams<'_>) -> Result<(), VerbsError>;

    /// Something of the peer has come into a receive, before [`ConnectionEvent::Established`] has: the peer's
    /// word that the connection stands is late, or lost. It stands from now on. Does not wait.
    fn heard(&mut self) {}

    /// The next event, if one has come.
    fn next_event(&mut self) -> Option<ConnectionEvent>;

    /// Where a queue pair that failed or was ended stands with its shared receives; without meaning where it has
    /// receives of its own.
    fn last_receive(&mut self) -> LastReceive {
        LastReceive::Untold
    }

    /// Readable when there is an event, or the [last receive](Self::last_receive) was reached.
    fn fd(&self) -> Option<BorrowedFd<'_>>;

    /// Ends the connection: the queue pair goes to the error state, and what is posted completes as flushed.
    /// Has to be called for a connection that the peer ended, too. Calling it again changes nothing.
    fn disconnect(&mut self);

    /// Takes the queue pair away, as dropping does. May wait in the kernel.
    ///
    /// # Errors
    /// What the system says, and the endpoint, whose queue pair there still is: the device may go on using the
    /// memory of what is posted. It can be tried again.
    fn destroy(self) -> Result<(), (VerbsError, Self)>
    where
        Self: Sized,
    {
        Ok(())
    }
}

/// A completion queue of one thread.
pub trait Completions: Debug + Send {
    /// Appends at most `most` completions, the oldest first.
    ///
    /// # Errors
    /// The queue is broken (it overflowed, or the device is gone).
    fn poll(&mut self, most: usize, into: &mut Vec<Completion>) -> std::io::Result<()>;

    /// Has [`Self::fd`] become readable with the next completion, and forgets that it did before. What came
    /// until then is not announced: poll once more before waiting.
    ///
    /// # Errors
    /// What the system says.
    fn arm(&mut self) -> std::io::Result<()>;

    /// Readable when a completion came after [`Self::arm`].
    fn fd(&self) -> BorrowedFd<'_>;
}

/// A receive queue that queue pairs of one thread share.
pub trait SharedReceives: Debug {
    /// Posts a receive into `pieces`.
    ///
    /// # Errors
    /// What the system says; nothing is posted then.
    ///
    /// # Safety
    /// As for [`Endpoint::post_receive`], until it completed or the shared queue and every endpoint that
    /// used it were dropped.
    unsafe fn post_receive(&mut self, id: WorkId, pieces: &[Piece]) -> std::io::Result<()>;
}

/// Registered memory.
pub trait Region: Debug + Send + Sync {
    /// Key for work requests of ours.
    fn lkey(&self) -> u32;

    /// Key for the peer's.
    fn rkey(&self) -> u32;
}
