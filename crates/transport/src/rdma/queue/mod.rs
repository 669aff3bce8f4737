//! A queue pair as a queue. Its life is the diagram of [`pair`](super::pair); what is kept in each stage:
//!
//! | stage | receives | operations | ends with |
//! |---|---|---|---|
//! | Accepting | posted | wait | the handshake's deadline, a failure, `close` |
//! | Open | posted | posted, or waiting for room | a failure, the host's disconnect, `close` |
//! | Draining | come back flushed | come back flushed | everything back, or the deadline |
//! | Gone | ours again | given back as events, then `Closed` | |

mod commands;
mod life;
mod outgoing;
pub(super) mod receives;
mod ring;
mod transfers;

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use nvmeof_core::dma::{LeaseError, Payload};
use nvmeof_verbs::{AcceptParams, Device, DeviceLimits, Endpoint, EndpointSpec, VerbsError};
use nvmeof_wire::rdma::{AcceptData, RejectStatus};
use nvmeof_wire::zerocopy::IntoBytes;

use self::commands::Commands;
use self::life::Life;
use self::outgoing::{Bounds, Outgoing};
use self::receives::Receives;
use self::transfers::Targets;
use super::RdmaParams;
use super::listener::{ParkedRdma, Terms, reject};
use super::pair::{Link, Pair, Stage};
use super::registration::Registration;
use super::source::{DeviceSource, Port};
use crate::queue::{
    CloseReason, Connected, Event, FabricOp, Home, HostQueue, Nanos, ParkedQueue, Progress,
    RejectReason, Rejected, TransportError,
};

/// Kinds of work, in the top byte of an identifier.
pub(super) mod kind {
    pub(in crate::rdma) const RECEIVE: u8 = 1;
    pub(in crate::rdma) const SHARED_RECEIVE: u8 = 2;
    pub(in crate::rdma) const READ: u8 = 3;
    pub(in crate::rdma) const WRITE: u8 = 4;
    pub(in crate::rdma) const SEND: u8 = 5;
    pub(in crate::rdma) const MARKER: u8 = 6;
}

/// A queue pair owned by a reactor. Fields are dropped in order: the endpoint first, then the memory its work
/// names, then the completion queue's end.
#[derive(Debug)]
struct RdmaQueue<D: Device> {
    link: Link<D::Endpoint>,
    /// Its own receives; `None` if it shares those of its source.
    receives: Option<Receives>,
    outgoing: Outgoing,
    commands: Commands,
    /// Commands that came while paused.
    held: Vec<Event>,
    is_paused: bool,
    life: Life,
    params: RdmaParams,
    registration: Arc<Registration<D>>,
    port: Port<D>,
    peer: SocketAddr,
}

/// Sizes of a queue pair, and what it takes of its completion queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Sizes {
    /// Bytes behind a command.
    behind: u32,
    /// Places of the send queue, without the marker's.
    places: u32,
    spec: EndpointSpec,
    entries: u32,
}

impl Sizes {
    fn new(limits: DeviceLimits, terms: &Terms, params: &RdmaParams) -> Self {
        let receives = u32::from(terms.receives);
        let behind = match terms.request.qid {
            0 => 0,
            _ if limits.pieces < 2 => 0,
            _ => params.in_capsule,
        };
        // A WRITE and a SEND for each command, and the READs; more waits its turn.
        let wanted = 2 * receives + u32::from(terms.reads_out);
        let places = wanted.min(limits.queue_depth.saturating_sub(1)).max(1);
        let spec = EndpointSpec {
            sends: places + 1,
            receives,
            send_pieces: 1,
            receive_pieces: if behind == 0 { 1 } else { 2 },
            inline: 16,
            traffic_class: params.traffic_class,
        };
        Self { behind, places, spec, entries: places + 1 + receives }
    }
}

/// Makes the queue pair of a connection request on a reactor, and accepts.
pub(super) fn open<D: Device>(
    parked: ParkedRdma<D>,
    home: &mut Home<'_>,
) -> Result<Box<dyn HostQueue>, TransportError> {
    let ParkedRdma { ticket, terms, registration, params } = parked;
    let peer = nvmeof_verbs::Ticket::peer(&ticket);
    let limits = registration.device().limits();
    let sizes = Sizes::new(limits, &terms, &params);
    let pool = home.pool.clone();
    let source = match DeviceSource::find(home, &registration, &params, sizes.entries) {
        Ok(source) => source,
        Err(error) => {
            reject(ticket, RejectStatus::NO_RESOURCES);
            return Err(error);
        }
    };
    let endpoint = match source.open(ticket, &sizes.spec) {
        Ok(endpoint) => endpoint,
        Err((error, ticket)) => {
            reject(ticket, RejectStatus::NO_RESOURCES);
            return Err(failed(peer, error));
        }
    };
    let port = source.port(endpoint.number(), sizes.entries);
    let generation = port.made().wrapping_mul(0x9e37_79b9) >> 8;
    let no_memory = |error: LeaseError| TransportError::NoMemory(format!("{peer}: {error}"));
    let receives = if source.has_shared() {
        None
    } else {
        let size = (usize::from(terms.receives), sizes.behind);
        let own = Receives::new(&pool, &registration, kind::RECEIVE, size, generation);
        Some(own.map_err(no_memory)?)
    };
    let bounds = Bounds {
        places: sizes.places,
        reads: terms.reads_out,
        message: limits.message,
        inline: endpoint.inline(),
        depth: terms.receives,
    };
    let outgoing = Outgoing::new(&pool, &registration, &bounds, generation).map_err(no_memory)?;
    let mut queue = RdmaQueue {
        link: Link::Accepting(Pair::new(endpoint)),
        receives,
        outgoing,
        commands: Commands::new(terms.receives),
        held: Vec::new(),
        is_paused: false,
        life: Life::default(),
        params,
        registration,
        port,
        peer,
    };
    queue.accept(&terms)?;
    Ok(Box::new(queue))
}

