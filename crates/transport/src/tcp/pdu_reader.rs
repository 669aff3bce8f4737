//! Parser for PDUs from the host: bytes to events. No I/O: the caller passes bytes as they arrive.
//!
//! ```text
//!        ICReq                    header of a PDU with data              its last byte
//! Hello -------> Head ------------------------------------> Data ---------------------> Digest
//!                 ^ '--(PDU without data)--.                 | (no digest)                 |
//!                 '------------------------'<----------------'<----------------------------'
//! ```
//! A fault, or a TermReq from the host, ends parsing: the caller passes no more bytes.

use nvmeof_core::dma::Buffer;
use nvmeof_wire::Sqe;
use nvmeof_wire::tcp::{
    CH_LEN, CapsuleCmd, CommonHeader, H2CData, ICReq, PduHead, PduType, Receiver, RxRules,
    TcpError, TermReq, flags,
};
use nvmeof_wire::zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use super::command_window::CommandWindow;
use super::digest::{Crc32c, crc32c};
use super::handshake::Negotiated;
use super::terminate::FatalPduError;
use super::transfer::{DataPlacement, Transfers};
use crate::queue::{Event, FabricError};

/// Bytes of a digest.
const DIGEST: usize = 4;

/// Position of the parser in the stream.
#[derive(Debug)]
enum State {
    /// Before the ICReq.
    Hello,
    /// At the start of a PDU.
    Head,
    /// Within the data of a PDU.
    Data(Incoming),
    /// Within the digest after the data.
    Digest { of: Incoming, bytes: [u8; DIGEST], have: usize },
}

/// Data of a PDU that is being written to its buffer.
#[derive(Debug)]
struct Incoming {
    dest: Dest,
    /// Bytes of the buffer filled, and the offset where this PDU's data ends.
    at: usize,
    end: usize,
    /// Digest so far, if the data has one.
    digest: Option<Crc32c>,
}

#[derive(Debug)]
enum Dest {
    /// In-capsule data.
    Capsule { sqe: Sqe, buf: Buffer },
    /// The buffer of a pull.
    Pull { slot: u16 },
}

/// Reason why parsing stopped before the end of the input, other than a fault.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ParseStop {
    /// An ICReq arrived: respond, then call [`PduReader::settle`].
    Hello(Box<ICReq>),
    /// The host terminated the connection.
    Terminated(TcpError),
    /// A command is next, and the queue is paused.
    Paused,
}

/// State of the connection that the parser changes in addition to its own.
pub(super) struct ParseContext<'a> {
    pub(super) capsules: &'a mut CommandWindow,
    pub(super) transfers: &'a mut Transfers,
    pub(super) events: &'a mut Vec<Event>,
}

/// The receiving half of a connection.
#[derive(Debug)]
pub(super) struct PduReader {
    rules: RxRules,
    state: State,
    /// Headers, and ends of data, that have arrived since the start.
    pdus: u64,
}

impl PduReader {
    /// Creates a parser that expects an ICReq.
    pub(super) fn new() -> Self {
        Self { rules: RxRules::initial(Receiver::Controller), state: State::Hello, pdus: 0 }
    }

    /// Applies the result of the handshake from the next PDU on.
    pub(super) fn settle(&mut self, negotiated: &Negotiated) {
        self.rules = RxRules {
            receiver: Receiver::Controller,
            framing: negotiated.inbound,
            // The in-capsule limit depends on the command: `CommandWindow` checks it.
            max_in_capsule: u32::MAX,
            max_data: negotiated.max_h2c_data,
        };
        self.state = State::Head;
    }

    /// Returns true at a PDU boundary, by the bytes passed in so far.
    pub(super) fn is_between_pdus(&self) -> bool {
        matches!(self.state, State::Hello | State::Head)
    }

    /// Returns the headers, and ends of data, received since the start: it distinguishes PDUs.
    pub(super) fn pdus(&self) -> u64 {
        self.pdus
    }

    /// Returns true within requested data, which has its own deadline.
    pub(super) fn is_within_pull(&self) -> bool {
        match &self.state {
            State::Data(of) | State::Digest { of, .. } => matches!(of.dest, Dest::Pull { .. }),
            State::Hello | State::Head => false,
        }
    }

    /// Returns the memory for the next bytes of the stream; empty unless within data.
    pub(super) fn direct<'a>(&'a mut self, transfers: &'a mut Transfers) -> &'a mut [u8] {
        match &mut self.state {
            State::Data(incoming) => incoming.rest(transfers),
            _ => &mut [],
        }
    }

