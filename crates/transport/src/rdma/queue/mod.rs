//! A queue pair as a queue.
//!
//! [`qp`](super::qp) has the diagram of its stages. A queue keeps in each stage:
//!
//! | stage | receives | operations | ends with |
//! |---|---|---|---|
//! | CreatingCq | unposted | wait | the handshake's deadline, a failure, `close` |
//! | Accepting, Cancelling | posted | wait | the CM worker's reply |
//! | Accepted | posted | wait | the handshake's deadline, a failure, `close` |
//! | Established | posted | posted, or waiting for room | a failure, the host's disconnect, `close` |
//! | Draining | return flushed; the end of shared ones is reported | return flushed | everything returned, or the deadline |
//! | Destroying | unchanged | unchanged | the CM worker's reply, or the deadline |
//! | Destroyed | unposted again | returned as events, then `Closed` | |

mod commands;
mod detached;
mod lifecycle;
mod outgoing;
mod ring;
mod transfers;

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::sync::Arc;

use nvmeof_core::dma::{CorePool, LeaseError, ZeroCopyData};
use nvmeof_verbs::{Device, DeviceLimits, Endpoint, EndpointSpec, PrivateData, VerbsError};
use nvmeof_wire::rdma::{AcceptData, RejectStatus};
use nvmeof_wire::zerocopy::IntoBytes;

pub use self::detached::DetachedRdma;
pub(super) use self::detached::NegotiatedParams;

use self::commands::Commands;
use self::lifecycle::QueueLifecycle;
use self::outgoing::{SendLimits, SendQueue};
use self::transfers::{HostBuffers, HostTransfer};
use super::any_qp::AnyQp;
use super::cm_worker::{AcceptTask, CancelToken};
use super::cq_poller::{CqHandle, CqPoller, CqShared, Readiness, most_shared};
use super::kind;
use super::params::RdmaParams;
use super::qp::Qp;
use super::receives::ReceiveBuffers;
use super::registration::Registration;
use super::srq::SrqShare;
use crate::queue::{
    CloseReason, Connected, DetachedQueue, Event, FabricOp, HostQueue, Nanos, Progress,
    ReactorResources, RejectReason, Rejected, TransportError,
};

/// A queue pair owned by a reactor, unless the CM worker owns it.
///
/// When it is dropped, the endpoint goes first, then the memory of its work, then the handle of the
/// completion queue.
#[derive(Debug)]
struct RdmaQueue<D: Device> {
    link: AnyQp<D>,
    /// Parameters of the queue pair and of the host's response.
    spec: EndpointSpec,
    terms: NegotiatedParams,
    /// Its own receives; `None` if it shares those of its source.
    receives: Option<ReceiveBuffers>,
    outgoing: SendQueue,
    commands: Commands,
    /// Commands that arrived while paused.
    held: Vec<Event>,
    is_paused: bool,
    lifecycle: QueueLifecycle,
    params: RdmaParams,
    registration: Arc<Registration<D>>,
    pool: CorePool,
    port: CqHandle<D>,
    peer: SocketAddr,
}

/// Sizes of a queue pair, and the completion queue entries it needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Sizes {
    /// Bytes after a command.
    behind: u32,
    /// Slots of the send queue, without the marker's.
    places: u32,
    spec: EndpointSpec,
    /// Completions in addition to those of receives.
    entries: u32,
    /// True if its receives are shared.
    ///
    /// Those of an admin queue never are, so that its commands never wait.
    shares: bool,
}

impl Sizes {
    fn new(limits: DeviceLimits, terms: &NegotiatedParams, params: &RdmaParams) -> Self {
        let receives = u32::from(terms.receives);
        // Also on an admin queue: hosts send the data of admin commands up to the IOCCSZ of I/O
        // queues.
        let behind = if limits.pieces < 2 { 0 } else { params.in_capsule };
        // The WRITEs and the SEND of each command, and the READs; further work waits for room.
        let writes = params.max_transfer.div_ceil(limits.message.max(1)).max(1);
        let wanted = receives
            .saturating_mul(writes.saturating_add(1))
            .saturating_add(terms.reads_out.into());
        let places = wanted.min(limits.queue_depth.saturating_sub(1)).max(1);
        let spec = EndpointSpec {
            sends: places + 1,
            receives,
            send_pieces: 1,
            receive_pieces: if behind == 0 { 1 } else { 2 },
            inline: 16,
            traffic_class: params.traffic_class,
            retries: params.retries,
        };
        let shares = terms.request.qid != 0 && most_shared(params, limits) >= receives;
        Self { behind, places, spec, entries: places + 1, shares }
    }
}

/// Completion queue and receives of a queue pair.
#[derive(Debug)]
struct CqBinding<D: Device> {
    cq_shared: Rc<CqShared<D>>,
    /// Its share of the shared receives; `None` if it has its own.
    share: Option<SrqShare<D>>,
    /// Completion queue entries reserved for it alone.
    entries: u32,
}

