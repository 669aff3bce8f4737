//! Both ends of NVMe/RDMA from this workspace: the initiator against the target's queues over the
//! provider in memory.
//!
//! The initiator's test target executes the commands. The transport of commands and data is the
//! real code of both sides.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nvmeof_core::dma::{
    Buffer as Memory, ChunkPool, CorePool, MemoryRegistrar, Payload, PoolConfig,
};
use nvmeof_fake_target::{FakeAction, FakeResponse, FakeSession, FakeTargetOptions};
use nvmeof_initiator::rdma::RouteResolver;
use nvmeof_initiator::{
    Buffer, CommandError, CompletedCommand, ConnectOptions, Controller, Io, IoKind, IoQueue,
};
use nvmeof_loopback_verbs::{
    Costs, DeviceOptions, Fabric, LoopbackDevice, LoopbackListener, LoopbackTicket,
};
use nvmeof_transport::queue::{
    Connected, DetachedQueue, Event, FabricOp, HostQueue, PollGroup, ReactorResources,
};
use nvmeof_transport::rdma::{Limits, RdmaParams, Registration, admit};
use nvmeof_verbs::VerbsError;
use nvmeof_wire::fabrics::Connect;
use nvmeof_wire::opcode::FabricsType;
use nvmeof_wire::{Cqe, Sgl, Sqe, Status};

const GUARD: Duration = Duration::from_secs(120);
const BLOCK: usize = 512;

/// Routes from the host's device.
#[derive(Debug, Clone)]
struct Ways {
    fabric: Fabric,
    host: Arc<LoopbackDevice>,
}

impl RouteResolver for Ways {
    type Device = LoopbackDevice;

    fn resolve(&self, to: SocketAddr, _: Duration) -> Result<LoopbackTicket, VerbsError> {
        Ok(self.fabric.route(&self.host, to))
    }
}

/// A target in its own thread, which also advances the fabric's time.
struct Target {
    fabric: Fabric,
    host: Arc<LoopbackDevice>,
    address: SocketAddr,
    target_options: FakeTargetOptions,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Target {
    fn start(seed: u64, inline: u32, params: RdmaParams) -> Self {
        let fabric = Fabric::new(seed);
        let options = DeviceOptions { inline, ..DeviceOptions::default() };
        let device = fabric.device_with("target", options);
        let host = fabric.device_with("host", options);
        let address = SocketAddr::new(device.address(), 4420);
        let target_options =
            FakeTargetOptions { in_capsule: params.in_capsule, ..FakeTargetOptions::default() };
        let stop = Arc::new(AtomicBool::new(false));
        let listener = fabric.listen(&device, address).expect("an address");
        let (shared, clock, own) = (Arc::clone(&stop), fabric.clone(), target_options.clone());
        let thread = std::thread::spawn(move || {
            let mut reactor = Reactor::new(&device, listener, own, params);
            while !shared.load(Ordering::SeqCst) {
                clock.settle();
                // The reactor polls connection events only at intervals of that time.
                clock.advance(20_000);
                if !reactor.turn(clock.now()) {
                    std::thread::sleep(Duration::from_micros(50));
                }
            }
            reactor.finish(&clock);
        });
        Self { fabric, host, address, target_options, stop, thread: Some(thread) }
    }

    fn connect(&self, depth: u16) -> Controller {
        let endpoint = format!("rdma://{}/{}", self.address, self.target_options.subnqn);
        let ways = Ways { fabric: self.fabric.clone(), host: Arc::clone(&self.host) };
        let options = ConnectOptions { depth, queues: 4, ..ConnectOptions::default() };
        Controller::connect_by(&endpoint.parse().expect("an endpoint"), &options, ways)
            .expect("a controller")
    }

    /// Ends it, and checks that nothing is left.
    fn check_empty(mut self) {
        self.stop.store(true, Ordering::SeqCst);
        self.thread.take().expect("once").join().expect("the target's thread");
        let counters = self.fabric.counters();
        assert_eq!((counters.endpoints, counters.completion_queues), (0, 0), "{counters:?}");
        assert_eq!((counters.regions, counters.tickets), (0, 0), "{counters:?}");
        assert_eq!((counters.shared_queues, counters.misuses), (0, 0), "{counters:?}");
    }
}

/// A minimal reactor.
struct Reactor {
    queues: Vec<Served>,
    sources: PollGroup,
    registration: Arc<Registration<LoopbackDevice>>,
    pool: CorePool,
    shared: Arc<ChunkPool>,
    listener: LoopbackListener,
    params: RdmaParams,
    first: FakeSession,
}

struct Served {
    queue: Box<dyn HostQueue>,
    session: FakeSession,
    /// Commands whose data is being pulled, by token.
    pulls: BTreeMap<u64, Sqe>,
    /// Number of responses whose data is being sent.
    pushes: usize,
    next: u64,
    is_over: bool,
}

impl Reactor {
    fn new(
        device: &Arc<LoopbackDevice>,
        listener: LoopbackListener,
        target_options: FakeTargetOptions,
        params: RdmaParams,
    ) -> Self {
        let config =
            PoolConfig { cap: 64 << 20, reserve: 64 << 20, huge_pages: false, max_lease: 2 << 20 };
        let shared = ChunkPool::new(config).expect("a pool");
        let registration = Registration::without_threads(device, &shared).expect("a registration");
        Self {
            queues: Vec::new(),
            sources: PollGroup::default(),
            registration,
            pool: CorePool::new(&shared),
            shared,
            listener,
            params,
            first: FakeSession::start(target_options),
        }
    }

