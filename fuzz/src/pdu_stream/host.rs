//! The host's end: its PDUs, and its checks of received PDUs.

use std::cell::Cell;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;

use nvmeof_wire::tcp::{
    C2HData, CH_LEN, CapsuleResp, CommonHeader, Framing, ICResp, PduHead, PduType, R2T, Receiver,
    RxRules, TermReq, flags,
};
use nvmeof_wire::zerocopy::{FromBytes, Immutable, IntoBytes};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

/// PDU that the target must send, in this order.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Due {
    R2t { cid: u16, len: usize },
    Data { cid: u16, len: usize, seed: Option<u8>, elidable: bool },
    Response { cid: u16 },
}

/// Content of a PDU for the host.
#[derive(Debug)]
pub(super) enum Told {
    Granted(ICResp),
    Asked { cid: u16, ttag: u16 },
    Answered,
    Terminated,
}

/// The host's end of the connection.
#[derive(Debug)]
pub(super) struct Host {
    socket: Option<OwnedFd>,
    unsent: VecDeque<u8>,
    inbox: Vec<u8>,
    /// Framing of PDUs after the ICResp.
    pub(super) framing: Option<Framing>,
    pub(super) due: VecDeque<Due>,
    terminated: bool,
    /// An event occurred that wakes a waiter for the target's end to be readable.
    pub(super) woke: bool,
    /// The sending direction is shut down: each event from then on reports it.
    pub(super) hung_up: bool,
}

impl Host {
    pub(super) fn new(socket: OwnedFd) -> Self {
        Self {
            socket: Some(socket),
            unsent: VecDeque::new(),
            inbox: Vec::new(),
            framing: None,
            due: VecDeque::new(),
            terminated: false,
            woke: true,
            hung_up: false,
        }
    }

    pub(super) fn queue(&mut self, bytes: &[u8]) {
        self.unsent.extend(bytes);
    }

    pub(super) fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Sends at most `len` queued bytes.
    pub(super) fn write(&mut self, len: usize) {
        let Some(socket) = &self.socket else { return };
        let len = len.min(self.unsent.len());
        if len == 0 {
            return;
        }
        let bytes = &self.unsent.make_contiguous()[..len];
        match rustix::net::send(socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(sent) => {
                self.woke = true;
                drop(self.unsent.drain(..sent));
            }
            Err(Errno::AGAIN) => {}
            // The target has closed; its last PDUs are still to be read.
            Err(_) => self.unsent.clear(),
        }
    }

    /// Closes the host's end.
    pub(super) fn close(&mut self) {
        (self.woke, self.hung_up) = (true, true);
        if let Some(socket) = self.socket.take() {
            // Shut down now, so that the target sees it. A socket closes with its last descriptor,
            // and a reader of this process's descriptors can hold one.
            let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Both);
        }
    }

    /// Returns whether the target must send something.
    pub(super) fn expects(&self) -> bool {
        !self.terminated && (!self.due.is_empty() || self.framing.is_none())
    }

    /// Shuts down the sending direction.
    pub(super) fn shut_down(&mut self) {
        if let Some(socket) = &self.socket {
            (self.woke, self.hung_up) = (true, true);
            let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Write);
        }
    }

    /// Reads all available data and checks each PDU against the expected ones.
    ///
    /// Stops at an ICResp: it determines the framing of later PDUs, which the next call reads.
    pub(super) fn read(&mut self, told: &mut Vec<Told>) {
        let mut window = WINDOW.take();
        while let Some(socket) = &self.socket {
            match rustix::net::recv(socket, &mut window[..], RecvFlags::DONTWAIT) {
                Ok((_, 0)) | Err(_) => break,
                Ok((_, len)) => {
                    self.inbox.extend_from_slice(&window[..len]);
                    if len < window.len() {
                        break;
                    }
                }
            }
        }
        WINDOW.set(window);
        if self.inbox.is_empty() {
            return;
        }
        let inbox = std::mem::take(&mut self.inbox);
        let mut rest = &inbox[..];
        while let Ok((ch, _)) = CommonHeader::ref_from_prefix(rest) {
            assert!(!self.terminated, "a PDU after the TermReq: {ch:?}");
            let rules = RxRules {
                receiver: Receiver::Host,
                framing: self.framing.unwrap_or_default(),
                max_in_capsule: 0,
                max_data: u32::MAX,
            };
            let head = rules.check(ch).unwrap_or_else(|error| panic!("{error}: {ch:?}"));
            if rest.len() < head.plen as usize {
                break;
            }
            let (pdu, after) = rest.split_at(head.plen as usize);
            rest = after;
            let news = self.pdu(&head, pdu);
            let is_granted = matches!(news, Some(Told::Granted(_)));
            told.extend(news);
            if is_granted {
                break;
            }
        }
        self.inbox.extend_from_slice(rest);
    }

    fn pdu(&mut self, head: &PduHead, pdu: &[u8]) -> Option<Told> {
        let data = check_digests(head, pdu);
        if head.pdu_type == PduType::C2H_TERM_REQ {
            let term = view::<TermReq>(pdu);
            assert_ne!(term.fes.get(), 0);
            self.terminated = true;
            return Some(Told::Terminated);
        }
        assert_eq!(self.framing.is_none(), head.pdu_type == PduType::IC_RESP, "{head:?}");
        let due = match head.pdu_type {
            PduType::IC_RESP => {
                let response = view::<ICResp>(pdu);
                assert!(response.params().is_ok(), "{response:?}");
                return Some(Told::Granted(response));
            }
            _ => self.due.pop_front(),
        };
        match (head.pdu_type, due) {
            (PduType::R2T, Some(Due::R2t { cid, len })) => {
                let r2t = view::<R2T>(pdu);
                assert_eq!((r2t.cccid.get(), r2t.r2to.get()), (cid, 0));
                assert_eq!(r2t.r2tl.get() as usize, len);
                Some(Told::Asked { cid, ttag: r2t.ttag.get() })
            }
            (PduType::C2H_DATA, Some(Due::Data { cid, len, seed, elidable })) => {
                let header = view::<C2HData>(pdu);
                assert!(header.check(head).is_ok() || len % 4 != 0, "{header:?}");
                assert_eq!((header.cccid.get(), header.datao.get()), (cid, 0));
                assert_eq!((header.datal.get() as usize, data.len()), (len, len));
                assert_eq!(head.flags & flags::SUCCESS != 0, elidable);
                assert!(head.flags & flags::LAST_PDU != 0);
                match seed {
                    Some(seed) => {
                        let same = with_pattern(len, seed, |pattern| *data == *pattern);
                        assert!(same, "data of {cid}");
                    }
                    None => assert!(is_zero(data), "data of {cid}"),
                }
                if elidable {
                    return Some(Told::Answered);
                }
                self.due.push_front(Due::Response { cid });
                None
            }
            (PduType::CAPSULE_RESP, Some(Due::Response { cid })) => {
                assert_eq!(view::<CapsuleResp>(pdu).cqe.cid.get(), cid);
                Some(Told::Answered)
            }
            (kind, due) => panic!("{kind} where {due:?} is due"),
        }
    }
}

