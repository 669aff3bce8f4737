//! Cost of a stripe: `cargo bench -p nvmeof-benches --bench stripe`.
//!
//! The same random operations run on N null devices, once on the devices themselves and once on a
//! stripe over them, in turns. The ratio is of operations in the same time; the result is the
//! median over all pairs of turns. A null device only fills the buffer, so the cost of a stripe is
//! more visible than with any other device. The bench uses one core: queues share nothing, so cores
//! scale alike on both sides.
//!
//! A stripe adds one more call through a queue to a read. A bare null queue takes some tens of
//! nanoseconds for 4 KiB, so the addition is a large part. The second table has whole commands,
//! from the capsule to the response through a reactor: a host's performance with a stripe and with
//! its members.

mod world;

use std::hint::black_box;
use std::sync::Arc;

use nvmeof_benches::{BLOCK as REACTOR_BLOCK, BLOCKS, read, write};
use nvmeof_core::block::{BlockDevice, BlockOp, BlockQueue, NullDevice, StripeDevice};
use nvmeof_core::dma::{Buffer, ChunkPool, CorePool, PoolConfig};
use nvmeof_pacing::PolicyConfig;
use nvmeof_random::SplitMix64;
use rustix::time::{ClockId, clock_gettime};
use world::World;

const BLOCK: u32 = 512;
/// Bytes of each null device.
const SIZE: u64 = 16 << 40;
const CHUNK: u64 = 128 << 10;
/// Operations submitted together, and then polled.
const BATCH: usize = 32;
/// Batches in a turn.
const BATCHES: usize = 2000;
/// Pairs of turns.
const PAIRS: usize = 31;

/// Position of an operation: the offset in the stripe, and the same position in a device.
struct Place {
    offset: u64,
    device: usize,
    within: u64,
}

struct Bench {
    pool: CorePool,
    devices: Vec<Box<dyn BlockQueue>>,
    stripe: Box<dyn BlockQueue>,
    places: Vec<Place>,
    /// Bytes of an operation.
    len: usize,
    done: Vec<nvmeof_core::block::Completed>,
}

impl Bench {
    fn new(count: usize, len: usize) -> Self {
        let pool = PoolConfig { cap: 64 << 20, ..PoolConfig::default() };
        let pool = CorePool::new(&ChunkPool::new(pool).expect("there is memory"));
        let null = |_| -> Arc<dyn BlockDevice> {
            Arc::new(NullDevice::new("null", SIZE, BLOCK).expect("there is memory"))
        };
        let devices: Vec<_> = (0..count).map(null).collect();
        let stripe = StripeDevice::new("stripe", devices.clone(), CHUNK).expect("a stripe");
        let open = |device: &dyn BlockDevice| device.open_queue(&pool).expect("a queue");
        let devices: Vec<_> = devices.iter().map(|device| open(device.as_ref())).collect();
        let stripe = open(&stripe);
        let places = places(count, len as u64);
        Self { pool, devices, stripe, places, len, done: Vec::with_capacity(BATCH) }
    }

    fn batches(&self) -> impl Iterator<Item = std::ops::Range<usize>> + use<> {
        let per_turn = self.places.len() / BATCH;
        (0..BATCHES).map(move |batch| {
            let first = batch % per_turn * BATCH;
            first..first + BATCH
        })
    }

    fn buffer(&self) -> Buffer {
        self.pool.lease(self.len).expect("a buffer")
    }

    /// Reads into buffers from the devices themselves; returns the time.
    fn direct(&mut self) -> f64 {
        let begin = cpu_time();
        for batch in self.batches() {
            for at in batch {
                let Place { device, within, .. } = self.places[at];
                let op = BlockOp::read(at as u64, within, self.buffer());
                self.devices[device].submit(op).expect("room");
            }
            for device in &mut self.devices {
                device.poll(&mut self.done);
            }
            assert_eq!(self.done.len(), BATCH);
            self.done.clear();
        }
        cpu_time() - begin
    }

    /// Reads the same from the stripe; returns the time.
    fn striped(&mut self) -> f64 {
        let begin = cpu_time();
        for batch in self.batches() {
            for at in batch {
                let op = BlockOp::read(at as u64, self.places[at].offset, self.buffer());
                self.stripe.submit(op).expect("room");
            }
            self.stripe.poll(&mut self.done);
            assert_eq!(self.done.len(), BATCH);
            self.done.clear();
        }
        cpu_time() - begin
    }

