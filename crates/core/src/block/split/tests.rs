//! Partitions of a memory device.

use super::super::fault::{FaultDevice, FaultPlan};
use super::super::{NullDevice, RamDevice, RejectReason};
use super::*;
use crate::dma::{Buffer, ChunkPool, PoolConfig};

const MIB: u64 = 1 << 20;

fn pool() -> CorePool {
    CorePool::new(&ChunkPool::new(PoolConfig { cap: 16 << 20, ..PoolConfig::default() }).unwrap())
}

fn ram() -> Arc<dyn BlockDevice> {
    Arc::new(RamDevice::new("ram0", MIB, 512).unwrap())
}

fn filled(pool: &CorePool, len: usize, byte: u8) -> Buffer {
    let mut buffer = pool.lease(len).unwrap();
    buffer.as_mut_slice().fill(byte);
    buffer
}

fn run(queue: &mut dyn BlockQueue, op: BlockOp) -> Completed {
    queue.submit(op).unwrap();
    let mut done = Vec::new();
    while queue.in_flight() > 0 {
        queue.poll(&mut done);
    }
    assert_eq!(done.len(), 1);
    done.remove(0)
}

#[test]
fn parts_are_apart_and_together_they_are_the_base() {
    let base = ram();
    let one = SplitDevice::new("one", Arc::clone(&base), 0, Some(MIB / 4)).unwrap();
    let two = SplitDevice::new("two", Arc::clone(&base), MIB / 4, None).unwrap();
    assert_eq!((one.info().size, two.info().size), (MIB / 4, 3 * MIB / 4));
    assert_eq!(
        one.info(),
        &DeviceInfo { name: "one".into(), size: MIB / 4, ..base.info().clone() }
    );
    let pool = pool();
    let (mut one, mut two) = (one.open_queue(&pool).unwrap(), two.open_queue(&pool).unwrap());
    let mut base = base.open_queue(&pool).unwrap();
    for (queue, offset, byte) in [(&mut one, MIB / 4 - 512, 1), (&mut two, 0, 2)] {
        let op = BlockOp::write(5, offset, filled(&pool, 512, byte), false);
        assert_eq!(run(&mut **queue, op).result, Ok(()));
        assert_eq!(run(&mut **queue, BlockOp::flush(6)).result, Ok(()));
    }
    let done = run(&mut *base, BlockOp::read(7, MIB / 4 - 512, filled(&pool, 1024, 0)));
    let wanted = [[1; 512], [2; 512]].concat();
    assert_eq!(done.buf.unwrap().as_slice(), wanted);
    // Zeroing one up to its end leaves the other unchanged.
    let zeroes = BlockOp::write_zeroes(8, 0, MIB / 4, false, true);
    assert_eq!(run(&mut *one, zeroes).result, Ok(()));
    let done = run(&mut *two, BlockOp::read(9, 0, filled(&pool, 512, 0)));
    assert!(done.buf.unwrap().as_slice().iter().all(|byte| *byte == 2));
}

#[test]
fn nothing_beyond_the_part_is_reached() {
    let device = SplitDevice::new("one", ram(), 4096, Some(8192)).unwrap();
    let pool = pool();
    let mut queue = device.open_queue(&pool).unwrap();
    for (offset, len) in [(8192, 512), (7680, 1024), (u64::MAX - 511, 512), (0, 8704)] {
        let buf = pool.lease(usize::try_from(len).unwrap()).unwrap();
        let done = run(&mut *queue, BlockOp::read(3, offset, buf));
        assert_eq!((done.token, done.result), (3, Err(BlockError::OutOfRange { offset, len })));
        assert!(done.buf.is_some());
    }
    let done = run(&mut *queue, BlockOp::deallocate(4, 0, 8704));
    assert_eq!(done.result, Err(BlockError::OutOfRange { offset: 0, len: 8704 }));
    let null = Arc::new(NullDevice::new("null0", MIB, 512).unwrap());
    let device = SplitDevice::new("one", null, 4096, Some(8192)).unwrap();
    let mut queue = device.open_queue(&pool).unwrap();
    assert_eq!(queue.zero_copy_read(4096, 4096).unwrap().len(), 4096);
    assert!(
        queue.zero_copy_read(4096, 4608).is_none() && queue.zero_copy_read(u64::MAX, 512).is_none()
    );
}

#[test]
fn what_the_base_refuses_comes_back_as_it_was() {
    let (base, faults) = FaultDevice::new(ram(), FaultPlan::default());
    let device = SplitDevice::new("one", Arc::new(base), 4096, None).unwrap();
    let pool = pool();
    let mut queue = device.open_queue(&pool).unwrap();
    faults.reject_next(1);
    let rejected = queue.submit(BlockOp::read(1, 512, filled(&pool, 512, 0))).unwrap_err();
    assert_eq!((rejected.op.offset, rejected.reason), (512, RejectReason::QueueFull));
    assert_eq!(run(&mut *queue, rejected.op).result, Ok(()));
    assert!(!device.is_gone());
    faults.remove();
    assert!(device.is_gone());
}

#[test]
fn ranges_that_are_none_are_refused() {
    let refused = |offset, size| SplitDevice::new("one", ram(), offset, size).unwrap_err();
    for (offset, size) in [(MIB, None), (0, Some(0)), (512, Some(MIB)), (u64::MAX, Some(512))] {
        let error = refused(offset, size);
        assert!(matches!(error, SplitError::OutOfRange { .. }), "{error}");
        assert!(error.to_string().contains("\"ram0\", which has 1048576 bytes"), "{error}");
    }
    for (offset, size) in [(100, Some(512)), (512, Some(100)), (100, None)] {
        let error = refused(offset, size);
        assert!(matches!(error, SplitError::Misaligned { block_size: 512, .. }), "{error}");
    }
}
