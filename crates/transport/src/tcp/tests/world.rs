//! A queue and a raw host that one thread drives alternately.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use nvmeof_core::dma::{Buffer, ChunkPool, CorePool, Payload, PoolConfig};
use nvmeof_wire::tcp::{
    C2HData, CH_LEN, CapsuleCmd, CapsuleResp, CommonHeader, Framing, H2CData, ICReq, ICResp,
    IcParams, PduType, R2T, TcpError, TermReq, flags,
};
use nvmeof_wire::zerocopy::{FromBytes, Immutable, IntoBytes};
use nvmeof_wire::{Cqe, Sgl, Sqe};

use crate::queue::{Connected, Event, FabricOp, HostQueue, Nanos, PollGroup, ReactorResources};
use crate::tcp::{TcpParams, accepted, listen};

pub(super) const ORACLE: crc::Crc<u32> = crc::Crc::<u32>::new(&crc::CRC_32_ISCSI);

/// A PDU that the host received, in its parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pdu {
    pub(super) ch: CommonHeader,
    pub(super) header: Vec<u8>,
    pub(super) data: Vec<u8>,
}

impl Pdu {
    pub(super) fn kind(&self) -> PduType {
        self.ch.pdu_type
    }

    fn view<T: FromBytes>(&self) -> T {
        T::read_from_prefix(&self.header).unwrap().0
    }

    pub(super) fn ic_resp(&self) -> ICResp {
        assert_eq!(self.kind(), PduType::IC_RESP);
        self.view()
    }

    pub(super) fn cqe(&self) -> Cqe {
        assert_eq!(self.kind(), PduType::CAPSULE_RESP);
        self.view::<CapsuleResp>().cqe
    }

    pub(super) fn c2h(&self) -> C2HData {
        assert_eq!(self.kind(), PduType::C2H_DATA);
        self.view()
    }

    pub(super) fn r2t(&self) -> R2T {
        assert_eq!(self.kind(), PduType::R2T);
        self.view()
    }

    /// Returns the error of a C2HTermReq.
    pub(super) fn term(&self) -> TcpError {
        assert_eq!(self.kind(), PduType::C2H_TERM_REQ);
        self.view::<TermReq>().error()
    }
}

pub(super) struct World {
    pub(super) pool: CorePool,
    pub(super) queue: Box<dyn HostQueue>,
    pub(super) events: Vec<Event>,
    pub(super) now: Nanos,
    pub(super) host: Host,
}

/// The host's end.
pub(super) struct Host {
    stream: Option<TcpStream>,
    /// Framing of PDUs that the host sends.
    pub(super) out: Framing,
    /// Expected framing of PDUs that the host receives.
    pub(super) in_: Framing,
    to_send: VecDeque<u8>,
    /// Bytes the host sends and reads in one turn.
    pub(super) send_step: usize,
    pub(super) read_step: usize,
    bytes: Vec<u8>,
    pub(super) pdus: VecDeque<Pdu>,
    pub(super) eof: bool,
}

pub(super) fn pool() -> CorePool {
    let config =
        PoolConfig { cap: 64 << 20, reserve: 16 << 20, huge_pages: false, ..PoolConfig::default() };
    CorePool::new(&ChunkPool::new(config).unwrap())
}

/// Returns both ends of a connection on the loopback interface.
pub(super) fn streams() -> (TcpStream, TcpStream) {
    let listener = listen("127.0.0.1:0".parse().unwrap(), false).unwrap();
    listener.set_nonblocking(false).unwrap();
    let host = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    host.set_nonblocking(true).unwrap();
    host.set_nodelay(true).unwrap();
    (listener.accept().unwrap().0, host)
}

impl World {
    /// Creates a connection before its handshake.
    pub(super) fn raw(params: TcpParams) -> Self {
        let (target, host) = streams();
        Self::over(target, host, params)
    }

    pub(super) fn over(target: TcpStream, host: TcpStream, params: TcpParams) -> Self {
        let pool = pool();
        let queue = accepted(target, params)
            .attach(&mut ReactorResources { pool: &pool, sources: &mut PollGroup::default() })
            .unwrap();
        let host = Host {
            stream: Some(host),
            out: Framing::default(),
            in_: Framing::default(),
            to_send: VecDeque::new(),
            send_step: usize::MAX,
            read_step: usize::MAX,
            bytes: Vec::new(),
            pdus: VecDeque::new(),
            eof: false,
        };
        Self { pool, queue, events: Vec::new(), now: 0, host }
    }

    /// Creates a connection after its handshake and Connect, with these digests.
    pub(super) fn open_with(params: TcpParams, hdgst: bool, ddgst: bool, hpda: u8) -> Self {
        let mut world = Self::raw(params);
        world.hello(IcParams { pda: hpda, hdgst, ddgst, max: 1 });
        world.queue.connected(Connected { admin: false, depth: 32 });
        world
    }

    pub(super) fn open() -> Self {
        Self::open_with(TcpParams::default(), false, false, 0)
    }

