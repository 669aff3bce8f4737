//! Both ends in memory: a scripted host, and a miniature reactor that counts operations in both
//! directions.

mod basic;
mod cm_worker;
mod cost;
mod faults;
mod host;
mod instant;
mod lists;
mod memory;
mod random;
mod srq;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use nvmeof_core::dma::{
    Buffer, ChunkPool, CorePool, MemoryRegistrar, Payload, PoolConfig, ZeroCopyRegion,
    ZeroCopySource,
};
use nvmeof_loopback_verbs::{
    DeviceOptions, Fabric, LoopbackDevice, LoopbackListener, LoopbackTicket,
};
use nvmeof_verbs::DeviceLimits;
use nvmeof_wire::rdma::Request;
use nvmeof_wire::zerocopy::IntoBytes;
use nvmeof_wire::{Cqe, Sgl, Sqe};

use self::host::Host;
use super::*;
use crate::queue::{
    CloseReason, CompletionSource, Connected, DetachedQueue, Event, FabricError, FabricOp,
    HostQueue, PollGroup, ReactorResources, Rejected, TransportError,
};

/// A target of one reactor, and its events.
struct World {
    fabric: Fabric,
    /// Dropped before the pool.
    queues: Vec<Connection>,
    sources: PollGroup,
    target_device: Arc<LoopbackDevice>,
    host_device: Arc<LoopbackDevice>,
    listener: LoopbackListener,
    address: SocketAddr,
    registration: Arc<Registration<LoopbackDevice>>,
    pool: CorePool,
    shared: Arc<ChunkPool>,
    params: RdmaParams,
    ready: Vec<u64>,
}

/// One queue of the target.
#[derive(Debug, Default)]
struct Connection {
    queue: Option<Box<dyn HostQueue>>,
    commands: Vec<(Sqe, Option<Buffer>)>,
    failed: Vec<(Sqe, FabricError)>,
    /// Operations in the queue, and those it returned.
    held: BTreeMap<u64, &'static str>,
    pulled: Vec<(u64, Result<(), FabricError>, Vec<u8>)>,
    sent: Vec<u64>,
    closed: Option<CloseReason>,
    next_token: u64,
}

/// Parameters of a world.
struct Setup {
    seed: u64,
    limits: DeviceLimits,
    inline: u32,
    params: RdmaParams,
    tells_last_receive: bool,
    fetches_ahead: bool,
}

impl Default for Setup {
    fn default() -> Self {
        let options = DeviceOptions::default();
        Self {
            seed: 1,
            limits: options.limits,
            inline: 128,
            params: RdmaParams::default(),
            tells_last_receive: true,
            fetches_ahead: false,
        }
    }
}

impl Setup {
    fn world(self) -> World {
        let fabric = Fabric::new(self.seed);
        let options = DeviceOptions {
            limits: self.limits,
            inline: self.inline,
            tells_last_receive: self.tells_last_receive,
            fetches_ahead: self.fetches_ahead,
            ..DeviceOptions::default()
        };
        let target_device = fabric.device_with("target", options);
        let host_device = fabric.device("host");
        let address = SocketAddr::new(target_device.address(), 4420);
        let listener = fabric.listen(&target_device, address).unwrap();
        let config =
            PoolConfig { cap: 64 << 20, reserve: 64 << 20, huge_pages: false, max_lease: 2 << 20 };
        let shared = ChunkPool::new(config).unwrap();
        let registration = Registration::without_threads(&target_device, &shared).unwrap();
        World {
            pool: CorePool::new(&shared),
            fabric,
            queues: Vec::new(),
            sources: PollGroup::default(),
            target_device,
            host_device,
            listener,
            address,
            registration,
            shared,
            params: self.params,
            ready: Vec::new(),
        }
    }
}

fn world() -> World {
    Setup::default().world()
}

