//! One space in one job: its next I/O and its completions.

use std::collections::VecDeque;

use nvmeof_initiator::Nanos;

use crate::buffers::Buffers;
use crate::load::LoadSpec;
use crate::pace::Kinds;
use crate::pattern::Pattern;
use crate::plan::Flow;
use crate::queue::{Buffer, Done, Io, Memory, Op};
use crate::rng::{Rng, mix};
use crate::stats::{Tally, Verified};
use crate::units::{Mix, Trim};
use crate::verify::{Ledger, Stamp, Verdict, check};
use crate::workload::distribution::Chooser;
use crate::workload::sizes::BlockSplit;

#[derive(Debug)]
pub(crate) struct Lane {
    /// Index of the flow.
    pub(crate) flow: usize,
    /// Index of the flow's device.
    pub(crate) device: usize,
    pub(crate) read: Tally,
    pub(crate) write: Tally,
    pub(crate) trim: Tally,
    pub(crate) errors: u64,
    pub(crate) verified: Verified,
    nsid: u32,
    name: String,
    memory: Memory,
    mix: Mix,
    sizes: BlockSplit,
    /// Bytes of a unit of the pattern.
    unit: u32,
    block_size: u32,
    token_base: u64,
    pattern: Pattern,
    rng: Rng,
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Maximum I/Os in flight.
    depth: u32,
    /// Bytes still to issue; `None` without an end.
    quota: Option<u64>,
    /// Bytes issued, including those of the run that this one resumes.
    asked: u64,
    /// Bytes issued before the first I/O that failed.
    failed_at: u64,
    /// Trimmed units to write next.
    trimmed: VecDeque<Slot>,
    verifier: Option<Verifier>,
    /// Position of the read-back.
    read_back: Option<usize>,
}

/// An I/O in flight.
#[derive(Debug, Clone, Copy)]
struct Slot {
    started: Nanos,
    unit: u64,
    bytes: u32,
    generation: u32,
    kind: Kind,
    /// Bytes that the stream had issued before it; `u64::MAX` if it is not in flight.
    asked_before: u64,
}

/// Kind of an I/O.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Read,
    Write,
    Trim,
}

#[derive(Debug)]
struct Verifier {
    ledger: Ledger,
    counter: u32,
    seed: u64,
    run: u64,
    namespace: u64,
}

/// Position of a stream in its job.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    /// Index of the job.
    pub(crate) job: usize,
    /// Index of this job among the jobs on this space, and their number.
    pub(crate) turn: usize,
    pub(crate) turns: usize,
    /// Index of the stream in the job.
    pub(crate) lane: u32,
    /// Kind of memory that the queues of its device take.
    pub(crate) memory: Memory,
    /// Bytes that the resumed run had done, if there is one.
    pub(crate) done: u64,
}

/// Result of one completion.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// Bytes moved, 0 after an error.
    pub(crate) bytes: u64,
    /// Message for the user.
    pub(crate) problem: Option<String>,
}

impl Lane {
    /// A stream for flow number `index` of a load in one of its jobs.
    pub(crate) fn new(index: usize, flow: &Flow, load: &LoadSpec, place: Place) -> Self {
        let (turn, turns) = (place.turn as u64, place.turns as u64);
        let stream = (index as u64) << 32 | (place.job as u64) << 1;
        let share = flow.share(turn, turns);
        // Jobs that verify use separate parts, so no other job overwrites a unit that this job
        // tracks.
        let (first, count, start) = match load.verify {
            Some(_) => (flow.first_unit + share.start, share.end - share.start, 0),
            None => (flow.first_unit, flow.units, share.start),
        };
        // A resumed run does not repeat the draws of the earlier run.
        let seed = if place.done == 0 { load.seed } else { mix(load.seed ^ place.done) };
        let mut pattern = if load.mix.random {
            let places = count / flow.align;
            let bytes = flow.align * u64::from(flow.unit);
            let chooser = Chooser::new(&load.distribution, places, bytes, load.seed);
            Pattern::random(first, count, flow.align, chooser, Rng::new(seed, stream))
        } else {
            let start = start + place.done / u64::from(flow.unit);
            Pattern::sequential(first, count, start)
        };
        if load.verify.is_some() {
            pattern = pattern.exclusive();
        }
        let verifier = load.verify.map(|run| Verifier {
            ledger: Ledger::new(first, count),
            counter: 0,
            seed: load.seed,
            run,
            namespace: flow.tag,
        });
        Self {
            flow: index,
            device: flow.device,
            read: Tally::new(),
            write: Tally::new(),
            trim: Tally::new(),
            errors: 0,
            verified: Verified::default(),
            nsid: flow.nsid,
            name: flow.name.clone(),
            memory: place.memory,
            mix: load.mix,
            sizes: load.sizes(),
            unit: flow.unit,
            block_size: flow.block_size,
            token_base: u64::from(place.lane) << 32,
            pattern,
            rng: Rng::new(seed, stream | 1),
            slots: vec![Slot::default(); load.qd as usize],
            free: (0..load.qd).rev().collect(),
            depth: load.qd,
            quota: flow.quota(turn, turns).map(|quota| quota.saturating_sub(place.done)),
            asked: place.done,
            failed_at: u64::MAX,
            trimmed: VecDeque::new(),
            verifier,
            read_back: None,
        }
    }

