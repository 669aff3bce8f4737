//! Counters of a reactor, and reports of them.
//!
//! Counting is always on. It is plain addition in the reactor's own memory. A report is made in the
//! turn in which it is requested. It samples that turn at three points: after the capsules have
//! been received, after admission, and after the output has been sent.
//!
//! | file | content |
//! |---|---|
//! | `histogram` | histogram of times |
//! | `command_counters` | counters of commands by class, host, subsystem and device |

mod command_counters;
mod histogram;

use std::collections::BTreeMap;
use std::sync::Arc;

use nvmeof_nvmf::request::Stage;
use nvmeof_nvmf::{DeviceId, PortId, QueueInfo};
use nvmeof_pacing::FlowStats;
use nvmeof_transport::CqCounters;
use nvmeof_wire::Status;
use tokio::sync::oneshot;

use super::Reactor;
use super::connection::{Connection, DeviceFlow};
use super::gen_slab::{GenSlab, SlotKey};
use super::io::{Io, Pending};
pub(crate) use command_counters::{Class, CommandCounters, CounterKey, ErrorClass, Latencies};
pub(crate) use histogram::Histogram;

/// Maximum number of names with separate counters on a reactor, or in the daemon.
///
/// All further names share one entry. Hosts choose their names, so there is no other limit.
pub(crate) const NAMES_MAX: usize = 4096;

/// Counters since the reactor's start.
#[derive(Debug, Clone, Default)]
pub(crate) struct Counters {
    /// Turns of the loop, each of which polls every input.
    pub(crate) turns: u64,
    /// Turns that found work.
    pub(crate) busy_turns: u64,
    /// Calls of `Pacer::next`.
    pub(crate) pacer_calls: u64,
    /// Counters of each listener that has had a connection here.
    pub(crate) ports: Vec<Port>,
    /// Counters of each device that has received a command here.
    pub(crate) devices: Vec<DeviceStats>,
    /// Wire delay of reads: from the data being complete in memory until it was sent.
    pub(crate) wire: Box<Histogram>,
    /// Counters of the completion queues of each RDMA device.
    pub(crate) sources: Vec<RdmaDevice>,
}

/// Counters of the completion queues of an RDMA device.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct RdmaDevice {
    pub(crate) name: String,
    pub(crate) counts: CqCounters,
}

/// Counters of a listener.
#[derive(Debug, Clone)]
pub(crate) struct Port {
    pub(crate) id: PortId,
    /// Polls for input.
    pub(crate) polls: u64,
    /// Commands of every kind.
    pub(crate) requests: u64,
    /// Completions of every kind.
    pub(crate) completions: u64,
    /// I/O commands whose response has been sent.
    pub(crate) ios: u64,
    /// Sum of their latencies in nanoseconds, from the capsule to the sent response.
    pub(crate) latency: u64,
    /// Maximum latency since the last report to the recorder.
    pub(crate) latency_max: u64,
    /// Histograms of the same latencies.
    pub(crate) latencies: Box<Latencies>,
}

/// Counters of a device.
#[derive(Debug, Clone)]
pub(crate) struct DeviceStats {
    pub(crate) id: DeviceId,
    /// Reads that it has completed.
    pub(crate) reads: u64,
    /// Sum of the device times of these reads in nanoseconds.
    pub(crate) read_time: u64,
    /// Zero-copy reads, which are answered from device memory.
    pub(crate) zero_copy_reads: u64,
    /// Latencies of all its commands, from the capsule to the sent response.
    pub(crate) latencies: Box<Latencies>,
}

/// Number of requests in each stage.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct StageCounts {
    /// Queued in their flow.
    pub(crate) waiting: u64,
    /// Admitted, but without a buffer.
    pub(crate) buffer_wait: u64,
    /// Fetching the host's data.
    pub(crate) h2c_transfer: u64,
    /// At the device.
    pub(crate) on_device: u64,
    /// At the fabric, to be sent.
    pub(crate) sending: u64,
    /// Admin and fabrics commands in every stage.
    pub(crate) admin: u64,
}

/// One flow: one connection's commands for one device.
#[derive(Debug, Clone)]
pub(crate) struct Flow {
    /// Its queue, or `None` if the Connect has been dropped.
    pub(crate) queue: Option<QueueInfo>,
    pub(crate) device: DeviceId,
    pub(crate) figures: FlowStats,
    /// Its connection has left this reactor, or its device was closed.
    ///
    /// Either happened since the last report to the recorder.
    pub(crate) ended: bool,
}

