//! One host connection in the state of its reactor.

use nvmeof_core::dma::{Buffer, BufferReservation};
use nvmeof_nvmf::{DeviceId, Queue, QueueInfo};
use nvmeof_pacing::{CoreHandle, FlowConfig, FlowId, Pacer, Tenants};
use nvmeof_transport::HostQueue;

use super::admin::AdminLine;
use super::gen_slab::{GenSlab, SlotKey};
use super::holdings::ConnectionHoldings;
use super::kind;
use super::qos::{DeviceQos, HostQos, QosTable};
use super::stats::{CommandCounters, Stats};
use super::timers::ConnectionTimer;

/// A connection: the fabric's end, the NVMe queue, and the flows of its commands.
#[derive(Debug)]
pub(crate) struct Connection {
    /// The fabric's end.
    pub(crate) fabric: Box<dyn HostQueue>,
    /// The NVMe queue.
    pub(crate) queue: Box<Queue>,
    /// Commands between capsule and response on this reactor.
    pub(crate) in_flight: u32,
    /// Its phase of life, with the reactor that it moves to.
    pub(crate) phase: Phase,
    /// Time at which it came to this reactor. Writes that a device lost before were not its own.
    since: u64,
    /// It is in the reactor's list of connections to receive from.
    pub(crate) unsettled: bool,
    /// It is in the reactor's list of connections to flush.
    pub(crate) dirty: bool,
    /// It is in the reactor's list of connections with sent data that is still in their socket.
    pub(crate) tx_pending: bool,
    /// Its entry in the reactor's timers.
    pub(super) timer: ConnectionTimer,
    /// The fabric has received the result of the Connect.
    pub(crate) connect_reported: bool,
    /// Result of the Connect, kept for reports after the queue has dropped it.
    pub(crate) info: Option<QueueInfo>,
    /// Index of its listener's statistics.
    pub(crate) listener: usize,
    /// Network port that its data leaves through, for the pacer.
    pub(crate) network_port: u16,
    /// A completion source reports its arrivals; it stays on this reactor.
    pub(crate) has_source: bool,
    /// It counts among its reactor's I/O queues, even after the queue has dropped its Connect.
    pub(crate) counts_as_io: bool,
    /// Weight and limits of its host, read with its first I/O command.
    host_qos: Option<HostQos>,
    /// Its host's holdings, and its deferred commands.
    pub(super) holdings: ConnectionHoldings,
    /// Its flows, one per device.
    pub(super) device_flows: GenSlab<DeviceFlow>,
    /// Keys of the flows in the order of their devices: a connection can use a thousand of them.
    by_device: Vec<(DeviceId, SlotKey)>,
    /// Counters of responses that belong to no flow: admin commands and refusals.
    pub(super) counters: CommandCounters,
    /// Head of the list of its commands.
    pub(super) newest: Option<SlotKey>,
    /// Its commands that move admin data.
    pub(super) admin: AdminLine,
    /// Buffer for small admin data, so that a Connect never waits for other hosts' commands.
    pub(super) own: BufferReservation,
}

/// A connection's flow to one device.
///
/// It ends with the connection, or with the last of its commands when the device is closed.
#[derive(Debug)]
pub(crate) struct DeviceFlow {
    pub(crate) device: DeviceId,
    /// Its flow in the pacer.
    pub(crate) flow: FlowId,
    /// Key of the device's statistics.
    stats_key: SlotKey,
    /// Counters of its responses.
    pub(super) counters: CommandCounters,
    /// Commands between capsule and response.
    ///
    /// A command that is past its device holds a permit of the flow until its response is sent.
    in_flight: u32,
    /// Its device is closed.
    pub(super) is_ending: bool,
    /// Time of the device's last failed flush that this connection has been notified of.
    pub(super) last_reported_flush_failure: u64,
}

/// The device flow that a command has joined.
#[derive(Clone, Copy, Debug)]
pub(super) struct FlowHandle {
    /// Its key among the device flows of the connection.
    pub(super) device_flow: SlotKey,
    /// The flow whose queue the command waits in.
    pub(super) flow: FlowId,
    /// Key of the device's statistics.
    pub(super) stats_key: SlotKey,
}

/// Bytes of a connection's own buffer: the data of a Connect, an Identify, a list of ranges.
pub(crate) const OWN_BUFFER: usize = 4096;

/// Phases of a connection's life on a reactor.
///
/// ```text
///   Serving --> Migrating (drains, then moves to another reactor)
///      |           |
///      v           v
///   Closing  (the fabric returns everything) --> removed
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Takes commands.
    Serving,
    /// Takes no new command and moves to reactor `to` when nothing is in flight.
    Migrating {
        /// Index of the other reactor.
        to: usize,
    },
    /// Closes. No new work starts for it.
    Closing,
}

impl Connection {
    /// Makes the fabric forget commands that ended without a response.
    #[inline]
    pub(super) fn forget_dropped(&mut self) {
        while let Some(cid) = self.queue.take_dropped() {
            self.fabric.forget(cid);
        }
    }

    pub(crate) fn new(
        fabric: Box<dyn HostQueue>,
        queue: Box<Queue>,
        listener: usize,
        network_port: u16,
        own: BufferReservation,
        now: u64,
    ) -> Self {
        let info = queue.connected();
        Self {
            connect_reported: info.is_some(),
            counts_as_io: info.as_ref().is_some_and(|info| !info.admin),
            info,
            listener,
            network_port,
            fabric,
            queue,
            in_flight: 0,
            phase: Phase::Serving,
            since: now,
            unsettled: false,
            dirty: false,
            tx_pending: false,
            timer: ConnectionTimer::default(),
            has_source: false,
            host_qos: None,
            holdings: ConnectionHoldings::default(),
            device_flows: GenSlab::default(),
            by_device: Vec::new(),
            counters: CommandCounters::default(),
            newest: None,
            admin: AdminLine::default(),
            own,
        }
    }

