//! Disks of the torture test, their layers, and the faults that they inject.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nvmeof_core::block::fault::{FaultControl, FaultDevice, FaultPlan};
use nvmeof_core::block::{
    BlockDevice, BlockError, BlockOp, BlockQueue, Completed, DelayDevice, DeviceInfo, Direct,
    FileConfig, FileDevice, Latency, NvmeDevice, RamDevice, Rejected, StripeDevice,
};
use nvmeof_core::dma::{ChunkPool, CorePool};
use nvmeof_core::nvme_driver::{BufferMaps, Controller, ControllerOptions, Wait};
use nvmeof_fake_drive::{FakeDrive, Fault, Mode, When};
use nvmeof_nvmf::DeviceId;
use nvmeof_random::SplitMix64;
use nvmeof_wire::Status;

use super::late::Late;
use super::site::{MILLI, SECOND, now};

/// Blocks of a disk: few, so that the hosts' commands overlap.
pub(super) const BLOCKS: u64 = 8;
const SIZE: u64 = 64 << 10;
const BLOCK: u32 = 512;
/// Bytes of a chunk of the stripe: two blocks, so that many operations have a part on each member.
const CHUNK: u64 = 1024;
/// Polls of a file, 20 us apart, within which the kernel completes everything.
const KERNEL_POLLS: usize = 500_000;

/// A namespace's device, and the controls of its faults.
pub(super) struct Disk {
    /// Its number in the history, and its NSID.
    pub(super) number: u32,
    /// Its identifier at the reactors while it is open there. When reopened it has another one.
    pub(super) id: DeviceId,
    pub(super) device: Arc<dyn BlockDevice>,
    pub(super) is_served: bool,
    layers: Option<Layers>,
    drive: Option<Drive>,
    /// Time at which held operations are released.
    release_at: Option<u64>,
}

/// `delay` over `fault` over a late device.
struct Layers {
    /// Maximum lateness in nanoseconds.
    latest: Arc<AtomicU64>,
    faults: Arc<FaultControl>,
    delay: Arc<DelayDevice>,
}

/// The VFIO driver over a drive in memory.
struct Drive {
    fake: FakeDrive,
    controller: Arc<Controller>,
}

impl Disk {
    /// Creates a `stripe` over two late `ram` devices, under `fault` and `delay`.
    pub(super) fn stripe(number: u32, seed: u64) -> Self {
        let latest = Arc::default();
        let members = [("ram0", seed), ("ram1", !seed)].map(|(name, seed)| {
            let ram = RamDevice::new(name, SIZE / 2, BLOCK).expect("memory for a disk");
            Arc::new(Late::new(Arc::new(ram), seed, &latest)) as Arc<dyn BlockDevice>
        });
        let stripe = StripeDevice::new("stripe", members.into(), CHUNK).expect("a stripe");
        Self::layered(number, Arc::new(stripe), seed, latest)
    }

    /// Creates a late `file`, through the page cache, under the same layers.
    pub(super) fn file(number: u32, seed: u64, folder: &Path) -> Self {
        let mut config = FileConfig::new("file", folder.join("disk"), BLOCK);
        (config.size, config.direct, config.queue_depth) = (Some(SIZE), Direct::Never, 64);
        let file = FileDevice::open(&config).expect("a file");
        let latest = Arc::default();
        let late = Late::new(Arc::new(AtOnce(file)), seed, &latest);
        Self::layered(number, Arc::new(late), seed, latest)
    }

    fn layered(number: u32, base: Arc<dyn BlockDevice>, seed: u64, latest: Arc<AtomicU64>) -> Self {
        let plan = FaultPlan { seed, ..FaultPlan::default() };
        let (device, faults) = FaultDevice::with_clock("fault", base, plan, now);
        let delay = Arc::new(DelayDevice::new("delay", Arc::new(device), Latency::default(), now));
        let device = Arc::clone(&delay) as Arc<dyn BlockDevice>;
        Self { layers: Some(Layers { latest, faults, delay }), ..Self::bare(number, device) }
    }

    /// Creates a disk of the VFIO driver over a drive in memory.
    pub(super) fn drive(
        number: u32,
        pool: &Arc<ChunkPool>,
        fake: FakeDrive,
        time: Arc<dyn Wait>,
    ) -> Self {
        let options = ControllerOptions {
            io_queues: 8,
            queue_depth: 32,
            io_timeout: Duration::from_secs(1),
            admin_timeout: Duration::from_secs(2),
            absence: Duration::from_secs(1),
            resets: u32::MAX,
            interrupts: false,
            ..ControllerOptions::default()
        };
        let controller =
            Controller::open_stepped(fake.function(), options, time).expect("a controller");
        let maps = Arc::new(BufferMaps::new(pool));
        let device =
            NvmeDevice::new("drive", Arc::clone(&controller), 1, maps).expect("a namespace");
        Self { drive: Some(Drive { fake, controller }), ..Self::bare(number, Arc::new(device)) }
    }

    fn bare(number: u32, device: Arc<dyn BlockDevice>) -> Self {
        Self {
            number,
            id: DeviceId(number),
            device,
            is_served: true,
            layers: None,
            drive: None,
            release_at: None,
        }
    }

