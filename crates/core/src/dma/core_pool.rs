//! One reactor's pool: size classes over chunks, leased and returned without lock or atomics.

use std::cell::UnsafeCell;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use thiserror::Error;

use super::buffer::Buffer;
use super::chunk::CHUNK;
use super::registrar::ChunkId;
use super::reserve::Reserve;
use super::shared::{Arena, NoChunk, SharedPool};
use super::shares::{ShareId, Shares};
use super::slots::{Class, PromiseId, SlotId, Slots};

/// Chunks without a lease that a core keeps when it [trims](CorePool::trim): what it had in use
/// is ready when it wakes.
const WARM: usize = 4;

/// Why there is no buffer.
#[derive(Debug, Error, Clone, Copy, PartialEq, Eq)]
pub enum LeaseError {
    /// All the memory the pool may take is leased: try again when a buffer came back.
    #[error("all buffer memory is in use")]
    Exhausted,
    /// No buffer is ever this large.
    #[error("{len} bytes are more than the largest buffer ({max} bytes)")]
    TooLarge {
        /// Bytes asked for.
        len: usize,
        /// Bytes of the largest buffer.
        max: usize,
    },
    /// There is no room for a second buffer, and there may never be: two of that size need two chunks, and a core is
    /// sure to get one.
    #[error("no memory for two buffers of {len} bytes at once")]
    NotTwo {
        /// Bytes asked for, each.
        len: usize,
    },
    /// The kernel gave no memory although the cap is not reached.
    #[error("the system has no memory for another chunk of buffers")]
    NoMemory,
}

/// A reactor's pool of buffers; clones are the same pool. It stays on its thread.
#[derive(Clone)]
pub struct CorePool {
    core: Rc<Core>,
}

/// What a pool's handles, buffers and reserves share.
pub(super) struct Core {
    shared: Arc<SharedPool>,
    slots: UnsafeCell<Slots>,
    shares: UnsafeCell<Shares>,
}

impl CorePool {
    /// A pool for the calling thread; it holds nothing yet and is sure to get one chunk.
    pub fn new(shared: &Arc<SharedPool>) -> Self {
        shared.register_core();
        let slots = UnsafeCell::new(Slots::new());
        let shares = UnsafeCell::new(Shares::default());
        Self { core: Rc::new(Core { shared: Arc::clone(shared), slots, shares }) }
    }

    /// A buffer of `len` bytes. Its contents are whatever was there.
    ///
    /// # Errors
    /// See [`LeaseError`]. A pool with no buffer out never answers `Exhausted`.
    #[inline]
    pub fn lease(&self, len: usize) -> Result<Buffer, LeaseError> {
        self.check(len)?;
        let class = Class::of(len, Arena::Data);
        let (id, base) = match self.core.with(|slots| slots.lease(class)) {
            Some(leased) => leased,
            None => {
                self.core.refill(class)?;
                self.core.with(|slots| slots.lease(class)).ok_or(LeaseError::Exhausted)?
            }
        };
        Ok(Buffer::new(&self.core, base, len, class, id, 0))
    }

    /// Two buffers of `len` bytes, or none: who keeps one while it waits for another may wait for who does the same.
    ///
    /// # Errors
    /// See [`LeaseError`]; `NotTwo` where one of more than half a chunk could be had. A pool with no buffer out never
    /// answers `Exhausted`.
    pub fn lease_two(&self, len: usize) -> Result<(Buffer, Buffer), LeaseError> {
        let first = self.lease(len)?;
        match self.lease(len) {
            Ok(second) => Ok((first, second)),
            Err(LeaseError::Exhausted) if len > CHUNK / 2 => Err(LeaseError::NotTwo { len }),
            Err(error) => Err(error),
        }
    }

    /// `count` buffers of `len` bytes that can always be had: the in-capsule slots of a queue.
    /// Memory is promised, not touched; reserves of one size share what is not in use.
    ///
    /// # Errors
    /// See [`LeaseError`]; `Exhausted` when the reserve part of the cap is promised already.
    pub fn reserve(&self, count: usize, len: usize) -> Result<Reserve, LeaseError> {
        self.check(len)?;
        let class = Class::of(len, Arena::Reserve);
        let promise = self.core.with(|slots| slots.add_promise(class, count));
        let reserve = Reserve::new(&self.core, promise, len);
        while self.core.with(|slots| slots.lacks(class)) {
            if self.core.add_chunk(class).is_err() {
                self.core.release_empty(0);
                self.core.add_chunk(class)?;
            }
        }
        Ok(reserve)
    }

    /// Buffers out now, leases and reserves' alike.
    pub fn leased(&self) -> usize {
        self.core.with(|slots| slots.leased())
    }

    /// Bytes of chunks this core holds.
    pub fn held(&self) -> usize {
        self.core.with(|slots| slots.held(None)) * CHUNK
    }

    /// Gives chunks without a lease back to the shared pool, but for a few. For a reactor about to
    /// sleep.
    pub fn trim(&self) {
        if self.core.with(|slots| slots.empty()) > WARM {
            self.core.release_empty(WARM);
        }
        self.balance();
    }

    /// Gives every chunk without a lease back to the shared pool.
    pub fn clear(&self) {
        self.core.release_empty(0);
    }

