//! Opening and closing of listeners.
//!
//! Listeners of the config without a socket get one, and listeners that the config no longer names
//! end. A listener that fails to bind [waits](waiting).
//!
//! ```text
//!   unchanged in the config ----------------------------------------------> stays
//!   new or changed --bind--> bound --the change is applied--> listens
//!             |        '-----it is rejected--> closed
//!             |--bind fails, may wait--the change is applied--> waits, is retried
//!             '--taken by one of our listeners that does not stay: displaced --bind--> bound
//!                                              ^                                         |
//!                                              '---rebound, if the change is rejected----'
//! ```

#[cfg(test)]
mod tests;
mod waiting;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nvmeof_api::WaitingListener;
use nvmeof_nvmf::PortId;
use nvmeof_wire::Nqn;
use nvmeof_wire::nqn::DISCOVERY_NQN;

use super::super::accept::{self, BindError, Listening, Service, url};
use super::super::announce::Instance;
use super::super::apply::port_spec;
use super::Server;
use crate::config::{Config, Fabric, Listener};
pub(crate) use waiting::RetryState;

/// Pause before a failed announcement is repeated.
const ANNOUNCE_PAUSE: Duration = Duration::from_secs(5);

/// Policy for a new listener that fails to bind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::control) enum BindPolicy {
    /// It waits, with a warning, and is retried.
    Optional,
    /// The change is rejected.
    Required,
}

/// A listener of the config.
#[derive(Debug)]
pub(super) struct Serving {
    pub(super) wanted: Listener,
    pub(super) state: State,
}

/// State of a listener: it listens or it waits.
#[derive(Debug)]
pub(super) enum State {
    Listening(Listening),
    Waiting(RetryState),
}

/// Listeners bound for a change, until it is applied or [undone](Server::unbind).
#[derive(Debug, Default)]
pub(super) struct ListenerChange {
    new: Vec<New>,
    /// Listeners that failed to bind and are allowed to wait.
    waiting: Vec<(PortId, Serving)>,
    displaced: Vec<ReplacedListener>,
}

/// A listener of the config that has its socket but does not accept yet.
#[derive(Debug)]
struct New {
    port: PortId,
    wanted: Listener,
    socket: accept::BoundListener,
}

/// A listener that was closed so that another one can bind its address.
#[derive(Debug)]
struct ReplacedListener {
    port: PortId,
    wanted: Listener,
    address: SocketAddr,
}

impl Server {
    /// Binds sockets for the listeners of `config` that have none, including those that wait.
    ///
    /// A listener that listened with other keys has to bind, or the old one is restored. A new
    /// listener has to bind or waits, depending on `listeners`. A listener that replaces a waiting
    /// one may keep waiting.
    pub(super) async fn bind_new(
        &mut self,
        config: &Config,
        listeners: BindPolicy,
    ) -> anyhow::Result<ListenerChange> {
        let mut bound = ListenerChange::default();
        let staying = self.staying(config);
        let all = config.listeners.iter().zip(&config.port_taken).zip(&staying);
        for ((wanted, taken), stays) in all {
            if let Some(port) = stays {
                self.retry_now(*port, wanted, &mut bound);
                continue;
            }
            let before = self.at(wanted, &staying).or_else(|| bound.displaced_from(wanted));
            let (listened, displaced) =
                (before.is_some_and(|at| !self.waits(at)), bound.displaced.len());
            // Keeping the port ID keeps connected hosts.
            let port = before.unwrap_or_else(|| self.new_port());
            let error = match self.bind(wanted, &staying, &mut bound).await {
                Ok(socket) => {
                    bound.new.push(New { port, wanted: wanted.clone(), socket });
                    continue;
                }
                Err(error) => error,
            };
            let url = url(wanted.fabric.name(), place_of(wanted));
            let what = match &error {
                BindError::Taken(_) => taken.to_string(),
                BindError::Impossible(_) => error.to_string(),
            };
            // A listener that listened until now has to be restored.
            let gave_way = listened || bound.displaced.len() > displaced;
            let may_wait = listeners == BindPolicy::Optional || self.waits_for(wanted, &staying);
            if gave_way || !may_wait {
                self.unbind(bound);
                anyhow::bail!(match error {
                    BindError::Taken(_) => what,
                    BindError::Impossible(_) if listened =>
                        format!("listener {url}: bind with the new keys failed: {what}"),
                    BindError::Impossible(_) => format!("listener {url}: bind failed: {what}"),
                });
            }
            tracing::warn!("listener {url}: cannot listen yet, retrying: {what}");
            let last_address = self.last_address(port);
            let state = State::Waiting(RetryState::new(what, last_address, Instant::now()));
            bound.waiting.push((port, Serving { wanted: wanted.clone(), state }));
        }
        Ok(bound)
    }

