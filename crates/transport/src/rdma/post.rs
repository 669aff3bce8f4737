//! The only `unsafe` of this fabric: memory that a device reads and writes concurrently.
//!
//! Every block here relies on two invariants:
//!
//! * **Owned until done.** The [`RdmaQueue`](super::queue) that posts a work request owns its
//!   memory, or the shared receives of its source do. The memory is stored under the entry that its
//!   completion looks up. It leaves only after that completion, or after the queue pair is
//!   destroyed: the CM worker reports that, or `Endpoint::destroy` does. If neither does, the
//!   memory is kept permanently (`RdmaQueue::take_memory`).
//! * **Registered while leased.** All of it is leased from the pool. The pool notifies the
//!   [`Registration`](super::Registration) of a chunk before it leases from it, and after nothing
//!   of it is leased. Each key is therefore that of a live region with local write access.
//!   Zero-copy memory, which is only sent from, is in a region that the registration keeps for its
//!   lifetime. Each queue keeps the registration.

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use nvmeof_core::dma::{Buffer, ZeroCopyRegion};
use nvmeof_verbs::{
    AccessFlags, Device, Endpoint, PostError, SendWr, Sge, SharedReceiveQueue, VerbsError, WrId,
};
use nvmeof_wire::Sqe;
use nvmeof_wire::sqe::SQE_SIZE;

use super::qp::{Draining, Qp, Receiving, Sends};

/// Registers a chunk of the pool; only work requests of the target read and write it.
pub(super) fn register_chunk<D: Device>(
    device: &Arc<D>,
    base: NonNull<u8>,
    len: usize,
) -> Result<D::MemoryRegion, VerbsError> {
    let access = AccessFlags { local_write: true, ..AccessFlags::default() };
    // SAFETY: `MemoryRegistrar::mapped` promises that the chunk stays mapped until
    // `MemoryRegistrar::unmapping` returns, and `Registration` drops the region there.
    unsafe { device.register(base.as_ptr(), len, access) }
}

/// Registers zero-copy memory; only work requests of the target read it.
pub(super) fn register_zero_copy<D: Device>(
    device: &Arc<D>,
    memory: &Arc<ZeroCopyRegion>,
) -> Result<D::MemoryRegion, VerbsError> {
    let (base, len) = memory.window();
    // SAFETY: the window stays mapped while `memory` exists, and `ZeroCopyRegistration` keeps it
    // until it has dropped the region. Without any access, nothing writes to it through the region,
    // and no other code writes to it.
    unsafe { device.register(base.as_ptr(), len, AccessFlags::default()) }
}

/// A queue that accepts posted receives.
pub(super) trait PostReceive {
    /// Posts a receive into memory that the caller keeps under the first invariant.
    fn post_receive(&mut self, id: WrId, pieces: &[Sge]) -> io::Result<()>;
}

impl<S: Receiving, E: Endpoint> PostReceive for Qp<S, E> {
    fn post_receive(&mut self, id: WrId, pieces: &[Sge]) -> io::Result<()> {
        // SAFETY: the pieces are a slot and a buffer of a `ReceiveBuffers`. It marks them as
        // posted, touches neither until the completion of this use of the slot, and outlives the
        // endpoint.
        unsafe { self.endpoint.post_receive(id, pieces) }
    }
}

/// A shared receive queue; its own type, so that posting to it is safe.
#[derive(Debug)]
pub(super) struct SrqPoster<Q>(pub(super) Q);

impl<Q: SharedReceiveQueue> PostReceive for SrqPoster<Q> {
    fn post_receive(&mut self, id: WrId, pieces: &[Sge]) -> io::Result<()> {
        // SAFETY: as above; the `ReceiveBuffers` of shared receives is dropped after the shared
        // queue, which is dropped after every endpoint that uses it.
        unsafe { self.0.post_receive(id, pieces) }
    }
}

impl<E: Endpoint> Sends<'_, E> {
    /// Posts a chain; the caller keeps its memory under the first invariant.
    pub(super) fn post(&mut self, chain: &[SendWr]) -> Result<(), PostError> {
        // SAFETY: `SendQueue` makes chains only of memory in its tables of pulls and payloads, and
        // of slots in its own slab. It keeps each until a completion retires the ring's entry.
        // Inline pieces are also of that slab, and live longer than this call.
        unsafe { self.endpoint.post_send(chain) }
    }
}

impl<E: Endpoint> Qp<Draining, E> {
    /// Posts work without memory: it returns flushed, after all earlier work.
    pub(super) fn post_marker(&mut self, marker: &SendWr) -> Result<(), PostError> {
        assert!(marker.pieces.as_slice().is_empty(), "a marker names memory");
        // SAFETY: the promises are about the memory of the work, and it has none.
        unsafe { self.endpoint.post_send(std::slice::from_ref(marker)) }
    }
}

/// Copies a capsule's command out of a page whose other parts a device may be writing.
pub(super) fn read_command(page: &Buffer, offset: usize) -> Sqe {
    assert!(offset + SQE_SIZE <= page.len(), "a command outside of its page");
    let mut bytes = [0; SQE_SIZE];
    // SAFETY: the assertion keeps the copy within the buffer, which this process owns and has
    // mapped. The receive into these 64 bytes has completed, so that nothing writes to them. A
    // slice of the page would be a reference to memory that the device still writes.
    unsafe {
        std::ptr::copy_nonoverlapping(page.as_ptr().add(offset), bytes.as_mut_ptr(), SQE_SIZE);
    }
    nvmeof_wire::zerocopy::transmute!(bytes)
}

/// Copies a response into a page whose other parts a device may be reading.
pub(super) fn write_slot(page: &mut Buffer, offset: usize, bytes: &[u8]) {
    assert!(offset + bytes.len() <= page.len(), "a response outside of its page");
    // SAFETY: the assertion keeps the copy within the buffer, which is owned and borrowed for
    // writing. The send that last used these bytes was retired before its position in the ring was
    // used again, so that nothing reads them. A mutable slice of the page would claim bytes that
    // the device still reads.
    unsafe {
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), page.as_mut_ptr().add(offset), bytes.len());
    }
}
