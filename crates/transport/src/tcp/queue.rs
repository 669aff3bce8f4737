//! A TCP connection as a queue.
//!
//! ```text
//!            ICReq/ICResp          fault: C2HTermReq          host closes, or linger expires
//! Handshake --------------> Open -------------------> Terminating ------------.
//!     |                      |                             |                   v
//!     '----------------------'-----------------------------'--> Closing ----> Closed
//!       close(), host closed or gave up, network error, timeout
//! ```
//! The transition to Terminating returns every operation except data of which the host has a part.
//! The transition from Closing returns the remaining ones and emits `Closed`, once.

use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use nvmeof_core::dma::Payload;
use nvmeof_wire::tcp::{ADMIN_IN_CAPSULE, ICReq};
use nvmeof_wire::zerocopy::IntoBytes;
use rustix::net::sockopt;

use super::TcpParams;
use super::command_window::{CommandWindow, EARLY_DEPTH, HeldCommand};
use super::handshake::{self, Negotiated};
use super::pdu_reader::{ParseContext, ParseStop, PduReader};
use super::receive::{self, Discarded, Failure, Outcome, Receiver};
use super::send::PduWriter;
use super::terminate::FatalPduError;
use super::transfer::Transfers;
use crate::pace::{GRACE_WHEN_SHORT, Pace, time_for};
use crate::queue::{
    CloseReason, Connected, DetachedQueue, Event, FabricError, FabricOp, HostQueue, Nanos,
    Progress, ReactorResources, RejectReason, Rejected, TransportError,
};

/// State of a connection, as in the diagram above.
#[derive(Debug)]
enum Phase {
    Handshake,
    Open(Negotiated),
    Terminating { until: Nanos, reason: CloseReason },
    Closing(CloseReason),
    Closed,
}

/// A connection owned by a reactor.
#[derive(Debug)]
pub(super) struct TcpQueue {
    socket: OwnedFd,
    peer: Option<SocketAddr>,
    params: TcpParams,
    phase: Phase,
    connected: Option<Connected>,
    receiver: Receiver,
    inbound: PduReader,
    capsules: CommandWindow,
    transfers: Transfers,
    outbound: PduWriter,
    /// Time of the last received bytes; in the handshake, its start.
    ///
    /// The time is unknown before the first call of `receive`.
    last_rx: Option<Nanos>,
    /// Start of the incomplete PDU, and the number of headers received by then.
    within: Option<(Nanos, u64)>,
    /// Time at which requested data last arrived, or was requested while none was awaited, and the
    /// bytes received by then.
    supplied: (Nanos, u64),
    /// Set while buffer memory is short.
    urgent: Option<UrgentPace>,
}

/// Minimum rates of a host while buffer memory is short: of the data it sends, and of the data it
/// takes.
#[derive(Debug)]
struct UrgentPace {
    from_host: Pace,
    to_host: Pace,
}

/// A connection that no reactor owns.
#[derive(Debug)]
pub(super) struct DetachedTcp {
    socket: OwnedFd,
    peer: Option<SocketAddr>,
    params: TcpParams,
    negotiated: Option<Negotiated>,
    connected: Option<Connected>,
    leftover: Vec<u8>,
    last_rx: Option<Nanos>,
    paused: bool,
    held: Vec<HeldCommand>,
}

impl DetachedTcp {
    pub(super) fn accepted(stream: TcpStream, params: TcpParams) -> Self {
        Self {
            peer: stream.peer_addr().ok(),
            socket: stream.into(),
            params,
            negotiated: None,
            connected: None,
            leftover: Vec::new(),
            last_rx: None,
            paused: false,
            held: Vec::new(),
        }
    }
}