    /// Retries a waiting listener that stays in the config.
    fn retry_now(&mut self, port: PortId, wanted: &Listener, bound: &mut ListenerChange) {
        let Some(Serving { state: State::Waiting(waiting), .. }) = self.listeners.get(&port) else {
            return;
        };
        // If it fails again, it is retried when it is due.
        if let Ok(socket) = accept::bind(&waiting.to_bind(wanted), &self.rdma) {
            bound.new.push(New { port, wanted: wanted.clone(), socket });
        }
    }

    /// Releases the sockets bound for a rejected change, and restores displaced listeners.
    pub(super) fn unbind(&mut self, bound: ListenerChange) {
        let ListenerChange { new, displaced, .. } = bound;
        drop(new);
        for ReplacedListener { port, wanted, address } in displaced {
            let again = Listener { port: address.port(), ..wanted.clone() };
            let state = match accept::bind(&again, &self.rdma) {
                Ok(socket) => State::Listening(socket.listen(self.service(port))),
                Err(error) => {
                    tracing::error!(
                        "listener {}: cannot be restored, retrying; no host can connect: {error}",
                        url(wanted.fabric.name(), address)
                    );
                    self.target.hide_port(port);
                    State::Waiting(RetryState::new(
                        error.to_string(),
                        Some(address),
                        Instant::now(),
                    ))
                }
            };
            self.listeners.insert(port, Serving { wanted, state });
        }
    }

    /// Waits until a listener is due for a [retry](Self::retry_listeners), or until one has ended.
    pub(in crate::control) fn listeners_due(&self) -> impl Future<Output = ()> + Send + use<> {
        let waiting = self.listeners.values().filter_map(|one| Some(one.state.waiting()?.due()));
        let due = waiting.chain(self.announce_again).min();
        let ended = Arc::clone(&self.listener_ended).notified_owned();
        async move {
            match due {
                Some(due) => drop(tokio::time::timeout_at(due.into(), ended).await),
                None => ended.await,
            }
        }
    }

    /// Retries listeners that are due, and makes listeners that have ended wait.
    ///
    /// Returns true if the set of listening URLs changed.
    pub(in crate::control) async fn retry_listeners(&mut self) -> bool {
        let (now, before) = (Instant::now(), self.urls());
        let is_due = |one: &Serving| match &one.state {
            State::Listening(listening) => listening.has_ended(),
            State::Waiting(waiting) => waiting.due() <= now,
        };
        let due: Vec<PortId> =
            self.listeners.iter().filter(|(_, one)| is_due(one)).map(|(port, _)| *port).collect();
        for port in due {
            let Some(Serving { wanted, state }) = self.listeners.remove(&port) else {
                debug_assert!(false, "a listener was removed by another change");
                continue;
            };
            let state = match state {
                State::Listening(listening) => {
                    let address = listening.address;
                    let error = listening.why_ended().await;
                    let at = url(wanted.fabric.name(), address);
                    tracing::warn!(
                        "listener {at}: listening ended, retrying; no host can connect: {error}"
                    );
                    self.target.hide_port(port);
                    State::Waiting(RetryState::new(error, Some(address), Instant::now()))
                }
                State::Waiting(waiting) => self.listen_again(port, &wanted, waiting),
            };
            self.listeners.insert(port, Serving { wanted, state });
        }
        let changed = self.urls() != before;
        if changed {
            self.labels = self.labels_of(&self.config);
        }
        if changed || self.announce_again.is_some_and(|due| due <= now) {
            self.announce();
        }
        changed
    }

