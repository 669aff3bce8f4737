//! Queue pairs and their connections.
//!
//! ```text
//!   open --> INIT --accept---> RTR, RTS --(the peer is ready)------------> Established
//!             |  `--connect-> (the peer accepts) --> RTR, RTS, confirm --> Established
//!             `--disconnect, from anywhere --> ERROR: everything posted is flushed --> drop
//! ```

use std::ffi::{c_int, c_uint};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use rustix::event::epoll;

use super::async_events::QpErrorNotifier;
use super::completions::{CqInner, SystemCompletions};
use super::connection::{CmEvent, ConnectionId, cm_result};
use super::device::SystemDevice;
use super::memory::{self, SystemRegion, SystemWindow};
use super::post::{self, Chain};
use super::receives::{SrqInner, SystemShared};
use super::ticket::SystemTicket;
use crate::error::VerbsError;
use crate::ffi::cma::{
    RDMA_CM_EVENT_ADDR_CHANGE, RDMA_CM_EVENT_CONNECT_ERROR, RDMA_CM_EVENT_CONNECT_RESPONSE,
    RDMA_CM_EVENT_DEVICE_REMOVAL, RDMA_CM_EVENT_DISCONNECTED, RDMA_CM_EVENT_ESTABLISHED,
    RDMA_CM_EVENT_REJECTED, RDMA_CM_EVENT_UNREACHABLE, rdma_conn_param,
};
use crate::ffi::inline;
use crate::ffi::verbs::{
    IBV_EVENT_COMM_EST, IBV_QP_AV, IBV_QP_MAX_DEST_RD_ATOMIC, IBV_QP_MAX_QP_RD_ATOMIC,
    IBV_QP_MIN_RNR_TIMER, IBV_QP_RETRY_CNT, IBV_QP_RNR_RETRY, IBV_QP_STATE, IBV_QPS_ERR,
    IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPT_RC, IBV_SEND_SIGNALED, IBV_WR_BIND_MW,
    ibv_mw_bind_info, ibv_qp, ibv_qp_attr, ibv_qp_cap, ibv_qp_init_attr, ibv_send_wr_bind_mw,
};
use crate::provider::{
    AcceptParams, ConnectParams, ConnectionEvent, Device, DeviceLimits, Endpoint, EndpointSpec,
    LastWqe, PendingConnection, PostError,
};
use crate::work::{AccessFlags, SendWr, Sge, WrId};

/// Wait of a peer that found no receive posted: 0.64 ms (InfiniBand specification, RNR NAK timer).
/// The connection manager's default of 0 stands for 655 ms.
const RNR_TIMER: u8 = 12;

/// A queue pair and its connection.
#[derive(Debug)]
pub struct SystemEndpoint {
    // Dropped in this order: after the queue pair is destroyed, the device uses nothing that was
    // posted.
    pair: QueuePair,
    id: ConnectionId,
    chain: Chain,
    inline: u32,
    traffic_class: Option<u8>,
    retries: Option<u8>,
    /// READs in each direction, and RNR retries, as requested with `connect`.
    asked: Option<Depths>,
    /// The failure of the queue pair was reported, or needs no report because we disconnected.
    ended: bool,
    goodbye_said: bool,
    /// Reading the connection's events failed.
    deaf: bool,
    alarm: Arc<QpErrorNotifier>,
    /// Descriptor that is readable when the connection's events or the alarm are.
    both: Option<OwnedFd>,
}

/// Attributes that are set when a queue pair becomes ready.
#[derive(Clone, Copy, Debug)]
struct Depths {
    reads_out: u8,
    reads_in: u8,
    rnr_retries: u8,
}

