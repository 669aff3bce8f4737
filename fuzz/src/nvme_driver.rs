//! A drive's answers into the VFIO driver: registers, identify data, log pages, completions.
//!
//! The drive is the controller in memory, which runs without help. The fuzzer's bytes change its
//! answers, make it late, fatal, missing and present again, and choose the requests to the driver.
//! Time is simulated.
//!
//! Invariants for any answers of the drive:
//!
//! * Every operation ends exactly once, and no admin command waits forever.
//! * The drive accesses no memory that it was not given or that was unmapped.
//! * At the end every buffer is returned (or counted as abandoned).
//! * At the end nothing is mapped, if the drive can be stopped at all.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nvmeof_core::block::NvmeDevice;
use nvmeof_core::dma::{ChunkPool, CorePool, PoolConfig};
use nvmeof_core::nvme_driver::{
    BufferMaps, Controller, ControllerOptions, ControllerState, Io, IoKind, IoQueue, Wait,
};
use nvmeof_fake_drive::{
    FakeDrive, FakeDriveConfig, Fault, Mode, NamespaceConfig, Readiness, Tamper, When,
};
use nvmeof_wire::aer::AsyncEvent;
use nvmeof_wire::format::SecureErase;
use nvmeof_wire::identify::{LbaFormat, oacs, sgls};
use nvmeof_wire::sanitize::SanitizeAction;
use nvmeof_wire::zerocopy::IntoBytes;
use nvmeof_wire::{Cqe, Sqe, Status, U16, U32};

use crate::input::Input;

/// Maximum number of steps of one run.
const STEPS: usize = 32;
/// Number of blocks of the namespace, of 512 bytes.
const BLOCKS: u64 = 512;
const MILLI: u64 = 1_000_000;
/// Maximum number of turns until everything has ended.
///
/// A turn is 20 ms. A reset is allowed CAP.TO, at most 127.5 s, to disable and as long to enable,
/// and there are two.
const TURNS: usize = 100_000;
/// Maximum number of the driver's pauses in one run, each at least a millisecond.
const WAITS: u64 = 8_000_000;

thread_local! {
    static SHARED: RefCell<(Arc<ChunkPool>, CorePool)> = RefCell::new(pool());
}

fn pool() -> (Arc<ChunkPool>, CorePool) {
    let config =
        PoolConfig { cap: 8 << 20, reserve: 8 << 20, huge_pages: false, ..PoolConfig::default() };
    let shared = ChunkPool::new(config).expect("a pool");
    let pool = CorePool::new(&shared);
    (shared, pool)
}

/// Runs one input.
///
/// # Panics
/// If the driver violates an invariant.
pub fn run(bytes: &[u8]) {
    SHARED.with_borrow_mut(|shared| {
        // The second half determines the drive's answers.
        let (program, answers) = bytes.split_at(bytes.len() / 2);
        let mut input = Input::new(program);
        World::run(&shared.0, &shared.1, &mut input, answers);
        if shared.1.leased() > 0 {
            // Abandoned for a checked reason: the next run gets a new pool.
            *shared = pool();
        }
    });
}

/// Subjects of the drive's false answers.
#[derive(Debug, Clone, Copy)]
struct Lies {
    registers: bool,
    data: bool,
    completions: bool,
}

/// Changes answers by the fuzzer's bytes, until their end.
#[derive(Debug)]
struct Liar {
    bytes: Vec<u8>,
    at: usize,
    lies: Arc<Mutex<Lies>>,
}

impl Liar {
    fn lies(&self) -> Lies {
        *self.lies.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn byte(&mut self) -> u8 {
        let byte = self.bytes.get(self.at).copied().unwrap_or(0);
        self.at += 1;
        byte
    }

    fn qword(&mut self) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|_| self.byte()))
    }
}

impl Tamper for Liar {
    fn register(&mut self, _: u32, value: u64) -> u64 {
        if !self.lies().registers {
            return value;
        }
        match self.byte() {
            0..=0xdf => value,
            0xe0..=0xe7 => value ^ 1 << (self.byte() % 64),
            0xe8..=0xef => u64::MAX,
            0xf0..=0xf7 => 0,
            _ => self.qword(),
        }
    }

    fn data(&mut self, _: &Sqe, qid: u16, data: &mut [u8]) {
        // The data of a read are for the host, not for the driver.
        if !self.lies().data || qid != 0 || data.is_empty() {
            return;
        }
        match self.byte() {
            0..=0x7f => {}
            0x80..=0x87 => data.fill(0),
            0x88..=0x8f => data.fill(0xff),
            0x90..=0x97 => data.iter_mut().for_each(|byte| *byte = self.byte()),
            _ => {
                for _ in 0..=self.byte() % 4 {
                    // Most fields are near the start, and around byte 512 for a controller.
                    let base = [0, 0, 64, 128, 256, 320, 512, 520][usize::from(self.byte() % 8)];
                    let at = (base + usize::from(self.byte() % 64)) % data.len();
                    data[at] = self.byte();
                }
            }
        }
    }