    /// Retries to listen; on success hosts see the port in discovery logs.
    fn listen_again(&self, port: PortId, wanted: &Listener, mut waiting: RetryState) -> State {
        match accept::bind(&waiting.to_bind(wanted), &self.rdma) {
            Ok(socket) => {
                let address = socket.address();
                // A new connection names its port immediately, so the port has to be shown first.
                self.target.show_port(port_spec(port, wanted, address));
                let seconds = waiting.lasts(Instant::now()).as_secs();
                let at = url(wanted.fabric.name(), address);
                tracing::info!(seconds, "hosts can connect to {at} now, after retries");
                State::Listening(socket.listen(self.service(port)))
            }
            Err(error) => {
                tracing::debug!(
                    "{}: not yet: {error}",
                    url(wanted.fabric.name(), place_of(wanted))
                );
                waiting.failed_again(error.to_string(), Instant::now());
                State::Waiting(waiting)
            }
        }
    }

    /// Returns the listeners that do not listen, with the reasons.
    pub(in crate::control) fn waiting(&self) -> Vec<WaitingListener> {
        let one = |one: &Serving| {
            let error = one.state.waiting()?.error.clone();
            Some(WaitingListener { url: url(one.wanted.fabric.name(), one.address()), error })
        };
        self.listeners.values().filter_map(one).collect()
    }

    /// Announces the listeners at which the discovery service can be reached, if the config says
    /// so.
    pub(super) fn announce(&mut self) {
        let discovery = &self.config.discovery;
        let nqn = discovery.nqn.as_ref().map_or(DISCOVERY_NQN, Nqn::as_str);
        let reachable = |one: &&Serving| {
            discovery.is_announced && one.listens() && one.wanted.fabric == Fabric::Tcp
        };
        let instance = |one: &Serving| Instance {
            address: one.address(),
            v6_only: one.wanted.v6_only,
            nqn: nqn.to_owned(),
        };
        let wanted = self.listeners.values().filter(reachable).map(instance).collect();
        self.announcements.set(&wanted);
        let is_complete = self.announcements.has(&wanted);
        self.announce_again = (!is_complete).then(|| Instant::now() + ANNOUNCE_PAUSE);
    }

    /// Returns true if the listener with this port ID waits.
    fn waits(&self, port: PortId) -> bool {
        self.listeners.get(&port).is_some_and(|one| one.state.waiting().is_some())
    }

    /// Returns true if a waiting listener with the address of `wanted`, at any port, goes away.
    fn waits_for(&self, wanted: &Listener, staying: &[Option<PortId>]) -> bool {
        let place = |one: &Listener| (one.fabric, one.address);
        self.listeners.iter().any(|(port, one)| {
            let goes = !staying.contains(&Some(*port));
            goes && !one.listens() && place(&one.wanted) == place(wanted)
        })
    }

    /// Returns the address at which a waiting listener listened before, if it did.
    fn last_address(&self, port: PortId) -> Option<SocketAddr> {
        self.listeners.get(&port)?.state.waiting()?.last_address
    }

