//! One namespace in one job: what is asked of it next and what came back.

use nvmeof_initiator::{Buffer, CommandError, Completed, Io, IoKind, Nanos};

use crate::pattern::Pattern;
use crate::plan::{Flow, Load};
use crate::rng::Rng;
use crate::stats::{Tally, Verified};
use crate::verify::{Ledger, Stamp, Verdict, check, namespace_tag};

#[derive(Debug)]
pub(crate) struct Lane {
    /// Index of the flow.
    pub(crate) flow: usize,
    /// Index of the flow's controller.
    pub(crate) controller: usize,
    pub(crate) read: Tally,
    pub(crate) write: Tally,
    pub(crate) errors: u64,
    pub(crate) verified: Verified,
    nsid: u32,
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
    /// Flow number `index` as job number `job` loads it; `number` is the lane's number in the job.
    pub(crate) fn new(index: usize, flow: &Flow, load: &Load, job: u16, number: u32) -> Self {
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
            namespace: namespace_tag(&flow.subnqn, flow.nsid),
        });
        Self {
            flow: index,
            controller: flow.controller,
            read: Tally::new(),
            write: Tally::new(),
            errors: 0,
            verified: Verified::default(),
            nsid: flow.nsid,
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

    /// The next I/O, started `now`, with one of `buffers`; `None` if there is none at the moment (or at all, when reading back).
    #[inline]
    pub(crate) fn next(&mut self, now: Nanos, buffers: &mut Buffers) -> Option<Io> {
        let number = *self.free.last()?;
        let (unit, is_read) = match &mut self.read_back {
            None => (self.pattern.next()?, self.is_read_next()),
            Some(at) => {
                let (next, unit) = self.verifier.as_ref()?.ledger.next_written(*at)?;
                *at = next;
                (unit, true)
            }
        };
        let mut data = buffers.take();
        self.free.pop();
        let mut slot = Slot { started: now, unit, generation: 0, is_read };
        let blocks = self.bs / self.block_size;
        let slba = unit * u64::from(blocks);
        let kind = if is_read {
            IoKind::Read(data)
        } else {
            if let Some(verifier) = &mut self.verifier {
                slot.generation = verifier.ledger.begin_write(unit, &mut verifier.counter);
                verifier.fill(&mut data, slba, self.block_size, slot.generation);
            }
            IoKind::Write { data, fua: false }
        };
        self.slots[number as usize] = slot;
        let token = self.token_base | u64::from(number);
        Some(Io { token, nsid: self.nsid, slba, blocks, kind })
    }

    /// Takes back an I/O that [`Lane::next`] gave out, at `now`; `record` says whether it counts.
    #[inline]
    pub(crate) fn complete(
        &mut self,
        completed: Completed,
        now: Nanos,
        record: bool,
        buffers: &mut Buffers,
    ) -> Outcome {
        let number = token_slot(completed.token);
        let slot = self.slots[number as usize];
        let mut outcome = Outcome::default();
        match completed.result {
            Ok(_) => {
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
                outcome.problem = Some(self.describe(&slot, error));
            }
        }
        if self.read_back.is_none() {
            self.pattern.release(slot.unit);
        }
        buffers.idle.extend(completed.buffer);
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
        for (lba, block) in (first..).zip(buffer?.as_slice().chunks_exact(self.block_size as usize))
        {
            match check(block, &verifier.stamp(lba, 0), expected) {
                Verdict::Good => self.verified.good += 1,
                Verdict::Unwritten => self.verified.unwritten += 1,
                Verdict::Bad(flaw) => {
                    self.verified.errors += 1;
                    problem.get_or_insert_with(|| {
                        let nsid = self.nsid;
                        format!(
                            "verify: namespace {nsid}, LBA {lba} (expected {expected:?}): {flaw}"
                        )
                    });
                }
            }
        }
        problem
    }

    #[cold]
    fn describe(&self, slot: &Slot, error: CommandError) -> String {
        let what = if slot.is_read { "read" } else { "write" };
        let blocks = self.bs / self.block_size;
        let slba = slot.unit * u64::from(blocks);
        format!("{what} of {blocks} blocks at LBA {slba} of namespace {}: {error}", self.nsid)
    }
}

impl Verifier {
    fn stamp(&self, lba: u64, generation: u32) -> Stamp {
        let generation = u64::from(generation);
        Stamp { lba, seed: self.seed, run: self.run, generation, namespace: self.namespace }
    }

    fn fill(&self, data: &mut Buffer, slba: u64, block_size: u32, generation: u32) {
        let blocks = data.as_mut_slice().chunks_exact_mut(block_size as usize);
        for (lba, block) in (slba..).zip(blocks) {
            self.stamp(lba, generation).fill(block);
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
    idle: Vec<Buffer>,
    bs: usize,
    /// What will be written without verification is random.
    contents: Option<Rng>,
}

impl Buffers {
    /// None yet: they are made as they are needed, at most as many as I/Os are under way at once.
    pub(crate) fn new(load: &Load, job: u64) -> Self {
        let random = load.verify.is_none() && load.mix.read_percent < 100;
        let contents = random.then(|| Rng::new(load.seed, u64::MAX - job));
        Self { idle: Vec::new(), bs: load.bs as usize, contents }
    }

    #[inline]
    fn take(&mut self) -> Buffer {
        self.idle.pop().unwrap_or_else(|| self.make())
    }

    #[cold]
    fn make(&mut self) -> Buffer {
        let mut buffer = Buffer::zeroed(self.bs);
        if let Some(rng) = &mut self.contents {
            for word in buffer.as_mut_slice().as_chunks_mut::<8>().0 {
                *word = rng.next().to_le_bytes();
            }
        }
        buffer
    }
}