impl SystemEndpoint {
    pub(super) fn open(
        device: &Arc<SystemDevice>,
        ticket: SystemTicket,
        completions: &SystemCompletions,
        shared: Option<&SystemShared>,
        spec: &EndpointSpec,
    ) -> Result<Self, (VerbsError, SystemTicket)> {
        let made = QueuePair::new(device, &ticket, completions, shared, spec).and_then(|made| {
            let (pair, inline) = made;
            pair.init(&ticket.id)?;
            let alarm = pair.watched(shared.is_some())?;
            let both = alarm.fd().map(|fd| merge(ticket.id.fd(), fd)).transpose()?;
            Ok((pair, inline, alarm, both))
        });
        match made {
            Ok((pair, inline, alarm, both)) => Ok(Self {
                pair,
                id: ticket.id,
                chain: Chain::default(),
                inline,
                traffic_class: spec.traffic_class,
                retries: spec.retries,
                asked: None,
                ended: false,
                goodbye_said: false,
                deaf: false,
                alarm,
                both,
            }),
            Err(error) => {
                let what =
                    format!("making a queue pair of {} for {}", device.name(), ticket.peer());
                Err((VerbsError::call(what, error), ticket))
            }
        }
    }

    /// Returns the traffic class of sent packets, as the device reports it.
    ///
    /// # Errors
    /// The error of the system.
    pub fn traffic_class(&self) -> io::Result<u8> {
        // SAFETY: the structures are plain numbers and pointers, for which zeroes are valid; a live
        // queue pair.
        let (answer, attr) = unsafe {
            let mut attr: ibv_qp_attr = std::mem::zeroed();
            let mut init: ibv_qp_init_attr = std::mem::zeroed();
            let query = self.pair.device.library().verbs.ibv_query_qp;
            (query(self.pair.as_ptr(), &mut attr, IBV_QP_AV, &mut init), attr)
        };
        inline::result(answer)?;
        Ok(attr.ah_attr.grh.traffic_class)
    }

    /// Posts the binding of a window to a part of a region, which was registered
    /// [bindable](SystemDevice::register_bindable). The returned key is valid for the peer after
    /// the binding completes. It stays valid until the peer invalidates it or the window is bound
    /// again. The binding completes as `id`, in order with sends.
    ///
    /// # Errors
    /// The error of the system; nothing is posted then.
    pub fn bind_window(
        &mut self,
        id: WrId,
        window: &mut SystemWindow,
        region: &SystemRegion,
        part: Sge,
        access: AccessFlags,
    ) -> io::Result<u32> {
        let rkey = inline::ibv_inc_rkey(window.rkey());
        let access = memory::flags(access).cast_unsigned();
        let mut wr = post::empty(id);
        wr.opcode = IBV_WR_BIND_MW;
        wr.send_flags = IBV_SEND_SIGNALED;
        wr.bind_mw = ibv_send_wr_bind_mw {
            mw: window.as_ptr(),
            rkey,
            bind_info: ibv_mw_bind_info {
                mr: region.as_ptr(),
                addr: part.address,
                length: part.length.into(),
                mw_access_flags: access,
            },
        };
        let mut bad = ptr::null_mut();
        // SAFETY: a live queue pair and one work request, whose window and region live for the
        // call. The device keeps their numbers, not these structures. The call accesses no
        // registered memory.
        inline::result(unsafe { inline::ibv_post_send(self.pair.as_ptr(), &mut wr, &mut bad) })?;
        window.set_rkey(rkey);
        Ok(rkey)
    }

    /// Converts an event of the connection manager.
    fn event(&mut self, event: &CmEvent) -> Option<ConnectionEvent> {
        let CmEvent { kind, status, private_data, .. } = *event;
        Some(match kind {
            RDMA_CM_EVENT_CONNECT_RESPONSE => self.confirm(event),
            RDMA_CM_EVENT_ESTABLISHED => {
                ConnectionEvent::Established { private_data, reads_out: event.initiator_depth }
            }
            RDMA_CM_EVENT_REJECTED => ConnectionEvent::Rejected { status, private_data },
            RDMA_CM_EVENT_CONNECT_ERROR | RDMA_CM_EVENT_UNREACHABLE => {
                ConnectionEvent::Failed { status }
            }
            RDMA_CM_EVENT_DISCONNECTED => {
                // The peer gets its event only after this reply.
                self.say_goodbye();
                ConnectionEvent::Disconnected
            }
            RDMA_CM_EVENT_DEVICE_REMOVAL => {
                self.pair.device.set_gone(&self.id);
                ConnectionEvent::DeviceRemoved
            }
            RDMA_CM_EVENT_ADDR_CHANGE => ConnectionEvent::AddressChanged,
            // For example the end of the timewait state.
            _ => return None,
        })
    }

