//! NVMe/TCP: PDUs over one socket per queue.
//!
//! | module | contents |
//! |---|---|
//! | [`engine`] | conversion of commands to PDUs and back; no I/O |
//! | [`send`], [`receive`] | parts of the engine |
//! | [`socket`] | the non-blocking socket |

mod engine;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod receive;
mod send;
mod socket;
#[cfg(test)]
mod tests;

use std::io::IoSlice;
use std::time::{Duration, Instant};

use nvmeof_wire::tcp::{
    ADMIN_IN_CAPSULE, CommonHeader, IC_LEN, ICReq, ICResp, IcParams, PduType, Receiver as End,
    RxRules, TERM_LEN, TcpError, TermReq,
};
use nvmeof_wire::zerocopy::{FromBytes, IntoBytes};

use self::engine::TcpEngine;
use self::receive::FatalPduError;
use self::send::MAX_PIECES;
use self::socket::Socket;
use crate::fabric::{Connector, QueuePair, QueueSpec};
use crate::{
    Address, Command, CompletedCommand, ConnectOptions, Error, Nanos, RejectReason, RejectedCommand,
};

/// Alignment of data sent to us, 0's based in dwords: none requested.
const HPDA: u8 = 0;
/// Maximum R2Ts that a command has outstanding.
const MAX_R2T: u32 = 1;
/// Maximum reads of one [`QueuePair::receive`], so that a fast peer does not prevent sending.
const READS_A_TURN: usize = 16;

/// Maximum timeout of a handshake.
const LONGEST_WAIT: Duration = Duration::from_secs(24 * 3600);

/// Connects the queues of one controller over TCP.
#[derive(Debug)]
pub(crate) struct TcpConnector {
    address: Address,
    hdgst: bool,
    ddgst: bool,
}

impl TcpConnector {
    pub(crate) fn new(address: &Address, options: &ConnectOptions) -> Self {
        Self { address: address.clone(), hdgst: options.hdgst, ddgst: options.ddgst }
    }
}

impl Connector for TcpConnector {
    fn connect(&self, queue: &QueueSpec) -> Result<Box<dyn QueuePair>, Error> {
        let options = TcpOptions {
            depth: queue.depth,
            in_capsule: if queue.qid == 0 { ADMIN_IN_CAPSULE } else { queue.in_capsule },
            hdgst: self.hdgst,
            ddgst: self.ddgst,
            timeout: queue.timeout,
        };
        Ok(Box::new(TcpQueuePair::connect(&self.address, options)?))
    }

    fn in_capsule(&self, room: u32, offset: u32) -> u32 {
        // NVMe/TCP has no offset of in-capsule data; with one, the controller fetches the data
        // instead.
        if offset == 0 { room } else { 0 }
    }

    fn max_transfer(&self) -> u64 {
        u32::MAX.into()
    }
}

/// Parameters of a connection.
#[derive(Debug, Clone, Copy)]
struct TcpOptions {
    /// Maximum commands outstanding.
    depth: u16,
    /// Maximum bytes of in-capsule data of commands other than fabrics commands.
    in_capsule: u32,
    /// Header digest.
    hdgst: bool,
    /// Data digest.
    ddgst: bool,
    /// Timeout for TCP and for ICResp, each.
    timeout: Duration,
}

/// An NVMe/TCP connection after ICResp.
#[derive(Debug)]
struct TcpQueuePair {
    engine: TcpEngine,
    socket: Socket,
    /// Commands that completed during sending; the next [`QueuePair::receive`] returns them.
    early: Vec<CompletedCommand>,
    is_closed: bool,
}

impl TcpQueuePair {
    /// Connects and exchanges ICReq and ICResp.
    fn connect(address: &Address, options: TcpOptions) -> Result<Self, Error> {
        let socket = Socket::connect(address, options.timeout)?;
        let granted = initialize(&socket, options)?;
        let engine = TcpEngine::new(options.depth, granted, options.in_capsule);
        Ok(Self { engine, socket, early: Vec::new(), is_closed: false })
    }

    /// Reports a fatal error to the peer, unless the peer reported it, and returns the error.
    fn fail(&mut self, fatal: FatalPduError) -> Error {
        let bytes = TcpEngine::term_req(&fatal).unwrap_or_default();
        self.socket.finish(&bytes);
        self.is_closed = true;
        let peer = self.socket.peer().to_owned();
        match fatal {
            FatalPduError::Protocol { error, detail, .. } => {
                Error::Protocol { peer, error, detail }
            }
            FatalPduError::Terminated(error) => Error::Terminated { peer, error },
        }
    }
}

impl QueuePair for TcpQueuePair {
    #[inline]
    fn submit(&mut self, command: Command, deadline: Nanos) -> Result<(), RejectedCommand> {
        if self.is_closed {
            return Err(RejectedCommand { command, reason: RejectReason::Closed });
        }
        self.engine.submit(command, deadline)
    }

