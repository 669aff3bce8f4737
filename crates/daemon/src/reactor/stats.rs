//! What a reactor counts, and what it says of itself when asked.
//!
//! Counting is plain addition on the reactor's own memory, always on. A report is made in the turn in
//! which it is asked for, and looks at that turn at three moments: when the capsules are in, when what
//! may start has been started, and when what could be sent has been.

use nvmeof_nvmf::request::Stage;
use nvmeof_nvmf::{DeviceId, PortId, QueueInfo};
use nvmeof_pacing::FlowStats;
use nvmeof_transport::SourceCounts;
use tokio::sync::oneshot;

use super::Reactor;
use super::connection::Connection;
use super::io::Pending;

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
    /// What each device did that has read anything here.
    pub(crate) devices: Vec<Device>,
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
#[derive(Debug, Clone, Copy)]
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
}

/// What a device did.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Device {
    pub(crate) id: DeviceId,
    /// Reads it has finished.
    pub(crate) reads: u64,
    /// Nanoseconds they took, added up.
    pub(crate) read_time: u64,
    /// Reads answered from memory that it lent.
    pub(crate) lent: u64,
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
    /// Its connection has left this reactor since the last report that went to the recorder.
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
    asked: Vec<Ask>,
    stages: [Stages; 3],
    /// Flows that ended since the recorder last asked; none are kept before it first has.
    ended: Vec<Flow>,
    recorded: bool,
}

impl Stats {
    /// Where the figures of this listener are kept.
    pub(super) fn port(&mut self, id: PortId) -> usize {
        let ports = &mut self.counters.ports;
        ports.iter().position(|port| port.id == id).unwrap_or_else(|| {
            let (polls, requests, completions, ios) = (0, 0, 0, 0);
            ports.push(Port { id, polls, requests, completions, ios, latency: 0, latency_max: 0 });
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

    /// The answer to an I/O command that came `since` has left.
    #[inline]
    pub(super) fn answered(&mut self, port: usize, since: u64, now: u64) {
        if let Some(port) = self.counters.ports.get_mut(port) {
            let took = now.saturating_sub(since);
            port.ios += 1;
            port.latency += took;
            port.latency_max = port.latency_max.max(took);
        }
    }

    /// A device has finished a read it was given `since`.
    #[inline]
    pub(super) fn read(&mut self, device: DeviceId, since: u64, now: u64) {
        let device = self.device(device);
        device.reads += 1;
        device.read_time += now.saturating_sub(since);
    }

    #[inline]
    pub(super) fn lent(&mut self, device: DeviceId) {
        self.device(device).lent += 1;
    }

    #[inline]
    fn device(&mut self, id: DeviceId) -> &mut Device {
        let devices = &mut self.counters.devices;
        // One a namespace; those in use are soon found.
        let at = devices.iter().position(|device| device.id == id).unwrap_or_else(|| {
            devices.push(Device { id, reads: 0, read_time: 0, lent: 0 });
            devices.len() - 1
        });
        &mut devices[at]
    }

    /// A completion queue is closed: its figures stay.
    pub(super) fn source_ended(&mut self, name: &str, counts: &SourceCounts) {
        add_source(&mut self.counters.sources, name, counts);
    }

    /// A device is closed: its figures are of no use any more.
    pub(super) fn forget(&mut self, device: DeviceId) {
        self.counters.devices.retain(|known| known.id != device);
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
                Pending::Admin(_) | Pending::Abort { .. } => &mut stages.admin,
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
            let mut counters = self.stats.counters.clone();
            for one in self.sources.iter() {
                add_source(&mut counters.sources, &one.name, &one.source.counts());
            }
            let report = Report {
                at: now,
                counters,
                pacer: self.pacer.counts(),
                stages: self.stats.stages,
                flows,
            };
            if recorder {
                self.stats.counters.ports.iter_mut().for_each(|port| port.latency_max = 0);
            }
            // An asker that has gone needs no answer.
            let _ = reply.send(report);
        }
    }

    fn flows_of(&self, connection: &Connection, ended: bool, flows: &mut Vec<Flow>) {
        for &(device, flow) in connection.flows() {
            let Some(figures) = self.pacer.flow_stats(flow) else { continue };
            flows.push(Flow { queue: connection.info.clone(), device, figures, ended });
        }
    }

    /// Keeps the figures of a connection's flows, which are about to end, for the recorder.
    pub(super) fn keep_flows(&mut self, key: super::slots::Key) {
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