    /// Binds a listener; closes our own listeners that block the address and do not stay.
    async fn bind(
        &mut self,
        wanted: &Listener,
        staying: &[Option<PortId>],
        bound: &mut ListenerChange,
    ) -> Result<accept::BoundListener, BindError> {
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
            let Some(Serving { wanted, state: State::Listening(listening) }) =
                self.listeners.remove(&port)
            else {
                continue;
            };
            let address = listening.address;
            listening.close().await;
            bound.displaced.push(ReplacedListener { port, wanted, address });
        }
        accept::bind(wanted, &self.rdma)
    }

    /// Returns the port ID of a listener at the address of `wanted` that does not stay.
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
            ended: Arc::clone(&self.listener_ended),
        }
    }

    /// Returns, for each listener of `config` in order, the port ID that serves it already.
    ///
    /// Two identical listeners (both at port 0) get one port ID each.
    fn staying(&self, config: &Config) -> Vec<Option<PortId>> {
        let mut serving: Vec<_> =
            self.listeners.iter().map(|(port, serving)| (*port, &serving.wanted)).collect();
        let one = |wanted: &Listener| {
            let at = serving.iter().position(|(_, other)| other.is_same_socket(wanted))?;
            Some(serving.remove(at).0)
        };
        config.listeners.iter().map(one).collect()
    }

    /// Returns the ports after the change, without any that never listened.
    pub(super) fn ports<'a>(
        &'a self,
        config: &'a Config,
        bound: &'a ListenerChange,
    ) -> impl Iterator<Item = (PortId, &'a Listener, SocketAddr)> + 'a {
        let is_new = |port: &PortId| bound.new.iter().any(|new| new.port == *port);
        let stay = self
            .staying(config)
            .into_iter()
            .zip(&config.listeners)
            .filter_map(|(port, wanted)| Some((port?, wanted)))
            .filter(move |(port, _)| !is_new(port))
            .filter_map(|(port, wanted)| {
                Some((port, wanted, self.listeners.get(&port)?.last_address()?))
            });
        let waiting = bound.waiting.iter();
        let waiting = waiting
            .filter_map(|(port, serving)| Some((*port, &serving.wanted, serving.last_address()?)));
        let new = bound.new.iter().map(|new| (new.port, &new.wanted, new.socket.address()));
        stay.chain(waiting).chain(new)
    }

    /// Ends listeners that the config no longer has and starts the new ones; returns both counts.
    pub(super) fn settle_listeners(
        &mut self,
        config: &Config,
        bound: ListenerChange,
    ) -> (usize, usize) {
        let ListenerChange { new, waiting, displaced } = bound;
        let before = self.listeners.len() + displaced.len();
        let staying = self.staying(config);
        self.listeners.retain(|port, _| staying.contains(&Some(*port)));
        for (port, wanted) in staying.iter().zip(&config.listeners) {
            // The subsystems that it serves can have changed.
            if let Some(serving) = port.and_then(|port| self.listeners.get_mut(&port)) {
                serving.wanted = wanted.clone();
            }
        }
        let (started, ended) = (new.len(), before - self.listeners.len());
        self.listeners.extend(waiting);
        for New { port, wanted, socket } in new {
            // The port may have been hidden while the listener waited.
            self.target.show_port(port_spec(port, &wanted, socket.address()));
            let state = State::Listening(socket.listen(self.service(port)));
            self.listeners.insert(port, Serving { wanted, state });
        }
        (started, ended)
    }
}

/// Returns the configured address of a listener.
fn place_of(wanted: &Listener) -> SocketAddr {
    SocketAddr::new(wanted.address, wanted.port)
}

impl ListenerChange {
    /// Returns the port ID of a listener that was displaced from the address of `wanted`.
    fn displaced_from(&self, wanted: &Listener) -> Option<PortId> {
        let mut displaced = self.displaced.iter();
        displaced.find(|one| one.wanted.is_at(wanted)).map(|one| one.port)
    }
}

impl State {
    pub(super) fn waiting(&self) -> Option<&RetryState> {
        match self {
            Self::Listening(_) => None,
            Self::Waiting(waiting) => Some(waiting),
        }
    }
}

impl Serving {
    /// Returns the address at which it listens, or listened before it waited, with the actual port.
    fn last_address(&self) -> Option<SocketAddr> {
        match &self.state {
            State::Listening(listening) => Some(listening.address),
            State::Waiting(waiting) => waiting.last_address,
        }
    }

    /// Returns the address at which it listens, or is to listen.
    pub(super) fn address(&self) -> SocketAddr {
        self.last_address().unwrap_or_else(|| place_of(&self.wanted))
    }

    /// Returns true if hosts can connect.
    pub(super) fn listens(&self) -> bool {
        self.state.waiting().is_none()
    }

    /// Returns true if the two listeners cannot listen at the same time.
    fn is_in_the_way_of(&self, wanted: &Listener) -> bool {
        let here = self.address();
        let same_ip = here.ip() == wanted.address
            || here.ip().is_unspecified()
            || wanted.address.is_unspecified();
        let same_port = here.port() == wanted.port;
        self.listens() && self.wanted.fabric == wanted.fabric && same_port && same_ip
    }
}
