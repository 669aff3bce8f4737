//! The connection manager: requests, replies and disconnects.
//!
//! ```text
//!   asking side                                            listening side
//!   Idle --connect--> Asking ------- request --------> ticket --open--> Asked
//!                       |<------ reply ------------------------accept-----'--> Accepting
//!                    Answered --event taken-- ready ------------------------------> Standing
//!                       `--> Standing
//!   any --disconnect--> Leaving --> Over <--- the peer's disconnect
//! ```

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use nvmeof_verbs::{AcceptParams, ConnectParams, ConnectionEvent, PrivateData, VerbsError};
use rustix::io::Errno;

use crate::device::{LoopbackDevice, invalid};
use crate::queue_pair::{Failure, Phase, QueuePair};
use crate::signal::Signal;
use crate::state::{Event, State};

/// Bytes of private data in a connection request over IP addresses. Shorter data arrives padded
/// with zeroes.
pub const REQUEST_DATA: usize = 56;
/// Bytes of private data in a reply, as [`REQUEST_DATA`].
pub const REPLY_DATA: usize = 196;
/// Bytes of private data in a rejection, as [`REQUEST_DATA`].
pub const REJECT_DATA: usize = 148;

/// Status of [`ConnectionEvent::Rejected`]: no listener has the address.
pub const NOBODY_LISTENS: i32 = 8;
/// Status of [`ConnectionEvent::Rejected`]: the listening side rejected the request.
pub const REFUSED: i32 = 28;
/// Status of [`ConnectionEvent::Failed`]: no reply (`-ETIMEDOUT`).
pub const NO_ANSWER: i32 = -110;

/// State of an endpoint's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    /// A route without a request.
    Idle,
    Asking,
    /// The reply has arrived, and its event is not taken yet.
    Answered,
    /// A request that was opened and not accepted yet.
    Asked,
    Accepting,
    Standing,
    /// We disconnected; [`ConnectionEvent::Disconnected`] follows.
    Leaving,
    Over,
}

/// A connection, from its request until both ends have dropped it.
#[derive(Debug)]
pub(crate) struct Connection {
    asker: u32,
    answerer: Option<u32>,
    /// The request is neither opened nor rejected: it is in transit, waits at the listener, or is a
    /// ticket.
    open: bool,
    private_data: PrivateData,
    reads_out: u8,
    reads_in: u8,
    retries: u8,
    from: SocketAddr,
    to: SocketAddr,
    last: u64,
}

#[derive(Debug)]
pub(crate) struct ListenerState {
    device: u32,
    pub(crate) waiting: VecDeque<u32>,
    signal: Arc<Signal>,
}

/// Messages between connection managers, and their timers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    Request {
        connection: u32,
    },
    Reply {
        connection: u32,
        private_data: PrivateData,
        reads_out: u8,
        reads_in: u8,
    },
    Ready {
        connection: u32,
    },
    Reject {
        to: u32,
        status: i32,
        private_data: PrivateData,
    },
    Disconnect {
        to: u32,
    },
    /// The reply to our own [`Self::Disconnect`].
    Left {
        to: u32,
    },
    /// The message of `to` got no reply.
    Timeout {
        to: u32,
    },
}

/// A listener that receives connection requests.
#[derive(Debug)]
pub struct LoopbackListener {
    device: Arc<LoopbackDevice>,
    address: SocketAddr,
    signal: Arc<Signal>,
}

/// Implements [`PendingConnection`](nvmeof_verbs::PendingConnection).
#[derive(Debug)]
pub struct LoopbackTicket {
    pub(crate) device: Arc<LoopbackDevice>,
    pub(crate) role: Role,
    pub(crate) private_data: PrivateData,
    pub(crate) reads: (u8, u8),
    pub(crate) peer: SocketAddr,
    pub(crate) local: SocketAddr,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// A connection that a peer requests.
    Asked(u32),
    Route,
    /// Opened or rejected.
    Used,
}

