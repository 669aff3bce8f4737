//! A reactor: one pinned thread that owns connections, a queue to every device, and a pacer.
//!
//! It takes each command from its capsule to its response. Its own state is neither shared nor
//! locked, and it waits for no other thread. Other threads send messages to its [`mailbox`].
//!
//! | file | content |
//! |---|---|
//! | `turn` | one turn of the loop: receive, admit, devices, flush, timers |
//! | `command` | delivers capsules to nvmf, and completes some commands immediately |
//! | `admin`, `abort` | admin commands that move data, and those that end another one |
//! | `io` | I/O commands: permit, buffer, host data, device, response |
//! | `lifecycle` | connections attach, move and close |
//! | `quiesce` | flushes and barriers: no command is reported as ended too early |
//! | `losses` | reports a failed flush to every connection that uses the device |
//! | `sources` | completion queues, which report several connections at a time |
//! | `control` | messages from the control plane and other reactors |
//! | `devices`, `connection`, `requests`, `gen_slab` | the reactor's state |
//! | `holdings` | permits and memory of each host, and the commands that wait for them |
//! | `idle`, `poller`, `mailbox` | when the reactor sleeps, and what wakes it |
//! | `connections` | list of connections for the API |
//! | `qos` | weights and limits of hosts and devices |
//! | `stats` | counters, and reports of them |
//! | `timers` | deadlines of hosts |
//! | `trace` | traces of slow commands, on request |
//! | `bench` | a reactor that a benchmark drives; not in the daemon |

mod abort;
mod admin;
#[cfg(feature = "bench")]
pub(crate) mod bench;
mod buffer_wait;
mod command;
mod connection;
pub(crate) mod connections;
mod control;
mod devices;
mod failure;
mod gen_slab;
mod holdings;
mod idle;
mod io;
mod lifecycle;
mod losses;
pub(crate) mod mailbox;
mod poller;
pub(crate) mod qos;
mod quiesce;
mod requests;
mod sources;
pub(crate) mod stats;
#[cfg(test)]
mod tests;
mod timers;
pub(crate) mod trace;
mod turn;

use std::net::IpAddr;
use std::rc::Weak;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::thread::JoinHandle;

use anyhow::Context as _;
use nvmeof_core::block::{Completed, start_kernel_worker};
use nvmeof_core::dma::{BufferReservation, ChunkPool, CorePool};
use nvmeof_nvmf::Target;
use nvmeof_pacing::{CoreHandle, Pacer, PacerConfig, PacerParts, Waker};
use nvmeof_transport::{Event, PollGroup};
use rustix::thread::{CpuSet, sched_setaffinity};
use tokio::sync::oneshot;

use crate::clock;
use admin::AdminWork;
use buffer_wait::BufferWaitQueue;
use connection::Connection;
pub(crate) use connection::OWN_BUFFER;
use devices::Devices;
use gen_slab::{GenSlab, SlotKey};
use holdings::Holdings;
use idle::{Idle, IdleAction};
use mailbox::{Mailbox, Sender};
use poller::{Poller, Ready};
use qos::QosTable;
use quiesce::WriteBarrier;
use requests::Requests;
use stats::Stats;
use timers::{Overdue, TimerQueue};
use trace::Trace;
use turn::QueuePollBackoff;

/// Configuration of a reactor.
pub(crate) struct ReactorConfig {
    /// Its index among the reactors.
    pub(crate) index: usize,
    /// CPU to run on.
    pub(crate) cpu: Option<usize>,
    /// Never sleep.
    pub(crate) busy_poll: bool,
    /// Source of its buffers.
    pub(crate) pool: Arc<ChunkPool>,
    /// Its part of the policy in force.
    pub(crate) pacing: PacerParts,
    /// Target that hosts connect to.
    pub(crate) target: Arc<Target>,
    /// Mailboxes of all reactors, including its own.
    pub(crate) peers: Vec<Sender>,
    /// Its own mailbox.
    pub(crate) mailbox: Mailbox,
    /// Data buffers reserved for admin commands.
    pub(crate) admin_buffers: usize,
    /// Bytes of each of them: the maximum that one command moves.
    pub(crate) max_transfer: usize,
    /// Load of each reactor.
    pub(crate) loads: Arc<[ReactorLoad]>,
    /// Maximum number of commands of one connection that can wait.
    pub(crate) flow_depth: usize,
    /// Commands to allocate room for at start.
    pub(crate) requests: usize,
    /// Clock for times within a turn, on the scale of the turns' own times.
    pub(crate) clock: fn() -> u64,
}

