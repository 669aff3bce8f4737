//! Listeners come and go: those of a config that have no socket get one, those that it does not name end.
//!
//! ```text
//!   wanted as it is there -----------------------------------------------> stays
//!   wanted --bind--> bound --the change is made--> listens
//!             |        '------it is not---> closed
//!             '--taken by one of ours that is not wanted as it is: displaced --bind--> bound
//!                                              ^                                         |
//!                                              '----had back, if the change is not made--'
//! ```

#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::sync::Arc;

use nvmeof_nvmf::PortId;

use super::super::accept::{self, BindError, Listening, Service, url};
use super::Server;
use crate::config::{Config, Fabric, Listener, Problem};

/// A port that somebody else listens on. The config can only be changed, so it ends the daemon with
/// the status of a bad config.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(in crate::control) struct PortTaken(Problem);

/// What is to be done with a new listener that cannot work here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::control) enum NewListener {
    /// It is left out, with a warning: another may work.
    MayBeLeftOut,
    /// Nothing changes.
    HasToWork,
}

/// A listener of the config, and its socket.
#[derive(Debug)]
pub(super) struct Serving {
    pub(super) wanted: Listener,
    pub(super) listening: Listening,
}

/// What a change needs of listeners, until it is made or [is not](Server::unbind).
#[derive(Debug, Default)]
pub(super) struct Bound {
    new: Vec<New>,
    displaced: Vec<Displaced>,
}

/// A listener of the config that got its socket but does not accept yet.
#[derive(Debug)]
struct New {
    port: PortId,
    wanted: Listener,
    socket: accept::Bound,
}

/// A listener that was closed for another to have its address.
#[derive(Debug)]
struct Displaced {
    port: PortId,
    wanted: Listener,
    address: SocketAddr,
}

impl Server {
    /// Sockets for the listeners of `config` that have none yet. A port that is taken is an error; so is
    /// a new listener that cannot work here, or a warning, as it is asked for; but one that was there with other keys
    /// has to work, or it stays as it was.
    pub(super) async fn bind_new(
        &mut self,
        config: &Config,
        listeners: NewListener,
    ) -> anyhow::Result<Bound> {
        let mut bound = Bound::default();
        let staying = self.staying(config);
        let all = config.listeners.iter().zip(&config.port_taken).zip(&staying);
        for ((wanted, taken), _) in all.filter(|(_, stays)| stays.is_none()) {
            let before = self.at(wanted, &staying).or_else(|| bound.displaced_from(wanted));
            let error = match self.bind(wanted, &staying, &mut bound).await {
                Ok(socket) => {
                    // Hosts that are connected there stay.
                    let port = before.unwrap_or_else(|| self.new_port());
                    bound.new.push(New { port, wanted: wanted.clone(), socket });
                    continue;
                }
                Err(BindError::Taken(_)) => PortTaken(taken.clone()).into(),
                Err(error) if before.is_some() => {
                    anyhow::anyhow!("the listener cannot work here with its new keys: {error}")
                }
                Err(error)
                    if listeners == NewListener::HasToWork
                        && !self.config.listeners.contains(wanted) =>
                {
                    anyhow::anyhow!("the listener cannot work here: {error}")
                }
                Err(error) => {
                    tracing::warn!("the listener is left out: {error}");
                    continue;
                }
            };
            self.unbind(bound);
            return Err(error);
        }
        Ok(bound)
    }

    /// Gives back what was bound for a change that is not made: listeners that were displaced are had back.
    pub(super) fn unbind(&mut self, bound: Bound) {
        let Bound { new, displaced } = bound;
        drop(new);
        for Displaced { port, wanted, address } in displaced {
            let again = Listener { port: address.port(), ..wanted.clone() };
            match accept::bind(&again, &self.rdma) {
                Ok(socket) => {
                    let listening = socket.listen(self.service(port));
                    self.listeners.insert(port, Serving { wanted, listening });
                }
                Err(error) => tracing::error!(
                    "no host can connect to {} any more, it cannot be had back: {error}; \
                     see what listens there, then reload the config",
                    url(wanted.fabric.name(), address)
                ),
            }
        }
    }

