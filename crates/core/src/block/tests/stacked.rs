//! Random stacks of devices, compared with a plain array.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::time::Duration;

use super::super::fault::FaultControl;
use super::*;
use crate::dma::Payload;

const BLOCK: u64 = 512;
/// Minimum bytes of a memory device at the bottom.
const LEAF: u64 = 96 << 10;
/// Limit of iterations, after which a run counts as stuck.
const MANY: u32 = 100_000;

thread_local! {
    static NOW: Cell<u64> = const { Cell::new(1) };
}

/// A random stack of devices.
struct Tower {
    device: Arc<dyn BlockDevice>,
    faults: Vec<Arc<FaultControl>>,
    /// From the top down.
    shape: String,
}

struct Builder<'r> {
    rng: &'r mut SplitMix64,
    faults: Vec<Arc<FaultControl>>,
    shape: String,
    /// Errors per million operations.
    errors: u32,
}

impl Tower {
    fn new(rng: &mut SplitMix64, errors: u32) -> Self {
        let mut builder = Builder { rng, faults: Vec::new(), shape: String::new(), errors };
        let device = builder.build(4);
        Self { device, faults: builder.faults, shape: builder.shape }
    }
}

impl Builder<'_> {
    fn build(&mut self, levels: u32) -> Arc<dyn BlockDevice> {
        let kind = if levels == 0 { 5 } else { self.rng.below(6) };
        match kind {
            0 => self.split(levels),
            1 | 2 => self.stripe(levels),
            3 => self.delay(levels),
            4 => self.fault(levels),
            _ => {
                self.shape += "ram ";
                let size = LEAF + self.rng.below(64) * BLOCK;
                Arc::new(RamDevice::new("ram", size, 512).unwrap())
            }
        }
    }

    fn split(&mut self, levels: u32) -> Arc<dyn BlockDevice> {
        self.shape += "split ";
        let base = self.build(levels - 1);
        let blocks = base.info().size / BLOCK;
        let offset = self.rng.below(blocks / 2) * BLOCK;
        let size =
            (self.rng.below(3) > 0).then(|| (blocks / 4 + self.rng.below(blocks / 4)) * BLOCK);
        Arc::new(SplitDevice::new("split", base, offset, size).unwrap())
    }

    fn stripe(&mut self, levels: u32) -> Arc<dyn BlockDevice> {
        let count = 1 + self.rng.below(4);
        self.shape += &format!("stripe{count}( ");
        let members: Vec<_> = (0..count).map(|_| self.build(levels - 1)).collect();
        self.shape += ") ";
        let smallest = members.iter().map(|member| member.info().size / BLOCK).min().unwrap();
        let chunk = 1 + self.rng.below(smallest.min(24));
        Arc::new(StripeDevice::new("stripe", members, chunk * BLOCK).unwrap())
    }

    fn delay(&mut self, levels: u32) -> Arc<dyn BlockDevice> {
        self.shape += "delay ";
        let base = self.build(levels - 1);
        let mut micros = || Duration::from_micros(self.rng.below(3) * 40);
        let (read, write) = (micros(), micros());
        let latency = Latency { read, write, read_jitter: micros(), write_jitter: micros() };
        Arc::new(DelayDevice::new("delay", base, latency, || NOW.get()).seeded(self.rng.next_u64()))
    }

    fn fault(&mut self, levels: u32) -> Arc<dyn BlockDevice> {
        self.shape += "fault ";
        let base = self.build(levels - 1);
        let plan = FaultPlan {
            seed: self.rng.next_u64(),
            errors: self.errors,
            rejects: 100_000,
            stalls: 50_000,
            stall: Duration::from_micros(70),
            reorder: self.rng.below(2) == 0,
            ..FaultPlan::default()
        };
        let (device, control) = FaultDevice::with_clock("fault", base, plan, || NOW.get());
        self.faults.push(control);
        Arc::new(device)
    }
}

/// An operation in flight.
#[derive(Debug)]
struct Flying {
    kind: BlockOpKind,
    range: std::ops::Range<u64>,
    byte: u8,
}

/// A queue of a stack, and its expected contents. A block with a failed operation is undefined.
struct Story {
    rng: SplitMix64,
    queue: Box<dyn BlockQueue>,
    pool: CorePool,
    blocks: Vec<Option<u8>>,
    flying: BTreeMap<u64, Flying>,
    /// For messages.
    name: String,
    failed: u64,
    /// True if requesters disappear.
    cancels: bool,
}