    /// Records `len` bytes written to [`direct`](Self::direct) memory.
    pub(super) fn filled(&mut self, len: usize, intake: &mut ParseContext<'_>) {
        if let State::Data(incoming) = &mut self.state {
            incoming.take_in(len, intake.transfers);
            self.end_of_data(intake);
        }
    }

    /// Parses `input`, and returns the number of bytes consumed.
    ///
    /// An incomplete header is not consumed, nor are the bytes from a stop on.
    pub(super) fn parse(
        &mut self,
        input: &[u8],
        intake: &mut ParseContext<'_>,
    ) -> Result<(usize, Option<ParseStop>), FatalPduError> {
        let mut done = 0;
        loop {
            let rest = &input[done..];
            match &mut self.state {
                State::Data(incoming) => {
                    let space = incoming.rest(intake.transfers);
                    let len = space.len().min(rest.len());
                    space[..len].copy_from_slice(&rest[..len]);
                    done += len;
                    incoming.take_in(len, intake.transfers);
                    if !self.end_of_data(intake) {
                        return Ok((done, None));
                    }
                }
                State::Digest { bytes, have, .. } => {
                    let space = &mut bytes[*have..];
                    let len = space.len().min(rest.len());
                    space[..len].copy_from_slice(&rest[..len]);
                    *have += len;
                    done += len;
                    if *have < DIGEST {
                        return Ok((done, None));
                    }
                    self.end_of_digest(intake);
                }
                State::Hello | State::Head => match self.header(rest, intake)? {
                    Header::Incomplete => return Ok((done, None)),
                    Header::Done(len) => {
                        self.pdus += 1;
                        done += len;
                    }
                    Header::ParseStop(len, stop) => return Ok((done + len, Some(stop))),
                },
            }
        }
    }

    /// Parses one header, up to the start of its data.
    fn header(
        &mut self,
        rest: &[u8],
        intake: &mut ParseContext<'_>,
    ) -> Result<Header, FatalPduError> {
        let Ok((ch, _)) = CommonHeader::ref_from_prefix(rest) else {
            return Ok(Header::Incomplete);
        };
        let head = self
            .may_come_now(ch)
            .and_then(|()| self.rules.check(ch))
            .map_err(|error| FatalPduError::in_common_header(error, &rest[..CH_LEN]))?;
        let len = usize::from(head.data_offset);
        let Some(pdu) = rest.get(..len) else {
            return Ok(Header::Incomplete);
        };
        let fault = |error| FatalPduError::of(error, pdu, usize::from(head.hlen));
        check_digest(&head, pdu).map_err(fault)?;
        match head.pdu_type {
            PduType::CAPSULE_CMD => {
                if intake.capsules.is_paused() && intake.transfers.live() == 0 {
                    return Ok(Header::ParseStop(0, ParseStop::Paused));
                }
                let capsule = view::<CapsuleCmd>(pdu).map_err(fault)?;
                self.capsule(&capsule.sqe, &head, intake).map_err(fault)?;
            }
            PduType::H2C_DATA => {
                let data = view::<H2CData>(pdu).map_err(fault)?;
                self.data(data, &head, intake).map_err(fault)?;
            }
            PduType::H2C_TERM_REQ => {
                let term = view::<TermReq>(pdu).map_err(fault)?;
                return Ok(Header::ParseStop(len, ParseStop::Terminated(term.error())));
            }
            PduType::IC_REQ => {
                let request = view::<ICReq>(pdu).map_err(fault)?;
                return Ok(Header::ParseStop(len, ParseStop::Hello(Box::new(*request))));
            }
            // `RxRules::check` rejects every other type.
            _ => return Err(fault(TcpError::field(0))),
        }
        Ok(Header::Done(len))
    }

    /// Checks that an ICReq comes first and only once (TCP 3.4).
    fn may_come_now(&self, ch: &CommonHeader) -> Result<(), TcpError> {
        let hello = matches!(self.state, State::Hello);
        match ch.pdu_type {
            PduType::IC_REQ if !hello => Err(TcpError::SEQUENCE),
            PduType::CAPSULE_CMD | PduType::H2C_DATA if hello => Err(TcpError::SEQUENCE),
            _ => Ok(()),
        }
    }

    fn capsule(
        &mut self,
        sqe: &Sqe,
        head: &PduHead,
        intake: &mut ParseContext<'_>,
    ) -> Result<(), TcpError> {
        intake.capsules.admit()?;
        let len = head.data_len as usize;
        if len == 0 {
            intake.capsules.deliver(Event::Command { sqe: *sqe, data: None }, intake.events);
            return Ok(());
        }
        let buf = intake.capsules.buffer(sqe, len)?;
        self.state = State::Data(Incoming {
            dest: Dest::Capsule { sqe: *sqe, buf },
            at: 0,
            end: len,
            digest: head.ddgst.then(Crc32c::new),
        });
        Ok(())
    }

