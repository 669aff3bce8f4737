//! A submission queue and its completion queue as a unit (Base 3.3.1, 3.3.3): entries, doorbells,
//! phase.
//!
//! Only its owner and the device access its memory. The owner must not exceed the queue size: it
//! has fewer command slots than the queue has entries.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use nvmeof_wire::queues::needs_doorbell;
use nvmeof_wire::zerocopy::{FromBytes, IntoBytes};
use nvmeof_wire::{Cqe, Sqe};

use super::function::Registers;
use super::memory::DmaMemory;

const SQE: usize = nvmeof_wire::sqe::SQE_SIZE;
const CQE: usize = nvmeof_wire::cqe::CQE_SIZE;
const PAGE: usize = crate::dma::PAGE;

/// Shadow doorbells of all queues, and the event indexes that request a real doorbell (Base 5.8).
#[derive(Debug)]
pub(super) struct Shadows {
    /// Shadow doorbells in the first page, event indexes in the second.
    memory: DmaMemory,
}

impl Shadows {
    pub(super) fn new(memory: DmaMemory) -> Self {
        Self { memory }
    }

    /// Bytes of memory required.
    pub(super) const SIZE: usize = 2 * PAGE;

    pub(super) fn addresses(&self) -> (u64, u64) {
        (self.memory.address(0), self.memory.address(PAGE))
    }

    /// Zeroes everything, as a new configuration requires.
    pub(super) fn clear(&self) {
        self.memory.clear(0, Self::SIZE);
    }

    /// Stores `new` in the shadow; returns true if the device also requires the doorbell.
    #[inline]
    fn update(&self, at: usize, old: u16, new: u16) -> bool {
        self.memory.store32(at, u32::from(new));
        // The device writes the event index, then reads the doorbell. The driver writes the
        // doorbell, then reads the event index. At least one of them sees the other's value.
        fence(Ordering::SeqCst);
        let [e0, e1, ..] = self.memory.load32(PAGE + at).to_le_bytes();
        needs_doorbell(u16::from_le_bytes([e0, e1]), new, old)
    }
}

/// A doorbell, and the last value written to it.
#[derive(Debug)]
struct Doorbell {
    /// Offset of the register.
    register: u32,
    /// Offset of the shadow inside its page.
    shadow: Option<usize>,
    rung: u16,
    /// Writes the next value to the register, whatever the event index is: the device has not read
    /// the shadow yet.
    force: bool,
    /// Writes all values to the register: controllers do not poll the shadows of the admin queue.
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
    /// Controller generation of the positions; 0: none yet.
    generation: u64,
}

impl RingPair {
    /// Returns the bytes of memory for a queue pair with this many entries. Each queue starts on a
    /// page.
    pub(super) fn size(entries: u16) -> usize {
        Self::completions_at(entries) + usize::from(entries) * CQE
    }

    fn completions_at(entries: u16) -> usize {
        (usize::from(entries) * SQE).next_multiple_of(PAGE)
    }

    /// Creates queue `qid` with doorbells (tail, head) at these offsets.
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

    /// Enables shadow doorbells where they are inside the page, or disables them.
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

    /// Returns the position of the next command.
    #[inline]
    pub(super) fn tail(&self) -> u16 {
        self.tail
    }

    /// Returns true if the doorbell covered the command at this position, which is not completed.
    pub(super) fn is_shown(&self, at: u16) -> bool {
        let from_rung = |place: u16| (place + self.entries - self.tail_bell.rung) % self.entries;
        from_rung(at) >= from_rung(self.tail)
    }

    /// Returns the device addresses of the submission queue and the completion queue.
    pub(super) fn addresses(&self) -> (u64, u64) {
        (self.memory.address(0), self.memory.address(Self::completions_at(self.entries)))
    }

    /// Resets the positions for a new `generation`: the device has just created the queues, and
    /// nothing was submitted since.
    pub(super) fn begin(&mut self, generation: u64) {
        if self.generation == generation {
            return;
        }
        self.generation = generation;
        // Phase tags of the previous generation must not count for this one.
        let completions = Self::completions_at(self.entries);
        self.memory.clear(completions, usize::from(self.entries) * CQE);
        (self.tail, self.head, self.phase) = (0, 0, true);
        self.tail_bell.reset();
        self.head_bell.reset();
    }

    /// Writes a command. The device sees it after [`ring`](Self::ring).
    #[inline]
    pub(super) fn push(&mut self, sqe: &Sqe) {
        self.memory.write(usize::from(self.tail) * SQE, sqe.as_bytes());
        self.tail = if self.tail + 1 == self.entries { 0 } else { self.tail + 1 };
    }

    /// Returns the next completion, if there is one.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<Cqe> {
        let at = Self::completions_at(self.entries) + usize::from(self.head) * CQE;
        // The half with the phase tag is read first, and the rest after it.
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

    /// Announces all written commands and consumed completions to the device: at most one write per
    /// queue.
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
