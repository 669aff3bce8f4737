//! A submission queue and its completion queue, as one (Base 3.3.1, 3.3.3): entries, doorbells, phase.
//!
//! Whoever has it is the only one who touches its memory, besides the device. It keeps no more commands than
//! the queue holds: that is its user's part, by command slots, of which there are fewer than entries.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use nvmeof_wire::queues::needs_doorbell;
use nvmeof_wire::zerocopy::{FromBytes, IntoBytes};
use nvmeof_wire::{Cqe, Sqe};

use super::memory::DmaMemory;
use super::seam::Registers;

const SQE: usize = nvmeof_wire::sqe::SQE_SIZE;
const CQE: usize = nvmeof_wire::cqe::CQE_SIZE;
const PAGE: usize = crate::dma::PAGE;

/// Shadow doorbells of all queues and the values at which the device wants a real one (Base 5.8).
#[derive(Debug)]
pub(super) struct Shadows {
    /// The shadow doorbells in the first page, the event indexes in the second.
    memory: DmaMemory,
}

impl Shadows {
    pub(super) fn new(memory: DmaMemory) -> Self {
        Self { memory }
    }

    /// Bytes of memory it takes.
    pub(super) const SIZE: usize = 2 * PAGE;

    pub(super) fn addresses(&self) -> (u64, u64) {
        (self.memory.address(0), self.memory.address(PAGE))
    }

    /// Everything 0, as a new configuration begins.
    pub(super) fn clear(&self) {
        self.memory.clear(0, Self::SIZE);
    }

    /// Leaves `new` where the device looks; true if it wants to be told by the doorbell as well.
    #[inline]
    fn update(&self, at: usize, old: u16, new: u16) -> bool {
        self.memory.store32(at, u32::from(new));
        // The device writes the event index, then reads the doorbell; we write the doorbell, then read the event
        // index: one of the two sees the other's.
        fence(Ordering::SeqCst);
        let [e0, e1, ..] = self.memory.load32(PAGE + at).to_le_bytes();
        needs_doorbell(u16::from_le_bytes([e0, e1]), new, old)
    }
}

/// A doorbell, and the last value that went there.
#[derive(Debug)]
struct Doorbell {
    /// Offset of the register.
    register: u32,
    /// Offset of the shadow, inside its page.
    shadow: Option<usize>,
    rung: u16,
    /// The next value goes to the register, whatever the event index says: the device has not looked yet.
    force: bool,
    /// All values go to the register: controllers do not look at the shadows of the admin queue by themselves.
    always: bool,
}

impl Doorbell {
    #[inline]
    fn ring(&mut self, regs: &dyn Registers, shadows: Option<&Shadows>, value: u16) {
        if value == self.rung {
            return;
        }
        let is_wanted = match (shadows, self.shadow) {
            (Some(shadows), Some(at)) => shadows.update(at, self.rung, value),
            _ => true,
        };
        if is_wanted || self.force || self.always {
            self.force = false;
            regs.write32(self.register, u32::from(value));
        }
        self.rung = value;
    }

    fn reset(&mut self) {
        self.rung = 0;
        self.force = true;
    }
}

/// A queue pair in memory.
pub(super) struct RingPair {
    memory: DmaMemory,
    qid: u16,
    entries: u16,
    tail: u16,
    head: u16,
    phase: bool,
    tail_bell: Doorbell,
    head_bell: Doorbell,
    shadows: Option<Arc<Shadows>>,
    /// The controller's generation that the positions are of; 0: none yet.
    generation: u64,
}

impl RingPair {
    /// Bytes of memory for a queue pair with this many entries. Each queue starts on a page.
    pub(super) fn size(entries: u16) -> usize {
        Self::completions_at(entries) + usize::from(entries) * CQE
    }

    fn completions_at(entries: u16) -> usize {
        (usize::from(entries) * SQE).next_multiple_of(PAGE)
    }

