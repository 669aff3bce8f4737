//! Two reactors in virtual time, the target that they serve, and its disks.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nvmeof_core::dma::{ChunkPool, PoolConfig};
use nvmeof_core::nvme_driver::Wait;
use nvmeof_fake_drive::{FakeDrive, FakeDriveConfig};
use nvmeof_history::History;
use nvmeof_loopback_fabric::{LoopbackHost, LoopbackParams};
use nvmeof_nvmf::{
    Access, AddressFamily, Changes, DeviceId, Limits, NamespaceSpec, PortId, PortSpec, Queue,
    QueueInfo, RetiredNamespace, SubsystemSpec, Target, TargetSpec, TransportKind,
};
use nvmeof_pacing::{PacedMachine, PolicyConfig, SharedPolicy};
use nvmeof_random::SplitMix64;
use nvmeof_wire::Nqn;
use tokio::sync::oneshot;

use super::disks::{BLOCKS, Disk};
use crate::reactor::mailbox::{Counts, Disconnected, Mailbox, Message, Sender, mailbox};
use crate::reactor::{Reactor, ReactorConfig, ReactorLoad};

pub(super) const MILLI: u64 = 1_000_000;
pub(super) const SECOND: u64 = 1000 * MILLI;
pub(super) const SUBSYSTEM: &str = "nqn.2026-11.io.nvmeof-tgt:torture";

const REACTORS: usize = 2;
const PORT: PortId = PortId(1);
const MAX_TRANSFER: usize = 64 << 10;

/// Shorter than the disks sometimes take, so that some hosts have to retry.
const QUIESCE_BOUND: Duration = Duration::from_secs(2);

thread_local! {
    /// Time of this thread's site, for devices whose clock is a function.
    static NOW: Cell<u64> = const { Cell::new(0) };
}

/// Returns the time of this thread's site.
pub(super) fn now() -> u64 {
    NOW.get()
}

/// Time of the drive, which passes while its supervisor waits. The drive works in that time.
#[derive(Debug)]
struct Time {
    now: AtomicU64,
    drive: FakeDrive,
}

impl Wait for Time {
    fn now(&self) -> u64 {
        self.now.load(Ordering::Relaxed)
    }

    fn wait(&self, _: &[BorrowedFd<'_>], nanos: u64) {
        self.now.fetch_add(nanos.max(1), Ordering::Relaxed);
        self.drive.run();
    }
}

pub(super) struct Site {
    pub(super) now: u64,
    pub(super) dice: SplitMix64,
    pub(super) history: History,
    pub(super) disks: Vec<Disk>,
    pub(super) target: Arc<Target>,
    /// Names of the hosts, and the numbers of those that must not connect.
    pub(super) names: Vec<Nqn>,
    pub(super) fenced: BTreeSet<u32>,
    /// The subsystem exists.
    pub(super) is_served: bool,
    /// Time at which the operator last restored an object.
    pub(super) given_back_at: u64,
    reactors: Vec<Reactor>,
    senders: Vec<Sender>,
    time: Arc<Time>,
    next_line: u64,
    /// Folder of the file.
    _folder: tempfile::TempDir,
}

impl Site {
    pub(super) fn new(seed: u64, hosts: u32) -> Self {
        let mut dice = SplitMix64::new(seed);
        let limits = Limits {
            queue_depth: 32,
            max_transfer: u32::try_from(MAX_TRANSFER).expect("64 KiB"),
            ..Limits::default()
        };
        let target = Target::new(limits);
        let pool = ChunkPool::new(PoolConfig {
            cap: 4 << 20,
            reserve: 64 << 20,
            max_lease: MAX_TRANSFER,
            huge_pages: false,
        })
        .expect("memory");
        let (senders, reactors) = reactors(&target, &pool, dice.coin());
        let drive = FakeDrive::new(FakeDriveConfig::default());
        let time = Arc::new(Time { now: AtomicU64::new(1), drive: drive.clone() });
        let folder = tempfile::tempdir().expect("a folder");
        let wait = Arc::clone(&time) as Arc<dyn Wait>;
        let disks = vec![
            Disk::stripe(1, seed),
            Disk::file(2, seed, folder.path()),
            Disk::drive(3, &pool, drive, wait),
        ];
        let name = |number| format!("nqn.2026-11.io.nvmeof-tgt:host{number}").parse();
        let mut site = Self {
            now: 1,
            dice,
            history: History::default(),
            disks,
            target,
            names: (0..hosts).map(|number| name(number).expect("a name")).collect(),
            fenced: BTreeSet::new(),
            is_served: true,
            given_back_at: 0,
            reactors,
            senders,
            time,
            next_line: 0,
            _folder: folder,
        };
        (0..site.disks.len()).for_each(|disk| site.open(disk));
        site.apply();
        site
    }