    /// Runs one turn; returns whether there was work.
    fn turn(&mut self, now: u64) -> bool {
        while let Some(ticket) = self.listener.next_ticket() {
            self.take(ticket);
        }
        self.registration.cm_worker().run();
        let mut ready = Vec::new();
        for one in self.sources.iter_mut() {
            one.source.poll(now, &mut ready);
        }
        for served in &mut self.queues {
            served.turn(now, &self.pool);
        }
        self.queues.retain(|served| !served.is_over);
        self.sources.drop_unused(|_| ());
        !ready.is_empty()
    }

    fn take(&mut self, ticket: LoopbackTicket) {
        let known = |_| true;
        let limits = Limits { max_qid: 16, has_controller: &known, may_add_queue: &known };
        let parked =
            admit(ticket, &self.registration, self.params, &limits).expect("a good request");
        let session = self.first.another(parked.qid());
        let mut home = ReactorResources { pool: &self.pool, sources: &mut self.sources };
        let mut queue = Box::new(parked).attach(&mut home).expect("a queue");
        queue.bind(self.queues.len() as u64);
        let pulls = BTreeMap::new();
        self.queues.push(Served { queue, session, pulls, pushes: 0, next: 0, is_over: false });
    }

    /// Waits until every host has disconnected, and checks that nothing is left.
    fn finish(mut self, clock: &Fabric) {
        let begin = Instant::now();
        while !self.queues.is_empty() {
            assert!(begin.elapsed() < GUARD, "{} queues do not end", self.queues.len());
            clock.settle();
            clock.advance(1_000_000);
            self.turn(clock.now());
        }
        self.turn(clock.now());
        assert!(self.sources.is_empty(), "a completion queue is left");
        self.registration.cm_worker().run();
        assert_eq!(self.pool.leased(), 0, "buffers are left");
        self.pool.clear();
        let registrar: Arc<dyn MemoryRegistrar> = self.registration.clone();
        self.shared.remove_registrar(&registrar);
    }
}

impl Served {
    fn turn(&mut self, now: u64, pool: &CorePool) {
        let mut events = Vec::new();
        self.queue.receive(now, &mut events);
        self.queue.flush(&mut { usize::MAX }, now, &mut events);
        for event in events {
            self.event(event, pool);
        }
        let mut events = Vec::new();
        self.queue.flush(&mut { usize::MAX }, now, &mut events);
        for event in events {
            self.event(event, pool);
        }
    }

