//! Stripes of memory devices and null devices.

use super::super::fault::{FaultControl, FaultDevice, FaultPlan};
use super::super::{NullDevice, RamDevice};
use super::*;
use crate::dma::{Buffer, ChunkPool, PoolConfig};

const KIB: u64 = 1 << 10;

fn pool() -> CorePool {
    CorePool::new(&ChunkPool::new(PoolConfig { cap: 16 << 20, ..PoolConfig::default() }).unwrap())
}

fn ram(size: u64, block_size: u32) -> Arc<dyn BlockDevice> {
    Arc::new(RamDevice::new("ram", size, block_size).unwrap())
}

/// Three members of 64 KiB with faults, in chunks of 4 KiB.
struct Rig {
    device: StripeDevice,
    faults: Vec<Arc<FaultControl>>,
    pool: CorePool,
    queue: Box<dyn BlockQueue>,
}

impl Rig {
    fn new() -> Self {
        let (members, faults): (Vec<_>, Vec<_>) = (0..3)
            .map(|_| {
                let (device, control) = FaultDevice::new(ram(64 * KIB, 512), FaultPlan::default());
                (Arc::new(device) as Arc<dyn BlockDevice>, control)
            })
            .unzip();
        let device = StripeDevice::new("stripe0", members, 4096).unwrap();
        let pool = pool();
        let queue = device.open_queue(&pool).unwrap();
        Self { device, faults, pool, queue }
    }

    fn buffer(&self, len: usize, byte: u8) -> Buffer {
        let mut buffer = self.pool.lease(len).unwrap();
        buffer.as_mut_slice().fill(byte);
        buffer
    }

    fn poll(&mut self) -> Vec<Completed> {
        let mut done = Vec::new();
        self.queue.poll(&mut done);
        done
    }

    fn run(&mut self, op: BlockOp) -> Completed {
        self.queue.submit(op).unwrap();
        let mut done = Vec::new();
        while self.queue.in_flight() > 0 {
            self.queue.poll(&mut done);
        }
        assert_eq!(done.len(), 1);
        done.remove(0)
    }
}

#[test]
fn its_size_is_whole_chunks_of_the_smallest_and_it_can_what_all_can() {
    let members = [100 * KIB, 131 * KIB, 300 * KIB].map(|size| ram(size, 512));
    let device = StripeDevice::new("s", members.to_vec(), 6 * KIB).unwrap();
    let info = device.info();
    assert_eq!((info.size, info.block_size, info.name.as_str()), (3 * 96 * KIB, 512, "s"));
    assert!(info.deallocate && info.write_zeroes && !info.read_only && !info.volatile_cache);
}

#[test]
fn what_does_not_go_together_is_refused() {
    let refused = |members: Vec<Arc<dyn BlockDevice>>, chunk| {
        StripeDevice::new("s", members, chunk).unwrap_err()
    };
    assert_eq!(refused(Vec::new(), 4096), StripeError::Empty);
    let blocks = refused(vec![ram(64 * KIB, 512), ram(64 * KIB, 4096)], 4096);
    assert!(blocks.to_string().contains("different block sizes: \"ram\" 512 bytes"), "{blocks}");
    for chunk in [0, 100, 513] {
        let error = refused(vec![ram(64 * KIB, 512)], chunk);
        assert_eq!(error, StripeError::Chunk { chunk, block_size: 512 });
    }
    let small = refused(vec![ram(64 * KIB, 512), ram(4 * KIB, 512)], 8192);
    assert_eq!(small, StripeError::Small { member: "ram".into(), size: 4096, chunk: 8192 });
}

/// Each chunk is where RAID-0 places it, and data crosses chunks without a copy.
#[test]
fn chunks_are_dealt_out_in_turn() {
    let mut rig = Rig::new();
    for chunk in 0..16_u8 {
        let op =
            BlockOp::write(chunk.into(), u64::from(chunk) * 4096, rig.buffer(4096, chunk), false);
        assert_eq!(rig.run(op).result, Ok(()));
    }
    let members: Vec<_> =
        rig.device.members.iter().map(|m| m.open_queue(&rig.pool).unwrap()).collect();
    for (number, mut member) in (0..).zip(members) {
        member.submit(BlockOp::read(0, 0, rig.buffer(5 * 4096, 99))).unwrap();
        let mut done = Vec::new();
        member.poll(&mut done);
        let buf = done[0].buf.take().unwrap();
        for (row, chunk) in (0..5).zip(buf.as_slice().chunks(4096)) {
            assert!(
                chunk.iter().all(|byte| *byte == row * 3 + number),
                "member {number} row {row}"
            );
        }
    }
    // From inside one chunk to inside another, into the caller's buffer.
    let buffer = rig.buffer(16 * 4096, 99);
    let at = buffer.as_ptr();
    let done = rig.run(BlockOp { len: 10 * 4096, ..BlockOp::read(7, 3 * 4096 + 512, buffer) });
    let buf = done.buf.unwrap();
    assert_eq!((done.token, done.result, buf.as_ptr(), buf.len()), (7, Ok(()), at, 16 * 4096));
    for (number, byte) in buf.as_slice().iter().enumerate() {
        let place = 3 * 4096 + 512 + number;
        let wanted = if number < 10 * 4096 { u8::try_from(place / 4096).unwrap() } else { 99 };
        assert_eq!(*byte, wanted, "byte {number}");
    }
    drop(buf);
    assert_eq!(rig.pool.leased(), 0);
}