    /// Advances the time by `nanos`, then lets every disk and reactor run.
    pub(super) fn turn(&mut self, nanos: u64) {
        self.set_time(self.now + nanos);
        for disk in &mut self.disks {
            disk.turn(&mut self.dice, self.now);
        }
        self.set_time(self.now.max(self.time.now()));
        let first = self.dice.index(REACTORS);
        for at in 0..REACTORS {
            self.reactors[(first + at) % REACTORS].turn(self.now);
        }
    }

    fn set_time(&mut self, now: u64) {
        self.now = now;
        self.time.now.store(now, Ordering::Relaxed);
        NOW.set(now);
    }

    fn turn_all(&mut self) {
        for reactor in &mut self.reactors {
            reactor.turn(self.now);
        }
    }

    /// Connects to one of the reactors, over a fast or a slow network.
    ///
    /// Returns the connection's number and the host's end.
    pub(super) fn connect(&mut self) -> (u64, LoopbackHost) {
        let latency = [0, 0, MILLI, 20 * MILLI][self.dice.index(4)];
        let (parked, host) = nvmeof_loopback_fabric::connect(LoopbackParams {
            latency,
            ..LoopbackParams::default()
        });
        let queue = Box::new(Queue::new(&self.target, PORT, &parked.peer(), self.now));
        let at = self.dice.index(REACTORS);
        self.senders[at].send(Message::Attach { parked, queue });
        self.reactors[at].load().connections.fetch_add(1, Ordering::Relaxed);
        self.next_line += 1;
        (self.next_line, host)
    }

    /// Makes a reactor move one connection to another reactor.
    pub(super) fn move_one(&mut self) {
        let (from, to) = (self.dice.index(REACTORS), self.dice.index(REACTORS));
        self.senders[from].send(Message::MoveOne { to });
    }

    /// Opens a disk on every reactor.
    pub(super) fn open(&mut self, disk: usize) {
        let (id, device) = (self.disks[disk].id, Arc::clone(&self.disks[disk].device));
        for at in 0..REACTORS {
            let (reply, mut answer) = oneshot::channel();
            let device = Arc::clone(&device);
            self.senders[at].send(Message::AddDevice { id, device, reply });
            self.reactors[at].turn(self.now);
            answer.try_recv().expect("an answer").expect("a queue to the disk");
        }
    }

    /// Closes a disk on every reactor, each of which replies when it no longer uses the disk.
    ///
    /// A reopened disk has another identifier.
    pub(super) fn close(&mut self, disk: usize) -> Vec<oneshot::Receiver<()>> {
        let id = self.disks[disk].id;
        self.disks[disk].id = DeviceId(id.0 + 10);
        self.ask(|reply| Message::RemoveDevice { id, reply })
    }

    /// Makes every reactor reply when the commands for these namespaces have ended.
    pub(super) fn settle(&self, namespaces: Vec<RetiredNamespace>) -> Vec<oneshot::Receiver<()>> {
        let namespaces: Arc<[_]> = namespaces.into();
        self.ask(|reply| Message::NamespaceBarrier { namespaces: Arc::clone(&namespaces), reply })
    }

    fn ask<T>(&self, message: impl Fn(oneshot::Sender<T>) -> Message) -> Vec<oneshot::Receiver<T>> {
        let ask = |sender: &Sender| {
            let (reply, answer) = oneshot::channel();
            sender.send(message(reply));
            answer
        };
        self.senders.iter().map(ask).collect()
    }

    /// Returns the connections of hosts.
    pub(super) fn connections(&mut self) -> Vec<(u64, QueueInfo)> {
        let rolls = self.ask(Message::ListConnections);
        self.turn_all();
        let listed = rolls.into_iter().flat_map(|mut roll| roll.try_recv().expect("a roll"));
        listed.filter_map(|one| Some((one.id, one.info?))).collect()
    }

