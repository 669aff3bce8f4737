//! Submission and completion queues of the controller.

use std::collections::VecDeque;

use nvmeof_wire::{Cqe, Sqe};

use crate::memory::{IommuFault, Space};

const SQE_SIZE: u64 = nvmeof_wire::sqe::SQE_SIZE as u64;
const CQE_SIZE: u64 = nvmeof_wire::cqe::CQE_SIZE as u64;

/// A submission queue.
#[derive(Debug)]
pub(crate) struct Sq {
    pub(crate) base: u64,
    pub(crate) entries: u32,
    pub(crate) cqid: u16,
    /// Next entry to take.
    pub(crate) head: u32,
    /// End of the entries, as the host wrote it.
    pub(crate) tail: u32,
    /// Head last reported to the host.
    pub(crate) told: u32,
    /// Identifiers of commands taken and not completed.
    pub(crate) open: Vec<u16>,
}

/// A completion queue.
#[derive(Debug)]
pub(crate) struct Cq {
    pub(crate) base: u64,
    pub(crate) entries: u32,
    pub(crate) vector: Option<u16>,
    /// Next entry to write.
    pub(crate) tail: u32,
    /// Position up to which the host has read, as it wrote it.
    pub(crate) head: u32,
    pub(crate) phase: bool,
    /// Completions that wait for a free entry, and whether their phase is wrong.
    pub(crate) waiting: VecDeque<(Cqe, bool)>,
    /// True if an entry was written since the last interrupt.
    pub(crate) rang: bool,
}

impl Sq {
    pub(crate) fn new(base: u64, entries: u32, cqid: u16) -> Self {
        Self { base, entries, cqid, head: 0, tail: 0, told: 0, open: Vec::new() }
    }

    pub(crate) fn bytes(&self) -> u64 {
        u64::from(self.entries) * SQE_SIZE
    }

    /// Sets the tail the host wrote; returns the violated rule, if any.
    pub(crate) fn set_tail(&mut self, tail: u32, from_shadow: bool) -> Result<(), &'static str> {
        if tail >= self.entries {
            return Err("a tail beyond the end of the queue");
        }
        let new = distance(self.tail, tail, self.entries);
        let old = distance(self.told, self.tail, self.entries);
        if new == 0 && !from_shadow {
            return Err("a tail that was there already");
        }
        if old + new >= self.entries {
            return Err("a tail beyond the head: entries not taken yet are overwritten");
        }
        self.tail = tail;
        Ok(())
    }

    /// Takes the next entry, if there is one.
    pub(crate) fn take(&mut self, space: &Space) -> Result<Option<Sqe>, IommuFault> {
        if self.head == self.tail {
            return Ok(None);
        }
        let mut sqe = Sqe::default();
        let at = self.base + u64::from(self.head) * SQE_SIZE;
        space.read(at, zerocopy::IntoBytes::as_mut_bytes(&mut sqe))?;
        self.head = (self.head + 1) % self.entries;
        Ok(Some(sqe))
    }
}

impl Cq {
    pub(crate) fn new(base: u64, entries: u32, vector: Option<u16>) -> Self {
        Self {
            base,
            entries,
            vector,
            tail: 0,
            head: 0,
            phase: true,
            waiting: VecDeque::new(),
            rang: false,
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        u64::from(self.entries) * CQE_SIZE
    }

    pub(crate) fn is_full(&self) -> bool {
        (self.tail + 1) % self.entries == self.head
    }

    /// Sets the head the host wrote; returns the violated rule, if any.
    pub(crate) fn set_head(&mut self, head: u32, from_shadow: bool) -> Result<(), &'static str> {
        if head >= self.entries {
            return Err("a head beyond the end of the queue");
        }
        let read = distance(self.head, head, self.entries);
        if read == 0 && !from_shadow {
            return Err("a head that was there already");
        }
        if read > distance(self.head, self.tail, self.entries) {
            return Err("a head beyond the tail: entries not written yet were read");
        }
        self.head = head;
        Ok(())
    }

    /// Writes waiting completions while there are free entries.
    pub(crate) fn flush(&mut self, space: &Space) -> Result<(), IommuFault> {
        while !self.is_full() {
            let Some((cqe, wrong_phase)) = self.waiting.pop_front() else { break };
            let cqe = cqe.with_phase(self.phase != wrong_phase);
            let at = self.base + u64::from(self.tail) * CQE_SIZE;
            let bytes: [u8; 16] = zerocopy::transmute!(cqe);
            let words: [[u8; 4]; 4] = zerocopy::transmute!(bytes);
            for (offset, word) in (0u64..).step_by(4).zip(words) {
                // The last word has the phase, which makes the others visible.
                space.store(at + offset, u32::from_le_bytes(word))?;
            }
            self.tail = (self.tail + 1) % self.entries;
            self.phase ^= self.tail == 0;
            self.rang = true;
        }
        Ok(())
    }
}

/// Returns the steps from `from` to `to` around a ring.
fn distance(from: u32, to: u32, entries: u32) -> u32 {
    (to + entries - from) % entries
}