impl LoopbackListener {
    pub(crate) fn new(
        device: &Arc<LoopbackDevice>,
        address: SocketAddr,
    ) -> Result<Self, VerbsError> {
        let what = format!("listening on {address}");
        let mut state = device.fabric.lock();
        state.check_device(device.number, &what)?;
        if state.listeners.contains_key(&address) {
            return Err(VerbsError::call(what, Errno::ADDRINUSE.into()));
        }
        let signal = Arc::new(Signal::new()?);
        let listener = ListenerState {
            device: device.number,
            waiting: VecDeque::new(),
            signal: Arc::clone(&signal),
        };
        state.listeners.insert(address, listener);
        Ok(Self { device: Arc::clone(device), address, signal })
    }

    /// Address of the listener.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the oldest waiting request.
    pub fn next_ticket(&mut self) -> Option<LoopbackTicket> {
        let mut state = self.device.fabric.lock();
        let listener = state.listeners.get_mut(&self.address)?;
        let connection = listener.waiting.pop_front()?;
        if listener.waiting.is_empty() {
            self.signal.lower();
        }
        let request = state.connections.get(&connection)?;
        let ticket = LoopbackTicket {
            device: Arc::clone(&self.device),
            role: Role::Asked(connection),
            private_data: request.private_data,
            reads: (request.reads_out, request.reads_in),
            peer: request.from,
            local: request.to,
        };
        state.counters.tickets += 1;
        Some(ticket)
    }

    /// Descriptor that is readable while a request waits.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.signal.fd()
    }
}

impl Drop for LoopbackListener {
    fn drop(&mut self) {
        let mut state = self.device.fabric.lock();
        let Some(listener) = state.listeners.remove(&self.address) else { return };
        for connection in listener.waiting {
            state.refuse_request(connection, REFUSED, &[]);
        }
    }
}

impl LoopbackTicket {
    pub(crate) fn route(device: &Arc<LoopbackDevice>, address: SocketAddr) -> Self {
        let mut state = device.fabric.lock();
        state.counters.tickets += 1;
        let port = 0x8000 | u16::try_from(state.name() & 0x7fff).unwrap_or_default();
        Self {
            device: Arc::clone(device),
            role: Role::Route,
            private_data: PrivateData::EMPTY,
            reads: (0, 0),
            peer: address,
            local: SocketAddr::new(device.address(), port),
        }
    }

    /// Sends a rejection if the ticket is an open request.
    pub(crate) fn refuse(&mut self, private_data: &[u8]) {
        let role = std::mem::replace(&mut self.role, Role::Used);
        let mut state = self.device.fabric.lock();
        if role != Role::Used {
            state.counters.tickets -= 1;
        }
        if let Role::Asked(connection) = role {
            state.refuse_request(connection, REFUSED, private_data);
        }
    }
}

impl Drop for LoopbackTicket {
    fn drop(&mut self) {
        self.refuse(&[]);
    }
}

/// Pads `data` with zeroes to `size` bytes; longer data is truncated.
fn padded(data: &[u8], size: usize) -> PrivateData {
    let mut bytes = [0; PrivateData::MAX];
    for (to, from) in bytes[..size].iter_mut().zip(data) {
        *to = *from;
    }
    PrivateData::new(&bytes[..size])
}

impl State {
    /// Sends a message of a connection. The messages of one connection arrive in order.
    fn tell_peer(&mut self, connection: Option<u32>, message: Message) {
        let delay = self.costs.message + self.random.below(self.costs.jitter.saturating_add(1));
        let mut time = self.now + delay;
        if let Some(connection) = connection.and_then(|number| self.connections.get_mut(&number)) {
            time = time.max(connection.last + 1);
            connection.last = time;
        }
        self.at(time, Event::Message(Box::new(message)));
    }

