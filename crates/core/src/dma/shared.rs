//! The pool all cores share: chunks that no core holds, and how many there may be.

use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use thiserror::Error;

use super::chunk::{CHUNK, Chunk};
use super::registrar::{ChunkId, Registrar};

/// Share of the machine's memory the default cap is, and its bounds.
const DEFAULT_SHARE: usize = 8;
const DEFAULT_CAP_MIN: usize = 64 << 20;
const DEFAULT_CAP_MAX: usize = 2 << 30;

/// Chunks nobody holds that stay mapped; the memory of more goes back to the system.
const WARM: usize = 8;

/// How much memory buffers may take. All values in bytes, rounded up to whole chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolConfig {
    /// Cap of the memory for data buffers.
    pub cap: usize,
    /// Cap of the memory for [`Reserve`](super::Reserve)s, on top of `cap`.
    pub reserve: usize,
    /// The largest lease, at most [`CHUNK`].
    pub max_lease: usize,
    /// Whether to use huge pages where the machine has them reserved.
    pub huge_pages: bool,
}

impl Default for PoolConfig {
    /// An eighth of the machine's memory between 64 MiB and 2 GiB; a quarter of that more for
    /// reserves. It is a bound: nothing is resident before it is used.
    fn default() -> Self {
        let cap = (physical_memory() / DEFAULT_SHARE).clamp(DEFAULT_CAP_MIN, DEFAULT_CAP_MAX);
        Self { cap, reserve: cap / 4, max_lease: CHUNK, huge_pages: true }
    }
}

/// A pool that cannot be made.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
pub enum PoolError {
    /// The largest lease does not fit in a chunk.
    #[error("a largest lease of {max_lease} bytes is not possible: choose 1 to {CHUNK} bytes")]
    MaxLease {
        /// What was asked for, in bytes.
        max_lease: usize,
    },
    /// The cap does not hold one chunk.
    #[error("buffer memory of {cap} bytes is too little: it is at least {CHUNK} bytes")]
    TooSmall {
        /// What was asked for, in bytes.
        cap: usize,
    },
}

/// Where the memory of a pool is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PoolStats {
    /// Cap for data buffers, in bytes.
    pub cap: usize,
    /// Cap for reserves, in bytes.
    pub reserve_cap: usize,
    /// Bytes of chunks that cores hold for data buffers.
    pub held: usize,
    /// Bytes of chunks that cores hold for reserves.
    pub reserve_held: usize,
    /// Bytes mapped from the kernel, with cores or free.
    pub mapped: usize,
    /// Bytes of `mapped` on huge pages.
    pub huge: usize,
    /// Core pools alive.
    pub cores: usize,
}

/// Which cap a chunk counts against.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Arena {
    Data,
    Reserve,
}

/// Why the shared pool gave no chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoChunk {
    Exhausted,
    NoMemory,
}

/// All the buffer memory there may be, in chunks; one per process, behind an `Arc`.
///
/// Its lock is taken when a core needs or returns a whole chunk, never for a lease.
pub struct SharedPool {
    config: PoolConfig,
    state: Mutex<State>,
    /// A core was refused a chunk and none came back since.
    starved: AtomicBool,
    waker: Mutex<Option<Box<dyn Fn() + Send + Sync>>>,
}

/// Invariant: `data_held + idle_cores <= data_cap`: every core that holds no data chunk can get
/// one, so a core that holds nothing can always start one I/O.
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
    /// Address of every chunk that is mapped, by its number.
    bases: Vec<Option<usize>>,
    registrars: Vec<Arc<dyn Registrar>>,
    /// Registrars that are being told that every chunk goes: until they were, none does.
    leaving: usize,
}

impl SharedPool {
    /// Maps nothing yet; checks the sizes and says in the log what the pool may become.
    ///
    /// # Errors
    /// Sizes that cannot work.
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
            leaving: 0,
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

    /// What the pool was made with.
    pub fn config(&self) -> &PoolConfig {
        &self.config
    }

    /// Where the memory is now.
    pub fn stats(&self) -> PoolStats {
        let state = self.state();
        PoolStats {
            cap: state.data_cap * CHUNK,
            reserve_cap: state.reserve_cap * CHUNK,
            held: state.data_held * CHUNK,
            reserve_held: state.reserve_held * CHUNK,
            mapped: state.mapped * CHUNK,
            huge: state.huge * CHUNK,
            cores: state.cores,
        }
    }