/// Load of a reactor.
///
/// The thread that places or moves a connection to it raises the load. The reactor that loses a
/// connection lowers it. The next placement reads it.
#[derive(Debug, Default)]
pub(crate) struct ReactorLoad {
    /// Connections placed here.
    pub(crate) connections: AtomicUsize,
    /// I/O queues among them.
    pub(crate) io_queues: AtomicUsize,
    /// Bytes of memory that its commands hold.
    pub(crate) memory_bytes: AtomicU64,
    /// Commands of some reactor cannot start, so this one must reclaim permits of stalled commands.
    pub(crate) is_pressed: AtomicBool,
    /// One of its commands has waited long for buffer memory.
    pub(crate) is_memory_short: AtomicBool,
}

/// A running reactor.
#[derive(Debug)]
pub(crate) struct Handle {
    /// The thread, to wait for its end.
    pub(crate) thread: JoinHandle<()>,
}

/// Starts the thread and waits until it is ready to take connections.
pub(crate) fn spawn(plan: ReactorConfig) -> anyhow::Result<Handle> {
    let (ready, started) = std::sync::mpsc::sync_channel(1);
    let index = plan.index;
    let thread = std::thread::Builder::new()
        .name(format!("reactor-{index}"))
        .spawn(move || {
            // Files that are opened later then need no further thread. Without io_uring, opening
            // one reports the error.
            let _ = start_kernel_worker();
            match Reactor::new(plan) {
                Ok(mut reactor) => {
                    let _ = ready.send(Ok(()));
                    reactor.run();
                }
                Err(error) => {
                    let _ = ready.send(Err(error));
                }
            }
        })
        .with_context(|| format!("cannot start the thread of reactor {index}"))?;
    started
        .recv()
        .with_context(|| format!("reactor {index} ended before it was ready"))?
        .with_context(|| format!("reactor {index} cannot start"))?;
    Ok(Handle { thread })
}

/// Complete state of one reactor. Each file of this folder adds the methods of its subject.
pub(crate) struct Reactor {
    index: usize,
    loads: Arc<[ReactorLoad]>,
    target: Arc<Target>,
    /// The target's epoch at the last poll of all queues.
    seen_epoch: u64,
    queue_poll_backoff: QueuePollBackoff,
    peers: Vec<Sender>,
    mailbox: Mailbox,
    poller: Poller,
    idle: Idle,
    pool: CorePool,
    /// Buffers reserved for admin commands, so that they never wait behind data.
    admin_reserve: BufferReservation,
    pacer: Pacer,
    /// Identity of this reactor for tenant limits.
    core: CoreHandle,
    qos: QosTable,
    devices: Devices,
    connections: GenSlab<Connection>,
    /// Objects that connections share: the completion queues of RDMA devices.
    sources: PollGroup,
    /// Addresses that hosts connected to, indexed by network port.
    network_ports: Vec<Option<IpAddr>>,
    /// A connection has gone, and a source may be unused since.
    has_unused_sources: bool,
    requests: Requests,
    /// Admitted commands for which the pool had no buffer.
    buffer_wait: BufferWaitQueue,
    /// Admin commands that wait to move their data.
    admin_work: AdminWork,
    /// Holdings of the hosts.
    holdings: Vec<Weak<Holdings>>,
    /// Bytes of memory that commands hold here, and on other reactors at the last check.
    memory_held: u64,
    memory_of_others: u64,
    /// Connections were notified that buffer memory is short.
    was_memory_short: bool,
    /// The pacer uses the time at which data has left the machine.
    is_tx_tracked: bool,
    /// Time at which a command last started, or none waited.
    granted_at: u64,
    /// Connections without a source: epoll reports their arrivals.
    sockets: usize,
    /// Connections to receive from.
    receive: Vec<SlotKey>,
    /// Connections with output.
    dirty: Vec<SlotKey>,
    /// Connections with sent data that is still in their socket.
    tx_pending: Vec<SlotKey>,
    /// Connections that drain before they move to another reactor.
    migrating: Vec<SlotKey>,
    /// Connections that the next ticks visit.
    timers: TimerQueue,
    /// Time of the next tick of the timers.
    next_tick: u64,
    /// Latest time at which the next turn should begin.
    expected_at: u64,
    /// Queues whose deadline has passed. The reactor receives from them before it judges them.
    overdue: Vec<Overdue>,
    /// Sources have more to report.
    are_sources_unsettled: bool,
    /// Time of the last turn, or `u64::MAX` after a sleep, so that the next turn is not late.
    turned_at: u64,
    /// Turns since the reactor last asked epoll.
    unpolled_turns: u32,
    /// Waiters for commands: of namespaces that are gone, and of controllers before a Connect.
    barriers: Vec<WriteBarrier>,
    /// Receives the reply when nothing is in flight.
    draining: Option<oneshot::Sender<()>>,
    stopping: bool,
    stats: Stats,
    trace: Trace,
    clock: fn() -> u64,
    // Scratch space, kept for its capacity.
    events: Vec<Event>,
    completed: Vec<Completed>,
    ready: Vec<Ready>,
    named: Vec<u64>,
    keys: Vec<SlotKey>,
}