    /// Makes the queue pair ready after the peer accepted, and confirms it to the peer.
    fn confirm(&mut self, event: &CmEvent) -> ConnectionEvent {
        let confirmed = self.ready(self.asked, false).and_then(|()| {
            // SAFETY: a live identifier, for which librdmacm has no queue pair.
            cm_result(unsafe { (self.id.library().cm.rdma_establish)(self.id.as_ptr()) })
        });
        match confirmed {
            Ok(()) => ConnectionEvent::Established {
                private_data: event.private_data,
                reads_out: event.initiator_depth,
            },
            Err(error) => {
                tracing::warn!(%error, peer = %self.id.peer(), "a connection could not be set up");
                // Without a message, the peer would keep the connection.
                self.disconnect();
                ConnectionEvent::Failed { status: -error.raw_os_error().unwrap_or(libc::EIO) }
            }
        }
    }

    /// Makes the queue pair ready to receive and to send. `exactly` sets the depths to the given
    /// values; otherwise they are upper limits of the negotiated values.
    fn ready(&self, depths: Option<Depths>, exactly: bool) -> io::Result<()> {
        // The peer's permissions are known only now.
        self.pair.init(&self.id)?;
        let depth = |agreed: u8, ours: u8| if exactly { ours } else { agreed.min(ours) };
        self.pair.lead(&self.id, IBV_QPS_RTR, |attr, mask| {
            if mask & IBV_QP_MIN_RNR_TIMER != 0 {
                attr.min_rnr_timer = RNR_TIMER;
            }
            if let Some(class) = self.traffic_class
                && mask & IBV_QP_AV != 0
            {
                attr.ah_attr.grh.traffic_class = class;
            }
            if let Some(Depths { reads_in, .. }) = depths
                && mask & IBV_QP_MAX_DEST_RD_ATOMIC != 0
            {
                attr.max_dest_rd_atomic = depth(attr.max_dest_rd_atomic, reads_in);
            }
        })?;
        self.pair.lead(&self.id, IBV_QPS_RTS, |attr, mask| {
            if let Some(retries) = self.retries
                && mask & IBV_QP_RETRY_CNT != 0
            {
                // Three bits.
                attr.retry_cnt = retries.min(7);
            }
            let Some(Depths { reads_out, rnr_retries, .. }) = depths else { return };
            if mask & IBV_QP_MAX_QP_RD_ATOMIC != 0 {
                attr.max_rd_atomic = depth(attr.max_rd_atomic, reads_out);
            }
            if mask & IBV_QP_RNR_RETRY != 0 {
                attr.rnr_retry = rnr_retries;
            }
        })
    }

    /// Returns the connection parameters for the peer.
    fn parameters(&self, private_data: &[u8], depths: Depths, retries: u8) -> rdma_conn_param {
        let shared = self.pair.shared.is_some();
        rdma_conn_param {
            private_data: private_data.as_ptr().cast(),
            // The kernel rejects more than about 200 bytes.
            private_data_len: u8::try_from(private_data.len()).unwrap_or(u8::MAX),
            responder_resources: depths.reads_in,
            initiator_depth: depths.reads_out,
            // A shared receive queue provides no credits for flow control.
            flow_control: (!shared).into(),
            retry_count: retries,
            rnr_retry_count: depths.rnr_retries,
            srq: shared.into(),
            qp_num: self.pair.number,
        }
    }

