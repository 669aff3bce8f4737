//! The pool that all cores share: chunks that no core holds, and the limit of chunks.

use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use thiserror::Error;

use super::chunk::{CHUNK, Chunk};
use super::registrar::{ChunkId, MemoryRegistrar};

/// Divisor of the machine's memory for the default cap, and the bounds of the cap.
const DEFAULT_SHARE: usize = 8;
const DEFAULT_CAP_MIN: usize = 64 << 20;
const DEFAULT_CAP_MAX: usize = 2 << 30;

/// Unused chunks that stay mapped; the memory of further ones returns to the system.
const WARM: usize = 8;

/// Memory limits of buffers. All values in bytes, rounded up to whole chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolConfig {
    /// Limit of the memory for data buffers.
    pub cap: usize,
    /// Limit of the memory for [`BufferReservation`](super::BufferReservation)s, in addition to
    /// `cap`.
    pub reserve: usize,
    /// Maximum lease, at most [`CHUNK`].
    pub max_lease: usize,
    /// Uses huge pages if the machine has reserved any.
    pub huge_pages: bool,
}

impl Default for PoolConfig {
    /// 1/8 of the machine's memory, between 64 MiB and 2 GiB, plus 1/4 of that for reservations. It
    /// is a limit: no memory is resident before it is used.
    fn default() -> Self {
        let cap = (physical_memory() / DEFAULT_SHARE).clamp(DEFAULT_CAP_MIN, DEFAULT_CAP_MAX);
        Self { cap, reserve: cap / 4, max_lease: CHUNK, huge_pages: true }
    }
}

/// Error that prevents the creation of a pool.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
pub enum PoolError {
    /// The maximum lease does not fit in a chunk.
    #[error("a largest lease of {max_lease} bytes is not possible: choose 1 to {CHUNK} bytes")]
    MaxLease {
        /// Requested bytes.
        max_lease: usize,
    },
    /// The cap is smaller than one chunk.
    #[error("buffer memory of {cap} bytes is too small: the minimum is {CHUNK} bytes")]
    TooSmall {
        /// Requested bytes.
        cap: usize,
    },
}

/// Memory use of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PoolStats {
    /// Cap for data buffers, in bytes.
    pub cap: usize,
    /// Cap for reservations, in bytes.
    pub reserve_cap: usize,
    /// Bytes of chunks that cores hold for data buffers.
    pub data_bytes: usize,
    /// Bytes of chunks that cores hold for reservations.
    pub reserve_held: usize,
    /// Bytes mapped from the kernel, held by cores or free.
    pub mapped: usize,
    /// Bytes of `mapped` on huge pages.
    pub huge: usize,
    /// Number of live core pools.
    pub cores: usize,
}

/// Cap that a chunk counts against.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Arena {
    Data,
    BufferReservation,
}

/// Reason why the shared pool returned no chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoChunk {
    Exhausted,
    NoMemory,
}

/// All buffer memory of the process, in chunks; one instance, behind an `Arc`.
///
/// A core takes its lock when it needs or returns a whole chunk, never for a lease.
pub struct ChunkPool {
    config: PoolConfig,
    state: Mutex<State>,
    /// True if a core was refused a chunk and none has been returned since.
    starved: AtomicBool,
    waker: Mutex<Option<Box<dyn Fn() + Send + Sync>>>,
}

/// Invariant: `data_held + idle_cores <= data_cap`. Every core without a data chunk can get one, so
/// it can always start one I/O.
#[derive(Debug)]
struct State {
    free: Vec<Chunk>,
    data_cap: usize,
    data_held: usize,
    reserve_cap: usize,
    reserve_held: usize,
    cores: usize,
    idle_cores: usize,
    mapped: usize,
    huge: usize,
    try_huge: bool,
    /// Address of every mapped chunk, by its number.
    bases: Vec<Option<usize>>,
    registrars: Vec<Arc<dyn MemoryRegistrar>>,
    /// Registrars whose chunks are being deregistered: until that is done, no chunk is unmapped.
    deregistering: usize,
}

