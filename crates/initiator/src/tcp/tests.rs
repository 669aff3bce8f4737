//! Tests of the engine with hand-made PDUs, without sockets or time.

mod hostile;
mod transfers;

use std::io::IoSlice;

use nvmeof_wire::opcode::IoOpcode;
use nvmeof_wire::tcp::{C2HData, CapsuleResp, Framing, IcParams, R2T};
use nvmeof_wire::zerocopy::IntoBytes;
use nvmeof_wire::{Cqe, Sqe, Status};

use super::engine::TcpEngine;
use super::receive::FatalPduError;
use crate::{Buffer, Command, CompletedCommand, Transfer};

/// Negotiated parameters, and the target's end of the connection.
#[derive(Debug, Clone, Copy)]
struct Agreed {
    hdgst: bool,
    ddgst: bool,
    cpda: u8,
    max_h2c: u32,
    in_capsule: u32,
    depth: u16,
}

impl Default for Agreed {
    fn default() -> Self {
        Self { hdgst: false, ddgst: false, cpda: 0, max_h2c: 8192, in_capsule: 4096, depth: 4 }
    }
}

impl Agreed {
    fn digests() -> impl Iterator<Item = Self> {
        [(false, false), (true, false), (false, true), (true, true)]
            .into_iter()
            .map(|(hdgst, ddgst)| Self { hdgst, ddgst, ..Self::default() })
    }

    fn engine(self) -> TcpEngine {
        let granted =
            IcParams { pda: self.cpda, hdgst: self.hdgst, ddgst: self.ddgst, max: self.max_h2c };
        TcpEngine::new(self.depth, granted, self.in_capsule)
    }

    /// Framing of PDUs to the host.
    fn framing(self) -> Framing {
        Framing::new(self.hdgst, self.ddgst, 0)
    }

    fn pdu(self, header: &[u8], data: &[u8]) -> Vec<u8> {
        let mut bytes = header.to_vec();
        if self.hdgst {
            bytes.extend(crc_fast::crc32_iscsi(header).to_le_bytes());
        }
        bytes.extend(data);
        if self.ddgst && !data.is_empty() {
            bytes.extend(crc_fast::crc32_iscsi(data).to_le_bytes());
        }
        bytes
    }

    fn response(self, cid: u16, status: Status) -> Vec<u8> {
        self.pdu(CapsuleResp::new(self.framing(), Cqe::new(cid, status)).as_bytes(), &[])
    }

    fn data(self, cid: u16, offset: u32, data: &[u8], last: bool, success: bool) -> Vec<u8> {
        let len = u32::try_from(data.len()).unwrap();
        let header = C2HData::new(self.framing(), cid, offset, len, last, success);
        self.pdu(header.as_bytes(), data)
    }

    fn r2t(self, cid: u16, ttag: u16, offset: u32, len: u32) -> Vec<u8> {
        self.pdu(R2T::new(self.framing(), cid, ttag, offset, len).as_bytes(), &[])
    }
}

fn read(token: u64, len: usize) -> Command {
    let sqe = Sqe::io(IoOpcode::READ, 0, 1);
    Command { token, sqe, transfer: Transfer::In(Buffer::zeroed(len)) }
}

fn write(token: u64, data: &[u8]) -> Command {
    let sqe = Sqe::io(IoOpcode::WRITE, 0, 1);
    Command { token, sqe, transfer: Transfer::Out(Buffer::from(data)) }
}

/// Returns bytes that are not all equal.
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 251).to_le_bytes()[0]).collect()
}

/// Returns everything that the engine sends, taken `chunk` bytes at a time.
fn drain(engine: &mut TcpEngine, chunk: usize) -> (Vec<u8>, Vec<CompletedCommand>) {
    let (mut bytes, mut done) = (Vec::new(), Vec::new());
    while engine.has_output() {
        let mut pieces = [IoSlice::new(&[]); 3];
        let count = engine.sources(&mut pieces);
        let flat: Vec<u8> = pieces[..count].iter().flat_map(|piece| piece.to_vec()).collect();
        let n = chunk.min(flat.len());
        assert!(n > 0, "has_output, but nothing to send");
        bytes.extend(&flat[..n]);
        engine.sent(n, &mut done);
    }
    (bytes, done)
}

/// Feeds `bytes` to the engine, `chunk` at a time.
fn feed(
    engine: &mut TcpEngine,
    bytes: &[u8],
    chunk: usize,
) -> Result<Vec<CompletedCommand>, FatalPduError> {
    let mut done = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let n = {
            let mut targets = engine.targets();
            let room = targets[0].len() + targets[1].len();
            assert!(room > 0, "nowhere to put what is received");
            let n = chunk.min(rest.len()).min(room);
            let direct = n.min(targets[0].len());
            targets[0][..direct].copy_from_slice(&rest[..direct]);
            targets[1][..n - direct].copy_from_slice(&rest[direct..n]);
            n
        };
        rest = &rest[n..];
        engine.received(n, &mut done)?;
    }
    Ok(done)
}

/// Command identifier of the capsule at the start of `bytes`.
fn cid_of(bytes: &[u8]) -> u16 {
    u16::from_le_bytes([bytes[10], bytes[11]])
}

/// Submits and sends one command, and returns its identifier.
fn start(engine: &mut TcpEngine, command: Command) -> u16 {
    engine.submit(command, u64::MAX).unwrap();
    cid_of(&drain(engine, usize::MAX).0)
}

fn only(done: Vec<CompletedCommand>) -> CompletedCommand {
    let [completed]: [CompletedCommand; 1] = done.try_into().expect("one completion");
    completed
}
