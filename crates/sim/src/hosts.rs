//! Hosts: threads that keep a depth of commands outstanding over queues with separate limits.
//!
//! A *stream* is one thread of one job on one host. It keeps its depth of commands outstanding,
//! each for a random namespace, and has a queue to every namespace that it uses. A userspace
//! initiator makes one per namespace and thread. The Linux initiator has one per CPU and namespace,
//! and a thread uses those of its CPU.
//!
//! A queue holds at most `queue_commands` at the target; more commands wait on the host. At
//! `queue_requests` of both, the stream stops until that queue has room, and issues for no other
//! namespace either. (That is for a userspace initiator; Linux has no room beyond the queue.) Deep
//! loads therefore hold fewer commands than their depth.
//!
//! The target distributes a userspace initiator's queues over its cores in turn. Those of Linux are
//! placed at random, since a host opens queues on every CPU and uses only some.

use std::collections::VecDeque;

use nvmeof_pacing::{FlowId, PolicyConfig};
use nvmeof_random::SplitMix64;

use crate::commands::CommandKind;
use crate::nic::Outbox;
use crate::numbers::{id, whole};
use crate::pacing::TargetPacing;
use crate::platform::Platform;
use crate::scenario::{Delay, Device, Initiator, Nanos, Pacing, Scenario};

/// Hosts start one after the other within this time in ns: later ones find a busy target.
const STARTS: Nanos = 12_000_000;
/// Time in ns in which a stream builds up its depth. With an immediate start, all commands of one
/// host would be in line before all of another's, and a long line takes long to mix.
const RAMP: Nanos = 5_000_000;

/// One thread of one job on one host.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) host: u32,
    pub(crate) depth: u32,
    /// The part of the depth that it uses while it starts.
    pub(crate) ramp: u32,
    pub(crate) outstanding: u32,
    /// One for every device of the job, in its order.
    pub(crate) queues: Vec<u32>,
    /// Number of queues that are not open yet.
    pub(crate) closed: u32,
    pub(crate) from: Nanos,
    pub(crate) until: Nanos,
    /// Position in the list of sizes, and the cumulative fraction of commands up to it.
    sizes: Vec<(u32, f64)>,
    reads: f64,
    /// A command whose queue has no room.
    pub(crate) blocked: Option<PendingCommand>,
}

/// Command that is to be issued.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PendingCommand {
    pub(crate) queue: u32,
    pub(crate) size: u32,
    pub(crate) kind: CommandKind,
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
    /// Commands that the host issued and that are not answered.
    pub(crate) outstanding: u32,
    /// The part of these on the way to the target or there.
    pub(crate) at_target: u32,
    /// The part of these on the host.
    pub(crate) backlog: VecDeque<u32>,
    /// Streams that wait for room.
    pub(crate) blocked: Vec<u32>,
    pub(crate) outbox: Outbox,
    /// Number of its commands that started.
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
    start_together: bool,
    rng: SplitMix64,
}

