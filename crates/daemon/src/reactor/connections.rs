//! List of a reactor's connections, and the end of one that a caller names.

use nvmeof_nvmf::{PortId, QueueInfo};
use nvmeof_transport::CloseReason;

use super::Reactor;
use super::connection::Connection;
use super::mailbox::Disconnected;

/// Description of a connection for the control plane.
#[derive(Debug, Clone)]
pub(crate) struct ConnectionInfo {
    /// Its identifier for the lifetime of the process, on every reactor.
    pub(crate) id: u64,
    /// Its listener.
    pub(crate) port: PortId,
    /// The host's address.
    pub(crate) peer: String,
    /// Result of its Connect, or `None` before it.
    pub(crate) info: Option<QueueInfo>,
    /// Commands between capsule and response.
    pub(crate) in_flight: u32,
    /// Commands among them that wait for admission.
    pub(crate) waiting: u32,
}

impl Reactor {
    /// Lists every connection that is not about to end.
    pub(super) fn list_connections(&self) -> Vec<ConnectionInfo> {
        let live = self.connections.iter().filter(|(_, connection)| connection.is_live());
        let listed = live.map(|(_, connection)| {
            let waiting = |flow| self.pacer.flow_stats(flow).map_or(0, |figures| figures.waiting);
            ConnectionInfo {
                id: connection.queue.id(),
                port: connection.queue.port(),
                peer: connection.queue.peer().to_owned(),
                info: connection.info.clone(),
                in_flight: connection.in_flight,
                waiting: connection
                    .device_flows
                    .iter()
                    .map(|(_, device_flow)| waiting(device_flow.flow))
                    .sum(),
            }
        });
        listed.collect()
    }

    /// Ends the connection with this identifier, if it is here.
    pub(super) fn disconnect(&mut self, id: u64, now: u64) -> Option<Disconnected> {
        let is_it = |one: &Connection| one.is_live() && one.queue.id() == id;
        let (key, one) = self.connections.iter().find(|(_, one)| is_it(one))?;
        let dismissed = one.queue.quiesce();
        self.begin_close(key, CloseReason::Shutdown, now);
        Some(dismissed)
    }
}
