//! What a reactor counts, and what it says of itself when asked.
//!
//! Counting is plain addition on the reactor's own memory, always on. A report is made in the turn in
//! which it is asked for, and looks at that turn at three moments: when the capsules are in, when what
//! may start has been started, and when what could be sent has been.
//!
//! | file | what |
//! |---|---|
//! | `histogram` | times by their length |
//! | `tally` | commands by what they do and by whom they are for |

mod histogram;
mod tally;

use std::collections::BTreeMap;
use std::sync::Arc;

use nvmeof_nvmf::request::Stage;
use nvmeof_nvmf::{DeviceId, PortId, QueueInfo};
use nvmeof_pacing::FlowStats;
use nvmeof_transport::SourceCounts;
use nvmeof_wire::Status;
use tokio::sync::oneshot;

use super::Reactor;
use super::connection::{Connection, Lane};
use super::io::{Io, Pending};
use super::slots::{Key, Slots};
pub(crate) use histogram::Histogram;
pub(crate) use tally::{Class, ErrorClass, Latencies, Tally, Whose};

/// Names a reactor, or the daemon, keeps figures apart for; those of more are added up under no name. Hosts
/// choose their names themselves, so there is no other bound.
pub(crate) const NAMES_MAX: usize = 4096;

/// Everything since the reactor's start.
#[derive(Debug, Clone, Default)]
pub(crate) struct Counters {
    /// Turns of the loop: polls of everything there is to poll.
    pub(crate) turns: u64,
    /// Those that found something to do.
    pub(crate) busy_turns: u64,
    /// Calls of `Pacer::next`.
    pub(crate) pacer_calls: u64,
    /// What came and went by each listener that has had a connection here.
    pub(crate) ports: Vec<Port>,
    /// What each device did that has been asked for anything here.
    pub(crate) devices: Vec<Device>,
    /// From a read's data being complete in memory to its having left for the network.
    pub(crate) wire: Box<Histogram>,
    /// What the completion queues of each RDMA device brought.
    pub(crate) sources: Vec<FabricDevice>,
}

/// What the completion queues of an RDMA device brought.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct FabricDevice {
    pub(crate) name: String,
    pub(crate) counts: SourceCounts,
}

/// What came and went through a listener.
#[derive(Debug, Clone)]
pub(crate) struct Port {
    pub(crate) id: PortId,
    /// Looks for input.
    pub(crate) polls: u64,
    /// Commands of every kind.
    pub(crate) requests: u64,
    /// Completions of every kind.
    pub(crate) completions: u64,
    /// I/O commands whose answer has left.
    pub(crate) ios: u64,
    /// Nanoseconds from the capsule to then, added up.
    pub(crate) latency: u64,
    /// The longest since the last report that went to the recorder.
    pub(crate) latency_max: u64,
    /// The same times by their length.
    pub(crate) latencies: Box<Latencies>,
}

/// What a device did.
#[derive(Debug, Clone)]
pub(crate) struct Device {
    pub(crate) id: DeviceId,
    /// Reads it has finished.
    pub(crate) reads: u64,
    /// Nanoseconds they took, added up.
    pub(crate) read_time: u64,
    /// Reads answered from memory that it lent.
    pub(crate) lent: u64,
    /// Of every command for it: from the capsule to when the answer has left.
    pub(crate) latencies: Box<Latencies>,
}

/// How many requests stand where.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Stages {
    /// In their flow's lane.
    pub(crate) waiting: u64,
    /// Admitted, and short of a buffer.
    pub(crate) needs_buffer: u64,
    /// Fetching the host's data.
    pub(crate) pulling: u64,
    /// With the device.
    pub(crate) on_device: u64,
    /// With the fabric, to be sent.
    pub(crate) sending: u64,
    /// Admin and fabrics commands, wherever they stand.
    pub(crate) admin: u64,
}