    /// Queue `qid` with the doorbells (tail, head) at these offsets.
    pub(super) fn new(memory: DmaMemory, qid: u16, entries: u16, doorbells: (u32, u32)) -> Self {
        let bell =
            |register| Doorbell { register, shadow: None, rung: 0, force: true, always: qid == 0 };
        Self {
            memory,
            qid,
            entries,
            tail: 0,
            head: 0,
            phase: true,
            tail_bell: bell(doorbells.0),
            head_bell: bell(doorbells.1),
            shadows: None,
            generation: 0,
        }
    }

    /// Uses shadow doorbells from now on, where they are inside the page; or none.
    pub(super) fn set_shadows(&mut self, shadows: Option<Arc<Shadows>>, dstrd: u8) {
        use nvmeof_wire::pcie::Doorbell::{CompletionHead, SubmissionTail};
        let place = |doorbell: nvmeof_wire::pcie::Doorbell| {
            let at = usize::try_from(doorbell.stride_offset(dstrd)).ok()?;
            (at + 4 <= PAGE).then_some(at)
        };
        self.tail_bell.shadow = place(SubmissionTail(self.qid));
        self.head_bell.shadow = place(CompletionHead(self.qid));
        self.shadows = shadows;
    }

    pub(super) fn qid(&self) -> u16 {
        self.qid
    }

    pub(super) fn entries(&self) -> u16 {
        self.entries
    }

    /// Where the next command goes.
    #[inline]
    pub(super) fn tail(&self) -> u16 {
        self.tail
    }

    /// Whether the device was told of the command at this place, which it has not answered.
    pub(super) fn is_shown(&self, at: u16) -> bool {
        let from_rung = |place: u16| (place + self.entries - self.tail_bell.rung) % self.entries;
        from_rung(at) >= from_rung(self.tail)
    }

    /// Where the device finds the submission queue and the completion queue.
    pub(super) fn addresses(&self) -> (u64, u64) {
        (self.memory.address(0), self.memory.address(Self::completions_at(self.entries)))
    }

    /// Begins anew for `generation`, if it has not yet: the device has just created the queues, and nothing was
    /// submitted since.
    pub(super) fn begin(&mut self, generation: u64) {
        if self.generation == generation {
            return;
        }
        self.generation = generation;
        // Phase tags of the last generation must not be taken for this one's.
        let completions = Self::completions_at(self.entries);
        self.memory.clear(completions, usize::from(self.entries) * CQE);
        (self.tail, self.head, self.phase) = (0, 0, true);
        self.tail_bell.reset();
        self.head_bell.reset();
    }

    /// Writes a command. The device learns of it with [`ring`](Self::ring).
    #[inline]
    pub(super) fn push(&mut self, sqe: &Sqe) {
        self.memory.write(usize::from(self.tail) * SQE, sqe.as_bytes());
        self.tail = if self.tail + 1 == self.entries { 0 } else { self.tail + 1 };
    }

    /// The next completion, if there is one.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<Cqe> {
        let at = Self::completions_at(self.entries) + usize::from(self.head) * CQE;
        // The half with the phase tag first: what comes with it is read after it.
        let high = self.memory.load64(at + 8);
        if (high >> 48 & 1 == 1) != self.phase {
            return None;
        }
        let low = self.memory.load64(at);
        self.head += 1;
        if self.head == self.entries {
            (self.head, self.phase) = (0, !self.phase);
        }
        let mut bytes = [0; CQE];
        bytes[..8].copy_from_slice(&low.to_le_bytes());
        bytes[8..].copy_from_slice(&high.to_le_bytes());
        Cqe::read_from_bytes(&bytes).ok()
    }

    /// Tells the device of all commands written and all completions taken: one write a queue, or none.
    #[inline]
    pub(super) fn ring(&mut self, regs: &dyn Registers) {
        let shadows = self.shadows.as_deref();
        self.head_bell.ring(regs, shadows, self.head);
        self.tail_bell.ring(regs, shadows, self.tail);
    }
}

impl fmt::Debug for RingPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RingPair")
            .field("qid", &self.qid)
            .field("tail", &self.tail)
            .field("head", &self.head)
            .field("generation", &self.generation)
            .finish_non_exhaustive()
    }
}
