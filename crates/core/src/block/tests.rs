//! Tests of the devices in memory and the device with faults.

#![expect(clippy::cast_possible_truncation, reason = "offsets and tokens in tests are small")]

mod cancel;
mod faults;
mod stacked;

use std::os::fd::AsFd;
use std::sync::Arc;

use nvmeof_random::SplitMix64;

use super::fault::{FaultDevice, FaultPlan};
use super::*;
use crate::dma::{Buffer, ChunkPool, PoolConfig};

const MIB: u64 = 1 << 20;

fn pool() -> CorePool {
    CorePool::new(&ChunkPool::new(PoolConfig { cap: 16 << 20, ..PoolConfig::default() }).unwrap())
}

fn filled(pool: &CorePool, len: usize, byte: u8) -> Buffer {
    let mut buffer = pool.lease(len).unwrap();
    buffer.as_mut_slice().fill(byte);
    buffer
}

fn finish(queue: &mut dyn BlockQueue) -> Vec<Completed> {
    let mut done = Vec::new();
    while queue.in_flight() > 0 {
        queue.poll(&mut done);
    }
    done
}

fn is_readable(fd: BorrowedFd<'_>) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&now)).unwrap() == 1
}

fn run(queue: &mut dyn BlockQueue, op: BlockOp) -> Completed {
    queue.submit(op).unwrap();
    let mut done = finish(queue);
    assert_eq!(done.len(), 1);
    done.remove(0)
}

#[test]
fn devices_have_write_protection_and_geometry_of_their_base() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk");
    std::fs::write(&path, [0; 64 << 10]).unwrap();
    let read_only = FileConfig { read_only: true, ..FileConfig::new("file0", &path, 512) };
    let base: Arc<dyn BlockDevice> = Arc::new(FileDevice::open(&read_only).unwrap());
    let ram: Arc<dyn BlockDevice> = Arc::new(RamDevice::new("ram0", 64 << 10, 512).unwrap());
    let unit = base.info().geometry.write_alignment.unwrap();
    let devices: [Box<dyn BlockDevice>; 4] = [
        Box::new(SplitDevice::new("split0", Arc::clone(&base), 512, None).unwrap()),
        Box::new(StripeDevice::new("stripe0", vec![ram, Arc::clone(&base)], unit).unwrap()),
        Box::new(DelayDevice::new("delay0", Arc::clone(&base), Latency::default(), || 0)),
        Box::new(FaultDevice::new(base, FaultPlan::default()).0),
    ];
    let pool = pool();
    for device in devices {
        assert!(device.info().read_only, "{}", device.info().name);
        // So is the geometry that of the base.
        let geometry = device.info().geometry;
        assert_eq!(geometry.write_granularity, Some(unit), "{}", device.info().name);
        assert_eq!(geometry.write_alignment.is_none(), device.info().name == "split0");
        let write = BlockOp::write(1, 0, filled(&pool, 512, 9), false);
        let done = run(&mut *device.open_queue(&pool).unwrap(), write);
        assert_eq!(done.result, Err(BlockError::ReadOnly), "{}", device.info().name);
    }
}

#[test]
fn null_reads_zeroes_exposes_them_and_forgets_writes() {
    let device = NullDevice::new("null0", MIB + 100, 4096).unwrap();
    assert_eq!((device.info().size, device.info().name.as_str()), (MIB, "null0"));
    let pool = pool();
    let mut queue = device.open_queue(&pool).unwrap();
    let write = BlockOp::write(1, 0, filled(&pool, 4096, 9), true);
    assert_eq!(run(&mut *queue, write).result, Ok(()));
    let done = run(&mut *queue, BlockOp::read(2, 0, filled(&pool, 8192, 9)));
    assert_eq!((done.token, done.result), (2, Ok(())));
    assert!(done.buf.unwrap().as_slice().iter().all(|byte| *byte == 0));
    for op in [
        BlockOp::flush(3),
        BlockOp::deallocate(3, 0, MIB),
        BlockOp::write_zeroes(3, 0, MIB, true, true),
    ] {
        assert_eq!(run(&mut *queue, op).result, Ok(()));
    }
    let past = BlockOp::read(4, MIB, pool.lease(4096).unwrap());
    assert_eq!(
        run(&mut *queue, past).result,
        Err(BlockError::OutOfRange { offset: MIB, len: 4096 })
    );
    assert_eq!(queue.zero_copy_read(4096, 8192).unwrap().len(), 8192);
    assert!(
        queue.zero_copy_read(MIB, 4096).is_none() && queue.zero_copy_read(u64::MAX, 1).is_none()
    );
    assert!(queue.event_fd().is_none());
    let data = queue.zero_copy_read(0, 4096).unwrap();
    drop((queue, device));
    // Zero-copy bytes outlive their device.
    let mut total = 0;
    crate::dma::Payload::from(data).for_each_piece(|_, len| total += len);
    assert_eq!(total, 4096);
    assert_eq!(pool.leased(), 0);
}