impl<D: Device> CqBinding<D> {
    fn find(
        home: &mut ReactorResources<'_>,
        registration: &Arc<Registration<D>>,
        params: &RdmaParams,
        sizes: &Sizes,
    ) -> Result<Self, TransportError> {
        let Sizes { entries, spec: EndpointSpec { receives, .. }, .. } = *sizes;
        if sizes.shares {
            let cq_shared = CqPoller::find(home, registration, params, entries, Some(receives))?;
            if let Some(share) = cq_shared.share(registration, params, home.pool, receives)? {
                return Ok(Self { cq_shared, share: Some(share), entries });
            }
        }
        let entries = entries + receives;
        let cq_shared = CqPoller::find(home, registration, params, entries, None)?;
        Ok(Self { cq_shared, share: None, entries })
    }
}

/// Creates a queue for a connection request on a reactor.
///
/// The queue pair follows as soon as there is a completion queue.
pub(super) fn open<D: Device>(
    parked: DetachedRdma<D>,
    home: &mut ReactorResources<'_>,
) -> Result<Box<dyn HostQueue>, TransportError> {
    let DetachedRdma { ticket, terms, registration, params } = parked;
    let cm_worker = Arc::clone(registration.cm_worker());
    let peer = nvmeof_verbs::PendingConnection::peer(&ticket);
    let limits = registration.device().limits();
    let sizes = Sizes::new(limits, &terms, &params);
    let pool = home.pool.clone();
    let CqBinding { cq_shared, share, entries } =
        match CqBinding::find(home, &registration, &params, &sizes) {
            Ok(place) => place,
            Err(error) => {
                cm_worker.reject(ticket, RejectStatus::NO_RESOURCES);
                return Err(error);
            }
        };
    let hash = cq_shared.made().wrapping_mul(0x9e37_79b9) & u64::from(u32::MAX);
    let generation = u32::try_from(hash >> 8).expect("the upper 24 of 32 bits");
    let bounds = SendLimits {
        places: sizes.places,
        reads: terms.reads_out,
        message: limits.message,
        depth: terms.receives,
    };
    let size = (usize::from(terms.receives), sizes.behind);
    let memory = || -> Result<_, LeaseError> {
        let own = || ReceiveBuffers::new(&pool, &registration, kind::RECEIVE, size, generation);
        let receives = if share.is_some() { None } else { Some(own()?) };
        Ok((receives, SendQueue::new(&pool, &registration, &bounds, generation)?))
    };
    let (receives, outgoing) = match memory() {
        Ok(memory) => memory,
        Err(error) => {
            cm_worker.reject(ticket, RejectStatus::NO_RESOURCES);
            return Err(TransportError::NoMemory(format!("{peer}: {error}")));
        }
    };
    let port = cq_shared.port(entries, share);
    let mut queue = RdmaQueue {
        link: AnyQp::CreatingCq(ticket),
        spec: sizes.spec,
        terms,
        receives,
        outgoing,
        commands: Commands::new(terms.receives),
        held: Vec::new(),
        is_paused: false,
        lifecycle: QueueLifecycle::new(&params),
        params,
        registration,
        pool,
        port,
        peer,
    };
    if queue.port.readiness() == Readiness::Ready {
        queue.make()?;
    }
    Ok(Box::new(queue))
}

fn failed(peer: SocketAddr, error: VerbsError) -> TransportError {
    TransportError::Io {
        what: format!("cannot make the queue pair of {peer}"),
        source: std::io::Error::other(error),
    }
}

impl<D: Device> RdmaQueue<D> {
    /// Creates the queue pair, posts the receives, and passes the pair to the CM worker, which
    /// accepts.
    fn make(&mut self) -> Result<(), TransportError> {
        let Self { link, port, receives, registration, outgoing, terms, .. } = self;
        let mut result = Ok(());
        link.make(|ticket| {
            let (cm_worker, reply_to) = port.cm_worker();
            let endpoint = match port.open(ticket, &self.spec) {
                Ok(endpoint) => endpoint,
                Err((error, ticket)) => {
                    cm_worker.reject(ticket, RejectStatus::NO_RESOURCES);
                    result = Err(failed(self.peer, error));
                    return None;
                }
            };
            outgoing.set_inline(endpoint.inline());
            let mut pair = Qp::new(endpoint);
            let cancel = CancelToken::default();
            let posted = receives.as_mut().map(|own| own.post_all(&mut pair, registration));
            if let Some(Err(error)) = posted {
                tracing::warn!(peer = %self.peer, %error, "cannot post receives");
                // The CM worker destroys the queue pair, and rejects the host.
                cancel.call();
            }
            cm_worker.accept(AcceptTask {
                pair,
                private_data: PrivateData::new(AcceptData::new(terms.receives).as_bytes()),
                reads_out: terms.reads_out,
                reads_in: terms.reads_in,
                rnr_retries: self.params.rnr_retries,
                cancel: cancel.clone(),
                reply_to: reply_to.clone(),
            });
            Some(cancel)
        });
        result
    }

