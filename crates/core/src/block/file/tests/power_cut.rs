//! Power cuts at every prefix of a log.
//!
//! The test compares two interpretations of one log.
//!
//! **The medium's** follows the calls. A write is durable once its DSYNC call has completed, or
//! once a sync issued after its completion has succeeded. Any other write that has begun may or may
//! not be there, in any order, block by block. After a failed sync, no later one covers what was
//! written before it.
//!
//! **The user's** follows the operations. A write acknowledged with FUA, or acknowledged before an
//! acknowledged flush, is there, or a later write in its place. A failed flush (or FUA write) means
//! that writes acknowledged but not flushed before may be lost: no later flush covers them.
//!
//! At each cut and for each block, every value the medium may hold must be one the user allows.
//! Blocks are independent in both interpretations, so this covers every subset and every order.

use std::ops::Range;

use nvmeof_random::SplitMix64;

use super::super::queue::{FileQueue, Health, Mode};
use super::log::{self, BLOCK, Effect, Event, Log, Logged};
use super::sim::{Sim, Whims};
use super::*;
use crate::block::file::backend::{FileBackend, FileCall, FileResult};
use crate::block::{BlockError, BlockOpKind, DeviceInfo, Geometry, Rejected};

const BLOCKS: usize = 48;
const DEPTH: usize = 8;

/// A write of one block in one of the interpretations.
#[derive(Debug, Clone, Copy)]
struct Version {
    value: u64,
    /// From this event it may be there.
    begun: usize,
    /// Writes that begin after this event replace it.
    ended: usize,
    /// From this event it is durable.
    sure: usize,
}

const NEVER: usize = usize::MAX;

/// Versions of every block, starting with the initial zeroes.
type Versions = Vec<Vec<Version>>;

fn blank() -> Versions {
    vec![vec![Version { value: 0, begun: 0, ended: 0, sure: 0 }]; BLOCKS]
}

/// Returns the possible values of a block if power fails just before event `cut`: all begun writes,
/// except those that ended before a durable one began.
fn possible(versions: &[Version], cut: usize) -> impl Iterator<Item = u64> {
    let sure = |v: &&Version| v.sure < cut || (v.begun == 0 && v.sure == 0);
    let last_sure = versions.iter().filter(sure).map(|v| v.begun).max().unwrap_or(0);
    versions
        .iter()
        .filter(move |v| (v.begun < cut || v.begun == 0) && (v.ended >= last_sure))
        .map(|v| v.value)
}

/// Computes the medium's interpretation.
fn medium_versions(log: &[Event]) -> Versions {
    let mut versions = blank();
    let end_of = |start: usize| {
        let found = log.iter().enumerate().skip(start).find_map(|(at, event)| match event {
            Event::End { start: of, result } if *of == start => Some((at, *result)),
            _ => None,
        });
        found.unwrap_or((NEVER, -1))
    };
    let syncs: Vec<_> = log
        .iter()
        .enumerate()
        .filter(|(_, event)| matches!(event, Event::Start { effect: Effect::Sync }))
        .map(|(start, _)| (start, end_of(start)))
        .collect();
    for (start, event) in log.iter().enumerate() {
        let Event::Start { effect: Effect::Put { first, values, dsync } } = event else { continue };
        let (end, result) = end_of(start);
        let whole = match result {
            0 => values.len(),
            bytes => usize::try_from(bytes).unwrap_or(0) / BLOCK,
        };
        let synced = syncs
            .iter()
            .filter(|(_, (_, result))| *result != -libc::EAGAIN && *result != -libc::EINTR)
            .filter(|(sync, _)| *sync > end)
            .take_while(|(_, (_, result))| *result == 0)
            .map(|(_, (end, _))| *end)
            .next();
        // A sync that fails while the write is in flight may have lost it.
        let lost = syncs
            .iter()
            .any(|(sync, (done, result))| *result == -libc::EIO && *sync < end && end < *done);
        for (at, value) in values.iter().enumerate() {
            let sure = match synced {
                _ if at >= whole => NEVER,
                _ if *dsync => end,
                Some(done) if !lost => done,
                _ => NEVER,
            };
            versions[first + at].push(Version { value: *value, begun: start, ended: end, sure });
        }
    }
    versions
}