/// Report of a reactor.
#[derive(Debug, Clone, Default)]
pub(crate) struct Report {
    /// Time of the report.
    pub(crate) at: u64,
    pub(crate) counters: Counters,
    pub(crate) pacer: nvmeof_pacing::PacerCounters,
    /// Samples after the capsules were received, after admission, and after the output was sent.
    pub(crate) stages: [StageCounts; 3],
    pub(crate) flows: Vec<Flow>,
    /// Counters of the current connections on this reactor, one entry per connection and device.
    pub(crate) command_counters: Vec<(CounterKey, CommandCounters)>,
    /// Counters of earlier connections.
    pub(crate) past: Arc<BTreeMap<CounterKey, CommandCounters>>,
    /// Counters of all connections for devices that are closed.
    pub(crate) closed: CommandCounters,
}

/// Request for a [`Report`].
#[derive(Debug)]
pub(crate) struct ReportRequest {
    /// Receives the report at the end of the turn.
    pub(crate) reply: oneshot::Sender<Report>,
    /// The recorder is the requester.
    ///
    /// Ended flows are kept for it, and the maximum latency is that of its interval.
    pub(crate) recorder: bool,
}

/// Points of a turn at which requests are counted.
#[derive(Debug, Clone, Copy)]
pub(super) enum SamplePoint {
    Received,
    Admitted,
    Sent,
}

/// The counters and the state to report them.
#[derive(Debug, Default)]
pub(super) struct Stats {
    pub(super) counters: Counters,
    /// The devices of `counters` while they are counted. Callers store their keys.
    devices: GenSlab<DeviceStats>,
    past: Arc<BTreeMap<CounterKey, CommandCounters>>,
    closed: CommandCounters,
    asked: Vec<ReportRequest>,
    stages: [StageCounts; 3],
    /// Flows that ended since the last report to the recorder.
    ///
    /// None are kept before its first request.
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

impl DeviceStats {
    pub(crate) fn new(id: DeviceId) -> Self {
        Self { id, reads: 0, read_time: 0, zero_copy_reads: 0, latencies: Box::default() }
    }
}

impl Stats {
    /// Returns the index of this listener's counters.
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

    /// Counts an I/O command of this connection whose response has been sent.
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
        if let Some(port) = self.counters.ports.get_mut(connection.listener) {
            port.ios += 1;
            port.latency += took;
            port.latency_max = port.latency_max.max(took);
            port.latencies.record(class, took);
        }
        // A connection that is about to end has no flows.
        if let Some(device_flow) = connection.device_flows.get_mut(io.device_flow) {
            device_flow.counters.count(class, command.data_len(), status);
        }
        if let Some(device) = self.devices.get_mut(io.stats_key) {
            device.latencies.record(class, took);
        }
    }

    /// Records that a read whose data was complete in memory at `device_done_at` has been sent.
    #[inline]
    pub(super) fn drained(&mut self, device_done_at: u64, now: u64) {
        self.counters.wire.record(now.saturating_sub(device_done_at));
    }

    /// Records that a device has completed a read that it received at `since`.
    #[inline]
    pub(super) fn read(&mut self, device: SlotKey, since: u64, now: u64) {
        if let Some(device) = self.devices.get_mut(device) {
            device.reads += 1;
            device.read_time += now.saturating_sub(since);
        }
    }

    #[inline]
    pub(super) fn zero_copy_read(&mut self, device: SlotKey) {
        if let Some(device) = self.devices.get_mut(device) {
            device.zero_copy_reads += 1;
        }
    }

    /// Returns the key of this device's counters.
    pub(super) fn device(&mut self, id: DeviceId) -> SlotKey {
        let known = self.devices.iter().find(|(_, device)| device.id == id).map(|(key, _)| key);
        known.unwrap_or_else(|| self.devices.insert(DeviceStats::new(id)))
    }

    /// Keeps the counters of a completion queue that is closed.
    pub(super) fn source_ended(&mut self, name: &str, counts: &CqCounters) {
        add_source(&mut self.counters.sources, name, counts);
    }

    /// Drops the counters of a closed device, except for the sums over all devices.
    pub(super) fn forget(&mut self, device: DeviceId) {
        let known = self.devices.iter().find(|(_, known)| known.id == device).map(|(key, _)| key);
        if let Some(key) = known {
            self.devices.remove(key);
        }
        if self.past.keys().any(|whose| whose.device == Some(device.0)) {
            let Self { past, closed, .. } = self;
            Arc::make_mut(past).retain(|whose, counters| {
                let stays = whose.device != Some(device.0);
                if !stays {
                    closed.add(counters);
                }
                stays
            });
        }
    }

    /// Keeps the counters of an ending connection under its names while the device exists.
    fn keep(&mut self, connection: &Connection) {
        let (past, info) = (Arc::make_mut(&mut self.past), connection.info.as_ref());
        add_counters(past, CounterKey::of(info, None), &connection.counters);
        for (_, device_flow) in connection.device_flows.iter() {
            if device_flow.is_ending {
                self.closed.add(&device_flow.counters);
            } else {
                add_counters(
                    past,
                    CounterKey::of(info, Some(device_flow.device)),
                    &device_flow.counters,
                );
            }
        }
    }

