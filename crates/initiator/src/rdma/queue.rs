//! An RDMA connection as an NVMe queue.
//!
//! ```text
//!   connect --Established--> Ready --error--> Broken --close--> Ended
//!                              `------------------close-----------^
//! ```
//!
//! `Broken` has disconnected, but the device can still access memory. That ends only when the pair
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

use super::commands::{Commands, Rules, Trouble};
use super::post::{Pair, Sizes};
use super::{Routes, handshake};
use crate::fabric::{QueuePair, QueueSpec};
use crate::{Command, Completed, Error, Nanos, RejectReason, Rejected};

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
enum Link<D: Device> {
    Ready(Pair<D>),
    Broken(Pair<D>),
    Ended,
}

/// An NVMe/RDMA connection. Fields are dropped in order: the link before the buffers of commands.
#[derive(Debug)]
pub(super) struct RdmaQueuePair<R: Routes> {
    link: Link<R::Device>,
    commands: Commands,
    device: Arc<R::Device>,
    routes: Arc<R>,
    peer: String,
    /// Completions that are polled and not processed yet.
    polled: Vec<WorkCompletion>,
    /// Turns until the next read of the connection's events.
    look_in: u32,
}

impl<R: Routes> RdmaQueuePair<R> {
    /// Connects to `to`; receives for every response are posted before.
    pub(super) fn connect(routes: Arc<R>, to: SocketAddr, spec: &QueueSpec) -> Result<Self, Error> {
        let peer = to.to_string();
        let verbs = |cause| Error::Verbs { peer: peer.clone(), cause };
        let ticket = routes.resolve(to, spec.timeout).map_err(verbs)?;
        let device = Arc::clone(ticket.device());
        let (sizes, mut rules) = measure(&device, spec);
        let mut pair = Pair::open(&device, ticket, sizes).map_err(verbs)?;
        rules.inline = pair.endpoint().inline() >= CAPSULE;
        let mut commands = Commands::new(rules);
        let error = |trouble| error_of(trouble, &peer);
        commands.post_receives(&mut pair).map_err(error)?;
        let asked = Request {
            qid: spec.qid,
            host_receives: rules.receives,
            entries: u32::from(spec.depth) + 1,
            cntlid: spec.cntlid,
        };
        let limits = device.limits();
        let timeout = spec.timeout;
        let receives = handshake::connect(&*routes, &mut pair, &limits, &asked, &peer, timeout)?;
        if let Some(receives) = receives {
            commands.bound_window(receives);
        }
        Ok(Self {
            link: Link::Ready(pair),
            commands,
            device,
            routes,
            peer,
            polled: Vec::with_capacity(BATCH),
            look_in: EVENTS_EVERY,
        })
    }

    /// Number of the queue pair.
    #[cfg(test)]
    pub(super) fn number(&mut self) -> u32 {
        match &mut self.link {
            Link::Ready(pair) | Link::Broken(pair) => pair.endpoint().number(),
            Link::Ended => 0,
        }
    }

    /// Processes completions and events of the connection.
    fn turn(&mut self, done: &mut Vec<Completed>) -> Result<(), Trouble> {
        if let Some(trouble) = self.commands.take_trouble() {
            return Err(trouble);
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
        let Some(trouble) = self.next_event() else { return Ok(()) };
        // Completions before the end have arrived by now; the flushed ones after it add nothing to
        // the event.
        while matches!(self.batch(done), Ok(1..)) {}
        Err(trouble)
    }

    /// Processes a batch of completions and returns their number.
    fn batch(&mut self, done: &mut Vec<Completed>) -> Result<usize, Trouble> {
        let Link::Ready(pair) = &mut self.link else { return Ok(0) };
        if self.polled.is_empty() {
            let polled = pair.poll(BATCH, &mut self.polled);
            polled
                .map_err(|error| Trouble::Link(format!("its completion queue broke: {error}")))?;
        }
        for completion in &self.polled {
            self.commands.completed(pair, completion, true, done)?;
        }
        let count = self.polled.len();
        self.polled.clear();
        Ok(count)
    }

    /// Converts the connection's next event; `None` if it is no error.
    fn next_event(&mut self) -> Option<Trouble> {
        let Link::Ready(pair) = &mut self.link else { return None };
        Some(match pair.endpoint().next_event()? {
            ConnectionEvent::Established { .. } => return None,
            ConnectionEvent::Disconnected => Trouble::Flushed,
            ConnectionEvent::DeviceRemoved => Trouble::Gone("the RDMA device was removed"),
            ConnectionEvent::AddressChanged => {
                Trouble::Gone("its address has moved to another device, or is gone")
            }
            ConnectionEvent::QueuePairError => {
                Trouble::Link("the queue pair is in the error state".into())
            }
            ConnectionEvent::Rejected { .. } | ConnectionEvent::Failed { .. } => {
                Trouble::Link("the connection manager took it back".into())
            }
        })
    }

    /// Ends the connection and returns the reason; commands end with [`QueuePair::close`].
    #[cold]
    fn break_off(&mut self, trouble: Trouble) -> Error {
        let trouble = match (trouble, self.next_event()) {
            (trouble @ Trouble::Peer(_), _) => trouble,
            // A flush has its reason in an event of the connection. A failure after the end of the
            // connection has no other reason.
            (Trouble::Flushed, Some(why))
            | (_, Some(why @ (Trouble::Gone(_) | Trouble::Flushed))) => why,
            (trouble, _) => trouble,
        };
        self.polled.clear();
        self.link = match std::mem::replace(&mut self.link, Link::Ended) {
            Link::Ready(mut pair) => {
                pair.endpoint().disconnect();
                Link::Broken(pair)
            }
            other => other,
        };
        error_of(trouble, &self.peer)
    }

    fn closed(&self) -> Error {
        Error::Closed { peer: self.peer.clone(), during: "" }
    }
}

impl<R: Routes> QueuePair for RdmaQueuePair<R> {
    #[inline]
    fn submit(&mut self, command: Command, deadline: Nanos) -> Result<(), Rejected> {
        let Link::Ready(pair) = &mut self.link else {
            return Err(Rejected { command, why: RejectReason::Closed });
        };
        self.commands.submit(pair, &self.device, command, deadline)
    }

