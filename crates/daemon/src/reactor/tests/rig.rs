//! A test rig: one reactor without a thread or a clock, and hosts that send raw commands to it.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use nvmeof_core::block::fault::{FaultControl, FaultDevice, FaultPlan};
use nvmeof_core::block::{BlockDevice, DelayDevice, Latency, RamDevice};
use nvmeof_core::dma::{ChunkPool, PoolConfig};
use nvmeof_loopback_fabric::{Delivery, LoopbackHost, LoopbackParams};
use nvmeof_nvmf::{
    Access, AddressFamily, ControllerKey, DeviceId, Limits, NamespaceSpec, PortId, PortSpec, Queue,
    QueueOwner, SubsystemSpec, Target, TargetSpec, TransportKind,
};
use nvmeof_pacing::{PacedMachine, PacerParts, PolicyConfig, SharedPolicy};
use nvmeof_random::SplitMix64;
use nvmeof_transport::FabricError;
use nvmeof_wire::fabrics::{
    CNTLID_DYNAMIC, Connect, ConnectData, PropertyGet, PropertySet, PropertySize,
};
use nvmeof_wire::nvm::{BlockIo, DatasetManagement};
use nvmeof_wire::opcode::IoOpcode;
use nvmeof_wire::properties::{Csts, offset};
use nvmeof_wire::zerocopy::IntoBytes;
use nvmeof_wire::{Nqn, Sgl, Sqe, Status};
use tokio::sync::oneshot;

use super::super::super::clock;
use super::super::mailbox::{Counts, Mailbox, Message, Sender, mailbox as mailboxes};
use super::super::stats::{Report, ReportRequest};
use super::super::trace::{TraceControl, Traces};
use super::super::{Reactor, ReactorConfig, ReactorLoad};
use super::peer::Peer;
use crate::config::Config;
use crate::tenants::{Tenants, host_rules};

/// Bytes of a logical block.
pub(super) const BLOCK: u32 = 512;
/// Blocks of the device, until another one replaces it.
pub(super) const BLOCKS: u64 = 1 << 17;

pub(super) const SUBSYSTEM: &str = "nqn.2026-11.io.nvmeof-tgt:test";
const HOST: &str = "nqn.2026-11.io.nvmeof-tgt:host";
const PORT: PortId = PortId(1);
/// Enough turns for all that can happen without time passing.
const MANY_TURNS: usize = 64;
/// Value that Linux writes to CC: IOCQES 4, IOSQES 6, EN.
pub(super) const CC_ENABLE: u64 = 0x0046_0001;

thread_local! {
    /// Clock of the devices, with the time of the rig.
    static NOW: Cell<u64> = const { Cell::new(0) };
}

pub(super) struct Rig {
    reactor: Reactor,
    target: Arc<Target>,
    sender: Sender,
    now: u64,
    rng: SplitMix64,
    /// HOSTID of the next host.
    ///
    /// Each host has its own, so that none waits for the commands of another.
    host_id: [u8; 16],
    /// Device of the namespace.
    device: DeviceId,
    pub(super) faults: Arc<FaultControl>,
    /// Layered over the faults. It adds no delay until a test sets one.
    pub(super) delay: Arc<DelayDevice>,
    /// Mailbox of another reactor, with index 1.
    pub(super) other: Mailbox,
}

impl Rig {
    /// Creates a rig with a budget in bytes in flight, or without pacing.
    pub(super) fn new(budget: Option<u64>) -> Self {
        Self::build(budget, 1, 1 << 20, 1)
    }

    /// Creates the same rig with another reactor, which only receives messages.
    pub(super) fn beside_another(budget: Option<u64>) -> Self {
        Self::build(budget, 1, 1 << 20, 2)
    }

    /// Creates a rig without pacing, with this maximum transfer size.
    pub(super) fn with_transfers_of(bytes: usize) -> Self {
        Self::build(None, 1, bytes, 1)
    }

    pub(super) fn seeded(seed: u64) -> Self {
        let budget = if seed.is_multiple_of(2) { Some(2 << 20) } else { None };
        let rig = Self::build(budget, seed, 1 << 20, 1);
        rig.faults.set_plan(FaultPlan { seed, errors: 50, reorder: true, ..FaultPlan::default() });
        if seed.is_multiple_of(3) {
            rig.slow(Duration::from_millis(5), Duration::from_micros(2500));
        }
        rig
    }