    /// Keeps the counters of a flow that ends with its device, for the recorder.
    pub(super) fn keep_device_flow(
        &mut self,
        connection: &Connection,
        device_flow: &DeviceFlow,
        figures: Option<FlowStats>,
    ) {
        self.closed.add(&device_flow.counters);
        if let Some(figures) = figures.filter(|_| self.recorded) {
            let (queue, device) = (connection.info.clone(), device_flow.device);
            self.ended.push(Flow { queue, device, figures, ended: true });
        }
    }

    pub(super) fn ask(&mut self, ask: ReportRequest) {
        self.recorded |= ask.recorder;
        self.asked.push(ask);
    }

    #[inline]
    pub(super) fn is_asked(&self) -> bool {
        !self.asked.is_empty()
    }
}

/// Visits the counters of a connection, one part at a time.
fn visit_counters(connection: &Connection, mut each: impl FnMut(CounterKey, &CommandCounters)) {
    let info = connection.info.as_ref();
    each(CounterKey::of(info, None), &connection.counters);
    for (_, device_flow) in connection.device_flows.iter() {
        each(CounterKey::of(info, Some(device_flow.device)), &device_flow.counters);
    }
}

/// Adds to the counters of an entry, or to the unnamed entry if there are too many.
pub(crate) fn add_counters(
    sums: &mut BTreeMap<CounterKey, CommandCounters>,
    whose: CounterKey,
    more: &CommandCounters,
) {
    if more.is_empty() {
        return;
    }
    let full = sums.len() >= NAMES_MAX && !sums.contains_key(&whose);
    let whose = if full { CounterKey::default() } else { whose };
    sums.entry(whose).or_default().add(more);
}

/// Adds to the counters of an RDMA device, by its name.
pub(crate) fn add_source(sources: &mut Vec<RdmaDevice>, name: &str, counts: &CqCounters) {
    match sources.iter_mut().find(|known| known.name == name) {
        Some(known) => known.counts.add(counts),
        None => sources.push(RdmaDevice { name: name.to_owned(), counts: *counts }),
    }
}

impl Reactor {
    /// Counts the requests by stage if a report is requested.
    #[inline]
    pub(super) fn moment(&mut self, moment: SamplePoint) {
        if self.stats.is_asked() {
            self.stats.stages[moment as usize] = self.stages();
        }
    }

    #[cold]
    fn stages(&self) -> StageCounts {
        let mut stages = StageCounts::default();
        for (_, pending) in self.requests.iter() {
            let count = match pending {
                Pending::Admin(_) | Pending::Abort(_) | Pending::Flush(_) => &mut stages.admin,
                Pending::Io(io) => match io.request.stage() {
                    Stage::Waiting => &mut stages.waiting,
                    Stage::NeedsBuffer => &mut stages.buffer_wait,
                    Stage::Pulling => &mut stages.h2c_transfer,
                    Stage::OnDevice => &mut stages.on_device,
                    Stage::Sending | Stage::Done => &mut stages.sending,
                },
            };
            *count += 1;
        }
        stages
    }

    /// Replies to the report requests at the end of a turn.
    #[cold]
    pub(super) fn report(&mut self, now: u64) {
        for ReportRequest { reply, recorder } in std::mem::take(&mut self.stats.asked) {
            let mut flows = Vec::new();
            if recorder {
                flows.append(&mut self.stats.ended);
            }
            for (_, connection) in self.connections.iter() {
                self.flows_of(connection, false, &mut flows);
            }
            let mut command_counters = Vec::new();
            for (_, connection) in self.connections.iter() {
                visit_counters(connection, |whose, counters| {
                    command_counters.push((whose, *counters));
                });
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
                command_counters,
                past: Arc::clone(&self.stats.past),
                closed: self.stats.closed,
            };
            if recorder {
                self.stats.counters.ports.iter_mut().for_each(|port| port.latency_max = 0);
            }
            // A requester that has gone needs no reply.
            let _ = reply.send(report);
        }
    }

    fn flows_of(&self, connection: &Connection, ended: bool, flows: &mut Vec<Flow>) {
        for (_, device_flow) in connection.device_flows.iter() {
            let Some(figures) = self.pacer.flow_stats(device_flow.flow) else { continue };
            let (queue, device) = (connection.info.clone(), device_flow.device);
            flows.push(Flow { queue, device, figures, ended });
        }
    }

    /// Keeps the counters of a connection whose flows are about to end.
    ///
    /// The counters of the flows themselves are kept for the recorder.
    pub(super) fn keep_flows(&mut self, key: SlotKey) {
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
