//! A host's connection requests over RDMA, with any private data, into the target's side.
//!
//! Listener and queues are the daemon's own, over a fabric in memory. Hosts request connections,
//! wait and disconnect; time passes; the device fails calls. Each request has one response, which a
//! second reading of the specification confirms. At the end nothing is left: no queue pair, no
//! buffer, no registration.

use std::net::SocketAddr;
use std::sync::Arc;

use nvmeof_core::dma::{ChunkPool, CorePool, MemoryRegistrar, PoolConfig};
use nvmeof_loopback_verbs::{
    DeviceOptions, Fabric, LoopbackCompletions, LoopbackDevice, LoopbackEndpoint, LoopbackListener,
};
use nvmeof_transport::rdma::{DetachedRdma, Limits, RdmaParams, Registration, admit};
use nvmeof_transport::{CloseReason, DetachedQueue, Event, HostQueue, PollGroup, ReactorResources};
use nvmeof_verbs::{
    ConnectParams, ConnectionEvent, Device, DeviceLimits, Endpoint, EndpointSpec,
    PendingConnection, PrivateData,
};
use nvmeof_wire::rdma::{AcceptData, RejectData, RejectStatus, Request};
use nvmeof_wire::zerocopy::IntoBytes;

use crate::input::Input;

/// Maximum number of steps of one run.
const STEPS: usize = 24;
/// Maximum number of hosts of one run.
const HOSTS: usize = 6;
/// The only controller that hosts can name.
const CNTLID: u16 = 5;
const MAX_QID: u16 = 8;
/// Bytes of private data that a request carries.
const REQUEST: usize = 56;

thread_local! {
    static SHARED: (Arc<ChunkPool>, CorePool) = {
        let config = PoolConfig {
            cap: 16 << 20,
            reserve: 16 << 20,
            huge_pages: false,
            ..PoolConfig::default()
        };
        let shared = ChunkPool::new(config).expect("a pool");
        let pool = CorePool::new(&shared);
        (shared, pool)
    };
}

/// Runs one input.
///
/// # Panics
/// If the target violates an invariant.
pub fn run(bytes: &[u8]) {
    parsers(bytes);
    SHARED.with(|(shared, pool)| {
        let mut input = Input::new(bytes);
        let mut world = World::new(shared, pool, &mut input);
        for _ in 0..STEPS {
            if input.is_empty() {
                break;
            }
            world.step(&mut input);
        }
        world.finish();
    });
}

/// Checks that parsed bytes encode to the same bytes.
fn parsers(bytes: &[u8]) {
    if let Ok(request) = Request::parse(bytes) {
        assert_eq!(Request::parse(request.encode().as_bytes()), Ok(request));
        assert_eq!(request.encode().as_bytes()[..10], bytes[..10]);
    }
    if let Some(receives) = AcceptData::parse(bytes) {
        assert_eq!(AcceptData::new(receives).as_bytes()[..4], bytes[..4]);
    }
    if let Some(status) = RejectData::parse(bytes) {
        assert_eq!(RejectData::new(status).as_bytes(), &bytes[..4]);
    }
}

/// A host's side of a connection.
struct Host {
    endpoint: LoopbackEndpoint,
    _completions: LoopbackCompletions,
    /// Address of the host; each host has another.
    address: SocketAddr,
    /// The correct response; set after the listener's decision.
    verdict: Option<Verdict>,
    answer: Option<ConnectionEvent>,
}

/// The correct response to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Verdict {
    /// Valid: it has this number of receives.
    Accept(u16),
    /// Valid, and rejected for another reason.
    Refused(Option<RejectStatus>),
    Reject(RejectStatus),
}

struct World<'a> {
    fabric: Fabric,
    device: Arc<LoopbackDevice>,
    host_device: Arc<LoopbackDevice>,
    listener: LoopbackListener,
    address: SocketAddr,
    registration: Arc<Registration<LoopbackDevice>>,
    shared: &'a Arc<ChunkPool>,
    pool: &'a CorePool,
    sources: PollGroup,
    queues: Vec<Box<dyn HostQueue>>,
    /// Accepted requests: host, and entries of its submission queue.
    parked: Vec<(usize, u16, DetachedRdma<LoopbackDevice>)>,
    hosts: Vec<Host>,
    params: RdmaParams,
    limits: DeviceLimits,
}