#[test]
fn ram_does_what_a_plain_array_does() {
    for (seed, block) in [(1, 512), (2, 4096)] {
        let device = RamDevice::new("ram0", MIB + 300, block).unwrap();
        assert_eq!(device.info().size, MIB);
        let pool = pool();
        let mut queues = [device.open_queue(&pool).unwrap(), device.open_queue(&pool).unwrap()];
        let mut model = vec![0_u8; MIB as usize];
        let mut rng = SplitMix64::new(seed);
        let block = u64::from(block);
        for token in 0..4000 {
            let most = if rng.below(8) == 0 { MIB / block / 2 } else { 40 };
            let blocks = 1 + rng.below(most);
            let offset = rng.below(MIB / block - blocks + 1) * block;
            let len = (blocks * block) as usize;
            let area = &mut model[offset as usize..][..len];
            let queue = &mut *queues[rng.index(2)];
            let done = match rng.below(5) {
                0 | 1 => run(queue, BlockOp::read(token, offset, pool.lease(len).unwrap())),
                2 => {
                    let byte = rng.next_u64() as u8;
                    area.fill(byte);
                    run(queue, BlockOp::write(token, offset, filled(&pool, len, byte), false))
                }
                3 => {
                    area.fill(0);
                    run(queue, BlockOp::write_zeroes(token, offset, len as u64, true, false))
                }
                _ => {
                    area.fill(0);
                    run(queue, BlockOp::deallocate(token, offset, len as u64))
                }
            };
            assert_eq!((done.token, done.result), (token, Ok(())));
            let untouched = done.buf.as_ref().is_none_or(|buf| buf.as_slice() == &*area);
            assert!(untouched, "operation {token}");
            assert!(queue.zero_copy_read(offset, 4096).is_none());
        }
        drop(queues);
        assert_eq!(pool.leased(), 0);
    }
}

#[test]
fn large_zeroing_goes_in_steps_and_others_pass_it() {
    let device = RamDevice::new("ram0", 64 * MIB, 512).unwrap();
    let pool = pool();
    let mut queue = device.open_queue(&pool).unwrap();
    run(&mut *queue, BlockOp::write(0, 63 * MIB, filled(&pool, 4096, 1), false));
    queue.submit(BlockOp::deallocate(1, 0, 64 * MIB)).unwrap();
    queue.submit(BlockOp::read(2, 0, pool.lease(512).unwrap())).unwrap();
    let mut done = Vec::new();
    queue.poll(&mut done);
    assert_eq!((done.len(), done[0].token, queue.in_flight()), (1, 2, 1));
    let readable = |queue: &dyn BlockQueue| is_readable(queue.event_fd().unwrap());
    assert!(readable(&*queue), "a sleeper is told that there is more");
    assert_eq!(finish(&mut *queue)[0].token, 1);
    assert!(!readable(&*queue));
    let read = run(&mut *queue, BlockOp::read(3, 63 * MIB, filled(&pool, 4096, 1)));
    assert!(read.buf.unwrap().as_slice().iter().all(|byte| *byte == 0));
}

/// Returns the first byte of a block.
fn first_byte(device: &RamDevice, at: u64) -> u8 {
    let pool = pool();
    let mut queue = device.open_queue(&pool).unwrap();
    queue.submit(BlockOp::read(1, at, pool.lease(512).unwrap())).unwrap();
    let mut done = Vec::new();
    queue.poll(&mut done);
    let done = done.remove(0);
    assert_eq!(done.result, Ok(()));
    done.buf.unwrap().as_slice()[0]
}

fn fill_block(device: &RamDevice, at: u64, byte: u8) {
    let pool = pool();
    let mut queue = device.open_queue(&pool).unwrap();
    let mut buf = pool.lease(512).unwrap();
    buf.as_mut_slice().fill(byte);
    queue.submit(BlockOp::write(1, at, buf, false)).unwrap();
    queue.poll(&mut Vec::new());
}

