//! One space in one job: its next I/O and its completions.

use std::collections::VecDeque;

use nvmeof_initiator::Nanos;
use nvmeof_random::{SplitMix64, mix};

use crate::buffers::BufferCache;
use crate::load::LoadSpec;
use crate::pattern::AccessPattern;
use crate::plan::Flow;
use crate::queue::{Io, IoBuffer, IoDone, IoMemory, IoOp};
use crate::rate_limit::AllowedKinds;
use crate::stats::{DirectionCounters, VerifyCounters};
use crate::units::{IoMix, TrimUse};
use crate::verify::{BlockCheck, BlockHeader, WriteLog, check};
use crate::workload::distribution::PlaceChooser;
use crate::workload::sizes::BlockSplit;

#[derive(Debug)]
pub(crate) struct Stream {
    /// Index of the flow.
    pub(crate) flow: usize,
    /// Index of the flow's device.
    pub(crate) device: usize,
    pub(crate) read: DirectionCounters,
    pub(crate) write: DirectionCounters,
    pub(crate) trim: DirectionCounters,
    pub(crate) errors: u64,
    pub(crate) verified: VerifyCounters,
    nsid: u32,
    name: String,
    memory: IoMemory,
    mix: IoMix,
    sizes: BlockSplit,
    /// Bytes of a unit of the pattern.
    unit: u32,
    block_size: u32,
    token_base: u64,
    pattern: AccessPattern,
    rng: SplitMix64,
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
    kind: IoKind,
    /// Bytes that the stream had issued before it; `u64::MAX` if it is not in flight.
    asked_before: u64,
}

/// Kind of an I/O.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum IoKind {
    Read,
    Write,
    Trim,
}

#[derive(Debug)]
struct Verifier {
    write_log: WriteLog,
    counter: u32,
    seed: u64,
    run: u64,
    namespace: u64,
}

/// Position of a stream in its job.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StreamId {
    /// Index of the job.
    pub(crate) job: usize,
    /// Index of this job among the jobs on this space, and their number.
    pub(crate) share_index: usize,
    pub(crate) share_count: usize,
    /// Index of the stream in the job.
    pub(crate) stream: u32,
    /// Kind of memory that the queues of its device take.
    pub(crate) memory: IoMemory,
    /// Bytes that the resumed run had done, if there is one.
    pub(crate) done: u64,
}

/// Result of one completion.
#[derive(Debug, Default)]
pub(crate) struct IoOutcome {
    /// Bytes moved, 0 after an error.
    pub(crate) bytes: u64,
    /// Message for the user.
    pub(crate) problem: Option<String>,
}