impl DetachedQueue for DetachedTcp {
    fn attach(
        self: Box<Self>,
        home: &mut ReactorResources<'_>,
    ) -> Result<Box<dyn HostQueue>, TransportError> {
        let pool = home.pool;
        let no_memory = |error: nvmeof_core::dma::LeaseError| {
            TransportError::NoMemory(format!("{}: {error}", describe(self.peer)))
        };
        prepare(&self.socket).map_err(|source| TransportError::Io {
            what: format!("cannot set up the connection of {}", describe(self.peer)),
            source: source.into(),
        })?;
        let mut capsules = CommandWindow::new(pool).map_err(no_memory)?;
        let mut transfers = Transfers::new(EARLY_DEPTH);
        if let Some(info) = self.connected {
            capsules.connect(info, self.params.in_capsule).map_err(no_memory)?;
            transfers.grow(info.depth);
        }
        capsules.set_paused(self.paused);
        capsules.hold(self.held).map_err(no_memory)?;
        let mut inbound = PduReader::new();
        let mut outbound = PduWriter::new(self.params.pdu_timeout);
        let phase = match self.negotiated {
            None => Phase::Handshake,
            Some(negotiated) => {
                inbound.settle(&negotiated);
                outbound.settle(negotiated.outbound);
                Phase::Open(negotiated)
            }
        };
        Ok(Box::new(TcpQueue {
            socket: self.socket,
            peer: self.peer,
            params: self.params,
            phase,
            connected: self.connected,
            receiver: Receiver::with_leftover(self.leftover),
            inbound,
            capsules,
            transfers,
            outbound,
            last_rx: self.last_rx,
            within: None,
            supplied: (0, 0),
            urgent: None,
        }))
    }

    fn peer(&self) -> String {
        describe(self.peer)
    }
}

/// TCP keepalive: idle time before the first probe, interval of the probes, and their number.
///
/// The target detects a host that lost power after two minutes, even if the host has no keep-alive
/// timeout.
const PROBE_AFTER: Duration = Duration::from_secs(60);
const PROBE_EVERY: Duration = Duration::from_secs(15);
const PROBES: u32 = 4;

/// Makes the socket non-blocking and disables Nagle's algorithm: a turn's output leaves as a whole.
fn prepare(socket: &OwnedFd) -> rustix::io::Result<()> {
    rustix::io::ioctl_fionbio(socket, true)?;
    match sockopt::set_tcp_nodelay(socket, true) {
        // The fuzz target uses a pair of Unix sockets as a connection; these never delay data.
        Err(rustix::io::Errno::OPNOTSUPP) => return Ok(()),
        outcome => outcome?,
    }
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, PROBE_AFTER)?;
    sockopt::set_tcp_keepintvl(socket, PROBE_EVERY)?;
    sockopt::set_tcp_keepcnt(socket, PROBES)
}

fn describe(peer: Option<SocketAddr>) -> String {
    peer.map_or_else(|| "a host that is gone".to_owned(), |peer| peer.to_string())
}

impl TcpQueue {
    /// Parses the bytes that have arrived; closes if there are none and the deadline has passed.
    fn read(&mut self, now: Nanos, events: &mut Vec<Event>) -> Progress {
        self.capsules.release_held(events);
        let mut read = 0;
        let progress = loop {
            let mut intake = ParseContext {
                capsules: &mut self.capsules,
                transfers: &mut self.transfers,
                events,
            };
            let socket = self.socket.as_fd();
            match self.receiver.run(socket, &mut self.inbound, &mut intake, &mut read) {
                Ok(Outcome::Drained | Outcome::ParseStop(ParseStop::Paused)) => {
                    break Progress::Idle;
                }
                Ok(Outcome::More) => break Progress::More,
                Ok(Outcome::ParseStop(ParseStop::Hello(request))) => match self.answer(&request) {
                    Ok(()) => self.send_all(now, events),
                    Err(fault) => {
                        self.terminate(&fault, now, events);
                        return Progress::Idle;
                    }
                },
                Ok(Outcome::ParseStop(ParseStop::Terminated(error))) => {
                    self.close(CloseReason::PeerTerminated(error.to_string()));
                    return Progress::Idle;
                }
                Ok(Outcome::End) => {
                    self.close(CloseReason::PeerClosed);
                    return Progress::Idle;
                }
                Err(Failure::Io(error)) => {
                    self.close(CloseReason::Lost(error.to_string()));
                    return Progress::Idle;
                }
                Err(Failure::Fault(fault)) => {
                    self.terminate(&fault, now, events);
                    return Progress::Idle;
                }
            }
        };
        if matches!(self.phase, Phase::Open(_)) {
            self.note_progress(read > 0, now);
        }
        // Bytes that have arrived by now count, so all of them are read first.
        if read < receive::BUDGET
            && let Some((_, reason)) = self.patience().filter(|(until, _)| now >= *until)
        {
            self.close(CloseReason::Timeout(reason));
        }
        progress
    }

