//! One reactor's pool: size classes over chunks, leased and returned without lock or atomics.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use thiserror::Error;

use super::buffer::Buffer;
use super::chunk::{CHUNK, Carved, Slot};
use super::reserve::Reserve;
use super::shared::{Arena, NoChunk, SharedPool};

/// The smallest class, in bytes: a page, so that every buffer suits direct I/O.
pub const MIN_CLASS: usize = 4096;

/// Size classes of one arena: powers of two from [`MIN_CLASS`] to [`CHUNK`].
const SIZES: usize = (CHUNK / MIN_CLASS).ilog2() as usize + 1;

/// Data classes first, reserve classes behind them.
const CLASSES: usize = 2 * SIZES;

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
    /// The kernel gave no memory although the cap is not reached.
    #[error("the system has no memory for another chunk of buffers")]
    NoMemory,
}

/// A reactor's pool of buffers; clones are the same pool. It stays on its thread.
#[derive(Clone)]
pub struct CorePool {
    core: Rc<Core>,
}

pub(super) struct Core {
    shared: Arc<SharedPool>,
    classes: [Class; CLASSES],
    chunks: RefCell<Vec<Rc<Carved>>>,
    /// Buffers out, of both arenas.
    leased: Cell<usize>,
    /// Chunks of each arena, and those of them with no lease out.
    held: [Cell<usize>; 2],
    empty: [Cell<usize>; 2],
}

/// The free slots of one size, the last returned on top.
#[derive(Default)]
struct Class {
    free: RefCell<Vec<Slot>>,
    /// Entries of `free` whose chunk was carved anew since: skipped, and swept when they are
    /// the larger half.
    stale: Cell<usize>,
    /// Reserve classes: buffers promised to reserves, and slots there are.
    promised: Cell<usize>,
    slots: Cell<usize>,
}

impl CorePool {
    /// A pool for the calling thread; it holds nothing yet and is sure to get one chunk.
    pub fn new(shared: &Arc<SharedPool>) -> Self {
        shared.register_core();
        let core = Core {
            shared: Arc::clone(shared),
            classes: std::array::from_fn(|_| Class::default()),
            chunks: RefCell::new(Vec::new()),
            leased: Cell::new(0),
            held: [Cell::new(0), Cell::new(0)],
            empty: [Cell::new(0), Cell::new(0)],
        };
        Self { core: Rc::new(core) }
    }

    /// A buffer of `len` bytes. Its contents are whatever was there.
    ///
    /// # Errors
    /// See [`LeaseError`]. A pool with no buffer out never answers `Exhausted`.
    #[inline]
    pub fn lease(&self, len: usize) -> Result<Buffer, LeaseError> {
        let max = self.core.shared.config().max_lease;
        if len > max {
            return Err(LeaseError::TooLarge { len, max });
        }
        let class = class_of(len);
        let slot = match self.core.pop(class) {
            Some(slot) => slot,
            None => self.core.refill(class)?,
        };
        Ok(Buffer::new(&self.core, slot, size_of_class(class), len, None))
    }

    /// `count` buffers of `len` bytes that can always be had: the in-capsule slots of a queue.
    /// Memory is promised, not touched; reserves of one size share what is not in use.
    ///
    /// # Errors
    /// See [`LeaseError`]; `Exhausted` when the reserve part of the cap is promised already.
    pub fn reserve(&self, count: usize, len: usize) -> Result<Reserve, LeaseError> {
        let max = self.core.shared.config().max_lease;
        if len > max {
            return Err(LeaseError::TooLarge { len, max });
        }
        let class = SIZES + class_of(len);
        self.core.promise(class, count)?;
        Ok(Reserve::new(&self.core, class, count, len))
    }

    /// Buffers out now, leases and reserves' alike.
    pub fn leased(&self) -> usize {
        self.core.leased.get()
    }

    /// Bytes of chunks this core holds.
    pub fn held(&self) -> usize {
        (self.core.held[0].get() + self.core.held[1].get()) * CHUNK
    }

    /// Gives every chunk without a lease back to the shared pool. For a reactor about to sleep.
    pub fn trim(&self) {
        self.core.release_empty();
    }

    /// Gives chunks without a lease back if another core waits for one. Cheap: for every turn.
    pub fn balance(&self) {
        if self.core.empty[0].get() > 0 && self.core.shared.is_starved() {
            self.core.release_empty();
        }
    }