    fn receive(&mut self, done: &mut Vec<CompletedCommand>) -> Result<(), Error> {
        done.append(&mut self.early);
        if self.is_closed {
            return Err(Error::Closed { peer: self.socket.peer().to_owned(), during: "" });
        }
        for _ in 0..READS_A_TURN {
            let mut targets = self.engine.targets();
            let room = targets[0].len() + targets[1].len();
            let Some(n) = self.socket.read(&mut targets)? else { break };
            if let Err(fatal) = self.engine.received(n, done) {
                return Err(self.fail(fatal));
            }
            if n < room {
                break;
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Error> {
        while self.engine.has_output() && !self.is_closed {
            let mut pieces = [IoSlice::new(&[]); MAX_PIECES];
            let count = self.engine.sources(&mut pieces);
            let Some(n) = self.socket.write(&pieces[..count])? else { break };
            self.engine.sent(n, &mut self.early);
        }
        Ok(())
    }

    fn close(&mut self, now: Nanos, done: &mut Vec<CompletedCommand>) {
        if !self.is_closed {
            self.socket.finish(&[]);
            self.is_closed = true;
        }
        done.append(&mut self.early);
        self.engine.fail_all(now, done);
    }

    fn wait(&mut self, timeout: Duration) {
        if self.early.is_empty() && !self.is_closed {
            self.socket.wait(self.engine.has_output(), timeout);
        }
    }

    fn is_overdue(&self, now: Nanos) -> bool {
        self.engine.commands().is_overdue(now)
    }

    fn in_flight(&self) -> usize {
        self.engine.commands().in_flight() + self.early.len()
    }

    fn peer(&self) -> &str {
        self.socket.peer()
    }
}

/// Sends ICReq and receives ICResp (TCP 3.3.1).
fn initialize(socket: &Socket, options: TcpOptions) -> Result<IcParams, Error> {
    let asked = IcParams { pda: HPDA, hdgst: options.hdgst, ddgst: options.ddgst, max: MAX_R2T };
    let until = Instant::now() + options.timeout.min(LONGEST_WAIT);
    let peer = || socket.peer().to_owned();
    let late = |error| match error {
        Error::Io { peer, cause } if cause.kind() == std::io::ErrorKind::TimedOut => {
            Error::Timeout { peer, what: "ICReq".into(), after: options.timeout }
        }
        Error::Closed { peer, .. } => {
            Error::Closed { peer, during: " during ICReq; is it NVMe/TCP?" }
        }
        other => other,
    };
    socket.write_all(ICReq::new(asked).as_bytes(), until).map_err(late)?;
    let mut bytes = [0; IC_LEN as usize];
    let (ch, rest) = bytes.split_at_mut(size_of::<CommonHeader>());
    socket.read_exact(ch, until).map_err(late)?;
    let broken =
        |error| Error::Protocol { peer: peer(), error, detail: " (awaiting ICResp)".into() };
    let parsed = CommonHeader::read_from_bytes(ch).map_err(|_| broken(TcpError::SEQUENCE))?;
    let head = match RxRules::initial(End::Host).check(&parsed) {
        Ok(head) => head,
        Err(error) => return Err(refuse(socket, error, ch, broken(error))),
    };
    match head.pdu_type {
        PduType::IC_RESP => {}
        PduType::C2H_TERM_REQ => {
            let rest = &mut rest[..usize::from(TERM_LEN) - ch.len()];
            socket.read_exact(rest, until).map_err(late)?;
            let term = TermReq::read_from_prefix(&bytes).map_err(|_| broken(TcpError::SEQUENCE))?;
            return Err(Error::Terminated { peer: peer(), error: term.0.error() });
        }
        _ => return Err(refuse(socket, TcpError::SEQUENCE, ch, broken(TcpError::SEQUENCE))),
    }
    socket.read_exact(rest, until).map_err(late)?;
    let resp = ICResp::read_from_bytes(&bytes).map_err(|_| broken(TcpError::SEQUENCE))?;
    let granted = match resp.params() {
        Ok(granted) => granted,
        Err(error) => return Err(refuse(socket, error, &bytes, broken(error))),
    };
    let digest = |which, option| Error::Digest { peer: peer(), which, option };
    match (asked.hdgst == granted.hdgst, asked.ddgst == granted.ddgst) {
        (true, true) => Ok(granted),
        (false, _) => Err(digest("header", "--hdgst")),
        (_, false) => Err(digest("data", "--ddgst")),
    }
}

/// Sends an H2CTermReq about `header`.
fn refuse(socket: &Socket, error: TcpError, header: &[u8], result: Error) -> Error {
    let fatal = FatalPduError::Protocol { error, header: header.to_vec(), detail: String::new() };
    socket.finish(&TcpEngine::term_req(&fatal).unwrap_or_default());
    result
}
