//! A reactor: one pinned thread that owns connections, a queue to every device and a pacer, and
//! takes each command from its capsule to its response. Nothing here is shared, locked or waited
//! for; other threads speak to it through its [`mailbox`].
//!
//! | file | what |
//! |---|---|
//! | `turn` | one turn of the loop: receive, admit, devices, flush, timers |
//! | `command` | delivers capsules to nvmf, and completes some commands immediately |
//! | `admin`, `abort` | admin commands that move data, and those that end another one |
//! | `io` | an I/O command's way: permit, buffer, host data, device, response |
//! | `lifecycle` | connections come, move and go |
//! | `quiesce` | flushes and barriers: no command is reported as ended too early |
//! | `losses` | reports a failed flush to every connection that uses the device |
//! | `sources` | what tells of several connections at once: completion queues |
//! | `control` | messages from the control plane and other reactors |
//! | `devices`, `connection`, `requests`, `slots` | what is kept |
//! | `holdings` | what each host holds, and what waits for that |
//! | `idle`, `poller`, `mailbox` | when to sleep and what wakes |
//! | `roll` | which connections there are, for who looks from outside |
//! | `stats` | what is counted, and reports of it |
//! | `timers` | what hosts have too little time for |
//! | `trace` | the lives of slow commands, when somebody wants to see them |
//! | `bench` | a reactor in the hands of a benchmark; not in the daemon |

mod abort;
mod admin;
#[cfg(feature = "bench")]
pub(crate) mod bench;
mod command;
mod connection;
mod control;
mod devices;
mod failure;
mod holdings;
mod idle;
mod io;
mod lifecycle;
mod losses;
pub(crate) mod mailbox;
mod poller;
mod quiesce;
mod requests;
pub(crate) mod roll;
mod slots;
mod sources;
mod starved;
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
use nvmeof_core::dma::{CorePool, Reserve, SharedPool};
use nvmeof_nvmf::Target;
use nvmeof_pacing::{Core, Pacer, PacerConfig, Parts, Waker};
use nvmeof_transport::{Event, Sources};
use rustix::thread::{CpuSet, sched_setaffinity};
use tokio::sync::oneshot;

use crate::clock;
use crate::tenants::Shares;
use admin::AdminWork;
use connection::Connection;
pub(crate) use connection::OWN_BUFFER;
use devices::Devices;
use holdings::Holdings;
use idle::{Idle, Verdict};
use mailbox::{Mailbox, Sender};
use poller::{Poller, Ready};
use quiesce::WriteBarrier;
use requests::Requests;
use slots::{Key, Slots};
use starved::Starved;
use stats::Stats;
use timers::Overdue;
use trace::Trace;
use turn::Looks;

/// What a reactor is made from.
pub(crate) struct Plan {
    /// Its place among the reactors.
    pub(crate) index: usize,
    /// CPU to run on.
    pub(crate) cpu: Option<usize>,
    /// Never sleep.
    pub(crate) busy_poll: bool,
    /// Where buffers come from.
    pub(crate) pool: Arc<SharedPool>,
    /// Its part of the policy in force.
    pub(crate) pacing: Parts,
    /// What hosts connect to.
    pub(crate) target: Arc<Target>,
    /// Every reactor's mailbox, this one's included.
    pub(crate) peers: Vec<Sender>,
    /// This one's.
    pub(crate) mailbox: Mailbox,
    /// Data buffers kept aside for admin commands.
    pub(crate) admin_buffers: usize,
    /// Bytes of each of them: the most one command moves.
    pub(crate) max_transfer: usize,
    /// How much each reactor serves.
    pub(crate) loads: Arc<[Load]>,
    /// Commands one connection can have waiting.
    pub(crate) flow_depth: usize,
    /// Commands to make room for at start.
    pub(crate) requests: usize,
    /// The time within a turn, on the scale of the turns' own times.
    pub(crate) clock: fn() -> u64,
}

/// How much a reactor serves. Raised by whoever places or moves a connection to it, lowered by the
/// reactor that loses one; read to place the next one.
#[derive(Debug, Default)]
pub(crate) struct Load {
    /// Connections placed here.
    pub(crate) connections: AtomicUsize,
    /// Those of them that are I/O queues.
    pub(crate) io_queues: AtomicUsize,
    /// Bytes of memory that commands hold there.
    pub(crate) held: AtomicU64,
    /// Commands of some reactor cannot start: reclaim the permits of stalled commands here.
    pub(crate) is_pressed: AtomicBool,
    /// A command there has waited long for buffer memory.
    pub(crate) is_memory_short: AtomicBool,
}