fn failed(peer: SocketAddr, error: VerbsError) -> TransportError {
    TransportError::Io {
        what: format!("cannot make the queue pair of {peer}"),
        source: std::io::Error::other(error),
    }
}

impl<D: Device> RdmaQueue<D> {
    /// Posts the receives, then lets the host send.
    fn accept(&mut self, terms: &Terms) -> Result<(), TransportError> {
        let Link::Accepting(pair) = &mut self.link else { return Ok(()) };
        if let Some(receives) = &mut self.receives {
            receives.post_all(pair, &self.registration).map_err(|source| TransportError::Io {
                what: format!("cannot post receives for {}", self.peer),
                source,
            })?;
        }
        let answer = AcceptData::new(terms.receives);
        let params = AcceptParams {
            private_data: answer.as_bytes(),
            reads_out: terms.reads_out,
            reads_in: terms.reads_in,
            rnr_retries: self.params.rnr_retries,
        };
        pair.accept(&params).map_err(|error| failed(self.peer, error))
    }

    /// Posts what waits, if the connection stands.
    fn post(&mut self, events: &mut Vec<Event>) {
        let Link::Open(pair) = &mut self.link else { return };
        if let Err(error) = self.outgoing.post(pair.sends(), events) {
            self.end(CloseReason::Lost(format!("the device takes no work: {error}")));
        }
    }

    /// What keeps an operation from being taken, if anything does.
    fn refuses(&self, op: &FabricOp) -> Option<RejectReason> {
        if !matches!(self.link.stage(), Stage::Accepting | Stage::Open) {
            return Some(RejectReason::Closing);
        }
        let fits = |cid, sgl, len| {
            Targets::new(sgl, self.commands.list(cid)).is_some_and(|targets| targets.hold(len))
        };
        match op {
            FabricOp::Pull { cid, sgl, buf, .. } => {
                if buf.is_empty() || !self.commands.contains(*cid) || !fits(*cid, *sgl, buf.len()) {
                    return Some(RejectReason::Invalid);
                }
                let is_full = self.outgoing.pulling() >= self.commands.depth();
                is_full.then_some(RejectReason::QueueFull)
            }
            FabricOp::Respond { cqe, sgl, data, .. } => {
                let cid = cqe.cid.get();
                let is_possible = self.commands.contains(cid)
                    && match data {
                        None => true,
                        Some(Payload::Buffer(buf)) => buf.is_empty() || fits(cid, *sgl, buf.len()),
                        // Not registered with the device.
                        Some(Payload::Lent(_)) => false,
                    };
                (!is_possible).then_some(RejectReason::Invalid)
            }
        }
    }
}

impl<D: Device> HostQueue for RdmaQueue<D> {
    fn receive(&mut self, now: Nanos, events: &mut Vec<Event>) -> Progress {
        self.live(now, events)
    }

    fn submit(&mut self, op: FabricOp) -> Result<(), Rejected> {
        if let Some(why) = self.refuses(&op) {
            return Err(Rejected { op, why });
        }
        match op {
            FabricOp::Pull { token, cid, sgl, buf } => {
                match Targets::new(sgl, self.commands.list(cid)) {
                    Some(targets) => {
                        let lkey = self.registration.key_of(&buf);
                        self.outgoing.pull(token, buf, lkey, targets);
                    }
                    None => {
                        let op = FabricOp::Pull { token, cid, sgl, buf };
                        return Err(Rejected { op, why: RejectReason::Invalid });
                    }
                }
            }
            FabricOp::Respond { token, cqe, sgl, data, elidable: _ } => {
                let cid = cqe.cid.get();
                let targets = Targets::new(sgl, self.commands.list(cid));
                let invalidate = self.commands.answered(cid).flatten();
                match (data, targets) {
                    (Some(Payload::Buffer(buf)), Some(targets)) => {
                        let lkey = self.registration.key_of(&buf);
                        self.outgoing.respond_with(cqe, invalidate, (token, buf, lkey), targets);
                    }
                    _ => self.outgoing.respond(cqe, invalidate),
                }
            }
        }
        Ok(())
    }

    fn flush(&mut self, now: Nanos, events: &mut Vec<Event>) -> Progress {
        self.post(events);
        self.life.posted(self.outgoing.awaits(), now);
        self.settle(now, events);
        Progress::Idle
    }

    fn close(&mut self, why: CloseReason) {
        self.end(why);
    }

    fn connected(&mut self, info: Connected) {
        self.life.connected();
        self.commands.set_depth(info.depth);
        self.outgoing.set_depth(usize::from(info.depth));
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.link.fd()
    }

    fn deadline(&self) -> Option<Nanos> {
        self.life.deadline(self.link.stage(), &self.params)
    }

    fn park(self: Box<Self>) -> Result<Box<dyn ParkedQueue>, Box<dyn HostQueue>> {
        Err(self)
    }

    fn set_paused(&mut self, paused: bool) {
        self.is_paused = paused;
    }

    fn set_token(&mut self, token: u64) {
        self.port.set_token(token);
    }

    fn is_movable(&self) -> bool {
        false
    }

    fn takes_lent(&self) -> bool {
        false
    }
}
