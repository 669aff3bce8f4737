//! Registered memory in small slots of one size: incoming commands and outgoing responses.

use nvmeof_core::dma::{Buffer, BufferReservation, CorePool, LeaseError};
use nvmeof_verbs::{Device, Sge};
use nvmeof_wire::Sqe;

use super::post;
use super::registration::Registration;

/// Bytes of a page of slots.
const PAGE: usize = 4096;

/// Slots of `size` bytes on pages of the pool's reservation.
#[derive(Debug)]
pub(super) struct Slab {
    pages: Vec<(Buffer, u32)>,
    size: usize,
    reserves: Vec<BufferReservation>,
}

impl Slab {
    /// Creates `count` slots of `size` bytes, a power of two up to a page.
    pub(super) fn new<D: Device>(
        pool: &CorePool,
        registration: &Registration<D>,
        count: usize,
        size: usize,
    ) -> Result<Self, LeaseError> {
        let mut slab = Self::empty(size);
        slab.grow(pool, registration, count)?;
        Ok(slab)
    }

    /// Creates a slab without slots, for slots of `size` bytes.
    pub(super) fn empty(size: usize) -> Self {
        debug_assert!(size.is_power_of_two() && size <= PAGE);
        Self { pages: Vec::new(), size, reserves: Vec::new() }
    }

    /// Grows to at least `count` slots.
    pub(super) fn grow<D: Device>(
        &mut self,
        pool: &CorePool,
        registration: &Registration<D>,
        count: usize,
    ) -> Result<(), LeaseError> {
        let more = count.div_ceil(PAGE / self.size).saturating_sub(self.pages.len());
        if more == 0 {
            return Ok(());
        }
        let reserve = pool.reserve(more, PAGE)?;
        for _ in 0..more {
            let buffer = reserve.lease().ok_or(LeaseError::Exhausted)?;
            let key = registration.key_of(&buffer);
            self.pages.push((buffer, key));
        }
        self.reserves.push(reserve);
        Ok(())
    }

    /// Removes the memory: no slots remain.
    pub(super) fn take_pages(&mut self) -> Vec<(Buffer, u32)> {
        std::mem::take(&mut self.pages)
    }

    /// Returns a slot as a scatter-gather element of a work request.
    ///
    /// # Panics
    /// If the slot does not exist (here and below): the caller counts its slots.
    pub(super) fn piece(&self, slot: usize) -> Sge {
        let (page, offset) = self.place(slot);
        let (buffer, lkey) = &self.pages[page];
        let address = buffer.as_ptr().expose_provenance() as u64 + offset as u64;
        let length = u32::try_from(self.size).expect("at most a page");
        Sge { address, length, lkey: *lkey }
    }

    /// Returns the command in a slot of 64 bytes.
    pub(super) fn command(&self, slot: usize) -> Sqe {
        let (page, offset) = self.place(slot);
        post::read_command(&self.pages[page].0, offset)
    }

    /// Fills a slot from its start.
    pub(super) fn write(&mut self, slot: usize, bytes: &[u8]) {
        assert!(bytes.len() <= self.size, "more bytes than a slot has");
        let (page, offset) = self.place(slot);
        post::write_slot(&mut self.pages[page].0, offset, bytes);
    }

    fn place(&self, slot: usize) -> (usize, usize) {
        let per_page = PAGE / self.size;
        (slot / per_page, slot % per_page * self.size)
    }
}