    fn event(&mut self, event: Event, pool: &CorePool) {
        match event {
            Event::Command { sqe, data } => self.command(sqe, data, pool),
            Event::HostDataArrived { token, buf, result } => {
                let sqe = self.pulls.remove(&token).expect("a pull of ours");
                if result.is_ok() {
                    self.perform(&sqe, buf.as_slice(), pool);
                }
            }
            Event::Sent { .. } => self.pushes -= 1,
            Event::RegisterFd => {}
            Event::CommandFailed { sqe, error } => panic!("{error}: {sqe:?}"),
            Event::Closed { .. } => {
                assert!(self.pulls.is_empty() && self.pushes == 0, "not all was given back");
                self.is_over = true;
            }
        }
    }

    fn command(&mut self, sqe: Sqe, data: Option<Memory>, pool: &CorePool) {
        if let Some(data) = data {
            return self.perform(&sqe, data.as_slice(), pool);
        }
        let code = if sqe.is_fabrics() { sqe.fctype().0 } else { sqe.opcode };
        let (sgl, cid) = (sqe.dptr.parse(), sqe.cid.get());
        if code & 3 != 1 || sgl.length() == 0 {
            return self.perform(&sqe, &[], pool);
        }
        let buf = pool.lease(sgl.length() as usize).expect("memory");
        let token = self.next;
        self.next += 1;
        if self.queue.submit(FabricOp::FetchHostData { token, cid, sgl, buf }).is_ok() {
            self.pulls.insert(token, sqe);
        }
    }