    /// The socket of a listener, for which others of ours that are not to stay may have to go.
    async fn bind(
        &mut self,
        wanted: &Listener,
        staying: &[Option<PortId>],
        bound: &mut Bound,
    ) -> Result<accept::Bound, BindError> {
        let taken = match accept::bind(wanted, &self.rdma) {
            Err(BindError::Taken(error)) => error,
            other => return other,
        };
        let in_the_way = |(port, serving): (&PortId, &Serving)| {
            let goes = !staying.contains(&Some(*port));
            (goes && serving.is_in_the_way_of(wanted)).then_some(*port)
        };
        let ports: Vec<PortId> = self.listeners.iter().filter_map(in_the_way).collect();
        if ports.is_empty() {
            return Err(BindError::Taken(taken));
        }
        for port in ports {
            let Some(Serving { wanted, listening }) = self.listeners.remove(&port) else {
                continue;
            };
            let address = listening.address;
            listening.close().await;
            bound.displaced.push(Displaced { port, wanted, address });
        }
        accept::bind(wanted, &self.rdma)
    }

    /// The port of the listener that is at the address of `wanted`, with other keys.
    fn at(&self, wanted: &Listener, staying: &[Option<PortId>]) -> Option<PortId> {
        let goes = |port: &PortId| !staying.contains(&Some(*port));
        let mut there = self.listeners.iter().filter(|(port, _)| goes(port));
        there.find(|(_, serving)| serving.wanted.is_at(wanted)).map(|(port, _)| *port)
    }

    fn new_port(&mut self) -> PortId {
        let port = PortId(self.next_port);
        self.next_port = self.next_port.wrapping_add(1).max(1);
        port
    }

    fn service(&self, port: PortId) -> Service {
        Service {
            port,
            target: Arc::clone(&self.target),
            reactors: Arc::clone(&self.reactors),
            limits: self.limits,
        }
    }

    /// For each listener of `config`, in order, the port that serves it already; of two that are alike
    /// (both at port 0) each has its own.
    fn staying(&self, config: &Config) -> Vec<Option<PortId>> {
        let mut serving: Vec<_> =
            self.listeners.iter().map(|(port, serving)| (*port, &serving.wanted)).collect();
        let one = |wanted: &Listener| {
            let at = serving.iter().position(|(_, other)| *other == wanted)?;
            Some(serving.remove(at).0)
        };
        config.listeners.iter().map(one).collect()
    }

    /// The ports there will be: those that stay and those that are new.
    pub(super) fn ports<'a>(
        &'a self,
        config: &'a Config,
        bound: &'a Bound,
    ) -> impl Iterator<Item = (PortId, Fabric, SocketAddr)> + 'a {
        let stay = self
            .staying(config)
            .into_iter()
            .flatten()
            .filter_map(|port| Some((port, self.listeners.get(&port)?)))
            .map(|(port, serving)| (port, serving.wanted.fabric, serving.listening.address));
        let new = bound.new.iter().map(|new| (new.port, new.wanted.fabric, new.socket.address()));
        stay.chain(new)
    }

    /// Ends listeners that are no longer wanted and starts accepting on the new ones; how many of each.
    pub(super) fn settle_listeners(&mut self, config: &Config, bound: Bound) -> (usize, usize) {
        let Bound { new, displaced } = bound;
        let before = self.listeners.len() + displaced.len();
        let staying = self.staying(config);
        self.listeners.retain(|port, _| staying.contains(&Some(*port)));
        let (started, ended) = (new.len(), before - self.listeners.len());
        for New { port, wanted, socket } in new {
            let listening = socket.listen(self.service(port));
            self.listeners.insert(port, Serving { wanted, listening });
        }
        (started, ended)
    }
}

impl Bound {
    /// The port of a listener that was displaced from the address of `wanted`.
    fn displaced_from(&self, wanted: &Listener) -> Option<PortId> {
        let mut displaced = self.displaced.iter();
        displaced.find(|one| one.wanted.is_at(wanted)).map(|one| one.port)
    }
}

impl Serving {
    /// Whether both cannot listen at once.
    fn is_in_the_way_of(&self, wanted: &Listener) -> bool {
        let here = self.listening.address;
        let same_ip = here.ip() == wanted.address
            || here.ip().is_unspecified()
            || wanted.address.is_unspecified();
        self.wanted.fabric == wanted.fabric && here.port() == wanted.port && same_ip
    }
}
