//! Hosts: threads that keep a depth of commands outstanding over queues with limits of their own.
//!
//! A *stream* is one thread of one job on one host. It keeps its depth of commands outstanding,
//! each for a namespace taken at random, and has a queue to every namespace it uses: a userspace
//! initiator makes one a namespace and thread; the kernel's has one a CPU and namespace, and a thread
//! uses those of its CPU. A queue holds at most `queue_commands` at the target; what is beyond waits on
//! the host, and at `queue_requests` of both (a userspace initiator; the kernel's has no room beyond the
//! queue) the stream stops until that queue has room: it issues for no other namespace meanwhile.
//! That is why deep loads hold fewer commands than their depth.
//!
//! The target spreads a userspace initiator's queues over its cores in turn. The kernel's fall at random,
//! since a host opens queues on every CPU and uses only some.

use std::collections::VecDeque;

use nvmeof_pacing::FlowId;

use crate::commands::Kind;
use crate::nic::Outbox;
use crate::numbers::{id, nanos};
use crate::pacing::Gates;
use crate::platform::Platform;
use crate::rng::Rng;
use crate::scenario::{Device, Initiator, Nanos, Scenario};

/// Hosts start one after the other within so many ns: those that come later find the target at work.
const STARTS: Nanos = 12_000_000;
/// A stream builds its depth up in so many ns. At once, all of one host's commands would stand in line
/// before all of another's, and a deep line takes long to mix.
const RAMP: Nanos = 5_000_000;

/// One thread of one job on one host.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) host: u32,
    pub(crate) depth: u32,
    /// Of the depth, what it uses while it starts.
    pub(crate) ramp: u32,
    pub(crate) outstanding: u32,
    /// One for every device of the job, in its order.
    pub(crate) queues: Vec<u32>,
    /// Queues that are not open yet.
    pub(crate) closed: u32,
    pub(crate) from: Nanos,
    pub(crate) until: Nanos,
    /// Position in the list of sizes, and the share of commands up to and with it.
    sizes: Vec<(u32, f64)>,
    reads: f64,
    /// A command whose queue has no room.
    pub(crate) blocked: Option<Wanted>,
}

/// A command that is to be issued.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted {
    pub(crate) queue: u32,
    pub(crate) size: u32,
    pub(crate) kind: Kind,
}

/// One queue: a connection between a host and a core.
#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) host: u32,
    pub(crate) job: u32,
    pub(crate) device: u32,
    pub(crate) port: usize,
    pub(crate) core: usize,
    pub(crate) flow: Option<FlowId>,
    pub(crate) open: bool,
    /// Issued by the host and not answered.
    pub(crate) outstanding: u32,
    /// Of these, on the way to the target or there.
    pub(crate) at_target: u32,
    /// Of these, on the host.
    pub(crate) backlog: VecDeque<u32>,
    /// Streams that wait for room.
    pub(crate) blocked: Vec<u32>,
    pub(crate) outbox: Outbox,
    /// Commands that it got to run.
    pub(crate) started: u64,
}

/// All hosts.
#[derive(Debug)]
pub(crate) struct Hosts {
    pub(crate) streams: Vec<Stream>,
    pub(crate) queues: Vec<Queue>,
    /// Distinct sizes of commands in bytes, ascending.
    pub(crate) sizes: Vec<u32>,
    pub(crate) commands_limit: u32,
    pub(crate) requests_limit: u32,
    rng: Rng,
}

impl Hosts {
    pub(crate) fn new(
        platform: &Platform,
        scenario: &Scenario,
        gates: &mut Gates,
        rng: Rng,
    ) -> Self {
        let mut sizes: Vec<u32> =
            scenario.jobs.iter().flat_map(|job| job.blocks.iter().map(|b| b.0)).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let requests_limit = match scenario.initiator {
            Initiator::Spdk => platform.queue_requests.max(platform.queue_commands),
            Initiator::Kernel => platform.queue_commands,
        };
        let commands_limit = platform.queue_commands;
        let (streams, queues) = (Vec::new(), Vec::new());
        let mut hosts = Self { streams, queues, sizes, commands_limit, requests_limit, rng };
        for (number, job) in scenario.jobs.iter().enumerate() {
            for host in 0..scenario.hosts {
                if job.hosts.is_empty() || job.hosts.contains(&host) {
                    for _ in 0..job.threads {
                        hosts.add_stream(scenario, number, host, platform.ports);
                    }
                }
            }
        }
        hosts.place(scenario, gates, platform.stray_queues);
        hosts
    }