    fn build(budget: Option<u64>, seed: u64, max_transfer: usize, reactors: usize) -> Self {
        let most = u32::try_from(max_transfer).unwrap();
        let limits = Limits { queue_depth: 32, max_transfer: most, ..Limits::default() };
        let target = Target::new(limits);
        target.apply(spec(DeviceId(0), BLOCKS)).unwrap();
        let pool = ChunkPool::new(PoolConfig {
            cap: 4 << 20,
            reserve: 64 << 20,
            max_lease: max_transfer,
            huge_pages: false,
        })
        .unwrap();
        let (sender, mailbox) = mailboxes().unwrap();
        let (other_sender, other) = mailboxes().unwrap();
        let (policy, largest) = match budget {
            Some(budget) => (PolicyConfig::BufferCredit { budget }, budget.try_into().unwrap()),
            None => (PolicyConfig::None, u32::MAX),
        };
        let reactor = Reactor::new(ReactorConfig {
            index: 0,
            cpu: None,
            busy_poll: true,
            pool,
            pacing: parts(&policy, largest),
            target: Arc::clone(&target),
            peers: [sender.clone(), other_sender].into_iter().take(reactors).collect(),
            mailbox,
            admin_buffers: 2,
            max_transfer,
            loads: std::iter::repeat_with(ReactorLoad::default).take(reactors).collect(),
            flow_depth: 32,
            requests: 64,
            clock: || NOW.get(),
        })
        .unwrap();
        let ram: Arc<dyn BlockDevice> =
            Arc::new(RamDevice::new("ram0", BLOCKS * u64::from(BLOCK), BLOCK).unwrap());
        let (device, faults) = FaultDevice::new(ram, FaultPlan::default());
        let delay =
            Arc::new(DelayDevice::new("ram0", Arc::new(device), Latency::default(), || NOW.get()));
        let device = Arc::clone(&delay) as Arc<dyn BlockDevice>;
        let id = DeviceId(0);
        let mut rig = Self {
            reactor,
            target,
            sender,
            now: 1,
            rng: SplitMix64::new(seed),
            host_id: [7; 16],
            device: id,
            faults,
            delay,
            other,
        };
        rig.add_device(device);
        rig.settle();
        rig
    }

    fn add_device(&mut self, device: Arc<dyn BlockDevice>) {
        self.open_device(self.device, device);
    }

    /// Adds a device with this number that no namespace has.
    pub(super) fn add_idle_device(&mut self, number: u32, device: Arc<dyn BlockDevice>) {
        self.open_device(DeviceId(number), device);
    }

    fn open_device(&mut self, id: DeviceId, device: Arc<dyn BlockDevice>) {
        let (reply, mut answer) = oneshot::channel();
        self.sender.send(Message::AddDevice { id, device, reply });
        self.turn_after(0);
        answer.try_recv().unwrap().unwrap();
    }

    /// Returns a random number below `bound`.
    pub(super) fn random(&mut self, bound: usize) -> usize {
        self.rng.index(bound)
    }

    pub(super) fn turns(&mut self, turns: usize) {
        for _ in 0..turns {
            self.turn_after(1_000_000);
        }
    }

    /// Runs one turn after this time.
    pub(super) fn turn_after(&mut self, nanos: u64) {
        self.now += nanos;
        NOW.set(self.now);
        self.reactor.turn(self.now);
    }

    /// Runs a turn with a tick of the timers. Returns the connections that the tick visited.
    pub(super) fn tick(&mut self) -> u64 {
        let before = self.reactor.timers.visits;
        self.turn_after(crate::reactor::turn::TICK);
        self.reactor.timers.visits - before
    }