    fn refuse_request(&mut self, number: u32, status: i32, private_data: &[u8]) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        connection.open = false;
        let to = connection.asker;
        let private_data = padded(private_data, REJECT_DATA);
        self.tell_peer(Some(number), Message::Reject { to, status, private_data });
        self.forget_connection(number);
    }

    fn forget_connection(&mut self, number: u32) {
        let Some(connection) = self.connections.get(&number) else { return };
        let ends = [Some(connection.asker), connection.answerer];
        let alive = ends.iter().flatten().any(|end| self.queue_pairs.contains_key(end));
        if !alive && !connection.open {
            self.connections.remove(&number);
        }
    }

    pub(crate) fn connect(
        &mut self,
        number: u32,
        local: SocketAddr,
        peer: SocketAddr,
        params: &ConnectParams<'_>,
    ) -> Result<(), VerbsError> {
        let what = "asking for a connection";
        let connection = self.name();
        let Some(queue_pair) = self.queue_pairs.get_mut(&number) else { return Err(invalid(what)) };
        let limits = self.devices.get(&queue_pair.device).map(|device| device.options.limits);
        let fits = limits.is_some_and(|limits| {
            params.reads_out <= limits.reads_out && params.reads_in <= limits.reads_in
        });
        let sane = params.private_data.len() <= REQUEST_DATA
            && params.retries <= 7
            && params.rnr_retries <= 7;
        if queue_pair.link != Link::Idle || queue_pair.phase != Phase::Init || !fits || !sane {
            return Err(invalid(what));
        }
        queue_pair.link = Link::Asking;
        queue_pair.connection = Some(connection);
        queue_pair.reads_out = params.reads_out;
        queue_pair.reads_in = params.reads_in;
        queue_pair.retries = params.retries;
        queue_pair.rnr_retries = params.rnr_retries;
        let request = Connection {
            asker: number,
            answerer: None,
            open: true,
            private_data: padded(params.private_data, REQUEST_DATA),
            reads_out: params.reads_out,
            reads_in: params.reads_in,
            retries: params.retries,
            from: local,
            to: peer,
            last: 0,
        };
        self.connections.insert(connection, request);
        self.tell_peer(Some(connection), Message::Request { connection });
        let patience = self.now + self.costs.patience;
        self.at(patience, Event::Message(Box::new(Message::Timeout { to: number })));
        Ok(())
    }

    /// Records that endpoint `number` was opened from request `connection`.
    pub(crate) fn opened(&mut self, number: u32, connection: u32) {
        if let Some(connection) = self.connections.get_mut(&connection) {
            connection.answerer = Some(number);
            connection.open = false;
        }
    }

    pub(crate) fn accept(
        &mut self,
        number: u32,
        params: &AcceptParams<'_>,
    ) -> Result<(), VerbsError> {
        let what = "accepting a connection";
        let Some(queue_pair) = self.queue_pairs.get_mut(&number) else { return Err(invalid(what)) };
        let limits = self.devices.get(&queue_pair.device).map(|device| device.options.limits);
        let fits = limits.is_some_and(|limits| {
            params.reads_out <= limits.reads_out && params.reads_in <= limits.reads_in
        });
        let sane = params.private_data.len() <= REPLY_DATA && params.rnr_retries <= 7;
        let connection = queue_pair.connection;
        if queue_pair.link != Link::Asked || queue_pair.phase != Phase::Init || !fits || !sane {
            return Err(invalid(what));
        }
        queue_pair.link = Link::Accepting;
        queue_pair.phase = Phase::Receiving;
        queue_pair.reads_out = params.reads_out;
        queue_pair.reads_in = params.reads_in;
        queue_pair.rnr_retries = params.rnr_retries;
        // The peer's request carries the number of retries.
        if let Some(request) = connection.and_then(|number| self.connections.get(&number)) {
            queue_pair.peer = Some(request.asker);
            queue_pair.retries = request.retries;
        }
        let private_data = padded(params.private_data, REPLY_DATA);
        if let Some(connection) = connection {
            let (reads_out, reads_in) = (params.reads_out, params.reads_in);
            let reply = Message::Reply { connection, private_data, reads_out, reads_in };
            self.tell_peer(Some(connection), reply);
        }
        let patience = self.now + self.costs.patience;
        self.at(patience, Event::Message(Box::new(Message::Timeout { to: number })));
        Ok(())
    }

    /// Takes the next event of an endpoint. The asking side is established once it has taken the
    /// reply.
    pub(crate) fn next_event(&mut self, number: u32) -> Option<ConnectionEvent> {
        let queue_pair = self.queue_pairs.get_mut(&number)?;
        let event = queue_pair.events.pop_front()?;
        if queue_pair.events.is_empty() {
            queue_pair.signal.lower();
        }
        if queue_pair.link == Link::Answered && matches!(event, ConnectionEvent::Established { .. })
        {
            let over = queue_pair.events.contains(&ConnectionEvent::Disconnected);
            queue_pair.link = if over { Link::Over } else { Link::Standing };
            if queue_pair.phase != Phase::Error {
                queue_pair.phase = Phase::Ready;
            }
            let connection = queue_pair.connection;
            if let Some(connection) = connection.filter(|_| !self.faults.lose_ready(number)) {
                self.tell_peer(Some(connection), Message::Ready { connection });
            }
        }
        Some(event)
    }

    /// Ends an endpoint's connection and its work.
    pub(crate) fn disconnect(&mut self, number: u32) {
        self.leave(number, true);
        self.fail(number, Failure::Left);
    }

    /// Ends the connection of `number` and notifies the peer. If the endpoint `stays`, it gets an
    /// event, too.
    pub(crate) fn leave(&mut self, number: u32, stays: bool) {
        let Some(queue_pair) = self.queue_pairs.get_mut(&number) else { return };
        let (link, connection) = (queue_pair.link, queue_pair.connection);
        queue_pair.link = if matches!(link, Link::Standing | Link::Leaving | Link::Accepting) {
            Link::Leaving
        } else {
            Link::Over
        };
        let peer = self.peer_of(number);
        match link {
            // The asking side sends nothing: the reply finds its endpoint gone.
            Link::Idle | Link::Asking | Link::Leaving | Link::Over => {}
            Link::Answered => {
                if let Some(queue_pair) = self.queue_pairs.get_mut(&number) {
                    queue_pair.events.clear();
                    queue_pair.signal.lower();
                }
                if let Some(to) = peer {
                    let private_data = padded(&[], REJECT_DATA);
                    let message = Message::Reject { to, status: REFUSED, private_data };
                    self.tell_peer(connection, message);
                }
            }
            Link::Asked => {
                if let Some(connection) = connection {
                    self.refuse_request(connection, REFUSED, &[]);
                }
            }
            Link::Accepting | Link::Standing => {
                if let Some(to) = peer {
                    self.tell_peer(connection, Message::Disconnect { to });
                }
                if stays {
                    let back =
                        self.costs.message + self.random.below(self.costs.jitter.saturating_add(1));
                    let time = self.now + 2 * self.costs.message + back;
                    self.at(time, Event::Message(Box::new(Message::Left { to: number })));
                }
            }
        }
    }

    /// Returns the other end of the connection, from the request on.
    fn peer_of(&self, number: u32) -> Option<u32> {
        let connection = self.queue_pairs.get(&number)?.connection?;
        let connection = self.connections.get(&connection)?;
        if connection.asker == number { connection.answerer } else { Some(connection.asker) }
    }

    /// Removes the state of a dropped endpoint.
    pub(crate) fn remove_endpoint(&mut self, number: u32) {
        let silent = self.queue_pairs.get(&number).is_some_and(|queue_pair| {
            self.devices.get(&queue_pair.device).is_none_or(|device| device.removed)
        });
        if !silent {
            self.leave(number, false);
        }
        let Some(queue_pair) = self.queue_pairs.remove(&number) else { return };
        self.lose_fetched(&queue_pair);
        self.counters.ended += (queue_pair.sends.len() + queue_pair.receives.len()) as u64;
        if self.random.coin() {
            self.forget_completions(queue_pair.completions, number);
        }
        self.drop_queues();
        self.faults.forget(number);
        self.wake_senders(|peer| peer.number == number);
        if let Some(connection) = queue_pair.connection {
            self.forget_connection(connection);
        }
    }

    pub(crate) fn deliver(&mut self, message: &Message) {
        match *message {
            Message::Request { connection } => self.deliver_request(connection),
            Message::Reply { connection, private_data, reads_out, reads_in } => {
                self.deliver_reply(connection, private_data, reads_out, reads_in);
            }
            Message::Ready { connection } => self.deliver_ready(connection),
            Message::Reject { to, status, private_data } => {
                let event = ConnectionEvent::Rejected { status, private_data };
                self.end_link(to, &[Link::Asking, Link::Accepting], event);
            }
            Message::Disconnect { to } => {
                let links = [Link::Standing, Link::Answered, Link::Leaving, Link::Accepting];
                self.end_link(to, &links, ConnectionEvent::Disconnected);
            }
            Message::Left { to } => {
                self.end_link(to, &[Link::Leaving], ConnectionEvent::Disconnected);
            }
            Message::Timeout { to } => {
                let event = ConnectionEvent::Failed { status: NO_ANSWER };
                self.end_link(to, &[Link::Asking, Link::Accepting], event);
            }
        }
    }

    fn deliver_ready(&mut self, number: u32) {
        let Some(connection) = self.connections.get(&number) else { return };
        let (asker, answerer) = (connection.asker, connection.answerer);
        let stands = |end: &&mut QueuePair| matches!(end.link, Link::Accepting | Link::Standing);
        let Some(answerer) =
            answerer.and_then(|answerer| self.queue_pairs.get_mut(&answerer)).filter(stands)
        else {
            // The answering end has given up the connection, and may not have sent a message.
            return self.tell_peer(Some(number), Message::Disconnect { to: asker });
        };
        Self::stand(answerer);
    }

    /// Establishes the connection because data of the peer has arrived, even if its ready message
    /// has not.
    pub(crate) fn communication_established(&mut self, number: u32) {
        if let Some(queue_pair) = self.queue_pairs.get_mut(&number) {
            Self::stand(queue_pair);
        }
    }

    fn stand(answerer: &mut QueuePair) {
        if answerer.link != Link::Accepting {
            return;
        }
        answerer.link = Link::Standing;
        if answerer.phase == Phase::Receiving {
            answerer.phase = Phase::Ready;
        }
        // The ready message carries no data: the request had all of it.
        let private_data = PrivateData::EMPTY;
        answerer.tell(ConnectionEvent::Established { private_data, reads_out: 0 });
    }

    /// Ends the connection of one side if its state is one of `links`.
    fn end_link(&mut self, to: u32, links: &[Link], event: ConnectionEvent) {
        let Some(queue_pair) = self.queue_pairs.get_mut(&to) else { return };
        if !links.contains(&queue_pair.link) {
            return;
        }
        // An untaken reply event precedes this one and still takes effect.
        if queue_pair.link != Link::Answered {
            queue_pair.link = Link::Over;
        }
        queue_pair.tell(event);
    }

    fn deliver_request(&mut self, number: u32) {
        let Some(connection) = self.connections.get(&number) else { return };
        let listener = self.listeners.get_mut(&connection.to);
        let listener = listener.filter(|listener| {
            self.devices.get(&listener.device).is_some_and(|device| !device.removed)
        });
        let Some(listener) = listener else {
            return self.refuse_request(number, NOBODY_LISTENS, &[]);
        };
        listener.waiting.push_back(number);
        listener.signal.raise();
    }

    fn deliver_reply(
        &mut self,
        number: u32,
        private_data: PrivateData,
        reads_out: u8,
        reads_in: u8,
    ) {
        let Some(connection) = self.connections.get(&number) else { return };
        let (asker, answerer) = (connection.asker, connection.answerer);
        let waits = |asker: &&mut QueuePair| asker.link == Link::Asking;
        let Some(asker) = self.queue_pairs.get_mut(&asker).filter(waits) else {
            if let Some(to) = answerer {
                let private_data = padded(&[], REJECT_DATA);
                let message = Message::Reject { to, status: REFUSED, private_data };
                self.tell_peer(Some(number), message);
            }
            return;
        };
        asker.link = Link::Answered;
        asker.peer = answerer;
        asker.reads_out = asker.reads_out.min(reads_in);
        asker.reads_in = asker.reads_in.min(reads_out);
        asker.tell(ConnectionEvent::Established { private_data, reads_out: reads_in });
    }
}
