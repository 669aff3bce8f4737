use std::fs::File;
use std::io::Write as _;

use nvmeof_core::block::{BlockDevice, BlockError, BlockOp, Completed, Direct, FileConfig};
use nvmeof_core::dma::{ChunkPool, CorePool, PoolConfig};

use super::*;

const BLOCK: usize = 4096;
const BLOCKS: u64 = 64;
const CALLS: [ReadCall; 5] = [
    ReadCall::SeekRead,
    ReadCall::Pread,
    ReadCall::Preadv,
    ReadCall::Preadv2 { high_priority: false },
    ReadCall::Preadv2 { high_priority: true },
];

/// A file whose blocks contain their numbers.
fn numbered() -> (tempfile::TempDir, FileConfig) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk");
    let mut file = File::create(&path).unwrap();
    for block in 0..BLOCKS {
        file.write_all(&[u8::try_from(block).unwrap(); BLOCK]).unwrap();
    }
    file.sync_all().unwrap();
    let config = FileConfig { direct: Direct::Auto, ..FileConfig::new("disk", path, 4096) };
    (folder, config)
}

fn pool() -> CorePool {
    let config = PoolConfig { cap: 8 << 20, huge_pages: false, ..PoolConfig::default() };
    CorePool::new(&ChunkPool::new(config).unwrap())
}

fn one(queue: &mut dyn BlockQueue) -> Completed {
    let mut done = Vec::new();
    queue.poll(&mut done);
    assert_eq!(done.len(), 1);
    done.remove(0)
}

#[test]
fn every_call_reads_the_block_it_is_asked_for() {
    let (_folder, config) = numbered();
    for call in CALLS {
        let device = SyncDevice::open(&config, call).unwrap();
        assert_eq!(device.info().size, BLOCKS * BLOCK as u64);
        assert!(device.info().read_only);
        let pool = pool();
        // Two queues in alternation: each has its own position.
        let mut queues = [device.open_queue(&pool).unwrap(), device.open_queue(&pool).unwrap()];
        for (token, block) in [(7, 5_u64), (8, 63), (9, 0), (10, 6)] {
            for queue in &mut queues {
                let buf = pool.lease(BLOCK).unwrap();
                queue.submit(BlockOp::read(token, block * BLOCK as u64, buf)).unwrap();
                assert_eq!(queue.in_flight(), 1);
                let done = one(&mut **queue);
                assert_eq!((done.token, done.result), (token, Ok(())), "{call:?}");
                let buf = done.buf.unwrap();
                assert!(buf.as_slice().iter().all(|byte| u64::from(*byte) == block), "{call:?}");
                assert_eq!(queue.in_flight(), 0);
            }
        }
    }
}

#[test]
fn a_queue_holds_one_operation_and_hands_the_next_back() {
    let (_folder, config) = numbered();
    let device = SyncDevice::open(&config, ReadCall::Pread).unwrap();
    let pool = pool();
    let mut queue = device.open_queue(&pool).unwrap();
    queue.submit(BlockOp::read(1, 0, pool.lease(BLOCK).unwrap())).unwrap();
    let rejected = queue.submit(BlockOp::read(2, 0, pool.lease(BLOCK).unwrap())).unwrap_err();
    assert_eq!((rejected.op.token, rejected.reason), (2, RejectReason::QueueFull));
    assert_eq!(one(&mut *queue).token, 1);
}

#[test]
fn nothing_is_written_and_nothing_is_read_that_is_not_there() {
    let (_folder, config) = numbered();
    let device = SyncDevice::open(&config, ReadCall::Preadv).unwrap();
    let pool = pool();
    let mut queue = device.open_queue(&pool).unwrap();
    let mut result = |op| {
        queue.submit(op).unwrap();
        one(&mut *queue).result
    };
    let lease = || pool.lease(BLOCK).unwrap();
    assert_eq!(result(BlockOp::write(1, 0, lease(), false)), Err(BlockError::ReadOnly));
    assert_eq!(result(BlockOp::flush(1)), Ok(()));
    let end = BLOCKS * BLOCK as u64;
    let outside = Err(BlockError::OutOfRange { offset: end, len: BLOCK as u64 });
    assert_eq!(result(BlockOp::read(1, end, lease())), outside);
    // The file is truncated during the reads.
    File::options().write(true).open(&config.path).unwrap().set_len(BLOCK as u64).unwrap();
    assert_eq!(result(BlockOp::read(1, 0, lease())), Ok(()));
    let error = result(BlockOp::read(1, 8 * BLOCK as u64, lease())).unwrap_err();
    assert!(matches!(error, BlockError::Media { .. }), "{error:?}");
}