impl<'a> World<'a> {
    fn new(shared: &'a Arc<ChunkPool>, pool: &'a CorePool, input: &mut Input<'_>) -> Self {
        let bits = input.byte();
        let fabric = Fabric::new(u64::from(input.byte()));
        let options = DeviceOptions::default();
        let limits = DeviceLimits {
            queue_depth: if bits & 1 == 0 { 4096 } else { 40 },
            reads_out: if bits & 2 == 0 { 16 } else { 1 },
            pieces: if bits & 4 == 0 { 4 } else { 1 },
            ..options.limits
        };
        let params = RdmaParams {
            in_capsule: if bits & 8 == 0 { 4096 } else { 0 },
            queue_depth: 64,
            admin_depth: 32,
            shared_receives: if bits & 16 == 0 { 0 } else { 64 },
            cq_depth: if bits & 32 == 0 { 4096 } else { 100 },
            ..RdmaParams::default()
        };
        let device = fabric.device_with("target", DeviceOptions { limits, ..options });
        let host_device = fabric.device("host");
        let address = SocketAddr::new(device.address(), 4420);
        let listener = fabric.listen(&device, address).expect("a listener");
        let registration =
            Registration::without_threads(&device, shared).expect("registered memory");
        Self {
            fabric,
            device,
            host_device,
            listener,
            address,
            registration,
            shared,
            pool,
            sources: PollGroup::default(),
            queues: Vec::new(),
            parked: Vec::new(),
            hosts: Vec::new(),
            params,
            limits,
        }
    }

    fn step(&mut self, input: &mut Input<'_>) {
        match input.byte() % 16 {
            0..=4 if self.hosts.len() < HOSTS => self.ask(input),
            5..=9 => self.decide(input),
            10 | 11 => self.attach(input),
            12 => self.leave(input),
            13 => self.fabric.advance(u64::from(input.dword()) << (input.byte() % 8)),
            14 => self.close(input),
            15 => self.fabric.faults().refuse_open(&self.device, u64::from(input.byte() % 4)),
            _ => {}
        }
        self.turn();
    }

    /// A host requests a connection.
    fn ask(&mut self, input: &mut Input<'_>) {
        let data = private_data(input);
        let reads_in = input.pick(&[16, 1, 0, 255]);
        let completions = self.host_device.completions(16).expect("a completion queue");
        let spec = EndpointSpec {
            sends: 1,
            receives: 1,
            send_pieces: 1,
            receive_pieces: 1,
            inline: 0,
            traffic_class: None,
            retries: None,
        };
        let route = self.fabric.route(&self.host_device, self.address);
        let address = route.local();
        let Ok(mut endpoint) = self.host_device.open(route, &completions, None, &spec) else {
            panic!("the host's device has room");
        };
        let reads_out = input.byte();
        let params =
            ConnectParams { private_data: &data, reads_out, reads_in, retries: 7, rnr_retries: 7 };
        // Rejected are private data beyond the limit, and more READs than the device supports; the
        // target sees no request then.
        let _ = endpoint.connect(&params);
        let host =
            Host { endpoint, _completions: completions, address, verdict: None, answer: None };
        self.hosts.push(host);
    }

    /// The listener decides about the first waiting request.
    fn decide(&mut self, input: &mut Input<'_>) {
        let Some(ticket) = self.listener.next_ticket() else { return };
        let peer = ticket.peer();
        let host = self.hosts.iter().position(|host| host.address == peer).expect("a host of ours");
        let reasons = self.reasons(ticket.private_data(), ticket.reads());
        let request = Request::parse(ticket.private_data().as_slice());
        let known = |cntlid| cntlid == CNTLID;
        let limits = Limits { max_qid: MAX_QID, has_controller: &known, may_add_queue: &known };
        match admit(ticket, &self.registration, self.params, &limits) {
            Ok(parked) => {
                assert_eq!(reasons, [], "an unsound request was taken: {parked:?}");
                let entries = request.expect("it was taken").entries;
                self.parked.push((host, u16::try_from(entries).expect("bounded"), parked));
            }
            Err(reject) => {
                assert!(reasons.contains(&reject.status), "{} of {reasons:?}", reject.status);
                if input.one_in(8) {
                    self.hosts[host].verdict = Some(Verdict::Refused(None));
                } else {
                    self.hosts[host].verdict = Some(Verdict::Reject(reject.status));
                    reject.tell();
                }
            }
        }
    }