    /// Runs turns without time passing until `done`.
    ///
    /// Correct code never needs nearly as many turns as the limit.
    pub(super) fn until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        for turn in 0..200_000u32 {
            if done(self) {
                return;
            }
            self.turn_after(0);
            if turn > 1000 {
                std::thread::yield_now();
            }
        }
        panic!("no {what}");
    }

    /// Runs turns without time passing until nothing more can happen.
    pub(super) fn turns_now(&mut self) {
        (0..MANY_TURNS).for_each(|_| self.turn_after(0));
    }

    /// Returns the nanoseconds until the reactor would wake up without an event.
    pub(super) fn due_in(&self) -> Option<u64> {
        self.reactor.next_due().map(|at| at - self.now)
    }

    /// Runs a turn at the current real time.
    pub(super) fn join_real_time(&mut self) {
        self.turn_after(clock::now() - self.now);
    }

    /// Sleeps as a reactor does until an event wakes it. Fails if none does.
    pub(super) fn sleep(&mut self) {
        self.reactor.next_tick = u64::MAX;
        let (sender, (over, guard)) = (self.sender.clone(), mpsc::channel::<()>());
        let guard = std::thread::spawn(move || {
            if guard.recv_timeout(Duration::from_secs(60)) == Err(RecvTimeoutError::Timeout) {
                sender.wake();
            }
        });
        self.reactor.sleep(self.now);
        assert!(!self.reactor.mailbox.is_signalled(), "it overslept");
        drop(over);
        guard.join().unwrap();
    }

    /// Sets the latency of the device for reads and for all other operations.
    pub(super) fn slow(&self, read: Duration, write: Duration) {
        self.delay.set_latency(Latency { read, write, ..Latency::default() });
    }

    /// Returns the number of operations at the device.
    pub(super) fn with_device(&self) -> usize {
        self.reactor.devices.in_flight()
    }

    /// Makes the reactor close its device.
    pub(super) fn remove_device(&mut self) -> oneshot::Receiver<()> {
        self.close_device(self.device)
    }

    fn close_device(&mut self, id: DeviceId) -> oneshot::Receiver<()> {
        let (reply, answer) = oneshot::channel();
        self.sender.send(Message::RemoveDevice { id, reply });
        answer
    }

    /// Replaces the device by an empty one of `blocks` blocks, as a change of the config does.
    ///
    /// The reactor closes the old device.
    pub(super) fn replace_device(&mut self, blocks: u64) -> oneshot::Receiver<()> {
        let old = self.device;
        self.device = DeviceId(old.0 + 1);
        let ram = RamDevice::new("ram0", blocks * u64::from(BLOCK), BLOCK).unwrap();
        self.add_device(Arc::new(ram));
        self.target.apply(spec(self.device, blocks)).unwrap();
        let answer = self.close_device(old);
        self.turn_after(0);
        answer
    }

    /// Returns the number of flows of all connections, and of flows of the pacer.
    pub(super) fn device_flows(&self) -> (usize, usize) {
        let device_flows =
            self.reactor.connections.iter().map(|(_, one)| one.device_flows.len()).sum();
        (device_flows, self.reactor.pacer.flows())
    }

    pub(super) fn settle(&mut self) {
        self.turns(MANY_TURNS);
        self.now += 200_000_000; // The tick of the timers.
        self.turns(MANY_TURNS);
    }

    pub(super) fn counts(&mut self) -> Counts {
        let (reply, mut answer) = oneshot::channel();
        self.sender.send(Message::Counts(reply));
        self.turns(1);
        answer.try_recv().unwrap()
    }

    /// Replaces the admission policy of the reactor, for commands of up to 1 MiB.
    pub(super) fn set_policy(&mut self, policy: &PolicyConfig) {
        let (reply, mut answer) = oneshot::channel();
        self.sender.send(Message::Pacing { parts: Box::new(parts(policy, 1 << 20)), reply });
        self.turns(1);
        answer.try_recv().unwrap().unwrap();
    }

    /// Returns the reactor's report of its next turn.
    pub(super) fn report(&mut self, recorder: bool) -> Report {
        let (reply, mut answer) = oneshot::channel();
        self.sender.send(Message::Report(ReportRequest { reply, recorder }));
        self.turns(1);
        answer.try_recv().unwrap()
    }

    /// Sends a control message for tracing.
    pub(super) fn trace(&mut self, order: TraceControl) {
        self.sender.send(Message::Trace(order));
        self.turn_after(0);
    }

    /// Reads the traces of the reactor.
    pub(super) fn traces(&mut self) -> Traces {
        let (reply, mut answer) = oneshot::channel();
        self.trace(TraceControl::Read(reply));
        answer.try_recv().unwrap()
    }

    pub(super) fn drain(&mut self) -> oneshot::Receiver<()> {
        let (reply, answer) = oneshot::channel();
        self.sender.send(Message::Drain(reply));
        answer
    }

    /// Makes the reactor move one I/O connection, to itself.
    pub(super) fn move_one(&mut self) {
        self.sender.send(Message::MoveOne { to: 0 });
    }

    pub(super) fn close_all(&mut self) {
        self.reactor.close_all(self.now);
    }

    /// Sends the reactor a message for its next turn.
    pub(super) fn post(&self, message: Message) {
        self.sender.send(message);
    }

    /// Returns the identity of the one I/O connection for all reactors, and its controller.
    pub(super) fn io_connection(&self) -> (QueueOwner, ControllerKey) {
        let mut all = self.reactor.connections.iter();
        let (key, connection) = all.find(|(_, one)| one.is_io()).expect("an I/O queue");
        (self.reactor.owner(key), connection.info.as_ref().unwrap().controller)
    }

    /// Routes Aborts of the I/O queue's commands to this owner.
    pub(super) fn set_owner(&self, owner: QueueOwner) {
        let mut all = self.reactor.connections.iter();
        let (_, connection) = all.find(|(_, one)| one.is_io()).expect("an I/O queue");
        connection.queue.set_owner(owner);
    }

    /// Attaches a peer on a TCP connection, before its handshake.
    pub(super) fn attach_tcp(&mut self) -> Peer {
        let (peer, parked) = Peer::connect();
        let queue = Box::new(Queue::new(&self.target, PORT, &parked.peer(), self.now));
        self.sender.send(Message::Attach { parked, queue });
        self.reactor.load().connections.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        self.turn_after(0);
        peer
    }

    /// Connects a host with an admin queue and one I/O queue.
    pub(super) fn connect_both(&mut self) -> (Host, Host) {
        self.fresh_host();
        let admin = self.attach();
        let cntlid = self.connect(&admin, 0, CNTLID_DYNAMIC);
        admin.set_cc(2, CC_ENABLE);
        self.turns(4);
        assert_eq!(admin.statuses(), [(2, Status::SUCCESS)]);
        let io = self.attach();
        self.connect(&io, 1, cntlid);
        (admin, io)
    }

    /// Connects as [`Self::connect_both`] does. The I/O queue keeps its admin queue open.
    pub(super) fn connect_io(&mut self) -> Host {
        let (admin, mut io) = self.connect_both();
        io.admin = Some(Box::new(admin));
        io
    }

    fn fresh_host(&mut self) {
        self.host_id = (u128::from_ne_bytes(self.host_id) + 1).to_ne_bytes();
    }

    fn attach(&mut self) -> Host {
        let (parked, fabric) = nvmeof_loopback_fabric::connect(LoopbackParams::default());
        let queue = Box::new(Queue::new(&self.target, PORT, &parked.peer(), self.now));
        self.sender.send(Message::Attach { parked, queue });
        self.reactor.load().connections.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Host { fabric, outstanding: RefCell::default(), admin: None }
    }

    /// Attaches a host that requests a controller, and returns the data of its Connect.
    ///
    /// The host withholds this data until [`Host::offer`].
    pub(super) fn connect_unoffered(&mut self) -> (Host, Vec<u8>) {
        let host = self.attach();
        let sgl = Sgl::Transport { length: 1024 };
        host.send(connect_command(0).with_sgl(sgl), &[]);
        self.turns(4);
        let data = ConnectData::new(self.host_id, CNTLID_DYNAMIC, &nqn(SUBSYSTEM), &nqn(HOST));
        (host, data.as_bytes().to_vec())
    }

    /// Connects a host of this name with `queues` I/O queues.
    ///
    /// The first I/O queue keeps the admin queue open.
    pub(super) fn connect_named(&mut self, name: &str, queues: u16) -> Vec<Host> {
        self.fresh_host();
        let admin = self.attach();
        let cntlid = self.connect_as(name, &admin, 0, CNTLID_DYNAMIC).expect("a controller");
        admin.set_cc(2, CC_ENABLE);
        self.turns(4);
        assert_eq!(admin.statuses(), [(2, Status::SUCCESS)]);
        let mut hosts: Vec<Host> = (1..=queues)
            .map(|qid| {
                let io = self.attach();
                self.connect_as(name, &io, qid, cntlid).expect("an I/O queue");
                io
            })
            .collect();
        hosts[0].admin = Some(Box::new(admin));
        hosts
    }

    /// Requests another controller for the last host. The Connect may have to wait.
    pub(super) fn ask_again(&mut self, name: &str) -> Host {
        let host = self.attach();
        self.ask(name, &host, 0, CNTLID_DYNAMIC);
        host
    }

    /// Sets the namespace attribute for a volatile write cache.
    pub(super) fn has_volatile_cache(&self, volatile_cache: bool) {
        let mut spec = spec(self.device, BLOCKS);
        spec.subsystems[0].namespaces[0].volatile_cache = volatile_cache;
        self.target.apply(spec).unwrap();
    }

    /// Returns the identifiers of the connections.
    pub(super) fn queue_ids(&self) -> Vec<u64> {
        self.reactor.list_connections().iter().map(|one| one.id).collect()
    }

    /// Sends the reactor a message from the control plane and runs a turn.
    pub(super) fn tell(&mut self, message: Message) {
        self.sender.send(message);
        self.turn_after(0);
    }

    /// Requests a controller under this name.
    pub(super) fn try_connect(&mut self, name: &str) -> (Host, Result<u16, Status>) {
        let host = self.attach();
        let answer = self.connect_as(name, &host, 0, CNTLID_DYNAMIC);
        (host, answer)
    }

    fn connect(&mut self, host: &Host, qid: u16, cntlid: u16) -> u16 {
        self.connect_as(HOST, host, qid, cntlid).expect("a queue")
    }

    fn connect_as(
        &mut self,
        name: &str,
        host: &Host,
        qid: u16,
        cntlid: u16,
    ) -> Result<u16, Status> {
        self.ask(name, host, qid, cntlid);
        let answer = host.take().pop().expect("an answer to Connect");
        match answer.cqe.status() {
            Status::SUCCESS => Ok(u16::try_from(answer.cqe.dw0() & 0xffff).unwrap()),
            refused => Err(refused),
        }
    }

    fn ask(&mut self, name: &str, host: &Host, qid: u16, cntlid: u16) {
        let data = ConnectData::new(self.host_id, cntlid, &nqn(SUBSYSTEM), &nqn(name));
        let sgl = Sgl::InCapsule { offset: 0, length: 1024 };
        host.send(connect_command(qid).with_sgl(sgl), data.as_bytes());
        // The target may have to search commands of the host's other associations.
        self.turns(8);
    }

    /// Applies the weights and limits of a config, for commands of up to 128 KiB.
    ///
    /// Its namespace is the one of the rig.
    pub(super) fn limit(&mut self, tenants: &mut Tenants, text: &str) {
        let least = "[limits]\nmax-transfer = \"128KiB\"\n\
                     [[listener]]\ntype = \"tcp\"\naddress = \"::1\"\n";
        let machine = crate::config_file::Machine {
            cpus: vec![0],
            open_files: 4096,
            memory: 8 << 30,
            open: Vec::new(),
        };
        let config = Config::parse("t.toml", &format!("{least}{text}"), &machine).unwrap();
        tenants.check(&config).unwrap();
        self.target.limit_hosts(host_rules(&config));
        let shares = tenants.change(&config, |_| Some(self.device));
        self.sender.send(Message::QosTable(shares));
        self.turn_after(0);
    }

    /// Creates the tenants for a machine like this one.
    pub(super) fn tenants() -> Tenants {
        Tenants::new(PacedMachine { cores: 1, largest: 256 << 10 })
    }

    /// Closes the hosts, and checks that the counts return to zero.
    pub(super) fn finish(mut self, hosts: impl IntoIterator<Item = Host>) {
        for host in hosts {
            host.close();
        }
        self.settle();
        assert_eq!(self.counts(), Counts::default());
        assert_eq!(self.target.counts().controllers, 0);
    }
}

