//! One connection of the fake target.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use nvmeof_wire::opcode::IoOpcode;
use nvmeof_wire::sgl::Sgl;
use nvmeof_wire::tcp::{
    C2HData, CH_LEN, CapsuleCmd, CapsuleResp, CommonHeader, Framing, H2CData, ICReq, ICResp,
    IcParams, PduHead, PduType, R2T, Receiver as End, RxRules, TcpError, TermReq,
};
use nvmeof_wire::zerocopy::{FromBytes, IntoBytes};
use nvmeof_wire::{Cqe, Sqe, Status};

use crate::session::{FakeResponse, FakeSession};
use crate::{FakeAction, FakeTargetState};

/// Maximum in-capsule bytes of fabrics and admin commands.
const ADMIN_IN_CAPSULE: u32 = 8192;

pub(crate) struct FakeConnection {
    stream: TcpStream,
    session: FakeSession,
    rules: RxRules,
    framing: Framing,
    /// Commands that arrived while the target waited for the data of another.
    later: VecDeque<Pdu>,
}

/// A received PDU: its head, its header, its data.
type Pdu = (PduHead, Vec<u8>, Vec<u8>);

fn broken(what: impl std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_string())
}

impl FakeConnection {
    pub(crate) fn new(stream: TcpStream, target: Arc<FakeTargetState>) -> Self {
        let rules = RxRules::initial(End::Controller);
        let (framing, later) = (Framing::default(), VecDeque::new());
        Self { stream, session: FakeSession::new(target, 0), rules, framing, later }
    }

    /// Serves commands until the host closes or the script ends the connection.
    pub(crate) fn serve(mut self) {
        if self.initialize().is_ok() {
            while self.command().is_ok() {}
        }
    }

    fn initialize(&mut self) -> io::Result<()> {
        self.stream.set_nodelay(true)?;
        let (_, header, _) = self.receive()?;
        let asked = ICReq::read_from_bytes(&header).map_err(broken)?.params().map_err(broken)?;
        let options = &self.session.target.options;
        let granted = IcParams {
            pda: options.cpda,
            hdgst: asked.hdgst && options.hdgst,
            ddgst: asked.ddgst && options.ddgst,
            max: options.max_h2c,
        };
        self.stream.write_all(ICResp::new(granted).as_bytes())?;
        self.framing = Framing::new(granted.hdgst, granted.ddgst, asked.pda);
        self.rules = RxRules {
            receiver: End::Controller,
            framing: Framing::new(granted.hdgst, granted.ddgst, granted.pda),
            max_in_capsule: ADMIN_IN_CAPSULE.max(options.in_capsule),
            max_data: options.max_h2c,
        };
        Ok(())
    }

    fn command(&mut self) -> io::Result<()> {
        let (head, header, data) = match self.later.pop_front() {
            Some(pdu) => pdu,
            None => self.receive()?,
        };
        if head.pdu_type != PduType::CAPSULE_CMD {
            return Err(broken(head.pdu_type));
        }
        let sqe = CapsuleCmd::read_from_bytes(&header).map_err(broken)?.sqe;
        if self.session.is_admin(&sqe) {
            let response = self.session.admin(&sqe, &data);
            self.send_response(&sqe, &response, false, false)
        } else {
            self.io(&sqe, data)
        }
    }

    fn io(&mut self, sqe: &Sqe, mut data: Vec<u8>) -> io::Result<()> {
        let action = self.session.action(sqe);
        match action {
            FakeAction::NoResponse => return Ok(()),
            FakeAction::HangUp => return Err(broken("hang up")),
            FakeAction::Terminate => {
                let term = TermReq::new(End::Controller, TcpError::unsupported(8), 0);
                self.stream.write_all(term.as_bytes())?;
                // Keeps the connection open until the host closes it.
                let _ = self.stream.read(&mut [0]);
                return Err(broken("terminated"));
            }
            FakeAction::Fail(status) => return self.respond(sqe, status, 0),
            _ => {}
        }
        if let Err(status) = self.session.check(sqe) {
            return self.respond(sqe, status, 0);
        }
        let is_out = matches!(sqe.io_opcode(), IoOpcode::WRITE | IoOpcode::COMPARE);
        if is_out && let Sgl::Transport { length } = sqe.dptr.parse() {
            data = self.pull(sqe, length)?;
        }
        let response = self.session.io(sqe, action, &data);
        let success_flag = self.session.target.options.success_flag;
        self.send_response(sqe, &response, success_flag, action == FakeAction::BadDigest)
    }

