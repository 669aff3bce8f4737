//! Limits and usage of each host, summed over all subsystems.
//!
//! A host is identified by the NQN that it sends in Connect. The unit is a [`QueueLease`], which a
//! connected queue owns and releases at its end.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use nvmeof_wire::Nqn;

use crate::controller::{Controller, TeardownReason};
use crate::failure::Failure;
use crate::limits::Limits;

/// Limits of a host; `None`: unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostLimits {
    /// Connected queues of every kind, including those of discovery controllers.
    pub connections: Option<u32>,
    /// I/O queues of all its controllers.
    pub io_queues: Option<u32>,
}

/// Limits of all hosts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostQuotas {
    /// Limits of hosts that are not named.
    pub others: HostLimits,
    /// Limits of named hosts.
    pub named: BTreeMap<Nqn, HostLimits>,
}

impl HostQuotas {
    /// The limits of this host.
    #[must_use]
    pub fn of(&self, host: &Nqn) -> HostLimits {
        self.named.get(host).copied().unwrap_or(self.others)
    }
}

/// Usage of one host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostUsage {
    /// Connected queues of every kind.
    pub connections: u32,
    /// I/O queues among them.
    pub io_queues: u32,
    /// Connects that its limits refused since it last had no queue.
    pub refused: u64,
}

/// Every host that has a queue.
#[derive(Debug, Default)]
pub(crate) struct HostRegistry {
    state: Mutex<State>,
    /// Number of these hosts.
    connected: AtomicUsize,
}

#[derive(Debug, Default)]
struct State {
    rules: HostQuotas,
    counts: BTreeMap<Nqn, HostUsage>,
    /// Connected queues of all hosts.
    connections: u32,
    /// Discovery controllers, the oldest first.
    discovery: Vec<Discovery>,
}

/// A discovery controller; any host is allowed one, so a host with many can lose some to others.
#[derive(Debug)]
struct Discovery {
    lease: u64,
    from: Option<IpAddr>,
    /// A subsystem lists its host.
    is_listed: bool,
    /// Empty until the controller is created.
    controller: Weak<Controller>,
}

/// Limits on the queues of all hosts together, and the host that connects.
pub(crate) struct QuotaContext<'a> {
    pub(crate) limits: &'a Limits,
    /// Returns two flags: any subsystem lists hosts; a subsystem lists this host.
    pub(crate) lists: &'a dyn Fn() -> (bool, bool),
    /// The host's address, as [`Queue::new`](crate::Queue::new) takes it.
    pub(crate) peer: &'a str,
}

/// The network that an address counts for: the address itself, or the /64 of an IPv6 host.
#[must_use]
pub fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(six) => IpAddr::V6(Ipv6Addr::from_bits(six.to_bits() & !u128::from(u64::MAX))),
        four @ IpAddr::V4(_) => four,
    }
}

/// Right of a host to one queue; dropping it releases the right.
#[derive(Debug)]
pub(crate) struct QueueLease {
    hosts: Arc<HostRegistry>,
    host: Nqn,
    is_io: bool,
    /// Its number among discovery controllers, if it is for one.
    discovery: Option<u64>,
}

/// Kind of queue that a [`QueueLease`] is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueueLeaseKind {
    /// A discovery controller.
    Discovery,
    /// A controller, which is useless without an I/O queue.
    Controller,
    IoQueue,
}

impl HostRegistry {
    /// Replaces the limits. Hosts that exceed them keep their queues, and get no more.
    pub(crate) fn set_rules(&self, rules: HostQuotas) {
        self.state().rules = rules;
    }

    /// Creates a [`QueueLease`] for a queue of `host`; `number` identifies it if it is for
    /// discovery.
    ///
    /// # Errors
    /// The host, or all hosts together, have reached a limit. The error includes the usage of the
    /// host.
    pub(crate) fn lease(
        self: &Arc<Self>,
        host: &Nqn,
        kind: QueueLeaseKind,
        quota: &QuotaContext<'_>,
        number: u64,
    ) -> Result<QueueLease, (Failure, HostUsage)> {
        let mut state = self.state();
        let limits = state.rules.of(host);
        let had = state.counts.get(host).copied().unwrap_or_default();
        let is_full = |limit: Option<u32>, has: u32| limit.is_some_and(|limit| has >= limit);
        let why = if is_full(limits.connections, had.connections) {
            Some(Failure::HostConnections)
        } else if kind != QueueLeaseKind::Discovery && is_full(limits.io_queues, had.io_queues) {
            Some(Failure::HostQueues)
        } else {
            state.check_connections(quota).err()
        };
        let mut ended = None;
        let why = match why {
            None if kind == QueueLeaseKind::Discovery => match state.displaced_discovery(quota) {
                Ok(oldest) => {
                    ended = oldest;
                    None
                }
                Err(why) => Some(why),
            },
            why => why,
        };
        if let Some(why) = why {
            if let Some(counts) = state.counts.get_mut(host) {
                counts.refused += 1;
            }
            return Err((why, had));
        }
        let is_io = kind == QueueLeaseKind::IoQueue;
        let counts = state.counts.entry(host.clone()).or_default();
        counts.connections += 1;
        counts.io_queues += u32::from(is_io);
        state.connections += 1;
        self.connected.store(state.counts.len(), Ordering::Relaxed);
        let discovery = (kind == QueueLeaseKind::Discovery).then_some(number);
        if let Some(lease) = discovery {
            let from = address_of(quota.peer);
            let (_, is_listed) = (quota.lists)();
            state.discovery.push(Discovery { lease, from, is_listed, controller: Weak::new() });
        }
        // The kill ends the queue of the controller, which locks the state, too.
        drop(state);
        if let Some(controller) = ended.and_then(|oldest: Weak<Controller>| oldest.upgrade()) {
            controller.kill(TeardownReason::MadeRoom);
        }
        Ok(QueueLease { hosts: Arc::clone(self), host: host.clone(), is_io, discovery })
    }