    /// Ends a connection. Returns the handle to wait for, or `None` if it was gone.
    pub(super) fn dismiss(&mut self, id: u64) -> Option<Disconnected> {
        let answers = self.ask(|reply| Message::Disconnect { id, reply });
        self.turn_all();
        let answers = answers.into_iter();
        answers.filter_map(|mut answer| answer.try_recv().expect("an answer")).next()
    }

    /// Applies the desired state to the target.
    pub(super) fn apply(&self) -> Changes {
        self.target.apply(self.spec()).expect("a change that makes sense")
    }

    fn spec(&self) -> TargetSpec {
        let allowed = |&(number, _): &(u32, &Nqn)| !self.fenced.contains(&number);
        let hosts = (0..).zip(&self.names).filter(allowed).map(|(_, name)| name.clone());
        let subsystem = SubsystemSpec {
            nqn: SUBSYSTEM.parse().expect("a name"),
            serial: "1".into(),
            model: "torture".into(),
            cntlid_min: 1,
            cntlid_max: 0xffef,
            access: Access::Hosts(hosts.collect()),
            namespaces: self.disks.iter().filter(|disk| disk.is_served).map(namespace).collect(),
            quiesce_bound: QUIESCE_BOUND,
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
        let subsystems = self.is_served.then_some(subsystem).into_iter().collect();
        TargetSpec { subsystems, ports: vec![port], ..TargetSpec::default() }
    }

    /// Returns true if a host may connect.
    pub(super) fn allows(&self, host: u32) -> bool {
        self.is_served && !self.fenced.contains(&host)
    }

    /// Checks that the reactors and the target hold nothing after all hosts have gone.
    pub(super) fn assert_empty(&mut self) {
        for at in 0..REACTORS {
            let (reply, mut answer) = oneshot::channel();
            self.senders[at].send(Message::Counts(reply));
            self.reactors[at].turn(self.now);
            assert_eq!(answer.try_recv().expect("counts"), Counts::default(), "reactor {at}");
        }
        assert_eq!(self.target.counts().controllers, 0);
        self.disks.iter().for_each(Disk::assert_clean);
    }
}

fn namespace(disk: &Disk) -> NamespaceSpec {
    let info = disk.device.info();
    let number = u8::try_from(disk.number).expect("a small number");
    NamespaceSpec {
        nsid: disk.number,
        device: disk.id,
        block_size: info.block_size,
        blocks: BLOCKS,
        uuid: [number; 16],
        nguid: [number; 16],
        eui64: [number; 8],
        read_only: false,
        volatile_cache: true,
        deallocate: info.deallocate,
        deallocate_reads_zero: info.deallocate_reads_zero,
        write_zeroes: info.write_zeroes,
        preferred: info.geometry.to_blocks(info.block_size),
    }
}

fn reactors(
    target: &Arc<Target>,
    pool: &Arc<ChunkPool>,
    is_paced: bool,
) -> (Vec<Sender>, Vec<Reactor>) {
    let (senders, mailboxes): (Vec<Sender>, Vec<Mailbox>) =
        (0..REACTORS).map(|_| mailbox().expect("a mailbox")).unzip();
    let budget = 4 * u64::try_from(MAX_TRANSFER).expect("64 KiB");
    let policy = if is_paced { PolicyConfig::BufferCredit { budget } } else { PolicyConfig::None };
    let largest = u32::try_from(MAX_TRANSFER).expect("64 KiB");
    let shared =
        SharedPolicy::new(&policy, PacedMachine { cores: REACTORS, largest }).expect("a policy");
    let loads: Arc<[ReactorLoad]> = (0..REACTORS).map(|_| ReactorLoad::default()).collect();
    let plan = |(index, mailbox)| ReactorConfig {
        index,
        cpu: None,
        busy_poll: true,
        pool: Arc::clone(pool),
        pacing: shared.parts(index, Arc::new(|| {})),
        target: Arc::clone(target),
        peers: senders.clone(),
        mailbox,
        admin_buffers: 2,
        max_transfer: MAX_TRANSFER,
        loads: Arc::clone(&loads),
        flow_depth: 32,
        requests: 64,
        clock: now,
    };
    let reactors = mailboxes.into_iter().enumerate().map(plan);
    let reactors = reactors.map(|plan| Reactor::new(plan).expect("a reactor")).collect();
    (senders, reactors)
}
