//! An RDMA connection as an NVMe queue.
//!
//! ```text
//!   connect --Established--> Ready --error--> Broken --close--> Ended
//!                              `------------------close-----------^
//! ```
//!
//! `Broken` has disconnected, but the device can still access memory. That ends only when the QP
//! is dropped, and the commands end after that.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use nvmeof_verbs::{
    CompletionQueue as _, ConnectionEvent, Device, Endpoint as _, PendingConnection as _,
    WorkCompletion,
};
use nvmeof_wire::cqe::CQE_SIZE;
use nvmeof_wire::rdma::Request;
use nvmeof_wire::sqe::SQE_SIZE;

use super::commands::{ConnectionError, NegotiatedLimits, RdmaCommands};
use super::post::{Qp, QpSizes};
use super::{RouteResolver, handshake};
use crate::fabric::{QueuePair, QueueSpec};
use crate::{Command, CompletedCommand, Error, Nanos, RejectReason, RejectedCommand};

/// Completions polled with one call.
const BATCH: usize = 32;
/// Maximum batches of one [`QueuePair::receive`], so that a fast peer does not prevent sending.
const BATCHES_A_TURN: usize = 4;
/// Turns without a completion between two reads of the connection's events, which can take a system
/// call.
const EVENTS_EVERY: u32 = 64;
/// Bytes of a capsule without data.
const CAPSULE: u32 = 64;
const _: () = assert!(CAPSULE as usize == SQE_SIZE);
/// Bytes of a receive. It is longer than a response, so that a response that is too long differs
/// from a broken device.
const RECEIVE_LEN: usize = 4 * CQE_SIZE;

#[derive(Debug)]
enum LinkState<D: Device> {
    Ready(Qp<D>),
    Broken(Qp<D>),
    Ended,
}

/// An NVMe/RDMA connection. Fields are dropped in order: the link before the buffers of commands.
#[derive(Debug)]
pub(super) struct RdmaQueuePair<R: RouteResolver> {
    link: LinkState<R::Device>,
    commands: RdmaCommands,
    device: Arc<R::Device>,
    resolver: Arc<R>,
    peer: String,
    /// Completions that are polled and not processed yet.
    polled: Vec<WorkCompletion>,
    /// Turns until the next read of the connection's events.
    look_in: u32,
}

impl<R: RouteResolver> RdmaQueuePair<R> {
    /// Connects to `to`; receives for every response are posted before.
    pub(super) fn connect(
        resolver: Arc<R>,
        to: SocketAddr,
        spec: &QueueSpec,
    ) -> Result<Self, Error> {
        let peer = to.to_string();
        let verbs = |cause| Error::Verbs { peer: peer.clone(), cause };
        let ticket = resolver.resolve(to, spec.timeout).map_err(verbs)?;
        let device = Arc::clone(ticket.device());
        let (sizes, mut limits) = measure(&device, spec);
        let mut qp = Qp::open(&device, ticket, sizes).map_err(verbs)?;
        limits.inline = qp.endpoint().inline() >= CAPSULE;
        let mut commands = RdmaCommands::new(limits);
        let error = |error| error_of(error, &peer);
        commands.post_receives(&mut qp).map_err(error)?;
        let asked = Request {
            qid: spec.qid,
            host_receives: limits.receives,
            entries: u32::from(spec.depth) + 1,
            cntlid: spec.cntlid,
        };
        let device_limits = device.limits();
        let timeout = spec.timeout;
        let receives =
            handshake::connect(&*resolver, &mut qp, &device_limits, &asked, &peer, timeout)?;
        if let Some(receives) = receives {
            commands.bound_window(receives);
        }
        Ok(Self {
            link: LinkState::Ready(qp),
            commands,
            device,
            resolver,
            peer,
            polled: Vec::with_capacity(BATCH),
            look_in: EVENTS_EVERY,
        })
    }

