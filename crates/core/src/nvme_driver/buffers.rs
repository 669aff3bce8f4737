//! The pool's memory as devices see it: mapped once per DMA space, chunk by chunk as chunks come
//! and go.
//!
//! On the I/O path, an address is one load from a table.

use std::fmt;
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::function::{DmaSpace, Iova};
use crate::dma::{Buffer, CHUNK, ChunkId, ChunkPool, CorePool, MemoryRegistrar};

/// Chunks that a pool can grow by after it reported its maximum: one for each reactor.
const SLACK: usize = 1024;

/// Flag of a mapped chunk, in the low bits of its address, which is a multiple of the page size.
const MAPPED: u64 = 1;

/// Maps of one pool, one per DMA space. A process has one instance for its pool.
#[derive(Debug)]
pub struct BufferMaps {
    pool: Arc<ChunkPool>,
    maps: Mutex<Vec<Weak<BufferMap>>>,
}

impl BufferMaps {
    /// Creates maps for buffers of `pool`; nothing is mapped yet.
    pub fn new(pool: &Arc<ChunkPool>) -> Self {
        Self { pool: Arc::clone(pool), maps: Mutex::default() }
    }

    /// Returns the map of `space`, which is created if necessary.
    ///
    /// # Errors
    /// The space cannot map the pool's memory.
    pub(super) fn of(&self, space: &Arc<dyn DmaSpace>) -> io::Result<Arc<BufferMap>> {
        let mut maps = lock(&self.maps);
        maps.retain(|map| map.strong_count() > 0);
        let known = maps.iter().filter_map(Weak::upgrade).find(|map| map.is_of(space));
        if let Some(map) = known {
            return Ok(map);
        }
        let map = Arc::new(BufferMap::new(&self.pool, space)?);
        maps.push(Arc::downgrade(&map));
        Ok(map)
    }
}

/// Addresses of a pool's buffers in a DMA space. Dropping it unmaps all chunks.
#[derive(Debug)]
pub(crate) struct BufferMap {
    pool: Arc<ChunkPool>,
    table: Arc<Table>,
    registrar: Arc<dyn MemoryRegistrar>,
    /// Number of controllers that use the map; `None` once it is withdrawn.
    users: Mutex<Option<usize>>,
}

impl BufferMap {
    fn new(pool: &Arc<ChunkPool>, space: &Arc<dyn DmaSpace>) -> io::Result<Self> {
        let places = pool.chunks() + SLACK;
        let table = Arc::new(Table {
            space: Arc::clone(space),
            addresses: (0..places).map(|_| AtomicU64::new(0)).collect(),
            stuck: AtomicBool::new(false),
        });
        let registrar: Arc<dyn MemoryRegistrar> = table.clone();
        pool.add_registrar(Arc::clone(&registrar))?;
        let users = Mutex::new(Some(0));
        Ok(Self { pool: Arc::clone(pool), table, registrar, users })
    }

    /// Returns the device address of the first byte of `buffer`, which belongs to the pool; `None`
    /// if it is not mapped.
    #[inline]
    pub(super) fn address_of(&self, buffer: &Buffer) -> Option<u64> {
        // The address was stored before the buffer could be leased. The lock that handed over the
        // chunk orders the store.
        let entry = self.table.addresses.get(buffer.chunk().index())?.load(Ordering::Relaxed);
        // Chunks start at multiples of their size.
        let inside = buffer.as_ptr().addr() % CHUNK;
        (entry & MAPPED != 0).then(|| (entry & !MAPPED) + inside as u64)
    }

    /// Returns true if buffers of `pool` are in the map.
    pub(crate) fn has(&self, pool: &CorePool) -> bool {
        Arc::ptr_eq(&self.pool, pool.shared())
    }

    /// Counts one more controller; returns false if the map is withdrawn.
    pub(super) fn join(&self) -> bool {
        let mut users = lock(&self.users);
        *users = users.map(|count| count + 1);
        users.is_some()
    }

    /// Counts one controller that [joined](Self::join) less.
    pub(super) fn leave(&self) {
        let mut users = lock(&self.users);
        *users = users.map(|count| count.saturating_sub(1));
    }

