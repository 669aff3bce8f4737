//! Slab allocator of one core: the division of its chunks into slots, the free slots, and the
//! reservations. Plain bookkeeping, no memory is touched here.
//!
//! Invariant: the slots of a chunk are `[i * size, (i + 1) * size)` for its class. Class and
//! generation change only while none of them is leased. A free slot is on the stack of its class
//! once, with its generation; a leased one is on none. So no two leases ever overlap.

use std::ptr::NonNull;

use super::chunk::{CHUNK, Chunk};
use super::chunk_pool::Arena;
use super::registrar::ChunkId;

/// Smallest class in bytes: a page, so that every buffer suits direct I/O.
pub const MIN_CLASS: usize = 4096;

/// Number of size classes per arena: powers of two from [`MIN_CLASS`] to [`CHUNK`].
const SIZES: usize = (CHUNK / MIN_CLASS).ilog2() as usize + 1;

/// Size class of an arena: data classes first, then reserve classes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SizeClass(u8);

/// A slot: the core's index of the chunk, and the index in the chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SlotId {
    chunk: u32,
    index: u16,
}

/// A free slot; void if its chunk now has another generation.
#[derive(Debug, Clone, Copy)]
struct FreeSlot {
    id: SlotId,
    generation: u32,
}

/// Table entry for a chunk. It keeps its generation when the chunk is replaced.
#[derive(Debug)]
struct ChunkEntry {
    base: NonNull<u8>,
    id: ChunkId,
    generation: u32,
    out: u32,
    class: SizeClass,
    chunk: Option<Chunk>,
}

/// Free slots of one class, the last returned on top.
#[derive(Debug, Default)]
struct FreeList {
    free: Vec<FreeSlot>,
    /// Void entries of `free`: skipped, and removed when they are the majority.
    void: usize,
    /// Number of slots, free or leased.
    slots: usize,
    /// Slots reserved.
    promised: usize,
}

/// A reservation of a number of slots; it ends when it is closed and none of them is leased.
#[derive(Debug, Clone, Copy)]
struct Reservation {
    class: SizeClass,
    count: usize,
    out: usize,
    open: bool,
}

/// Number of a reservation, from 1; 0 stands for none.
pub(super) type ReservationId = u32;

/// A chunk that leaves its core.
#[derive(Debug)]
pub(super) struct DetachedChunk {
    pub(super) chunk: Chunk,
    pub(super) arena: Arena,
    /// True if the core holds no other chunk of that arena.
    pub(super) last: bool,
}

#[derive(Debug)]
pub(super) struct SlabAllocator {
    stacks: [FreeList; 2 * SIZES],
    places: Vec<ChunkEntry>,
    promises: Vec<Reservation>,
    leased: usize,
    /// Number of chunks of each arena, and of those without a leased slot.
    held: [usize; 2],
    empty: [usize; 2],
}

impl SizeClass {
    /// Returns the smallest class of `arena` that holds `len` bytes, at most [`CHUNK`].
    #[inline]
    pub(super) fn of(len: usize, arena: Arena) -> Self {
        debug_assert!(len <= CHUNK);
        // Bits of the last page's number: 0 for 1 page, 1 for 2, 2 for 3 and 4, ...
        let last_page = len.saturating_sub(1) / MIN_CLASS;
        let size = usize::BITS - last_page.leading_zeros();
        let first = if arena == Arena::Data { 0 } else { SIZES };
        #[expect(clippy::cast_possible_truncation, reason = "below 2 * SIZES, asserted to fit")]
        Self((size as usize + first) as u8)
    }

    /// Returns the bytes per slot.
    #[inline]
    pub(super) fn size(self) -> usize {
        MIN_CLASS << (self.at() % SIZES)
    }

    fn slots_per_chunk(self) -> usize {
        CHUNK / self.size()
    }

    #[inline]
    pub(super) fn arena(self) -> Arena {
        if self.at() < SIZES { Arena::Data } else { Arena::BufferReservation }
    }

    #[inline]
    fn at(self) -> usize {
        usize::from(self.0)
    }
}

const _: () = assert!(2 * SIZES <= u8::MAX as usize && CHUNK / MIN_CLASS <= u16::MAX as usize);

impl SlabAllocator {
    pub(super) fn new() -> Self {
        Self {
            stacks: std::array::from_fn(|_| FreeList::default()),
            places: Vec::new(),
            promises: Vec::new(),
            leased: 0,
            held: [0; 2],
            empty: [0; 2],
        }
    }