impl World {
    /// Sends a host's request, up to a ticket.
    fn ask(&mut self, qid: u16, depth: u32) -> Host {
        let receives = u16::try_from(depth).unwrap();
        let request = Request { qid, host_receives: receives, entries: depth, cntlid: None };
        let host = Host::ask(self, request.encode().as_bytes(), 16, depth);
        self.fabric.settle();
        host
    }

    /// Accepts the waiting request, up to the queue.
    fn take(&mut self) -> Result<usize, TransportError> {
        let ticket = self.listener.next_ticket().unwrap();
        self.take_ticket(ticket)
    }

    fn take_ticket(&mut self, ticket: LoopbackTicket) -> Result<usize, TransportError> {
        let known = |_| true;
        let limits = Limits { max_qid: 64, has_controller: &known, may_add_queue: &|_| true };
        let parked = admit(ticket, &self.registration, self.params, &limits).unwrap();
        let mut home = ReactorResources { pool: &self.pool, sources: &mut self.sources };
        let mut queue = Box::new(parked).attach(&mut home)?;
        let at = self.queues.len();
        queue.bind(at as u64);
        self.queues.push(Connection { queue: Some(queue), ..Connection::default() });
        Ok(at)
    }

    /// Connects an I/O queue.
    fn connect(&mut self, depth: u32) -> (usize, Host) {
        let mut host = self.ask(1, depth);
        let at = self.take().unwrap();
        self.settle(&mut [&mut host]);
        let depth = u16::try_from(depth).unwrap();
        let queue = self.queues[at].queue.as_mut().unwrap();
        queue.connected(Connected { admin: false, depth });
        (at, host)
    }

    /// Runs one turn of the target.
    fn turn(&mut self) {
        self.registration.cm_worker().run();
        self.turn_alone();
    }

    /// Runs one turn while the CM worker does nothing.
    fn turn_alone(&mut self) {
        let now = self.fabric.now();
        for one in self.sources.iter_mut() {
            one.source.poll(now, &mut self.ready);
        }
        self.ready.clear();
        for connection in &mut self.queues {
            connection.turn(now);
        }
    }

    /// Runs until nothing more happens.
    fn settle(&mut self, hosts: &mut [&mut Host]) {
        for _ in 0..20 {
            self.fabric.settle();
            // Queues check for connection events only at intervals.
            self.fabric.advance(20_000);
            self.turn();
            hosts.iter_mut().for_each(|host| host.turn());
        }
    }

    /// Returns the only source.
    fn source(&mut self) -> &mut CqPoller<LoopbackDevice> {
        self.sources.find(|_| true).unwrap()
    }

    /// Returns the number of the newest queue's endpoint.
    fn number(&mut self) -> u32 {
        *self.source().numbers().last().unwrap()
    }

    fn buffer(&self, bytes: &[u8]) -> Buffer {
        let mut buffer = self.pool.lease(bytes.len()).unwrap();
        buffer.as_mut_slice().copy_from_slice(bytes);
        buffer
    }

    /// Ends everything and checks that nothing is left.
    #[track_caller]
    fn check_empty(mut self, hosts: Vec<Host>) {
        for connection in &mut self.queues {
            if let Some(queue) = &mut connection.queue {
                queue.close(CloseReason::Shutdown);
            }
        }
        let mut hosts = hosts;
        for _ in 0..3 {
            self.settle(&mut hosts.iter_mut().collect::<Vec<_>>());
            self.fabric.advance(self.params.drain_timeout);
        }
        for connection in &self.queues {
            assert!(connection.closed.is_some(), "a queue does not end");
            assert!(connection.held.is_empty(), "not given back: {:?}", connection.held);
        }
        self.queues.clear();
        drop(hosts);
        self.sources.drop_unused(|_| ());
        assert!(self.sources.is_empty(), "a source is left");
        self.registration.cm_worker().run();
        assert!(self.registration.cm_worker().is_idle(), "the CM worker has something left to do");
        assert_eq!(self.pool.leased(), 0, "buffers are left");
        self.pool.clear();
        assert_eq!(self.pool.held(), 0, "memory is left");
        let registrar: Arc<dyn MemoryRegistrar> = self.registration.clone();
        self.shared.remove_registrar(&registrar);
        assert_eq!(self.registration.regions(), 0, "regions are left");
        drop((registrar, self.registration));
        let counters = self.fabric.counters();
        assert_eq!((counters.endpoints, counters.completion_queues), (0, 0));
        assert_eq!((counters.shared_queues, counters.regions), (0, 0));
        assert_eq!((counters.tickets, counters.misuses), (0, 0), "{counters:?}");
        assert_eq!(counters.receives_lost, 0, "a queue pair was taken away too early");
    }
}

