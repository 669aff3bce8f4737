//! The delay device in virtual time: each test's thread has a separate clock.

use std::cell::Cell;
use std::collections::BTreeMap;

use nvmeof_random::SplitMix64;

use super::super::fault::{FaultControl, FaultDevice, FaultPlan};
use super::super::{NullDevice, RamDevice, RejectReason};
use super::*;
use crate::dma::{Buffer, ChunkPool, PoolConfig};

const MIB: u64 = 1 << 20;
const US: u64 = 1000;
const MS: u64 = 1000 * US;
/// Latency of reads, and of all other operations.
const SLOW: Latency = Latency {
    read: Duration::from_millis(1),
    write: Duration::from_micros(300),
    read_jitter: Duration::ZERO,
    write_jitter: Duration::ZERO,
};

thread_local! {
    static NOW: Cell<u64> = const { Cell::new(5 * MS) };
}

fn now() -> u64 {
    NOW.get()
}

fn pass(nanos: u64) {
    NOW.set(now() + nanos);
}

fn pool() -> CorePool {
    CorePool::new(&ChunkPool::new(PoolConfig { cap: 16 << 20, ..PoolConfig::default() }).unwrap())
}

fn filled(pool: &CorePool, byte: u8) -> Buffer {
    let mut buffer = pool.lease(512).unwrap();
    buffer.as_mut_slice().fill(byte);
    buffer
}

/// Returns a delay layered on faults layered on memory.
fn delayed(
    latency: Latency,
    plan: FaultPlan,
) -> (DelayDevice, Box<dyn BlockQueue>, Arc<FaultControl>, CorePool) {
    let (base, faults) =
        FaultDevice::new(Arc::new(RamDevice::new("ram0", MIB, 512).unwrap()), plan);
    let device = DelayDevice::new("slow0", Arc::new(base), latency, now);
    let pool = pool();
    let queue = device.open_queue(&pool).unwrap();
    (device, queue, faults, pool)
}

fn poll(queue: &mut dyn BlockQueue) -> Vec<Completed> {
    let mut done = Vec::new();
    queue.poll(&mut done);
    done
}

fn tokens(queue: &mut dyn BlockQueue) -> Vec<u64> {
    poll(queue).iter().map(|completed| completed.token).collect()
}

#[test]
fn each_direction_comes_after_its_own_latency_and_not_before() {
    let (device, mut queue, _, pool) = delayed(SLOW, FaultPlan::default());
    let base = device.base.info();
    assert_eq!(device.info(), &DeviceInfo { name: "slow0".into(), ..base.clone() });
    queue.submit(BlockOp::write(1, 0, filled(&pool, 7), false)).unwrap();
    queue.submit(BlockOp::read(2, 0, filled(&pool, 0))).unwrap();
    queue.submit(BlockOp::flush(3)).unwrap();
    queue.submit(BlockOp::write_zeroes(4, 512, 512, false, false)).unwrap();
    queue.submit(BlockOp::deallocate(5, 1024, 512)).unwrap();
    // The memory device zeroes one range per poll.
    assert!(poll(&mut *queue).is_empty() && poll(&mut *queue).is_empty());
    assert_eq!((queue.in_flight(), queue.next_due()), (5, Some(now() + 300 * US)));
    pass(300 * US - 1);
    assert!(poll(&mut *queue).is_empty());
    pass(1);
    let mut others = tokens(&mut *queue);
    others.sort_unstable();
    assert_eq!(others, [1, 3, 4, 5]);
    assert_eq!((queue.in_flight(), queue.next_due()), (1, Some(now() + 700 * US)));
    pass(700 * US - 1);
    assert!(poll(&mut *queue).is_empty());
    pass(1);
    let done = poll(&mut *queue);
    assert_eq!((done.len(), done[0].token, &done[0].result), (1, 2, &Ok(())));
    assert!(done[0].buf.as_ref().unwrap().as_slice().iter().all(|byte| *byte == 7));
    assert_eq!((queue.in_flight(), queue.next_due()), (0, None));
}

#[test]
fn the_latency_is_added_after_the_base_has_finished() {
    let (_, mut queue, faults, pool) = delayed(SLOW, FaultPlan::default());
    faults.hold();
    queue.submit(BlockOp::read(1, 0, filled(&pool, 0))).unwrap();
    pass(50 * MS);
    assert!(poll(&mut *queue).is_empty());
    assert_eq!(queue.next_due(), None, "time does not help what the base still has");
    faults.release();
    assert!(poll(&mut *queue).is_empty());
    assert_eq!(queue.next_due(), Some(now() + MS));
    pass(MS);
    assert_eq!(tokens(&mut *queue), [1]);
}

#[test]
fn without_a_latency_a_direction_passes_as_it_comes() {
    let latency = Latency { write: Duration::ZERO, ..SLOW };
    let (device, mut queue, _, pool) = delayed(latency, FaultPlan::default());
    queue.submit(BlockOp::read(1, 0, filled(&pool, 0))).unwrap();
    queue.submit(BlockOp::write(2, 0, filled(&pool, 1), false)).unwrap();
    assert_eq!(tokens(&mut *queue), [2]);
    device.set_latency(Latency::default());
    queue.submit(BlockOp::flush(3)).unwrap();
    assert_eq!(tokens(&mut *queue), [3]);
    pass(MS);
    assert_eq!(tokens(&mut *queue), [1]);
}

