//! A chunk: 2 MiB that a core carves into slots of one class, and what is known of its leases.

use std::cell::{Cell, RefCell};
use std::io;
use std::ptr::NonNull;

use super::mapping::Mapping;

/// Bytes of a chunk: one huge page. Also the largest lease there can be.
pub const CHUNK: usize = 2 << 20;

/// The memory of a chunk, wherever it is: in the shared pool or with a core.
#[derive(Debug)]
pub(super) struct Chunk {
    memory: Mapping,
    huge: bool,
}

impl Chunk {
    /// A huge page if `try_huge` and there is one, else ordinary pages.
    pub(super) fn map(try_huge: bool) -> io::Result<Self> {
        if try_huge && let Ok(memory) = Mapping::huge(CHUNK) {
            return Ok(Self { memory, huge: true });
        }
        let memory = Mapping::ordinary(CHUNK, CHUNK)?;
        Ok(Self { memory, huge: false })
    }

    pub(super) fn is_huge(&self) -> bool {
        self.huge
    }
}

/// A chunk with the core that carves it.
///
/// Invariant: slots are `[i * size, (i + 1) * size)` of the chunk for the current generation;
/// `out` of them are leased, and generation and size change only while `out` is 0. So no two
/// leases ever overlap.
#[derive(Debug)]
pub(super) struct Carved {
    chunk: RefCell<Option<Chunk>>,
    base: Cell<NonNull<u8>>,
    class: Cell<usize>,
    generation: Cell<u32>,
    out: Cell<u32>,
}

/// One slot of a carved chunk: a free one on its class's stack, a leased one inside a buffer.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) chunk: std::rc::Rc<Carved>,
    pub(super) index: u32,
    pub(super) generation: u32,
}

impl Slot {
    /// Whether the chunk is still carved the way it was when this slot was made.
    pub(super) fn is_current(&self) -> bool {
        self.chunk.generation.get() == self.generation
    }
}

impl Carved {
    pub(super) fn new(chunk: Chunk, class: usize) -> Self {
        let base = NonNull::new(chunk.memory.as_ptr()).unwrap_or(NonNull::dangling());
        debug_assert_eq!(chunk.memory.len(), CHUNK);
        Self {
            chunk: RefCell::new(Some(chunk)),
            base: Cell::new(base),
            class: Cell::new(class),
            generation: Cell::new(0),
            out: Cell::new(0),
        }
    }

    pub(super) fn class(&self) -> usize {
        self.class.get()
    }

    pub(super) fn generation(&self) -> u32 {
        self.generation.get()
    }

    /// Slots of this chunk that are leased.
    pub(super) fn out(&self) -> u32 {
        self.out.get()
    }

    pub(super) fn set_out(&self, out: u32) {
        self.out.set(out);
    }

    /// Carves the chunk anew; every slot made before is void. Only while no lease is out.
    pub(super) fn retype(&self, class: usize) {
        assert_eq!(self.out.get(), 0, "a chunk with leases out keeps its class");
        self.generation.set(self.generation.get().wrapping_add(1));
        self.class.set(class);
    }

    /// Takes the memory out, for the shared pool. Only while no lease is out.
    pub(super) fn take(&self) -> Option<Chunk> {
        assert_eq!(self.out.get(), 0, "a chunk with leases out stays with its core");
        self.generation.set(self.generation.get().wrapping_add(1));
        self.chunk.borrow_mut().take()
    }

    /// Address of slot `index` when slots are `size` bytes.
    pub(super) fn slot(&self, index: u32, size: usize) -> NonNull<u8> {
        let offset = index as usize * size;
        assert!(offset + size <= CHUNK, "slot {index} of {size} bytes is past its chunk");
        // SAFETY: `base` is the start of a mapping of CHUNK bytes and the offset lies in it
        // (asserted). The mapping is in `self.chunk` as long as a lease is out (`take` asserts).
        unsafe { self.base.get().add(offset) }
    }
}
