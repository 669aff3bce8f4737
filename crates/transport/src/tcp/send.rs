//! PDUs to the host: queued during the turn, sent together at its end.
//!
//! Headers and digests are written once, in stream order, into one buffer; data stays in place. A
//! send gathers both, so one system call sends a turn's output for any number of small commands.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;

use nvmeof_core::dma::Payload;
use nvmeof_wire::Cqe;
use nvmeof_wire::tcp::{C2HData, CapsuleResp, Framing, R2T, SHORT_LEN};
use nvmeof_wire::zerocopy::{Immutable, IntoBytes};

use super::digest::{Crc32c, crc32c};
use super::send_method::{self, SendMethod, SendMethodSelector};
use super::sys::{self, IoSlices};
use super::tx_tracker::TxTracker;
use crate::pace::Pace;
use crate::queue::{Event, Nanos, Progress};

/// Minimum bytes of sent headers for which the buffer is compacted.
const COMPACT: usize = 16 << 10;

/// One PDU.
#[derive(Debug)]
struct Pdu {
    /// Bytes in `PduWriter::headers` before the data, and after it.
    before: usize,
    after: usize,
    data: Option<Data>,
    /// True if the PDU completes a command.
    is_response: bool,
}

#[derive(Debug)]
struct Data {
    token: u64,
    payload: Payload,
    len: usize,
}

impl Pdu {
    fn data_len(&self) -> usize {
        self.data.as_ref().map_or(0, |data| data.len)
    }

    fn len(&self) -> usize {
        self.before + self.data_len() + self.after
    }
}

/// The sending half of a connection.
#[derive(Debug, Default)]
pub(super) struct PduWriter {
    framing: Framing,
    /// Headers, padding and digests of `pdus`, in stream order, from `first` on.
    headers: Vec<u8>,
    first: usize,
    pdus: VecDeque<Pdu>,
    /// Bytes of the first PDU that are sent, and unsent bytes of all PDUs.
    sent: usize,
    queued: usize,
    /// Responses that the socket has taken and that [`taken`](Self::taken) has not reported.
    taken: u16,
    /// Time since which the socket takes nothing.
    stalled: Option<Nanos>,
    /// Deadline for the queued data.
    pace: Pace,
    chooser: SendMethodSelector,
    tx_tracker: TxTracker,
}

/// Result of one send.
enum Sent {
    /// The socket took all bytes.
    All(usize),
    /// The socket is full.
    Part(usize),
}

impl PduWriter {
    /// Creates the sender for a host that has to take its data within about `timeout`.
    pub(super) fn new(timeout: Nanos) -> Self {
        Self { pace: Pace::new(timeout), ..Self::default() }
    }

    /// Returns the deadline for a host that takes too little of its data.
    pub(super) fn due(&self) -> Option<Nanos> {
        self.pace.due()
    }

    /// Adds the time for which the target was stalled.
    pub(super) fn extend_deadlines(&mut self, nanos: Nanos) {
        self.pace.extend_deadlines(nanos);
        self.tx_tracker.extend_deadlines(nanos);
        self.stalled = self.stalled.map(|since| since.saturating_add(nanos));
    }

    /// Applies the result of the handshake.
    pub(super) fn settle(&mut self, framing: Framing) {
        self.framing = framing;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pdus.is_empty() && self.tx_tracker.is_empty()
    }

    /// Returns the time since which the socket takes no queued data, or the host takes none of the
    /// socket's data.
    pub(super) fn stalled(&self) -> Option<Nanos> {
        self.stalled.into_iter().chain(self.tx_tracker.stalled()).min()
    }

    /// Returns the number of responses that the socket has taken since the last call.
    pub(super) fn taken(&mut self) -> u16 {
        std::mem::take(&mut self.taken)
    }

    pub(super) fn set_tx_tracked(&mut self, is_tracked: bool) {
        self.tx_tracker.is_on = is_tracked;
    }

    pub(super) fn tx_tracker(&self) -> &TxTracker {
        &self.tx_tracker
    }

    /// Appends events for the data that has left.
    pub(super) fn poll_tx_done(
        &mut self,
        socket: BorrowedFd<'_>,
        now: Nanos,
        events: &mut Vec<Event>,
    ) {
        if !self.tx_tracker.is_empty() {
            if self.tx_tracker.worth_a_look() {
                self.tx_tracker.look(sys::unsent(socket), now, events);
            } else {
                self.tx_tracker.all_gone(events);
            }
        }
        let (moved, owed) = self.progress();
        self.pace.look(moved, owed, now);
    }