    /// Number of hosts that have a queue.
    #[inline]
    pub(crate) fn connected(&self) -> usize {
        self.connected.load(Ordering::Relaxed)
    }

    /// Number of I/O queues that this host may still connect.
    pub(crate) fn io_queues_left(&self, host: &Nqn) -> u32 {
        let state = self.state();
        let limits = state.rules.of(host);
        let has = state.counts.get(host).copied().unwrap_or_default();
        let left = |limit: Option<u32>, has: u32| limit.map_or(u32::MAX, |l| l.saturating_sub(has));
        left(limits.connections, has.connections).min(left(limits.io_queues, has.io_queues))
    }

    /// Usage and limits of every host that has a queue or its own limits.
    pub(crate) fn counts(&self) -> Vec<(Nqn, HostUsage, HostLimits)> {
        let state = self.state();
        let mut all: BTreeMap<&Nqn, HostUsage> =
            state.rules.named.keys().map(|host| (host, HostUsage::default())).collect();
        all.extend(state.counts.iter().map(|(host, counts)| (host, *counts)));
        all.into_iter().map(|(host, counts)| (host.clone(), counts, state.rules.of(host))).collect()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl QueueLease {
    /// Assigns the controller that owns it; a discovery controller can be ended to make room.
    pub(crate) fn taken_by(&self, controller: &Arc<Controller>) {
        let Some(number) = self.discovery else { return };
        let mut state = self.hosts.state();
        if let Some(one) = state.discovery.iter_mut().find(|one| one.lease == number) {
            one.controller = Arc::downgrade(controller);
        }
    }
}

impl State {
    /// Checks the limits for another queue.
    fn check_connections(&self, quota: &QuotaContext<'_>) -> Result<(), Failure> {
        if self.connections >= quota.limits.connections {
            return Err(Failure::TargetConnections);
        }
        if self.connections < quota.limits.unlisted_connections() {
            return Ok(());
        }
        match (quota.lists)() {
            (true, false) => Err(Failure::UnlistedConnections),
            _ => Ok(()),
        }
    }

    /// Checks the limits for another discovery controller; returns the one to end for it.
    ///
    /// That is the oldest from the network with the most controllers, or the oldest of the new
    /// one's network if that has as many. For a host that a subsystem lists, it is the oldest of an
    /// unlisted host, if there is one.
    fn displaced_discovery(
        &mut self,
        quota: &QuotaContext<'_>,
    ) -> Result<Option<Weak<Controller>>, Failure> {
        if self.discovery.len() < quota.limits.discovery_controllers() as usize {
            return Ok(None);
        }
        let mut counts: BTreeMap<Option<IpAddr>, usize> = BTreeMap::new();
        for one in &self.discovery {
            *counts.entry(one.from).or_default() += 1;
        }
        let most = counts.values().copied().max().unwrap_or(0);
        let own = counts.get(&address_of(quota.peer)).copied().unwrap_or(0);
        let from = address_of(quota.peer);
        let goes = |one: &Discovery| match own {
            // The oldest of the same network.
            own if own == most => one.from == from,
            _ => counts.get(&one.from) == Some(&most),
        };
        let unlisted = self.discovery.iter().position(|one| !one.is_listed);
        if let (Some(at), (_, true)) = (unlisted, (quota.lists)()) {
            return Ok(Some(self.discovery.remove(at).controller));
        }
        match self.discovery.iter().position(goes) {
            Some(at) if own == most || most > 1 => Ok(Some(self.discovery.remove(at).controller)),
            _ => Err(Failure::DiscoveryControllers),
        }
    }
}

fn address_of(peer: &str) -> Option<IpAddr> {
    peer.parse::<SocketAddr>().ok().map(|address| network_of(address.ip()))
}

impl Drop for QueueLease {
    fn drop(&mut self) {
        let mut state = self.hosts.state();
        state.connections -= 1;
        if let Some(number) = self.discovery {
            state.discovery.retain(|one| one.lease != number);
        }
        let Some(counts) = state.counts.get_mut(&self.host) else { return };
        counts.connections -= 1;
        counts.io_queues -= u32::from(self.is_io);
        // Names come from outside, so none is kept longer than it is in use.
        if counts.connections == 0 {
            state.counts.remove(&self.host);
            self.hosts.connected.store(state.counts.len(), Ordering::Relaxed);
        }
    }
}