/// One flow: what one connection does with one device.
#[derive(Debug, Clone)]
pub(crate) struct Flow {
    /// Whose it is; nothing if its Connect has been forgotten.
    pub(crate) queue: Option<QueueInfo>,
    pub(crate) device: DeviceId,
    pub(crate) figures: FlowStats,
    /// Its connection has left this reactor, or its device was closed, since the last report that went to the
    /// recorder.
    pub(crate) ended: bool,
}

/// What a reactor says of itself.
#[derive(Debug, Clone, Default)]
pub(crate) struct Report {
    /// When it was made.
    pub(crate) at: u64,
    pub(crate) counters: Counters,
    pub(crate) pacer: nvmeof_pacing::Counts,
    /// As the capsules were in, as what may start was started, as what could be sent was.
    pub(crate) stages: [Stages; 3],
    pub(crate) flows: Vec<Flow>,
    /// What the connections of now have done here, one by one, each by device.
    pub(crate) tallies: Vec<(Whose, Tally)>,
    /// What those before them have done.
    pub(crate) past: Arc<BTreeMap<Whose, Tally>>,
    /// What all have done with devices that are closed.
    pub(crate) closed: Tally,
}

/// A question for a [`Report`].
#[derive(Debug)]
pub(crate) struct Ask {
    /// Answered at the end of the turn.
    pub(crate) reply: oneshot::Sender<Report>,
    /// The recorder asks: flows that have ended are kept for it, and the longest latency is of its
    /// interval.
    pub(crate) recorder: bool,
}

/// The moments of a turn at which requests are counted.
#[derive(Debug, Clone, Copy)]
pub(super) enum Moment {
    Received,
    Admitted,
    Sent,
}

/// The counters and what is needed to report them.
#[derive(Debug, Default)]
pub(super) struct Stats {
    pub(super) counters: Counters,
    /// Those of `counters` while they are counted: who counts knows where.
    devices: Slots<Device>,
    past: Arc<BTreeMap<Whose, Tally>>,
    closed: Tally,
    asked: Vec<Ask>,
    stages: [Stages; 3],
    /// Flows that ended since the recorder last asked; none are kept before it first has.
    ended: Vec<Flow>,
    recorded: bool,
}

impl Port {
    pub(crate) fn new(id: PortId) -> Self {
        let (polls, requests, completions, ios) = (0, 0, 0, 0);
        let latencies = Box::default();
        Self { id, polls, requests, completions, ios, latency: 0, latency_max: 0, latencies }
    }
}

impl Device {
    pub(crate) fn new(id: DeviceId) -> Self {
        Self { id, reads: 0, read_time: 0, lent: 0, latencies: Box::default() }
    }
}

impl Stats {
    /// Where the figures of this listener are kept.
    pub(super) fn port(&mut self, id: PortId) -> usize {
        let ports = &mut self.counters.ports;
        ports.iter().position(|port| port.id == id).unwrap_or_else(|| {
            ports.push(Port::new(id));
            ports.len() - 1
        })
    }

    #[inline]
    pub(super) fn polled(&mut self, port: usize) {
        if let Some(port) = self.counters.ports.get_mut(port) {
            port.polls += 1;
        }
    }

    #[inline]
    pub(super) fn requested(&mut self, port: usize) {
        if let Some(port) = self.counters.ports.get_mut(port) {
            port.requests += 1;
        }
    }

    #[inline]
    pub(super) fn completed(&mut self, port: usize) {
        if let Some(port) = self.counters.ports.get_mut(port) {
            port.completions += 1;
        }
    }

