//! The only `unsafe` of this fabric: memory that a device reads and writes while we go on.
//!
//! Two invariants, on which every block here rests:
//!
//! * **Owned until done.** Memory named in a work request is owned by the [`RdmaQueue`](super::queue) that
//!   posts it (or by the shared receives of its source), under the entry that its completion looks up, and
//!   leaves only when that completion has come or the queue pair is gone: when the usher said so, or
//!   `Endpoint::destroy` did. Where neither does, it is kept for good (`RdmaQueue::take_memory`).
//! * **Registered while leased.** All of it is leased from the pool, and the pool tells the
//!   [`Registration`](super::Registration) of a chunk before it leases from it and after nothing of it is
//!   leased. So each key is that of a live region with local write access. What is lent, which is only sent from,
//!   is in a region that the registration keeps as long as it lives, and each queue keeps the registration.

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use nvmeof_core::dma::{Buffer, LentRegion};
use nvmeof_verbs::{
    Access, Device, Endpoint, Piece, Refused, SharedReceives, VerbsError, Work, WorkId,
};
use nvmeof_wire::Sqe;
use nvmeof_wire::sqe::SQE_SIZE;

use super::pair::{Draining, Pair, Receiving, Sends};

/// Registers a chunk of the pool, to be read and written by work requests of ours only.
pub(super) fn register_chunk<D: Device>(
    device: &Arc<D>,
    base: NonNull<u8>,
    len: usize,
) -> Result<D::Region, VerbsError> {
    let access = Access { local_write: true, ..Access::default() };
    // SAFETY: `Registrar::mapped` promises that the chunk stays mapped until `Registrar::unmapping` returns,
    // and `Registration` drops the region there.
    unsafe { device.register(base.as_ptr(), len, access) }
}

/// Registers what is lent, to be read by work requests of ours only.
pub(super) fn register_lent<D: Device>(
    device: &Arc<D>,
    lent: &Arc<LentRegion>,
) -> Result<D::Region, VerbsError> {
    let (base, len) = lent.window();
    // SAFETY: the window stays mapped as long as `lent` is held, which `Lending` does until it has dropped the
    // region. Without any access nothing writes to it through the region, and nobody else does.
    unsafe { device.register(base.as_ptr(), len, Access::default()) }
}

/// What receives can be posted to.
pub(super) trait PostReceive {
    /// Posts a receive into memory that the caller keeps as the first invariant says.
    fn post_receive(&mut self, id: WorkId, pieces: &[Piece]) -> io::Result<()>;
}

impl<S: Receiving, E: Endpoint> PostReceive for Pair<S, E> {
    fn post_receive(&mut self, id: WorkId, pieces: &[Piece]) -> io::Result<()> {
        // SAFETY: the pieces are a slot and a buffer of a `Receives`, which marks them as posted and touches
        // neither until the completion of this use of the slot; it outlives the endpoint.
        unsafe { self.endpoint.post_receive(id, pieces) }
    }
}

/// A shared receive queue; a type of its own, to post safely to.
#[derive(Debug)]
pub(super) struct SharedQueue<Q>(pub(super) Q);

impl<Q: SharedReceives> PostReceive for SharedQueue<Q> {
    fn post_receive(&mut self, id: WorkId, pieces: &[Piece]) -> io::Result<()> {
        // SAFETY: as above; the `Receives` of shared receives is dropped after the shared queue, which is
        // dropped after every endpoint that uses it.
        unsafe { self.0.post_receive(id, pieces) }
    }
}

impl<E: Endpoint> Sends<'_, E> {
    /// Posts a chain; the memory it names is in the caller's keeping as the first invariant says.
    pub(super) fn post(&mut self, chain: &[Work]) -> Result<(), Refused> {
        // SAFETY: `Outgoing` makes chains only of memory in its tables of pulls and payloads and of slots of
        // its own slab, each held until the ring's entry for it is retired by a completion; inline pieces are
        // of that slab, too, and live longer than this call.
        unsafe { self.endpoint.post_send(chain) }
    }
}

impl<E: Endpoint> Pair<Draining, E> {
    /// Posts work that names no memory: it comes back flushed, and with it all that was posted before.
    pub(super) fn post_marker(&mut self, marker: &Work) -> Result<(), Refused> {
        debug_assert!(marker.pieces.as_slice().is_empty(), "a marker names memory");
        if !marker.pieces.as_slice().is_empty() {
            return Ok(());
        }
        // SAFETY: there is no memory in it.
        unsafe { self.endpoint.post_send(std::slice::from_ref(marker)) }
    }
}

/// Copies a capsule's command out of a page of which a device may be writing other parts.
pub(super) fn read_command(page: &Buffer, offset: usize) -> Option<Sqe> {
    if offset.checked_add(SQE_SIZE)? > page.len() {
        return None;
    }
    let mut bytes = [0; SQE_SIZE];
    // SAFETY: `offset + 64` is within the buffer, as was just seen, which this process owns and has mapped.
    // The receive into these 64 bytes has completed, so that nobody writes to them; no reference to the rest
    // of the page is made.
    unsafe {
        std::ptr::copy_nonoverlapping(page.as_ptr().add(offset), bytes.as_mut_ptr(), SQE_SIZE);
    }
    Some(nvmeof_wire::zerocopy::transmute!(bytes))
}

/// Copies a response into a page of which a device may be reading other parts; false if it does not fit.
pub(super) fn write_slot(page: &mut Buffer, offset: usize, bytes: &[u8]) -> bool {
    if offset.checked_add(bytes.len()).is_none_or(|end| end > page.len()) {
        return false;
    }
    // SAFETY: the bytes are within the buffer, which is owned and was borrowed for writing; the send that last
    // used them was retired before its position in the ring was used again, so that nobody reads them.
    unsafe {
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), page.as_mut_ptr().add(offset), bytes.len());
    }
    true
}
