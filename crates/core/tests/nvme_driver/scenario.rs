//! Random operations with random errors, compared with a model.

use std::collections::BTreeMap;
use std::time::Duration;

use nvmeof_core::block::{BlockError, Completed, NvmeDevice};
use nvmeof_core::nvme_driver::{ControllerOptions, ControllerState, Io, IoKind, IoQueue};
use nvmeof_fake_drive::{FakeDriveConfig, Fault, NamespaceConfig, Violation, When};
use nvmeof_random::SplitMix64;
use nvmeof_wire::identify::{oacs, sgls};
use nvmeof_wire::{Status, U16, U32};

use crate::rig::{MILLI, Rig, SECOND, options};

const BLOCKS: u64 = 2048;
const BLOCK: usize = 512;

/// Content of a block: one repeated stamp, or unknown.
type Content = Option<u64>;

struct Story {
    rig: Rig,
    device: NvmeDevice,
    dice: SplitMix64,
    seed: u64,
    queues: Vec<IoQueue>,
    model: Vec<Content>,
    /// Operations in flight: kind, first block, blocks, stamp.
    running: BTreeMap<u64, (IoKind, u64, u64, u64)>,
    next: u64,
    ok: u64,
    failed: u64,
    is_gone: bool,
}

fn config(dice: &mut SplitMix64) -> FakeDriveConfig {
    let mut namespace = NamespaceConfig::new(1, BLOCKS, 9);
    namespace.identify.noiob = U16::new([0, 16, 100][dice.index(3)]);
    namespace.identify.dlfeat = 0b1001;
    let mut config = FakeDriveConfig {
        namespaces: vec![namespace],
        abort_helps: dice.within(0..2) == 0,
        ..FakeDriveConfig::default()
    };
    config.identify.mdts = [0, 1, 3, 5][dice.index(4)];
    if dice.within(0..2) == 0 {
        config.identify.sgls = U32::new(sgls::SUPPORTED);
    }
    if dice.within(0..2) == 0 {
        config.identify.oacs = U16::new(oacs::FORMAT | oacs::DOORBELL_BUFFER);
    }
    config
}

impl Story {
    fn new(seed: u64) -> Self {
        let mut dice = SplitMix64::new(seed);
        let depth = [4, 16, 64][dice.index(3)];
        let options = ControllerOptions {
            resets: 100_000,
            queue_depth: depth,
            absence: Duration::from_secs(60),
            ..options()
        };
        let rig = Rig::with(config(&mut dice), options);
        let queues = vec![rig.queue(), rig.queue()];
        let device = rig.device(1);
        let model = vec![Some(0); usize::try_from(BLOCKS).unwrap()];
        let running = BTreeMap::new();
        let (next, ok, failed) = (1, 0, 0);
        Self { rig, device, dice, seed, queues, model, running, next, ok, failed, is_gone: false }
    }

    fn blocks(&mut self, first: u64, count: u64) -> &mut [Content] {
        let range = usize::try_from(first).unwrap()..usize::try_from(first + count).unwrap();
        &mut self.model[range]
    }

    /// Submits an operation that does not overlap any in flight.
    fn submit(&mut self) {
        let most = if self.dice.within(0..10) == 0 { BLOCKS } else { 40 };
        let count = 1 + self.dice.within(0..most);
        let first = self.dice.within(0..BLOCKS - count + 1);
        let overlaps =
            |(_, at, len, _): &(IoKind, u64, u64, u64)| first < at + len && *at < first + count;
        if self.running.values().any(overlaps) {
            return;
        }
        let token = self.next;
        let kind = match self.dice.within(0..20) {
            0..8 => IoKind::Read,
            8..15 => IoKind::Write { fua: self.dice.within(0..2) == 0 },
            15 => IoKind::Flush,
            16 => IoKind::WriteZeroes { fua: false, deallocate: self.dice.within(0..2) == 0 },
            17 => IoKind::Deallocate,
            18 => IoKind::Verify,
            _ => IoKind::Compare,
        };
        let (first, count) = if kind == IoKind::Flush { (0, 0) } else { (first, count) };
        let len = usize::try_from(count).unwrap() * BLOCK;
        let mut buf = None;
        if kind.moves_data() {
            let Ok(mut buffer) = self.rig.pool.lease(len) else { return };
            let stamps: Vec<u64> = if kind == IoKind::Compare {
                self.blocks(first, count).iter().map(|stamp| stamp.unwrap_or(0)).collect()
            } else {
                vec![token; usize::try_from(count).unwrap()]
            };
            for (block, stamp) in buffer.as_mut_slice().chunks_mut(BLOCK).zip(stamps) {
                block.chunks_mut(8).for_each(|word| word.copy_from_slice(&stamp.to_le_bytes()));
            }
            buf = Some(buffer);
        }
        let io = Io { token, kind, offset: first * BLOCK as u64, len: len as u64, buf };
        let queue = self.dice.index(2);
        if self.queues[queue].submit(io).is_ok() {
            self.next += 1;
            self.running.insert(token, (kind, first, count, token));
        }
    }

    fn poll(&mut self) {
        let mut done = Vec::new();
        let queue = self.dice.index(2);
        self.queues[queue].poll(&mut done);
        done.into_iter().for_each(|done| self.check(done));
    }