    /// Unmaps all buffers from the space, unless several controllers use them. Returns true if no
    /// device of the space can reach any of them.
    pub(super) fn withdraw(&self) -> bool {
        let mut users = lock(&self.users);
        if users.is_some_and(|count| count > 1) {
            return false;
        }
        if users.take().is_some() {
            self.pool.remove_registrar(&self.registrar);
        }
        !self.table.stuck.load(Ordering::Acquire)
    }

    fn is_of(&self, space: &Arc<dyn DmaSpace>) -> bool {
        std::ptr::addr_eq(Arc::as_ptr(&self.table.space), Arc::as_ptr(space))
            && lock(&self.users).is_some()
    }
}

impl Drop for BufferMap {
    fn drop(&mut self) {
        self.pool.remove_registrar(&self.registrar);
    }
}

/// Pool memory that a controller can reach. Callers hold the lock only briefly.
#[derive(Debug)]
pub(super) struct MappedPools(Mutex<Reached>);

#[derive(Debug)]
struct Reached {
    /// `None` once the controller can reach no memory.
    space: Option<Arc<dyn DmaSpace>>,
    maps: Vec<Arc<BufferMap>>,
}

impl MappedPools {
    /// Creates the state for a controller that accesses memory through `space`, without maps.
    pub(super) fn new(space: Arc<dyn DmaSpace>) -> Self {
        Self(Mutex::new(Reached { space: Some(space), maps: Vec::new() }))
    }

    /// Returns the DMA space; `None` once the controller can reach no memory.
    pub(super) fn space(&self) -> Option<Arc<dyn DmaSpace>> {
        lock(&self.0).space.clone()
    }

    /// Attaches `map` until the controller fails or is closed. Returns false if that has happened,
    /// or the map is withdrawn.
    pub(super) fn attach(&self, map: &Arc<BufferMap>) -> bool {
        let mut reached = lock(&self.0);
        if reached.space.is_none() {
            return false;
        }
        if reached.maps.iter().any(|known| Arc::ptr_eq(known, map)) {
            return true;
        }
        let joined = map.join();
        if joined {
            reached.maps.push(Arc::clone(map));
        }
        joined
    }

    /// Prevents further attachments and returns the attached maps.
    pub(super) fn close(&self) -> Vec<Arc<BufferMap>> {
        let mut reached = lock(&self.0);
        reached.space = None;
        reached.maps.clone()
    }

    /// Releases all maps: the controller uses no memory any more.
    pub(super) fn leave(&self) {
        self.close();
        let maps = std::mem::take(&mut lock(&self.0).maps);
        maps.iter().for_each(|map| map.leave());
    }
}

/// Address table that the pool updates.
struct Table {
    space: Arc<dyn DmaSpace>,
    /// Indexed by chunk number.
    addresses: Box<[AtomicU64]>,
    /// True once an unmap has failed.
    stuck: AtomicBool,
}

impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = self.addresses.iter().filter(|entry| entry.load(Ordering::Relaxed) != 0);
        f.debug_struct("Table").field("chunks", &known.count()).finish_non_exhaustive()
    }
}

impl MemoryRegistrar for Table {
    fn mapped(&self, chunk: ChunkId, base: NonNull<u8>, len: usize) -> io::Result<()> {
        let Some(entry) = self.addresses.get(chunk.index()) else {
            return Err(io::Error::other("the pool has grown beyond the table of addresses"));
        };
        // SAFETY: the pool keeps the chunk mapped until `unmapping` has returned, which unmaps it
        // here. A buffer is passed to a device by ownership: no other code uses its bytes while the
        // device may (see `queue`).
        let iova = unsafe { self.space.map(base, len) }?;
        entry.store(iova.0 | MAPPED, Ordering::Relaxed);
        Ok(())
    }

    fn unmapping(&self, chunk: ChunkId) {
        let Some(entry) = self.addresses.get(chunk.index()) else { return };
        let known = entry.swap(0, Ordering::Relaxed);
        if known & MAPPED == 0 {
            return;
        }
        if let Err(error) = self.space.unmap(Iova(known & !MAPPED), CHUNK) {
            self.stuck.store(true, Ordering::Release);
            tracing::error!(%error, "a chunk of buffers cannot be taken from a device");
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