    /// `waker` runs when a core is refused a chunk, so that the others
    /// [`balance`](super::CorePool::balance), and when one comes back after that, so that those
    /// that wait try again: let it wake all reactors. It runs on the thread of the core that asked
    /// or gave back, and must neither block nor use a pool.
    pub fn set_waker(&self, waker: Box<dyn Fn() + Send + Sync>) {
        *self.waker.lock().unwrap_or_else(PoisonError::into_inner) = Some(waker);
    }

    /// Most chunks there are at once: the numbers of chunks are lower.
    pub fn chunks(&self) -> usize {
        let state = self.state();
        state.data_cap + state.reserve_cap
    }

    /// Bytes that buffers may grow to.
    pub fn most(&self) -> usize {
        self.chunks() * CHUNK
    }

    /// Tells `registrar` of every chunk there is, and of those that come and go from now on.
    ///
    /// # Errors
    /// What the registrar said of one of them; it is told of none then.
    pub fn add_registrar(&self, registrar: Arc<dyn Registrar>) -> std::io::Result<()> {
        let mut state = self.state();
        for id in state.mapped_ids() {
            if let Err(error) = state.tell(registrar.as_ref(), id) {
                state.mapped_ids().take_while(|told| *told < id).for_each(|told| {
                    registrar.unmapping(told);
                });
                return Err(error);
            }
        }
        state.registrars.push(registrar);
        Ok(())
    }

    /// Tells `registrar` that every chunk goes, and nothing from then on. No buffer may be in use by what it
    /// stands for. That may take long; others can use the pool meanwhile.
    pub fn remove_registrar(&self, registrar: &Arc<dyn Registrar>) {
        let mut state = self.state();
        let before = state.registrars.len();
        state.registrars.retain(|known| !Arc::ptr_eq(known, registrar));
        if state.registrars.len() == before {
            return;
        }
        let known: Vec<ChunkId> = state.mapped_ids().collect();
        state.leaving += 1;
        drop(state);
        known.into_iter().for_each(|id| registrar.unmapping(id));
        self.state().leaving -= 1;
    }

    /// Whether a core was refused a chunk and none came back since.
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

    /// The core's pool is gone and holds no chunk any more.
    pub(super) fn unregister_core(&self) {
        let mut state = self.state();
        state.cores -= 1;
        state.idle_cores -= 1;
    }

    /// A chunk for a core; `first` if it holds no data chunk yet.
    pub(super) fn take(&self, arena: Arena, first: bool) -> Result<Chunk, NoChunk> {
        let mut state = self.state();
        let allowed = match arena {
            Arena::Data if first => true,
            Arena::Data => state.data_held + state.idle_cores < state.data_cap,
            Arena::Reserve => state.reserve_held < state.reserve_cap,
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
            Arena::Reserve => state.reserve_held += 1,
        }
        Ok(chunk)
    }

    /// Takes a chunk back; `last` if the core holds no data chunk any more.
    pub(super) fn give(&self, chunk: Chunk, arena: Arena, last: bool) {
        let mut state = self.state();
        match arena {
            Arena::Data => {
                state.data_held -= 1;
                state.idle_cores += usize::from(last);
            }
            Arena::Reserve => state.reserve_held -= 1,
        }
        // What devices know is kept: telling them takes long, and the lock is held meanwhile.
        let is_known = !state.registrars.is_empty() || state.leaving > 0;
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
        let id = ChunkId(u32::try_from(free).unwrap_or(u32::MAX));
        let chunk = Chunk::map(id, self.try_huge).inspect_err(
            |error| tracing::warn!(%error, "no memory for another chunk of buffers"),
        )?;
        if free == self.bases.len() {
            self.bases.push(None);
        }
        self.bases[free] = Some(chunk.base().as_ptr().expose_provenance());
        self.tell_all(id)?;
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
    /// Gives a chunk's memory back to the system; no registrar knows it.
    fn unmap(&mut self, chunk: Chunk) {
        if let Some(base) = self.bases.get_mut(chunk.id().index()) {
            *base = None;
        }
        self.mapped -= 1;
        drop(chunk);
    }

    /// Tells every registrar of a new chunk, or none if one of them cannot take it.
    fn tell_all(&mut self, id: ChunkId) -> std::io::Result<()> {
        for (count, registrar) in self.registrars.iter().enumerate() {
            if let Err(error) = self.tell(registrar.as_ref(), id) {
                tracing::warn!(%error, "a device cannot reach another chunk of buffers");
                self.registrars[..count].iter().for_each(|told| told.unmapping(id));
                self.bases[id.index()] = None;
                return Err(error);
            }
        }
        Ok(())
    }

    fn tell(&self, registrar: &dyn Registrar, id: ChunkId) -> std::io::Result<()> {
        let base = self.bases.get(id.index()).copied().flatten();
        match base.and_then(|base| NonNull::new(std::ptr::with_exposed_provenance_mut(base))) {
            Some(base) => registrar.mapped(id, base, CHUNK),
            None => Ok(()),
        }
    }

    /// The chunks that are mapped.
    fn mapped_ids(&self) -> impl Iterator<Item = ChunkId> {
        let ids = self.bases.iter().zip(0..).filter(|(base, _)| base.is_some());
        ids.map(|(_, id)| ChunkId(id))
    }
}

impl fmt::Debug for SharedPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedPool").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

/// Huge pages of 2 MiB that are reserved and free; 0 where there are none or it cannot be told.
fn huge_pages_free() -> usize {
    std::fs::read_to_string("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages")
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(0)
}

/// Bytes of memory the machine has.
fn physical_memory() -> usize {
    let info = rustix::system::sysinfo();
    usize::try_from(info.totalram).unwrap_or(usize::MAX).saturating_mul(info.mem_unit as usize)
}

#[cfg(test)]
mod tests {
    use std::sync::Weak;
    use std::sync::atomic::AtomicUsize;