    /// Records progress: a single byte is no progress where a whole PDU, or data, is due.
    fn note_progress(&mut self, has_come: bool, now: Nanos) {
        if has_come {
            self.last_rx = Some(now);
        }
        // These fields also cover bytes that another reactor has read.
        let pdus = self.inbound.pdus();
        let is_within = !self.inbound.is_between_pdus() || self.receiver.has_part_of_header();
        match self.within {
            Some((_, before)) if is_within && before == pdus => {}
            _ => self.within = is_within.then_some((now, pdus)),
        }
        if self.supplied.1 != self.transfers.came() {
            self.supplied = (now, self.transfers.came());
        }
        self.note_urgent(now);
    }

    /// Records the bytes that have moved while buffer memory is short.
    #[inline]
    fn note_urgent(&mut self, now: Nanos) {
        let Some(urgent) = &mut self.urgent else { return };
        let (came, owed) = self.transfers.progress();
        urgent.from_host.look(came, owed, now);
        let (moved, queued) = self.outbound.progress();
        urgent.to_host.look(moved, queued, now);
    }

    /// Responds to an ICReq.
    fn answer(&mut self, request: &ICReq) -> Result<(), FatalPduError> {
        let (negotiated, response) =
            handshake::negotiate(request, &self.params).map_err(|error| {
                FatalPduError::of(error, request.as_bytes(), request.as_bytes().len())
            })?;
        self.inbound.settle(&negotiated);
        self.outbound.raw(response.as_bytes());
        self.outbound.settle(negotiated.outbound);
        self.phase = Phase::Open(negotiated);
        Ok(())
    }

    /// Reports the fault to the host, and waits for it to close.
    fn terminate(&mut self, fault: &FatalPduError, now: Nanos, events: &mut Vec<Event>) {
        self.outbound.cut(events);
        self.outbound.raw(&fault.encode());
        self.give_back_input(events);
        self.phase = Phase::Terminating {
            until: now.saturating_add(self.params.linger),
            reason: CloseReason::Protocol(fault.error.to_string()),
        };
        self.send_all(now, events);
    }

    /// Waits for the host to close after a TermReq.
    ///
    /// Data that the host still sends is discarded, so that the end of the socket does not
    /// overtake the TermReq.
    fn linger(&mut self, now: Nanos) -> Progress {
        let Phase::Terminating { until, reason } = &self.phase else {
            return Progress::Idle;
        };
        let discarded = receive::discard(self.socket.as_fd());
        if now >= *until || discarded == Discarded::End {
            self.phase = Phase::Closing(reason.clone());
        }
        if discarded == Discarded::More { Progress::More } else { Progress::Idle }
    }

    fn send(&mut self, room: &mut usize, now: Nanos, events: &mut Vec<Event>) -> Progress {
        let sent = self.outbound.flush(self.socket.as_fd(), room, now, events);
        self.capsules.taken(self.outbound.taken());
        sent.unwrap_or_else(|error| {
            self.close(CloseReason::Lost(error.to_string()));
            Progress::Idle
        })
    }

    /// Sends all that the socket accepts, when no later flush follows: the first or last PDUs of a
    /// connection.
    fn send_all(&mut self, now: Nanos, events: &mut Vec<Event>) {
        self.send(&mut { usize::MAX }, now, events);
    }