impl Story {
    fn new(seed: u64, rng: SplitMix64, tower: &Tower) -> Self {
        let pool = pool();
        let blocks = usize::try_from(tower.device.info().size / BLOCK).unwrap();
        Self {
            rng,
            queue: tower.device.open_queue(&pool).unwrap(),
            pool,
            blocks: vec![Some(0); blocks],
            flying: BTreeMap::new(),
            name: format!("seed {seed}: {}", tower.shape),
            failed: 0,
            cancels: false,
        }
    }

    /// Submits an operation that conflicts with none in flight.
    fn submit(&mut self) {
        let count = self.blocks.len() as u64;
        let most = if self.rng.below(4) == 0 { count } else { 40 };
        let blocks = 1 + self.rng.below(most.min(count));
        let first = self.rng.below(count - blocks + 1);
        let range = first..first + blocks;
        let token = self.rng.next_u64();
        let (offset, len) = (first * BLOCK, blocks * BLOCK);
        let byte = self.rng.next_u64() as u8;
        let op = match self.rng.below(12) {
            0 => BlockOp::flush(token),
            1 => BlockOp::write_zeroes(token, offset, len, false, byte.is_multiple_of(2)),
            2 => BlockOp::deallocate(token, offset, len),
            3..7 => BlockOp::write(
                token,
                offset,
                filled(&self.pool, len as usize, byte),
                byte.is_multiple_of(2),
            ),
            _ => BlockOp::read(token, offset, filled(&self.pool, len as usize, !byte)),
        };
        let flying = Flying { kind: op.kind, range, byte };
        if self.flying.values().any(|other| other.meets(&flying)) {
            return;
        }
        let before = (op.offset, op.len, op.buf.as_ref().map(Buffer::as_ptr));
        match self.queue.submit(op) {
            Ok(()) => assert!(self.flying.insert(token, flying).is_none()),
            Err(Rejected { op, reason }) => {
                let after = (op.offset, op.len, op.buf.as_ref().map(Buffer::as_ptr));
                assert_eq!((op.token, after), (token, before), "{}", self.name);
                assert_eq!(reason, RejectReason::QueueFull, "{}", self.name);
            }
        }
    }

    /// Checks that each completion matches one operation in flight.
    fn poll(&mut self) -> usize {
        let mut done = Vec::new();
        self.queue.poll(&mut done);
        let count = done.len();
        for Completed { token, buf, result } in done {
            let flying = self.flying.remove(&token);
            let flying = flying.unwrap_or_else(|| panic!("{}: nobody asked for it", self.name));
            let (first, last) = (flying.range.start as usize, flying.range.end as usize);
            let blocks = &mut self.blocks[first..last];
            self.failed += u64::from(result.is_err());
            match flying.kind {
                BlockOpKind::Flush => continue,
                BlockOpKind::Read if result.is_ok() => {
                    let buf = buf.expect("the data");
                    let read = buf.as_slice().chunks(BLOCK as usize).zip(blocks);
                    for (number, (data, block)) in read.enumerate() {
                        let right = block.is_none_or(|byte| data.iter().all(|b| *b == byte));
                        assert!(right, "{}: block {number} of {flying:?}", self.name);
                    }
                }
                BlockOpKind::Read => assert!(buf.is_some(), "{}: the buffer", self.name),
                _ => {
                    let written = matches!(flying.kind, BlockOpKind::Write { .. });
                    blocks.fill(result.is_ok().then_some(if written { flying.byte } else { 0 }));
                }
            }
        }
        assert_eq!(self.queue.in_flight(), self.flying.len(), "{}", self.name);
        count
    }

    /// Polls only when signaled, as a reactor does, until all operations have completed.
    fn finish(&mut self) {
        for _ in 0..MANY {
            if self.queue.in_flight() == 0 {
                return;
            }
            if self.poll() > 0 {
                continue;
            }
            let due = self.queue.next_due().filter(|due| *due < u64::MAX);
            let readable = self.queue.event_fd().is_some_and(is_readable);
            assert!(
                self.queue.in_flight() == 0 || readable || due.is_some(),
                "{}: asleep with {:?}",
                self.name,
                self.flying
            );
            if let Some(due) = due.filter(|_| !readable) {
                NOW.set(due.max(NOW.get()));
            }
        }
        panic!("{}: never done: {:?}", self.name, self.flying);
    }

    /// Cancels a random operation.
    fn cancel(&mut self) {
        let pick = self.rng.index(self.flying.len().max(1));
        if let Some(token) = self.flying.keys().nth(pick).copied() {
            self.queue.cancel(token);
        }
    }

    fn steps(&mut self, steps: u32) {
        for _ in 0..steps {
            match self.rng.below(8) {
                0..4 => self.submit(),
                4 => NOW.set(NOW.get() + self.rng.below(60_000)),
                5 if self.cancels => self.cancel(),
                _ => drop(self.poll()),
            }
        }
    }
}

