//! NVMe/TCP PDUs in any form, valid and invalid, and the target's responses.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

use nvmeof_initiator::ConnectOptions;
use nvmeof_wire::fabrics::PropertySize;
use nvmeof_wire::fabrics::{CNTLID_DYNAMIC, Connect, ConnectData, ConnectResult, PropertySet};
use nvmeof_wire::properties::{CC_CSS_NVM, Cc, offset};
use nvmeof_wire::tcp::{
    C2HData, CH_LEN, CapsuleCmd, CapsuleResp, CommonHeader, Framing, H2CData, ICReq, ICResp,
    IcParams, PduHead, PduType, R2T, Receiver, RxRules, TcpError, TermReq, flags,
};
use nvmeof_wire::zerocopy::{FromBytes, IntoBytes};
use nvmeof_wire::{Cqe, Nqn, Sgl, Sqe};

use crate::GUARD;

const CRC: crc::Crc<u32> = crc::Crc::<u32>::new(&crc::CRC_32_ISCSI);

/// A PDU from the target.
#[derive(Debug)]
pub enum Pdu {
    /// A completion.
    Response(Cqe),
    /// Data, and its header.
    Data(C2HData, Vec<u8>),
    /// Request for data.
    R2T(R2T),
    /// Termination: the error, and the header of the faulty PDU.
    Terminated(TcpError, Vec<u8>),
    /// End of the connection.
    End,
}

/// An NVMe/TCP connection.
#[derive(Debug)]
pub struct Raw {
    stream: TcpStream,
    framing: Framing,
    /// Maximum bytes of data in an H2CData, from the target's ICResp.
    pub max_h2c_data: u32,
    next_cid: u16,
}

impl Raw {
    /// Opens a TCP connection without sending anything.
    #[must_use]
    pub fn open(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("a TCP connection");
        stream.set_read_timeout(Some(GUARD)).expect("a guard");
        stream.set_write_timeout(Some(GUARD)).expect("a guard");
        stream.set_nodelay(true).expect("no delay");
        Self { stream, framing: Framing::default(), max_h2c_data: 0, next_cid: 0x100 }
    }

    /// Shrinks the receive buffer, so that the socket holds few unread bytes.
    pub fn narrow(&self) {
        rustix::net::sockopt::set_socket_recv_buffer_size(&self.stream, 4096).expect("a size");
    }

    /// Opens a connection and exchanges ICReq and ICResp.
    #[must_use]
    pub fn hello(address: SocketAddr, hdgst: bool, ddgst: bool) -> Self {
        let mut raw = Self::open(address);
        raw.send(ICReq::new(IcParams { pda: 0, hdgst, ddgst, max: 1 }).as_bytes());
        let mut bytes = [0; size_of::<ICResp>()];
        raw.stream.read_exact(&mut bytes).expect("an ICResp");
        let granted = ICResp::read_from_bytes(&bytes).expect("its size");
        let granted = granted.params().expect("a good ICResp");
        assert_eq!((granted.hdgst, granted.ddgst), (hdgst, ddgst), "digests granted");
        raw.framing = Framing::new(hdgst, ddgst, 0);
        raw.max_h2c_data = granted.max;
        raw
    }

    /// Connects an admin queue and enables its controller; returns it with the CNTLID.
    #[must_use]
    pub fn admin(address: SocketAddr, nqn: &str, host: &ConnectOptions) -> (Self, u16) {
        let mut raw = Self::hello(address, host.hdgst, host.ddgst);
        let cqe = raw.connect(0, 32, CNTLID_DYNAMIC, nqn, host);
        assert!(cqe.status().is_success(), "Connect: {}", cqe.status());
        let cntlid = ConnectResult::parse(cqe.result.get()).cntlid;
        let cc = Cc::new().with_en(true).with_css(CC_CSS_NVM).with_iosqes(6).with_iocqes(4);
        let value = u64::from(cc.into_bits());
        let set = PropertySet { size: PropertySize::Four, offset: offset::CC, value };
        let cqe = raw.command(set.encode(0));
        assert!(cqe.status().is_success(), "CC.EN: {}", cqe.status());
        (raw, cntlid)
    }