impl Stream {
    /// A stream for flow number `index` of a load in one of its jobs.
    pub(crate) fn new(index: usize, flow: &Flow, load: &LoadSpec, id: StreamId) -> Self {
        let (share_index, share_count) = (id.share_index as u64, id.share_count as u64);
        let rng_stream = (index as u64) << 32 | (id.job as u64) << 1;
        let share = flow.share(share_index, share_count);
        // Jobs that verify use separate parts, so no other job overwrites a unit that this job
        // tracks.
        let (first, count, start) = match load.verify {
            Some(_) => (flow.first_unit + share.start, share.end - share.start, 0),
            None => (flow.first_unit, flow.units, share.start),
        };
        // A resumed run does not repeat the draws of the earlier run.
        let seed = if id.done == 0 { load.seed } else { mix(load.seed ^ id.done) };
        let mut pattern = if load.mix.random {
            let places = count / flow.align;
            let bytes = flow.align * u64::from(flow.unit);
            let chooser = PlaceChooser::new(&load.distribution, places, bytes, load.seed);
            AccessPattern::random(
                first,
                count,
                flow.align,
                chooser,
                SplitMix64::stream(seed, rng_stream),
            )
        } else {
            let start = start + id.done / u64::from(flow.unit);
            AccessPattern::sequential(first, count, start)
        };
        if load.verify.is_some() {
            pattern = pattern.exclusive();
        }
        let verifier = load.verify.map(|run| Verifier {
            write_log: WriteLog::new(first, count),
            counter: 0,
            seed: load.seed,
            run,
            namespace: flow.tag,
        });
        Self {
            flow: index,
            device: flow.device,
            read: DirectionCounters::new(),
            write: DirectionCounters::new(),
            trim: DirectionCounters::new(),
            errors: 0,
            verified: VerifyCounters::default(),
            nsid: flow.nsid,
            name: flow.name.clone(),
            memory: id.memory,
            mix: load.mix,
            sizes: load.sizes(),
            unit: flow.unit,
            block_size: flow.block_size,
            token_base: u64::from(id.stream) << 32,
            pattern,
            rng: SplitMix64::stream(seed, rng_stream | 1),
            slots: vec![Slot::default(); load.qd as usize],
            free: (0..load.qd).rev().collect(),
            depth: load.qd,
            quota: flow.quota(share_index, share_count).map(|quota| quota.saturating_sub(id.done)),
            asked: id.done,
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
    pub(crate) fn take_counters(&mut self) -> [DirectionCounters; 3] {
        let all = [&mut self.read, &mut self.write, &mut self.trim];
        all.map(|counters| std::mem::replace(counters, DirectionCounters::new()))
    }

    /// Replaces the current counters with ones taken earlier.
    pub(crate) fn put_counters(&mut self, counters: [DirectionCounters; 3]) {
        [self.read, self.write, self.trim] = counters;
    }

    /// Makes [`Stream::next`] read the data written in this run, each unit once.
    pub(crate) fn start_read_back(&mut self) {
        self.read_back = Some(0);
    }

    /// Returns the next I/O of the `kinds` that may start, started at `now`, with one of `buffers`.
    ///
    /// `None` if there is none at the moment, or none at all during read-back.
    #[inline]
    pub(crate) fn next(
        &mut self,
        now: Nanos,
        kinds: AllowedKinds,
        buffers: &mut BufferCache,
    ) -> Option<Io> {
        if !self.has_credit() {
            return None;
        }
        let number = *self.free.last()?;
        let mut slot = Slot { started: now, ..self.choose(kinds)? };
        let Slot { unit, bytes, kind, .. } = slot;
        let blocks = bytes / self.block_size;
        let slba = unit * u64::from(self.unit / self.block_size);
        let op = match kind {
            IoKind::Trim => IoOp::Trim,
            IoKind::Read => match buffers.take(self.memory, bytes) {
                Some(buffer) => IoOp::Read(buffer),
                None => return self.cannot(unit),
            },
            IoKind::Write => {
                let Some(mut data) = buffers.take(self.memory, bytes) else {
                    return self.cannot(unit);
                };
                match &mut self.verifier {
                    Some(verifier) => {
                        slot.generation =
                            verifier.write_log.begin_write(unit, &mut verifier.counter);
                        verifier.fill(&mut data, slba, self.block_size, slot.generation);
                    }
                    None => buffers.refill(&mut data),
                }
                IoOp::Write(data)
            }
        };
        self.free.pop();
        self.slots[number as usize] = slot;
        let token = self.token_base | u64::from(number);
        Some(Io { token, nsid: self.nsid, slba, blocks, op })
    }

    /// Chooses the unit, bytes and kind of the next I/O.
    #[inline]
    fn choose(&mut self, kinds: AllowedKinds) -> Option<Slot> {
        if let Some(at) = &mut self.read_back {
            let (next, unit) = self.verifier.as_ref()?.write_log.next_written(*at)?;
            *at = next;
            return Some(Slot { unit, bytes: self.unit, kind: IoKind::Read, ..Slot::default() });
        }
        if let Some(trimmed) = self.trimmed.pop_front() {
            return Some(Slot { kind: IoKind::Write, ..trimmed });
        }
        if self.quota == Some(0) {
            return None;
        }
        let kind = self.kind_next(kinds);
        let bytes = match kind {
            IoKind::Read => self.sizes.read.choose(&mut self.rng),
            // A trimmed unit is later written in the same size.
            IoKind::Trim if self.mix.trim == TrimUse::Only => self.sizes.trim.choose(&mut self.rng),
            IoKind::Write | IoKind::Trim => self.sizes.write.choose(&mut self.rng),
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

    /// Completes an I/O from [`Stream::next`] at `now`; `record` selects whether it counts.
    #[inline]
    pub(crate) fn complete(
        &mut self,
        completed: IoDone,
        now: Nanos,
        record: bool,
        buffers: &mut BufferCache,
    ) -> IoOutcome {
        let number = token_slot(completed.token);
        let slot = std::mem::take(&mut self.slots[number as usize]);
        let mut outcome = IoOutcome::default();
        match completed.result {
            Ok(()) => {
                outcome.bytes = u64::from(slot.bytes);
                if record && self.read_back.is_none() {
                    let counters = match slot.kind {
                        IoKind::Read => &mut self.read,
                        IoKind::Write => &mut self.write,
                        IoKind::Trim => &mut self.trim,
                    };
                    counters.record(now.saturating_sub(slot.started), outcome.bytes);
                }
                if self.verifier.is_some() {
                    outcome.problem = self.verify(&slot, completed.buffer.as_ref());
                }
                if slot.kind == IoKind::Trim && self.mix.trim == TrimUse::ThenWrite {
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
    fn kind_next(&mut self, kinds: AllowedKinds) -> IoKind {
        if self.mix.trim != TrimUse::None {
            return IoKind::Trim;
        }
        let is_read = match self.mix.read_percent {
            0 => false,
            100.. => true,
            _ if kinds != AllowedKinds::All => kinds == AllowedKinds::Reads,
            percent => self.rng.below(100) < u64::from(percent),
        };
        if is_read { IoKind::Read } else { IoKind::Write }
    }

    /// Records a write; checks the blocks of a read, and describes the first wrong one.
    fn verify(&mut self, slot: &Slot, buffer: Option<&IoBuffer>) -> Option<String> {
        let verifier = self.verifier.as_mut()?;
        if slot.kind != IoKind::Read {
            verifier.write_log.written(slot.unit, slot.generation);
            return None;
        }
        let mut problem = None;
        let expected = verifier.write_log.expected(slot.unit);
        let first = slot.unit * u64::from(self.unit / self.block_size);
        let (buffer, block_size) = (buffer?, self.block_size as usize);
        let blocks = (0..).map_while(|piece| buffer.piece(piece));
        for (lba, block) in (first..).zip(blocks.flat_map(|piece| piece.chunks_exact(block_size))) {
            match check(block, &verifier.header(lba, 0), expected) {
                BlockCheck::Good => self.verified.good += 1,
                BlockCheck::Unwritten => self.verified.unwritten += 1,
                BlockCheck::Bad(defect) => {
                    self.verified.errors += 1;
                    problem.get_or_insert_with(|| {
                        let name = &self.name;
                        format!("verify: {name}, LBA {lba} (expected {expected:?}): {defect}")
                    });
                }
            }
        }
        problem
    }

    #[cold]
    fn describe(&self, slot: &Slot, error: &str) -> String {
        let what = match slot.kind {
            IoKind::Read => "read",
            IoKind::Write => "write",
            IoKind::Trim => "trim",
        };
        let blocks = slot.bytes / self.block_size;
        let slba = slot.unit * u64::from(self.unit / self.block_size);
        format!("{what} of {blocks} blocks at LBA {slba} of {}: {error}", self.name)
    }
}

impl Default for Slot {
    fn default() -> Self {
        let kind = IoKind::Read;
        Self { started: 0, unit: 0, bytes: 0, generation: 0, kind, asked_before: u64::MAX }
    }
}

impl Verifier {
    fn header(&self, lba: u64, generation: u32) -> BlockHeader {
        let generation = u64::from(generation);
        BlockHeader { lba, seed: self.seed, run: self.run, generation, namespace: self.namespace }
    }

    fn fill(&self, data: &mut IoBuffer, slba: u64, block_size: u32, generation: u32) {
        let mut lba = slba;
        data.for_each_piece(|piece| {
            for block in piece.chunks_exact_mut(block_size as usize) {
                self.header(lba, generation).fill(block);
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