impl ChunkPool {
    /// Checks the sizes and logs the limits of the pool; maps nothing yet.
    ///
    /// # Errors
    /// Invalid sizes.
    pub fn new(config: PoolConfig) -> Result<Arc<Self>, PoolError> {
        if config.max_lease == 0 || config.max_lease > CHUNK {
            return Err(PoolError::MaxLease { max_lease: config.max_lease });
        }
        if config.cap < CHUNK {
            return Err(PoolError::TooSmall { cap: config.cap });
        }
        let reserved_pages = if config.huge_pages { huge_pages_free() } else { 0 };
        let state = State {
            free: Vec::new(),
            data_cap: config.cap.div_ceil(CHUNK),
            data_held: 0,
            reserve_cap: config.reserve.div_ceil(CHUNK),
            reserve_held: 0,
            cores: 0,
            idle_cores: 0,
            mapped: 0,
            huge: 0,
            try_huge: reserved_pages > 0,
            bases: Vec::new(),
            registrars: Vec::new(),
            deregistering: 0,
        };
        tracing::info!(
            cap_mib = (state.data_cap * CHUNK) >> 20,
            reserve_mib = (state.reserve_cap * CHUNK) >> 20,
            max_lease = config.max_lease,
            huge_pages_free = reserved_pages,
            pages = if state.try_huge {
                "huge (2 MiB), ordinary when they run out"
            } else {
                "ordinary"
            },
            "buffer memory: grown in chunks of 2 MiB, resident only as used",
        );
        Ok(Arc::new(Self {
            config,
            state: Mutex::new(state),
            starved: AtomicBool::new(false),
            waker: Mutex::new(None),
        }))
    }

    /// Returns the configuration.
    pub fn config(&self) -> &PoolConfig {
        &self.config
    }

    /// Returns the current memory use.
    pub fn stats(&self) -> PoolStats {
        let state = self.state();
        PoolStats {
            cap: state.data_cap * CHUNK,
            reserve_cap: state.reserve_cap * CHUNK,
            data_bytes: state.data_held * CHUNK,
            reserve_held: state.reserve_held * CHUNK,
            mapped: state.mapped * CHUNK,
            huge: state.huge * CHUNK,
            cores: state.cores,
        }
    }

    /// Sets the waker, which must wake all reactors.
    ///
    /// It runs when a core is refused a chunk, so that the others
    /// [`balance`](super::CorePool::balance). It runs again when a chunk is returned after that, so
    /// that waiting reactors retry. It runs on the thread of the core that requested or returned
    /// the chunk, and must neither block nor use a pool.
    pub fn set_waker(&self, waker: Box<dyn Fn() + Send + Sync>) {
        *self.waker.lock().unwrap_or_else(PoisonError::into_inner) = Some(waker);
    }

    /// Returns the maximum number of chunks; all chunk numbers are less.
    pub fn chunks(&self) -> usize {
        let state = self.state();
        state.data_cap + state.reserve_cap
    }

    /// Returns the maximum bytes of buffers.
    pub fn most(&self) -> usize {
        self.chunks() * CHUNK
    }

    /// Registers every current chunk with `registrar`, and all later changes.
    ///
    /// # Errors
    /// The registrar's error for one of the chunks; no chunk stays registered with it then.
    pub fn add_registrar(&self, registrar: Arc<dyn MemoryRegistrar>) -> std::io::Result<()> {
        let mut state = self.state();
        for id in state.mapped_ids() {
            if let Err(error) = state.register_with(registrar.as_ref(), id) {
                state.mapped_ids().take_while(|known| *known < id).for_each(|known| {
                    registrar.unmapping(known);
                });
                return Err(error);
            }
        }
        state.registrars.push(registrar);
        Ok(())
    }

    /// Deregisters every chunk from `registrar`, and removes it. Its device must not use any
    /// buffer. This may take long; other callers can use the pool during that time.
    pub fn remove_registrar(&self, registrar: &Arc<dyn MemoryRegistrar>) {
        let mut state = self.state();
        let before = state.registrars.len();
        state.registrars.retain(|known| !Arc::ptr_eq(known, registrar));
        if state.registrars.len() == before {
            return;
        }
        let known: Vec<ChunkId> = state.mapped_ids().collect();
        state.deregistering += 1;
        drop(state);
        known.into_iter().for_each(|id| registrar.unmapping(id));
        self.state().deregistering -= 1;
    }

    /// Returns true if a core was refused a chunk and none has been returned since.
    pub fn is_starved(&self) -> bool {
        self.starved.load(Ordering::Relaxed)
    }