    /// The pool behind all cores' pools.
    pub fn shared(&self) -> &Arc<SharedPool> {
        &self.core.shared
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

impl Core {
    /// Takes the free slot of `class` that was returned last.
    #[inline]
    pub(super) fn pop(&self, class: usize) -> Option<Slot> {
        let mut free = self.classes[class].free.borrow_mut();
        loop {
            let slot = free.pop()?;
            if slot.is_current() {
                let out = slot.chunk.out();
                if out == 0 {
                    let empty = &self.empty[arena_index(class)];
                    empty.set(empty.get() - 1);
                }
                slot.chunk.set_out(out + 1);
                self.leased.set(self.leased.get() + 1);
                return Some(slot);
            }
            let stale = &self.classes[class].stale;
            stale.set(stale.get() - 1);
        }
    }

    /// Takes back the slot of a buffer that is no more.
    #[inline]
    pub(super) fn push(&self, slot: Slot) {
        let class = slot.chunk.class();
        let out = slot.chunk.out() - 1;
        slot.chunk.set_out(out);
        self.leased.set(self.leased.get() - 1);
        self.classes[class].free.borrow_mut().push(slot);
        if out == 0 {
            let empty = &self.empty[arena_index(class)];
            empty.set(empty.get() + 1);
            if self.shared.is_starved() {
                self.release_empty();
            }
        }
    }

    /// A slot of a data class that has none free: from a chunk of another class with no lease
    /// out, or from a new chunk.
    #[cold]
    fn refill(&self, class: usize) -> Result<Slot, LeaseError> {
        if let Some(chunk) = self.find_empty(Arena::Data) {
            self.void_slots(&chunk);
            chunk.retype(class);
            self.carve(&chunk, class);
        } else {
            self.add_chunk(class)?;
        }
        self.pop(class).ok_or(LeaseError::Exhausted)
    }

    fn add_chunk(&self, class: usize) -> Result<(), LeaseError> {
        let arena = arena_of(class);
        let held = &self.held[arena_index(class)];
        let chunk = self.shared.take(arena, held.get() == 0).map_err(|why| match why {
            NoChunk::Exhausted => LeaseError::Exhausted,
            NoChunk::NoMemory => LeaseError::NoMemory,
        })?;
        let chunk = Rc::new(Carved::new(chunk, class));
        held.set(held.get() + 1);
        let empty = &self.empty[arena_index(class)];
        empty.set(empty.get() + 1);
        self.carve(&chunk, class);
        self.chunks.borrow_mut().push(chunk);
        Ok(())
    }

    /// Puts all slots of a chunk on the stack of `class`, the lowest address on top.
    fn carve(&self, chunk: &Rc<Carved>, class: usize) {
        let generation = chunk.generation();
        let count = slots_of_class(class);
        let slots = &self.classes[class].slots;
        slots.set(slots.get() + count as usize);
        self.classes[class].free.borrow_mut().extend((0..count).rev().map(|index| Slot {
            chunk: Rc::clone(chunk),
            index,
            generation,
        }));
    }

    fn find_empty(&self, arena: Arena) -> Option<Rc<Carved>> {
        if self.empty[arena as usize].get() == 0 {
            return None;
        }
        let chunks = self.chunks.borrow();
        chunks.iter().find(|c| c.out() == 0 && arena_of(c.class()) == arena).map(Rc::clone)
    }

    /// The slots of an unleased chunk are about to be void: counts them, sweeps when many are.
    fn void_slots(&self, chunk: &Rc<Carved>) {
        let class = &self.classes[chunk.class()];
        let count = slots_of_class(chunk.class()) as usize;
        class.slots.set(class.slots.get() - count);
        class.stale.set(class.stale.get() + count);
        let mut free = class.free.borrow_mut();
        if class.stale.get() * 2 > free.len() {
            free.retain(|slot| slot.is_current() && !Rc::ptr_eq(&slot.chunk, chunk));
            class.stale.set(0);
        }
    }

    /// Gives chunks without a lease to the shared pool; a reserve keeps what it was promised.
    #[cold]
    fn release_empty(&self) {
        let mut chunks = self.chunks.borrow_mut();
        chunks.retain(|chunk| {
            let class = chunk.class();
            let of = &self.classes[class];
            // A promise under way may be ahead of its slots.
            let spare = of.slots.get().saturating_sub(of.promised.get());
            let promised = class >= SIZES && spare < slots_of_class(class) as usize;
            if chunk.out() > 0 || promised {
                return true;
            }
            self.void_slots(chunk);
            let arena = arena_index(class);
            self.empty[arena].set(self.empty[arena].get() - 1);
            self.held[arena].set(self.held[arena].get() - 1);
            if let Some(memory) = chunk.take() {
                self.shared.give(memory, arena_of(class), self.held[arena].get() == 0);
            }
            false
        });
    }

    /// Makes sure `count` more buffers of a reserve class can be had at once.
    fn promise(&self, class: usize, count: usize) -> Result<(), LeaseError> {
        let promised = &self.classes[class].promised;
        promised.set(promised.get() + count);
        while self.classes[class].slots.get() < promised.get() {
            let added = self.add_chunk(class).or_else(|_| {
                self.release_empty();
                self.add_chunk(class)
            });
            if let Err(error) = added {
                self.unpromise(class, count);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Ends a promise; chunks nobody is promised any more go back.
    pub(super) fn unpromise(&self, class: usize, count: usize) {
        let promised = &self.classes[class].promised;
        promised.set(promised.get() - count);
        self.release_empty();
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        // Every buffer and reserve holds the core, so none is left: all chunks are empty.
        self.release_empty();
        debug_assert!(self.chunks.borrow().is_empty());
        self.shared.unregister_core();
    }
}

/// The data class that holds `len` bytes.
#[inline]
fn class_of(len: usize) -> usize {
    let pages = len.div_ceil(MIN_CLASS).max(1);
    pages.next_power_of_two().ilog2() as usize
}

/// Bytes of a slot of `class`, of either arena.
#[inline]
pub(super) fn size_of_class(class: usize) -> usize {
    MIN_CLASS << (class % SIZES)
}

fn slots_of_class(class: usize) -> u32 {
    u32::try_from(CHUNK / size_of_class(class)).unwrap_or(u32::MAX)
}

fn arena_of(class: usize) -> Arena {
    if class < SIZES { Arena::Data } else { Arena::Reserve }
}

#[inline]
fn arena_index(class: usize) -> usize {
    usize::from(class >= SIZES)
}