    /// The answer to an I/O command of this connection has left.
    #[inline]
    pub(super) fn answered(
        &mut self,
        connection: &mut Connection,
        io: &Io,
        status: Status,
        now: u64,
    ) {
        let took = now.saturating_sub(io.arrived);
        let command = io.request.io();
        let class = Class::of(command.kind);
        if let Some(port) = self.counters.ports.get_mut(connection.port) {
            port.ios += 1;
            port.latency += took;
            port.latency_max = port.latency_max.max(took);
            port.latencies.record(class, took);
        }
        // None of a connection that is about to end.
        if let Some(lane) = connection.lanes.get_mut(io.lane) {
            lane.tally.count(class, command.data_len(), status);
        }
        if let Some(device) = self.devices.get_mut(io.figures) {
            device.latencies.record(class, took);
        }
    }

    /// The data of a read that was complete in memory at `landed` has left.
    #[inline]
    pub(super) fn drained(&mut self, landed: u64, now: u64) {
        self.counters.wire.record(now.saturating_sub(landed));
    }

    /// A device has finished a read it was given `since`.
    #[inline]
    pub(super) fn read(&mut self, device: Key, since: u64, now: u64) {
        if let Some(device) = self.devices.get_mut(device) {
            device.reads += 1;
            device.read_time += now.saturating_sub(since);
        }
    }

    #[inline]
    pub(super) fn lent(&mut self, device: Key) {
        if let Some(device) = self.devices.get_mut(device) {
            device.lent += 1;
        }
    }

    /// Where the figures of this device are kept.
    pub(super) fn device(&mut self, id: DeviceId) -> Key {
        let known = self.devices.iter().find(|(_, device)| device.id == id).map(|(key, _)| key);
        known.unwrap_or_else(|| self.devices.insert(Device::new(id)))
    }

    /// A completion queue is closed: its figures stay.
    pub(super) fn source_ended(&mut self, name: &str, counts: &SourceCounts) {
        add_source(&mut self.counters.sources, name, counts);
    }

    /// A device is closed: its figures are of no use any more, but for sums over all.
    pub(super) fn forget(&mut self, device: DeviceId) {
        let known = self.devices.iter().find(|(_, known)| known.id == device).map(|(key, _)| key);
        if let Some(key) = known {
            self.devices.remove(key);
        }
        if self.past.keys().any(|whose| whose.device == Some(device.0)) {
            let Self { past, closed, .. } = self;
            Arc::make_mut(past).retain(|whose, tally| {
                let stays = whose.device != Some(device.0);
                if !stays {
                    closed.add(tally);
                }
                stays
            });
        }
    }

    /// A connection ends: what it has done is kept under its names, for as long as the device is there.
    fn keep(&mut self, connection: &Connection) {
        let (past, info) = (Arc::make_mut(&mut self.past), connection.info.as_ref());
        add_tally(past, Whose::of(info, None), &connection.tally);
        for (_, lane) in connection.lanes.iter() {
            if lane.is_ending {
                self.closed.add(&lane.tally);
            } else {
                add_tally(past, Whose::of(info, Some(lane.device)), &lane.tally);
            }
        }
    }

    /// A lane ends with its device: its flow's figures are for the recorder.
    pub(super) fn keep_lane(
        &mut self,
        connection: &Connection,
        lane: &Lane,
        figures: Option<FlowStats>,
    ) {
        self.closed.add(&lane.tally);
        if let Some(figures) = figures.filter(|_| self.recorded) {
            let (queue, device) = (connection.info.clone(), lane.device);
            self.ended.push(Flow { queue, device, figures, ended: true });
        }
    }

    pub(super) fn ask(&mut self, ask: Ask) {
        self.recorded |= ask.recorder;
        self.asked.push(ask);
    }

    #[inline]
    pub(super) fn is_asked(&self) -> bool {
        !self.asked.is_empty()
    }
}

/// What a connection has done, in parts.
fn tallies_of(connection: &Connection, mut each: impl FnMut(Whose, &Tally)) {
    let info = connection.info.as_ref();
    each(Whose::of(info, None), &connection.tally);
    for (_, lane) in connection.lanes.iter() {
        each(Whose::of(info, Some(lane.device)), &lane.tally);
    }
}