    fn add_stream(&mut self, scenario: &Scenario, number: usize, host: u32, ports: u32) {
        let job = &scenario.jobs[number];
        let all: f64 = job.blocks.iter().map(|b| b.1).sum();
        let mut upto = 0.0;
        let share = |&(bytes, share): &(u32, f64)| {
            upto += share / all;
            let at = self.sizes.binary_search(&bytes).unwrap_or(0);
            (id(at), upto)
        };
        let sizes = job.blocks.iter().map(share).collect();
        let first = self.queues.len();
        for &device in &job.devices {
            self.queues.push(Queue {
                host,
                job: id(number),
                device: id(device),
                port: (host % ports) as usize,
                core: 0,
                flow: None,
                open: false,
                outstanding: 0,
                at_target: 0,
                backlog: VecDeque::new(),
                blocked: Vec::new(),
                outbox: Outbox::default(),
                started: 0,
            });
        }
        self.streams.push(Stream {
            host,
            depth: job.queue_depth,
            ramp: 0,
            outstanding: 0,
            queues: (first..self.queues.len()).map(id).collect(),
            closed: id(job.devices.len()),
            from: job.from,
            until: job.until.unwrap_or(Nanos::MAX),
            sizes,
            reads: job.reads,
            blocked: None,
        });
    }

    /// Gives every queue its core: a host's in turn. Of userspace hosts some then change places between
    /// neighbours, so that every core has as many queues as before, but not as many of each host.
    fn place(&mut self, scenario: &Scenario, gates: &mut Gates, strays: f64) {
        let cores = scenario.cores as usize;
        let mut last: Option<Vec<usize>> = None;
        for host in 0..scenario.hosts {
            let mut own: Vec<usize> =
                (0..self.queues.len()).filter(|at| self.queues[*at].host == host).collect();
            if scenario.initiator == Initiator::Spdk {
                self.rng.shuffle(&mut own);
            }
            for (turn, at) in own.iter().enumerate() {
                self.queues[*at].core = turn % cores;
            }
            if scenario.initiator == Initiator::Spdk
                && let Some(others) = last.take()
            {
                let exchanged = strays * own.len().min(others.len()) as f64;
                self.exchange(&own, &others, nanos(exchanged), cores);
            }
            last = Some(own);
        }
        for queue in &mut self.queues {
            let weight = scenario.jobs[queue.job as usize].weight;
            let path = u16::try_from(queue.port).unwrap_or(u16::MAX);
            queue.flow = Some(gates.add_flow(queue.core, weight, queue.device, path));
        }
    }

    /// So many queues of one host and of another change places: those of the one move from the first
    /// core to the second, those of the other back.
    fn exchange(&mut self, own: &[usize], others: &[usize], number: u64, cores: usize) {
        for _ in 0..number {
            for (queues, from, to) in [(own, 0, 1 % cores), (others, 1 % cores, 0)] {
                if let Some(at) = queues.iter().find(|at| self.queues[**at].core == from) {
                    self.queues[*at].core = to;
                }
            }
        }
    }

    /// What a stream issues next: for one of its namespaces at random.
    pub(crate) fn want(&mut self, stream: u32) -> Wanted {
        let stream = &self.streams[stream as usize];
        let queue = stream.queues[self.rng.below(stream.queues.len())];
        let size = match stream.sizes.as_slice() {
            [only] => only.0,
            sizes => {
                let at = self.rng.unit();
                sizes.iter().find(|s| at < s.1).or(sizes.last()).map_or(0, |s| s.0)
            }
        };
        let read = stream.reads >= 1.0 || self.rng.unit() < stream.reads;
        Wanted { queue, size, kind: if read { Kind::Read } else { Kind::Write } }
    }

    pub(crate) fn queue(&mut self, number: u32) -> &mut Queue {
        &mut self.queues[number as usize]
    }

    pub(crate) fn stream(&mut self, number: u32) -> &mut Stream {
        &mut self.streams[number as usize]
    }

    /// When a stream begins: one host after the other, unless its job says when.
    pub(crate) fn start_of(&mut self, number: usize, hosts: u32) -> Nanos {
        let stream = &self.streams[number];
        let after = STARTS * u64::from(stream.host) / u64::from(hosts);
        let after = if stream.from > 0 { 0 } else { after };
        stream.from + after + self.rng.next() % 10_000
    }

    /// A starting stream may use one more of its depth; yields when the next, if it has not all.
    pub(crate) fn ramp(&mut self, number: u32, now: Nanos) -> Option<Nanos> {
        let stream = self.stream(number);
        stream.ramp += 1;
        (stream.ramp < stream.depth).then(|| now + RAMP / u64::from(stream.depth))
    }

    /// Queues that have something to run and never ran any.
    pub(crate) fn starved(&self) -> u32 {
        id(self.queues.iter().filter(|q| q.started == 0 && q.outstanding > 0).count())
    }
}

/// Number of the physical drive behind a device, if any, and what the device adds.
pub(crate) fn behind(device: Device) -> (Option<u32>, bool, Nanos) {
    match device {
        Device::Null => (None, false, 0),
        Device::Drive { drive, delay } => (Some(drive), false, delay),
        Device::Part { drive, delay } => (Some(drive), true, delay),
    }
}
