//! One space in one job: what is asked of it next and what came back.

use nvmeof_core::dma::CorePool;
use nvmeof_initiator::Nanos;

use crate::load::LoadSpec;
use crate::pattern::Pattern;
use crate::plan::Flow;
use crate::queue::{Buffer, Done, Io, Leases, Memory, Op};
use crate::rng::Rng;
use crate::stats::{Tally, Verified};
use crate::verify::{Ledger, Stamp, Verdict, check};

#[derive(Debug)]
pub(crate) struct Lane {
    /// Index of the flow.
    pub(crate) flow: usize,
    /// Index of the flow's device.
    pub(crate) device: usize,
    pub(crate) read: Tally,
    pub(crate) write: Tally,
    pub(crate) errors: u64,
    pub(crate) verified: Verified,
    nsid: u32,
    name: String,
    memory: Memory,
    bs: u32,
    block_size: u32,
    read_percent: u8,
    token_base: u64,
    pattern: Pattern,
    rng: Rng,
    slots: Vec<Slot>,
    free: Vec<u32>,
    verifier: Option<Verifier>,
    /// Where reading back what was written has come to.
    read_back: Option<usize>,
}

/// An I/O under way.
#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    started: Nanos,
    unit: u64,
    generation: u32,
    is_read: bool,
}

#[derive(Debug)]
struct Verifier {
    ledger: Ledger,
    counter: u32,
    seed: u64,
    run: u64,
    namespace: u64,
}

/// What one completion was.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// Bytes moved, 0 after an error.
    pub(crate) bytes: u64,
    /// What to tell the user.
    pub(crate) problem: Option<String>,
}

impl Lane {
    /// Flow number `index` as job number `job` loads it; `number` is the lane's number in the job, and `memory` what its
    /// device's queues take.
    pub(crate) fn new(
        index: usize,
        flow: &Flow,
        load: &LoadSpec,
        job: u16,
        number: u32,
        memory: Memory,
    ) -> Self {
        let (job_index, jobs) = (u64::from(job), u64::from(load.jobs));
        let stream = (index as u64) << 32 | job_index << 1;
        let start = flow.units * job_index / jobs;
        let share = flow.units * (job_index + 1) / jobs - start;
        // Jobs that verify have parts of their own: nobody else writes what one remembers.
        let (first, count, start) = match load.verify {
            Some(_) => (flow.first_unit + start, share, 0),
            None => (flow.first_unit, flow.units, start),
        };
        let mut pattern = if load.mix.random {
            Pattern::random(first, count, Rng::new(load.seed, stream))
        } else {
            Pattern::sequential(first, count, start)
        };
        if load.verify.is_some() {
            pattern = pattern.exclusive();
        }
        let rng = Rng::new(load.seed, stream | 1);
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
            errors: 0,
            verified: Verified::default(),
            nsid: flow.nsid,
            name: flow.name.clone(),
            memory,
            bs: load.bs,
            block_size: flow.block_size,
            read_percent: load.mix.read_percent,
            token_base: u64::from(number) << 32,
            pattern,
            rng,
            slots: vec![Slot::default(); load.qd as usize],
            free: (0..load.qd).rev().collect(),
            verifier,
            read_back: None,
        }
    }

    /// Nothing under way?
    pub(crate) fn is_idle(&self) -> bool {
        self.free.len() == self.slots.len()
    }

    /// May one more I/O be under way?
    #[inline]
    pub(crate) fn has_credit(&self) -> bool {
        !self.free.is_empty()
    }

    /// From now on [`Lane::next`] reads what this run has written, each unit once.
    pub(crate) fn start_read_back(&mut self) {
        self.read_back = Some(0);
    }

    /// The next I/O, started `now`, with one of `buffers`; `None` if there is none at the moment (or at all, when reading
    /// back).
    #[inline]
    pub(crate) fn next(&mut self, now: Nanos, buffers: &mut Buffers) -> Option<Io> {
        let number = *self.free.last()?;
        let mut data = buffers.take(self.memory)?;
        let (unit, is_read) = match &mut self.read_back {
            None => match self.pattern.next() {
                Some(unit) => (unit, self.is_read_next()),
                None => return buffers.put(data),
            },
            Some(at) => {
                let verifier = self.verifier.as_ref();
                match verifier.and_then(|verifier| verifier.ledger.next_written(*at)) {
                    Some((next, unit)) => {
                        *at = next;
                        (unit, true)
                    }
                    None => return buffers.put(data),
                }
            }
        };
        self.free.pop();
        let mut slot = Slot { started: now, unit, generation: 0, is_read };
        let blocks = self.bs / self.block_size;
        let slba = unit * u64::from(blocks);
        let op = if is_read {
            Op::Read(data)
        } else {
            if let Some(verifier) = &mut self.verifier {
                slot.generation = verifier.ledger.begin_write(unit, &mut verifier.counter);
                verifier.fill(&mut data, slba, self.block_size, slot.generation);
            }
            Op::Write(data)
        };
        self.slots[number as usize] = slot;
        let token = self.token_base | u64::from(number);
        Some(Io { token, nsid: self.nsid, slba, blocks, op })
    }

    /// Takes back an I/O that [`Lane::next`] gave out, at `now`; `record` says whether it counts.
    #[inline]
    pub(crate) fn complete(
        &mut self,
        completed: Done,
        now: Nanos,
        record: bool,
        buffers: &mut Buffers,
    ) -> Outcome {
        let number = token_slot(completed.token);
        let slot = self.slots[number as usize];
        let mut outcome = Outcome::default();
        match completed.result {
            Ok(()) => {
                outcome.bytes = u64::from(self.bs);
                if record && self.read_back.is_none() {
                    let tally = if slot.is_read { &mut self.read } else { &mut self.write };
                    tally.record(now.saturating_sub(slot.started), outcome.bytes);
                }
                if self.verifier.is_some() {
                    outcome.problem = self.verify(&slot, completed.buffer.as_ref());
                }
            }
            Err(error) => {
                self.errors += 1;
                outcome.problem = Some(self.describe(&slot, &error));
            }
        }
        if self.read_back.is_none() {
            self.pattern.release(slot.unit);
        }
        if let Some(buffer) = completed.buffer {
            buffers.put::<()>(buffer);
        }
        self.free.push(number);
        outcome
    }

    fn is_read_next(&mut self) -> bool {
        match self.read_percent {
            0 => false,
            100.. => true,
            percent => self.rng.below(100) < u64::from(percent),
        }
    }

    /// Remembers what was written; checks what was read, and describes the first wrong block.
    fn verify(&mut self, slot: &Slot, buffer: Option<&Buffer>) -> Option<String> {
        let verifier = self.verifier.as_mut()?;
        if !slot.is_read {
            verifier.ledger.written(slot.unit, slot.generation);
            return None;
        }
        let mut problem = None;
        let expected = verifier.ledger.expected(slot.unit);
        let first = slot.unit * u64::from(self.bs / self.block_size);
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
        let what = if slot.is_read { "read" } else { "write" };
        let blocks = self.bs / self.block_size;
        let slba = slot.unit * u64::from(blocks);
        format!("{what} of {blocks} blocks at LBA {slba} of {}: {error}", self.name)
    }
}