fn connect_command(qid: u16) -> Sqe {
    let connect = Connect {
        qid,
        entries: 32,
        priority: 0,
        disable_sq_flow_control: true,
        queue_deletion: false,
        kato_ms: 0,
    };
    connect.encode(1)
}

fn parts(policy: &PolicyConfig, largest: u32) -> PacerParts {
    SharedPolicy::new(policy, PacedMachine { cores: 1, largest }).unwrap().parts(0, Arc::new(|| {}))
}

fn spec(device: DeviceId, blocks: u64) -> TargetSpec {
    let namespace = NamespaceSpec {
        nsid: 1,
        device,
        block_size: BLOCK,
        blocks,
        uuid: [1; 16],
        nguid: [2; 16],
        eui64: [3; 8],
        read_only: false,
        volatile_cache: true,
        deallocate: true,
        deallocate_reads_zero: true,
        write_zeroes: true,
        preferred: Default::default(),
    };
    let subsystem = SubsystemSpec {
        nqn: nqn(SUBSYSTEM),
        serial: "1".into(),
        model: "test".into(),
        cntlid_min: 1,
        cntlid_max: 0xffef,
        access: Access::AnyHost,
        namespaces: vec![namespace],
        quiesce_bound: Duration::from_secs(10),
    };
    let port = PortSpec {
        id: PORT,
        transport: TransportKind::Loop,
        family: AddressFamily::Loop,
        address: "here".into(),
        service: "1".into(),
        v6_only: false,
        subsystems: None,
        folds_always: false,
    };
    TargetSpec { subsystems: vec![subsystem], ports: vec![port], ..TargetSpec::default() }
}

