//! Work that waits for room in the send queue, and the chain of a turn.
//!
//! READs wait in their own queue. At most the negotiated number is posted concurrently, since one
//! more would block every response behind it. Responses keep their order, each after its WRITEs.
//! Work that does not fit stays in its queue, a transfer at the part where it was cut.

use std::collections::VecDeque;
use std::io;

use nvmeof_core::dma::{Buffer, CorePool, LeaseError, Payload};
use nvmeof_core::slot_table::SlotTable;
use nvmeof_verbs::{Device, Endpoint, SendOp, SendWr, Sge, SgeList, WcStatus, WrId};
use nvmeof_wire::Cqe;
use nvmeof_wire::cqe::CQE_SIZE;
use nvmeof_wire::zerocopy::IntoBytes;

use super::ring::{Posted, SendQueueSlots};
use super::transfers::{HostTransfer, OutboundData, Pull};
use crate::queue::{Event, FabricError};
use crate::rdma::qp::{Draining, Qp, Sends};
use crate::rdma::registration::{Registration, Span};
use crate::rdma::slab::Slab;

/// Limits of a queue's sends.
#[derive(Debug, Clone, Copy)]
pub(super) struct SendLimits {
    /// Slots of the send queue.
    pub(super) places: u32,
    /// Maximum concurrent READs.
    pub(super) reads: u8,
    /// Maximum bytes of a work request.
    pub(super) message: u32,
    /// Maximum outstanding commands of the host.
    pub(super) depth: u16,
}

/// A waiting response.
#[derive(Debug)]
struct Response {
    cqe: Cqe,
    invalidate: Option<u32>,
    /// Its data, by the index in the table, until all of it has been posted.
    data: Option<u32>,
}

/// The sending half of a queue.
#[derive(Debug)]
pub(super) struct SendQueue {
    ring: SendQueueSlots,
    /// Responses, in slots by position in the ring.
    slots: Slab,
    chain: Vec<SendWr>,
    pulls: SlotTable<Pull>,
    leaving: SlotTable<OutboundData>,
    /// Pulls with parts to post, in order.
    reads: VecDeque<u32>,
    responses: VecDeque<Response>,
    /// Empty payloads, which need no completion.
    hollow: Vec<(u64, Payload)>,
    reading: u32,
    most_reads: u32,
    message: u32,
    is_inline: bool,
    /// Bytes of data to move since the start, and bytes moved.
    owed: u64,
    moved: u64,
}

impl SendQueue {
    pub(super) fn new<D: Device>(
        pool: &CorePool,
        registration: &Registration<D>,
        bounds: &SendLimits,
        generation: u32,
    ) -> Result<Self, LeaseError> {
        let ring = SendQueueSlots::new(bounds.places, generation);
        let places = ring.capacity() + 1;
        let depth = usize::from(bounds.depth);
        Ok(Self {
            ring,
            slots: Slab::new(pool, registration, places, CQE_SIZE)?,
            chain: Vec::with_capacity(places),
            pulls: SlotTable::with_capacity(depth),
            leaving: SlotTable::with_capacity(depth),
            reads: VecDeque::with_capacity(depth),
            responses: VecDeque::with_capacity(depth),
            hollow: Vec::new(),
            reading: 0,
            most_reads: u32::from(bounds.reads.max(1)),
            message: bounds.message.max(1),
            is_inline: false,
            owed: 0,
            moved: 0,
        })
    }

    /// Sets the maximum bytes that can be sent inline.
    pub(super) fn set_inline(&mut self, most: u32) {
        self.is_inline = most as usize >= CQE_SIZE;
    }

    /// Reserves room for the operations of `depth` commands.
    pub(super) fn set_depth(&mut self, depth: usize) {
        self.pulls.reserve(depth);
        self.leaving.reserve(depth);
        self.reads.reserve(depth.saturating_sub(self.reads.len()));
        self.responses.reserve(depth.saturating_sub(self.responses.len()));
    }

    /// Returns the number of pulls in flight.
    pub(super) fn pulling(&self) -> usize {
        self.pulls.len()
    }

    /// Returns true if work waits to be posted.
    pub(super) fn is_waiting(&self) -> bool {
        !self.reads.is_empty() || !self.responses.is_empty() || !self.hollow.is_empty()
    }

    /// Returns the number of responses that wait for room in the send queue.
    pub(super) fn unsent(&self) -> usize {
        self.responses.len()
    }

    /// Returns true if the send queue is empty.
    pub(super) fn is_quiet(&self) -> bool {
        self.ring.is_empty()
    }

    /// Returns true if a completion is expected.
    pub(super) fn awaits(&self) -> bool {
        self.reading > 0 || !self.leaving.is_empty()
    }

    /// Returns the bytes of data moved since the start, and the bytes to move.
    pub(super) fn progress(&self) -> (u64, u64) {
        (self.moved, self.owed)
    }

