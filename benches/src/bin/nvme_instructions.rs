//! Reads through the VFIO driver on the controller in memory, to count the driver's instructions.
//!
//! `nvme_instructions BYTES DEPTH ROUNDS` submits `DEPTH` reads of `BYTES`, polls, runs the
//! controller, and polls again, `ROUNDS` times. Callgrind counts instructions inside
//! [`driver_submit`] and [`driver_poll`], and none inside [`outside_of_the_driver`]: these
//! functions toggle collection. `cargo xtask bench instructions` runs it with two numbers of
//! rounds, and subtracts the counts.
#![forbid(unsafe_code)]

use std::hint::black_box;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nvmeof_core::block::{Completed, NvmeDevice};
use nvmeof_core::dma::{ChunkPool, CorePool, PoolConfig};
use nvmeof_core::nvme_driver::function::{DmaSpace, Function, Registers};
use nvmeof_core::nvme_driver::{
    BufferMaps, Controller, ControllerOptions, Io, IoKind, IoQueue, Wait,
};
use nvmeof_fake_drive::{FakeDrive, FakeDriveConfig, Mode, NamespaceConfig};

#[expect(clippy::print_stderr, reason = "a person reads it")]
fn main() {
    let args: Vec<usize> = std::env::args().skip(1).flat_map(|arg| arg.parse()).collect();
    let [bytes, depth, rounds] = args[..] else {
        eprintln!("usage: nvme_instructions BYTES DEPTH ROUNDS");
        std::process::exit(2);
    };
    let rig = Rig::new();
    let mut queue = rig.device.open_driver_queue(&rig.pool).expect("a queue");
    let mut buffers: Vec<_> =
        (0..depth).map(|_| rig.pool.lease(bytes).expect("a buffer")).collect();
    let mut done = Vec::with_capacity(depth);
    // The controller's startup work, before anything is counted.
    for _ in 0..16 {
        rig.device.controller().turn();
        rig.fake.run();
        queue.poll(&mut done);
    }
    for round in 0..rounds {
        for buffer in buffers.drain(..) {
            let offset = (round * bytes % (8 << 20)) as u64;
            let io =
                Io { token: 0, kind: IoKind::Read, offset, len: bytes as u64, buf: Some(buffer) };
            driver_submit(&mut queue, io);
        }
        driver_poll(&mut queue, &mut done);
        rig.fake.run();
        driver_poll(&mut queue, &mut done);
        let taken = (rig.fake.doorbells(), rig.device.controller().state());
        assert_eq!(done.len(), depth, "every read is done: {taken:?}");
        for completed in done.drain(..) {
            completed.result.expect("a read that works");
            buffers.extend(completed.buf);
        }
    }
    drop((queue, buffers));
    rig.fake.assert_clean();
}

#[inline(never)]
fn driver_submit(queue: &mut IoQueue, io: Io) {
    assert!(black_box(queue.submit(io)).is_ok(), "the queue has room");
}

#[inline(never)]
fn driver_poll(queue: &mut IoQueue, done: &mut Vec<Completed>) {
    queue.poll(done);
    black_box(done);
}

#[inline(never)]
fn outside_of_the_driver(registers: &dyn Registers, offset: u32, value: u32) {
    registers.write32(offset, value);
    black_box(value);
}

struct Rig {
    fake: FakeDrive,
    device: NvmeDevice,
    pool: CorePool,
}

impl Rig {
    fn new() -> Self {
        let mut config = FakeDriveConfig {
            namespaces: vec![NamespaceConfig::new(1, 4 << 10, 12)],
            ..FakeDriveConfig::default()
        };
        config.identify.mdts = 5;
        let fake = FakeDrive::new(config);
        let function = Arc::new(Watched(fake.function()));
        let wait = Arc::new(Counted::default());
        let options = ControllerOptions { queue_depth: 128, ..ControllerOptions::default() };
        let controller = Controller::open_stepped(function, options, wait).expect("a controller");
        let shared = ChunkPool::new(PoolConfig { cap: 32 << 20, ..PoolConfig::default() });
        let shared = shared.expect("a pool");
        let maps = Arc::new(BufferMaps::new(&shared));
        let device = NvmeDevice::new("nvme", controller, 1, maps).expect("a namespace");
        fake.set_mode(Mode::Manual);
        Self { fake, device, pool: CorePool::new(&shared) }
    }
}

/// A clock that advances only while the driver waits.
#[derive(Debug, Default)]
struct Counted(AtomicU64);

impl Wait for Counted {
    fn now(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn wait(&self, _: &[BorrowedFd<'_>], nanos: u64) {
        self.0.fetch_add(nanos.max(1), Ordering::Relaxed);
    }
}

/// The fake's function, whose doorbells are not the driver's instructions.
#[derive(Debug)]
struct Watched(Arc<dyn Function>);

#[derive(Debug)]
struct WatchedRegisters(Arc<dyn Registers>);

impl Registers for WatchedRegisters {
    fn read32(&self, offset: u32) -> u32 {
        self.0.read32(offset)
    }

    fn write32(&self, offset: u32, value: u32) {
        outside_of_the_driver(self.0.as_ref(), offset, value);
    }

    fn read64(&self, offset: u32) -> u64 {
        self.0.read64(offset)
    }

    fn write64(&self, offset: u32, value: u64) {
        self.0.write64(offset, value);
    }
}

impl Function for Watched {
    fn address(&self) -> &str {
        self.0.address()
    }

    fn registers(&self) -> Arc<dyn Registers> {
        Arc::new(WatchedRegisters(self.0.registers()))
    }

    fn registers_len(&self) -> u64 {
        self.0.registers_len()
    }

    fn dma(&self) -> Arc<dyn DmaSpace> {
        self.0.dma()
    }

    fn interrupts(&self, vectors: u16) -> io::Result<Vec<OwnedFd>> {
        self.0.interrupts(vectors)
    }

    fn rearm(&self) -> io::Result<()> {
        self.0.rearm()
    }

    fn set_bus_master(&self, on: bool) -> io::Result<()> {
        self.0.set_bus_master(on)
    }

    fn reset(&self) -> io::Result<()> {
        self.0.reset()
    }

    fn removal(&self) -> Option<BorrowedFd<'_>> {
        self.0.removal()
    }
}