    /// Returns the bytes that have left since the connection's start, and that number plus the
    /// bytes still to leave.
    pub(super) fn progress(&self) -> (u64, u64) {
        let taken = self.tx_tracker.taken;
        let moved = if self.tx_tracker.is_empty() { taken } else { self.tx_tracker.left() };
        (moved, taken + self.queued as u64)
    }

    #[inline]
    fn push(&mut self, before: usize, after: usize, data: Option<Data>, is_response: bool) {
        let pdu = Pdu { before, after, data, is_response };
        self.queued += pdu.len();
        self.pdus.push_back(pdu);
    }

    /// Queues a PDU that never has a digest (ICResp, C2HTermReq).
    pub(super) fn raw(&mut self, pdu: &[u8]) {
        self.headers.extend_from_slice(pdu);
        self.push(pdu.len(), 0, None, false);
    }

    /// Queues an R2T for the whole data of a command.
    pub(super) fn r2t(&mut self, cid: u16, ttag: u16, len: u32) {
        let before = self.header(&R2T::new(self.framing, cid, ttag, 0, len));
        self.push(before, 0, None, false);
    }

    /// Queues a response without data.
    pub(super) fn response(&mut self, cqe: Cqe) {
        let before = self.header(&CapsuleResp::new(self.framing, cqe));
        self.push(before, 0, None, true);
    }

    /// Queues a response and its data, of `len` bytes.
    pub(super) fn data_and_response(
        &mut self,
        token: u64,
        cqe: Cqe,
        payload: Payload,
        len: u32,
        elidable: bool,
    ) {
        let data = Data { token, payload, len: len as usize };
        if len == 0 {
            let before = self.header(&CapsuleResp::new(self.framing, cqe));
            self.push(before, 0, Some(data), true);
            return;
        }
        let header = C2HData::new(self.framing, cqe.cid.get(), 0, len, true, elidable);
        let head_len = self.header(&header);
        let before = usize::from(self.framing.data_offset(SHORT_LEN));
        self.headers.resize(self.headers.len() + (before - head_len), 0);
        let mut after = 0;
        if self.framing.ddgst {
            let mut digest = Crc32c::new();
            data.payload.for_each_slice(|bytes| digest.update(bytes));
            self.headers.extend_from_slice(&digest.value().to_le_bytes());
            after = usize::from(self.framing.ddgst_len());
        }
        self.push(before, after, Some(data), elidable);
        if !elidable {
            self.response(cqe);
        }
    }

    /// Writes a header and its digest; returns the bytes written.
    fn header<T: IntoBytes + Immutable>(&mut self, header: &T) -> usize {
        let bytes = header.as_bytes();
        self.headers.extend_from_slice(bytes);
        if !self.framing.hdgst {
            return bytes.len();
        }
        self.headers.extend_from_slice(&crc32c(bytes).to_le_bytes());
        bytes.len() + usize::from(nvmeof_wire::tcp::DIGEST_LEN)
    }