#[test]
fn what_the_base_refuses_comes_back_as_it_was_and_what_fails_comes_late() {
    let (_, mut queue, faults, pool) = delayed(SLOW, FaultPlan::default());
    faults.reject_next(3);
    faults.fail_next(BlockError::NoSpace);
    let mut op = BlockOp::read(u64::MAX, 0, filled(&pool, 9));
    for _ in 0..3 {
        let rejected = queue.submit(op).unwrap_err();
        assert_eq!((rejected.op.token, rejected.reason), (u64::MAX, RejectReason::QueueFull));
        op = rejected.op;
        assert_eq!(op.buf.as_ref().unwrap().as_slice()[0], 9);
    }
    queue.submit(op).unwrap();
    let past = BlockOp::read(4, MIB, filled(&pool, 0));
    queue.submit(past).unwrap();
    assert!(poll(&mut *queue).is_empty());
    pass(MS);
    let done = poll(&mut *queue);
    let results: BTreeMap<_, _> =
        done.into_iter().map(|done| (done.token, (done.result, done.buf.is_some()))).collect();
    let outside = BlockError::OutOfRange { offset: MIB, len: 512 };
    let expected = [(4, (Err(outside), true)), (u64::MAX, (Err(BlockError::NoSpace), true))];
    assert_eq!(results, BTreeMap::from(expected));
    assert_eq!((pool.leased(), queue.in_flight()), (0, 0));
}

#[test]
fn delays_add_up_and_may_share_a_base() {
    let ram: Arc<dyn BlockDevice> = Arc::new(RamDevice::new("ram0", MIB, 512).unwrap());
    let one = Arc::new(DelayDevice::new("one", Arc::clone(&ram), SLOW, now));
    let two = DelayDevice::new("two", Arc::clone(&one) as _, SLOW, now);
    let pool = pool();
    let mut ram = ram.open_queue(&pool).unwrap();
    let (mut one, mut two) = (one.open_queue(&pool).unwrap(), two.open_queue(&pool).unwrap());
    ram.submit(BlockOp::write(0, 0, filled(&pool, 5), false)).unwrap();
    one.submit(BlockOp::read(1, 0, filled(&pool, 0))).unwrap();
    two.submit(BlockOp::read(2, 0, filled(&pool, 0))).unwrap();
    assert_eq!(tokens(&mut *ram), [0]);
    assert!(poll(&mut *one).is_empty() && poll(&mut *two).is_empty());
    assert_eq!((one.next_due(), two.next_due()), (Some(now() + MS), Some(now() + MS)));
    pass(MS);
    let done = poll(&mut *one);
    assert_eq!(done[0].buf.as_ref().unwrap().as_slice()[0], 5, "written to the base itself");
    assert!(poll(&mut *two).is_empty());
    assert_eq!((two.in_flight(), two.next_due()), (1, Some(now() + MS)));
    pass(MS);
    assert_eq!(tokens(&mut *two), [2]);
}

#[test]
fn bytes_are_exposed_only_where_reads_are_not_slowed() {
    let base = Arc::new(NullDevice::new("null0", MIB, 512).unwrap());
    let device = DelayDevice::new("slow0", base, SLOW, now);
    let mut queue = device.open_queue(&pool()).unwrap();
    assert!(queue.zero_copy_read(0, 512).is_none());
    device.set_latency(Latency { read: Duration::ZERO, ..SLOW });
    assert_eq!(queue.zero_copy_read(0, 512).unwrap().len(), 512);
    device.set_latency(SLOW);
    assert!(queue.zero_copy_read(0, 512).is_none());
}

#[test]
fn a_changed_latency_holds_for_what_finishes_next_and_turns_no_order_around() {
    let (device, mut queue, _, pool) = delayed(SLOW, FaultPlan::default());
    let read = |queue: &mut dyn BlockQueue, token| {
        queue.submit(BlockOp::read(token, 0, filled(&pool, 0))).unwrap();
        tokens(queue)
    };
    assert!(read(&mut *queue, 1).is_empty());
    device.set_latency(Latency { read: Duration::from_micros(10), ..SLOW });
    assert!(read(&mut *queue, 2).is_empty());
    pass(MS - 1);
    assert!(read(&mut *queue, 3).is_empty());
    pass(1);
    assert_eq!(tokens(&mut *queue), [1, 2]);
    pass(10 * US - 1);
    assert_eq!(tokens(&mut *queue), [3]);
    device.set_latency(Latency { read: Duration::from_secs(u64::MAX), ..SLOW });
    assert!(read(&mut *queue, 4).is_empty());
    assert_eq!(queue.next_due(), Some(u64::MAX), "no overflow");
}