    /// Leases the free slot of `class` that was returned last; returns its address, too.
    #[inline]
    pub(super) fn lease(&mut self, class: SizeClass) -> Option<(SlotId, NonNull<u8>)> {
        let stack = &mut self.stacks[class.at()];
        loop {
            let FreeSlot { id, generation } = stack.free.pop()?;
            let place = &mut self.places[id.chunk as usize];
            if place.generation != generation {
                stack.void -= 1;
                continue;
            }
            if place.out == 0 {
                self.empty[class.arena() as usize] -= 1;
            }
            place.out += 1;
            self.leased += 1;
            let offset = usize::from(id.index) * class.size();
            debug_assert!(offset + class.size() <= CHUNK);
            // SAFETY: `base` is the start of a mapping of CHUNK bytes that stays mapped while a
            // slot of it is leased. `index` is below `CHUNK / size` for the class of the chunk:
            // only `carve` creates indices, and slots of an earlier class are void.
            return Some((id, unsafe { place.base.add(offset) }));
        }
    }

    /// Returns a leased slot to the free ones; returns true if its chunk has no other slot leased.
    #[inline]
    pub(super) fn give_back(&mut self, id: SlotId, promise: ReservationId) -> bool {
        let place = &mut self.places[id.chunk as usize];
        place.out -= 1;
        self.leased -= 1;
        let (class, emptied) = (place.class, place.out == 0);
        let generation = place.generation;
        self.stacks[class.at()].free.push(FreeSlot { id, generation });
        if emptied {
            self.empty[class.arena() as usize] += 1;
        }
        if promise != 0 {
            self.promise(promise).out -= 1;
            self.end_if_done(promise);
        }
        emptied
    }

    /// Returns the chunk of a leased slot.
    #[inline]
    pub(super) fn chunk_of(&self, id: SlotId) -> ChunkId {
        self.places[id.chunk as usize].id
    }

    /// Adds a new chunk, divided into slots of `class`.
    pub(super) fn add(&mut self, chunk: Chunk, class: SizeClass) {
        let arena = class.arena() as usize;
        self.held[arena] += 1;
        self.empty[arena] += 1;
        let (base, id) = (chunk.base(), chunk.id());
        let at = match self.places.iter().position(|place| place.chunk.is_none()) {
            Some(at) => {
                let place = &mut self.places[at];
                (place.base, place.id) = (base, id);
                (place.class, place.chunk) = (class, Some(chunk));
                at
            }
            None => {
                let (generation, out, chunk) = (0, 0, Some(chunk));
                self.places.push(ChunkEntry { base, id, generation, out, class, chunk });
                self.places.len() - 1
            }
        };
        self.carve(at, class);
    }

    /// Divides a chunk of the same arena without a leased slot into slots of `class`; returns false
    /// if there is none.
    pub(super) fn change_class(&mut self, class: SizeClass) -> bool {
        let arena = class.arena();
        if self.empty[arena as usize] == 0 {
            return false;
        }
        let unused = |place: &ChunkEntry| {
            place.out == 0 && place.chunk.is_some() && place.class.arena() == arena
        };
        let Some(at) = self.places.iter().position(unused) else {
            debug_assert!(false, "a chunk without a lease is counted and does not exist");
            return false;
        };
        self.void(at);
        self.places[at].class = class;
        self.carve(at, class);
        true
    }

    /// Removes every chunk without a leased slot, except `keep` and those that are reserved.
    pub(super) fn take_empty(&mut self, mut keep: usize) -> Vec<DetachedChunk> {
        let mut leaving = Vec::new();
        for at in 0..self.places.len() {
            let ChunkEntry { class, out, .. } = self.places[at];
            if out > 0 || !self.is_spare(class) || self.places[at].chunk.is_none() {
                continue;
            }
            if keep > 0 {
                keep -= 1;
                continue;
            }
            self.void(at);
            let arena = class.arena();
            self.held[arena as usize] -= 1;
            self.empty[arena as usize] -= 1;
            if let Some(chunk) = self.places[at].chunk.take() {
                leaving.push(DetachedChunk { chunk, arena, last: self.held[arena as usize] == 0 });
            }
        }
        leaving
    }

    /// Reserves `count` slots of `class`. The caller adds missing slots before it uses the
    /// reservation: see [`lacks`](Self::lacks).
    pub(super) fn add_promise(&mut self, class: SizeClass, count: usize) -> ReservationId {
        self.stacks[class.at()].promised += count;
        let promise = Reservation { class, count, out: 0, open: true };
        let ended = |p: &Reservation| !p.open && p.out == 0;
        let at = self.promises.iter().position(ended).unwrap_or(self.promises.len());
        if at == self.promises.len() {
            self.promises.push(promise);
        } else {
            self.promises[at] = promise;
        }
        ReservationId::try_from(at + 1).unwrap_or(ReservationId::MAX)
    }

    /// Returns true if `class` has fewer slots than are reserved.
    pub(super) fn lacks(&self, class: SizeClass) -> bool {
        let stack = &self.stacks[class.at()];
        stack.slots < stack.promised
    }