    /// Sends queued PDUs until all are sent, the socket is full, or the turn has no more room.
    pub(super) fn flush(
        &mut self,
        socket: BorrowedFd<'_>,
        room: &mut usize,
        now: Nanos,
        events: &mut Vec<Event>,
    ) -> io::Result<Progress> {
        let large = self
            .pdus
            .iter()
            .any(|pdu| pdu.data.as_ref().is_some_and(|data| self.may_go_by_file(data)));
        let began = large.then(sys::clock);
        let mut bytes = 0;
        let mut progress = Progress::Idle;
        while !self.pdus.is_empty() {
            let left = room.saturating_sub(bytes);
            if left == 0 {
                progress = Progress::More;
                break;
            }
            match self.send_some(left, socket) {
                Ok(Sent::All(len)) => {
                    self.stalled = None;
                    bytes += len;
                    self.advance(len);
                }
                Ok(Sent::Part(len)) => {
                    self.stalled = Some(now);
                    bytes += len;
                    self.advance(len);
                    break;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.stalled.get_or_insert(now);
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        *room = room.saturating_sub(bytes);
        if let Some(began) = began {
            self.chooser.record(bytes, sys::clock().saturating_sub(began));
        }
        self.poll_tx_done(socket, now, events);
        Ok(progress)
    }

    /// Makes one system call, with at most the bytes that [`Self::gather`] collects for `enough`.
    fn send_some(&self, enough: usize, socket: BorrowedFd<'_>) -> io::Result<Sent> {
        let mut gather = IoSlices::new();
        let more = self.gather(enough, &mut gather);
        if gather.bytes() == 0 {
            return self.send_front_file(socket);
        }
        let tried = gather.bytes();
        let len = gather.send(socket, more)?;
        Ok(if len == tried { Sent::All(len) } else { Sent::Part(len) })
    }

    /// Gathers queued data, up to data that leaves from its file.
    ///
    /// It adds no PDU that begins after `enough` bytes. Returns `true` if data from a file is next;
    /// that data is first in the queue if nothing was gathered.
    fn gather<'a>(&'a self, enough: usize, gather: &mut IoSlices<'a>) -> bool {
        let mut skip = self.sent;
        // Headers passed but not yet added: `run..at` in `headers`.
        let mut run = self.first;
        let mut at = self.first;
        for pdu in &self.pdus {
            if gather.bytes() >= enough {
                break;
            }
            let skipped = skip.min(pdu.before);
            if skipped > 0 {
                run = at + skipped;
            }
            skip -= skipped;
            at += pdu.before;
            if let Some(data) = &pdu.data
                && skip < data.len
            {
                if !gather.add_slice(&self.headers[run..at]) {
                    return false;
                }
                run = at;
                if self.file_of(data).is_some() {
                    return true;
                }
                if !gather.add_payload(&data.payload, skip) {
                    return false;
                }
                skip = 0;
            } else {
                skip -= pdu.data_len();
                if skip > 0 {
                    run = at + skip;
                    skip = 0;
                }
            }
            at += pdu.after;
        }
        gather.add_slice(&self.headers[run..at]);
        false
    }

    /// Returns true for large zero-copy data without a digest: it can change during the send
    /// without damage.
    fn may_go_by_file(&self, data: &Data) -> bool {
        data.len >= send_method::LARGE
            && !self.framing.ddgst
            && matches!(data.payload, Payload::ZeroCopy(_))
    }

    /// Returns the file to send data from instead of copying it.
    fn file_of<'a>(&self, data: &'a Data) -> Option<(BorrowedFd<'a>, u64)> {
        match &data.payload {
            Payload::ZeroCopy(run)
                if self.chooser.way() == SendMethod::File && self.may_go_by_file(data) =>
            {
                run.file()
            }
            _ => None,
        }
    }

    /// Sends the data of the first PDU, whose header is already sent, from its file.
    fn send_front_file(&self, socket: BorrowedFd<'_>) -> io::Result<Sent> {
        let Some(Pdu { before, data: Some(data), .. }) = self.pdus.front() else {
            return Ok(Sent::All(0));
        };
        let Some((file, offset)) = self.file_of(data) else {
            return Ok(Sent::All(0));
        };
        let skip = self.sent - before;
        let left = data.len - skip;
        let len = sys::send_file(socket, file, offset + skip as u64, left)?;
        if len == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "lent file ended early"));
        }
        // The next attempt shows whether a full socket made this send short.
        Ok(Sent::All(len))
    }

    /// Records that the socket has taken `len` more bytes; releases data that it has taken whole.
    fn advance(&mut self, len: usize) {
        self.sent += len;
        self.queued = self.queued.saturating_sub(len);
        self.tx_tracker.taken += len as u64;
        while let Some(pdu) = self.pdus.front() {
            let whole = pdu.len();
            if self.sent < whole {
                break;
            }
            self.sent -= whole;
            self.first += pdu.before + pdu.after;
            self.taken += u16::from(pdu.is_response);
            if let Some(Pdu { data: Some(data), .. }) = self.pdus.pop_front() {
                self.tx_tracker.taken_whole(data.token, self.sent as u64);
            }
        }
        if self.pdus.is_empty() {
            self.headers.clear();
            self.first = 0;
        } else if self.first > COMPACT {
            self.headers.drain(..self.first);
            self.first = 0;
        }
    }

    /// Returns all data except that of a PDU of which the host has a part, and drops the other
    /// PDUs.
    ///
    /// The next queued PDU then follows a PDU boundary.
    pub(super) fn cut(&mut self, events: &mut Vec<Event>) {
        self.tx_tracker.give_up(events);
        let keep = usize::from(self.sent > 0);
        let kept: usize = self.pdus.iter().take(keep).map(|pdu| pdu.before + pdu.after).sum();
        self.headers.truncate(self.first + kept);
        give_back(self.pdus.drain(keep..), events);
        self.queued = self.pdus.iter().map(Pdu::len).sum::<usize>().saturating_sub(self.sent);
    }

    /// Returns everything.
    pub(super) fn drain(&mut self, events: &mut Vec<Event>) {
        self.tx_tracker.give_up(events);
        give_back(self.pdus.drain(..), events);
        self.pace = Pace::default();
        self.headers.clear();
        (self.first, self.sent, self.queued, self.stalled) = (0, 0, 0, None);
    }
}