    /// Performs the handshake.
    pub(super) fn hello(&mut self, wanted: IcParams) -> IcParams {
        self.host.send(ICReq::new(wanted).as_bytes());
        let granted = self.pdu().ic_resp().params().unwrap();
        self.host.out = Framing::new(granted.hdgst, granted.ddgst, granted.pda);
        self.host.in_ = Framing::new(granted.hdgst, granted.ddgst, wanted.pda);
        granted
    }

    /// Runs one turn of both ends.
    pub(super) fn turn(&mut self) {
        self.host.write_some();
        self.queue.receive(self.now, &mut self.events);
        self.queue.flush(&mut { usize::MAX }, self.now, &mut self.events);
        self.host.read_some();
    }

    /// Runs turns until `done`. The limit on turns is far above the needs of working code.
    pub(super) fn until(&mut self, what: &str, mut done: impl FnMut(&Self) -> bool) {
        for turn in 0..200_000u32 {
            if done(self) {
                return;
            }
            if turn > 1000 {
                std::thread::yield_now();
            }
            self.turn();
        }
        panic!("no {what}; events {:?}, pdus {:?}", self.events, self.host.pdus);
    }

    /// Returns the next PDU that the host receives.
    pub(super) fn pdu(&mut self) -> Pdu {
        self.until("PDU", |world| !world.host.pdus.is_empty());
        self.host.pdus.pop_front().unwrap()
    }

    /// Returns the next event.
    pub(super) fn event(&mut self) -> Event {
        self.until("event", |world| !world.events.is_empty());
        self.events.remove(0)
    }

    /// Waits until the queue has read everything that the host sent.
    pub(super) fn settle(&mut self) {
        self.until("quiet", |world| world.host.to_send.is_empty());
        for _ in 0..20 {
            self.turn();
        }
    }

    /// Writes everything that the host has to send, without a turn of the queue.
    pub(super) fn settle_writes(&mut self) {
        while !self.host.to_send.is_empty() {
            self.host.write_some();
        }
    }

    pub(super) fn submit(&mut self, op: FabricOp) {
        self.queue.submit(op).unwrap();
    }

    pub(super) fn respond(&mut self, cid: u16) {
        self.respond_with(cid, None, false);
    }

    pub(super) fn respond_with(&mut self, cid: u16, data: Option<Payload>, elidable: bool) {
        let len = u32::try_from(data.as_ref().map_or(0, Payload::len)).unwrap();
        self.submit(FabricOp::Respond {
            token: u64::from(cid),
            cqe: Cqe::success(cid, 0),
            sgl: Sgl::Transport { length: len },
            data,
            elidable,
        });
    }

    pub(super) fn pull(&mut self, cid: u16, len: usize) {
        let buf = self.pool.lease(len).unwrap();
        let length = u32::try_from(len).unwrap();
        self.submit(FabricOp::FetchHostData {
            token: u64::from(cid),
            cid,
            sgl: Sgl::Transport { length },
            buf,
        });
    }

    /// Returns a buffer with these bytes.
    pub(super) fn buffer(&self, bytes: &[u8]) -> Buffer {
        let mut buf = self.pool.lease(bytes.len()).unwrap();
        buf.as_mut_slice().copy_from_slice(bytes);
        buf
    }

    /// Sends a command from the host, and checks that the queue delivers it.
    pub(super) fn command(&mut self, cid: u16) {
        self.host.capsule(sqe(cid), &[]);
        let is_it = |event: &Event| matches!(event, Event::Command { sqe: got, data: None } if *got == sqe(cid));
        self.until("command", |world| world.events.iter().any(is_it));
        self.events.retain(|event| !is_it(event));
    }

    /// Starts a pull; returns the transfer tag that the host received.
    pub(super) fn asked(&mut self, cid: u16, len: usize) -> u16 {
        self.command(cid);
        self.pull(cid, len);
        let r2t = self.pdu().r2t();
        assert_eq!((r2t.cccid.get(), r2t.r2to.get()), (cid, 0));
        assert_eq!(r2t.r2tl.get() as usize, len);
        r2t.ttag.get()
    }

    /// Returns the reason of `Closed`; checks that it is the last event, and that nothing is
    /// leased.
    pub(super) fn closed(&mut self) -> crate::CloseReason {
        self.until("Closed", |world| matches!(world.events.last(), Some(Event::Closed { .. })));
        let Some(Event::Closed { reason }) = self.events.pop() else { unreachable!() };
        let others = std::mem::take(&mut self.events);
        for _ in 0..3 {
            self.turn();
        }
        assert!(self.events.is_empty(), "after Closed: {:?}", self.events);
        self.events = others;
        reason
    }
}

/// Creates a write command that its identifier distinguishes.
pub(super) fn sqe(cid: u16) -> Sqe {
    Sqe::new(0x01, cid, 1)
}

/// Returns bytes that differ by position.
pub(super) fn pattern(len: usize, seed: u16) -> Vec<u8> {
    let seed = seed.to_le_bytes()[0];
    (0..len).map(|at| (at as u64).wrapping_mul(0x9e37_79b9).to_le_bytes()[2] ^ seed).collect()
}