/// Adds to what was done for somebody; under no name if there are too many.
pub(crate) fn add_tally(tallies: &mut BTreeMap<Whose, Tally>, whose: Whose, more: &Tally) {
    if more.is_empty() {
        return;
    }
    let full = tallies.len() >= NAMES_MAX && !tallies.contains_key(&whose);
    let whose = if full { Whose::default() } else { whose };
    tallies.entry(whose).or_default().add(more);
}

/// Adds to the figures of a device, by its name.
pub(crate) fn add_source(sources: &mut Vec<FabricDevice>, name: &str, counts: &SourceCounts) {
    match sources.iter_mut().find(|known| known.name == name) {
        Some(known) => known.counts.add(counts),
        None => sources.push(FabricDevice { name: name.to_owned(), counts: *counts }),
    }
}

impl Reactor {
    /// Counts the requests, if a report is wanted.
    #[inline]
    pub(super) fn moment(&mut self, moment: Moment) {
        if self.stats.is_asked() {
            self.stats.stages[moment as usize] = self.stages();
        }
    }

    #[cold]
    fn stages(&self) -> Stages {
        let mut stages = Stages::default();
        for (_, pending) in self.requests.iter() {
            let count = match pending {
                Pending::Admin(_) | Pending::Abort(_) | Pending::Flush(_) => &mut stages.admin,
                Pending::Io(io) => match io.request.stage() {
                    Stage::Waiting => &mut stages.waiting,
                    Stage::NeedsBuffer => &mut stages.needs_buffer,
                    Stage::Pulling => &mut stages.pulling,
                    Stage::OnDevice => &mut stages.on_device,
                    Stage::Sending | Stage::Done => &mut stages.sending,
                },
            };
            *count += 1;
        }
        stages
    }

    /// Answers whoever asked for a report, at the end of a turn.
    #[cold]
    pub(super) fn report(&mut self, now: u64) {
        for Ask { reply, recorder } in std::mem::take(&mut self.stats.asked) {
            let mut flows = Vec::new();
            if recorder {
                flows.append(&mut self.stats.ended);
            }
            for (_, connection) in self.connections.iter() {
                self.flows_of(connection, false, &mut flows);
            }
            let mut tallies = Vec::new();
            for (_, connection) in self.connections.iter() {
                tallies_of(connection, |whose, tally| tallies.push((whose, *tally)));
            }
            let mut counters = self.stats.counters.clone();
            counters.devices = self.stats.devices.iter().map(|(_, one)| one.clone()).collect();
            for one in self.sources.iter() {
                add_source(&mut counters.sources, &one.name, &one.source.counts());
            }
            let report = Report {
                at: now,
                counters,
                pacer: self.pacer.counts(),
                stages: self.stats.stages,
                flows,
                tallies,
                past: Arc::clone(&self.stats.past),
                closed: self.stats.closed,
            };
            if recorder {
                self.stats.counters.ports.iter_mut().for_each(|port| port.latency_max = 0);
            }
            // An asker that has gone needs no answer.
            let _ = reply.send(report);
        }
    }

    fn flows_of(&self, connection: &Connection, ended: bool, flows: &mut Vec<Flow>) {
        for (_, lane) in connection.lanes.iter() {
            let Some(figures) = self.pacer.flow_stats(lane.flow) else { continue };
            let (queue, device) = (connection.info.clone(), lane.device);
            flows.push(Flow { queue, device, figures, ended });
        }
    }

    /// Keeps the figures of a connection, whose flows are about to end; the flows' own for the recorder.
    pub(super) fn keep_flows(&mut self, key: Key) {
        if let Some(connection) = self.connections.get(key) {
            self.stats.keep(connection);
        }
        if !self.stats.recorded {
            return;
        }
        let mut ended = std::mem::take(&mut self.stats.ended);
        if let Some(connection) = self.connections.get(key) {
            self.flows_of(connection, true, &mut ended);
        }
        self.stats.ended = ended;
    }
}