    /// Returns the earliest deadline of the host, and its reason.
    ///
    /// The host can owe the rest of a PDU, requested data, or room in the socket. Each has to make
    /// progress, and has to complete within a time that single bytes do not extend.
    fn patience(&self) -> Option<(Nanos, &'static str)> {
        let timeout = self.params.pdu_timeout;
        if matches!(self.phase, Phase::Handshake) {
            // The first call of `receive` starts the clock.
            let until = self.last_rx.map_or(0, |since| since + self.params.handshake_timeout);
            return Some((until, "no ICReq"));
        }
        let pull = (self.transfers.live() > 0).then(|| {
            let silent = self.supplied.0.saturating_add(timeout);
            self.transfers.due().map(|due| due.min(silent))
        });
        let pdu = self.within.zip(self.last_rx).map(|((began, _), last_rx)| {
            let silent = last_rx.saturating_add(timeout);
            if self.inbound.is_within_pull() {
                return silent;
            }
            let most = u64::from(self.params.in_capsule.max(ADMIN_IN_CAPSULE));
            silent.min(began.saturating_add(timeout).saturating_add(time_for(most)))
        });
        let taken = self.outbound.stalled().map(|since| since.saturating_add(timeout));
        let taken = taken.into_iter().chain(self.outbound.due()).min();
        let urgent = self.urgent.as_ref();
        let urgent = urgent
            .and_then(|pace| pace.from_host.due().into_iter().chain(pace.to_host.due()).min());
        [
            (urgent, "buffer memory is short, and the host transfers its data too slowly"),
            (taken, "the host receives too little data"),
            (pull.flatten(), "the host sends too little of the requested data"),
            (pdu, "the host stopped within a PDU"),
        ]
        .into_iter()
        .filter_map(|(until, reason)| Some((until?, reason)))
        .min_by_key(|(until, _)| *until)
    }

    /// Returns the operations that wait for bytes from the host.
    fn give_back_input(&mut self, events: &mut Vec<Event>) {
        drop(self.capsules.take_held());
        self.inbound = PduReader::new();
        events.extend(self.transfers.drain().map(|pull| Event::HostDataArrived {
            token: pull.token,
            buf: pull.buf,
            result: Err(FabricError::Closed),
        }));
    }

    /// Returns every operation and emits `Closed`.
    fn finish(&mut self, events: &mut Vec<Event>) {
        if let Phase::Closing(reason) = std::mem::replace(&mut self.phase, Phase::Closed) {
            self.give_back_input(events);
            // Output queued before the end, for example a response with the reason, leaves if the
            // socket accepts it.
            let _ = self.outbound.flush(self.socket.as_fd(), &mut { usize::MAX }, 0, events);
            self.outbound.drain(events);
            events.push(Event::Closed { reason });
        }
    }
}

impl HostQueue for TcpQueue {
    fn set_tx_tracked(&mut self, is_tracked: bool) {
        self.outbound.set_tx_tracked(is_tracked);
    }

    fn set_memory_short(&mut self, is_short: bool, now: Nanos) {
        if !is_short {
            self.urgent = None;
        } else if self.urgent.is_none() {
            let pace = || Pace::new(GRACE_WHEN_SHORT);
            self.urgent = Some(UrgentPace { from_host: pace(), to_host: pace() });
            self.note_urgent(now);
        }
    }

    fn has_greeted(&self) -> bool {
        !matches!(self.phase, Phase::Handshake)
    }

    fn receive(&mut self, now: Nanos, events: &mut Vec<Event>) -> Progress {
        self.last_rx.get_or_insert(now);
        let progress = match self.phase {
            Phase::Handshake | Phase::Open(_) => self.read(now, events),
            Phase::Terminating { .. } => self.linger(now),
            Phase::Closing(_) | Phase::Closed => Progress::Idle,
        };
        if matches!(self.phase, Phase::Closing(_)) {
            self.finish(events);
            return Progress::Idle;
        }
        progress
    }

    fn submit(&mut self, op: FabricOp) -> Result<(), Rejected> {
        if !matches!(self.phase, Phase::Open(_)) {
            return Err(Rejected { op, reason: RejectReason::Closing });
        }
        match op {
            FabricOp::FetchHostData { token, cid, sgl, buf } => {
                let begun = match u32::try_from(buf.len()) {
                    Ok(len @ 1..) => match self.transfers.begin(token, cid, buf) {
                        Ok(ttag) => Ok((ttag, len)),
                        Err(buf) => Err((buf, RejectReason::QueueFull)),
                    },
                    Ok(0) | Err(_) => Err((buf, RejectReason::Invalid)),
                };
                match begun {
                    Ok((ttag, len)) => self.outbound.r2t(cid, ttag, len),
                    Err((buf, reason)) => {
                        return Err(Rejected {
                            op: FabricOp::FetchHostData { token, cid, sgl, buf },
                            reason,
                        });
                    }
                }
            }
            FabricOp::Respond { token, cqe, sgl, data, elidable } => {
                let len = u32::try_from(data.as_ref().map_or(0, Payload::len)).ok();
                let (Some(len), true) = (len, self.capsules.answered()) else {
                    let op = FabricOp::Respond { token, cqe, sgl, data, elidable };
                    return Err(Rejected { op, reason: RejectReason::Invalid });
                };
                match data {
                    Some(data) => {
                        self.outbound.data_and_response(token, cqe, data, len, elidable);
                    }
                    None => self.outbound.response(cqe),
                }
            }
        }
        Ok(())
    }