impl Flying {
    /// Returns true if the order of the two operations is observable.
    fn meets(&self, other: &Self) -> bool {
        let both_read = [self, other].iter().all(|one| one.kind == BlockOpKind::Read);
        let flush = [self, other].iter().any(|one| one.kind == BlockOpKind::Flush);
        let apart = self.range.end <= other.range.start || other.range.end <= self.range.start;
        !both_read && !flush && !apart
    }
}

/// Stacks that only delay, reorder and reject keep every byte; a sleeping queue is always woken or
/// due.
#[test]
fn any_device_on_any_other_keeps_its_data() {
    for seed in 1..=400 {
        let mut rng = SplitMix64::new(seed);
        let tower = Tower::new(&mut rng, 0);
        let mut story = Story::new(seed, rng, &tower);
        story.steps(300);
        story.finish();
        assert_eq!((story.failed, story.pool.leased()), (0, 0), "{}", story.name);
        // The contents are the same for a queue that is opened later.
        let Story { pool, blocks, name, .. } = story;
        let mut queue = tower.device.open_queue(&pool).unwrap();
        let mut at = 0;
        for run in blocks.chunks(64) {
            let buf = pool.lease(run.len() * BLOCK as usize).unwrap();
            let mut op = BlockOp::read(1, at, buf);
            let mut done = Vec::new();
            while let Err(rejected) = queue.submit(op) {
                queue.poll(&mut done);
                op = rejected.op;
            }
            while done.is_empty() {
                NOW.set(NOW.get() + 1000);
                queue.poll(&mut done);
            }
            let wanted: Vec<u8> =
                run.iter().flat_map(|byte| [byte.unwrap(); BLOCK as usize]).collect();
            assert_eq!(done[0].result, Ok(()), "{name}");
            assert!(done[0].buf.as_ref().unwrap().as_slice() == wanted, "{name}: from {at}");
            at += wanted.len() as u64;
        }
    }
}

/// Stacks with errors and missing devices: every operation completes once, successful ones have
/// their effect, and no buffer is lost.
#[test]
fn any_device_on_any_other_ends_what_it_was_asked_under_faults() {
    let mut failed = 0;
    for seed in 1..=400 {
        let mut rng = SplitMix64::new(seed);
        let tower = Tower::new(&mut rng, 30_000);
        let mut story = Story::new(seed, rng, &tower);
        for _ in 0..10 {
            story.steps(30);
            let which = story.rng.index(tower.faults.len() * 2);
            if let Some(control) = tower.faults.get(which) {
                control.remove();
                assert!(tower.device.is_gone());
                story.steps(10);
                control.restore();
            }
        }
        if seed % 4 == 0 {
            let Story { queue, pool, name, .. } = story;
            drop(queue);
            assert_eq!(pool.leased(), 0, "{name}: dropped with operations in flight");
            continue;
        }
        story.finish();
        assert_eq!(story.pool.leased(), 0, "{}", story.name);
        failed += story.failed;
    }
    assert!(failed > 1000, "only {failed} operations failed");
}

/// Stacks with disappearing requesters: a cancelled operation completes once, and never overwrites
/// later writes.
#[test]
fn any_device_on_any_other_lets_nothing_cancelled_come_later() {
    let mut failed = 0;
    for seed in 1..=400 {
        let mut rng = SplitMix64::new(seed);
        let tower = Tower::new(&mut rng, 0);
        let mut story = Story::new(seed, rng, &tower);
        story.cancels = true;
        story.steps(400);
        story.finish();
        assert_eq!(story.pool.leased(), 0, "{}", story.name);
        for control in &tower.faults {
            assert_eq!(control.stalled(), 0, "{}", story.name);
        }
        failed += story.failed;
    }
    assert!(failed > 1000, "only {failed} operations were cancelled");
}

/// Zero-copy reads pass through splits and stripes.
#[test]
fn bytes_are_exposed_through_a_stack() {
    let null = |_| -> Arc<dyn BlockDevice> { Arc::new(NullDevice::new("n", MIB, 512).unwrap()) };
    let stripe = StripeDevice::new("s", [0, 1].map(null).to_vec(), 64 << 10).unwrap();
    let split = SplitDevice::new("p", Arc::new(stripe), 32 << 10, None).unwrap();
    let mut queue = split.open_queue(&pool()).unwrap();
    assert_eq!(Payload::from(queue.zero_copy_read(0, 32 << 10).unwrap()).len(), 32 << 10);
    assert!(queue.zero_copy_read(0, 33 << 10).is_none());
}
