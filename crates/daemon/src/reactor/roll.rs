//! The roll of connections: what each is, and the end of one that is called by name.

use nvmeof_nvmf::{PortId, QueueInfo};
use nvmeof_transport::CloseReason;

use super::Reactor;
use super::connection::Connection;
use super::mailbox::Dismissed;

/// A connection, as somebody who looks from outside wants to know it.
#[derive(Debug, Clone)]
pub(crate) struct Listed {
    /// Its name, for as long as the process lives and on whatever reactor.
    pub(crate) id: u64,
    /// The listener it came through.
    pub(crate) port: PortId,
    /// The host's address.
    pub(crate) peer: String,
    /// What its Connect settled; nothing before.
    pub(crate) info: Option<QueueInfo>,
    /// Commands between capsule and response.
    pub(crate) in_flight: u32,
    /// Those of them that wait for admission.
    pub(crate) waiting: u32,
}

impl Reactor {
    /// Every connection that is not about to end.
    pub(super) fn roll(&self) -> Vec<Listed> {
        let live = self.connections.iter().filter(|(_, connection)| connection.is_live());
        let listed = live.map(|(_, connection)| {
            let waiting = |flow| self.pacer.flow_stats(flow).map_or(0, |figures| figures.waiting);
            Listed {
                id: connection.queue.id(),
                port: connection.queue.port(),
                peer: connection.queue.peer().to_owned(),
                info: connection.info.clone(),
                in_flight: connection.in_flight,
                waiting: connection.lanes.iter().map(|(_, lane)| waiting(lane.flow)).sum(),
            }
        });
        listed.collect()
    }

    /// Ends the connection of this name, if it is here.
    pub(super) fn dismiss(&mut self, id: u64, now: u64) -> Option<Dismissed> {
        let is_it = |one: &Connection| one.is_live() && one.queue.id() == id;
        let (key, one) = self.connections.iter().find(|(_, one)| is_it(one))?;
        let dismissed = one.queue.quiesce();
        self.begin_close(key, CloseReason::Shutdown, now);
        Some(dismissed)
    }
}