fn nqn(name: &str) -> Nqn {
    name.parse().unwrap()
}

/// Returns bytes that depend on the seed and on their position.
pub(super) fn pattern(seed: u64, len: u32) -> Vec<u8> {
    (0..u64::from(len)).map(|at| (at.wrapping_mul(seed | 1) >> 3).to_le_bytes()[0]).collect()
}

/// One queue of a host.
pub(super) struct Host {
    fabric: LoopbackHost,
    outstanding: RefCell<HashSet<u16>>,
    admin: Option<Box<Host>>,
}

impl Host {
    pub(super) fn send(&self, sqe: Sqe, in_capsule: &[u8]) {
        self.outstanding.borrow_mut().insert(sqe.cid.get());
        self.fabric.send(sqe, in_capsule);
    }

    pub(super) fn take(&self) -> Vec<Delivery> {
        let answers = self.fabric.take();
        for answer in &answers {
            let known = self.outstanding.borrow_mut().remove(&answer.cqe.cid.get());
            assert!(known, "an answer to no command: {answer:?}");
        }
        answers
    }

    pub(super) fn collect(&self) {
        self.take();
    }

    pub(super) fn statuses(&self) -> Vec<(u16, Status)> {
        self.take().iter().map(|answer| (answer.cqe.cid.get(), answer.cqe.status())).collect()
    }