    pub(super) fn register_core(&self) {
        let mut state = self.state();
        state.cores += 1;
        state.idle_cores += 1;
        let least = state.data_held + state.idle_cores;
        if state.data_cap < least {
            tracing::warn!(chunks = least, "buffer memory raised to one chunk of 2 MiB a reactor");
            state.data_cap = least;
        }
    }

    /// Unregisters a core whose pool is gone and holds no chunk.
    pub(super) fn unregister_core(&self) {
        let mut state = self.state();
        state.cores -= 1;
        state.idle_cores -= 1;
    }

    /// Takes a chunk for a core; `first` if the core holds no data chunk yet.
    pub(super) fn take(&self, arena: Arena, first: bool) -> Result<Chunk, NoChunk> {
        let mut state = self.state();
        let allowed = match arena {
            Arena::Data if first => true,
            Arena::Data => state.data_held + state.idle_cores < state.data_cap,
            Arena::BufferReservation => state.reserve_held < state.reserve_cap,
        };
        if !allowed {
            drop(state);
            if !self.starved.swap(true, Ordering::Relaxed) {
                self.wake();
            }
            return Err(NoChunk::Exhausted);
        }
        let chunk = match state.free.pop() {
            Some(chunk) => chunk,
            None => state.map().map_err(|_| NoChunk::NoMemory)?,
        };
        match arena {
            Arena::Data => {
                state.data_held += 1;
                state.idle_cores -= usize::from(first);
            }
            Arena::BufferReservation => state.reserve_held += 1,
        }
        Ok(chunk)
    }

    /// Returns a chunk to the pool; `last` if the core holds no other data chunk.
    pub(super) fn give(&self, chunk: Chunk, arena: Arena, last: bool) {
        let mut state = self.state();
        match arena {
            Arena::Data => {
                state.data_held -= 1;
                state.idle_cores += usize::from(last);
            }
            Arena::BufferReservation => state.reserve_held -= 1,
        }
        // Registered chunks stay mapped: deregistering takes long, and the lock is held during it.
        let is_known = !state.registrars.is_empty() || state.deregistering > 0;
        let stays = chunk.is_huge() || is_known;
        let surplus = if state.free.len() < WARM || stays {
            state.free.push(chunk);
            None
        } else {
            Some(chunk)
        };
        if let Some(chunk) = surplus {
            state.unmap(chunk);
        }
        drop(state);
        if self.starved.swap(false, Ordering::Relaxed) {
            self.wake();
        }
    }

