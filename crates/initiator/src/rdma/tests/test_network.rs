//! A host and a controller in memory and virtual time.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use nvmeof_fake_target::{ActionScript, FakeAction, FakeTargetOptions, FakeTargetState};
use nvmeof_loopback_verbs::{DeviceOptions, Fabric, LoopbackDevice, LoopbackTicket};
use nvmeof_verbs::VerbsError;

use super::peer::TestPeer;
use crate::fabric::QueueSpec;
use crate::rdma::RouteResolver;
use crate::rdma::queue::RdmaQueuePair;
use crate::{Buffer, CompletedCommand, Endpoint, Error, Io, IoKind, IoQueue, Nanos};

/// Timeout of commands.
pub(super) const TIMEOUT: Nanos = 1_000_000_000;
const AT: &str = "192.0.2.1:4420";

/// Prints the seed of a failing test.
pub(super) struct SeedPrinter(pub(super) u64);

impl Drop for SeedPrinter {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("seed {}", self.0);
        }
    }
}

#[derive(Clone)]
pub(super) struct TestNetwork(Arc<Inner>);

struct Inner {
    fabric: Fabric,
    host: Arc<LoopbackDevice>,
    peer: Mutex<TestPeer>,
}

impl std::fmt::Debug for TestNetwork {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("TestNetwork").field(&self.0.host).finish()
    }
}

impl RouteResolver for TestNetwork {
    type Device = LoopbackDevice;

    fn resolve(&self, to: SocketAddr, _: Duration) -> Result<LoopbackTicket, VerbsError> {
        Ok(self.0.fabric.route(&self.0.host, to))
    }

    fn wait(&self, _: &[std::os::fd::BorrowedFd<'_>], _: Duration) {
        self.turn();
    }
}

impl TestNetwork {
    pub(super) fn new(seed: u64) -> Self {
        Self::with(
            seed,
            DeviceOptions::default(),
            FakeTargetOptions::default(),
            Box::new(|_, _| FakeAction::Serve),
        )
    }

    pub(super) fn with(
        seed: u64,
        host: DeviceOptions,
        target_options: FakeTargetOptions,
        script: ActionScript,
    ) -> Self {
        let fabric = Fabric::new(seed);
        let target = FakeTargetState::new(target_options, script);
        let peer = Mutex::new(TestPeer::new(&fabric, target, AT.parse().unwrap()));
        let host = fabric.device_with("host", host);
        Self(Arc::new(Inner { fabric, host, peer }))
    }

    pub(super) fn fabric(&self) -> &Fabric {
        &self.0.fabric
    }

    pub(super) fn host(&self) -> &Arc<LoopbackDevice> {
        &self.0.host
    }

    pub(super) fn peer(&self) -> MutexGuard<'_, TestPeer> {
        self.0.peer.lock().unwrap()
    }

    pub(super) fn endpoint(&self) -> Endpoint {
        format!("rdma://{AT}/{}", self.peer().target.options.subnqn).parse().unwrap()
    }

    /// Processes all pending events.
    pub(super) fn turn(&self) {
        self.0.fabric.settle();
        self.peer().step();
        self.0.fabric.settle();
    }

    /// Returns a queue for `depth` commands, without a controller, and the number of its queue
    /// pair.
    pub(super) fn queue(&self, depth: u16) -> Result<(IoQueue, u32), Error> {
        let (in_capsule, offset) = {
            let peer = self.peer();
            (peer.target.options.in_capsule, u32::from(peer.target.options.icdoff) * 16)
        };
        let spec = QueueSpec {
            qid: 1,
            cntlid: Some(7),
            depth,
            in_capsule,
            in_capsule_offset: offset,
            timeout: Duration::from_secs(20),
        };
        let resolver = Arc::new(self.clone());
        let mut qp = RdmaQueuePair::connect(resolver, AT.parse().unwrap(), &spec)?;
        let number = qp.number();
        self.turn();
        Ok((IoQueue::new(Box::new(qp), 1, depth, TIMEOUT), number))
    }

    /// Polls until `count` commands have completed, all at time 0.
    pub(super) fn complete(
        &self,
        queue: &mut IoQueue,
        count: usize,
    ) -> Result<Vec<CompletedCommand>, (Error, Vec<CompletedCommand>)> {
        let mut done = Vec::new();
        for _ in 0..1000 {
            if let Err(error) = queue.flush().and_then(|()| queue.poll(0, &mut done)) {
                // After a failed flush, the rest ends with the next poll.
                let _ = queue.poll(0, &mut done);
                return Err((error, done));
            }
            if done.len() >= count {
                return Ok(done);
            }
            queue.wait(Duration::ZERO);
        }
        panic!("{} of {count} commands complete", done.len());
    }

    pub(super) fn one(&self, queue: &mut IoQueue, io: Io) -> CompletedCommand {
        queue.submit(io, 0).unwrap();
        self.complete(queue, 1).unwrap().pop().unwrap()
    }

    /// Asserts that nothing is left after everything was dropped.
    pub(super) fn is_clean(&self) {
        for _ in 0..4 {
            self.turn();
        }
        let counters = self.0.fabric.counters();
        let left = (
            counters.endpoints,
            counters.completion_queues,
            counters.regions,
            counters.tickets,
            counters.misuses,
        );
        assert_eq!(left, (0, 0, 0, 0, 0), "endpoints, queues, regions, tickets, misuses");
    }
}

pub(super) fn io(token: u64, slba: u64, blocks: u32, kind: IoKind) -> Io {
    Io { token, nsid: 1, slba, blocks, kind }
}

/// Returns bytes that are not all equal.
pub(super) fn data(len: usize, salt: u64) -> Vec<u8> {
    (0..len as u64).map(|at| (at * 13 + at / 256 + salt).to_le_bytes()[0]).collect()
}

pub(super) fn write(token: u64, slba: u64, bytes: &[u8]) -> Io {
    let blocks = u32::try_from(bytes.len() / 512).unwrap();
    io(token, slba, blocks, IoKind::Write { data: Buffer::from(bytes), fua: false })
}

pub(super) fn compare(token: u64, slba: u64, bytes: &[u8]) -> Io {
    let blocks = u32::try_from(bytes.len() / 512).unwrap();
    io(token, slba, blocks, IoKind::Compare(Buffer::from(bytes)))
}

pub(super) fn read(token: u64, slba: u64, len: usize) -> Io {
    let blocks = u32::try_from(len / 512).unwrap();
    io(token, slba, blocks, IoKind::Read(Buffer::zeroed(len)))
}