    /// Returns every fault of a request (RDMA 3.1), from its bytes.
    fn reasons(&self, data: &PrivateData, (_, taken): (u8, u8)) -> Vec<RejectStatus> {
        let bytes = data.as_slice();
        if bytes.len() < 32 {
            return vec![RejectStatus::INVALID_LENGTH];
        }
        let word = |at: usize| u32::from(bytes[at]) | u32::from(bytes[at + 1]) << 8;
        let [recfmt, qid, receives, last, cntlid] = [0, 2, 4, 6, 8].map(word);
        if recfmt != 0 {
            return vec![RejectStatus::INVALID_RECFMT];
        }
        let ours = if qid == 0 { self.params.admin_depth } else { self.params.queue_depth };
        let most = u32::from(ours).min(self.limits.queue_depth);
        let faults = [
            (qid > u32::from(MAX_QID), RejectStatus::INVALID_QID),
            (last == 0 || last + 1 > most, RejectStatus::INVALID_HSQSIZE),
            (
                receives == 0 || receives < last || receives > 2 * u32::from(ours),
                RejectStatus::INVALID_HRQSIZE,
            ),
            (qid != 0 && cntlid != 0 && cntlid != u32::from(CNTLID), RejectStatus::INVALID_CNTLID),
            (taken == 0, RejectStatus::INVALID_IRD),
        ];
        faults.into_iter().filter(|(is_so, _)| *is_so).map(|(_, status)| status).collect()
    }

    /// Turns an accepted request into a queue, or rejects it.
    fn attach(&mut self, input: &mut Input<'_>) {
        if self.parked.is_empty() {
            return;
        }
        let (host, entries, parked) = self.parked.swap_remove(input.below(self.parked.len()));
        let verdict = &mut self.hosts[host].verdict;
        match input.byte() % 8 {
            0 => *verdict = Some(Verdict::Refused(None)),
            1 => {
                *verdict = Some(Verdict::Refused(Some(RejectStatus::NO_RESOURCES)));
                parked.reject(RejectStatus::NO_RESOURCES);
            }
            _ => {
                let mut home = ReactorResources { pool: self.pool, sources: &mut self.sources };
                match Box::new(parked).attach(&mut home) {
                    Ok(mut queue) => {
                        queue.bind(self.queues.len() as u64);
                        // The first queue of a completion queue is created together with it.
                        self.registration.cm_worker().run();
                        for one in self.sources.iter_mut() {
                            one.source.poll(self.fabric.now(), &mut Vec::new());
                        }
                        let mut events = Vec::new();
                        queue.receive(self.fabric.now(), &mut events);
                        events.retain(|event| !matches!(event, Event::RegisterFd));
                        if events.is_empty() {
                            *verdict = Some(Verdict::Accept(entries));
                            self.queues.push(queue);
                        } else {
                            assert!(matches!(events[..], [Event::Closed { .. }]), "{events:?}");
                            *verdict = Some(Verdict::Refused(Some(RejectStatus::NO_RESOURCES)));
                        }
                    }
                    Err(_) => {
                        *verdict = Some(Verdict::Refused(Some(RejectStatus::NO_RESOURCES)));
                    }
                }
            }
        }
    }

    fn leave(&mut self, input: &mut Input<'_>) {
        if self.hosts.is_empty() {
            return;
        }
        let at = input.below(self.hosts.len());
        self.hosts[at].endpoint.disconnect();
    }

    fn close(&mut self, input: &mut Input<'_>) {
        if !self.queues.is_empty() {
            let at = input.below(self.queues.len());
            self.queues[at].close(CloseReason::Shutdown);
        }
    }

    /// Runs the periodic work.
    fn turn(&mut self) {
        self.registration.cm_worker().run();
        self.fabric.settle();
        let now = self.fabric.now();
        let mut ready = Vec::new();
        for one in self.sources.iter_mut() {
            one.source.poll(now, &mut ready);
        }
        self.queues.retain_mut(|queue| {
            let mut events = Vec::new();
            queue.receive(now, &mut events);
            queue.flush(&mut { usize::MAX }, now, &mut events);
            events.retain(|event| !matches!(event, Event::RegisterFd));
            let closed = events.iter().any(|event| matches!(event, Event::Closed { .. }));
            assert_eq!(events.len(), usize::from(closed), "no host has sent a command: {events:?}");
            !closed
        });
        self.hosts.iter_mut().for_each(Host::turn);
    }

