//! Reactors and supervisor on separate threads, in real time.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use nvmeof_core::block::{BlockDevice, BlockOp, BlockQueue, NvmeDevice};
use nvmeof_core::dma::CorePool;
use nvmeof_core::nvme_driver::{BufferMaps, Controller, ControllerOptions, ControllerState};
use nvmeof_fake_drive::{FakeDrive, FakeDriveConfig, Violation};

use crate::rig::{options, shared_pool};

const REACTORS: usize = 2;
const ROUNDS: u8 = 100;
const LEN: u64 = 64 << 10;

/// Progress of a reactor. If it panics, it counts as complete, so that no thread waits for it.
#[derive(Debug, Default)]
struct Progress(AtomicUsize);

impl Progress {
    fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

struct Ends<'a>(&'a Progress);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.0.store(usize::MAX, Ordering::Relaxed);
    }
}

/// Writes and reads back its own part of the device repeatedly.
fn react(device: &NvmeDevice, pool: &CorePool, base: u64, progress: &Progress) {
    let _ends = Ends(progress);
    let mut queue: Box<dyn BlockQueue> = device.open_queue(pool).unwrap();
    let mut done = Vec::new();
    let mut run = |ops: Vec<BlockOp>| {
        let count = ops.len();
        ops.into_iter().for_each(|op| queue.submit(op).unwrap());
        while queue.in_flight() > 0 {
            queue.poll(&mut done);
            std::thread::yield_now();
        }
        assert_eq!(done.len(), count);
        assert!(done.iter().all(|done| done.result == Ok(())), "{done:?}");
        std::mem::take(&mut done)
    };
    for round in 0..ROUNDS {
        let offsets = (0..8).map(|index| base + index * LEN);
        let writes = offsets.clone().map(|offset| {
            let mut buf = pool.lease(usize::try_from(LEN).unwrap()).unwrap();
            buf.as_mut_slice().fill(round);
            BlockOp::write(offset, offset, buf, false)
        });
        let buffers = run(writes.collect());
        let reads = buffers.into_iter().map(|done| {
            let mut buf = done.buf.unwrap();
            buf.as_mut_slice().fill(0xff);
            BlockOp::read(done.token, done.token, buf)
        });
        for done in run(reads.collect()) {
            assert!(done.buf.unwrap().as_slice().iter().all(|byte| *byte == round));
        }
        progress.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn resets_amid_the_work_of_several_reactors_lose_nothing() {
    let fake = FakeDrive::new(FakeDriveConfig::default());
    let options = ControllerOptions { resets: 1_000_000, ..options() };
    let controller = Controller::open(fake.function(), options).unwrap();
    let shared = shared_pool();
    let maps = Arc::new(BufferMaps::new(&shared));
    let device = NvmeDevice::new("d", Arc::clone(&controller), 1, maps).unwrap();
    let all: [Progress; REACTORS] = Default::default();
    let mut resets = 0;
    std::thread::scope(|scope| {
        for (index, progress) in all.iter().enumerate() {
            let (device, shared) = (&device, &shared);
            scope.spawn(move || {
                let pool = CorePool::new(shared);
                react(device, &pool, index as u64 * (8 << 20), progress);
                assert_eq!(pool.leased(), 0);
            });
        }
        // An operation may be resubmitted only once. So the next reset waits until each reactor has
        // begun and ended a round since the last one.
        let mut next = 1;
        while let Some(least) = all.iter().map(Progress::get).min().filter(|at| *at < usize::MAX) {
            if least >= next && controller.state() == ControllerState::Live {
                controller.reset();
                resets += 1;
                next = all.iter().map(Progress::get).max().unwrap_or(least).saturating_add(2);
            }
            std::thread::yield_now();
        }
    });
    assert!(resets > 0);
    assert_eq!(controller.stats().resets, resets);
    assert_eq!(controller.stats().leaked_buffers, 0);
    drop((device, controller));
    let (mut violations, faults) = fake.take_findings();
    // A preempted reactor may ring a doorbell too late.
    violations.retain(|violation| {
        !matches!(violation, Violation::Register { rule: "a doorbell while not ready", .. })
    });
    assert!(violations.is_empty() && faults.is_empty(), "{violations:?} {faults:?}");
    assert_eq!((fake.mappings(), fake.is_running()), (vec![], false));
}
