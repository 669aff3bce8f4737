//! A peer on a TCP connection that may leave its responses unread.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};

use nvmeof_transport::DetachedQueue;
use nvmeof_transport::tcp::{TcpParams, accepted};
use nvmeof_wire::fabrics::{
    CNTLID_DYNAMIC, Connect, ConnectData, ConnectResult, PropertySet, PropertySize,
};
use nvmeof_wire::properties::offset;
use nvmeof_wire::tcp::{
    C2HData, CapsuleCmd, CapsuleResp, CommonHeader, Framing, ICReq, IcParams, PduType,
};
use nvmeof_wire::zerocopy::{FromBytes, IntoBytes};
use nvmeof_wire::{Cqe, Nqn, Sgl, Sqe};

use super::rig::{CC_ENABLE, Rig};

/// The peer's end of the connection.
pub(super) struct Peer {
    stream: TcpStream,
    to_send: Vec<u8>,
    received: Vec<u8>,
    /// Data and responses that were read.
    pub(super) data: Vec<(u16, Vec<u8>)>,
    pub(super) responses: Vec<Cqe>,
    pub(super) is_ended: bool,
}

impl Peer {
    /// Creates both ends of a connection.
    pub(super) fn connect() -> (Self, Box<dyn DetachedQueue>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        stream.set_nonblocking(true).unwrap();
        // Small buffers, so that few responses fit into the sockets.
        rustix::net::sockopt::set_socket_recv_buffer_size(&stream, 16 << 10).unwrap();
        let (target, _) = listener.accept().unwrap();
        rustix::net::sockopt::set_socket_send_buffer_size(&target, 16 << 10).unwrap();
        let peer = Self {
            stream,
            to_send: Vec::new(),
            received: Vec::new(),
            data: Vec::new(),
            responses: Vec::new(),
            is_ended: false,
        };
        (peer, accepted(target, TcpParams::default()))
    }

    /// Connects and enables a controller. Returns its CNTLID.
    pub(super) fn enable(
        &mut self,
        rig: &mut Rig,
        subsystem: &str,
        name: &str,
        entries: u16,
    ) -> u16 {
        let cntlid = self.connect_queue(rig, (subsystem, name), (0, entries), CNTLID_DYNAMIC);
        let enable = PropertySet { size: PropertySize::Four, offset: offset::CC, value: CC_ENABLE };
        self.capsule(enable.encode(2), &[]);
        self.answered(rig);
        cntlid
    }

    /// Connects a queue, by its number and entries. Returns the CNTLID of its controller.
    pub(super) fn connect_queue(
        &mut self,
        rig: &mut Rig,
        (subsystem, name): (&str, &str),
        (qid, entries): (u16, u16),
        cntlid: u16,
    ) -> u16 {
        let hello = IcParams { pda: 0, hdgst: false, ddgst: false, max: 1 };
        self.to_send.extend(ICReq::new(hello).as_bytes());
        let connect = Connect {
            qid,
            entries: entries.into(),
            priority: 0,
            disable_sq_flow_control: false,
            queue_deletion: false,
            kato_ms: 0,
        };
        let (subsystem, name) = (Nqn::new(subsystem).unwrap(), Nqn::new(name).unwrap());
        let data = ConnectData::new([3; 16], cntlid, &subsystem, &name);
        let sgl = Sgl::InCapsule { offset: 0, length: 1024 };
        self.capsule(connect.encode(1).with_sgl(sgl), data.as_bytes());
        ConnectResult::parse(self.answered(rig).result.get()).cntlid
    }

    /// Waits for the response to the one command that is out, which has to succeed.
    fn answered(&mut self, rig: &mut Rig) -> Cqe {
        rig.until("an answer", |_| {
            self.write();
            self.read();
            !self.responses.is_empty()
        });
        let cqe = self.responses.pop().unwrap();
        assert!(cqe.status().is_success(), "{cqe:?}");
        cqe
    }

    /// Queues a command.
    pub(super) fn capsule(&mut self, sqe: Sqe, data: &[u8]) {
        let len = u32::try_from(data.len()).unwrap();
        let header = CapsuleCmd::new(Framing::default(), sqe, len);
        self.to_send.extend(header.as_bytes());
        self.to_send.extend(data);
    }

    /// Writes until the socket is full. Returns true if nothing is left to write.
    pub(super) fn write(&mut self) -> bool {
        while !self.to_send.is_empty() {
            match self.stream.write(&self.to_send) {
                Ok(len) => drop(self.to_send.drain(..len)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
                Err(_) => {
                    self.is_ended = true;
                    return true;
                }
            }
        }
        true
    }

    /// Closes the sending side.
    pub(super) fn shut_down(&self) {
        self.stream.shutdown(Shutdown::Write).unwrap();
    }

    /// Reads all that has arrived.
    pub(super) fn read(&mut self) {
        let mut chunk = [0; 64 << 10];
        loop {
            match self.stream.read(&mut chunk) {
                Ok(0) => break self.is_ended = true,
                Ok(len) => self.received.extend(&chunk[..len]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(_) => break self.is_ended = true,
            }
        }
        while let Ok((header, _)) = CommonHeader::read_from_prefix(&self.received) {
            let len = header.plen.get() as usize;
            if self.received.len() < len {
                return;
            }
            let pdu: Vec<u8> = self.received.drain(..len).collect();
            match header.pdu_type {
                PduType::CAPSULE_RESP => {
                    self.responses.push(CapsuleResp::read_from_prefix(&pdu).unwrap().0.cqe);
                }
                PduType::C2H_DATA => {
                    let cid = C2HData::read_from_prefix(&pdu).unwrap().0.cccid.get();
                    self.data.push((cid, pdu[usize::from(header.pdo)..].to_vec()));
                }
                PduType::IC_RESP => {}
                _ => self.is_ended = true,
            }
        }
    }
}