    fn finish(mut self) {
        self.parked.clear();
        while self.listener.next_ticket().is_some() {}
        for queue in &mut self.queues {
            queue.close(CloseReason::Shutdown);
        }
        for _ in 0..4 {
            self.turn();
            self.fabric.advance(self.params.drain_timeout);
        }
        self.turn();
        assert!(self.queues.is_empty(), "a queue does not end: {:?}", self.queues);
        drop(self.hosts);
        // Shared receives are dropped with their source.
        self.sources.drop_unused(|_| ());
        assert!(self.sources.is_empty(), "a source is left");
        // Completion queues are destroyed off the reactor, after the sources that own them.
        self.registration.cm_worker().run();
        assert_eq!(self.pool.leased(), 0, "buffers are missing");
        self.pool.clear();
        let registrar: Arc<dyn MemoryRegistrar> = self.registration.clone();
        self.shared.remove_registrar(&registrar);
        assert_eq!(self.registration.regions(), 0, "regions are left");
        drop((registrar, self.registration));
        let counters = self.fabric.counters();
        assert_eq!((counters.endpoints, counters.completion_queues), (0, 0));
        assert_eq!((counters.shared_queues, counters.regions), (0, 0));
        assert_eq!((counters.tickets, counters.misuses), (0, 0), "{counters:?}");
    }
}

impl Host {
    /// Receives all events.
    fn turn(&mut self) {
        while let Some(event) = self.endpoint.next_event() {
            match (&event, &self.verdict) {
                (
                    ConnectionEvent::Established { private_data, .. },
                    Some(Verdict::Accept(entries)),
                ) => {
                    let receives = AcceptData::parse(private_data.as_slice());
                    assert_eq!(receives, Some(*entries), "as many receives as entries");
                }
                (ConnectionEvent::Rejected { private_data, .. }, Some(verdict)) => {
                    let told = RejectData::parse(private_data.as_slice());
                    match verdict {
                        Verdict::Reject(status) => assert_eq!(told, Some(*status)),
                        Verdict::Refused(status) => assert_eq!(told, *status),
                        // The queue ended before it was accepted.
                        Verdict::Accept(_) => assert_eq!(told, None),
                    }
                }
                (ConnectionEvent::Established { .. }, verdict) => {
                    panic!("accepted, though {verdict:?}")
                }
                // There was no decision: the listener was closed, or the request timed out.
                (ConnectionEvent::Rejected { .. } | ConnectionEvent::Failed { .. }, _) => {}
                (ConnectionEvent::Disconnected | ConnectionEvent::QueuePairError, _) => {
                    self.endpoint.disconnect();
                }
                (ConnectionEvent::DeviceRemoved | ConnectionEvent::AddressChanged, _) => {}
            }
            let is_answer = matches!(
                event,
                ConnectionEvent::Established { .. }
                    | ConnectionEvent::Rejected { .. }
                    | ConnectionEvent::Failed { .. }
            );
            if is_answer {
                assert_eq!(self.answer, None, "one request, two answers: {event:?}");
                self.answer = Some(event);
            }
        }
    }
}

/// Returns the private data of a request, mostly near a valid one.
fn private_data(input: &mut Input<'_>) -> Vec<u8> {
    if input.one_in(8) {
        return input.bytes(REQUEST).to_vec();
    }
    let qid = input.pick(&[0, 1, 2, MAX_QID, MAX_QID + 1]);
    let entries = input.pick(&[32, 2, 3, 31, 33, 40, 41, 64, 65, 1, 65_536]);
    let receives = match input.byte() % 4 {
        0 => u16::try_from(entries - 1).unwrap_or(u16::MAX),
        1 => input.pick(&[0, 1, 63, 64, 65, 127, 128, 129]),
        _ => u16::try_from(entries).unwrap_or(u16::MAX),
    };
    let cntlid = input.pick(&[None, Some(CNTLID), Some(CNTLID + 1)]);
    let request = Request { qid, host_receives: receives, entries, cntlid };
    let mut bytes = request.encode().as_bytes().to_vec();
    if input.one_in(4) {
        let at = input.below(bytes.len());
        bytes[at] = input.byte();
    }
    if input.one_in(8) {
        bytes.truncate(input.below(bytes.len()));
    }
    bytes
}