    /// Number of the queue pair.
    #[cfg(test)]
    pub(super) fn number(&mut self) -> u32 {
        match &mut self.link {
            LinkState::Ready(qp) | LinkState::Broken(qp) => qp.endpoint().number(),
            LinkState::Ended => 0,
        }
    }

    /// Processes completions and events of the connection.
    fn turn(&mut self, done: &mut Vec<CompletedCommand>) -> Result<(), ConnectionError> {
        if let Some(error) = self.commands.take_error() {
            return Err(error);
        }
        for _ in 0..BATCHES_A_TURN {
            let count = self.batch(done)?;
            if count > 0 {
                self.look_in = EVENTS_EVERY;
            }
            if count < BATCH {
                break;
            }
        }
        self.look_in = self.look_in.saturating_sub(1);
        if self.look_in > 0 {
            return Ok(());
        }
        self.look_in = EVENTS_EVERY;
        let Some(error) = self.next_event() else { return Ok(()) };
        // Completions before the end have arrived by now; the flushed ones after it add nothing to
        // the event.
        while matches!(self.batch(done), Ok(1..)) {}
        Err(error)
    }

    /// Processes a batch of completions and returns their number.
    fn batch(&mut self, done: &mut Vec<CompletedCommand>) -> Result<usize, ConnectionError> {
        let LinkState::Ready(qp) = &mut self.link else { return Ok(0) };
        if self.polled.is_empty() {
            let polled = qp.poll(BATCH, &mut self.polled);
            polled.map_err(|error| {
                ConnectionError::Link(format!("the completion queue failed: {error}"))
            })?;
        }
        for completion in &self.polled {
            self.commands.completed(qp, completion, true, done)?;
        }
        let count = self.polled.len();
        self.polled.clear();
        Ok(count)
    }

    /// Converts the connection's next event; `None` if it is no error.
    fn next_event(&mut self) -> Option<ConnectionError> {
        let LinkState::Ready(qp) = &mut self.link else { return None };
        Some(match qp.endpoint().next_event()? {
            ConnectionEvent::Established { .. } => return None,
            ConnectionEvent::Disconnected => ConnectionError::Flushed,
            ConnectionEvent::DeviceRemoved => ConnectionError::Gone("the RDMA device was removed"),
            ConnectionEvent::AddressChanged => {
                ConnectionError::Gone("the address was moved to another device, or removed")
            }
            ConnectionEvent::QueuePairError => {
                ConnectionError::Link("the queue pair is in the error state".into())
            }
            ConnectionEvent::Rejected { .. } | ConnectionEvent::Failed { .. } => {
                ConnectionError::Link("the connection manager withdrew the connection".into())
            }
        })
    }

    /// Ends the connection and returns the reason; commands end with [`QueuePair::close`].
    #[cold]
    fn break_off(&mut self, error: ConnectionError) -> Error {
        let error = match (error, self.next_event()) {
            (error @ ConnectionError::Peer(_), _) => error,
            // A flush has its reason in an event of the connection. A failure after the end of the
            // connection has no other reason.
            (ConnectionError::Flushed, Some(reason))
            | (_, Some(reason @ (ConnectionError::Gone(_) | ConnectionError::Flushed))) => reason,
            (error, _) => error,
        };
        self.polled.clear();
        self.link = match std::mem::replace(&mut self.link, LinkState::Ended) {
            LinkState::Ready(mut qp) => {
                qp.endpoint().disconnect();
                LinkState::Broken(qp)
            }
            other => other,
        };
        error_of(error, &self.peer)
    }

    fn closed(&self) -> Error {
        Error::Closed { peer: self.peer.clone(), during: "" }
    }
}

impl<R: RouteResolver> QueuePair for RdmaQueuePair<R> {
    #[inline]
    fn submit(&mut self, command: Command, deadline: Nanos) -> Result<(), RejectedCommand> {
        let LinkState::Ready(qp) = &mut self.link else {
            return Err(RejectedCommand { command, reason: RejectReason::Closed });
        };
        self.commands.submit(qp, &self.device, command, deadline)
    }

