//! One reactor's pool: size classes over chunks, leased and returned without locks or atomics.

use std::cell::UnsafeCell;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use thiserror::Error;

use super::buffer::Buffer;
use super::chunk::CHUNK;
use super::chunk_pool::{Arena, ChunkPool, NoChunk};
use super::part_counts::{PartCountId, PartCounts};
use super::registrar::ChunkId;
use super::reserve::BufferReservation;
use super::slab::{ReservationId, SizeClass, SlabAllocator, SlotId};

/// Chunks without a lease that a core keeps when it [trims](CorePool::trim), so that its working
/// set is available when it wakes.
const WARM: usize = 4;

/// Reason why a buffer is not available.
#[derive(Debug, Error, Clone, Copy, PartialEq, Eq)]
pub enum LeaseError {
    /// All memory the pool may use is leased: retry when a buffer was returned.
    #[error("all buffer memory is in use")]
    Exhausted,
    /// The length exceeds the maximum lease.
    #[error("{len} bytes are more than the largest buffer ({max} bytes)")]
    TooLarge {
        /// Requested bytes.
        len: usize,
        /// Bytes of the largest buffer.
        max: usize,
    },
    /// There is no room for a second buffer, and there may never be: two of that size need two
    /// chunks, and only one is guaranteed to a core.
    #[error("no memory for two buffers of {len} bytes at once")]
    NotTwo {
        /// Requested bytes of each.
        len: usize,
    },
    /// The kernel has no memory, although the cap is not reached.
    #[error("the system has no memory for another chunk of buffers")]
    NoMemory,
}

/// A reactor's pool of buffers; clones refer to the same pool. It stays on its thread.
#[derive(Clone)]
pub struct CorePool {
    core: Rc<Core>,
}

/// State shared by a pool's handles, buffers and reservations.
pub(super) struct Core {
    shared: Arc<ChunkPool>,
    slots: UnsafeCell<SlabAllocator>,
    shares: UnsafeCell<PartCounts>,
}

impl CorePool {
    /// Creates a pool for the calling thread. It holds no chunk yet, and one is guaranteed.
    pub fn new(shared: &Arc<ChunkPool>) -> Self {
        shared.register_core();
        let slots = UnsafeCell::new(SlabAllocator::new());
        let shares = UnsafeCell::new(PartCounts::default());
        Self { core: Rc::new(Core { shared: Arc::clone(shared), slots, shares }) }
    }

    /// Leases a buffer of `len` bytes. Its contents are unspecified.
    ///
    /// # Errors
    /// See [`LeaseError`]. A pool without leased buffers never returns `Exhausted`.
    #[inline]
    pub fn lease(&self, len: usize) -> Result<Buffer, LeaseError> {
        self.check(len)?;
        let class = SizeClass::of(len, Arena::Data);
        let (id, base) = match self.core.with(|slots| slots.lease(class)) {
            Some(leased) => leased,
            None => {
                self.core.refill(class)?;
                self.core.with(|slots| slots.lease(class)).ok_or(LeaseError::Exhausted)?
            }
        };
        Ok(Buffer::new(&self.core, base, len, class, id, 0))
    }

    /// Leases two buffers of `len` bytes, or none. A caller that kept one while it waits for
    /// another could deadlock with another one that does the same.
    ///
    /// # Errors
    /// See [`LeaseError`]; `NotTwo` if only one buffer of more than half a chunk is available. A
    /// pool without leased buffers never returns `Exhausted`.
    pub fn lease_two(&self, len: usize) -> Result<(Buffer, Buffer), LeaseError> {
        let first = self.lease(len)?;
        match self.lease(len) {
            Ok(second) => Ok((first, second)),
            Err(LeaseError::Exhausted) if len > CHUNK / 2 => Err(LeaseError::NotTwo { len }),
            Err(error) => Err(error),
        }
    }

    /// Reserves `count` buffers of `len` bytes that are always available: the in-capsule slots of a
    /// queue.
    ///
    /// The memory is reserved, not touched; reservations of one size share what is not in use.
    ///
    /// # Errors
    /// See [`LeaseError`]; `Exhausted` when the reserve part of the cap is already reserved.
    pub fn reserve(&self, count: usize, len: usize) -> Result<BufferReservation, LeaseError> {
        self.check(len)?;
        let class = SizeClass::of(len, Arena::BufferReservation);
        let promise = self.core.with(|slots| slots.add_promise(class, count));
        let reserve = BufferReservation::new(&self.core, promise, len);
        while self.core.with(|slots| slots.lacks(class)) {
            if self.core.add_chunk(class).is_err() {
                self.core.release_empty(0);
                self.core.add_chunk(class)?;
            }
        }
        Ok(reserve)
    }

    /// Returns the number of buffers leased now, including those of reservations.
    pub fn leased(&self) -> usize {
        self.core.with(|slots| slots.leased())
    }

    /// Returns the bytes of chunks this core holds.
    pub fn held(&self) -> usize {
        self.core.with(|slots| slots.held(None)) * CHUNK
    }

    /// Returns chunks without a lease to the shared pool, except a few. A reactor calls it before
    /// it sleeps.
    pub fn trim(&self) {
        if self.core.with(|slots| slots.empty()) > WARM {
            self.core.release_empty(WARM);
        }
        self.balance();
    }

    /// Returns every chunk without a lease to the shared pool.
    pub fn clear(&self) {
        self.core.release_empty(0);
    }

    /// Returns chunks without a lease if another core waits for one. Cheap enough for every turn.
    #[inline]
    pub fn balance(&self) {
        if self.core.shared.is_starved() && self.core.with(|slots| slots.empty()) > 0 {
            self.core.release_empty(0);
        }
    }

    /// Returns the pool shared by all cores.
    pub fn shared(&self) -> &Arc<ChunkPool> {
        &self.core.shared
    }

    #[inline]
    fn check(&self, len: usize) -> Result<(), LeaseError> {
        let max = self.core.shared.config().max_lease;
        if len > max { Err(LeaseError::TooLarge { len, max }) } else { Ok(()) }
    }
}

impl Core {
    /// Calls `f` with the bookkeeping. `f` is code of this module only, and calls nothing that
    /// could reenter it.
    #[inline]
    fn with<T>(&self, f: impl FnOnce(&mut SlabAllocator) -> T) -> T {
        // SAFETY: `Core` is neither `Send` nor `Sync` (it is always behind an `Rc` and holds an
        // `UnsafeCell`), so this is the only thread. Every caller is in this file and passes a
        // closure that calls one method of `SlabAllocator`, which calls no other code. So no other
        // reference to the bookkeeping exists during the call.
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

    /// Leases a reserved buffer.
    #[inline]
    pub(super) fn lease_promised(
        self: &Rc<Self>,
        promise: ReservationId,
        len: usize,
    ) -> Option<Buffer> {
        let (id, base, class) = self.with(|slots| slots.lease_promised(promise))?;
        Some(Buffer::new(self, base, len, class, id, promise))
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
    fn refill(&self, class: SizeClass) -> Result<(), LeaseError> {
        if self.with(|slots| slots.change_class(class)) {
            return Ok(());
        }
        self.add_chunk(class)
    }

    fn add_chunk(&self, class: SizeClass) -> Result<(), LeaseError> {
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
    fn release_empty(&self, keep: usize) {
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
        debug_assert_eq!(self.with(|slots| slots.held(None)), 0);
        self.shared.unregister_core();
    }
}

impl fmt::Debug for CorePool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CorePool")
            .field("leased", &self.leased())
            .field("held", &self.held())
            .finish_non_exhaustive()
    }
}
