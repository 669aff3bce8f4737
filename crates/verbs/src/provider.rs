//! Traits that an RDMA provider implements. Calls do not block unless their documentation says so.
//!
//! ```text
//! listener --CONNECT_REQUEST--> Ticket --Device::open--> Endpoint --accept --> Established
//! resolved route -------------> Ticket --Device::open--> Endpoint --connect -> Established
//!                                  `--reject                 |             `-> Rejected
//!                                                            `--disconnect--> posted work requests
//!                                                               complete as flushed --> drop
//! ```
//!
//! The traits do not enforce the order of states. Users wrap an endpoint in types that allow only
//! valid calls.

use std::fmt::Debug;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::error::VerbsError;
use crate::work::{AccessFlags, SendWr, Sge, WorkCompletion, WrId};

/// Limits of a device. Each is at least 1, except `inline` and `shared_receives`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceLimits {
    /// Maximum work requests in the send queue or the receive queue of a queue pair.
    pub queue_depth: u32,
    /// Maximum entries of a completion queue.
    pub completions: u32,
    /// Maximum SGEs of a work request.
    pub pieces: u32,
    /// Maximum bytes that one work request moves.
    pub message: u32,
    /// Maximum RDMA READs that one of our queue pairs has outstanding as the reader (ORD).
    pub reads_out: u8,
    /// Maximum RDMA READs that the peer has outstanding on one of our queue pairs (IRD).
    pub reads_in: u8,
    /// Entries of a shared receive queue; 0 if the device has none.
    pub shared_receives: u32,
}

/// Transport of a device. It determines which operations a protocol can use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceKind {
    /// The InfiniBand transport, over InfiniBand or Ethernet (RoCE).
    #[default]
    InfiniBand,
    /// RDMA over TCP (iWARP). The peer's response to an RDMA READ arrives as a write to our memory,
    /// so that memory needs remote write access. The peer sends first on a connection.
    Iwarp,
    /// Any other transport.
    Other,
}

/// An RDMA device, which owns queue pairs, completion queues and registrations.
pub trait Device: Debug + Send + Sync + Sized + 'static {
    /// See [`CompletionQueue`].
    type CompletionQueue: CompletionQueue;
    /// See [`Endpoint`].
    type Endpoint: Endpoint;
    /// See [`PendingConnection`].
    type PendingConnection: PendingConnection<Device = Self>;
    /// See [`SharedReceiveQueue`].
    type SharedReceiveQueue: SharedReceiveQueue;
    /// See [`MemoryRegion`].
    type MemoryRegion: MemoryRegion;

    /// Name of the device, for messages.
    fn name(&self) -> &str;

    /// Limits of the device.
    fn limits(&self) -> DeviceLimits;

    /// Transport of the device.
    fn kind(&self) -> DeviceKind {
        DeviceKind::InfiniBand
    }

    /// Returns false after the device was removed or stopped responding.
    fn is_present(&self) -> bool {
        true
    }

    /// Registers `len` bytes at `base` until the region is dropped.
    ///
    /// # Errors
    /// [`VerbsError::LockedMemory`], or another error of the system.
    ///
    /// # Safety
    /// The memory stays mapped until the region is dropped.
    unsafe fn register(
        self: &Arc<Self>,
        base: *mut u8,
        len: usize,
        access: AccessFlags,
    ) -> Result<Self::MemoryRegion, VerbsError>;

    /// Creates a completion queue of `depth` entries, with a descriptor to wait on.
    ///
    /// # Errors
    /// The error of the system.
    fn completions(self: &Arc<Self>, depth: u32) -> Result<Self::CompletionQueue, VerbsError>;

    /// Creates a shared receive queue with room for `depth` receives of `pieces` SGEs. Returns
    /// `None` if the device has no shared receive queues.
    ///
    /// # Errors
    /// The error of the system.
    fn shared_receives(
        self: &Arc<Self>,
        depth: u32,
        pieces: u32,
    ) -> Result<Option<Self::SharedReceiveQueue>, VerbsError>;

    /// Creates the queue pair of a connection, for a connection request or a resolved route. All
    /// its completions go to `completions`. The endpoint reports its events on its own descriptor
    /// from now on.
    ///
    /// # Errors
    /// The error of the system, with the ticket, so that the caller can
    /// [reject](PendingConnection::reject) it.
    fn open(
        self: &Arc<Self>,
        ticket: Self::PendingConnection,
        completions: &Self::CompletionQueue,
        shared: Option<&Self::SharedReceiveQueue>,
        spec: &EndpointSpec,
    ) -> Result<Self::Endpoint, (VerbsError, Self::PendingConnection)>;
}