fn give_back(pdus: impl Iterator<Item = Pdu>, events: &mut Vec<Event>) {
    events.extend(
        pdus.filter_map(|pdu| pdu.data)
            .map(|data| Event::Sent { token: data.token, data: Some(data.payload) }),
    );
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use nvmeof_core::dma::{ChunkPool, CorePool, PoolConfig};

    use super::*;

    /// Creates a turn's output: data with and without response, odd lengths, all digests and
    /// padding.
    fn output(pool: &CorePool, responses: u16) -> PduWriter {
        let mut outbound = PduWriter::default();
        outbound.settle(Framing::new(true, true, 4));
        for cid in 0..responses {
            let cqe = Cqe::success(cid, 0);
            let len = u32::from(cid % 5) * 7;
            let mut buf = pool.lease(len as usize + 1).unwrap();
            buf.truncate(len as usize);
            buf.as_mut_slice().fill(cid.to_le_bytes()[0]);
            match cid % 3 {
                0 => outbound.response(cqe),
                odd => {
                    outbound.data_and_response(cid.into(), cqe, buf.into(), len, odd == 1);
                }
            }
        }
        outbound
    }

    /// Returns the bytes that leave after `sent` bytes have, and the number of returned payloads.
    fn rest(mut outbound: PduWriter, sent: usize) -> (Vec<u8>, usize) {
        let (socket, mut host) = UnixStream::pair().unwrap();
        host.set_nonblocking(true).unwrap();
        let mut events = Vec::new();
        outbound.advance(sent);
        let mut bytes = Vec::new();
        while !outbound.is_empty() {
            outbound.flush(socket.as_fd(), &mut { usize::MAX }, 0, &mut events).unwrap();
            let error = host.read_to_end(&mut bytes).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        }
        (bytes, events.len())
    }

    #[test]
    fn a_send_may_end_at_any_byte() {
        let config = PoolConfig { huge_pages: false, ..PoolConfig::default() };
        let pool = CorePool::new(&ChunkPool::new(config).unwrap());
        let (whole, payloads) = rest(output(&pool, 12), 0);
        assert!(whole.len() > 500 && payloads == 8);
        for sent in 0..whole.len() {
            let (bytes, back) = rest(output(&pool, 12), sent);
            assert_eq!(bytes, whole[sent..], "after {sent}");
            assert_eq!(back, payloads);
        }
        // Enough headers that the buffer is compacted.
        let (whole, _) = rest(output(&pool, 1200), 0);
        for sent in (0..whole.len()).step_by(997) {
            assert!(rest(output(&pool, 1200), sent).0 == whole[sent..], "after {sent}");
        }
        assert_eq!(pool.leased(), 0);
    }

    #[test]
    fn a_turn_sends_so_much_and_the_next_goes_on() {
        const LEN: usize = 10_000;
        let config = PoolConfig { huge_pages: false, ..PoolConfig::default() };
        let pool = CorePool::new(&ChunkPool::new(config).unwrap());
        let mut outbound = PduWriter::default();
        // A started PDU is sent to its end, including the digest.
        outbound.settle(Framing::new(false, true, 0));
        for cid in 0..12 {
            let mut buf = pool.lease(LEN).unwrap();
            buf.as_mut_slice().fill(1);
            outbound.data_and_response(cid.into(), Cqe::success(cid, 0), buf.into(), 10_000, true);
        }
        let (socket, mut host) = UnixStream::pair().unwrap();
        let mut events = Vec::new();
        let mut turn = |outbound: &mut PduWriter| {
            let progress = outbound.flush(socket.as_fd(), &mut { 45_000 }, 0, &mut events).unwrap();
            let left = events.len();
            // The socket was never full: it has room for more than this.
            assert_eq!(outbound.stalled(), None);
            (progress, left)
        };
        assert_eq!(turn(&mut outbound), (Progress::More, 5));
        assert_eq!(turn(&mut outbound), (Progress::More, 10));
        assert_eq!(turn(&mut outbound), (Progress::Idle, 12));
        let mut bytes = vec![0; 12 * (LEN + usize::from(SHORT_LEN) + 4)];
        host.read_exact(&mut bytes).unwrap();
        assert_eq!(bytes.iter().filter(|byte| **byte == 1).count() / LEN, 12);
    }
}