    fn data(
        &mut self,
        data: &H2CData,
        head: &PduHead,
        intake: &mut ParseContext<'_>,
    ) -> Result<(), TcpError> {
        data.check(head)?;
        let last = head.flags & flags::LAST_PDU != 0;
        let (cccid, ttag) = (data.cccid.get(), data.ttag.get());
        let place =
            intake.transfers.locate(cccid, ttag, data.datao.get(), data.datal.get(), last)?;
        let DataPlacement { slot, start, end } = place;
        self.state = State::Data(Incoming {
            dest: Dest::Pull { slot },
            at: start,
            end,
            digest: head.ddgst.then(Crc32c::new),
        });
        Ok(())
    }

    /// Continues with the digest or the end once the data is complete; returns true if so.
    fn end_of_data(&mut self, intake: &mut ParseContext<'_>) -> bool {
        match std::mem::replace(&mut self.state, State::Head) {
            State::Data(of) if of.at == of.end => {
                if of.digest.is_some() {
                    self.state = State::Digest { of, bytes: [0; DIGEST], have: 0 };
                } else {
                    of.finish(true, intake);
                    self.pdus += 1;
                }
                true
            }
            state => {
                self.state = state;
                false
            }
        }
    }

    fn end_of_digest(&mut self, intake: &mut ParseContext<'_>) {
        if let State::Digest { of, bytes, .. } = std::mem::replace(&mut self.state, State::Head) {
            let received = u32::from_le_bytes(bytes);
            let good = of.digest.as_ref().is_some_and(|digest| digest.value() == received);
            of.finish(good, intake);
            self.pdus += 1;
        }
    }
}

/// Result of parsing one header.
enum Header {
    Incomplete,
    /// Bytes consumed.
    Done(usize),
    ParseStop(usize, ParseStop),
}

impl Incoming {
    /// Returns the memory of this PDU's data that is not filled yet.
    fn rest<'a>(&'a mut self, transfers: &'a mut Transfers) -> &'a mut [u8] {
        self.bytes_mut(self.at, self.end, transfers)
    }

    fn bytes_mut<'a>(
        &'a mut self,
        from: usize,
        to: usize,
        transfers: &'a mut Transfers,
    ) -> &'a mut [u8] {
        match &mut self.dest {
            Dest::Capsule { buf, .. } => &mut buf.as_mut_slice()[from..to],
            Dest::Pull { slot } => transfers.bytes_mut(*slot, from, to),
        }
    }

    /// Records that the next `len` bytes are in place.
    fn take_in(&mut self, len: usize, transfers: &mut Transfers) {
        let from = self.at;
        self.at += len;
        if let Dest::Pull { .. } = self.dest {
            transfers.count(len);
        }
        if let Some(mut digest) = self.digest.take() {
            digest.update(self.bytes_mut(from, from + len, transfers));
            self.digest = Some(digest);
        }
    }

    /// Completes the PDU.
    fn finish(self, good: bool, intake: &mut ParseContext<'_>) {
        let event = match self.dest {
            Dest::Capsule { sqe, buf } if good => Event::Command { sqe, data: Some(buf) },
            Dest::Capsule { sqe, .. } => {
                Event::CommandFailed { sqe, error: FabricError::DataDigest }
            }
            Dest::Pull { slot } => {
                if let Some((pull, good)) = intake.transfers.arrived(slot, self.end, good) {
                    let result = if good { Ok(()) } else { Err(FabricError::DataDigest) };
                    intake.events.push(Event::HostDataArrived {
                        token: pull.token,
                        buf: pull.buf,
                        result,
                    });
                }
                return;
            }
        };
        intake.capsules.deliver(event, intake.events);
    }
}

/// Checks the header digest, if there is one.
fn check_digest(head: &PduHead, pdu: &[u8]) -> Result<(), TcpError> {
    if !head.hdgst {
        return Ok(());
    }
    let (header, rest) = pdu.split_at(usize::from(head.hlen));
    // The digest follows the header: `data_offset` counts both.
    let Some(bytes) = rest.first_chunk() else { return Err(TcpError::field(2)) };
    let received = u32::from_le_bytes(*bytes);
    if crc32c(header) == received { Ok(()) } else { Err(TcpError::header_digest(received)) }
}

/// Returns the header as its struct. `RxRules::check` has verified that HLEN is the struct's size.
fn view<T>(pdu: &[u8]) -> Result<&T, TcpError>
where
    T: FromBytes + KnownLayout + Immutable + Unaligned,
{
    T::ref_from_prefix(pdu).map(|(header, _)| header).map_err(|_| TcpError::field(2))
}
