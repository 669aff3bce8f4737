//! One reactor's pool: size classes over chunks, leased and returned without locks or atomics.

use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use super::buffer::Buffer;
use super::chunk::CHUNK;
use super::chunk_pool::{Arena, ChunkPool};
use super::core_state::Core;
use super::error::LeaseError;
use super::reserve::BufferReservation;
use super::slab::SizeClass;

/// Chunks without a lease that a core keeps when it [trims](CorePool::trim), so that its working
/// set is available when it wakes.
const WARM: usize = 4;

/// A reactor's pool of buffers; clones refer to the same pool. It stays on its thread.
#[derive(Clone)]
pub struct CorePool {
    core: Rc<Core>,
}

impl CorePool {
    /// Creates a pool for the calling thread. It holds no chunk yet, and one is guaranteed.
    pub fn new(shared: &Arc<ChunkPool>) -> Self {
        Self { core: Rc::new(Core::new(shared)) }
    }

    /// Leases a buffer of `len` bytes. Its contents are unspecified.
    ///
    /// # Errors
    /// See [`LeaseError`]. A pool without leased buffers never returns `Exhausted`.
    #[inline]
    pub fn lease(&self, len: usize) -> Result<Buffer, LeaseError> {
        self.check(len)?;
        let class = SizeClass::of(len, Arena::Data);
        let (id, base) = match self.core.lease(class) {
            Some(leased) => leased,
            None => {
                self.core.refill(class)?;
                self.core.lease(class).ok_or(LeaseError::Exhausted)?
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
        let promise = self.core.add_promise(class, count);
        let reserve = BufferReservation::new(&self.core, promise, len);
        while self.core.lacks(class) {
            if self.core.add_chunk(class).is_err() {
                self.core.release_empty(0);
                self.core.add_chunk(class)?;
            }
        }
        Ok(reserve)
    }

    /// Returns the number of buffers leased now, including those of reservations.
    pub fn leased(&self) -> usize {
        self.core.leased()
    }

    /// Returns the bytes of chunks this core holds.
    pub fn held(&self) -> usize {
        self.core.chunks() * CHUNK
    }

    /// Returns chunks without a lease to the shared pool, except a few. A reactor calls it before
    /// it sleeps.
    pub fn trim(&self) {
        if self.core.empty_chunks() > WARM {
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
        if self.core.shared().is_starved() && self.core.empty_chunks() > 0 {
            self.core.release_empty(0);
        }
    }

    /// Returns the pool shared by all cores.
    pub fn shared(&self) -> &Arc<ChunkPool> {
        self.core.shared()
    }

    #[inline]
    fn check(&self, len: usize) -> Result<(), LeaseError> {
        let max = self.core.shared().config().max_lease;
        if len > max { Err(LeaseError::TooLarge { len, max }) } else { Ok(()) }
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