#[test]
fn a_dropped_queue_gives_its_buffers_back() {
    let (_, mut queue, _, pool) = delayed(SLOW, FaultPlan::default());
    for token in 0..10 {
        queue.submit(BlockOp::read(token, 0, filled(&pool, 0))).unwrap();
        assert!(poll(&mut *queue).is_empty());
    }
    assert_eq!((queue.in_flight(), pool.leased()), (10, 10));
    drop(queue);
    assert_eq!(pool.leased(), 0);
}

/// Under any behavior of the base, each operation completes once, with its own token, and at the
/// announced time. After the first rounds nothing is allocated.
#[test]
fn no_operation_is_lost_early_or_unannounced_under_faults() {
    for seed in 1..=20 {
        let plan = FaultPlan {
            seed,
            errors: 50_000,
            rejects: 50_000,
            reorder: true,
            ..FaultPlan::default()
        };
        let (base, _faults) =
            FaultDevice::new(Arc::new(RamDevice::new("ram0", MIB, 512).unwrap()), plan);
        // Odd seeds have jitter, so reads complete in any order.
        let read_jitter = Duration::from_micros(if seed % 2 == 0 { 0 } else { 700 });
        let latency = Latency { read_jitter, ..SLOW };
        let device = DelayDevice::new("slow0", Arc::new(base), latency, now).seeded(seed);
        let pool = pool();
        let mut queue = DelayQueue::new(&device, device.base.open_queue(&pool).unwrap());
        let mut rng = SplitMix64::new(seed);
        // By token: earliest completion time.
        let mut out: BTreeMap<u64, u64> = BTreeMap::new();
        let mut room = None;
        for round in 0..4000_u64 {
            if out.len() < 100 {
                let token = rng.next_u64();
                let (op, latency) = match rng.below(4) {
                    0 => (BlockOp::write(token, 0, filled(&pool, 1), false), SLOW.write),
                    1 => (BlockOp::flush(token), SLOW.write),
                    _ => (BlockOp::read(token, 0, filled(&pool, 0)), SLOW.read),
                };
                if queue.submit(op).is_ok() {
                    out.insert(token, now() + nanos(latency));
                }
            }
            pass(rng.below(50 * US));
            let announced = queue.next_due();
            for completed in poll(&mut queue) {
                let due = out.remove(&completed.token).expect("asked for, and not yet answered");
                assert!(due <= now(), "seed {seed}: {due} is later than {}", now());
                assert!(announced.is_some_and(|at| at <= now()), "seed {seed}: unannounced");
            }
            assert_eq!(queue.in_flight(), out.len());
            if round == 2000 {
                room = Some(capacities(&queue));
            }
        }
        assert_eq!(Some(capacities(&queue)), room, "seed {seed}: it allocates");
        while queue.in_flight() > 0 {
            pass(50 * US);
            poll(&mut queue).iter().for_each(|done| assert!(out.remove(&done.token).is_some()));
        }
        assert!(out.is_empty() && pool.leased() == 0);
    }
}

/// Reads complete between their latency and the maximum jitter, in another order than submitted,
/// and the same for the same seed. Writes without jitter keep their order.
#[test]
fn jitter_is_within_bounds_changes_the_order_and_repeats_itself() {
    let latency = Latency { read_jitter: Duration::from_micros(500), ..SLOW };
    let story = |seed| {
        NOW.set(5 * MS);
        let base = Arc::new(RamDevice::new("ram0", MIB, 512).unwrap());
        let device = DelayDevice::new("slow0", base, latency, now).seeded(seed);
        let pool = pool();
        let mut queue = device.open_queue(&pool).unwrap();
        assert!(queue.zero_copy_read(0, 512).is_none());
        for token in 0..50 {
            queue.submit(BlockOp::read(token, 0, filled(&pool, 0))).unwrap();
            queue.submit(BlockOp::write(100 + token, 0, filled(&pool, 0), false)).unwrap();
        }
        let begin = now();
        let mut came = Vec::new();
        assert!(poll(&mut *queue).is_empty());
        while let Some(due) = queue.next_due() {
            assert!(due >= now());
            NOW.set(due);
            came.extend(tokens(&mut *queue).into_iter().map(|token| (token, due - begin)));
        }
        assert_eq!((queue.in_flight(), pool.leased()), (0, 0));
        came
    };
    let came = story(7);
    let (writes, reads): (Vec<_>, Vec<_>) = came.iter().partition(|(token, _)| *token >= 100);
    assert!(writes.iter().map(|(token, _)| *token).eq(100..150));
    assert!(writes.iter().all(|(_, at)| *at == 300 * US));
    assert!(reads.iter().all(|(_, at)| (MS..=MS + 500 * US).contains(at)), "{reads:?}");
    assert!(!reads.is_sorted() && reads.iter().map(|(_, at)| *at).is_sorted());
    assert_eq!(reads.len(), 50);
    assert_eq!(came, story(7));
    assert_ne!(came, story(8));
}

fn capacities(queue: &DelayQueue) -> [usize; 7] {
    let [slots, free] = queue.running.capacities();
    [
        queue.reads.in_order.capacity(),
        queue.others.in_order.capacity(),
        queue.reads.any_order.capacity(),
        queue.others.any_order.capacity(),
        queue.finished.capacity(),
        slots,
        free,
    ]
}