/// Sizes of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndpointSpec {
    /// Maximum work requests in the send queue.
    pub sends: u32,
    /// Maximum posted receives; ignored with a shared receive queue.
    pub receives: u32,
    /// Maximum SGEs of a send.
    pub send_pieces: u32,
    /// Maximum SGEs of a receive.
    pub receive_pieces: u32,
    /// Bytes that a send can carry inline. A provider reduces the number to its limit
    /// ([`Endpoint::inline`]).
    pub inline: u32,
    /// Traffic class of sent packets (RoCE: DSCP and ECN); `None` for the system's default.
    pub traffic_class: Option<u8>,
    /// Retries when the peer does not respond, 0 to 7; `None` for the value of the connecting side.
    pub retries: Option<u8>,
}

/// A connection before its queue pair exists: a peer's connection request, or a resolved route.
/// Dropping a ticket rejects the request or releases the route.
pub trait PendingConnection: Debug + Send {
    /// The device type.
    type Device: Device;

    /// The device that has to open the ticket.
    fn device(&self) -> &Arc<Self::Device>;

    /// Private data of the peer's request; empty for a route.
    fn private_data(&self) -> &PrivateData;

    /// RDMA READs that the peer issues and accepts, from its request; (0, 0) for a route. The first
    /// number is the peer's initiator depth: we have to serve that many. The second is its
    /// responder resources: the peer serves that many of ours.
    fn reads(&self) -> (u8, u8);

    /// Address of the peer.
    fn peer(&self) -> SocketAddr;

    /// Our address.
    fn local(&self) -> SocketAddr;

    /// Rejects the request and sends `private_data` to the peer.
    fn reject(self, private_data: &[u8]);
}

/// Private data of a connection request or its reply. The connection manager pads it with zeroes,
/// so its length carries no information.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PrivateData {
    bytes: [u8; Self::MAX],
    len: u8,
}

impl PrivateData {
    /// Maximum length.
    pub const MAX: usize = 224;
    /// Private data without bytes.
    pub const EMPTY: Self = Self { bytes: [0; Self::MAX], len: 0 };

    /// Keeps the first [`Self::MAX`] bytes of `from`.
    #[must_use]
    pub fn new(from: &[u8]) -> Self {
        let mut data = Self::EMPTY;
        for (to, from) in data.bytes.iter_mut().zip(from) {
            *to = *from;
            data.len += 1;
        }
        data
    }

    #[must_use]
    /// The bytes as a slice.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl Debug for PrivateData {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("PrivateData").field(&self.as_slice()).finish()
    }
}

/// Parameters for accepting a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AcceptParams<'a> {
    /// Private data for the peer.
    pub private_data: &'a [u8],
    /// Our RDMA READs that can be outstanding (initiator depth).
    pub reads_out: u8,
    /// The peer's RDMA READs that can be outstanding (responder resources).
    pub reads_in: u8,
    /// Retries when the peer has posted no receive; 7 means without limit.
    pub rnr_retries: u8,
}

/// Parameters for requesting a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectParams<'a> {
    /// Private data for the peer.
    pub private_data: &'a [u8],
    /// Our RDMA READs that can be outstanding.
    pub reads_out: u8,
    /// The peer's RDMA READs that can be outstanding.
    pub reads_in: u8,
    /// Retries when the peer does not respond, 0 to 7.
    pub retries: u8,
    /// Retries when the peer has posted no receive; 7 means without limit.
    pub rnr_retries: u8,
}

/// A change of a connection's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionEvent {
    /// The connection is established and sends can be posted. The fields are for the connecting
    /// side and come from the peer's reply.
    Established {
        /// Private data of the peer.
        private_data: PrivateData,
        /// Our RDMA READs that the peer serves concurrently; 0 if the peer did not say.
        reads_out: u8,
    },
    /// The peer rejected the connection.
    Rejected {
        /// Reason code of the connection manager.
        status: i32,
        /// Private data of the peer.
        private_data: PrivateData,
    },
    /// The peer is unreachable or does not respond.
    Failed {
        /// Reason code of the connection manager.
        status: i32,
    },
    /// The peer or [`Endpoint::disconnect`] ended the connection.
    Disconnected,
    /// The device is being removed. The owner has to drop everything that belongs to it.
    DeviceRemoved,
    /// The address moved to another device or disappeared, so the connection no longer works.
    AddressChanged,
    /// The queue pair failed. Every work request completes.
    QueuePairError,
}

/// State of the shared receives that a failed queue pair consumed. Unlike receives of a queue
/// pair's own queue, they do not all complete: unused ones stay in the shared queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LastWqe {
    /// The queue pair consumes no more receives, and all that it consumed have completed
    /// (InfiniBand specification, Last WQE Reached).
    Reached,
    /// The queue pair can still consume or complete receives.
    Awaited,
    /// The device does not report it. After the endpoint is dropped, the queue pair consumes no
    /// more receives.
    Untold,
}