    fn completion(&mut self, _: u16, cqe: &mut Cqe) {
        if !self.lies().completions {
            return;
        }
        match self.byte() {
            0..=0xcf => {}
            0xd0..=0xd7 => cqe.status.set(u16::from_le_bytes([self.byte(), self.byte()])),
            0xd8..=0xdf => cqe.cid.set(cqe.cid.get() ^ 1 << (self.byte() % 16)),
            0xe0..=0xe7 => cqe.sqid.set(u16::from(self.byte() % 4)),
            0xe8..=0xef => cqe.result.set(self.qword()),
            0xf0..=0xf7 => cqe.sqhd.set(u16::from_le_bytes([self.byte(), self.byte()])),
            _ => {
                for byte in cqe.as_mut_bytes() {
                    *byte = self.byte();
                }
            }
        }
    }
}

/// A clock that advances only while the driver waits.
#[derive(Debug)]
struct Time {
    now: AtomicU64,
    waits: AtomicU64,
    /// Runs while time advances.
    fake: FakeDrive,
}

impl Wait for Time {
    fn now(&self) -> u64 {
        self.now.load(Ordering::Relaxed)
    }

    fn wait(&self, _: &[BorrowedFd<'_>], nanos: u64) {
        // At least a millisecond: finer steps do not matter, and the number of waits is limited.
        self.now.fetch_add(nanos.max(MILLI), Ordering::Relaxed);
        let waits = self.waits.fetch_add(1, Ordering::Relaxed);
        assert!(waits < WAITS, "the driver waits for ever");
        self.fake.run();
    }
}

struct World<'a> {
    fake: FakeDrive,
    time: Arc<Time>,
    lies: Arc<Mutex<Lies>>,
    controller: Arc<Controller>,
    maps: Arc<BufferMaps>,
    pool: &'a CorePool,
    /// Queues, by a separate number.
    queues: Vec<(u64, IoQueue)>,
    /// Operations that have not ended: queue and token.
    out: BTreeSet<(u64, u64)>,
    next: u64,
    /// True if the drive's registers and completions are true, and the drive can be stopped.
    ///
    /// It then no longer uses unmapped memory. A drive that falsely reports its failure can: the
    /// IOMMU covers that case.
    is_sure: bool,
}

impl<'a> World<'a> {
    fn run(shared: &Arc<ChunkPool>, pool: &'a CorePool, input: &mut Input<'_>, answers: &[u8]) {
        let bits = input.byte();
        let lies = Arc::new(Mutex::new(Lies {
            registers: bits & 1 != 0,
            data: bits & 2 != 0,
            completions: bits & 4 != 0,
        }));
        let config = config(input);
        let mut is_sure = bits & 5 == 0 && config.disable != Readiness::Never && config.can_reset;
        let fake = FakeDrive::new(config);
        let liar = Liar { bytes: answers.to_vec(), at: 0, lies: Arc::clone(&lies) };
        fake.set_tamper(Some(Box::new(liar)));
        if bits & 0x18 == 0x18 {
            plan(&fake, input);
        }
        let time = Time { now: AtomicU64::new(0), waits: AtomicU64::new(0), fake: fake.clone() };
        let time = Arc::new(time);
        let wait: Arc<dyn Wait> = time.clone();
        let opened = Controller::open_stepped(fake.function(), options(input), wait);
        if let Ok(controller) = opened {
            let maps = Arc::new(BufferMaps::new(shared));
            let (queues, out, next) = (Vec::new(), BTreeSet::new(), 0);
            let fake = fake.clone();
            let mut world =
                World { fake, time, lies, controller, maps, pool, queues, out, next, is_sure };
            for _ in 0..STEPS {
                if input.is_empty() {
                    break;
                }
                world.step(input);
            }
            is_sure = world.is_sure;
            world.finish();
        } else {
            assert_eq!(fake.mappings(), [], "nothing stays mapped");
        }
        let faults = fake.iommu_faults();
        assert!(!is_sure || faults.is_empty(), "memory was reached that is not given: {faults:?}");
    }