    fn check(&mut self, done: Completed) {
        let seed = self.seed;
        let Completed { token, buf, result } = done;
        let (kind, first, count, stamp) = self.running.remove(&token).unwrap_or_else(|| {
            panic!("seed {seed}: operation {token} ends twice or was never begun")
        });
        self.ok += u64::from(result.is_ok());
        self.failed += u64::from(result.is_err());
        match (kind, &result) {
            (IoKind::Read, Ok(())) => {
                let buf = buf.unwrap_or_else(|| panic!("seed {seed}: a read without its buffer"));
                let data = buf.as_slice().chunks(BLOCK);
                for (at, (block, expected)) in data.zip(self.blocks(first, count)).enumerate() {
                    let Some(stamp) = expected else { continue };
                    let right = block.chunks(8).all(|word| word == stamp.to_le_bytes());
                    assert!(right, "seed {seed}: block {} of operation {token}", first + at as u64);
                }
            }
            (IoKind::Compare, Err(BlockError::Media { errno: libc::EILSEQ })) => {
                let known = self.blocks(first, count).iter().all(Option::is_some);
                assert!(!known, "seed {seed}: a comparison of operation {token} fails");
            }
            (IoKind::Write { .. }, Ok(())) => self.blocks(first, count).fill(Some(stamp)),
            (IoKind::WriteZeroes { .. } | IoKind::Deallocate, Ok(())) => {
                self.blocks(first, count).fill(Some(0));
            }
            (kind, Err(_)) if kind.is_write() => self.blocks(first, count).fill(None),
            _ => {}
        }
    }

    /// Injects a random error.
    fn trouble(&mut self) {
        let dice = &mut self.dice;
        let fake = &self.rig.fake;
        let qid = u16::from(dice.within(0..2) == 0) + 1;
        let when = When::queue(qid).after(u32::try_from(dice.within(0..6)).unwrap());
        match dice.within(0..16) {
            0..3 => fake.inject(when, Fault::Status(Status::UNRECOVERED_READ_ERROR)),
            3 => fake.inject(when, Fault::Status(Status::new(7, 0x33))),
            4 | 5 => fake.inject(when, Fault::Lost),
            6 => fake.inject(when.times(3), Fault::Held),
            7 => fake.inject(when, Fault::WrongCid(0xf000 | qid)),
            8 => fake.inject(when, Fault::WrongSqid(9)),
            9 => fake.inject(when, Fault::Duplicate),
            10 => fake.inject(when, Fault::WrongPhase),
            11 => fake.inject(when, Fault::Fatal),
            12 => fake.reset_itself(),
            13 => self.rig.controller.reset(),
            14 => drop(fake.release()),
            _ => {
                self.is_gone = !self.is_gone;
                fake.set_gone(self.is_gone);
            }
        }
    }

    fn step(&mut self) {
        match self.dice.within(0..200) {
            0..80 => self.submit(),
            80..160 => self.poll(),
            160..180 => {
                let nanos = self.dice.within(0..200 * MILLI);
                self.rig.time.pass(nanos);
                self.rig.controller.turn();
            }
            180..190 if self.is_gone => {
                // Disconnected only briefly: another test covers permanent removal.
                self.is_gone = false;
                self.rig.fake.set_gone(false);
            }
            190 => self.trouble(),
            191 if self.dice.within(0..20) == 0 => {
                // One reactor ends and another starts.
                let queue = self.queues.remove(0);
                if queue.in_flight() > 0 {
                    self.queues.insert(0, queue);
                } else {
                    drop(queue);
                    self.queues.insert(0, self.device.open_driver_queue(&self.rig.pool).unwrap());
                }
            }
            192 => self.rig.time.pass(SECOND),
            _ => {
                self.rig.controller.turn();
            }
        }
    }

    fn end(mut self) -> (u64, u64) {
        let seed = self.seed;
        self.rig.fake.clear_faults();
        self.rig.fake.set_gone(false);
        for _ in 0..200_000 {
            if self.running.is_empty() && self.rig.controller.state() == ControllerState::Live {
                break;
            }
            self.rig.controller.turn();
            self.rig.time.pass(10 * MILLI);
            self.poll();
        }
        assert!(self.running.is_empty(), "seed {seed}: {:?} do not end", self.running);
        assert_eq!(self.rig.controller.state(), ControllerState::Live, "seed {seed}");
        let media = self.rig.fake.read_media(1, 0, u32::try_from(BLOCKS).unwrap()).unwrap();
        for (at, (block, stamp)) in media.chunks(BLOCK).zip(&self.model).enumerate() {
            let Some(stamp) = stamp else { continue };
            let right = block.chunks(8).all(|word| word == stamp.to_le_bytes());
            assert!(right, "seed {seed}: block {at} is not what was written last");
        }
        assert_eq!(self.rig.controller.stats().leaked_buffers, 0, "seed {seed}");
        let resets = self.rig.controller.stats().resets;
        let Self { rig, device, queues, ok, failed, .. } = self;
        drop((queues, device));
        let (mut violations, faults) = rig.fake.take_findings();
        // A controller that resets itself does not announce it.
        violations.retain(|violation| {
            !matches!(violation, Violation::Register { rule: "a doorbell while not ready", .. })
        });
        assert!(
            violations.is_empty() && faults.is_empty(),
            "seed {seed}: {violations:?} {faults:?}"
        );
        rig.end();
        assert!(ok > 100, "seed {seed}: only {ok} operations succeed");
        (resets, failed)
    }
}

#[test]
fn whatever_goes_wrong_every_operation_ends_once_and_data_is_right() {
    let (mut resets, mut failed) = (0, 0);
    for seed in 0..60 {
        let mut story = Story::new(seed);
        for _ in 0..4000 {
            story.step();
        }
        let (more_resets, more_failed) = story.end();
        resets += more_resets;
        failed += more_failed;
    }
    // The runs covered resets and failures.
    assert!(resets > 60 && failed > 100, "{resets} resets, {failed} failures");
}