#[test]
fn ram_grows_and_shrinks_and_keeps_what_stays() {
    // Neither a multiple of a stripe nor of a page.
    let (small, large) = (MIB + 512, 5 * MIB);
    let first = RamDevice::new("ram0", small, 512).unwrap();
    fill_block(&first, 0, 1);
    fill_block(&first, MIB, 2);
    let second = first.resized(large).unwrap();
    assert_eq!(second.info().size, large);
    fill_block(&second, small, 3);
    fill_block(&second, 4 * MIB, 4);
    drop(first);
    let bytes = [0, MIB, small, 4 * MIB, large - 512].map(|at| first_byte(&second, at));
    assert_eq!(bytes, [1, 2, 3, 4, 0]);

    // Added bytes are zero, whether the larger device is still in use or not.
    let third = second.resized(small).unwrap();
    fill_block(&second, small, 5);
    let fourth = third.resized(large).unwrap();
    let bytes = [0, MIB, small, 4 * MIB].map(|at| first_byte(&fourth, at));
    assert_eq!(bytes, [1, 2, 0, 0]);
    drop((second, third));
    let fifth = fourth.resized(small).unwrap();
    fill_block(&fourth, small, 6);
    fill_block(&fourth, 4 * MIB, 6);
    drop(fourth);
    let second = fifth.resized(large).unwrap();
    let bytes = [0, MIB, small, 4 * MIB].map(|at| first_byte(&second, at));
    assert_eq!(bytes, [1, 2, 0, 0]);
    drop(fifth);
    // A discarded resize leaves nothing behind.
    let other = second.resized(8 * MIB).unwrap();
    second.revert_resize();
    drop(other);
    assert_eq!(first_byte(&second, 0), 1);
}

#[test]
fn no_block_of_ram_is_ever_seen_half_written() {
    const BLOCK: usize = 4096;
    let device = Arc::new(RamDevice::new("ram0", 256 << 10, BLOCK as u32).unwrap());
    let worker = |seed: u64| {
        let device = Arc::clone(&device);
        std::thread::spawn(move || {
            let pool = pool();
            let mut queue = device.open_queue(&pool).unwrap();
            let mut rng = SplitMix64::new(seed);
            let mut seen = 0;
            for token in 0..20_000 {
                let blocks = 1 + rng.index(4);
                // A few blocks around the boundary of two locks.
                let offset = (60 << 10) + rng.below(4) * BLOCK as u64;
                let op = match rng.below(16) {
                    0 => BlockOp::deallocate(token, offset, (blocks * BLOCK) as u64),
                    1..8 => {
                        let byte = 1 + (rng.next_u64() % 255) as u8;
                        BlockOp::write(token, offset, filled(&pool, blocks * BLOCK, byte), false)
                    }
                    _ => BlockOp::read(token, offset, pool.lease(blocks * BLOCK).unwrap()),
                };
                let reads = op.kind == BlockOpKind::Read;
                let done = run(&mut *queue, op);
                for block in
                    done.buf.iter().filter(|_| reads).flat_map(|b| b.as_slice().chunks(BLOCK))
                {
                    assert!(block.iter().all(|byte| *byte == block[0]), "a torn block");
                    seen += usize::from(block[0] != 0);
                }
            }
            seen
        })
    };
    let workers: Vec<_> = (0..4).map(worker).collect();
    let seen: usize = workers.into_iter().map(|worker| worker.join().unwrap()).sum();
    assert!(seen > 1000, "the readers met the writers");
}

fn faulty(plan: FaultPlan) -> (Box<dyn BlockQueue>, Arc<fault::FaultControl>, CorePool) {
    let base = Arc::new(RamDevice::new("ram0", MIB, 512).unwrap());
    let (device, control) = FaultDevice::new(base, plan);
    assert_eq!(device.info().name, "ram0");
    let pool = pool();
    (device.open_queue(&pool).unwrap(), control, pool)
}

const EIO: BlockError = BlockError::Media { errno: libc::EIO };

#[test]
fn faults_come_on_demand_once_and_in_order() {
    let (mut queue, control, pool) = faulty(FaultPlan::default());
    control.fail_next(BlockError::NoSpace);
    control.fail_next(BlockError::Gone);
    control.reject_next(2);
    let op = BlockOp::write(7, 0, filled(&pool, 512, 1), false);
    let rejected = queue.submit(op).unwrap_err();
    assert_eq!((rejected.op.token, rejected.reason), (7, RejectReason::QueueFull));
    let rejected = queue.submit(rejected.op).unwrap_err();
    for expect in [Err(BlockError::NoSpace), Err(BlockError::Gone), Ok(())] {
        let op = BlockOp::write(7, 0, filled(&pool, 512, 1), false);
        assert_eq!(run(&mut *queue, op).result, expect);
    }
    drop(rejected);
    assert_eq!((pool.leased(), queue.in_flight()), (0, 0));
}