    /// Returns true if new work may start for it.
    #[inline]
    pub(crate) fn is_live(&self) -> bool {
        self.phase != Phase::Closing
    }

    /// Returns true if it is a connected I/O queue.
    pub(crate) fn is_io(&self) -> bool {
        self.queue.connected().is_some_and(|info| !info.admin)
    }

    /// Adds a command to the flow for `device`. The command must [leave](Self::leave) it later.
    #[inline]
    pub(super) fn join(
        &mut self,
        device: DeviceId,
        qos: &QosTable,
        (pacer, core): (&mut Pacer, &CoreHandle),
        stats: &mut Stats,
    ) -> FlowHandle {
        let known = self.find_device_flow(device);
        if let Ok(key) = known
            && let Some(device_flow) = self.device_flows.present_mut(key)
        {
            device_flow.in_flight += 1;
            return FlowHandle {
                device_flow: key,
                flow: device_flow.flow,
                stats_key: device_flow.stats_key,
            };
        }
        let host = self.host_qos.get_or_insert_with(|| qos_of(self.info.as_ref(), qos)).clone();
        let flow = pacer.add_flow(FlowConfig {
            weight: 1,
            device: device.0,
            network_port: self.network_port,
        });
        set_flow_qos(flow, &host, &qos.device(device), (pacer, core));
        let (stats_key, counters) = (stats.device(device), CommandCounters::default());
        let (is_ending, last_reported_flush_failure) = (false, self.since);
        let device_flow = DeviceFlow {
            device,
            flow,
            stats_key,
            counters,
            in_flight: 1,
            is_ending,
            last_reported_flush_failure,
        };
        let key = self.device_flows.insert(device_flow);
        if let Err(at) = known {
            self.by_device.insert(at, (device, key));
        }
        FlowHandle { device_flow: key, flow, stats_key }
    }

    /// Returns the key of the flow to a device, or its place in the order of devices.
    #[inline]
    fn find_device_flow(&self, device: DeviceId) -> Result<SlotKey, usize> {
        let found = self.by_device.binary_search_by_key(&device.0, |(of, _)| of.0);
        found.map(|at| self.by_device[at].1)
    }

    /// Removes a flow.
    pub(super) fn remove_device_flow(&mut self, key: SlotKey) -> Option<DeviceFlow> {
        let device_flow = self.device_flows.remove(key)?;
        self.by_device.retain(|(_, of)| *of != key);
        Some(device_flow)
    }

    /// Removes an ended command from its flow. Returns true if the flow must end now.
    #[inline]
    pub(super) fn leave(&mut self, device_flow: SlotKey) -> bool {
        // A connection that is about to end has no flows.
        self.device_flows.get_mut(device_flow).is_some_and(|device_flow| {
            device_flow.in_flight -= 1;
            device_flow.is_ending && device_flow.in_flight == 0
        })
    }

    /// Marks the flow for a closed device. Returns its key if the flow must end now.
    pub(super) fn device_closed(&mut self, device: DeviceId) -> Option<SlotKey> {
        let key = self.find_device_flow(device).ok()?;
        let device_flow = self.device_flows.present_mut(key)?;
        device_flow.is_ending = true;
        (device_flow.in_flight == 0).then_some(key)
    }

    /// Leases the connection's own buffer, if `len` bytes fit and it is not in use.
    pub(crate) fn own_buffer(&self, len: usize) -> Option<Buffer> {
        if len > OWN_BUFFER { None } else { self.own.lease() }
    }

    /// Gives the flows the weights and limits that apply from now on.
    pub(crate) fn set_qos(&mut self, qos: &QosTable, pacer: &mut Pacer, core: &CoreHandle) {
        if self.host_qos.is_none() {
            return;
        }
        let host = qos_of(self.info.as_ref(), qos);
        for (_, device_flow) in self.device_flows.iter() {
            set_flow_qos(device_flow.flow, &host, &qos.device(device_flow.device), (pacer, core));
        }
        self.host_qos = Some(host);
    }

    /// Ends the flows. Returns the tokens of the commands that waited there or were deferred.
    pub(crate) fn end_flows(&mut self, pacer: &mut Pacer) -> Vec<u64> {
        let deferred = self.holdings.deferred.drain(..).map(|request| request.token(kind::REQUEST));
        self.by_device.clear();
        let keys = self.device_flows.keys().into_iter();
        let device_flows = keys.filter_map(|key| self.device_flows.remove(key));
        let waiting = device_flows.flat_map(|device_flow| pacer.remove_flow(device_flow.flow));
        deferred.chain(waiting).collect()
    }
}

/// Returns the weight and limits of a queue's host, or the default before its Connect.
fn qos_of(info: Option<&QueueInfo>, qos: &QosTable) -> HostQos {
    info.map_or_else(HostQos::default, |info| qos.host(&info.hostnqn))
}

/// Gives a flow its weight and its limits.
fn set_flow_qos(
    flow: FlowId,
    host: &HostQos,
    device: &DeviceQos,
    (pacer, core): (&mut Pacer, &CoreHandle),
) {
    pacer.set_weight(flow, host.weight.max(1).saturating_mul(device.weight.max(1)));
    let tenants = Tenants { host: host.tenant.as_ref(), namespace: device.tenant.as_ref() };
    if let Err(error) = pacer.set_tenants(flow, tenants, core) {
        // No command can be too large with limits that were derived together.
        tracing::error!(%error, "the limits of a host cannot be put in force on a queue");
    }
}