    pub(super) fn outstanding(&self) -> usize {
        self.outstanding.borrow().len()
    }

    pub(super) fn free_cid(&self) -> Option<u16> {
        (0..32).find(|cid| !self.outstanding.borrow().contains(cid))
    }

    pub(super) fn close(&self) {
        self.fabric.close();
        if let Some(admin) = &self.admin {
            admin.close();
        }
    }

    pub(super) fn closed(&self) -> bool {
        self.fabric.closed().is_some()
    }

    /// Sends a command with an invalid data pointer.
    pub(super) fn send_bad(&self, sqe: Sqe, error: FabricError) {
        self.outstanding.borrow_mut().insert(sqe.cid.get());
        self.fabric.send_bad(sqe.with_sgl(Sgl::Transport { length: u32::MAX }), error);
    }

    /// Reads CSTS on an admin queue.
    pub(super) fn csts(&self, rig: &mut Rig) -> Csts {
        let get = PropertyGet { size: PropertySize::Four, offset: offset::CSTS };
        self.send(get.encode(0x77), &[]);
        rig.turns_now();
        let answers = self.take();
        let answer = answers.iter().find(|answer| answer.cqe.cid.get() == 0x77).expect("CSTS");
        Csts::from_bits(answer.cqe.dw0())
    }