    fn step(&mut self, input: &mut Input<'_>) {
        match input.byte() % 24 {
            0 | 1 if self.queues.len() < 3 => self.open_queue(input),
            0..=9 => self.submit(input),
            10 => self.inject(input),
            11 => {
                self.fake.release();
            }
            12 => self.time_passes(input),
            13 => self.fake.set_mode(input.pick(&[Mode::Automatic, Mode::Manual])),
            14 => {
                self.fake.step();
            }
            15 => self.ask(input),
            16 => self.fake.raise(AsyncEvent::parse(input.dword())),
            17 => self.happens(input),
            18 if !self.queues.is_empty() => {
                let (id, queue) = self.queues.swap_remove(input.below(self.queues.len()));
                // Its operations are cancelled and not returned.
                drop(queue);
                self.out.retain(|(owner, _)| *owner != id);
            }
            19 => self.change_lies(input),
            20 => self.controller.reset(),
            _ => {
                self.fake.run();
            }
        }
        self.turn();
    }

    fn open_queue(&mut self, input: &mut Input<'_>) {
        let nsid = if input.one_in(8) { input.dword() } else { 1 };
        let maps = Arc::clone(&self.maps);
        let Ok(device) = NvmeDevice::new("d", Arc::clone(&self.controller), nsid, maps) else {
            return;
        };
        if let Ok(queue) = device.open_driver_queue(self.pool) {
            self.queues.push((self.next, queue));
            self.next += 1;
        }
    }

    fn submit(&mut self, input: &mut Input<'_>) {
        if self.queues.is_empty() {
            return;
        }
        let index = input.below(self.queues.len());
        let (id, queue) = &mut self.queues[index];
        let block = u64::from(queue.namespace().block_size);
        let kind = match input.byte() % 8 {
            0..=2 => IoKind::Read,
            3 => IoKind::Write { fua: input.coin() },
            4 => IoKind::WriteZeroes { fua: false, deallocate: input.coin() },
            5 => IoKind::Deallocate,
            6 => input.pick(&[IoKind::Compare, IoKind::Verify]),
            _ => IoKind::Flush,
        };
        let offset = u64::from(input.byte()) * block;
        let len = u64::from(input.pick(&[1u16, 2, 8, 9, 64, 255, 256])) * block;
        let (offset, len) =
            if input.one_in(16) { (input.qword(), u64::from(input.word())) } else { (offset, len) };
        let buf = usize::try_from(len).ok().filter(|len| (1..=1 << 20).contains(len));
        let buf = buf.and_then(|len| self.pool.lease(len).ok());
        if kind.moves_data() && buf.is_none() {
            return;
        }
        let (id, token) = (*id, self.next);
        let is_flush = matches!(kind, IoKind::Flush);
        let (offset, len) = if is_flush { (0, 0) } else { (offset, len) };
        let buf = buf.filter(|_| kind.moves_data());
        if queue.submit(Io { token, kind, offset, len, buf }).is_ok() {
            self.next += 1;
            self.out.insert((id, token));
        }
    }

    fn inject(&mut self, input: &mut Input<'_>) {
        inject(&self.fake, input);
    }

    fn time_passes(&mut self, input: &mut Input<'_>) {
        for _ in 0..1 + input.byte() % 32 {
            self.pass(u64::from(input.byte()) * 50 * MILLI);
            self.turn();
        }
    }

    fn ask(&mut self, input: &mut Input<'_>) {
        let controller = &self.controller;
        // Any answer is valid, if there is one.
        match input.byte() % 8 {
            0 => drop(controller.smart()),
            1 => drop(controller.error_log()),
            2 => drop(controller.namespaces()),
            3 => drop(controller.namespace(input.pick(&[1, 2, 0, u32::MAX]))),
            4 => drop(controller.formats(1)),
            5 | 6 => self.destroy(input),
            _ => drop(controller.events()),
        }
    }

    /// Runs a format or a sanitize. They have long timeouts, a day after a lost command, so no
    /// command is lost.
    fn destroy(&mut self, input: &mut Input<'_>) {
        self.fake.clear_faults();
        self.lies.lock().unwrap_or_else(PoisonError::into_inner).completions = false;
        if input.coin() {
            let (format, erase) = (input.byte() % 4, SecureErase(input.byte() % 4));
            drop(self.controller.format(1, format, erase, &mut |_| ()));
        } else {
            let action = SanitizeAction(input.byte() % 6);
            drop(self.controller.sanitize(action, &mut |_| ()));
        }
    }

    fn happens(&mut self, input: &mut Input<'_>) {
        match input.byte() % 8 {
            0 => self.fake.set_fatal(),
            1 => self.fake.set_gone(true),
            2 | 3 => self.fake.set_gone(false),
            4 => self.fake.reset_itself(),
            5 => self.fake.request_removal(),
            6 => {
                let attached = input.coin();
                self.fake.set_attached(1, attached);
            }
            _ => self.fake.reconfigure(|config| {
                config.abort_helps = input.coin();
                config.enable = readiness(input);
            }),
        }
    }