    fn forget(&mut self, _cid: u16) {
        self.capsules.forget();
    }

    fn flush(&mut self, room: &mut usize, now: Nanos, events: &mut Vec<Event>) -> Progress {
        let mut progress = Progress::Idle;
        if !matches!(self.phase, Phase::Closing(_) | Phase::Closed) {
            let had_asked = self.transfers.due().is_some();
            if self.transfers.asked(now, self.params.pdu_timeout) && !had_asked {
                self.supplied.0 = now;
            }
            progress = self.send(room, now, events);
            self.note_urgent(now);
        }
        if matches!(self.phase, Phase::Closing(_)) {
            self.finish(events);
        }
        progress
    }

    fn next_tx_poll(&self) -> Option<Nanos> {
        self.outbound.tx_tracker().due()
    }

    fn poll_tx_done(&mut self, now: Nanos, events: &mut Vec<Event>) {
        if !matches!(self.phase, Phase::Closing(_) | Phase::Closed) {
            self.outbound.poll_tx_done(self.socket.as_fd(), now, events);
        }
    }

    fn close(&mut self, reason: CloseReason) {
        match &self.phase {
            Phase::Closing(_) | Phase::Closed => {}
            // The first failure is the reason.
            Phase::Terminating { reason, .. } => self.phase = Phase::Closing(reason.clone()),
            Phase::Handshake | Phase::Open(_) => self.phase = Phase::Closing(reason),
        }
    }

    fn connected(&mut self, info: Connected) {
        self.connected = Some(info);
        self.transfers.grow(info.depth);
        if let Err(error) = self.capsules.connect(info, self.params.in_capsule) {
            self.close(CloseReason::NoMemory(format!("in-capsule data: {error}")));
        }
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }

    fn hung_up(&mut self) {
        self.receiver.read_to_end();
    }

    fn deadline(&self) -> Option<Nanos> {
        match self.phase {
            Phase::Handshake | Phase::Open(_) => self.patience().map(|(until, _)| until),
            Phase::Terminating { until, .. } => Some(until),
            Phase::Closing(_) => Some(0),
            Phase::Closed => None,
        }
    }

    fn extend_deadlines(&mut self, nanos: Nanos) {
        let later = |at: Nanos| at.saturating_add(nanos);
        self.last_rx = self.last_rx.map(later);
        self.within = self.within.map(|(began, pdus)| (later(began), pdus));
        self.supplied.0 = later(self.supplied.0);
        self.transfers.extend_deadlines(nanos);
        self.outbound.extend_deadlines(nanos);
        if let Some(urgent) = &mut self.urgent {
            urgent.from_host.extend_deadlines(nanos);
            urgent.to_host.extend_deadlines(nanos);
        }
        if let Phase::Terminating { until, .. } = &mut self.phase {
            *until = later(*until);
        }
    }

    fn detach(mut self: Box<Self>) -> Result<Box<dyn DetachedQueue>, Box<dyn HostQueue>> {
        let negotiated = match self.phase {
            Phase::Handshake => None,
            Phase::Open(negotiated) => Some(negotiated),
            Phase::Terminating { .. } | Phase::Closing(_) | Phase::Closed => return Err(self),
        };
        if self.capsules.out() > 0
            || self.transfers.live() > 0
            || !self.inbound.is_between_pdus()
            || !self.outbound.is_empty()
        {
            return Err(self);
        }
        Ok(Box::new(DetachedTcp {
            paused: self.capsules.is_paused(),
            held: self.capsules.take_held(),
            socket: self.socket,
            peer: self.peer,
            params: self.params,
            negotiated,
            connected: self.connected,
            leftover: self.receiver.into_leftover(),
            last_rx: self.last_rx,
        }))
    }

    fn set_paused(&mut self, paused: bool) {
        self.capsules.set_paused(paused);
    }
}
