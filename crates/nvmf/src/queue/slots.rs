//! Outstanding commands of a queue, and the submission queue head.

use nvmeof_wire::{Cqe, Status};

use crate::disposition::Response;
use crate::failure::Failure;

const WORDS: usize = (1 << 16) / 64;

/// Command identifiers in use, and the SQ head pointer.
///
/// A command occupies its entry until it completes, because the head moves with the completion. A
/// host that respects flow control therefore never exceeds the size of the queue.
pub(super) struct Slots {
    /// One bit per command identifier.
    in_use: Box<[u64; WORDS]>,
    outstanding: u32,
    /// Entries of the submission queue, which limit the outstanding commands.
    entries: u32,
    sqhd: u16,
    flow_control: bool,
    /// A successful response without a result may be folded into the data before it.
    folds: bool,
}

impl Slots {
    /// Creates slots for `entries` commands; SQHD counts modulo `entries`.
    pub(super) fn new(entries: u32) -> Self {
        Self {
            in_use: Box::new([0; WORDS]),
            outstanding: 0,
            entries,
            sqhd: 0,
            flow_control: true,
            folds: false,
        }
    }

    /// Applies the parameters of the Connect, which is the only outstanding command at that time.
    pub(super) fn settle(&mut self, entries: u32, flow_control: bool, folds: bool) {
        self.entries = entries;
        self.flow_control = flow_control;
        self.folds = folds;
        self.sqhd = 0;
    }

    /// Entries of the submission queue.
    pub(super) fn entries(&self) -> u32 {
        self.entries
    }

    /// Number of outstanding commands.
    pub(super) fn outstanding(&self) -> u32 {
        self.outstanding
    }

    /// Records a command that arrived.
    ///
    /// # Errors
    /// [`Failure::CidConflict`] or [`Failure::QueueOverrun`]. The command is not outstanding then;
    /// respond with [`Self::reject`].
    #[inline]
    pub(super) fn take(&mut self, cid: u16) -> Result<(), Failure> {
        let (word, bit) = place(cid);
        if self.in_use[word] & bit != 0 {
            return Err(Failure::CidConflict);
        }
        if self.outstanding >= self.entries {
            return Err(Failure::QueueOverrun);
        }
        self.in_use[word] |= bit;
        self.outstanding += 1;
        Ok(())
    }

    /// Builds the response and releases the identifier.
    ///
    /// A command that is not outstanding changes no count.
    #[inline]
    pub(super) fn complete(&mut self, cid: u16, status: Status, result: u64) -> Response {
        self.release(cid);
        self.reject(cid, status, result)
    }

    /// Ends a command that gets no response.
    pub(super) fn drop_command(&mut self, cid: u16) {
        self.release(cid);
        self.pass_on();
    }

    #[inline]
    fn release(&mut self, cid: u16) {
        let (word, bit) = place(cid);
        if self.in_use[word] & bit != 0 {
            self.in_use[word] &= !bit;
            self.outstanding -= 1;
        }
    }

    /// Builds the response to a command that was not taken.
    #[inline]
    pub(super) fn reject(&mut self, cid: u16, status: Status, result: u64) -> Response {
        let cqe = Cqe::new(cid, status).with_result(result);
        let elidable = self.folds && status.is_success() && result == 0;
        if !self.flow_control {
            // SQHD is reserved.
            return Response { cqe, elidable };
        }
        self.pass_on();
        Response { cqe: cqe.with_sqhd(self.sqhd), elidable }
    }

    /// Moves the head past an entry.
    pub(super) fn pass_on(&mut self) {
        let next = u32::from(self.sqhd) + 1;
        // There are 1 to 65536 entries, so any number below fits.
        self.sqhd = if next >= self.entries { 0 } else { self.sqhd.wrapping_add(1) };
    }
}

#[inline]
fn place(cid: u16) -> (usize, u64) {
    (usize::from(cid / 64), 1 << (cid % 64))
}

impl std::fmt::Debug for Slots {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Slots")
            .field("outstanding", &self.outstanding)
            .field("entries", &self.entries)
            .field("sqhd", &self.sqhd)
            .field("flow_control", &self.flow_control)
            .finish_non_exhaustive()
    }
}