    /// Queues a pull of `buf`, which is not empty and has the length of `transfer`.
    pub(super) fn pull(&mut self, token: u64, buf: Buffer, lkey: u32, transfer: HostTransfer) {
        self.owed += u64::from(transfer.length());
        let pull = Pull { token, buf, lkey, transfer, reading: 0, is_cut: false, failed: false };
        let at = self.pulls.insert(pull);
        self.reads.push_back(at);
    }

    /// Queues a response without data.
    pub(super) fn respond(&mut self, cqe: Cqe, invalidate: Option<u32>) {
        self.responses.push_back(Response { cqe, invalidate, data: None });
    }

    /// Queues a response with data, which has a span and a transfer of its length unless it is
    /// empty.
    pub(super) fn respond_with(
        &mut self,
        cqe: Cqe,
        invalidate: Option<u32>,
        (token, payload): (u64, Payload),
        way: Option<(Span, HostTransfer)>,
    ) {
        let Some((span, transfer)) = way else {
            debug_assert!(payload.is_empty(), "data without a place on the host");
            self.hollow.push((token, payload));
            return self.respond(cqe, invalidate);
        };
        self.owed += u64::from(transfer.length());
        let leaving = OutboundData { token, payload, span, transfer };
        let data = Some(self.leaving.insert(leaving));
        self.responses.push_back(Response { cqe, invalidate, data });
    }

    /// Posts waiting work, up to the room in the send queue, with one doorbell.
    ///
    /// # Errors
    /// Fails if the device did not accept all of it. Rejected work is dropped, and its operations
    /// return with all others at the queue's end.
    pub(super) fn post<E: Endpoint>(
        &mut self,
        mut sends: Sends<'_, E>,
        events: &mut Vec<Event>,
    ) -> io::Result<()> {
        let hollow = self.hollow.drain(..);
        events.extend(hollow.map(|(token, data)| Event::Sent { token, data: Some(data) }));
        self.chain.clear();
        while self.ring.room() > 0 && (self.read() || self.write_or_send()) {}
        if self.chain.is_empty() {
            return Ok(());
        }
        sends.post(&self.chain).map_err(|refused| {
            for _ in refused.taken..self.chain.len() {
                if let Some(Posted::Read { pull }) = self.ring.pop() {
                    self.reading -= 1;
                    if let Some(pull) = self.pulls.get_mut(pull) {
                        pull.reading -= 1;
                        pull.failed = true;
                    }
                }
            }
            refused.source
        })
    }

    /// Adds the next READ to the chain; false if there is none, or the maximum is in flight.
    fn read(&mut self) -> bool {
        if self.reading >= self.most_reads {
            return false;
        }
        let Some(&at) = self.reads.front() else { return false };
        let Some(pull) = self.pulls.get_mut(at) else {
            debug_assert!(false, "a pull in line that is not there");
            self.reads.pop_front();
            return !self.reads.is_empty();
        };
        let Some(part) = pull.transfer.next(self.message) else {
            debug_assert!(false, "a pull without parts");
            pull.failed = true;
            self.reads.pop_front();
            return !self.reads.is_empty();
        };
        let base = pull.buf.as_mut_ptr().expose_provenance() as u64;
        let address = base + u64::from(part.offset);
        let piece = Sge { address, length: part.length, lkey: pull.lkey };
        pull.reading += 1;
        pull.is_cut = part.is_last;
        self.reading += 1;
        if part.is_last {
            self.reads.pop_front();
        }
        let (id, signaled) = self.ring.push(Posted::Read { pull: at }, true);
        let operation = SendOp::Read { address: part.address, key: part.key };
        self.chain.push(work(id, operation, piece, signaled));
        true
    }

    /// Adds the next WRITE of the oldest response to the chain, or its SEND.
    fn write_or_send(&mut self) -> bool {
        let Some(response) = self.responses.front_mut() else { return false };
        let leaving = response.data.and_then(|at| Some((at, self.leaving.get_mut(at)?)));
        if let Some((at, leaving)) = leaving
            && let Some((part, piece)) = leaving.next(self.message)
        {
            let payload = part.is_last.then_some(at);
            if part.is_last {
                response.data = None;
            }
            // The last WRITE reports that the data has left.
            let (id, signaled) = self.ring.push(Posted::Write { payload }, part.is_last);
            let operation = SendOp::Write { address: part.address, key: part.key };
            self.chain.push(work(id, operation, piece, signaled));
            return true;
        }
        let slot = self.ring.next_slot();
        self.slots.write(slot, response.cqe.as_bytes());
        let operation = match response.invalidate {
            Some(key) => SendOp::SendInvalidate { key },
            None => SendOp::Send,
        };
        let (id, signaled) = self.ring.push(Posted::Send, false);
        let mut send = work(id, operation, self.slots.piece(slot), signaled);
        send.inline = self.is_inline;
        self.chain.push(send);
        self.responses.pop_front();
        true
    }

