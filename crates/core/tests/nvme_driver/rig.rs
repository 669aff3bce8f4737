//! A fake drive, a virtual clock, and the driver between them.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use nvmeof_core::block::{Completed, NvmeDevice};
use nvmeof_core::dma::{Buffer, ChunkPool, CorePool, PoolConfig};
use nvmeof_core::nvme_driver::function::Function;
use nvmeof_core::nvme_driver::{
    BufferMaps, Controller, ControllerOptions, ControllerState, Io, IoKind, IoQueue, OpenError,
    Wait,
};
use nvmeof_fake_drive::{FakeDrive, FakeDriveConfig};

pub(crate) const MILLI: u64 = 1_000_000;
pub(crate) const SECOND: u64 = 1000 * MILLI;

/// A clock that advances when a caller waits. While it is stopped, callers wait until it resumes.
#[derive(Default)]
pub(crate) struct VirtualTime {
    now: AtomicU64,
    is_stopped: Mutex<bool>,
    resumed: Condvar,
    /// Callers that wait for it to resume.
    waiting: AtomicUsize,
    at_next_wait: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl VirtualTime {
    pub(crate) fn pass(&self, nanos: u64) {
        self.now.fetch_add(nanos, Ordering::Relaxed);
    }

    pub(crate) fn stop(&self) {
        *self.is_stopped.lock().unwrap() = true;
    }

    pub(crate) fn resume(&self) {
        *self.is_stopped.lock().unwrap() = false;
        self.resumed.notify_all();
    }

    /// Returns when `count` callers wait for the stopped clock.
    pub(crate) fn await_waiting(&self, count: usize) {
        while self.waiting.load(Ordering::Acquire) < count {
            std::thread::yield_now();
        }
    }

    /// Runs `act` once, when a caller waits next.
    pub(crate) fn at_next_wait(&self, act: impl FnOnce() + Send + 'static) {
        *self.at_next_wait.lock().unwrap() = Some(Box::new(act));
    }
}

impl Wait for VirtualTime {
    fn now(&self) -> u64 {
        self.now.load(Ordering::Relaxed)
    }