/// Kinds of tokens, in a token's top byte.
pub(super) mod kind {
    /// A connection's socket.
    pub(in crate::reactor) const CONNECTION: u8 = 1;
    /// A request.
    pub(in crate::reactor) const REQUEST: u8 = 2;
    /// A device's completions.
    pub(in crate::reactor) const DEVICE: u8 = 3;
    /// The mailbox.
    pub(in crate::reactor) const MAILBOX: u8 = 4;
    /// A source of connections.
    pub(in crate::reactor) const SOURCE: u8 = 5;
}

impl Reactor {
    /// Builds the state on the calling thread and pins the thread.
    pub(crate) fn new(plan: ReactorConfig) -> anyhow::Result<Self> {
        if let Some(cpu) = plan.cpu {
            let mut set = CpuSet::new();
            set.set(cpu);
            sched_setaffinity(None, &set).with_context(|| format!("cannot run on CPU {cpu}"))?;
        }
        let poller = Poller::new().context("cannot make an epoll descriptor")?;
        poller
            .add_source(&plan.mailbox, u64::from(kind::MAILBOX) << 56)
            .context("cannot watch the mailbox")?;
        let pool = CorePool::new(&plan.pool);
        let admin_reserve = pool
            .reserve(plan.admin_buffers, plan.max_transfer)
            .context("cannot reserve the buffers of admin commands")?;
        let own = plan.peers.get(plan.index).cloned();
        let waker: Waker = Arc::new(move || own.iter().for_each(Sender::wake));
        Ok(Self {
            index: plan.index,
            loads: plan.loads,
            seen_epoch: plan.target.epoch(),
            queue_poll_backoff: QueuePollBackoff::default(),
            target: plan.target,
            peers: plan.peers,
            mailbox: plan.mailbox,
            poller,
            idle: Idle::new(plan.busy_poll),
            pool,
            admin_reserve,
            pacer: Pacer::with_parts(plan.pacing, PacerConfig { flow_depth: plan.flow_depth }),
            core: CoreHandle { index: plan.index, waker },
            qos: QosTable::default(),
            devices: Devices::default(),
            connections: GenSlab::with_capacity(16),
            sources: PollGroup::default(),
            has_unused_sources: false,
            network_ports: Vec::new(),
            requests: Requests::with_capacity(plan.requests),
            buffer_wait: BufferWaitQueue::default(),
            admin_work: AdminWork::default(),
            holdings: Vec::new(),
            memory_held: 0,
            memory_of_others: 0,
            was_memory_short: false,
            is_tx_tracked: false,
            granted_at: 0,
            sockets: 0,
            receive: Vec::new(),
            dirty: Vec::new(),
            tx_pending: Vec::new(),
            migrating: Vec::new(),
            timers: TimerQueue::default(),
            next_tick: 0,
            expected_at: u64::MAX,
            overdue: Vec::new(),
            are_sources_unsettled: false,
            turned_at: u64::MAX,
            unpolled_turns: 0,
            barriers: Vec::new(),
            draining: None,
            stopping: false,
            stats: Stats::default(),
            trace: Trace::default(),
            clock: plan.clock,
            events: Vec::new(),
            completed: Vec::new(),
            ready: Vec::new(),
            named: Vec::new(),
            keys: Vec::new(),
        })
    }

    fn run(&mut self) {
        while !self.stopping {
            let now = clock::now();
            if self.turn(now) {
                self.idle.busy(now);
                continue;
            }
            match self.idle.idle(now) {
                IdleAction::Spin => std::hint::spin_loop(),
                IdleAction::Sleep => self.sleep(now),
            }
        }
        self.close_all(clock::now());
    }

    fn load(&self) -> &ReactorLoad {
        &self.loads[self.index]
    }
}
