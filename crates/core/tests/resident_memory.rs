//! What is resident, in a process of its own.

#![expect(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test: what cannot be is a panic, and its sizes are small"
)]

use std::sync::Mutex;

use nvmeof_core::block::{BlockDevice, BlockOp, BlockQueue, NullDevice, RamDevice};
use nvmeof_core::dma::{CHUNK, ChunkPool, CorePool, LeaseError, PoolConfig};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// The tests of this file measure one process: one at a time.
static ALONE: Mutex<()> = Mutex::new(());

/// Resident bytes of this process.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = text.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

fn pool() -> CorePool {
    let config = PoolConfig { huge_pages: false, ..PoolConfig::default() };
    CorePool::new(&ChunkPool::new(config).unwrap())
}

fn run(queue: &mut dyn BlockQueue, op: BlockOp) {
    queue.submit(op).unwrap();
    let mut done = Vec::new();
    while queue.in_flight() > 0 {
        queue.poll(&mut done);
    }
    assert_eq!(done.pop().unwrap().result, Ok(()));
}

#[test]
fn a_ram_namespace_takes_memory_as_it_is_written() {
    let _alone = ALONE.lock().unwrap();
    let pool = pool();
    let device = RamDevice::new("ram0", GIB, 4096).unwrap();
    let mut queue = device.open_queue(&pool).unwrap();
    run(&mut *queue, BlockOp::read(0, 0, pool.lease(MIB as usize).unwrap()));
    let before = resident();
    for offset in (0..GIB).step_by(MIB as usize) {
        run(&mut *queue, BlockOp::read(0, offset, pool.lease(MIB as usize).unwrap()));
    }
    let read = resident();
    assert!(read < before + 4 * MIB, "reading it all took {} bytes", read - before);
    for offset in (0..64 * MIB).step_by(MIB as usize) {
        run(&mut *queue, BlockOp::write(0, offset * 8, pool.lease(MIB as usize).unwrap(), false));
    }
    let written = resident();
    assert!(written > read + 63 * MIB && written < read + 68 * MIB, "{} bytes", written - read);
    run(&mut *queue, BlockOp::deallocate(0, 0, GIB));
    assert!(resident() < read + 4 * MIB, "deallocated memory goes back");
}

#[test]
fn a_pool_takes_memory_as_it_is_used() {
    let _alone = ALONE.lock().unwrap();
    let before = resident();
    let pool = pool();
    let reserves: Vec<_> = (0..64).map(|_| pool.reserve(128, 8192).unwrap()).collect();
    // A queue depth of 32 at a time, for a long time, in every reserve.
    for reserve in reserves.iter().cycle().take(10_000) {
        let mut out: Vec<_> = (0..32).map(|_| reserve.lease().unwrap()).collect();
        out.iter_mut().for_each(|buffer| buffer.as_mut_slice().fill(1));
    }
    let used = resident();
    assert!(used < before + MIB, "{} bytes for 64 MiB promised", used - before);
    let mut buffers = Vec::new();
    let most = loop {
        match pool.lease(CHUNK) {
            Ok(buffer) => buffers.push(buffer),
            Err(error) => break error,
        }
    };
    assert_eq!(most, LeaseError::Exhausted);
    assert!(resident() < used + 2 * MIB, "leasing touches nothing");
}

#[test]
fn null_devices_take_no_memory() {
    let _alone = ALONE.lock().unwrap();
    let pool = pool();
    let before = resident();
    for _ in 0..16 {
        let device = NullDevice::new("null0", 1 << 40, 512).unwrap();
        let mut queue = device.open_queue(&pool).unwrap();
        for _ in 0..100 {
            let data = queue.zero_copy_read(0, 2 << 20).unwrap();
            let (file, offset) = data.file().unwrap();
            let mut bytes = vec![1; 4096];
            rustix::io::pread(file, &mut bytes, offset).unwrap();
            assert!(bytes.iter().all(|byte| *byte == 0));
        }
    }
    assert!(resident() < before + MIB);
}