#[test]
fn the_first_error_is_the_parents_once_all_children_are_done() {
    let mut rig = Rig::new();
    rig.faults[1].fail_next(BlockError::NoSpace);
    rig.faults[2].hold();
    rig.queue.submit(BlockOp::write(1, 0, rig.buffer(12 << 10, 1), true)).unwrap();
    assert!(rig.poll().is_empty() && rig.poll().is_empty());
    assert_eq!(rig.queue.in_flight(), 1);
    rig.faults[2].fail_next(BlockError::Gone);
    rig.faults[2].release();
    let done = rig.poll();
    assert_eq!((done.len(), &done[0].result), (1, &Err(BlockError::NoSpace)));
    assert_eq!(done[0].buf.as_ref().unwrap().len(), 12 << 10);
    drop(done);
    assert_eq!((rig.queue.in_flight(), rig.pool.leased()), (0, 0));
}

#[test]
fn a_flush_goes_to_every_member() {
    let mut rig = Rig::new();
    for failing in 0..3 {
        rig.faults[failing].fail_next(BlockError::FlushLost);
        let done = rig.run(BlockOp::flush(9));
        assert_eq!((done.token, done.result), (9, Err(BlockError::FlushLost)));
        assert_eq!(rig.run(BlockOp::flush(9)).result, Ok(()));
    }
    rig.faults.iter().for_each(|fault| fault.hold());
    rig.queue.submit(BlockOp::flush(1)).unwrap();
    assert!(rig.faults.iter().all(|fault| fault.stalled() == 1));
}

/// A range without data is one operation for each member that has a part of it.
#[test]
fn ranges_are_one_run_of_a_member() {
    let mut rig = Rig::new();
    rig.faults.iter().for_each(|fault| fault.hold());
    let stalled = |rig: &Rig| [0, 1, 2].map(|at| rig.faults[at].stalled());
    rig.queue.submit(BlockOp::write_zeroes(1, 512, 160 * KIB, false, true)).unwrap();
    assert_eq!(stalled(&rig), [1, 1, 1]);
    rig.queue.submit(BlockOp::deallocate(2, 5 * 4096, 2 * 4096)).unwrap();
    assert_eq!(stalled(&rig), [2, 1, 2]);
    rig.faults.iter().for_each(|fault| fault.release());
    let mut done = Vec::new();
    while rig.queue.in_flight() > 0 {
        rig.queue.poll(&mut done);
    }
    done.sort_by_key(|completed| completed.token);
    assert!(done.iter().map(|completed| completed.token).eq([1, 2]));
    assert!(done.iter().all(|completed| completed.result == Ok(())));
}

#[test]
fn a_full_member_rejects_what_is_its_own_and_children_wait() {
    let mut rig = Rig::new();
    rig.faults[0].reject_next(1);
    let op = BlockOp::read(u64::MAX, 3 * 4096 + 512, rig.buffer(512, 0));
    let rejected = rig.queue.submit(op).unwrap_err();
    let BlockOp { token, offset, .. } = rejected.op;
    assert_eq!(
        (token, offset, rejected.reason),
        (u64::MAX, 3 * 4096 + 512, RejectReason::QueueFull)
    );
    assert_eq!(rig.queue.in_flight(), 0);
    drop(rejected.op);
    // Three children wait, the first of which is refused twice: no new operation is taken until
    // then.
    rig.faults[0].reject_next(2);
    rig.queue.submit(BlockOp::read(1, 0, rig.buffer(12 << 10, 9))).unwrap();
    let next = rig.queue.submit(BlockOp::read(2, 0, rig.buffer(512, 0))).unwrap_err();
    assert_eq!((next.reason, rig.queue.next_due()), (RejectReason::QueueFull, Some(0)));
    assert!(rig.poll().is_empty(), "refused again");
    assert_eq!((rig.queue.in_flight(), rig.queue.next_due()), (1, Some(0)));
    let done = rig.poll();
    assert_eq!((done.len(), done[0].token, &done[0].result), (1, 1, &Ok(())));
    assert_eq!(rig.queue.next_due(), None);
    assert_eq!(rig.run(next.op).result, Ok(()));
    drop(done);
    assert_eq!((rig.queue.in_flight(), rig.pool.leased()), (0, 0));
}