    /// Returns true if no I/O is in flight.
    pub(crate) fn is_idle(&self) -> bool {
        self.in_flight() == 0
    }

    /// I/Os in flight.
    #[inline]
    pub(crate) fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Returns true if all its work is done.
    pub(crate) fn is_done(&self) -> bool {
        self.quota == Some(0) && self.trimmed.is_empty() && self.is_idle()
    }

    /// Bytes done from the beginning on; a later run can resume there.
    pub(crate) fn position(&self) -> u64 {
        let unfinished = self.slots.iter().chain(&self.trimmed);
        let first = unfinished.map(|slot| slot.asked_before).min().unwrap_or(u64::MAX);
        first.min(self.failed_at).min(self.asked)
    }

    /// Bytes of an I/O of this stream.
    #[inline]
    pub(crate) fn bytes(&self, io: &Io) -> u64 {
        u64::from(io.blocks) * u64::from(self.block_size)
    }

    /// Returns true if one more I/O may be in flight.
    #[inline]
    pub(crate) fn has_credit(&self) -> bool {
        self.in_flight() < self.depth as usize && !self.free.is_empty()
    }

    /// Limits the I/Os in flight to `depth` from now on, and never above the limit of the load.
    pub(crate) fn limit(&mut self, depth: u32) {
        self.depth = depth;
    }

    pub(crate) fn nsid(&self) -> u32 {
        self.nsid
    }

    /// Returns the reads, writes and trims counted so far, and resets the counters.
    pub(crate) fn take_tallies(&mut self) -> [Tally; 3] {
        let all = [&mut self.read, &mut self.write, &mut self.trim];
        all.map(|tally| std::mem::replace(tally, Tally::new()))
    }

    /// Replaces the current counters with ones taken earlier.
    pub(crate) fn put_tallies(&mut self, tallies: [Tally; 3]) {
        [self.read, self.write, self.trim] = tallies;
    }

    /// Makes [`Lane::next`] read the data written in this run, each unit once.
    pub(crate) fn start_read_back(&mut self) {
        self.read_back = Some(0);
    }

    /// Returns the next I/O of the `kinds` that may start, started at `now`, with one of `buffers`.
    ///
    /// `None` if there is none at the moment, or none at all during read-back.
    #[inline]
    pub(crate) fn next(&mut self, now: Nanos, kinds: Kinds, buffers: &mut Buffers) -> Option<Io> {
        if !self.has_credit() {
            return None;
        }
        let number = *self.free.last()?;
        let mut slot = Slot { started: now, ..self.choose(kinds)? };
        let Slot { unit, bytes, kind, .. } = slot;
        let blocks = bytes / self.block_size;
        let slba = unit * u64::from(self.unit / self.block_size);
        let op = match kind {
            Kind::Trim => Op::Trim,
            Kind::Read => match buffers.take(self.memory, bytes) {
                Some(buffer) => Op::Read(buffer),
                None => return self.cannot(unit),
            },
            Kind::Write => {
                let Some(mut data) = buffers.take(self.memory, bytes) else {
                    return self.cannot(unit);
                };
                match &mut self.verifier {
                    Some(verifier) => {
                        slot.generation = verifier.ledger.begin_write(unit, &mut verifier.counter);
                        verifier.fill(&mut data, slba, self.block_size, slot.generation);
                    }
                    None => buffers.refill(&mut data),
                }
                Op::Write(data)
            }
        };
        self.free.pop();
        self.slots[number as usize] = slot;
        let token = self.token_base | u64::from(number);
        Some(Io { token, nsid: self.nsid, slba, blocks, op })
    }

    /// Chooses the unit, bytes and kind of the next I/O.
    #[inline]
    fn choose(&mut self, kinds: Kinds) -> Option<Slot> {
        if let Some(at) = &mut self.read_back {
            let (next, unit) = self.verifier.as_ref()?.ledger.next_written(*at)?;
            *at = next;
            return Some(Slot { unit, bytes: self.unit, kind: Kind::Read, ..Slot::default() });
        }
        if let Some(trimmed) = self.trimmed.pop_front() {
            return Some(Slot { kind: Kind::Write, ..trimmed });
        }
        if self.quota == Some(0) {
            return None;
        }
        let kind = self.kind_next(kinds);
        let bytes = match kind {
            Kind::Read => self.sizes.read.choose(&mut self.rng),
            // A trimmed unit is later written in the same size.
            Kind::Trim if self.mix.trim == Trim::Only => self.sizes.trim.choose(&mut self.rng),
            Kind::Write | Kind::Trim => self.sizes.write.choose(&mut self.rng),
        };
        let unit = self.pattern.next(u64::from(bytes / self.unit))?;
        let asked_before = self.asked;
        self.asked += u64::from(bytes);
        if let Some(quota) = &mut self.quota {
            *quota = quota.saturating_sub(bytes.into());
        }
        Some(Slot { unit, bytes, kind, asked_before, ..Slot::default() })
    }