    fn receive(&mut self, done: &mut Vec<CompletedCommand>) -> Result<(), Error> {
        if !matches!(self.link, LinkState::Ready(_)) {
            return Err(self.closed());
        }
        self.turn(done).map_err(|error| self.break_off(error))
    }

    fn flush(&mut self) -> Result<(), Error> {
        let LinkState::Ready(qp) = &mut self.link else { return Ok(()) };
        self.commands.flush(qp).map_err(|error| self.break_off(error))
    }

    fn close(&mut self, now: Nanos, done: &mut Vec<CompletedCommand>) {
        match std::mem::replace(&mut self.link, LinkState::Ended) {
            LinkState::Ready(mut qp) => {
                qp.endpoint().disconnect();
                // Commands with a response in time still succeed; failed and flushed ones end
                // below.
                while qp.poll(BATCH, &mut self.polled).is_ok() && !self.polled.is_empty() {
                    for completion in self.polled.drain(..) {
                        let _ = self.commands.completed(&mut qp, &completion, false, done);
                    }
                }
            }
            LinkState::Broken(_) | LinkState::Ended => {}
        }
        // The QP was dropped, so the device accesses nothing any more.
        self.polled.clear();
        self.commands.fail_all(now, done);
    }

    fn wait(&mut self, timeout: Duration) {
        let LinkState::Ready(qp) = &mut self.link else { return };
        if !self.polled.is_empty() || self.commands.has_error() {
            return;
        }
        // The next `receive` gets the same error. Completions before arming are not signaled.
        if qp.completions().arm().is_err()
            || qp.poll(BATCH, &mut self.polled).is_err()
            || !self.polled.is_empty()
        {
            return;
        }
        match qp.descriptors() {
            (completions, Some(connection)) => {
                self.resolver.wait(&[completions, connection], timeout);
            }
            (completions, None) => self.resolver.wait(&[completions], timeout),
        }
        self.look_in = 0;
    }

    fn is_overdue(&self, now: Nanos) -> bool {
        self.commands.table().is_overdue(now)
    }

    fn in_flight(&self) -> usize {
        self.commands.table().in_flight()
    }

    fn peer(&self) -> &str {
        &self.peer
    }
}

/// Derives the sizes of the QP and the limits of the queue from the request and the device.
fn measure<D: Device>(device: &Arc<D>, spec: &QueueSpec) -> (QpSizes, NegotiatedLimits) {
    let device_limits = device.limits();
    let most = device_limits.queue_depth.min(device_limits.completions / 2);
    let most = u16::try_from(most).unwrap_or(u16::MAX).max(1);
    // One more than commands, as queues have entries, so that an entry is free while a command
    // completes.
    let places = spec.depth.saturating_add(1).min(most);
    let takes_data = spec.qid > 0 && spec.in_capsule > 0 && device_limits.pieces >= 2;
    let offset = if takes_data { spec.in_capsule_offset as usize } else { 0 };
    let sizes = QpSizes {
        receives: places,
        receive_len: RECEIVE_LEN,
        outbox: spec.depth.max(1),
        outbox_len: SQE_SIZE + offset,
        sends: places.into(),
        send_pieces: if takes_data { 2 } else { 1 },
        inline: CAPSULE,
    };
    let limits = NegotiatedLimits {
        depth: spec.depth,
        window: spec.depth.min(places),
        sends: places,
        receives: places,
        in_capsule: if takes_data { spec.in_capsule } else { 0 },
        offset,
        inline: false,
    };
    (sizes, limits)
}

fn error_of(error: ConnectionError, peer: &str) -> Error {
    let peer = peer.to_owned();
    match error {
        ConnectionError::Peer(what) => Error::Misbehaved { peer, what },
        ConnectionError::Link(what) => Error::Link { peer, what },
        ConnectionError::Gone(what) => Error::Link { peer, what: what.into() },
        ConnectionError::Flushed => Error::Closed { peer, during: "" },
        ConnectionError::Verbs(cause) => Error::Verbs { peer, cause },
    }
}