    use super::*;

    /// Uses the pool while it is told that chunks go, as cores do on other threads: looks, takes one, and gives all
    /// back.
    #[derive(Debug, Default)]
    struct Slow {
        pool: Mutex<Weak<SharedPool>>,
        chunks: Mutex<Vec<Chunk>>,
        told: AtomicUsize,
        least_mapped: AtomicUsize,
    }

    impl Registrar for Slow {
        fn mapped(&self, _: ChunkId, _: NonNull<u8>, _: usize) -> std::io::Result<()> {
            Ok(())
        }

        fn unmapping(&self, _: ChunkId) {
            let pool = self.pool.lock().unwrap().upgrade().unwrap();
            assert!(pool.state.try_lock().is_ok(), "nobody can use the pool");
            for chunk in self.chunks.lock().unwrap().drain(..) {
                pool.give(chunk, Arena::Reserve, false);
            }
            self.told.fetch_add(1, Ordering::Relaxed);
            self.least_mapped.fetch_min(pool.stats().mapped / CHUNK, Ordering::Relaxed);
            // One that comes now is none that it knows.
            if self.told.load(Ordering::Relaxed) == 1 {
                let taken: Vec<Chunk> = (0..=COUNT)
                    .map(|_| pool.take(Arena::Reserve, false).expect("a chunk"))
                    .collect();
                taken.into_iter().for_each(|chunk| pool.give(chunk, Arena::Reserve, false));
            }
        }
    }

    const COUNT: usize = 3 * WARM;

    #[test]
    fn a_registrar_that_leaves_keeps_nobody_from_the_pool_and_every_chunk_that_it_knows() {
        let config =
            PoolConfig { reserve: (COUNT + 1) * CHUNK, huge_pages: false, ..PoolConfig::default() };
        let pool = SharedPool::new(config).unwrap();
        let slow = Arc::new(Slow { least_mapped: usize::MAX.into(), ..Slow::default() });
        *slow.pool.lock().unwrap() = Arc::downgrade(&pool);
        let registrar: Arc<dyn Registrar> = slow.clone();
        pool.add_registrar(Arc::clone(&registrar)).unwrap();
        let chunks = (0..COUNT).map(|_| pool.take(Arena::Reserve, false).expect("a chunk"));
        *slow.chunks.lock().unwrap() = chunks.collect();
        pool.remove_registrar(&registrar);
        assert_eq!(slow.told.load(Ordering::Relaxed), COUNT);
        assert_eq!(slow.least_mapped.load(Ordering::Relaxed), COUNT);
        // It has left: what comes back now goes to the system again.
        let chunk = pool.take(Arena::Reserve, false).expect("a chunk");
        let before = pool.stats().mapped;
        pool.give(chunk, Arena::Reserve, false);
        assert_eq!(pool.stats().mapped, before - CHUNK);
        pool.remove_registrar(&registrar);
        assert_eq!(slow.told.load(Ordering::Relaxed), COUNT, "told twice");
    }
}