    /// Abandons a chosen I/O for lack of memory; the run then ends.
    #[cold]
    fn cannot(&mut self, unit: u64) -> Option<Io> {
        self.pattern.release(unit);
        None
    }

    /// Completes an I/O from [`Lane::next`] at `now`; `record` selects whether it counts.
    #[inline]
    pub(crate) fn complete(
        &mut self,
        completed: Done,
        now: Nanos,
        record: bool,
        buffers: &mut Buffers,
    ) -> Outcome {
        let number = token_slot(completed.token);
        let slot = std::mem::take(&mut self.slots[number as usize]);
        let mut outcome = Outcome::default();
        match completed.result {
            Ok(()) => {
                outcome.bytes = u64::from(slot.bytes);
                if record && self.read_back.is_none() {
                    let tally = match slot.kind {
                        Kind::Read => &mut self.read,
                        Kind::Write => &mut self.write,
                        Kind::Trim => &mut self.trim,
                    };
                    tally.record(now.saturating_sub(slot.started), outcome.bytes);
                }
                if self.verifier.is_some() {
                    outcome.problem = self.verify(&slot, completed.buffer.as_ref());
                }
                if slot.kind == Kind::Trim && self.mix.trim == Trim::ThenWrite {
                    self.trimmed.push_back(slot);
                }
            }
            Err(error) => {
                self.errors += 1;
                self.failed_at = self.failed_at.min(slot.asked_before);
                outcome.problem = Some(self.describe(&slot, &error));
            }
        }
        if self.read_back.is_none() {
            self.pattern.release(slot.unit);
        }
        if let Some(buffer) = completed.buffer {
            buffers.put(buffer);
        }
        self.free.push(number);
        outcome
    }

    #[inline]
    fn kind_next(&mut self, kinds: Kinds) -> Kind {
        if self.mix.trim != Trim::None {
            return Kind::Trim;
        }
        let is_read = match self.mix.read_percent {
            0 => false,
            100.. => true,
            _ if kinds != Kinds::All => kinds == Kinds::Reads,
            percent => self.rng.below(100) < u64::from(percent),
        };
        if is_read { Kind::Read } else { Kind::Write }
    }

    /// Records a write; checks the blocks of a read, and describes the first wrong one.
    fn verify(&mut self, slot: &Slot, buffer: Option<&Buffer>) -> Option<String> {
        let verifier = self.verifier.as_mut()?;
        if slot.kind != Kind::Read {
            verifier.ledger.written(slot.unit, slot.generation);
            return None;
        }
        let mut problem = None;
        let expected = verifier.ledger.expected(slot.unit);
        let first = slot.unit * u64::from(self.unit / self.block_size);
        let (buffer, block_size) = (buffer?, self.block_size as usize);
        let blocks = (0..).map_while(|piece| buffer.piece(piece));
        for (lba, block) in (first..).zip(blocks.flat_map(|piece| piece.chunks_exact(block_size))) {
            match check(block, &verifier.stamp(lba, 0), expected) {
                Verdict::Good => self.verified.good += 1,
                Verdict::Unwritten => self.verified.unwritten += 1,
                Verdict::Bad(flaw) => {
                    self.verified.errors += 1;
                    problem.get_or_insert_with(|| {
                        let name = &self.name;
                        format!("verify: {name}, LBA {lba} (expected {expected:?}): {flaw}")
                    });
                }
            }
        }
        problem
    }

    #[cold]
    fn describe(&self, slot: &Slot, error: &str) -> String {
        let what = match slot.kind {
            Kind::Read => "read",
            Kind::Write => "write",
            Kind::Trim => "trim",
        };
        let blocks = slot.bytes / self.block_size;
        let slba = slot.unit * u64::from(self.unit / self.block_size);
        format!("{what} of {blocks} blocks at LBA {slba} of {}: {error}", self.name)
    }
}

impl Default for Slot {
    fn default() -> Self {
        let kind = Kind::Read;
        Self { started: 0, unit: 0, bytes: 0, generation: 0, kind, asked_before: u64::MAX }
    }
}

impl Verifier {
    fn stamp(&self, lba: u64, generation: u32) -> Stamp {
        let generation = u64::from(generation);
        Stamp { lba, seed: self.seed, run: self.run, generation, namespace: self.namespace }
    }

    fn fill(&self, data: &mut Buffer, slba: u64, block_size: u32, generation: u32) {
        let mut lba = slba;
        data.for_each_piece(|piece| {
            for block in piece.chunks_exact_mut(block_size as usize) {
                self.stamp(lba, generation).fill(block);
                lba += 1;
            }
        });
    }
}

/// Returns the stream's index in a token.
#[inline]
pub(crate) fn token_lane(token: u64) -> usize {
    usize::try_from(token >> 32).unwrap_or(usize::MAX)
}

#[expect(clippy::cast_possible_truncation, reason = "the low half is the slot")]
#[inline]
fn token_slot(token: u64) -> u32 {
    token as u32
}
