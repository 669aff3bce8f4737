//! One host connection as its reactor keeps it.

use std::sync::Arc;

use nvmeof_core::dma::{Buffer, Reserve};
use nvmeof_nvmf::{DeviceId, Queue, QueueInfo};
use nvmeof_pacing::{FlowConfig, FlowId, Pacer};
use nvmeof_transport::HostQueue;

use super::slots::Key;
use super::stats::{Stats, Tally};

/// A connection: the fabric's end, the NVMe queue, and where its commands wait.
#[derive(Debug)]
pub(crate) struct Connection {
    /// The fabric's end.
    pub(crate) fabric: Box<dyn HostQueue>,
    /// The NVMe queue.
    pub(crate) queue: Box<Queue>,
    /// Commands between capsule and response on this reactor.
    pub(crate) in_flight: u32,
    /// Whether and where it is going.
    pub(crate) phase: Phase,
    /// When it last brought or took anything; decides who is polled without asking epoll.
    pub(crate) active_at: u64,
    /// It is in the reactor's list of connections to receive from.
    pub(crate) listed: bool,
    /// It may hold more than the last call brought: the reactor must not sleep.
    pub(crate) unsettled: bool,
    /// It is in the reactor's list of connections to flush.
    pub(crate) dirty: bool,
    /// It is in the reactor's list of connections with data on its way out.
    pub(crate) departing: bool,
    /// The fabric has been told what Connect settled.
    pub(crate) told_connected: bool,
    /// What Connect settled, kept for reports after the queue has forgotten.
    pub(crate) info: Option<QueueInfo>,
    /// Where its listener's figures are kept.
    pub(crate) port: usize,
    /// The port of the network its data leaves through, for the pacer.
    pub(crate) path: u16,
    /// It counts among its reactor's I/O queues; its end may come after the queue has forgotten.
    pub(crate) counts_as_io: bool,
    /// Where its commands wait, by device.
    pub(super) lanes: Vec<Lane>,
    /// What was answered that is in no lane's figures: admin commands, and refusals.
    pub(super) tally: Tally,
    /// A buffer for small admin data: what a Connect brings never waits for other hosts' commands.
    pub(super) own: Reserve,
}

/// What a connection does with one device.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) device: DeviceId,
    /// Where its commands wait.
    pub(crate) flow: FlowId,
    /// Where the device's figures are kept.
    pub(super) figures: Key,
    /// What was answered.
    pub(super) tally: Tally,
}

/// Bytes of a connection's own buffer: the data of a Connect, an Identify, a list of ranges.
pub(crate) const OWN_BUFFER: usize = 4096;

/// Shares of devices against each other; a device that is not among them has 1.
#[derive(Debug, Clone, Default)]
pub(crate) struct Weights(Arc<[(DeviceId, u16)]>);

impl Weights {
    pub(crate) fn new(weights: impl Iterator<Item = (DeviceId, u16)>) -> Self {
        Self(weights.collect())
    }

    fn of(&self, device: DeviceId) -> u16 {
        self.0.iter().find(|(of, _)| *of == device).map_or(1, |(_, weight)| *weight)
    }
}

/// The life of a connection on a reactor.
///
/// ```text
///   Serving --> Leaving (drains, then moves to another reactor)
///      |           |
///      v           v
///   Closing  (the fabric gives everything back) --> removed
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Taking commands.
    Serving,
    /// Takes no new command; goes to reactor `to` when nothing is in flight.
    Leaving {
        /// Index of the other reactor.
        to: usize,
    },
    /// The end has begun; nothing new is started for it.
    Closing,
}

impl Connection {
    pub(crate) fn new(
        fabric: Box<dyn HostQueue>,
        queue: Box<Queue>,
        port: usize,
        path: u16,
        own: Reserve,
        now: u64,
    ) -> Self {
        let info = queue.connected();
        Self {
            told_connected: info.is_some(),
            counts_as_io: info.as_ref().is_some_and(|info| !info.admin),
            info,
            port,
            path,
            fabric,
            queue,
            in_flight: 0,
            phase: Phase::Serving,
            active_at: now,
            listed: false,
            unsettled: false,
            dirty: false,
            departing: false,
            lanes: Vec::new(),
            tally: Tally::default(),
            own,
        }
    }

    /// Whether anything may still be started for it.
    #[inline]
    pub(crate) fn is_live(&self) -> bool {
        self.phase != Phase::Closing
    }

    /// Whether it is a connected I/O queue.
    pub(crate) fn is_io(&self) -> bool {
        self.queue.connected().is_some_and(|info| !info.admin)
    }

    /// The lane in which this connection's commands for `device` wait: its place among `lanes`.
    #[inline]
    pub(crate) fn lane(
        &mut self,
        device: DeviceId,
        weights: &Weights,
        pacer: &mut Pacer,
        stats: &mut Stats,
    ) -> usize {
        if let Some(known) = self.lanes.iter().position(|lane| lane.device == device) {
            return known;
        }
        let (weight, path) = (weights.of(device), self.path);
        let flow = pacer.add_flow(FlowConfig { weight, device: device.0, path });
        let (figures, tally) = (stats.device(device), Tally::default());
        self.lanes.push(Lane { device, flow, figures, tally });
        self.lanes.len() - 1
    }

    /// The connection's own buffer, if `len` bytes fit and it is not in use.
    pub(crate) fn own_buffer(&self, len: usize) -> Option<Buffer> {
        if len > OWN_BUFFER { None } else { self.own.lease() }
    }

    /// Gives the lanes the weights that hold from now on.
    pub(crate) fn set_weights(&self, weights: &Weights, pacer: &mut Pacer) {
        for lane in &self.lanes {
            pacer.set_weight(lane.flow, weights.of(lane.device));
        }
    }

    /// Ends the lanes, giving back the tokens of what still waited there.
    pub(crate) fn end_flows(&mut self, pacer: &mut Pacer) -> Vec<u64> {
        self.lanes.drain(..).flat_map(|lane| pacer.remove_flow(lane.flow)).collect()
    }
}