    fn depths(&self, reads_out: u8, reads_in: u8, rnr_retries: u8) -> Depths {
        let limits: DeviceLimits = self.pair.device.limits();
        Depths {
            reads_out: reads_out.min(limits.reads_out),
            reads_in: reads_in.min(limits.reads_in),
            // Three bits.
            rnr_retries: rnr_retries.min(7),
        }
    }

    /// Requests the end of the connection, or replies to the peer's request.
    fn say_goodbye(&mut self) {
        if std::mem::replace(&mut self.goodbye_said, true) {
            return;
        }
        // SAFETY: a live identifier.
        let answer = unsafe { (self.id.library().cm.rdma_disconnect)(self.id.as_ptr()) };
        // A connection that was never established cannot be disconnected; dropping the identifier
        // notifies the peer.
        if let Err(error) = cm_result(answer) {
            tracing::trace!(%error, peer = %self.id.peer(), "nothing to disconnect");
        }
    }

    fn failed(&self, what: &str, error: io::Error) -> VerbsError {
        VerbsError::call(format!("{what} {}", self.id.peer()), error)
    }
}

impl Endpoint for SystemEndpoint {
    fn number(&self) -> u32 {
        self.pair.number
    }

    fn inline(&self) -> u32 {
        self.inline
    }

    unsafe fn post_receive(&mut self, id: WrId, pieces: &[Sge]) -> io::Result<()> {
        // SAFETY: a live queue pair; the caller makes the promises about the memory.
        post::receive(id, pieces, |wr, bad| unsafe {
            inline::ibv_post_recv(self.pair.as_ptr(), wr, bad)
        })
    }

    unsafe fn post_send(&mut self, chain: &[SendWr]) -> Result<(), PostError> {
        let pair = self.pair.as_ptr();
        // SAFETY: as above.
        self.chain.post(chain, |wr, bad| unsafe { inline::ibv_post_send(pair, wr, bad) })
    }

    fn accept(&mut self, params: &AcceptParams<'_>) -> Result<(), VerbsError> {
        let depths = self.depths(params.reads_out, params.reads_in, params.rnr_retries);
        self.ready(Some(depths), true)
            .map_err(|error| self.failed("getting ready for the connection of", error))?;
        let mut parameters = self.parameters(params.private_data, depths, 0);
        // SAFETY: a live identifier; the private data lives for the call and is copied.
        let answer =
            unsafe { (self.id.library().cm.rdma_accept)(self.id.as_ptr(), &mut parameters) };
        cm_result(answer).map_err(|error| self.failed("accepting the connection of", error))?;
        self.id.answered();
        Ok(())
    }

    fn connect(&mut self, params: &ConnectParams<'_>) -> Result<(), VerbsError> {
        let depths = self.depths(params.reads_out, params.reads_in, params.rnr_retries);
        let mut parameters = self.parameters(params.private_data, depths, params.retries.min(7));
        // SAFETY: a live identifier; the private data lives for the call and is copied.
        let answer =
            unsafe { (self.id.library().cm.rdma_connect)(self.id.as_ptr(), &mut parameters) };
        cm_result(answer).map_err(|error| self.failed("asking for a connection to", error))?;
        self.asked = Some(depths);
        Ok(())
    }

    fn communication_established(&mut self) {
        // SAFETY: a live identifier.
        let answer =
            unsafe { (self.id.library().cm.rdma_notify)(self.id.as_ptr(), IBV_EVENT_COMM_EST) };
        // The peer's message has arrived by now, or the connection has ended: an event reports it.
        if let Err(error) = cm_result(answer) {
            tracing::debug!(%error, peer = %self.id.peer(), "not told that a connection stands");
        }
    }

    fn next_event(&mut self) -> Option<ConnectionEvent> {
        while !self.deaf {
            match self.id.next_event() {
                Ok(Some(event)) => {
                    if let Some(event) = self.event(&event) {
                        return Some(event);
                    }
                }
                Ok(None) => break,
                Err(error) => {
                    tracing::warn!(%error, peer = %self.id.peer(), "a connection's events failed");
                    self.deaf = true;
                    let status = -error.raw_os_error().unwrap_or(libc::EIO);
                    return Some(ConnectionEvent::Failed { status });
                }
            }
        }
        if self.alarm.take() && !self.ended {
            self.ended = true;
            return Some(ConnectionEvent::QueuePairError);
        }
        None
    }