    /// Connects I/O queue 1 of a controller, with this many entries.
    #[must_use]
    pub fn io(
        address: SocketAddr,
        nqn: &str,
        host: &ConnectOptions,
        cntlid: u16,
        entries: u32,
    ) -> Self {
        let mut raw = Self::hello(address, host.hdgst, host.ddgst);
        let cqe = raw.connect(1, entries, cntlid, nqn, host);
        assert!(cqe.status().is_success(), "Connect: {}", cqe.status());
        raw
    }

    /// Sends Connect and returns its completion.
    pub fn connect(
        &mut self,
        qid: u16,
        entries: u32,
        cntlid: u16,
        nqn: &str,
        host: &ConnectOptions,
    ) -> Cqe {
        let keep_alive = u32::try_from(host.keep_alive.as_millis()).expect("a short time");
        let connect = Connect {
            qid,
            entries,
            priority: 0,
            // With flow control every command has its own response capsule.
            disable_sq_flow_control: false,
            queue_deletion: false,
            kato_ms: if qid == 0 { keep_alive } else { 0 },
        };
        let nqn = Nqn::new(nqn).expect("an NQN");
        let data = ConnectData::new(host.hostid, cntlid, &nqn, &host.hostnqn);
        let sqe = self.in_capsule(connect.encode(0), data.as_bytes().len());
        let capsule = self.capsule(sqe, data.as_bytes());
        self.send(&capsule);
        self.response()
    }

    /// Assigns the next free identifier to the command.
    pub fn numbered(&mut self, mut sqe: Sqe) -> Sqe {
        sqe.cid.set(self.next_cid);
        self.next_cid += 1;
        sqe
    }

    /// Assigns the next free identifier, and `len` bytes of in-capsule data.
    pub fn in_capsule(&mut self, sqe: Sqe, len: usize) -> Sqe {
        let length = u32::try_from(len).expect("a short length");
        self.numbered(sqe).with_sgl(Sgl::InCapsule { offset: 0, length })
    }

    /// Assigns the next free identifier, and `len` bytes of data outside the capsule.
    pub fn separate(&mut self, sqe: Sqe, len: usize) -> Sqe {
        let length = u32::try_from(len).expect("a short length");
        self.numbered(sqe).with_sgl(Sgl::Transport { length })
    }

    /// Sends a command without data, with a new identifier, and returns its completion.
    pub fn command(&mut self, sqe: Sqe) -> Cqe {
        let sqe = self.numbered(sqe);
        self.execute(sqe)
    }

    /// Sends a command unchanged, and returns its completion.
    pub fn execute(&mut self, sqe: Sqe) -> Cqe {
        let capsule = self.capsule(sqe, &[]);
        self.send(&capsule);
        let cqe = self.response();
        assert_eq!(cqe.cid, sqe.cid, "completion of another command");
        cqe
    }

    /// Sends a command that reads `len` bytes, and returns them.
    pub fn read(&mut self, sqe: Sqe, len: usize) -> Vec<u8> {
        let sqe = self.separate(sqe, len);
        let capsule = self.capsule(sqe, &[]);
        self.send(&capsule);
        let mut data = Vec::new();
        loop {
            match self.pdu() {
                Pdu::Data(header, bytes) => {
                    assert_eq!((header.cccid, header.datao.get() as usize), (sqe.cid, data.len()));
                    data.extend_from_slice(&bytes);
                    if header.ch.flags & flags::SUCCESS != 0 {
                        // The response is folded into the data.
                        assert_eq!(data.len(), len);
                        return data;
                    }
                }
                Pdu::Response(cqe) => {
                    assert!(cqe.status().is_success(), "{}", cqe.status());
                    assert_eq!(data.len(), len);
                    return data;
                }
                other => panic!("{other:?}"),
            }
        }
    }

    /// Encodes a command capsule, with the negotiated digests.
    #[must_use]
    pub fn capsule(&self, sqe: Sqe, data: &[u8]) -> Vec<u8> {
        let len = u32::try_from(data.len()).expect("a short length");
        self.encode(CapsuleCmd::new(self.framing, sqe, len).as_bytes(), data)
    }

    /// Encodes an H2CData, with the negotiated digests.
    #[must_use]
    pub fn h2c_data(&self, cid: u16, ttag: u16, at: u32, data: &[u8], last: bool) -> Vec<u8> {
        let len = u32::try_from(data.len()).expect("a short length");
        self.encode(H2CData::new(self.framing, cid, ttag, at, len, last).as_bytes(), data)
    }

