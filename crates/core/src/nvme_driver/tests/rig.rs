//! A fake controller, a virtual clock, and the driver between them.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::block::{Completed, NvmeDevice};
use crate::dma::{Buffer, ChunkPool, CorePool, PoolConfig};
use crate::nvme_driver::fake::{Config, Fake};
use crate::nvme_driver::{
    BufferMaps, Controller, ControllerOptions, ControllerState, Io, IoKind, IoQueue, OpenError,
    Wait,
};

pub(in crate::nvme_driver) const MILLI: u64 = 1_000_000;
pub(in crate::nvme_driver) const SECOND: u64 = 1000 * MILLI;

/// A clock that advances when a caller waits.
#[derive(Debug, Default)]
pub(in crate::nvme_driver) struct VirtualTime(AtomicU64);

impl VirtualTime {
    pub(in crate::nvme_driver) fn pass(&self, nanos: u64) {
        self.0.fetch_add(nanos, Ordering::Relaxed);
    }
}

impl Wait for VirtualTime {
    fn now(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn wait(&self, _: &[BorrowedFd<'_>], nanos: u64) {
        self.pass(nanos.max(1));
    }
}

pub(in crate::nvme_driver) struct Rig {
    pub(in crate::nvme_driver) fake: Fake,
    pub(in crate::nvme_driver) time: Arc<VirtualTime>,
    pub(in crate::nvme_driver) controller: Arc<Controller>,
    pub(in crate::nvme_driver) pool: CorePool,
    pub(in crate::nvme_driver) maps: Arc<BufferMaps>,
}

pub(in crate::nvme_driver) fn options() -> ControllerOptions {
    ControllerOptions {
        io_queues: 2,
        queue_depth: 32,
        io_timeout: Duration::from_secs(8),
        admin_timeout: Duration::from_secs(10),
        absence: Duration::from_secs(2),
        ..ControllerOptions::default()
    }
}

pub(in crate::nvme_driver) fn shared_pool() -> Arc<ChunkPool> {
    ChunkPool::new(PoolConfig { cap: 32 << 20, ..PoolConfig::default() }).unwrap()
}

/// Opens a controller that must be refused; returns the error.
pub(in crate::nvme_driver) fn refused(config: Config) -> String {
    let fake = Fake::new(config);
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

pub(in crate::nvme_driver) fn open(
    fake: &Fake,
    options: ControllerOptions,
) -> Result<Arc<Controller>, OpenError> {
    Controller::open_stepped(fake.function(), options, Arc::new(VirtualTime::default()))
}

impl Rig {
    pub(in crate::nvme_driver) fn new(config: Config) -> Self {
        Self::with(config, options())
    }

    pub(in crate::nvme_driver) fn with(config: Config, options: ControllerOptions) -> Self {
        let fake = Fake::new(config);
        let time = Arc::new(VirtualTime::default());
        let wait: Arc<dyn Wait> = time.clone();
        let controller = Controller::open_stepped(fake.function(), options, wait).unwrap();
        let shared = shared_pool();
        let maps = Arc::new(BufferMaps::new(&shared));
        Self { fake, time, controller, pool: CorePool::new(&shared), maps }
    }

    pub(in crate::nvme_driver) fn device(&self, nsid: u32) -> NvmeDevice {
        NvmeDevice::new("d", Arc::clone(&self.controller), nsid, Arc::clone(&self.maps)).unwrap()
    }

    pub(in crate::nvme_driver) fn queue(&self) -> IoQueue {
        self.device(1).open_driver_queue(&self.pool).unwrap()
    }

    pub(in crate::nvme_driver) fn filled(&self, len: usize, byte: u8) -> Buffer {
        let mut buffer = self.pool.lease(len).unwrap();
        buffer.as_mut_slice().fill(byte);
        buffer
    }

    /// Advances time by `nanos`, in steps of at least 1 ms, while queue and supervisor run.
    pub(in crate::nvme_driver) fn pass(
        &self,
        queue: &mut IoQueue,
        nanos: u64,
        done: &mut Vec<Completed>,
    ) {
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
    pub(in crate::nvme_driver) fn finish(&self, queue: &mut IoQueue) -> Vec<Completed> {
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
    pub(in crate::nvme_driver) fn run(&self, queue: &mut IoQueue, io: Io) -> Completed {
        queue.submit(io).unwrap();
        let mut done = self.finish(queue);
        assert_eq!(done.len(), 1);
        done.remove(0)
    }

    /// Runs turns until the controller is live, or has failed.
    #[track_caller]
    pub(in crate::nvme_driver) fn settle(&self, queues: &mut [&mut IoQueue]) -> ControllerState {
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
    pub(in crate::nvme_driver) fn end(self) {
        let Self { fake, controller, pool, maps, .. } = self;
        assert_eq!(pool.leased(), 0, "every buffer is back");
        drop((controller, maps));
        fake.assert_clean();
        assert_eq!(fake.mappings(), [], "nothing stays mapped");
        assert!(!fake.is_running(), "the controller is left disabled");
    }
}

/// Returns true if a sleeper on the descriptor would wake.
pub(in crate::nvme_driver) fn is_readable(fd: BorrowedFd<'_>) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&now)).unwrap() == 1
}

pub(in crate::nvme_driver) fn io(kind: IoKind, offset: u64, len: u64) -> Io {
    Io { token: offset, kind, offset, len, buf: None }
}

pub(in crate::nvme_driver) fn read(offset: u64, buf: Buffer) -> Io {
    let len = buf.len() as u64;
    Io { token: offset, kind: IoKind::Read, offset, len, buf: Some(buf) }
}

pub(in crate::nvme_driver) fn write(offset: u64, buf: Buffer) -> Io {
    let len = buf.len() as u64;
    Io { token: offset, kind: IoKind::Write { fua: false }, offset, len, buf: Some(buf) }
}