    fn change_lies(&mut self, input: &mut Input<'_>) {
        let bits = input.byte();
        self.is_sure &= bits & 5 == 0;
        let mut lies = self.lies.lock().unwrap_or_else(PoisonError::into_inner);
        *lies = Lies { registers: bits & 1 != 0, data: bits & 2 != 0, completions: bits & 4 != 0 };
    }

    fn pass(&self, nanos: u64) {
        self.time.now.fetch_add(nanos, Ordering::Relaxed);
    }

    fn turn(&mut self) {
        self.controller.turn();
        let mut done = Vec::new();
        for (id, queue) in &mut self.queues {
            queue.poll(&mut done);
            for completed in done.drain(..) {
                let is_known = self.out.remove(&(*id, completed.token));
                assert!(is_known, "{completed:?} has ended before");
            }
        }
    }

    /// Everything ends automatically.
    fn finish(mut self) {
        for _ in 0..TURNS {
            if self.out.is_empty() {
                break;
            }
            self.turn();
            self.fake.run();
            self.pass(20 * MILLI);
        }
        let state = self.controller.state();
        assert!(self.out.is_empty(), "{:?} do not end: {state:?}", self.out);
        let failed = matches!(state, ControllerState::Failed(_));
        self.queues.clear();
        let stats = self.controller.stats();
        let Self { controller, maps, pool, fake, lies, .. } = self;
        assert!(stats.leaked_buffers == 0 || failed, "{stats:?}");
        // It can be stopped, if its registers are true.
        lies.lock().unwrap_or_else(PoisonError::into_inner).registers = false;
        fake.reconfigure(|config| config.disable = Readiness::AfterReads(0));
        drop((controller, maps));
        assert_eq!(fake.mappings(), [], "nothing stays mapped: {stats:?}");
        if stats.leaked_buffers == 0 {
            assert_eq!(pool.leased(), 0, "every buffer is back: {stats:?}");
        }
    }
}

fn options(input: &mut Input<'_>) -> ControllerOptions {
    ControllerOptions {
        io_queues: u16::from(input.byte() % 4),
        queue_depth: input.pick(&[8, 4, 2, 1, 64]),
        io_timeout: Duration::from_secs(2),
        admin_timeout: Duration::from_secs(2),
        absence: Duration::from_secs(1),
        resets: 2,
        ..ControllerOptions::default()
    }
}

fn config(input: &mut Input<'_>) -> FakeDriveConfig {
    let mut config = FakeDriveConfig { check_boundary: false, ..FakeDriveConfig::default() };
    config.namespaces = vec![NamespaceConfig::new(1, BLOCKS, 9)];
    // After a format to larger blocks a drive with false answers would write more than it reports.
    config.namespaces[0].identify.lbaf[..3].fill(LbaFormat::new(9));
    let bits = input.byte();
    if bits & 1 != 0 {
        config.identify.oacs = U16::new(oacs::FORMAT | oacs::DOORBELL_BUFFER);
    }
    if bits & 2 != 0 {
        config.identify.sgls = U32::new(sgls::SUPPORTED);
    }
    if bits & 4 != 0 {
        config.namespaces[0].identify.noiob = U16::new(8);
    }
    if bits & 8 != 0 {
        config.identify.mdts = 1;
    }
    if bits & 16 != 0 {
        config.disable = readiness(input);
        config.enable = readiness(input);
        config.can_reset = input.coin();
    }
    config.io_queues = [8, 1, 2, 3][usize::from(bits >> 5 & 3)];
    config.cap = config.cap.with_mqes([1023, 1, 3, 15][usize::from(bits >> 6)]);
    config
}

fn readiness(input: &mut Input<'_>) -> Readiness {
    match input.byte() % 16 {
        15 => Readiness::Never,
        reads => Readiness::AfterReads(u32::from(reads)),
    }
}

/// Sets faults for the whole run.
fn plan(fake: &FakeDrive, input: &mut Input<'_>) {
    for _ in 0..input.byte() % 4 {
        inject(fake, input);
    }
}

fn inject(fake: &FakeDrive, input: &mut Input<'_>) {
    let fault = match input.byte() % 12 {
        0 | 1 => Fault::Lost,
        2 | 3 => Fault::Held,
        4 => Fault::Status(Status::from_bits(input.word())),
        5 => Fault::WrongPhase,
        6 => Fault::WrongCid(input.word()),
        7 => Fault::WrongSqid(input.word()),
        8 => Fault::Duplicate,
        9 => Fault::Fatal,
        10 => Fault::Gone,
        _ => Fault::WrongSqhd(input.word()),
    };
    let qid = input.pick(&[None, Some(0), Some(1), Some(2)]);
    let when = When {
        qid,
        opcode: None,
        skip: u32::from(input.byte() % 16),
        times: u32::from(1 + input.byte() % 3),
    };
    fake.inject(when, fault);
}