    /// Gives chunks without a lease back if another core waits for one. Cheap: for every turn.
    #[inline]
    pub fn balance(&self) {
        if self.core.shared.is_starved() && self.core.with(|slots| slots.empty()) > 0 {
            self.core.release_empty(0);
        }
    }

    /// The pool behind all cores' pools.
    pub fn shared(&self) -> &Arc<SharedPool> {
        &self.core.shared
    }

    #[inline]
    fn check(&self, len: usize) -> Result<(), LeaseError> {
        let max = self.core.shared.config().max_lease;
        if len > max { Err(LeaseError::TooLarge { len, max }) } else { Ok(()) }
    }
}

impl Core {
    /// The bookkeeping, for the time of `f`, which is code of this module only and calls nothing
    /// that could come back here.
    #[inline]
    fn with<T>(&self, f: impl FnOnce(&mut Slots) -> T) -> T {
        // SAFETY: `Core` is neither `Send` nor `Sync` (it is only ever behind an `Rc` and holds
        // an `UnsafeCell`), so this is the only thread. Every caller is in this file and passes a
        // closure that calls one method of `Slots`, which calls neither back nor out: no other
        // reference to the bookkeeping exists while this one does.
        f(unsafe { &mut *self.slots.get() })
    }

    /// The counts of cut buffers, for the time of `f`; as [`with`](Self::with).
    #[inline]
    fn with_shares<T>(&self, f: impl FnOnce(&mut Shares) -> T) -> T {
        // SAFETY: as in `with`: one thread, and closures that call one method of `Shares`, which
        // calls neither back nor out.
        f(unsafe { &mut *self.shares.get() })
    }

    /// A count for a buffer that is cut, which is itself a part of `parent` or whole (0).
    #[inline]
    pub(super) fn cut(&self, parent: ShareId) -> ShareId {
        self.with_shares(|shares| shares.open(parent))
    }

    /// One part more.
    #[inline]
    pub(super) fn part_begun(&self, share: ShareId) {
        self.with_shares(|shares| shares.add(share));
    }

    /// One part less; true if none is left of the whole slot.
    #[inline]
    pub(super) fn part_ended(&self, share: ShareId) -> bool {
        self.with_shares(|shares| shares.end(share))
    }

    /// Ends the count if no part is left: true then.
    #[inline]
    pub(super) fn rejoin(&self, share: ShareId) -> bool {
        self.with_shares(|shares| shares.close(share))
    }

    /// Takes back the slot of a buffer that is no more.
    #[inline]
    pub(super) fn give_back(&self, id: SlotId, promise: PromiseId) {
        let emptied = self.with(|slots| slots.give_back(id, promise));
        if emptied && self.shared.is_starved() {
            self.release_empty(0);
        }
    }

    /// The chunk of a leased slot.
    #[inline]
    pub(super) fn chunk_of(&self, id: SlotId) -> ChunkId {
        self.with(|slots| slots.chunk_of(id))
    }

    /// Leases a promised buffer.
    #[inline]
    pub(super) fn lease_promised(
        self: &Rc<Self>,
        promise: PromiseId,
        len: usize,
    ) -> Option<Buffer> {
        let (id, base, class) = self.with(|slots| slots.lease_promised(promise))?;
        Some(Buffer::new(self, base, len, class, id, promise))
    }

    /// See [`Slots::pass`].
    pub(super) fn pass(&self, from: PromiseId, to: PromiseId) -> bool {
        self.with(|slots| slots.pass(from, to))
    }

    /// See [`Slots::pass_free`].
    pub(super) fn pass_free(&self, from: PromiseId, to: PromiseId, most: usize) -> usize {
        self.with(|slots| slots.pass_free(from, to, most))
    }

    pub(super) fn promised(&self, promise: PromiseId) -> (usize, usize) {
        self.with(|slots| slots.promised(promise))
    }

    /// Ends a promise when its last buffer is back; chunks nobody is promised any more go back.
    pub(super) fn close_promise(&self, promise: PromiseId) {
        self.with(|slots| slots.close_promise(promise));
        self.release_empty(0);
    }

    /// Makes slots of a data class that has none free: of a chunk of another class with no lease
    /// out, or of a new chunk.
    #[cold]
    fn refill(&self, class: Class) -> Result<(), LeaseError> {
        if self.with(|slots| slots.change_class(class)) {
            return Ok(());
        }
        self.add_chunk(class)
    }

    fn add_chunk(&self, class: Class) -> Result<(), LeaseError> {
        let arena = class.arena();
        let first = self.with(|slots| slots.held(Some(arena))) == 0;
        let chunk = self.shared.take(arena, first).map_err(|why| match why {
            NoChunk::Exhausted => LeaseError::Exhausted,
            NoChunk::NoMemory => LeaseError::NoMemory,
        })?;
        self.with(|slots| slots.add(chunk, class));
        Ok(())
    }

    /// Gives chunks without a lease to the shared pool; reserves keep what they were promised.
    #[cold]
    fn release_empty(&self, keep: usize) {
        for leaving in self.with(|slots| slots.take_empty(keep)) {
            self.shared.give(leaving.chunk, leaving.arena, leaving.last);
        }
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        // Every buffer and reserve holds the core, so none is left: all chunks are unleased.
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