    fn wake(&self) {
        let waker = self.waker.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(waker) = waker.as_ref() {
            waker();
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn map(&mut self) -> std::io::Result<Chunk> {
        let free = self.bases.iter().position(Option::is_none).unwrap_or(self.bases.len());
        debug_assert!(u32::try_from(free).is_ok(), "chunk {free}");
        let id = ChunkId(u32::try_from(free).unwrap_or(u32::MAX));
        let chunk = Chunk::map(id, self.try_huge).inspect_err(
            |error| tracing::warn!(%error, "no memory for another chunk of buffers"),
        )?;
        if free == self.bases.len() {
            self.bases.push(None);
        }
        self.bases[free] = Some(chunk.base().as_ptr().expose_provenance());
        self.register_with_all(id)?;
        if self.try_huge && !chunk.is_huge() {
            self.try_huge = false;
            tracing::info!(
                huge_mib = (self.huge * CHUNK) >> 20,
                "huge pages ran out: further buffer memory is on ordinary pages"
            );
        }
        self.mapped += 1;
        self.huge += usize::from(chunk.is_huge());
        Ok(chunk)
    }
}

impl State {
    /// Returns a chunk's memory to the system; it is not registered.
    fn unmap(&mut self, chunk: Chunk) {
        if let Some(base) = self.bases.get_mut(chunk.id().index()) {
            *base = None;
        }
        self.mapped -= 1;
        drop(chunk);
    }

    /// Registers a new chunk with every registrar, or with none if one of them fails.
    fn register_with_all(&mut self, id: ChunkId) -> std::io::Result<()> {
        for (count, registrar) in self.registrars.iter().enumerate() {
            if let Err(error) = self.register_with(registrar.as_ref(), id) {
                tracing::warn!(%error, "a device cannot reach another chunk of buffers");
                self.registrars[..count].iter().for_each(|known| known.unmapping(id));
                self.bases[id.index()] = None;
                return Err(error);
            }
        }
        Ok(())
    }

    fn register_with(&self, registrar: &dyn MemoryRegistrar, id: ChunkId) -> std::io::Result<()> {
        let base = self.bases.get(id.index()).copied().flatten();
        match base.and_then(|base| NonNull::new(std::ptr::with_exposed_provenance_mut(base))) {
            Some(base) => registrar.mapped(id, base, CHUNK),
            None => Ok(()),
        }
    }

    /// Returns the mapped chunks.
    fn mapped_ids(&self) -> impl Iterator<Item = ChunkId> {
        let ids = self.bases.iter().zip(0..).filter(|(base, _)| base.is_some());
        ids.map(|(_, id)| ChunkId(id))
    }
}

impl fmt::Debug for ChunkPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedPool").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

/// Returns the number of free reserved huge pages of 2 MiB; 0 if there are none or it is unknown.
fn huge_pages_free() -> usize {
    std::fs::read_to_string("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages")
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(0)
}

/// Returns the bytes of memory of the machine.
fn physical_memory() -> usize {
    let info = rustix::system::sysinfo();
    usize::try_from(info.totalram).unwrap_or(usize::MAX).saturating_mul(info.mem_unit as usize)
}

#[cfg(test)]
mod tests {
    use std::sync::Weak;
    use std::sync::atomic::AtomicUsize;

    use super::*;

    /// A registrar that uses the pool during deregistration, as cores do on other threads: it reads
    /// the state, takes a chunk, and returns all.
    #[derive(Debug, Default)]
    struct Slow {
        pool: Mutex<Weak<ChunkPool>>,
        chunks: Mutex<Vec<Chunk>>,
        told: AtomicUsize,
        least_mapped: AtomicUsize,
    }

    impl MemoryRegistrar for Slow {
        fn mapped(&self, _: ChunkId, _: NonNull<u8>, _: usize) -> std::io::Result<()> {
            Ok(())
        }

        fn unmapping(&self, _: ChunkId) {
            let pool = self.pool.lock().unwrap().upgrade().unwrap();
            assert!(pool.state.try_lock().is_ok(), "nobody can use the pool");
            for chunk in self.chunks.lock().unwrap().drain(..) {
                pool.give(chunk, Arena::BufferReservation, false);
            }
            self.told.fetch_add(1, Ordering::Relaxed);
            self.least_mapped.fetch_min(pool.stats().mapped / CHUNK, Ordering::Relaxed);
            // A chunk taken now is not registered with it.
            if self.told.load(Ordering::Relaxed) == 1 {
                let taken: Vec<Chunk> = (0..=COUNT)
                    .map(|_| pool.take(Arena::BufferReservation, false).expect("a chunk"))
                    .collect();
                taken
                    .into_iter()
                    .for_each(|chunk| pool.give(chunk, Arena::BufferReservation, false));
            }
        }
    }

    const COUNT: usize = 3 * WARM;

    #[test]
    fn a_registrar_that_leaves_keeps_nobody_from_the_pool_and_every_chunk_that_it_knows() {
        let config =
            PoolConfig { reserve: (COUNT + 1) * CHUNK, huge_pages: false, ..PoolConfig::default() };
        let pool = ChunkPool::new(config).unwrap();
        let slow = Arc::new(Slow { least_mapped: usize::MAX.into(), ..Slow::default() });
        *slow.pool.lock().unwrap() = Arc::downgrade(&pool);
        let registrar: Arc<dyn MemoryRegistrar> = slow.clone();
        pool.add_registrar(Arc::clone(&registrar)).unwrap();
        let chunks =
            (0..COUNT).map(|_| pool.take(Arena::BufferReservation, false).expect("a chunk"));
        *slow.chunks.lock().unwrap() = chunks.collect();
        pool.remove_registrar(&registrar);
        assert_eq!(slow.told.load(Ordering::Relaxed), COUNT);
        assert_eq!(slow.least_mapped.load(Ordering::Relaxed), COUNT);
        // It is removed: a returned chunk goes to the system again.
        let chunk = pool.take(Arena::BufferReservation, false).expect("a chunk");
        let before = pool.stats().mapped;
        pool.give(chunk, Arena::BufferReservation, false);
        assert_eq!(pool.stats().mapped, before - CHUNK);
        pool.remove_registrar(&registrar);
        assert_eq!(slow.told.load(Ordering::Relaxed), COUNT, "told twice");
    }
}