    /// Returns true if the driver repeats operations without a reply after a reset.
    pub(super) fn repeats(&self) -> bool {
        self.drive.is_some()
    }

    /// Does the work that is due.
    pub(super) fn turn(&mut self, dice: &mut SplitMix64, now: u64) {
        if self.release_at.is_some_and(|at| at <= now) {
            self.release();
        }
        if let Some(drive) = &self.drive {
            (0..dice.within(0..3)).for_each(|_| {
                drive.fake.step();
            });
            drive.controller.turn();
        }
    }

    fn release(&mut self) {
        self.release_at = None;
        if let Some(layers) = &self.layers {
            layers.faults.release();
        }
        if let Some(drive) = &self.drive {
            drive.fake.release();
        }
    }

    /// Injects a random fault.
    pub(super) fn disturb(&mut self, dice: &mut SplitMix64, now: u64) {
        if let Some(layers) = &self.layers {
            layers.disturb(dice);
        }
        if let Some(drive) = &self.drive {
            drive.disturb(dice);
        }
        if self.release_at.is_none() {
            self.release_at = Some(now + dice.within(MILLI..SECOND));
        }
    }

    /// Ends all faults.
    pub(super) fn calm(&mut self) {
        self.release();
        if let Some(layers) = &self.layers {
            layers.latest.store(0, Ordering::Relaxed);
            layers.faults.set_plan(FaultPlan::default());
            layers.delay.set_latency(Latency::default());
        }
        if let Some(drive) = &self.drive {
            drive.fake.clear_faults();
            drive.fake.reconfigure(|config| config.abort_helps = true);
            drive.fake.set_mode(Mode::Automatic);
            drive.fake.run();
        }
    }

    /// Checks that no rule was broken.
    pub(super) fn assert_clean(&self) {
        if let Some(drive) = &self.drive {
            drive.fake.assert_clean();
        }
    }
}

impl Layers {
    fn disturb(&self, dice: &mut SplitMix64) {
        match dice.within(0..10) {
            0 => self.faults.hold(),
            1 => self.faults.reject_next(3),
            2 => self.faults.fail_next(BlockError::Media { errno: 5 }),
            3 | 4 => self.faults.set_plan(FaultPlan::default()),
            5 => self.faults.set_plan(FaultPlan {
                stalls: 100_000,
                stall: Duration::from_nanos(dice.within(MILLI..3 * SECOND)),
                rejects: 50_000,
                reorder: dice.coin(),
                ..FaultPlan::default()
            }),
            6..9 => {
                let latest = [100 * MILLI, SECOND, 3 * SECOND][dice.index(3)];
                self.latest.store(latest, Ordering::Relaxed);
            }
            _ => {
                let most = [0, 5 * MILLI, 200 * MILLI][dice.index(3)];
                let mut latency = || Duration::from_nanos(dice.within(0..most + 1));
                self.delay.set_latency(Latency {
                    read: latency(),
                    write: latency(),
                    write_jitter: latency(),
                    ..Latency::default()
                });
            }
        }
    }
}

impl Drive {
    fn disturb(&self, dice: &mut SplitMix64) {
        let next = When::queue(u16::try_from(dice.within(1..5)).expect("a queue"))
            .times(u32::try_from(dice.within(1..4)).expect("a few"));
        match dice.within(0..10) {
            0..=2 => self.fake.inject(next, Fault::Held),
            3 => self.fake.inject(next, Fault::Lost),
            4 => self.fake.inject(next, Fault::Status(Status::INTERNAL_ERROR)),
            5 => self.controller.reset(),
            6 => self.fake.reset_itself(),
            7 => self.fake.set_mode(Mode::Manual),
            8 => self.fake.set_mode(Mode::Automatic),
            _ => {
                let helps = dice.coin();
                self.fake.reconfigure(|config| config.abort_helps = helps);
            }
        }
    }
}

/// A file that completes each operation before the next one is submitted.
///
/// The kernel works in a time and an order that vary. A run of a seed must not depend on these.
#[derive(Debug)]
struct AtOnce(FileDevice);

#[derive(Debug)]
struct AtOnceQueue {
    base: Box<dyn BlockQueue>,
    done: Vec<Completed>,
}

impl BlockDevice for AtOnce {
    fn info(&self) -> &DeviceInfo {
        self.0.info()
    }

    fn open_queue(&self, pool: &CorePool) -> Result<Box<dyn BlockQueue>, BlockError> {
        Ok(Box::new(AtOnceQueue { base: self.0.open_queue(pool)?, done: Vec::new() }))
    }
}

impl BlockQueue for AtOnceQueue {
    fn submit(&mut self, op: BlockOp) -> Result<(), Rejected> {
        self.base.submit(op)?;
        for _ in 0..KERNEL_POLLS {
            self.base.poll(&mut self.done);
            if self.base.in_flight() == 0 {
                return Ok(());
            }
            std::thread::sleep(Duration::from_micros(20));
        }
        panic!("the kernel keeps what it was given for more than ten seconds");
    }

    fn poll(&mut self, done: &mut Vec<Completed>) {
        done.append(&mut self.done);
    }

    fn in_flight(&self) -> usize {
        self.done.len()
    }
}
