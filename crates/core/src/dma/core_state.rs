//! State that one reactor's pool, its buffers and its reservations share.

use std::cell::UnsafeCell;
use std::ptr::NonNull;
use std::sync::Arc;

use super::chunk_pool::{ChunkPool, NoChunk};
use super::error::LeaseError;
use super::part_counts::{PartCountId, PartCounts};
use super::registrar::ChunkId;
use super::slab::{ReservationId, SizeClass, SlabAllocator, SlotId};

/// State shared by a pool's handles, buffers and reservations.
pub(super) struct Core {
    shared: Arc<ChunkPool>,
    slots: UnsafeCell<SlabAllocator>,
    shares: UnsafeCell<PartCounts>,
}

impl Core {
    /// Creates the state of a core, which holds no chunk yet.
    pub(super) fn new(shared: &Arc<ChunkPool>) -> Self {
        shared.register_core();
        let slots = UnsafeCell::new(SlabAllocator::new());
        let shares = UnsafeCell::new(PartCounts::default());
        Self { shared: Arc::clone(shared), slots, shares }
    }

    /// Returns the pool shared by all cores.
    #[inline]
    pub(super) fn shared(&self) -> &Arc<ChunkPool> {
        &self.shared
    }

    /// Calls `f` with the bookkeeping. `f` is code of this file only, and calls nothing that could
    /// reenter it.
    #[inline]
    fn with<T>(&self, f: impl FnOnce(&mut SlabAllocator) -> T) -> T {
        // SAFETY: `Core` is neither `Send` nor `Sync` (it is always behind an `Rc` and holds an
        // `UnsafeCell`), so this is the only thread. Every caller is in this file and passes a
        // closure that calls one method of `SlabAllocator`, which calls no other code. So no other
        // reference to the bookkeeping exists during the call. A `RefCell` would check that at
        // every lease and return of the I/O path.
        f(unsafe { &mut *self.slots.get() })
    }

    /// Calls `f` with the counts of split buffers; see [`with`](Self::with).
    #[inline]
    fn with_shares<T>(&self, f: impl FnOnce(&mut PartCounts) -> T) -> T {
        // SAFETY: as in `with`: one thread, and closures that call one method of `PartCounts`,
        // which calls no other code.
        f(unsafe { &mut *self.shares.get() })
    }

    /// Creates a count for a buffer that is being split, which is a part of `parent` or whole (0).
    #[inline]
    pub(super) fn cut(&self, parent: PartCountId) -> PartCountId {
        self.with_shares(|shares| shares.open(parent))
    }

    /// Counts one part more.
    #[inline]
    pub(super) fn part_begun(&self, share: PartCountId) {
        self.with_shares(|shares| shares.add(share));
    }

    /// Counts one part less; returns true if none is left of the whole slot.
    #[inline]
    pub(super) fn part_ended(&self, share: PartCountId) -> bool {
        self.with_shares(|shares| shares.end(share))
    }

    /// Ends the count if no part is left, and returns true in that case.
    #[inline]
    pub(super) fn merge(&self, share: PartCountId) -> bool {
        self.with_shares(|shares| shares.close(share))
    }

    /// Returns the slot of a dropped buffer to the free slots.
    #[inline]
    pub(super) fn give_back(&self, id: SlotId, promise: ReservationId) {
        let emptied = self.with(|slots| slots.give_back(id, promise));
        if emptied && self.shared.is_starved() {
            self.release_empty(0);
        }
    }

    /// Returns the chunk of a leased slot.
    #[inline]
    pub(super) fn chunk_of(&self, id: SlotId) -> ChunkId {
        self.with(|slots| slots.chunk_of(id))
    }

    /// See [`SlabAllocator::lease`].
    #[inline]
    pub(super) fn lease(&self, class: SizeClass) -> Option<(SlotId, NonNull<u8>)> {
        self.with(|slots| slots.lease(class))
    }

    /// See [`SlabAllocator::lease_promised`].
    #[inline]
    pub(super) fn lease_promised(
        &self,
        promise: ReservationId,
    ) -> Option<(SlotId, NonNull<u8>, SizeClass)> {
        self.with(|slots| slots.lease_promised(promise))
    }

    /// See [`SlabAllocator::add_promise`].
    pub(super) fn add_promise(&self, class: SizeClass, count: usize) -> ReservationId {
        self.with(|slots| slots.add_promise(class, count))
    }

    /// See [`SlabAllocator::lacks`].
    pub(super) fn lacks(&self, class: SizeClass) -> bool {
        self.with(|slots| slots.lacks(class))
    }

    /// Returns the number of buffers leased now.
    pub(super) fn leased(&self) -> usize {
        self.with(|slots| slots.leased())
    }

    /// Returns the number of chunks this core holds.
    pub(super) fn chunks(&self) -> usize {
        self.with(|slots| slots.held(None))
    }

    /// Returns the number of chunks without a lease.
    #[inline]
    pub(super) fn empty_chunks(&self) -> usize {
        self.with(|slots| slots.empty())
    }

    /// See [`SlabAllocator::pass`].
    pub(super) fn pass(&self, from: ReservationId, to: ReservationId) -> bool {
        self.with(|slots| slots.pass(from, to))
    }

    /// See [`SlabAllocator::pass_free`].
    pub(super) fn pass_free(&self, from: ReservationId, to: ReservationId, most: usize) -> usize {
        self.with(|slots| slots.pass_free(from, to, most))
    }

    pub(super) fn promised(&self, promise: ReservationId) -> (usize, usize) {
        self.with(|slots| slots.promised(promise))
    }

    /// Ends a reservation when its last buffer has returned; chunks no longer reserved return to
    /// the shared pool.
    pub(super) fn close_promise(&self, promise: ReservationId) {
        self.with(|slots| slots.close_promise(promise));
        self.release_empty(0);
    }

    /// Makes free slots of a data class that has none: from a chunk of another class without a
    /// lease, or from a new chunk.
    #[cold]
    pub(super) fn refill(&self, class: SizeClass) -> Result<(), LeaseError> {
        if self.with(|slots| slots.change_class(class)) {
            return Ok(());
        }
        self.add_chunk(class)
    }

    pub(super) fn add_chunk(&self, class: SizeClass) -> Result<(), LeaseError> {
        let arena = class.arena();
        let first = self.with(|slots| slots.held(Some(arena))) == 0;
        let chunk = self.shared.take(arena, first).map_err(|why| match why {
            NoChunk::Exhausted => LeaseError::Exhausted,
            NoChunk::NoMemory => LeaseError::NoMemory,
        })?;
        self.with(|slots| slots.add(chunk, class));
        Ok(())
    }

    /// Returns chunks without a lease to the shared pool; reservations keep theirs.
    #[cold]
    pub(super) fn release_empty(&self, keep: usize) {
        for leaving in self.with(|slots| slots.take_empty(keep)) {
            self.shared.give(leaving.chunk, leaving.arena, leaving.last);
        }
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        // Every buffer and reservation holds the core, so none is left: all chunks are without a
        // lease.
        self.release_empty(0);
        debug_assert_eq!(self.chunks(), 0);
        self.shared.unregister_core();
    }
}