    fn wait(&self, _: &[BorrowedFd<'_>], nanos: u64) {
        let act = self.at_next_wait.lock().unwrap().take();
        if let Some(act) = act {
            act();
        }
        self.pass(nanos.max(1));
        let mut is_stopped = self.is_stopped.lock().unwrap();
        while *is_stopped {
            self.waiting.fetch_add(1, Ordering::AcqRel);
            is_stopped = self.resumed.wait(is_stopped).unwrap();
            self.waiting.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

impl fmt::Debug for VirtualTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VirtualTime").field("now", &self.now).finish_non_exhaustive()
    }
}

pub(crate) struct Rig {
    pub(crate) fake: FakeDrive,
    pub(crate) time: Arc<VirtualTime>,
    pub(crate) controller: Arc<Controller>,
    pub(crate) pool: CorePool,
    pub(crate) maps: Arc<BufferMaps>,
}

pub(crate) fn options() -> ControllerOptions {
    ControllerOptions {
        io_queues: 2,
        queue_depth: 32,
        io_timeout: Duration::from_secs(8),
        admin_timeout: Duration::from_secs(10),
        absence: Duration::from_secs(2),
        ..ControllerOptions::default()
    }
}

pub(crate) fn shared_pool() -> Arc<ChunkPool> {
    ChunkPool::new(PoolConfig { cap: 32 << 20, ..PoolConfig::default() }).unwrap()
}

/// Opens a controller that must be refused; returns the error.
pub(crate) fn refused(config: FakeDriveConfig) -> String {
    let fake = FakeDrive::new(config);
    let error = open(&fake, options()).unwrap_err();
    let (violations, faults) = fake.take_findings();
    assert!(faults.is_empty(), "{faults:?}");
    // An invalid controller may be refused after accesses that would be violations with a valid
    // one.
    let _ = violations;
    assert_eq!(fake.mappings(), [], "nothing stays mapped");
    assert!(!fake.is_running(), "it is left disabled");
    error.to_string()
}

pub(crate) fn open(
    fake: &FakeDrive,
    options: ControllerOptions,
) -> Result<Arc<Controller>, OpenError> {
    Controller::open_stepped(fake.function(), options, Arc::new(VirtualTime::default()))
}

impl Rig {
    pub(crate) fn new(config: FakeDriveConfig) -> Self {
        Self::with(config, options())
    }

    pub(crate) fn with(config: FakeDriveConfig, options: ControllerOptions) -> Self {
        let fake = FakeDrive::new(config);
        let function = fake.function();
        Self::on(fake, function, options)
    }

    /// Opens `function`, which is that of `fake` or stands before it.
    pub(crate) fn on(
        fake: FakeDrive,
        function: Arc<dyn Function>,
        options: ControllerOptions,
    ) -> Self {
        let time = Arc::new(VirtualTime::default());
        let wait: Arc<dyn Wait> = time.clone();
        let controller = Controller::open_stepped(function, options, wait).unwrap();
        let shared = shared_pool();
        let maps = Arc::new(BufferMaps::new(&shared));
        Self { fake, time, controller, pool: CorePool::new(&shared), maps }
    }

    pub(crate) fn device(&self, nsid: u32) -> NvmeDevice {
        NvmeDevice::new("d", Arc::clone(&self.controller), nsid, Arc::clone(&self.maps)).unwrap()
    }

    pub(crate) fn queue(&self) -> IoQueue {
        self.device(1).open_driver_queue(&self.pool).unwrap()
    }

    pub(crate) fn filled(&self, len: usize, byte: u8) -> Buffer {
        let mut buffer = self.pool.lease(len).unwrap();
        buffer.as_mut_slice().fill(byte);
        buffer
    }

    /// Advances time by `nanos`, in steps of at least 1 ms, while queue and supervisor run.
    pub(crate) fn pass(&self, queue: &mut IoQueue, nanos: u64, done: &mut Vec<Completed>) {
        let step = (nanos / 100).max(MILLI);
        let end = self.time.now() + nanos;
        while self.time.now() < end {
            queue.poll(done);
            self.controller.turn();
            self.time.pass(step);
        }
        queue.poll(done);
    }

    /// Polls until nothing is in flight, while time advances.
    #[track_caller]
    pub(crate) fn finish(&self, queue: &mut IoQueue) -> Vec<Completed> {
        let mut done = Vec::new();
        for _ in 0..100_000 {
            queue.poll(&mut done);
            if queue.in_flight() == 0 {
                return done;
            }
            self.controller.turn();
            self.time.pass(10 * MILLI);
        }
        panic!("operations do not end: {queue:?}");
    }

    /// Runs one operation.
    #[track_caller]
    pub(crate) fn run(&self, queue: &mut IoQueue, io: Io) -> Completed {
        queue.submit(io).unwrap();
        let mut done = self.finish(queue);
        assert_eq!(done.len(), 1);
        done.remove(0)
    }

    /// Runs turns until the controller is live, or has failed.
    #[track_caller]
    pub(crate) fn settle(&self, queues: &mut [&mut IoQueue]) -> ControllerState {
        let mut done = Vec::new();
        for _ in 0..10_000 {
            self.controller.turn();
            for queue in queues.iter_mut() {
                queue.poll(&mut done);
            }
            match self.controller.state() {
                ControllerState::Resetting => self.time.pass(10 * MILLI),
                state => return state,
            }
        }
        panic!("the controller does not settle");
    }

    /// Drops everything, and checks that nothing is left and no rule was violated.
    #[track_caller]
    pub(crate) fn end(self) {
        let Self { fake, controller, pool, maps, .. } = self;
        assert_eq!(pool.leased(), 0, "every buffer is back");
        drop((controller, maps));
        fake.assert_clean();
        assert_eq!(fake.mappings(), [], "nothing stays mapped");
        assert!(!fake.is_running(), "the controller is left disabled");
    }
}

/// Returns true if a sleeper on the descriptor would wake.
pub(crate) fn is_readable(fd: impl AsFd) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&now)).unwrap() == 1
}

pub(crate) fn io(kind: IoKind, offset: u64, len: u64) -> Io {
    Io { token: offset, kind, offset, len, buf: None }
}

pub(crate) fn read(offset: u64, buf: Buffer) -> Io {
    let len = buf.len() as u64;
    Io { token: offset, kind: IoKind::Read, offset, len, buf: Some(buf) }
}

pub(crate) fn write(offset: u64, buf: Buffer) -> Io {
    let len = buf.len() as u64;
    Io { token: offset, kind: IoKind::Write { fua: false }, offset, len, buf: Some(buf) }
}
