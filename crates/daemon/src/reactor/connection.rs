//! One host connection as its reactor keeps it.

use nvmeof_core::dma::{Buffer, Reserve};
use nvmeof_nvmf::{DeviceId, Queue, QueueInfo};
use nvmeof_pacing::{Core, FlowConfig, FlowId, Pacer, Tenants};
use nvmeof_transport::HostQueue;

use super::admin::AdminLine;
use super::holdings::Holder;
use super::kind;
use super::slots::{Key, Slots};
use super::stats::{Stats, Tally};
use crate::tenants::{DeviceShare, HostShare, Shares};

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
    /// When it came to this reactor: what was lost before was not its data.
    since: u64,
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
    /// What its host has against others and may have; asked for with its first I/O command.
    share: Option<HostShare>,
    /// Its host's holdings, and its deferred commands.
    pub(super) holder: Holder,
    /// Where its commands wait, by device.
    pub(super) lanes: Slots<Lane>,
    /// What was answered that is in no lane's figures: admin commands, and refusals.
    pub(super) tally: Tally,
    /// Head of the list of its commands.
    pub(super) newest: Option<Key>,
    /// Those that move admin data.
    pub(super) admin: AdminLine,
    /// A buffer for small admin data: what a Connect brings never waits for other hosts' commands.
    pub(super) own: Reserve,
}

/// What a connection does with one device. It ends with the connection, or with the last of its commands when the
/// device is closed.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) device: DeviceId,
    /// Where its commands wait.
    pub(crate) flow: FlowId,
    /// Where the device's figures are kept.
    figures: Key,
    /// What was answered.
    pub(super) tally: Tally,
    /// Commands between capsule and response: one that is past its device has a permit of the flow until it is sent.
    in_flight: u32,
    /// Its device is closed.
    pub(super) is_ending: bool,
    /// Time of the device's last failed flush that this connection has been notified of.
    pub(super) heard_of_loss: u64,
}

/// The lane that a command has joined.
#[derive(Clone, Copy, Debug)]
pub(super) struct Joined {
    /// Its place among those of the connection.
    pub(super) lane: Key,
    /// Where the command waits.
    pub(super) flow: FlowId,
    /// Where the device's figures are kept.
    pub(super) figures: Key,
}

/// Bytes of a connection's own buffer: the data of a Connect, an Identify, a list of ranges.
pub(crate) const OWN_BUFFER: usize = 4096;

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
            since: now,
            active_at: now,
            listed: false,
            unsettled: false,
            dirty: false,
            departing: false,
            share: None,
            holder: Holder::default(),
            lanes: Slots::default(),
            tally: Tally::default(),
            newest: None,
            admin: AdminLine::default(),
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

    /// A command for `device` joins its lane; it has to [leave](Self::leave) it.
    #[inline]
    pub(super) fn join(
        &mut self,
        device: DeviceId,
        shares: &Shares,
        (pacer, core): (&mut Pacer, &Core),
        stats: &mut Stats,
    ) -> Joined {
        let known = self.lanes.iter_mut().find(|(_, lane)| lane.device == device);
        if let Some((key, lane)) = known {
            lane.in_flight += 1;
            return Joined { lane: key, flow: lane.flow, figures: lane.figures };
        }
        let host = self.share.get_or_insert_with(|| share_of(self.info.as_ref(), shares)).clone();
        let flow = pacer.add_flow(FlowConfig { weight: 1, device: device.0, path: self.path });
        set_share(flow, &host, &shares.device(device), (pacer, core));
        let (figures, tally) = (stats.device(device), Tally::default());
        let (is_ending, heard_of_loss) = (false, self.since);
        let lane = Lane { device, flow, figures, tally, in_flight: 1, is_ending, heard_of_loss };
        Joined { lane: self.lanes.insert(lane), flow, figures }
    }

    /// A command that had joined this lane is over. Whether the lane has to end now.
    #[inline]
    pub(super) fn leave(&mut self, lane: Key) -> bool {
        // None of a connection that is about to end.
        self.lanes.get_mut(lane).is_some_and(|lane| {
            lane.in_flight -= 1;
            lane.is_ending && lane.in_flight == 0
        })
    }

    /// A device is closed. Yields the lane for it if that has to end now.
    pub(super) fn device_closed(&mut self, device: DeviceId) -> Option<Key> {
        let (key, lane) = self.lanes.iter_mut().find(|(_, lane)| lane.device == device)?;
        lane.is_ending = true;
        (lane.in_flight == 0).then_some(key)
    }

    /// The connection's own buffer, if `len` bytes fit and it is not in use.
    pub(crate) fn own_buffer(&self, len: usize) -> Option<Buffer> {
        if len > OWN_BUFFER { None } else { self.own.lease() }
    }

    /// Gives the lanes the weights and limits that hold from now on.
    pub(crate) fn set_shares(&mut self, shares: &Shares, pacer: &mut Pacer, core: &Core) {
        if self.share.is_none() {
            return;
        }
        let host = share_of(self.info.as_ref(), shares);
        for (_, lane) in self.lanes.iter() {
            set_share(lane.flow, &host, &shares.device(lane.device), (pacer, core));
        }
        self.share = Some(host);
    }

    /// Ends the lanes, giving back the tokens of what still waited there, or was deferred.
    pub(crate) fn end_flows(&mut self, pacer: &mut Pacer) -> Vec<u64> {
        let deferred = self.holder.deferred.drain(..).map(|request| request.token(kind::REQUEST));
        let keys = self.lanes.keys().into_iter();
        let lanes = keys.filter_map(|key| self.lanes.remove(key));
        let waiting = lanes.flat_map(|lane| pacer.remove_flow(lane.flow));
        deferred.chain(waiting).collect()
    }
}

/// What the host of a queue has; nothing of its own before its Connect.
fn share_of(info: Option<&QueueInfo>, shares: &Shares) -> HostShare {
    info.map_or_else(HostShare::default, |info| shares.host(&info.hostnqn))
}

/// Gives a lane its weight and its limits.
fn set_share(
    flow: FlowId,
    host: &HostShare,
    device: &DeviceShare,
    (pacer, core): (&mut Pacer, &Core),
) {
    pacer.set_weight(flow, host.weight.max(1).saturating_mul(device.weight.max(1)));
    let tenants = Tenants { host: host.tenant.as_ref(), namespace: device.tenant.as_ref() };
    if let Err(error) = pacer.set_tenants(flow, tenants, core) {
        // With limits that were derived together no command can be too large.
        tracing::error!(%error, "the limits of a host cannot be put in force on a queue");
    }
}