    fn receive(&mut self, done: &mut Vec<Completed>) -> Result<(), Error> {
        if !matches!(self.link, Link::Ready(_)) {
            return Err(self.closed());
        }
        self.turn(done).map_err(|trouble| self.break_off(trouble))
    }

    fn flush(&mut self) -> Result<(), Error> {
        let Link::Ready(pair) = &mut self.link else { return Ok(()) };
        self.commands.flush(pair).map_err(|trouble| self.break_off(trouble))
    }

    fn close(&mut self, now: Nanos, done: &mut Vec<Completed>) {
        match std::mem::replace(&mut self.link, Link::Ended) {
            Link::Ready(mut pair) => {
                pair.endpoint().disconnect();
                // Commands with a response in time still succeed; failed and flushed ones end
                // below.
                while pair.poll(BATCH, &mut self.polled).is_ok() && !self.polled.is_empty() {
                    for completion in self.polled.drain(..) {
                        let _ = self.commands.completed(&mut pair, &completion, false, done);
                    }
                }
            }
            Link::Broken(_) | Link::Ended => {}
        }
        // The pair was dropped, so the device accesses nothing any more.
        self.polled.clear();
        self.commands.fail_all(now, done);
    }

    fn wait(&mut self, timeout: Duration) {
        let Link::Ready(pair) = &mut self.link else { return };
        if !self.polled.is_empty() || self.commands.has_trouble() {
            return;
        }
        // The next `receive` gets the same error. Completions before arming are not signaled.
        if pair.completions().arm().is_err()
            || pair.poll(BATCH, &mut self.polled).is_err()
            || !self.polled.is_empty()
        {
            return;
        }
        match pair.descriptors() {
            (completions, Some(connection)) => {
                self.routes.wait(&[completions, connection], timeout);
            }
            (completions, None) => self.routes.wait(&[completions], timeout),
        }
        self.look_in = 0;
    }

    fn is_overdue(&self, now: Nanos) -> bool {
        self.commands.slots().is_overdue(now)
    }

    fn in_flight(&self) -> usize {
        self.commands.slots().in_flight()
    }

    fn peer(&self) -> &str {
        &self.peer
    }
}

/// Derives the sizes of the pair and the limits of the queue from the request and the device.
fn measure<D: Device>(device: &Arc<D>, spec: &QueueSpec) -> (Sizes, Rules) {
    let limits = device.limits();
    let most = limits.queue_depth.min(limits.completions / 2);
    let most = u16::try_from(most).unwrap_or(u16::MAX).max(1);
    // One more than commands, as queues have entries, so that an entry is free while a command
    // completes.
    let places = spec.depth.saturating_add(1).min(most);
    let takes_data = spec.qid > 0 && spec.in_capsule > 0 && limits.pieces >= 2;
    let offset = if takes_data { spec.in_capsule_offset as usize } else { 0 };
    let sizes = Sizes {
        receives: places,
        receive_len: RECEIVE_LEN,
        outbox: spec.depth.max(1),
        outbox_len: SQE_SIZE + offset,
        sends: places.into(),
        send_pieces: if takes_data { 2 } else { 1 },
        inline: CAPSULE,
    };
    let rules = Rules {
        depth: spec.depth,
        window: spec.depth.min(places),
        sends: places,
        receives: places,
        in_capsule: if takes_data { spec.in_capsule } else { 0 },
        offset,
        inline: false,
    };
    (sizes, rules)
}

fn error_of(trouble: Trouble, peer: &str) -> Error {
    let peer = peer.to_owned();
    match trouble {
        Trouble::Peer(what) => Error::Misbehaved { peer, what },
        Trouble::Link(what) => Error::Link { peer, what },
        Trouble::Gone(what) => Error::Link { peer, what: what.into() },
        Trouble::Flushed => Error::Closed { peer, during: "" },
        Trouble::Verbs(cause) => Error::Verbs { peer, cause },
    }
}