impl Verifier {
    fn stamp(&self, lba: u64, generation: u32) -> Stamp {
        let generation = u64::from(generation);
        Stamp { lba, seed: self.seed, run: self.run, generation, namespace: self.namespace }
    }

    fn fill(&self, data: &mut Buffer, slba: u64, block_size: u32, generation: u32) {
        let mut lba = slba;
        for number in 0.. {
            let Some(piece) = data.piece_mut(number) else { break };
            for block in piece.chunks_exact_mut(block_size as usize) {
                self.stamp(lba, generation).fill(block);
                lba += 1;
            }
        }
    }
}

/// The lane's number in a token.
#[inline]
pub(crate) fn token_lane(token: u64) -> usize {
    usize::try_from(token >> 32).unwrap_or(usize::MAX)
}

#[expect(clippy::cast_possible_truncation, reason = "the low half is the slot")]
#[inline]
fn token_slot(token: u64) -> u32 {
    token as u32
}

/// The buffers of a job, for all its lanes. The one used last goes first: its lines are warm.
#[derive(Debug)]
pub(crate) struct Buffers {
    /// For queues over a fabric.
    fabric: Vec<Buffer>,
    /// For local devices.
    local: Vec<Buffer>,
    /// Where those for local devices come from, if there are any.
    pool: Option<CorePool>,
    bs: usize,
    /// What will be written without verification is random.
    contents: Option<Rng>,
    /// Why there was no buffer when one was needed.
    problem: Option<String>,
}

impl Buffers {
    /// None yet: they are made as they are needed, at most as many as I/Os are under way at once.
    pub(crate) fn new(load: &LoadSpec, job: u64, pool: Option<CorePool>) -> Self {
        let random = load.verify.is_none() && load.mix.read_percent < 100;
        let contents = random.then(|| Rng::new(load.seed, u64::MAX - job));
        let (fabric, local) = (Vec::new(), Vec::new());
        Self { fabric, local, pool, bs: load.bs as usize, contents, problem: None }
    }

    /// Why there was no buffer, once.
    pub(crate) fn take_problem(&mut self) -> Option<String> {
        self.problem.take()
    }

    #[inline]
    fn take(&mut self, memory: Memory) -> Option<Buffer> {
        let idle = match memory {
            Memory::Fabric => self.fabric.pop(),
            Memory::Local => self.local.pop(),
        };
        idle.or_else(|| self.make(memory))
    }

    /// Takes a buffer back. `None`, for who has no use for it.
    #[inline]
    pub(crate) fn put<T>(&mut self, buffer: Buffer) -> Option<T> {
        match buffer {
            Buffer::Fabric(_) => self.fabric.push(buffer),
            Buffer::Local(_) => self.local.push(buffer),
        }
        None
    }

    #[cold]
    fn make(&mut self, memory: Memory) -> Option<Buffer> {
        let mut buffer = match memory {
            Memory::Fabric => Buffer::Fabric(nvmeof_initiator::Buffer::zeroed(self.bs)),
            Memory::Local => match Leases::of(self.pool.as_ref()?, self.bs) {
                Ok(leases) => Buffer::Local(leases),
                Err(error) => {
                    self.problem =
                        Some(format!("no memory for I/Os: {error}; lower --qd, --jobs or --bs"));
                    return None;
                }
            },
        };
        if let Some(rng) = &mut self.contents {
            for number in 0.. {
                let Some(piece) = buffer.piece_mut(number) else { break };
                for word in piece.as_chunks_mut::<8>().0 {
                    *word = rng.next().to_le_bytes();
                }
            }
        }
        Some(buffer)
    }
}