#[test]
fn what_is_not_inside_is_refused_here() {
    let mut rig = Rig::new();
    let size = rig.device.info().size;
    for (offset, len) in [(size, 512), (size - 512, 1024), (u64::MAX - 511, 512)] {
        let buffer = rig.buffer(usize::try_from(len).unwrap(), 0);
        let done = rig.run(BlockOp::read(1, offset, buffer));
        assert_eq!(done.result, Err(BlockError::OutOfRange { offset, len }));
    }
    let short = BlockOp { len: 8192, ..BlockOp::write(1, 0, rig.buffer(4096, 0), false) };
    assert_eq!(
        rig.run(short).result,
        Err(BlockError::Misaligned { offset: 0, len: 8192 }),
        "more than its buffer"
    );
}

#[test]
fn a_token_that_looks_like_a_childs_is_the_callers_all_the_same() {
    let inner = |_| -> Arc<dyn BlockDevice> {
        let members = vec![ram(64 * KIB, 512), ram(64 * KIB, 512)];
        Arc::new(StripeDevice::new("inner", members, 1024).unwrap())
    };
    let device = StripeDevice::new("outer", [0, 1].map(inner).to_vec(), 4096).unwrap();
    let pool = pool();
    let mut queue = StripeQueue::new(&device, &pool).unwrap();
    let tokens: Vec<u64> = (0..8).map(|number| (0x73ae_c41d << 32) | number).collect();
    for (at, token) in (0..).zip(&tokens) {
        // Within one chunk of both, within one of the outer one only, across several of both.
        for len in [512, 3072, 9216] {
            let mut buffer = pool.lease(len).unwrap();
            buffer.as_mut_slice().fill(at);
            let op = BlockOp::write(*token, u64::from(at) * 9216, buffer, false);
            queue.submit(op).unwrap();
        }
    }
    let mut done = Vec::new();
    while queue.in_flight() > 0 {
        queue.poll(&mut done);
    }
    for token in tokens {
        let lens = done.iter().filter(|completed| completed.token == token);
        let mut lens: Vec<usize> = lens.map(|c| c.buf.as_ref().unwrap().len()).collect();
        lens.sort_unstable();
        assert_eq!(lens, [512, 3072, 9216]);
    }
    assert!(!queue.parents.any());
    drop(done);
    assert_eq!(pool.leased(), 0);
}

#[test]
fn bytes_of_one_member_are_exposed() {
    let null =
        |_| -> Arc<dyn BlockDevice> { Arc::new(NullDevice::new("null", 64 * KIB, 512).unwrap()) };
    let device = StripeDevice::new("s", [0, 1].map(null).to_vec(), 8192).unwrap();
    let mut queue = device.open_queue(&pool()).unwrap();
    assert!(queue.event_fd().is_none());
    assert_eq!(queue.zero_copy_read(8192, 8192).unwrap().len(), 8192);
    assert!(queue.zero_copy_read(8192, 8704).is_none(), "of two members");
    assert!(
        queue.zero_copy_read(128 * KIB - 512, 1024).is_none()
            && queue.zero_copy_read(u64::MAX, 512).is_none()
    );
}

#[test]
fn it_is_gone_with_any_member_and_says_so_of_what_that_had() {
    let mut rig = Rig::new();
    assert!(!rig.device.is_gone());
    rig.faults[1].hold();
    rig.queue.submit(BlockOp::read(1, 0, rig.buffer(8192, 0))).unwrap();
    rig.queue.submit(BlockOp::read(2, 4096, rig.buffer(512, 0))).unwrap();
    assert!(rig.poll().is_empty());
    rig.faults[1].remove();
    assert!(rig.device.is_gone());
    let mut done = rig.poll();
    done.sort_by_key(|completed| completed.token);
    let results: Vec<_> =
        done.iter().map(|c| (c.token, c.result.clone(), c.buf.is_some())).collect();
    assert_eq!(results, [1, 2].map(|token| (token, Err(BlockError::Gone), true)));
    assert_eq!(rig.run(BlockOp::read(3, 0, rig.buffer(512, 0))).result, Ok(()));
    assert_eq!(rig.device.open_queue(&rig.pool).unwrap_err(), BlockError::Gone);
    rig.faults[1].restore();
    rig.faults[1].release();
    assert!(!rig.device.is_gone() && rig.device.open_queue(&rig.pool).is_ok());
    assert_eq!(rig.run(BlockOp::flush(4)).result, Ok(()));
}

#[test]
fn a_dropped_queue_gives_its_buffers_back() {
    let mut rig = Rig::new();
    rig.faults.iter().for_each(|fault| fault.hold());
    for token in 0..10 {
        rig.queue.submit(BlockOp::read(token, 0, rig.buffer(20 << 10, 0))).unwrap();
    }
    assert!(rig.poll().is_empty());
    assert_eq!((rig.queue.in_flight(), rig.pool.leased()), (10, 10));
    let Rig { queue, pool, .. } = rig;
    drop(queue);
    assert_eq!(pool.leased(), 0);
}