    fn last_receive(&mut self) -> LastWqe {
        if self.alarm.has_reached_last() {
            return LastWqe::Reached;
        }
        // Soft-RoCE reports it since Linux 6.5, but offers no query for this capability.
        if self.pair.device.has_kernel_flags() { LastWqe::Untold } else { LastWqe::Awaited }
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.both.as_ref().map_or_else(|| self.id.fd(), AsFd::as_fd))
    }

    fn disconnect(&mut self) {
        if self.pair.failed {
            return;
        }
        self.pair.fail();
        self.ended = true;
        self.say_goodbye();
    }

    fn destroy(mut self) -> Result<(), (VerbsError, Self)> {
        match self.pair.destroy() {
            Ok(()) => Ok(()),
            Err(error) => Err((self.failed("taking away the queue pair for", error), self)),
        }
    }
}

/// The queue pair itself.
#[derive(Debug)]
struct QueuePair {
    pair: NonNull<ibv_qp>,
    number: u32,
    failed: bool,
    /// The queue pair is destroyed and `pair` is dangling.
    destroyed: bool,
    // Kept until the queue pair is destroyed.
    device: Arc<SystemDevice>,
    _completions: Arc<CqInner>,
    shared: Option<Arc<SrqInner>>,
}

// SAFETY: libibverbs and its providers lock queue pairs; nothing ties them to a thread.
unsafe impl Send for QueuePair {}
// SAFETY: `&self` changes its state with calls that lock; posting takes the endpoint's `&mut`.
unsafe impl Sync for QueuePair {}

impl QueuePair {
    /// Creates a queue pair, and returns it with its maximum inline bytes.
    fn new(
        device: &Arc<SystemDevice>,
        ticket: &SystemTicket,
        completions: &SystemCompletions,
        shared: Option<&SystemShared>,
        spec: &EndpointSpec,
    ) -> io::Result<(Self, u32)> {
        if !Arc::ptr_eq(device, ticket.device()) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a connection of another device",
            ));
        }
        let queue = completions.queue();
        let mut attr = ibv_qp_init_attr {
            qp_context: ptr::null_mut(),
            send_cq: queue.as_ptr(),
            recv_cq: queue.as_ptr(),
            srq: shared.map_or(ptr::null_mut(), |shared| shared.queue().as_ptr()),
            cap: ibv_qp_cap {
                max_send_wr: spec.sends,
                max_recv_wr: if shared.is_some() { 0 } else { spec.receives },
                max_send_sge: spec.send_pieces,
                max_recv_sge: if shared.is_some() { 0 } else { spec.receive_pieces },
                max_inline_data: spec.inline,
            },
            qp_type: IBV_QPT_RC,
            sq_sig_all: 0,
        };
        let pair = create(device, &mut attr)?;
        // SAFETY: the library just created it.
        let number = unsafe { (*pair.as_ptr()).qp_num };
        let this = Self {
            pair,
            number,
            failed: false,
            destroyed: false,
            device: Arc::clone(device),
            _completions: Arc::clone(queue),
            shared: shared.map(|shared| Arc::clone(shared.queue())),
        };
        Ok((this, attr.cap.max_inline_data))
    }

    /// Pointer for calls of the library, valid as long as `self`.
    fn as_ptr(&self) -> *mut ibv_qp {
        self.pair.as_ptr()
    }

    /// Subscribes to the queue pair's failure; with a descriptor to wait on if `wakes`.
    fn watched(&self, wakes: bool) -> io::Result<Arc<QpErrorNotifier>> {
        // SAFETY: a live queue pair, which is removed from the watch before it is destroyed
        // (`drop`).
        unsafe { self.device.watch().add_pair(self.pair, wakes) }
    }

    /// Makes the queue pair accept receives.
    fn init(&self, id: &ConnectionId) -> io::Result<()> {
        self.lead(id, IBV_QPS_INIT, |_, _| {})
    }

    /// Moves the queue pair to a state, with the connection manager's attributes. `change` modifies
    /// them; it also gets the mask of the attributes that apply.
    fn lead(
        &self,
        id: &ConnectionId,
        state: c_uint,
        change: impl FnOnce(&mut ibv_qp_attr, c_int),
    ) -> io::Result<()> {
        // SAFETY: the structure is plain numbers, for which zeroes are valid.
        let mut attr: ibv_qp_attr = unsafe { std::mem::zeroed() };
        attr.qp_state = state;
        let mut mask: c_int = 0;
        // SAFETY: a live identifier, and places for the results.
        let answer =
            unsafe { (id.library().cm.rdma_init_qp_attr)(id.as_ptr(), &mut attr, &mut mask) };
        cm_result(answer)?;
        if mask == 0 {
            // The kernel makes this transition for this transport.
            return Ok(());
        }
        change(&mut attr, mask);
        self.modify(&mut attr, mask)
    }

    /// Moves the queue pair to the error state: everything posted is flushed.
    fn fail(&mut self) {
        self.failed = true;
        // SAFETY: the structure is plain numbers, for which zeroes are valid.
        let mut attr: ibv_qp_attr = unsafe { std::mem::zeroed() };
        attr.qp_state = IBV_QPS_ERR;
        if let Err(error) = self.modify(&mut attr, IBV_QP_STATE) {
            let (device, number) = (self.device.name(), self.number);
            tracing::warn!(%error, device, number, "a queue pair could not be stopped");
        }
    }

    fn modify(&self, attr: &mut ibv_qp_attr, mask: c_int) -> io::Result<()> {
        // SAFETY: a live queue pair, and attributes that the call reads.
        let answer =
            unsafe { (self.device.library().verbs.ibv_modify_qp)(self.as_ptr(), attr, mask) };
        inline::result(answer)
    }
}