impl Hosts {
    pub(crate) fn new(
        platform: &Platform,
        scenario: &Scenario,
        target_pacing: &mut TargetPacing,
        rng: SplitMix64,
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
        let start_together = matches!(
            &scenario.pacing,
            Pacing::Policy(PolicyConfig::Prototype(knobs)) if knobs.pacer.is_some()
        );
        let mut hosts =
            Self { streams, queues, sizes, commands_limit, requests_limit, start_together, rng };
        for (number, job) in scenario.jobs.iter().enumerate() {
            for host in 0..scenario.hosts {
                if job.hosts.is_empty() || job.hosts.contains(&host) {
                    for _ in 0..job.threads {
                        hosts.add_stream(scenario, number, host, platform.ports);
                    }
                }
            }
        }
        hosts.place(scenario, target_pacing, platform.stray_queues);
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

    /// Assigns a core to every queue: those of a host in turn, job by job. Some queues of userspace
    /// hosts then exchange cores with neighbors. Every core keeps its number of queues, but not its
    /// number per host.
    fn place(&mut self, scenario: &Scenario, target_pacing: &mut TargetPacing, strays: f64) {
        let cores = scenario.cores as usize;
        let mut last: Option<Vec<usize>> = None;
        for host in 0..scenario.hosts {
            let own = self.in_order_of_dealing(host, scenario);
            for (turn, at) in own.iter().enumerate() {
                self.queues[*at].core = turn % cores;
            }
            if scenario.initiator == Initiator::Spdk
                && let Some(others) = last.take()
            {
                let exchanged = strays * own.len().min(others.len()) as f64;
                for pair in 0..pairs_that_exchange(cores) {
                    self.exchange(&own, &others, whole(exchanged), 2 * pair, cores);
                }
            }
            last = Some(own);
        }
        for queue in &mut self.queues {
            let weight = scenario.jobs[queue.job as usize].weight;
            let path = u16::try_from(queue.port).unwrap_or(u16::MAX);
            queue.flow = Some(target_pacing.add_flow(queue.core, weight, queue.device, path));
        }
    }

    /// Returns the queues of a host: those of one job after another, at random. Jobs with fewer
    /// queues than there are cores are last and together, so that no core gets the same one of all.
    fn in_order_of_dealing(&mut self, host: u32, scenario: &Scenario) -> Vec<usize> {
        let mut groups: Vec<Vec<usize>> = Vec::new();
        let mut small = Vec::new();
        for job in 0..id(scenario.jobs.len()) {
            let of_job = |queue: &Queue| queue.host == host && queue.job == job;
            let mut queues: Vec<usize> =
                (0..self.queues.len()).filter(|at| of_job(&self.queues[*at])).collect();
            if queues.len() < scenario.cores as usize {
                small.append(&mut queues);
            } else {
                groups.push(queues);
            }
        }
        groups.push(small);
        if scenario.initiator == Initiator::Spdk {
            groups.iter_mut().for_each(|group| self.rng.shuffle(group));
        }
        groups.concat()
    }

    /// Exchanges `number` queues of one host with those of another: those of the first move from
    /// core `first` to the next one, the others back.
    fn exchange(
        &mut self,
        own: &[usize],
        others: &[usize],
        number: u64,
        first: usize,
        cores: usize,
    ) {
        for _ in 0..number {
            let (one, two) = (first % cores, (first + 1) % cores);
            for (queues, from, to) in [(own, one, two), (others, two, one)] {
                if let Some(at) = queues.iter().find(|at| self.queues[**at].core == from) {
                    self.queues[*at].core = to;
                }
            }
        }
    }

    /// Returns the next command of a stream, for a random one of its namespaces.
    pub(crate) fn want(&mut self, stream: u32) -> PendingCommand {
        let stream = &self.streams[stream as usize];
        let queue = stream.queues[self.rng.index(stream.queues.len())];
        let size = match stream.sizes.as_slice() {
            [only] => only.0,
            sizes => {
                let at = self.rng.unit();
                sizes.iter().find(|s| at < s.1).or(sizes.last()).map_or(0, |s| s.0)
            }
        };
        let read = stream.reads >= 1.0 || self.rng.unit() < stream.reads;
        PendingCommand {
            queue,
            size,
            kind: if read { CommandKind::Read } else { CommandKind::Write },
        }
    }

    pub(crate) fn queue(&mut self, number: u32) -> &mut Queue {
        &mut self.queues[number as usize]
    }

    pub(crate) fn stream(&mut self, number: u32) -> &mut Stream {
        &mut self.streams[number as usize]
    }

    /// Returns the start time of a stream: one host after the other, unless its job specifies one.
    /// The hosts of the io_pacing tests with a period started together: data that gathers at the
    /// port of one host would stay, if the rate is near that of the ports.
    pub(crate) fn start_of(&mut self, number: usize, hosts: u32) -> Nanos {
        let stream = &self.streams[number];
        let together = stream.from > 0 || self.start_together;
        let after = if together { 0 } else { STARTS * u64::from(stream.host) / u64::from(hosts) };
        stream.from + after + self.rng.next_u64() % 10_000
    }

    /// Enlarges the depth that a starting stream uses by one. Returns the time of the next
    /// increase, if the depth is not reached.
    pub(crate) fn ramp(&mut self, number: u32, now: Nanos) -> Option<Nanos> {
        let stream = self.stream(number);
        stream.ramp += 1;
        (stream.ramp < stream.depth).then(|| now + RAMP / u64::from(stream.depth))
    }

    /// Counts the queues with commands to run that never ran one.
    pub(crate) fn starved(&self) -> u32 {
        id(self.queues.iter().filter(|q| q.started == 0 && q.outstanding > 0).count())
    }
}

/// Returns the number of pairs of neighbors that exchange queues: one for every four cores, so that
/// loads without pacing collapse on eight and 16 cores, too (test 14).
fn pairs_that_exchange(cores: usize) -> usize {
    (cores / 4).max(1)
}

/// Returns the physical drive behind a device, if any, whether the device is a part of it, and the
/// delay that the device adds.
pub(crate) fn behind(device: Device) -> (Option<u32>, bool, Delay) {
    match device {
        Device::Null => (None, false, Delay::None),
        Device::Drive { drive, delay } => (Some(drive), false, delay),
        Device::Part { drive, delay } => (Some(drive), true, delay),
    }
}
