//! Two devices and connections between them.

use std::net::SocketAddr;
use std::sync::Arc;

use nvmeof_verbs::{AcceptParams, ConnectParams, ConnectionEvent, Device, Endpoint, EndpointSpec};
use nvmeof_verbs_conformance::{ACCESS, COMPLETIONS, End, MEMORY, Memory, Pair, READS, SPEC};

use crate::{
    Counters, DeviceOptions, Fabric, LoopbackCompletions, LoopbackDevice, LoopbackEndpoint,
    LoopbackListener, LoopbackTicket,
};

pub(super) const ASK: ConnectParams<'_> = ConnectParams {
    private_data: b"ask",
    reads_out: READS,
    reads_in: READS,
    retries: 3,
    rnr_retries: 7,
};

pub(super) const ANSWER: AcceptParams<'_> =
    AcceptParams { private_data: b"answer", reads_out: READS, reads_in: READS, rnr_retries: 7 };

pub(super) fn address() -> SocketAddr {
    "192.0.2.1:4420".parse().unwrap()
}

/// Returns the number of live objects of each kind.
pub(super) fn living(fabric: &Fabric) -> [usize; 8] {
    let Counters {
        devices,
        endpoints,
        completion_queues,
        shared_queues,
        regions,
        tickets,
        listeners,
        connections,
        ..
    } = fabric.counters();
    [devices, endpoints, completion_queues, shared_queues, regions, tickets, listeners, connections]
}

/// Opens an endpoint with its own completion queue.
pub(super) fn opened(
    device: &Arc<LoopbackDevice>,
    ticket: LoopbackTicket,
) -> (LoopbackEndpoint, LoopbackCompletions) {
    let queue = device.completions(COMPLETIONS).unwrap();
    (device.open(ticket, &queue, None, &SPEC).unwrap(), queue)
}

/// Differences of a pair from the setup of the conformance checks.
#[derive(Clone, Copy)]
pub(super) struct Setup<'a> {
    pub(super) ask: ConnectParams<'a>,
    pub(super) answer: AcceptParams<'a>,
    pub(super) spec: EndpointSpec,
    pub(super) completions: u32,
    pub(super) shared: bool,
}

impl Default for Setup<'_> {
    fn default() -> Self {
        Self { ask: ASK, answer: ANSWER, spec: SPEC, completions: COMPLETIONS, shared: false }
    }
}

pub(super) struct Lab {
    pub(super) fabric: Fabric,
    pub(super) host: Arc<LoopbackDevice>,
    pub(super) target: Arc<LoopbackDevice>,
    pub(super) listener: LoopbackListener,
}

impl Lab {
    pub(super) fn new(seed: u64) -> Self {
        Self::with(seed, DeviceOptions::default())
    }

    pub(super) fn with(seed: u64, options: DeviceOptions) -> Self {
        let fabric = Fabric::new(seed);
        let host = fabric.device_with("host", options);
        let target = fabric.device_with("target", options);
        let listener = fabric.listen(&target, address()).unwrap();
        Self { fabric, host, target, listener }
    }

    /// Opens an endpoint that requests a connection to the target; the request is in transit.
    pub(super) fn asks_only(
        &mut self,
        ask: &ConnectParams<'_>,
    ) -> (LoopbackEndpoint, LoopbackCompletions) {
        let (mut asking, queue) = opened(&self.host, self.fabric.route(&self.host, address()));
        asking.connect(ask).unwrap();
        (asking, queue)
    }

    /// Opens an endpoint that requests a connection to the target; the request has arrived.
    pub(super) fn asks(
        &mut self,
        ask: &ConnectParams<'_>,
    ) -> (LoopbackEndpoint, LoopbackCompletions) {
        let asking = self.asks_only(ask);
        self.fabric.settle();
        asking
    }

    pub(super) fn pair(&mut self) -> Pair<LoopbackDevice> {
        self.pair_with(&Setup::default())
    }

    pub(super) fn pair_with(&mut self, setup: &Setup<'_>) -> Pair<LoopbackDevice> {
        let made = |device: &Arc<LoopbackDevice>| {
            let memory = Memory::new(device, MEMORY, ACCESS).unwrap();
            let shared = setup.shared.then(|| device.shared_receives(32, 2).unwrap().unwrap());
            (memory, device.completions(setup.completions).unwrap(), shared)
        };
        let near = made(&self.host);
        let route = self.fabric.route(&self.host, address());
        let mut asking = self.host.open(route, &near.1, near.2.as_ref(), &setup.spec).unwrap();
        asking.connect(&setup.ask).unwrap();
        self.fabric.settle();

        let ticket = self.listener.next_ticket().unwrap();
        let far = made(&self.target);
        let mut answering = self.target.open(ticket, &far.1, far.2.as_ref(), &setup.spec).unwrap();
        answering.accept(&setup.answer).unwrap();
        self.fabric.settle();
        established(&mut asking);
        self.fabric.settle();
        established(&mut answering);

        let end = |device: &Arc<LoopbackDevice>, (memory, completions, shared), endpoint| {
            End::new(Arc::clone(device), memory, completions, shared, endpoint)
        };
        let (near, far) = (end(&self.host, near, asking), end(&self.target, far, answering));
        let fabric = self.fabric.clone();
        Pair::new(near, far, Box::new(move || fabric.settle()))
    }
}

fn established(endpoint: &mut LoopbackEndpoint) {
    let event = endpoint.next_event();
    assert!(matches!(event, Some(ConnectionEvent::Established { .. })), "{event:?}");
}
