//! Two devices and connections between them.

use std::net::SocketAddr;
use std::sync::Arc;

use super::super::{Fabric, LoopbackDevice, LoopbackEndpoint, LoopbackListener};
use crate::conformance::{ACCESS, COMPLETIONS, End, MEMORY, Memory, Pair, READS, SPEC};
use crate::seam::{AcceptParams, ConnectParams, ConnectionEvent, Device, Endpoint};

pub(super) const ASK: ConnectParams<'_> = ConnectParams {
    private_data: b"ask",
    reads_out: READS,
    reads_in: READS,
    retries: 3,
    rnr_retries: 7,
};

pub(super) const ANSWER: AcceptParams<'_> =
    AcceptParams { private_data: b"answer", reads_out: READS, reads_in: READS, rnr_retries: 7 };

pub(super) struct Lab {
    pub(super) fabric: Fabric,
    pub(super) host: Arc<LoopbackDevice>,
    pub(super) target: Arc<LoopbackDevice>,
    pub(super) listener: LoopbackListener,
}

pub(super) fn address() -> SocketAddr {
    "192.0.2.1:4420".parse().unwrap()
}

impl Lab {
    pub(super) fn new(seed: u64) -> Self {
        let fabric = Fabric::new(seed);
        let (host, target) = (fabric.device("host"), fabric.device("target"));
        let listener = fabric.listen(&target, address()).unwrap();
        Self { fabric, host, target, listener }
    }

    pub(super) fn pair(&mut self) -> Pair<LoopbackDevice> {
        self.pair_with(&ASK, &ANSWER, false)
    }

    pub(super) fn pair_with(
        &mut self,
        ask: &ConnectParams<'_>,
        answer: &AcceptParams<'_>,
        shared: bool,
    ) -> Pair<LoopbackDevice> {
        let made = |device: &Arc<LoopbackDevice>| {
            let memory = Memory::new(device, MEMORY, ACCESS).unwrap();
            let shared = shared.then(|| device.shared_receives(32, 2).unwrap().unwrap());
            (memory, device.completions(COMPLETIONS).unwrap(), shared)
        };
        let (memory, completions, queue) = made(&self.host);
        let route = self.fabric.route(&self.host, address());
        let mut asking = self.host.open(route, &completions, queue.as_ref(), &SPEC).unwrap();
        asking.connect(ask).unwrap();
        self.fabric.settle();
        let near = (memory, completions, queue);

        let ticket = self.listener.next_ticket().unwrap();
        let (memory, completions, queue) = made(&self.target);
        let mut answering = self.target.open(ticket, &completions, queue.as_ref(), &SPEC).unwrap();
        answering.accept(answer).unwrap();
        self.fabric.settle();
        established(&mut asking);
        self.fabric.settle();
        established(&mut answering);

        let far = End::new(Arc::clone(&self.target), memory, completions, queue, answering);
        let (memory, completions, queue) = near;
        let near = End::new(Arc::clone(&self.host), memory, completions, queue, asking);
        let fabric = self.fabric.clone();
        Pair::new(near, far, Box::new(move || fabric.settle()))
    }
}

fn established(endpoint: &mut LoopbackEndpoint) {
    let event = endpoint.next_event();
    assert!(matches!(event, Some(ConnectionEvent::Established { .. })), "{event:?}");
}