/// Returns a PDU as bytes: header, digest, padding, data, digest.
pub(super) fn assemble<H: IntoBytes + Immutable>(
    framing: Framing,
    header: &H,
    data: &[u8],
) -> Vec<u8> {
    let mut bytes = header.as_bytes().to_vec();
    if framing.hdgst {
        bytes.extend(ORACLE.checksum(header.as_bytes()).to_le_bytes());
    }
    if data.is_empty() {
        return bytes;
    }
    bytes.resize(usize::from(bytes[3]), 0);
    bytes.extend(data);
    if framing.ddgst {
        bytes.extend(ORACLE.checksum(data).to_le_bytes());
    }
    bytes
}

impl Host {
    pub(super) fn send(&mut self, bytes: &[u8]) {
        self.to_send.extend(bytes);
    }

    pub(super) fn capsule(&mut self, sqe: Sqe, data: &[u8]) {
        let header = CapsuleCmd::new(self.out, sqe, u32::try_from(data.len()).unwrap());
        self.send(&assemble(self.out, &header, data));
    }

    pub(super) fn h2c(&mut self, cid: u16, ttag: u16, offset: usize, data: &[u8], last: bool) {
        let offset = u32::try_from(offset).unwrap();
        let len = u32::try_from(data.len()).unwrap();
        let header = H2CData::new(self.out, cid, ttag, offset, len, last);
        self.send(&assemble(self.out, &header, data));
    }

    /// Removes the last `len` queued bytes and returns them, to be sent later.
    pub(super) fn take_unsent(&mut self, len: usize) -> Vec<u8> {
        self.to_send.split_off(self.to_send.len() - len).into()
    }

    pub(super) fn close(&mut self) {
        self.stream = None;
    }

    /// Closes the sending side, but continues to read.
    pub(super) fn shutdown(&mut self) {
        self.stream.as_ref().unwrap().shutdown(std::net::Shutdown::Write).unwrap();
    }

    pub(super) fn write_some(&mut self) {
        let Some(stream) = &mut self.stream else { return };
        let len = self.to_send.len().min(self.send_step);
        let bytes = &self.to_send.make_contiguous()[..len];
        if bytes.is_empty() {
            return;
        }
        match stream.write(bytes) {
            Ok(len) => drop(self.to_send.drain(..len)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            // The target closed; its last PDUs are still to be read.
            Err(_) => self.to_send.clear(),
        }
    }

    pub(super) fn read_some(&mut self) {
        let Some(stream) = &mut self.stream else { return };
        let mut chunk = vec![0; self.read_step.min(1 << 20)];
        match stream.read(&mut chunk) {
            Ok(0) if !chunk.is_empty() => self.eof = true,
            Ok(len) => self.bytes.extend(&chunk[..len]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => panic!("host cannot read: {error}"),
        }
        self.parse();
    }

    /// Splits the received bytes into PDUs; checks lengths, alignment and digests.
    fn parse(&mut self) {
        loop {
            let Ok((ch, _)) = CommonHeader::read_from_prefix(&self.bytes) else { return };
            let plen = ch.plen.get() as usize;
            assert!(plen >= CH_LEN, "{ch:?}");
            if self.bytes.len() < plen {
                return;
            }
            let bytes: Vec<u8> = self.bytes.drain(..plen).collect();
            self.pdus.push_back(self.cut(ch, &bytes));
        }
    }

    fn cut(&self, ch: CommonHeader, bytes: &[u8]) -> Pdu {
        let hlen = usize::from(ch.hlen);
        let header = bytes[..hlen].to_vec();
        if matches!(ch.pdu_type, PduType::IC_RESP | PduType::C2H_TERM_REQ) {
            return Pdu { ch, header, data: bytes[hlen..].to_vec() };
        }
        let mut head_len = hlen;
        assert_eq!(ch.flags & flags::HDGSTF != 0, self.in_.hdgst, "{ch:?}");
        if self.in_.hdgst {
            let digest = u32::from_le_bytes(*bytes[hlen..].first_chunk().unwrap());
            assert_eq!(digest, ORACLE.checksum(&header), "header digest");
            head_len += 4;
        }
        if bytes.len() == head_len {
            return Pdu { ch, header, data: Vec::new() };
        }
        let pdo = usize::from(ch.pdo);
        assert!(pdo >= head_len && pdo.is_multiple_of(usize::from(self.in_.align())), "{ch:?}");
        assert!(bytes[head_len..pdo].iter().all(|byte| *byte == 0), "padding");
        assert_eq!(ch.flags & flags::DDGSTF != 0, self.in_.ddgst, "{ch:?}");
        let end = bytes.len() - usize::from(self.in_.ddgst_len());
        let data = bytes[pdo..end].to_vec();
        if self.in_.ddgst {
            let digest = u32::from_le_bytes(*bytes[end..].first_chunk().unwrap());
            assert_eq!(digest, ORACLE.checksum(&data), "data digest");
        }
        Pdu { ch, header, data }
    }
}

/// Checks at compile time the types that can cross threads.
const _: fn() = || {
    fn is_send<T: Send>() {}
    is_send::<Box<dyn crate::DetachedQueue>>();
    is_send::<Arc<ChunkPool>>();
};