    /// Encodes a header, its digest, data, and its digest.
    #[must_use]
    pub fn encode(&self, header: &[u8], data: &[u8]) -> Vec<u8> {
        let mut pdu = header.to_vec();
        if self.framing.hdgst {
            pdu.extend_from_slice(&CRC.checksum(header).to_le_bytes());
        }
        pdu.extend_from_slice(data);
        if self.framing.ddgst && !data.is_empty() {
            pdu.extend_from_slice(&CRC.checksum(data).to_le_bytes());
        }
        pdu
    }

    /// Sends bytes.
    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the target takes it");
    }

    /// Sends bytes to a target that can have closed the connection; returns `false` if it has.
    pub fn try_send(&mut self, bytes: &[u8]) -> bool {
        self.stream.write_all(bytes).is_ok()
    }

    /// Shuts down the sending direction.
    pub fn finish(&mut self) {
        self.stream.shutdown(std::net::Shutdown::Write).expect("half a close");
    }

    /// Receives the next PDU, which has to be a completion.
    pub fn response(&mut self) -> Cqe {
        match self.pdu() {
            Pdu::Response(cqe) => cqe,
            other => panic!("{other:?}, not a completion"),
        }
    }

    /// Receives the next PDU, which has to be an R2T.
    pub fn r2t(&mut self) -> R2T {
        match self.pdu() {
            Pdu::R2T(r2t) => r2t,
            other => panic!("{other:?}, not an R2T"),
        }
    }

    /// Receives the next PDU, which has to be a termination; returns the error and the faulty
    /// header.
    pub fn terminated(&mut self) -> (TcpError, Vec<u8>) {
        match self.pdu() {
            Pdu::Terminated(error, header) => (error, header),
            other => panic!("{other:?}, not a C2HTermReq"),
        }
    }

    /// Receives the next PDU.
    pub fn pdu(&mut self) -> Pdu {
        let mut bytes = vec![0; CH_LEN];
        if !self.fill(&mut bytes) {
            return Pdu::End;
        }
        let rules = RxRules {
            receiver: Receiver::Host,
            framing: self.framing,
            max_in_capsule: 0,
            max_data: u32::MAX,
        };
        let (ch, _) = CommonHeader::read_from_prefix(&bytes).expect("8 bytes");
        let head = rules.check(&ch).unwrap_or_else(|error| panic!("{ch:?}: {error}"));
        bytes.resize(usize::try_from(head.plen).expect("a length"), 0);
        assert!(self.fill(&mut bytes[CH_LEN..]), "the end within a PDU");
        let data = self.check_digests(&head, &bytes);
        match head.pdu_type {
            PduType::CAPSULE_RESP => Pdu::Response(view::<CapsuleResp>(&bytes).cqe),
            PduType::C2H_DATA => Pdu::Data(view(&bytes), data),
            PduType::R2T => Pdu::R2T(view(&bytes)),
            PduType::C2H_TERM_REQ => {
                Pdu::Terminated(view::<TermReq>(&bytes).error(), bytes[24..].to_vec())
            }
            other => panic!("{other:?}"),
        }
    }

    fn check_digests(&self, head: &PduHead, pdu: &[u8]) -> Vec<u8> {
        let digest_at =
            |at: usize| u32::from_le_bytes(pdu[at..at + 4].try_into().expect("4 bytes"));
        let hlen = usize::from(head.hlen);
        if head.hdgst {
            assert_eq!(digest_at(hlen), CRC.checksum(&pdu[..hlen]), "header digest");
        }
        let start = usize::from(head.data_offset);
        let end = start + usize::try_from(head.data_len).expect("a length");
        let data = pdu[start..end].to_vec();
        if head.ddgst {
            assert_eq!(digest_at(end), CRC.checksum(&data), "data digest");
        }
        data
    }

    /// Fills `bytes`; returns `false` at the end of the connection.
    fn fill(&mut self, bytes: &mut [u8]) -> bool {
        match self.stream.read_exact(bytes) {
            Ok(()) => true,
            Err(error) => match error.kind() {
                ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => {
                    false
                }
                _ => panic!("nothing from the target: {error}"),
            },
        }
    }
}

fn view<T: FromBytes>(bytes: &[u8]) -> T {
    match T::read_from_prefix(bytes) {
        Ok((value, _)) => value,
        Err(_) => panic!("a PDU shorter than its header"),
    }
}