/// Computes the user's interpretation.
fn user_versions(log: &[Event]) -> Versions {
    let mut versions = blank();
    let ack_of = |submit: usize| {
        let found = log.iter().enumerate().skip(submit).find_map(|(at, event)| match event {
            Event::Ack { submit: of, ok } if *of == submit => Some((at, *ok)),
            _ => None,
        });
        found.unwrap_or((NEVER, false))
    };
    let flushes: Vec<_> = log
        .iter()
        .enumerate()
        .filter(|(_, e)| matches!(e, Event::Submit { kind: BlockOpKind::Flush, .. }))
        .filter_map(|(submit, _)| match ack_of(submit) {
            (acked, true) => Some((submit, acked)),
            _ => None,
        })
        .collect();
    let failures: Vec<_> = log
        .iter()
        .enumerate()
        .filter(|(_, e)| matches!(e, Event::Submit { kind, .. } if is_durable(*kind)))
        .filter_map(|(submit, _)| match ack_of(submit) {
            (acked, false) => Some(acked),
            _ => None,
        })
        .collect();
    for (submit, event) in log.iter().enumerate() {
        let Event::Submit { kind, first, values } = event else { continue };
        let (acked, ok) = ack_of(submit);
        let fua = *kind != BlockOpKind::Flush && is_durable(*kind);
        let later = failures.iter().copied().filter(|failed| *failed > acked);
        let in_doubt = later.min().unwrap_or(NEVER);
        let flushed = flushes.iter().find(|(flush, _)| *flush > acked).map(|(_, done)| *done);
        let flushed = flushed.filter(|done| *done < in_doubt);
        let sure = match flushed {
            // A deallocation makes no durability promise.
            _ if !ok || *kind == BlockOpKind::Deallocate => NEVER,
            _ if fua => acked,
            Some(done) => done,
            None => NEVER,
        };
        for (at, value) in values.iter().enumerate() {
            versions[first + at].push(Version { value: *value, begun: submit, ended: acked, sure });
        }
    }
    versions
}

/// Returns true if success means that data is durable.
fn is_durable(kind: BlockOpKind) -> bool {
    matches!(
        kind,
        BlockOpKind::Flush
            | BlockOpKind::Write { fua: true }
            | BlockOpKind::WriteZeroes { fua: true, .. }
    )
}

/// Finds the first cut after which the medium may hold a value that the user does not allow.
fn check(log: &[Event]) -> Result<(), String> {
    let (medium, user) = (medium_versions(log), user_versions(log));
    for cut in 0..=log.len() {
        for block in 0..BLOCKS {
            let allowed: Vec<u64> = possible(&user[block], cut).collect();
            if let Some(value) = possible(&medium[block], cut).find(|v| !allowed.contains(v)) {
                return Err(format!("cut {cut}: block {block} may be {value}, not {allowed:?}"));
            }
        }
    }
    Ok(())
}

/// Runs random operations on a queue, up to [`DEPTH`] concurrently, and logs them.
fn drive(
    queue: &mut dyn BlockQueue,
    pool: &CorePool,
    log: &Log,
    seed: u64,
    count: u64,
) -> Vec<Completed> {
    let mut rng = SplitMix64::new(seed);
    let (mut submits, mut done, mut all) = (Vec::new(), Vec::new(), Vec::new());
    let mut settle = |queue: &mut dyn BlockQueue, submits: &[usize]| {
        queue.poll(&mut done);
        for completed in done.drain(..) {
            log::ack(log, submits[usize::try_from(completed.token).unwrap()], &completed);
            all.push(completed);
        }
    };
    for token in 0..count {
        let blocks = 1 + rng.index(8);
        let first = rng.index(BLOCKS - blocks + 1);
        let (offset, len) = ((first * BLOCK) as u64, (blocks * BLOCK) as u64);
        let fua = rng.below(4) == 0;
        let op = match rng.below(20) {
            0..11 => {
                let mut buf = pool.lease(blocks * BLOCK).unwrap();
                let (words, _) = buf.as_mut_slice().as_chunks_mut::<8>();
                words.fill((token + 1).to_le_bytes());
                BlockOp::write(token, offset, buf, fua)
            }
            11 => BlockOp::deallocate(token, offset, len),
            12..14 => BlockOp::write_zeroes(token, offset, len, fua, rng.below(2) == 0),
            14 => BlockOp::read(token, offset, pool.lease(blocks * BLOCK).unwrap()),
            _ => BlockOp::flush(token),
        };
        submits.push(log::submitted(log, &op));
        let mut taken = queue.submit(op);
        while let Err(rejected) = taken {
            settle(queue, &submits);
            taken = queue.submit(rejected.op);
        }
        while queue.in_flight() == DEPTH || rng.below(3) == 0 {
            settle(queue, &submits);
        }
    }
    settle(queue, &submits);
    while queue.in_flight() > 0 {
        if let Some(fd) = queue.event_fd() {
            wait_readable(fd);
        }
        settle(queue, &submits);
    }
    assert_eq!(all.len() as u64, count);
    all
}