/// Checks the digests and the padding, and returns the data.
pub(crate) fn check_digests<'a>(head: &PduHead, pdu: &'a [u8]) -> &'a [u8] {
    let hlen = usize::from(head.hlen);
    if head.hdgst {
        let digest = u32::from_le_bytes(*pdu[hlen..].first_chunk().expect("a digest"));
        assert_eq!(digest, crc32c(&pdu[..hlen]), "header digest");
    }
    let offset = usize::from(head.data_offset);
    assert!(is_zero(&pdu[usize::from(head.head_len)..offset]), "padding");
    let end = offset + head.data_len as usize;
    if head.ddgst {
        let digest = u32::from_le_bytes(*pdu[end..].first_chunk().expect("a digest"));
        assert_eq!(digest, crc32c(&pdu[offset..end]), "data digest");
    }
    &pdu[offset..end]
}

fn view<T: FromBytes>(pdu: &[u8]) -> T {
    T::read_from_prefix(pdu).expect("the length was checked").0
}

pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// Maximum bytes of data in this target.
const DATA_MAX: usize = 128 << 10;

thread_local! {
    /// Created once: code that runs for every byte would dominate a run.
    static TABLES: Tables = Tables {
        pattern: (0..DATA_MAX + 256)
            .map(|at| at.wrapping_mul(0x9e37_79b9).to_le_bytes()[2])
            .collect(),
        zeroes: vec![0; DATA_MAX],
    };
    /// Buffer of a read.
    static WINDOW: Cell<Vec<u8>> = Cell::new(vec![0; 64 << 10]);
}

struct Tables {
    pattern: Vec<u8>,
    zeroes: Vec<u8>,
}

/// Passes `len` bytes that differ by position and by seed.
pub(crate) fn with_pattern<R>(len: usize, seed: u8, then: impl FnOnce(&[u8]) -> R) -> R {
    let from = usize::from(seed);
    TABLES.with(|tables| then(&tables.pattern[from..from + len]))
}

fn is_zero(bytes: &[u8]) -> bool {
    TABLES.with(|tables| *bytes == tables.zeroes[..bytes.len()])
}

/// Assembles a PDU: header, digest, padding, data, digest.
pub(crate) fn assemble<H: IntoBytes + Immutable>(
    framing: Framing,
    header: &H,
    data: &[u8],
) -> Vec<u8> {
    let header = header.as_bytes();
    let pdo = usize::from(header[CH_LEN - 5]);
    let mut bytes = Vec::with_capacity(header.len() + data.len() + 160);
    bytes.extend_from_slice(header);
    if framing.hdgst {
        bytes.extend(crc32c(header).to_le_bytes());
    }
    if !data.is_empty() {
        bytes.resize(pdo, 0);
        bytes.extend_from_slice(data);
        if framing.ddgst {
            bytes.extend(crc32c(data).to_le_bytes());
        }
    }
    bytes
}