    /// Leases a reserved slot; `None` only if all of them are leased.
    #[inline]
    pub(super) fn lease_promised(
        &mut self,
        id: ReservationId,
    ) -> Option<(SlotId, NonNull<u8>, SizeClass)> {
        let promise = self.promise(id);
        if promise.out == promise.count {
            return None;
        }
        promise.out += 1;
        let class = promise.class;
        let leased = self.lease(class);
        if leased.is_none() {
            debug_assert!(false, "a promised slot is not there");
            self.promise(id).out -= 1;
        }
        leased.map(|(slot, base)| (slot, base, class))
    }

    /// Moves a leased slot from `from` to `to`; returns false if their classes differ.
    pub(super) fn pass(&mut self, from: ReservationId, to: ReservationId) -> bool {
        if from == to || !self.are_alike(from, to) {
            return false;
        }
        for (id, gained) in [(from, false), (to, true)] {
            let promise = self.promise(id);
            let changed = |number: usize| if gained { number + 1 } else { number - 1 };
            (promise.count, promise.out) = (changed(promise.count), changed(promise.out));
        }
        true
    }

    /// Moves at most `most` slots of `from` that are not leased to `to`; returns their number.
    pub(super) fn pass_free(
        &mut self,
        from: ReservationId,
        to: ReservationId,
        most: usize,
    ) -> usize {
        if from == to || !self.are_alike(from, to) {
            return 0;
        }
        let given = self.promise(from);
        let free = (given.count - given.out).min(most);
        given.count -= free;
        self.promise(to).count += free;
        free
    }

    /// Returns the leased slots and all slots of a reservation.
    pub(super) fn promised(&self, id: ReservationId) -> (usize, usize) {
        let promise = &self.promises[id as usize - 1];
        (promise.out, promise.count)
    }

    /// Closes a reservation: no slot is leased from it any more, and it ends with its last slot.
    pub(super) fn close_promise(&mut self, id: ReservationId) {
        self.promise(id).open = false;
        self.end_if_done(id);
    }

    /// Returns the number of leased slots of both arenas.
    pub(super) fn leased(&self) -> usize {
        self.leased
    }

    /// Returns the number of chunks held, of both arenas or of one.
    pub(super) fn held(&self, arena: Option<Arena>) -> usize {
        arena.map_or(self.held[0] + self.held[1], |arena| self.held[arena as usize])
    }

    /// Returns the number of chunks without a leased slot.
    pub(super) fn empty(&self) -> usize {
        self.empty[0] + self.empty[1]
    }

    fn are_alike(&self, one: ReservationId, other: ReservationId) -> bool {
        let class = |id: ReservationId| self.promises[id as usize - 1].class;
        class(one) == class(other)
    }

    #[inline]
    fn promise(&mut self, id: ReservationId) -> &mut Reservation {
        &mut self.promises[id as usize - 1]
    }

    fn end_if_done(&mut self, id: ReservationId) {
        let promise = *self.promise(id);
        if !promise.open && promise.out == 0 {
            self.stacks[promise.class.at()].promised -= promise.count;
        }
    }

    /// Returns true if a chunk's worth of slots of `class` is not reserved.
    fn is_spare(&self, class: SizeClass) -> bool {
        let stack = &self.stacks[class.at()];
        // A reservation being created may exceed its slots.
        stack.slots.saturating_sub(stack.promised) >= class.slots_per_chunk()
            || class.arena() == Arena::Data
    }

    /// Puts all slots of a chunk on the stack of `class`, the lowest address on top.
    fn carve(&mut self, at: usize, class: SizeClass) {
        debug_assert!(u32::try_from(at).is_ok(), "chunk {at}");
        let chunk = u32::try_from(at).unwrap_or(u32::MAX);
        let generation = self.places[at].generation;
        let stack = &mut self.stacks[class.at()];
        stack.slots += class.slots_per_chunk();
        debug_assert!(u16::try_from(class.slots_per_chunk()).is_ok(), "more slots than indexes");
        let count = u16::try_from(class.slots_per_chunk()).unwrap_or(0);
        stack.free.extend(
            (0..count).rev().map(|index| FreeSlot { id: SlotId { chunk, index }, generation }),
        );
    }

    /// Makes the slots of a chunk void. None of them is leased, so all are on the stack.
    fn void(&mut self, at: usize) {
        let place = &mut self.places[at];
        assert_eq!(place.out, 0, "a chunk with leases out keeps its class and its core");
        place.generation = place.generation.wrapping_add(1);
        let class = place.class;
        let stack = &mut self.stacks[class.at()];
        stack.slots -= class.slots_per_chunk();
        stack.void += class.slots_per_chunk();
        if stack.void * 2 > stack.free.len() {
            let places = &self.places;
            stack.free.retain(|slot| places[slot.id.chunk as usize].generation == slot.generation);
            stack.void = 0;
        }
    }
}