impl Connection {
    fn turn(&mut self, now: u64) {
        let Some(queue) = &mut self.queue else { return };
        let mut events = Vec::new();
        while queue.receive(now, &mut events) == crate::queue::Progress::More {}
        queue.flush(&mut { usize::MAX }, now, &mut events);
        for event in events {
            self.take(event);
        }
        if self.closed.is_some() {
            self.queue = None;
        }
    }

    fn take(&mut self, event: Event) {
        assert!(self.closed.is_none(), "{event:?} after the end");
        match event {
            Event::Command { sqe, data } => self.commands.push((sqe, data)),
            Event::CommandFailed { sqe, error } => self.failed.push((sqe, error)),
            Event::HostDataArrived { token, buf, result } => {
                assert_eq!(self.held.remove(&token), Some("pull"), "token {token}");
                self.pulled.push((token, result, buf.as_slice().to_vec()));
            }
            Event::Sent { token, data } => {
                assert_eq!(self.held.remove(&token), Some("data"), "token {token}");
                assert!(data.is_some());
                self.sent.push(token);
            }
            Event::RegisterFd => assert!(self.queue.as_ref().unwrap().fd().is_some()),
            Event::Closed { reason } => self.closed = Some(reason),
        }
    }

    fn submit(&mut self, op: FabricOp) -> Result<(), Rejected> {
        let token = match &op {
            FabricOp::FetchHostData { token, .. } => Some((*token, "pull")),
            FabricOp::Respond { token, data: Some(_), .. } => Some((*token, "data")),
            FabricOp::Respond { .. } => None,
        };
        self.queue.as_mut().unwrap().submit(op)?;
        if let Some((token, what)) = token {
            assert_eq!(self.held.insert(token, what), None, "a token twice");
        }
        Ok(())
    }

    fn token(&mut self) -> u64 {
        self.next_token += 1;
        self.next_token
    }

    fn pull(&mut self, sqe: &Sqe, buf: Buffer) -> u64 {
        let token = self.token();
        let (cid, sgl) = (sqe.cid.get(), sqe.dptr.parse());
        self.submit(FabricOp::FetchHostData { token, cid, sgl, buf }).unwrap();
        token
    }

    fn answer(&mut self, sqe: &Sqe, data: Option<Buffer>) -> u64 {
        self.answer_with(sqe, data.map(Payload::Buffer))
    }

    fn answer_with(&mut self, sqe: &Sqe, data: Option<Payload>) -> u64 {
        let token = self.token();
        let sgl = match data {
            Some(_) => sqe.dptr.parse(),
            None => Sgl::Transport { length: 0 },
        };
        let cqe = Cqe::success(sqe.cid.get(), 0);
        self.submit(FabricOp::Respond { token, cqe, sgl, data, elidable: true }).unwrap();
        token
    }
}

/// Returns bytes that differ for each `number`.
fn pattern(number: u32, len: usize) -> Vec<u8> {
    let step = number.wrapping_mul(2_654_435_761) | 1;
    (0..len)
        .map(|at| (u32::try_from(at).unwrap().wrapping_mul(step) >> 7).to_le_bytes()[0])
        .collect()
}