/// A running reactor.
#[derive(Debug)]
pub(crate) struct Handle {
    /// To wait for its end.
    pub(crate) thread: JoinHandle<()>,
}

/// Starts the thread and waits until it is ready to take connections.
pub(crate) fn spawn(plan: Plan) -> anyhow::Result<Handle> {
    let (ready, started) = std::sync::mpsc::sync_channel(1);
    let index = plan.index;
    let thread = std::thread::Builder::new()
        .name(format!("reactor-{index}"))
        .spawn(move || {
            // Files that come later need no further thread. Where there is no io_uring, opening one says so.
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

/// One reactor's whole state. Its methods are spread over this folder by what they are about.
pub(crate) struct Reactor {
    index: usize,
    loads: Arc<[Load]>,
    target: Arc<Target>,
    /// The target's epoch when its queues were last looked at.
    seen_epoch: u64,
    looks: Looks,
    peers: Vec<Sender>,
    mailbox: Mailbox,
    poller: Poller,
    idle: Idle,
    pool: CorePool,
    /// Buffers of admin commands: kept aside, so that they never wait behind data.
    admin_reserve: Reserve,
    pacer: Pacer,
    /// This reactor, as tenants know it.
    core: Core,
    shares: Shares,
    devices: Devices,
    connections: Slots<Connection>,
    /// What connections share: the completion queues of RDMA devices.
    sources: Sources,
    /// Addresses that hosts connected to, by the number of their path.
    paths: Vec<Option<IpAddr>>,
    /// A connection went, and with it perhaps the last use of a source.
    has_unused_sources: bool,
    requests: Requests,
    /// Admitted commands for which the pool had no buffer.
    starved: Starved,
    /// Admin commands that wait to move their data.
    admin_work: AdminWork,
    /// Holdings of the hosts.
    holdings: Vec<Weak<Holdings>>,
    /// Bytes of memory that commands hold here, and elsewhere when that was last looked at.
    memory_held: u64,
    memory_of_others: u64,
    /// Connections were told that buffer memory is short.
    was_memory_short: bool,
    /// When a command last started, or none waited to.
    granted_at: u64,
    /// Connections to receive from in this turn.
    receive: Vec<Key>,
    /// Connections with output.
    dirty: Vec<Key>,
    /// Connections with data on its way out.
    departing: Vec<Key>,
    /// Connections that drain before they move to another reactor.
    leaving: Vec<Key>,
    /// When timers are looked at next.
    next_tick: u64,
    /// When the next turn is to begin at the latest.
    expected_at: u64,
    /// Queues whose deadline has passed. The reactor receives from them before it judges them.
    overdue: Vec<Overdue>,
    /// Sources have more to tell.
    are_sources_unsettled: bool,
    /// When the last turn began; `u64::MAX` after a sleep, so that the next is not late.
    turned_at: u64,
    /// Turns since epoll was last asked.
    unpolled_turns: u32,
    /// Waiters for commands: of namespaces that are gone, and of controllers before a Connect.
    barriers: Vec<WriteBarrier>,
    /// Answered when nothing is in flight.
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
    /// Builds the state on the calling thread and pins it.
    pub(crate) fn new(plan: Plan) -> anyhow::Result<Self> {
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
            looks: Looks::default(),
            target: plan.target,
            peers: plan.peers,
            mailbox: plan.mailbox,
            poller,
            idle: Idle::new(plan.busy_poll),
            pool,
            admin_reserve,
            pacer: Pacer::with_parts(plan.pacing, PacerConfig { flow_depth: plan.flow_depth }),
            core: Core { index: plan.index, waker },
            shares: Shares::default(),
            devices: Devices::default(),
            connections: Slots::with_capacity(16),
            sources: Sources::default(),
            has_unused_sources: false,
            paths: Vec::new(),
            requests: Requests::with_capacity(plan.requests),
            starved: Starved::default(),
            admin_work: AdminWork::default(),
            holdings: Vec::new(),
            memory_held: 0,
            memory_of_others: 0,
            was_memory_short: false,
            granted_at: 0,
            receive: Vec::new(),
            dirty: Vec::new(),
            departing: Vec::new(),
            leaving: Vec::new(),
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
                Verdict::Spin => std::hint::spin_loop(),
                Verdict::Sleep => self.sleep(now),
            }
        }
        self.close_all(clock::now());
    }

    fn load(&self) -> &Load {
        &self.loads[self.index]
    }
}
