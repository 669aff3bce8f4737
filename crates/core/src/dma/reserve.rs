//! Reservations of buffers for a queue.

use std::fmt;
use std::rc::Rc;

use super::buffer::Buffer;
use super::core_state::Core;
use super::slab::ReservationId;

/// A reservation of a number of buffers of one length, within the reserve part of the pool's cap.
/// Buffers may outlive it: their memory is released with the last of them.
pub struct BufferReservation {
    core: Rc<Core>,
    promise: ReservationId,
    len: usize,
}

impl BufferReservation {
    pub(super) fn new(core: &Rc<Core>, promise: ReservationId, len: usize) -> Self {
        Self { core: Rc::clone(core), promise, len }
    }

    /// Leases one of the reserved buffers; `None` only when all of them are leased.
    #[inline]
    pub fn lease(&self) -> Option<Buffer> {
        let (slot, base, class) = self.core.lease_promised(self.promise)?;
        Some(Buffer::new(&self.core, base, self.len, class, slot, self.promise))
    }

    /// Moves `buffer`, one of this reservation's, to `to`, which grows by one as this reservation
    /// shrinks. When the buffer is dropped, `to` has one more to lease.
    ///
    /// Returns false and does nothing if the buffer is a part or belongs to another reservation, or
    /// if the two reservations differ in size or core.
    pub fn pass(&self, buffer: &mut Buffer, to: &Self) -> bool {
        let is_ours = Rc::ptr_eq(&self.core, buffer.core()) && buffer.promise() == self.promise;
        let passes = is_ours
            && buffer.share() == 0
            && Rc::ptr_eq(&self.core, &to.core)
            && self.core.pass(self.promise, to.promise);
        if passes {
            buffer.set_promise(to.promise);
        }
        passes
    }

    /// Moves at most `most` of the buffers that are not leased to `to`; returns their number.
    pub fn pass_free(&self, most: usize, to: &Self) -> usize {
        if !Rc::ptr_eq(&self.core, &to.core) {
            return 0;
        }
        self.core.pass_free(self.promise, to.promise, most)
    }

    /// Returns the number of leased buffers of this reservation.
    pub fn leased(&self) -> usize {
        self.core.promised(self.promise).0
    }

    /// Returns the number of reserved buffers.
    pub fn count(&self) -> usize {
        self.core.promised(self.promise).1
    }
}

impl Drop for BufferReservation {
    fn drop(&mut self) {
        self.core.close_promise(self.promise);
    }
}

impl fmt::Debug for BufferReservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reserve")
            .field("count", &self.count())
            .field("leased", &self.leased())
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}