#[test]
fn a_plan_fails_the_share_and_the_range_it_names_and_repeats_itself() {
    let results = |seed| {
        let plan = FaultPlan {
            seed,
            errors: 300_000,
            bad: std::iter::once(4096..8192).collect(),
            ..FaultPlan::default()
        };
        let (mut queue, _control, pool) = faulty(plan);
        for (offset, fails) in [(3584, None), (4096, Some(EIO)), (7680, Some(EIO)), (8192, None)] {
            let done = run(&mut *queue, BlockOp::read(0, offset, pool.lease(512).unwrap()));
            assert!(fails.is_none() || done.result == Err(EIO));
        }
        let mut read = |token| {
            run(&mut *queue, BlockOp::read(token, 0, pool.lease(512).unwrap())).result.is_ok()
        };
        (0..1000).map(&mut read).collect::<Vec<_>>()
    };
    let first = results(5);
    let failed = first.iter().filter(|ok| !**ok).count();
    assert!((250..350).contains(&failed), "{failed} of 1000");
    assert_eq!(first, results(5));
    assert_ne!(first, results(6));
}

#[test]
fn completions_are_reordered_and_none_is_lost() {
    let plan = FaultPlan { seed: 3, reorder: true, rejects: 200_000, ..FaultPlan::default() };
    let (mut queue, _control, pool) = faulty(plan);
    let mut order = Vec::new();
    let mut done = Vec::new();
    for token in 0..500 {
        let mut op = BlockOp::read(token, 0, pool.lease(512).unwrap());
        while let Err(rejected) = queue.submit(op) {
            op = rejected.op;
        }
        if token % 16 == 0 {
            queue.poll(&mut done);
        }
    }
    done.append(&mut finish(&mut *queue));
    order.extend(done.iter().map(|completed| completed.token));
    assert!(!order.is_sorted());
    order.sort_unstable();
    assert!(order.into_iter().eq(0..500));
    drop(done);
    assert_eq!(pool.leased(), 0);
}

#[test]
fn corrupted_reads_differ_by_one_bit() {
    let plan = FaultPlan { seed: 1, corruptions: 1_000_000, ..FaultPlan::default() };
    let (mut queue, control, pool) = faulty(plan);
    assert!(queue.zero_copy_read(0, 512).is_none());
    let done = run(&mut *queue, BlockOp::read(0, 0, filled(&pool, 512, 0xff)));
    assert_eq!(done.result, Ok(()));
    let bits: u32 = done.buf.unwrap().as_slice().iter().map(|byte| byte.count_ones()).sum();
    assert_eq!(bits, 1);
    control.set_plan(FaultPlan::default());
    let done = run(&mut *queue, BlockOp::read(0, 0, filled(&pool, 512, 0xff)));
    assert!(done.buf.unwrap().as_slice().iter().all(|byte| *byte == 0));
}

#[test]
fn held_operations_stay_until_released_or_their_queue_is_dropped() {
    let (mut queue, control, pool) = faulty(FaultPlan::default());
    control.hold();
    queue.submit(BlockOp::write(1, 0, filled(&pool, 512, 1), false)).unwrap();
    queue.submit(BlockOp::flush(2)).unwrap();
    let mut done = Vec::new();
    (0..10).for_each(|_| queue.poll(&mut done));
    assert_eq!((done.len(), queue.in_flight(), control.stalled()), (0, 2, 2));
    assert!(!is_readable(queue.event_fd().unwrap()));
    control.release();
    assert!(is_readable(queue.event_fd().unwrap()));
    assert_eq!(finish(&mut *queue).len(), 2);
    assert_eq!(control.stalled(), 0);
    control.hold();
    queue.submit(BlockOp::write(3, 0, filled(&pool, 512, 1), false)).unwrap();
    assert_eq!((control.stalled(), pool.leased()), (1, 1));
    drop(queue);
    assert_eq!((control.stalled(), pool.leased()), (0, 0));
}

#[test]
fn a_release_wakes_the_sleeper_on_a_device_that_has_a_descriptor() {
    let folder = tempfile::tempdir().unwrap();
    let config =
        FileConfig { size: Some(MIB), ..FileConfig::new("disk", folder.path().join("disk"), 4096) };
    let base = Arc::new(FileDevice::open(&config).unwrap());
    let (device, control) =
        FaultDevice::new(base, FaultPlan { reorder: true, ..FaultPlan::default() });
    let pool = pool();
    let mut queue = device.open_queue(&pool).unwrap();
    control.hold();
    for token in 0..20 {
        queue.submit(BlockOp::read(token, 0, pool.lease(4096).unwrap())).unwrap();
    }
    let mut done = Vec::new();
    queue.poll(&mut done);
    let releasing = std::thread::spawn(move || control.release());
    while queue.in_flight() > 0 {
        use rustix::event::{PollFd, PollFlags, poll};
        let fd = queue.event_fd().unwrap();
        let woken = poll(&mut [PollFd::new(&fd.as_fd(), PollFlags::IN)], None);
        assert!(matches!(woken, Ok(1) | Err(rustix::io::Errno::INTR)));
        queue.poll(&mut done);
    }
    assert!(done.len() == 20 && done.iter().all(|completed| completed.result == Ok(())));
    releasing.join().unwrap();
}