fn info() -> DeviceInfo {
    DeviceInfo {
        name: "disk".into(),
        size: (BLOCKS * BLOCK) as u64,
        block_size: BLOCK as u32,
        read_only: false,
        volatile_cache: true,
        deallocate: true,
        deallocate_reads_zero: true,
        write_zeroes: true,
        geometry: Geometry::default(),
        medium: None,
    }
}

fn queue<M: FileBackend>(medium: M, direct: bool) -> FileQueue<M> {
    FileQueue::new(
        medium,
        info(),
        Mode { direct, depth: DEPTH, polled: false },
        Arc::new(Health::default()),
    )
}

fn whims(seed: u64) -> Whims {
    let mut rng = SplitMix64::new(seed ^ 0xface);
    let mut flip = || rng.below(2) == 0;
    Whims {
        short: flip(),
        again: flip(),
        no_dsync: flip() && flip(),
        no_keep_allocated: flip() && flip(),
        no_free: flip() && flip(),
        failing_sync: 0,
    }
}

fn logged_sim(log: &Log, seed: u64, whims: Whims) -> Logged<Sim> {
    Logged::new(Sim::new(BLOCKS * BLOCK, seed, whims), log, DEPTH + 1)
}

#[test]
fn no_power_cut_loses_an_acknowledged_write_on_a_contrary_medium() {
    let pool = pool();
    for seed in 0..60 {
        let log = Log::default();
        let mut queue = queue(logged_sim(&log, seed, whims(seed)), seed % 2 == 0);
        let done = drive(&mut queue, &pool, &log, seed, 250);
        assert!(done.iter().all(|completed| completed.result.is_ok()));
        check(&log.borrow()).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
    assert_eq!(pool.leased(), 0);
}

#[test]
fn no_power_cut_loses_an_acknowledged_write_on_real_files() {
    let size = (BLOCKS * BLOCK) as u64;
    for (seed, (_folder, config)) in (0..).zip(configs(size, BLOCK as u32)) {
        let device = FileDevice::open(&config).unwrap();
        let direct = device.mode.direct;
        let pool = pool();
        let log = Log::default();
        let ring = Ring::new(device.opened.reopen().unwrap(), DEPTH + 1, false).unwrap();
        let mut queue = queue(Logged::new(ring, &log, DEPTH + 1), direct);
        let done = drive(&mut queue, &pool, &log, seed, 250);
        assert!(done.iter().all(|completed| completed.result.is_ok()));
        check(&log.borrow()).unwrap_or_else(|error| panic!("{config:?}: {error}"));
        // Without a power cut, the file matches the log.
        let bytes = std::fs::read(&config.path).unwrap();
        let (log, end) = (log.borrow(), log.borrow().len());
        for (block, versions) in user_versions(&log).iter().enumerate() {
            let found = log::value(&bytes[block * BLOCK..][..BLOCK]);
            assert!(possible(versions, end).any(|value| value == found));
        }
    }
}

#[test]
fn after_a_failed_sync_nothing_before_is_vouched_for_and_all_that_comes_is() {
    let pool = pool();
    for seed in 0..40 {
        let log = Log::default();
        let whims = Whims { failing_sync: 1 + (seed as u32) % 20, ..whims(seed) };
        let mut queue = queue(logged_sim(&log, seed, whims), seed % 2 == 0);
        let done = drive(&mut queue, &pool, &log, seed, 250);
        let failed = done.iter().filter(|completed| completed.result.is_err()).count();
        assert!(failed > 0 && failed <= DEPTH, "once, to all that waited: {failed}");
        check(&log.borrow()).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
}

#[test]
fn a_device_that_tells_only_the_flush_that_failed_is_caught() {
    let pool = pool();
    let caught = caught(0..40, |seed, log| {
        let whims = Whims { failing_sync: 5, ..Whims::default() };
        // Operations that waited for the next sync succeed incorrectly.
        let inner = queue(logged_sim(log, seed, whims), false);
        let mut queue = Brazen { inner };
        drive(&mut queue, &pool, log, seed, 250);
    });
    // Without a waiting FUA write, nothing is wrong: 40 % of the runs have one.
    assert!(caught >= 16, "{caught} of 40");
}

/// Ignores a loss that a flush did not detect itself.
#[derive(Debug)]
struct Brazen<M> {
    inner: FileQueue<M>,
}

impl<M: FileBackend> BlockQueue for Brazen<M> {
    fn submit(&mut self, op: BlockOp) -> Result<(), Rejected> {
        self.inner.submit(op)
    }

    fn poll(&mut self, done: &mut Vec<Completed>) {
        self.inner.poll(done);
        for completed in done {
            if completed.result == Err(BlockError::FlushLost) {
                completed.result = Ok(());
            }
        }
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight()
    }
}

/// Returns the number of runs in which the check finds an error.
fn caught(seeds: Range<u64>, mut run: impl FnMut(u64, &Log)) -> usize {
    let fails = |seed: &u64| {
        let log = Log::default();
        run(*seed, &log);
        check(&log.borrow()).is_err()
    };
    seeds.filter(fails).count()
}

#[test]
fn a_device_that_acknowledges_flushes_early_is_caught() {
    let pool = pool();
    let caught = caught(0..10, |seed, log| {
        let inner = queue(logged_sim(log, seed, Whims::default()), true);
        let mut queue = EarlyFlush { inner, early: Vec::new(), late: 0 };
        drive(&mut queue, &pool, log, seed, 250);
    });
    assert_eq!(caught, 10);
}

#[test]
fn a_device_that_forgets_fua_is_caught() {
    let pool = pool();
    let caught = caught(0..10, |seed, log| {
        let forgetful = Careless::new(logged_sim(log, seed, Whims::default()), Forgets::Dsync);
        drive(&mut queue(forgetful, true), &pool, log, seed, 250);
    });
    assert_eq!(caught, 10);
}

#[test]
fn a_device_that_never_syncs_is_caught() {
    let pool = pool();
    for direct in [true, false] {
        let caught = caught(0..10, |seed, log| {
            let careless = Careless::new(logged_sim(log, seed, Whims::default()), Forgets::Sync);
            drive(&mut queue(careless, direct), &pool, log, seed, 250);
        });
        assert_eq!(caught, 10);
    }
}

#[test]
fn a_device_that_believes_a_sync_after_a_lost_one_is_caught() {
    let pool = pool();
    let caught = caught(0..10, |seed, log| {
        let whims = Whims { failing_sync: 5, ..Whims::default() };
        let hopeful = Careless::new(logged_sim(log, seed, whims), Forgets::Failure);
        drive(&mut queue(hopeful, false), &pool, log, seed, 250);
    });
    // If the failed sync had nothing to lose, nothing is wrong.
    assert!(caught >= 8, "{caught} of 10");
}

/// Acknowledges a flush immediately and executes it later.
#[derive(Debug)]
struct EarlyFlush<M> {
    inner: FileQueue<M>,
    early: Vec<Completed>,
    late: usize,
}

const LATE: u64 = u64::MAX;

impl<M: FileBackend> BlockQueue for EarlyFlush<M> {
    fn submit(&mut self, op: BlockOp) -> Result<(), Rejected> {
        if op.kind != BlockOpKind::Flush {
            return self.inner.submit(op);
        }
        self.early.push(op.complete(Ok(())));
        if self.inner.submit(BlockOp::flush(LATE)).is_ok() {
            self.late += 1;
        }
        Ok(())
    }

    fn poll(&mut self, done: &mut Vec<Completed>) {
        done.append(&mut self.early);
        self.inner.poll(done);
        let before = done.len();
        done.retain(|completed| completed.token != LATE);
        self.late -= before - done.len();
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight() - self.late + self.early.len()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Forgets {
    Dsync,
    Sync,
    Failure,
}

/// A medium that omits calls of the queue.
#[derive(Debug)]
struct Careless<M> {
    inner: M,
    forgets: Forgets,
    answers: Vec<FileResult>,
}

impl<M> Careless<M> {
    fn new(inner: M, forgets: Forgets) -> Self {
        Self { inner, forgets, answers: Vec::new() }
    }
}

impl<M: FileBackend> FileBackend for Careless<M> {
    fn issue(&mut self, slot: usize, call: FileCall, buf: Option<Buffer>) {
        match (call, self.forgets) {
            (FileCall::Write { offset, skip, len, .. }, Forgets::Dsync) => {
                self.inner.issue(slot, FileCall::Write { offset, skip, len, dsync: false }, buf);
            }
            (FileCall::Sync, Forgets::Sync) => {
                self.answers.push(FileResult { slot, result: 0, buf: None });
            }
            _ => self.inner.issue(slot, call, buf),
        }
    }

    fn submit(&mut self) {
        self.inner.submit();
    }

    fn reap(&mut self, answers: &mut Vec<FileResult>) {
        answers.append(&mut self.answers);
        let known = answers.len();
        self.inner.reap(answers);
        for answer in &mut answers[known..] {
            if self.forgets == Forgets::Failure && answer.result == -libc::EIO {
                // The queue retries, and the retry succeeds.
                answer.result = -libc::EAGAIN;
            }
        }
    }

    fn event_fd(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        self.inner.event_fd()
    }
}