impl QueuePair {
    /// Destroys the queue pair. Afterwards no other function of it is called; after an error, this
    /// one can be called again.
    fn destroy(&mut self) -> io::Result<()> {
        if self.destroyed {
            return Ok(());
        }
        self.device.watch().remove_pair(self.number);
        // SAFETY: created here and destroyed once, as `destroyed` records, before the queues it
        // uses (they are fields of `self`). Afterwards the device uses no memory of posted work.
        let answer = unsafe { (self.device.library().verbs.ibv_destroy_qp)(self.as_ptr()) };
        inline::result(answer)?;
        self.destroyed = true;
        Ok(())
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // An owner that keeps memory the device may use has called `Endpoint::destroy` and handled
        // its error.
        if let Err(error) = self.destroy() {
            let (device, number) = (self.device.name(), self.number);
            tracing::error!(%error, device, number, "a queue pair could not be destroyed");
        }
    }
}

/// Creates a queue pair, with fewer inline bytes if the device does not support the requested
/// number.
fn create(device: &SystemDevice, attr: &mut ibv_qp_init_attr) -> io::Result<NonNull<ibv_qp>> {
    let asked = attr.cap;
    let mut inline = asked.max_inline_data;
    loop {
        attr.cap = ibv_qp_cap { max_inline_data: inline, ..asked };
        // SAFETY: a live domain; the queues that `attr` refers to live for the call.
        let pair = unsafe { (device.library().verbs.ibv_create_qp)(device.domain(), attr) };
        let error = io::Error::last_os_error();
        match NonNull::new(pair) {
            Some(pair) => return Ok(pair),
            None if inline == 0 => return Err(error),
            None => inline /= 2,
        }
    }
}

/// Returns a descriptor that is readable when one of two is.
fn merge(one: BorrowedFd<'_>, other: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let both = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    for fd in [one, other] {
        epoll::add(&both, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
    }
    Ok(both)
}