    fn perform(&mut self, sqe: &Sqe, data: &[u8], pool: &CorePool) {
        let bare = |status| FakeResponse { status, result: 0, data: Vec::new() };
        let answer = if self.session.is_admin(sqe) {
            self.session.admin(sqe, data)
        } else {
            let checked = self.session.check(sqe);
            checked.map_or_else(bare, |()| self.session.io(sqe, FakeAction::Serve, data))
        };
        if sqe.is_fabrics() && sqe.fctype() == FabricsType::CONNECT && answer.status.is_success() {
            let connect = Connect::parse(sqe).expect("a Connect command");
            let depth = u16::try_from(connect.entries).expect("a small queue");
            self.queue.connected(Connected { admin: connect.qid == 0, depth });
        }
        let cqe = Cqe::new(sqe.cid.get(), answer.status).with_result(answer.result);
        let (sgl, data) = if answer.data.is_empty() {
            (Sgl::Transport { length: 0 }, None)
        } else {
            let mut memory = pool.lease(answer.data.len()).expect("memory");
            memory.as_mut_slice().copy_from_slice(&answer.data);
            (sqe.dptr.parse(), Some(Payload::Buffer(memory)))
        };
        let (token, pushes) = (self.next, usize::from(data.is_some()));
        self.next += 1;
        let op = FabricOp::Respond { token, cqe, sgl, data, elidable: false };
        // Rejected after the host has disconnected.
        if self.queue.submit(op).is_ok() {
            self.pushes += pushes;
        }
    }
}

fn bytes(len: usize, salt: u64) -> Vec<u8> {
    (0..len as u64).map(|at| (at * 31 + at / 255 + salt * 7).to_le_bytes()[0]).collect()
}

fn io(token: u64, slba: u64, len: usize, kind: IoKind) -> Io {
    Io { token, nsid: 1, slba, blocks: u32::try_from(len / BLOCK).expect("small"), kind }
}

/// Runs `ios` to their end, as many concurrently as the queue allows.
fn execute(
    controller: &mut Controller,
    queue: &mut IoQueue,
    ios: Vec<Io>,
) -> Vec<CompletedCommand> {
    let (clock, count) = (controller.clock(), ios.len());
    let begin = Instant::now();
    let (mut waiting, mut done) = (ios.into_iter(), Vec::new());
    while done.len() < count {
        assert!(begin.elapsed() < GUARD, "{} of {count} complete", done.len());
        while queue.in_flight() < usize::from(queue.depth())
            && let Some(io) = waiting.next()
        {
            queue.submit(io, clock.now()).expect("room");
        }
        queue.flush().expect("the connection");
        let before = done.len();
        queue.poll(clock.now(), &mut done).expect("the connection");
        if done.len() == before {
            queue.wait(Duration::from_millis(10));
        }
        controller.poll().expect("the admin queue");
    }
    done
}

fn serve_everything(seed: u64, inline: u32, params: RdmaParams) {
    let target = Target::start(seed, inline, params);
    let mut controller = target.connect(24);
    assert_eq!(controller.info().in_capsule, params.in_capsule);
    let mut queues =
        [controller.open_queue().expect("a queue"), controller.open_queue().expect("a queue")];
    for len in [512, 4096, 8192, 16_384, 131_072] {
        let count = (2_000_000 / len as u64).min(60);
        let places = 4096 * BLOCK as u64 / len as u64;
        let slba = |token: u64| token % places * (len / BLOCK) as u64;
        let count = count.min(places);
        for queue in &mut queues {
            let qid = u64::from(queue.qid());
            let salt = |token: u64| token + len as u64 + qid;
            let write = |token| {
                let data = Buffer::from(&bytes(len, salt(token))[..]);
                io(token, slba(token), len, IoKind::Write { data, fua: false })
            };
            let writes = (0..count).map(write).collect();
            for completed in execute(&mut controller, queue, writes) {
                assert_eq!(completed.result, Ok(0), "seed {seed}: write of {len}");
            }
            let read = |token| io(token, slba(token), len, IoKind::Read(Buffer::zeroed(len)));
            let reads = (0..count).map(read).collect();
            for completed in execute(&mut controller, queue, reads) {
                assert_eq!(completed.result, Ok(0), "seed {seed}: read of {len}");
                let wanted = bytes(len, salt(completed.token));
                let got = completed.buffer.expect("a buffer");
                assert!(got.as_slice() == wanted, "seed {seed}: read of {len}");
            }
            let same = Buffer::from(&bytes(len, salt(0))[..]);
            let other = Buffer::from(&bytes(len, salt(1))[..]);
            let compare =
                [io(0, 0, len, IoKind::Compare(same)), io(1, 0, len, IoKind::Compare(other))];
            for completed in execute(&mut controller, queue, compare.into()) {
                match (completed.token, completed.result) {
                    (0, Ok(0)) => {}
                    (1, Err(CommandError::Status { status, .. })) => {
                        assert_eq!(status.code(), Status::COMPARE_FAILURE, "seed {seed}");
                    }
                    other => panic!("seed {seed}: {other:?}"),
                }
            }
        }
    }
    drop(queues);
    controller.disconnect().expect("an orderly end");
    target.check_empty();
}

#[test]
fn commands_and_data_travel_both_ways() {
    let own = RdmaParams::default();
    let shared = RdmaParams { shared_receives: 256, ..own };
    let bare = RdmaParams { in_capsule: 0, ..own };
    for (seed, inline, params) in [(1, 128, own), (2, 0, shared), (3, 64, bare)] {
        serve_everything(seed, inline, params);
    }
}

#[test]
fn a_host_that_vanishes_amid_everything_leaves_nothing() {
    for seed in 0..40 {
        let target = Target::start(seed, 128, RdmaParams::default());
        // Slow enough that many commands are in flight.
        target.fabric.set_costs(Costs { bytes_per_microsecond: 100, ..Costs::default() });
        let mut controller = target.connect(16);
        let mut queue = controller.open_queue().expect("a queue");
        let (clock, mut done) = (controller.clock(), Vec::new());
        for token in 0..16 {
            let len = BLOCK << ((token + seed) % 9);
            let kind = if (token + seed) % 2 == 0 {
                IoKind::Read(Buffer::zeroed(len))
            } else {
                IoKind::Write { data: Buffer::from(&bytes(len, token)[..]), fua: false }
            };
            queue.submit(io(token, 0, len, kind), clock.now()).expect("room");
        }
        queue.flush().expect("the connection");
        while done.len() < usize::try_from(seed % 12).expect("small") {
            queue.poll(clock.now(), &mut done).expect("the connection");
            queue.wait(Duration::from_millis(10));
        }
        drop((queue, controller, done));
        target.check_empty();
    }
}