    /// Returns the median ratio of the stripe's operations to the devices', and nanoseconds per
    /// operation of both.
    fn ratio(&mut self) -> (f64, f64, f64) {
        // Once without counting, to warm up.
        self.direct();
        self.striped();
        let mut pairs: Vec<(f64, f64)> = (0..PAIRS)
            .map(|_| {
                let direct = black_box(self.direct());
                (direct, black_box(self.striped()))
            })
            .collect();
        pairs.sort_by(|(a, b), (c, d)| (a / b).total_cmp(&(c / d)));
        let (direct, striped) = pairs[PAIRS / 2];
        let nanos = 1e9 / (BATCH * BATCHES) as f64;
        (direct / striped, direct * nanos, striped * nanos)
    }
}

/// Returns the CPU seconds of this thread: other threads on its core do not count.
fn cpu_time() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Returns random positions of `len` bytes that lie in one chunk.
fn places(devices: usize, len: u64) -> Vec<Place> {
    let mut random = SplitMix64::new(1);
    let count = devices as u64;
    (0..BATCH * 64)
        .map(|_| {
            let chunk = random.below(SIZE / CHUNK * count);
            let within = random.below(CHUNK / len) * len;
            let device = usize::try_from(chunk % count).expect("a device");
            let offset = chunk * CHUNK + within;
            Place { offset, device, within: chunk / count * CHUNK + within }
        })
        .collect()
}

/// Returns the CPU nanoseconds of a command in a reactor: with the null devices themselves, and
/// with a stripe over `devices` of them.
fn in_a_reactor(devices: u64, is_read: bool) -> (f64, f64, f64) {
    let null = |size: u64| -> Arc<dyn BlockDevice> {
        Arc::new(NullDevice::new("null", size, REACTOR_BLOCK).expect("there is memory"))
    };
    let size = BLOCKS * u64::from(REACTOR_BLOCK);
    let members = (0..devices).map(|_| null(size)).collect();
    let stripe = StripeDevice::new("stripe", members, CHUNK).expect("a stripe");
    let policy = PolicyConfig::None;
    let mut worlds = [World::new(null(size), &policy), World::new(Arc::new(stripe), &policy)];
    let depth = u16::try_from(BATCH).expect("few");
    let at = |cid: u16| u64::from(cid) * 977 % BLOCKS;
    let commands: Vec<_> = (0..depth)
        .map(|cid| if is_read { read(cid, at(cid)) } else { write(cid, at(cid)) })
        .collect();
    let data = vec![0xa5; if is_read { 0 } else { REACTOR_BLOCK as usize }];
    let mut turn = |world: usize| {
        let begin = cpu_time();
        for _ in 0..BATCHES / 4 {
            worlds[world].round(&commands, &data);
        }
        cpu_time() - begin
    };
    turn(0);
    turn(1);
    let mut pairs: Vec<(f64, f64)> = (0..PAIRS).map(|_| (turn(0), turn(1))).collect();
    pairs.sort_by(|(a, b), (c, d)| (a / b).total_cmp(&(c / d)));
    let (direct, striped) = pairs[PAIRS / 2];
    let nanos = 1e9 / (BATCH * (BATCHES / 4)) as f64;
    (direct / striped, direct * nanos, striped * nanos)
}

#[expect(clippy::print_stdout, reason = "a person reads it")]
fn main() {
    println!("devices      read    direct    stripe     added   ratio");
    for (devices, len) in
        [2, 3, 8, 16].into_iter().flat_map(|devices| [(devices, 4096), (devices, 128 << 10)])
    {
        let (ratio, direct, striped) = Bench::new(devices, len).ratio();
        println!(
            "{devices:7} {:5} KiB {direct:6.1} ns {striped:6.1} ns {:6.1} ns  {:5.1} %",
            len >> 10,
            striped - direct,
            100.0 * ratio
        );
    }

    println!(
        "\ndevices   4 KiB    direct    stripe     added   ratio   (commands, through a reactor)"
    );
    for (devices, is_read) in
        [2, 8, 16].into_iter().flat_map(|devices| [(devices, true), (devices, false)])
    {
        let (ratio, direct, striped) = in_a_reactor(devices, is_read);
        let what = if is_read { "read" } else { "write" };
        println!(
            "{devices:7} {what:>7} {direct:6.1} ns {striped:6.1} ns {:6.1} ns  {:5.1} %",
            striped - direct,
            100.0 * ratio
        );
    }
}