    /// Handles a completion; false if it belongs to nothing of this queue.
    pub(super) fn complete(&mut self, id: WrId, status: WcStatus, events: &mut Vec<Event>) -> bool {
        let Self { ring, pulls, leaving, reading, moved, .. } = self;
        let is_good = status == WcStatus::Success;
        ring.complete(id, |what, is_it| match what {
            Posted::Read { pull: at } => {
                *reading -= 1;
                let Some(pull) = pulls.get_mut(at) else {
                    debug_assert!(false, "a READ of a pull that has returned");
                    return;
                };
                pull.reading -= 1;
                // Work before a successful completion succeeded. Before a failed one, its result is
                // unknown.
                pull.failed |= !is_good;
                if pull.is_cut
                    && pull.reading == 0
                    && !pull.failed
                    && let Some(Pull { token, buf, .. }) = pulls.remove(at)
                {
                    *moved += buf.len() as u64;
                    events.push(Event::HostDataArrived { token, buf, result: Ok(()) });
                }
            }
            Posted::Write { payload: Some(at) } => {
                if let Some(OutboundData { token, payload, transfer, .. }) = leaving.remove(at) {
                    *moved += u64::from(transfer.length());
                    events.push(Event::Sent { token, data: Some(payload) });
                }
            }
            Posted::Write { payload: None } | Posted::Send => {}
            Posted::Marker => debug_assert!(is_it, "something was posted behind the marker"),
        })
    }

    /// Makes sure that all posted work returns, now that the queue pair is in its error state.
    ///
    /// Returns false if it does not: then only the destruction of the queue pair shows the end.
    /// With `always`, a completion follows even if nothing is posted.
    pub(super) fn mark_end<E: Endpoint>(
        &mut self,
        pair: &mut Qp<Draining, E>,
        always: bool,
    ) -> bool {
        if !always && (!self.ring.ends_silent() || self.ring.is_empty()) {
            return true;
        }
        let (id, _) = self.ring.push(Posted::Marker, true);
        // Zero bytes, to no address: it is flushed, not executed.
        let operation = SendOp::Write { address: 0, key: 0 };
        let mut marker = work(id, operation, Sge::default(), true);
        marker.pieces = SgeList::EMPTY;
        if pair.post_marker(&marker).is_err() {
            self.ring.pop();
            return false;
        }
        true
    }

    /// Returns the number of operations that have not been returned.
    pub(super) fn operations(&self) -> usize {
        self.pulls.len() + self.leaving.len() + self.hollow.len()
    }

    /// Returns the number of work requests that have ended since the start.
    pub(super) fn ended(&self) -> u64 {
        self.ring.ended()
    }

    /// Returns true if the work posted last is unsignaled.
    pub(super) fn is_silent(&self) -> bool {
        self.ring.ends_silent() && !self.ring.is_empty()
    }

    /// Posts work that reports when all work before it has ended, if there is room.
    ///
    /// It is a write of no bytes, which needs no memory of the host (InfiniBand specification,
    /// C9-88).
    pub(super) fn probe<E: Endpoint>(&mut self, mut sends: Sends<'_, E>) -> io::Result<()> {
        if self.ring.room() == 0 {
            return Ok(());
        }
        let (id, signaled) = self.ring.push(Posted::Write { payload: None }, true);
        let operation = SendOp::Write { address: 0, key: 0 };
        let mut probe = work(id, operation, Sge::default(), signaled);
        probe.pieces = SgeList::EMPTY;
        sends.post(&[probe]).map_err(|refused| {
            self.ring.pop();
            refused.source
        })
    }

    /// Removes the memory of responses permanently.
    pub(super) fn take_slots(&mut self) -> Vec<(Buffer, u32)> {
        self.slots.take_pages()
    }

    /// Returns every operation. The device no longer uses their memory.
    pub(super) fn give_back(&mut self, events: &mut Vec<Event>) {
        events.extend(self.pulls.drain().map(|Pull { token, buf, failed, .. }| {
            let error = if failed { FabricError::Transfer } else { FabricError::Closed };
            Event::HostDataArrived { token, buf, result: Err(error) }
        }));
        let leaving = self.leaving.drain().map(|leaving| (leaving.token, leaving.payload));
        let hollow = self.hollow.drain(..);
        let sent = leaving.chain(hollow);
        events.extend(sent.map(|(token, data)| Event::Sent { token, data: Some(data) }));
        self.reads.clear();
        self.responses.clear();
        self.reading = 0;
    }
}

fn work(id: WrId, operation: SendOp, piece: Sge, signaled: bool) -> SendWr {
    SendWr { id, operation, pieces: SgeList::one(piece), signaled, inline: false, fence: false }
}