    fn send_response(
        &mut self,
        sqe: &Sqe,
        response: &FakeResponse,
        success_flag: bool,
        bad_digest: bool,
    ) -> io::Result<()> {
        if response.data.is_empty() {
            self.respond(sqe, response.status, response.result)
        } else {
            self.send_data(sqe, &response.data, success_flag, bad_digest)
        }
    }

    /// Fetches the data of a write, one R2T after the other.
    fn pull(&mut self, sqe: &Sqe, length: u32) -> io::Result<Vec<u8>> {
        let mut data = Vec::new();
        let mut asked = 0;
        while asked < length {
            let piece = (length - asked).min(self.session.target.options.r2t_piece);
            let ttag = 0x1234;
            let r2t = R2T::new(self.framing, sqe.cid.get(), ttag, asked, piece);
            self.send(r2t.as_bytes(), &[], false)?;
            asked += piece;
            while data.len() < asked as usize {
                let (head, header, part) = self.receive()?;
                if head.pdu_type == PduType::CAPSULE_CMD {
                    self.later.push_back((head, header, part));
                    continue;
                }
                let pdu = H2CData::read_from_bytes(&header).map_err(broken)?;
                pdu.check(&head).map_err(broken)?;
                let of_this = pdu.ttag.get() == ttag && pdu.cccid == sqe.cid;
                if !of_this || pdu.datao.get() as usize != data.len() {
                    return Err(broken("H2CData out of order"));
                }
                data.extend(part);
            }
        }
        Ok(data)
    }

    /// Sends data to the host, and completes the command.
    fn send_data(
        &mut self,
        sqe: &Sqe,
        data: &[u8],
        success_flag: bool,
        bad_digest: bool,
    ) -> io::Result<()> {
        let piece = self.session.target.options.c2h_piece as usize;
        let mut offset = 0;
        for part in data.chunks(piece) {
            let last = offset + part.len() == data.len();
            let (datao, len) = (u32::try_from(offset), u32::try_from(part.len()));
            let (datao, len) = (datao.map_err(broken)?, len.map_err(broken)?);
            let cid = sqe.cid.get();
            let header = C2HData::new(self.framing, cid, datao, len, last, last && success_flag);
            self.send(header.as_bytes(), part, bad_digest)?;
            offset += part.len();
        }
        if success_flag && !data.is_empty() {
            Ok(())
        } else {
            self.respond(sqe, Status::SUCCESS, 0)
        }
    }

    fn respond(&mut self, sqe: &Sqe, status: Status, result: u64) -> io::Result<()> {
        let cqe = Cqe::new(sqe.cid.get(), status).with_result(result);
        self.send(CapsuleResp::new(self.framing, cqe).as_bytes(), &[], false)
    }

    fn send(&mut self, header: &[u8], data: &[u8], bad_digest: bool) -> io::Result<()> {
        let mut bytes = header.to_vec();
        if self.framing.hdgst {
            bytes.extend(crc_fast::crc32_iscsi(header).to_le_bytes());
        }
        bytes.extend(data);
        if self.framing.ddgst && !data.is_empty() {
            let digest = crc_fast::crc32_iscsi(data) ^ u32::from(bad_digest);
            bytes.extend(digest.to_le_bytes());
        }
        self.stream.write_all(&bytes)
    }

    /// Receives one PDU, with the checks of a controller.
    fn receive(&mut self) -> io::Result<Pdu> {
        let mut header = vec![0; CH_LEN];
        self.stream.read_exact(&mut header)?;
        let ch = CommonHeader::read_from_bytes(&header).map_err(broken)?;
        let head = self.rules.check(&ch).map_err(broken)?;
        let mut rest = vec![0; head.plen as usize - CH_LEN];
        self.stream.read_exact(&mut rest)?;
        header.extend(rest);
        let data_at = usize::from(head.data_offset);
        let data = header.split_off(data_at.min(header.len()));
        let (hlen, data_len) = (usize::from(head.hlen), head.data_len as usize);
        let digest = |bytes: &[u8]| crc_fast::crc32_iscsi(bytes).to_le_bytes();
        if head.hdgst && header[hlen..hlen + 4] != digest(&header[..hlen]) {
            return Err(broken("header digest"));
        }
        if head.ddgst && data[data_len..] != digest(&data[..data_len]) {
            return Err(broken("data digest"));
        }
        header.truncate(hlen);
        Ok((head, header, data[..data_len].to_vec()))
    }
}