    /// Posts waiting work, if the connection is established.
    fn post(&mut self, events: &mut Vec<Event>) {
        let AnyQp::Established(pair) = &mut self.link else { return };
        if let Err(error) = self.outgoing.post(pair.sends(), events) {
            self.end(CloseReason::Lost(format!("the device accepts no work requests: {error}")));
        }
    }

    /// Returns the transfer of an operation's data, if it has any, or the reason for a rejection.
    fn transfer(&self, op: &FabricOp) -> Result<Option<HostTransfer>, RejectReason> {
        if !self.link.stage().is_live() {
            return Err(RejectReason::Closing);
        }
        let (cid, sgl, len) = match op {
            FabricOp::FetchHostData { buf, .. } if buf.is_empty() => {
                return Err(RejectReason::Invalid);
            }
            FabricOp::FetchHostData { .. } if self.outgoing.pulling() >= self.commands.depth() => {
                return Err(RejectReason::QueueFull);
            }
            FabricOp::FetchHostData { cid, sgl, buf, .. } => (*cid, *sgl, buf.len()),
            FabricOp::Respond { cqe, sgl, data: Some(data), .. } if !data.is_empty() => {
                (cqe.cid.get(), *sgl, data.len())
            }
            FabricOp::Respond { .. } => return Ok(None),
        };
        let list = self.commands.list(cid).ok_or(RejectReason::Invalid)?;
        let transfer = HostBuffers::new(sgl, list).and_then(|buffers| buffers.transfer(len));
        transfer.map(Some).ok_or(RejectReason::Invalid)
    }
}

impl<D: Device> HostQueue for RdmaQueue<D> {
    fn receive(&mut self, now: Nanos, events: &mut Vec<Event>) -> Progress {
        self.live(now, events)
    }

    fn submit(&mut self, op: FabricOp) -> Result<(), Rejected> {
        let transfer = match self.transfer(&op) {
            Ok(transfer) => transfer,
            Err(reason) => return Err(Rejected { op, reason }),
        };
        match (op, transfer) {
            (FabricOp::FetchHostData { token, buf, .. }, Some(transfer)) => {
                let lkey = self.registration.key_of(&buf);
                self.outgoing.pull(token, buf, lkey, transfer);
            }
            (FabricOp::Respond { token, cqe, sgl, mut data, elidable }, transfer) => {
                let span = data.as_mut().and_then(|data| self.registration.span_of(data));
                let is_known = span.is_some() || transfer.is_none();
                let answered = is_known.then(|| self.commands.answered(cqe.cid.get())).flatten();
                let Some(invalidate) = answered else {
                    let op = FabricOp::Respond { token, cqe, sgl, data, elidable };
                    return Err(Rejected { op, reason: RejectReason::Invalid });
                };
                match data {
                    Some(payload) => {
                        let way = span.zip(transfer);
                        self.outgoing.respond_with(cqe, invalidate, (token, payload), way);
                    }
                    None => self.outgoing.respond(cqe, invalidate),
                }
            }
            (op @ FabricOp::FetchHostData { .. }, None) => {
                return Err(Rejected { op, reason: RejectReason::Invalid });
            }
        }
        Ok(())
    }

    fn forget(&mut self, cid: u16) {
        self.commands.forget(cid);
    }

    fn flush(&mut self, _room: &mut usize, now: Nanos, events: &mut Vec<Event>) -> Progress {
        self.repost_unposted();
        self.post(events);
        self.lifecycle.posted(self.outgoing.awaits(), now);
        self.watch(now);
        self.settle(now, events);
        Progress::Idle
    }

    fn close(&mut self, reason: CloseReason) {
        self.end(reason);
    }

    fn connected(&mut self, info: Connected) {
        self.lifecycle.connected();
        self.commands.set_depth(info.depth);
        self.outgoing.set_depth(usize::from(info.depth));
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.link.fd()
    }

    fn deadline(&self) -> Option<Nanos> {
        self.lifecycle.deadline(self.link.stage(), &self.params)
    }

    fn extend_deadlines(&mut self, nanos: Nanos) {
        self.lifecycle.extend_deadlines(nanos);
    }

    fn detach(self: Box<Self>) -> Result<Box<dyn DetachedQueue>, Box<dyn HostQueue>> {
        Err(self)
    }

    fn set_paused(&mut self, paused: bool) {
        self.is_paused = paused;
    }

    fn bind(&mut self, token: u64) -> bool {
        self.port.set_token(token);
        true
    }

    fn supports_zero_copy(&self, data: &ZeroCopyData) -> bool {
        self.registration.knows(data)
    }
}

impl<D: Device> Drop for RdmaQueue<D> {
    /// Destroys the queue pair of a queue that is dropped, with its reactor, before it has emitted
    /// `Closed`.
    fn drop(&mut self) {
        if !self.take_pair_away() {
            tracing::error!(
                peer = %self.peer,
                "cannot destroy queue pair; its memory stays quarantined until the process ends"
            );
            let mut events = Vec::new();
            self.port.set_undestroyed_qp();
            std::mem::forget(self.take_memory(&mut Vec::new(), &mut events));
            std::mem::forget(events);
        }
    }
}