    /// Writes CC.
    pub(super) fn set_cc(&self, cid: u16, cc: u64) {
        let set = PropertySet { size: PropertySize::Four, offset: offset::CC, value: cc };
        self.send(set.encode(cid), &[]);
    }

    /// Offers the data of a command.
    pub(super) fn offer(&self, cid: u16, data: Vec<u8>) {
        self.fabric.offer(cid, data);
    }

    pub(super) fn fail_next(&self, error: FabricError) {
        self.fabric.fail_next(error);
    }

    pub(super) fn raw(&self, opcode: IoOpcode, cid: u16, slba: u64, sgl: Sgl) {
        self.send(command(opcode, cid, slba, 512).with_sgl(sgl), &[]);
    }

    pub(super) fn read(&self, cid: u16, slba: u64, len: u32) {
        let sgl = Sgl::Transport { length: len };
        self.send(command(IoOpcode::READ, cid, slba, len).with_sgl(sgl), &[]);
    }

    pub(super) fn write_in_capsule(&self, cid: u16, slba: u64, data: &[u8]) {
        self.in_capsule(IoOpcode::WRITE, cid, slba, data);
    }

    pub(super) fn compare(&self, cid: u16, slba: u64, data: &[u8]) {
        self.in_capsule(IoOpcode::COMPARE, cid, slba, data);
    }

    pub(super) fn compare_pulled(&self, cid: u16, slba: u64, data: &[u8]) {
        self.fabric.offer(cid, data.to_vec());
        let sgl = Sgl::Transport { length: len(data) };
        self.send(command(IoOpcode::COMPARE, cid, slba, len(data)).with_sgl(sgl), &[]);
    }

    pub(super) fn write_pulled(&self, cid: u16, slba: u64, data: &[u8]) {
        self.fabric.offer(cid, data.to_vec());
        self.write_unoffered(cid, slba, len(data));
    }

    pub(super) fn write_unoffered(&self, cid: u16, slba: u64, len: u32) {
        let sgl = Sgl::Transport { length: len };
        self.send(command(IoOpcode::WRITE, cid, slba, len).with_sgl(sgl), &[]);
    }

    pub(super) fn flush(&self, cid: u16) {
        self.send(Sqe::io(IoOpcode::FLUSH, cid, 1), &[]);
    }

    pub(super) fn write_zeroes(&self, cid: u16, slba: u64, blocks: u32) {
        self.send(command(IoOpcode::WRITE_ZEROES, cid, slba, blocks * BLOCK), &[]);
    }

    pub(super) fn deallocate(&self, cid: u16, ranges: &[(u64, u32)]) {
        let list: Vec<u8> = ranges
            .iter()
            .flat_map(|&(slba, blocks)| {
                let mut range = [0; 16];
                range[4..8].copy_from_slice(&blocks.to_le_bytes());
                range[8..].copy_from_slice(&slba.to_le_bytes());
                range
            })
            .collect();
        let command = DatasetManagement {
            ranges: u16::try_from(ranges.len()).unwrap(),
            deallocate: true,
            integral_write: false,
            integral_read: false,
        };
        let sgl = Sgl::InCapsule { offset: 0, length: len(&list) };
        self.send(command.encode(cid, 1).with_sgl(sgl), &list);
    }

    fn in_capsule(&self, opcode: IoOpcode, cid: u16, slba: u64, data: &[u8]) {
        let sgl = Sgl::InCapsule { offset: 0, length: len(data) };
        self.send(command(opcode, cid, slba, len(data)).with_sgl(sgl), data);
    }
}

fn command(opcode: IoOpcode, cid: u16, slba: u64, len: u32) -> Sqe {
    BlockIo::new(slba, len / BLOCK).encode(opcode, cid, 1)
}

fn len(data: &[u8]) -> u32 {
    u32::try_from(data.len()).unwrap()
}