/// Error of a chain of work requests that was not posted completely.
#[derive(Debug, thiserror::Error)]
#[error("{taken} work requests of a chain were posted: {source}")]
pub struct PostError {
    /// Number of work requests, from the start of the chain, that were posted. They complete as
    /// usual.
    pub taken: usize,
    /// The reason why the next one was not posted.
    pub source: std::io::Error,
}

/// A queue pair and its connection. Dropping an endpoint first stops the device from using the
/// memory of all posted work requests, then ends the connection.
pub trait Endpoint: Debug + Send {
    /// Number of the queue pair, as in [`WorkCompletion::queue_pair`].
    fn number(&self) -> u32;

    /// Bytes that a send can carry inline.
    fn inline(&self) -> u32;

    /// Posts a receive into `pieces`.
    ///
    /// # Errors
    /// The error of the system; nothing is posted then.
    ///
    /// # Safety
    /// The memory belongs to the caller and is registered for writing under the keys of the pieces.
    /// The caller does not access it until the receive completes or the endpoint is dropped.
    unsafe fn post_receive(&mut self, id: WrId, pieces: &[Sge]) -> std::io::Result<()>;

    /// Posts a chain with one doorbell. The device executes it in order.
    ///
    /// # Errors
    /// The number of posted work requests, and the reason for the rest.
    ///
    /// # Safety
    /// The requirements of [`Self::post_receive`] apply to every work request until it, or a later
    /// one of this endpoint, completes. The caller can still read memory that a SEND or WRITE reads
    /// from. Inline pieces have to stay valid until the call returns.
    unsafe fn post_send(&mut self, chain: &[SendWr]) -> Result<(), PostError>;

    /// Accepts the connection. Receives should be posted before. The call can block in the kernel
    /// for about a second, until the peer's hardware address is resolved.
    ///
    /// # Errors
    /// The error of the system.
    fn accept(&mut self, params: &AcceptParams<'_>) -> Result<(), VerbsError>;

    /// Requests the connection; the reply arrives as an event.
    ///
    /// # Errors
    /// The error of the system.
    fn connect(&mut self, params: &ConnectParams<'_>) -> Result<(), VerbsError>;

    /// Reports that data of the peer arrived in a receive before [`ConnectionEvent::Established`]
    /// arrived. The peer's ready-to-use message is late or lost; the connection is established from
    /// now on. Does not block.
    fn communication_established(&mut self) {}

    /// Returns the next event, if one has arrived.
    fn next_event(&mut self) -> Option<ConnectionEvent>;

    /// Returns the state of the shared receives of a failed or disconnected queue pair. The result
    /// has no meaning for a queue pair with its own receive queue.
    fn last_receive(&mut self) -> LastWqe {
        LastWqe::Untold
    }

    /// Descriptor that is readable when an event is pending or the [last
    /// receive](Self::last_receive) was reached.
    fn fd(&self) -> Option<BorrowedFd<'_>>;

    /// Ends the connection. The queue pair enters the error state, and posted work requests
    /// complete as flushed. It also has to be called for a connection that the peer ended. Further
    /// calls have no effect.
    fn disconnect(&mut self);

    /// Destroys the queue pair, as dropping does. Can block in the kernel.
    ///
    /// # Errors
    /// The error of the system, with the endpoint. The queue pair still exists, so the device can
    /// still use the memory of posted work requests. The caller can retry.
    fn destroy(self) -> Result<(), (VerbsError, Self)>
    where
        Self: Sized,
    {
        Ok(())
    }
}

/// A completion queue, used by one thread.
pub trait CompletionQueue: Debug + Send {
    /// Appends at most `most` completions, the oldest first.
    ///
    /// # Errors
    /// The queue is broken: it overflowed, or the device is gone.
    fn poll(&mut self, most: usize, into: &mut Vec<WorkCompletion>) -> std::io::Result<()>;

    /// Makes [`Self::fd`] readable on the next completion, and clears its present state. Earlier
    /// completions are not signaled, so the caller polls once more before it waits.
    ///
    /// # Errors
    /// The error of the system.
    fn arm(&mut self) -> std::io::Result<()>;

    /// Descriptor that is readable when a completion arrived after [`Self::arm`].
    fn fd(&self) -> BorrowedFd<'_>;
}

/// A receive queue that queue pairs of one thread share.
pub trait SharedReceiveQueue: Debug {
    /// Posts a receive into `pieces`.
    ///
    /// # Errors
    /// The error of the system; nothing is posted then.
    ///
    /// # Safety
    /// The requirements of [`Endpoint::post_receive`] apply until the receive completes, or until
    /// the shared queue and every endpoint that used it are dropped.
    unsafe fn post_receive(&mut self, id: WrId, pieces: &[Sge]) -> std::io::Result<()>;
}

/// Registered memory.
pub trait MemoryRegion: Debug + Send + Sync {
    /// Key for our work requests.
    fn lkey(&self) -> u32;

    /// Key for the peer's work requests.
    fn rkey(&self) -> u32;
}
