//! How much one host may have at once, in all subsystems together, and how much it has.
//!
//! Hosts are told apart by the NQN they name in Connect. What is counted is a [`Seat`], which a connected
//! queue owns and gives back with its end.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use nvmeof_wire::Nqn;

use crate::controller::{Controller, DeathReason};
use crate::failure::Failure;
use crate::limits::Limits;

/// What a host may have; `None`: any number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostLimits {
    /// Connected queues of every kind, those of discovery controllers among them.
    pub connections: Option<u32>,
    /// I/O queues of all its controllers.
    pub io_queues: Option<u32>,
}

/// What each host may have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostRules {
    /// Hosts that are not named.
    pub others: HostLimits,
    /// Those that are.
    pub named: BTreeMap<Nqn, HostLimits>,
}

impl HostRules {
    /// What this host may have.
    #[must_use]
    pub fn of(&self, host: &Nqn) -> HostLimits {
        self.named.get(host).copied().unwrap_or(self.others)
    }
}

/// What one host has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostCounts {
    /// Connected queues of every kind.
    pub connections: u32,
    /// I/O queues among them.
    pub io_queues: u32,
    /// Connects refused because it had as many as it may, since it last had none.
    pub refused: u64,
}

/// A Connect that was refused because its host has as many as it may.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The host.
    pub host: Nqn,
    /// What it wanted to connect to.
    pub subsystem: Nqn,
    /// Which queue; 0 for a controller.
    pub qid: u16,
    /// Why.
    pub why: Failure,
    /// What it had.
    pub had: HostCounts,
}

/// Every host that has a queue.
#[derive(Debug, Default)]
pub(crate) struct Hosts {
    state: Mutex<State>,
    /// How many they are.
    connected: AtomicUsize,
}

#[derive(Debug, Default)]
struct State {
    rules: HostRules,
    counts: BTreeMap<Nqn, HostCounts>,
    /// Connected queues of all hosts.
    connections: u32,
    /// Discovery controllers, the oldest first.
    discovery: Vec<Discovery>,
}

/// A discovery controller: anybody may have one, so who has many loses some to others.
#[derive(Debug)]
struct Discovery {
    seat: u64,
    from: Option<IpAddr>,
    /// A subsystem lists its host.
    is_listed: bool,
    /// Not there before it is made.
    controller: Weak<Controller>,
}

/// What bounds the queues of all hosts together.
pub(crate) struct Room<'a> {
    pub(crate) limits: &'a Limits,
    /// Whether any subsystem lists hosts, and whether one lists this host.
    pub(crate) lists: &'a dyn Fn() -> (bool, bool),
    /// The host's address, as [`Queue::new`](crate::Queue::new) takes it.
    pub(crate) peer: &'a str,
}

/// The network that an address counts for where addresses are counted: itself, or the /64 that one IPv6 host has whole.
#[must_use]
pub fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(six) => IpAddr::V6(Ipv6Addr::from_bits(six.to_bits() & !u128::from(u64::MAX))),
        four @ IpAddr::V4(_) => four,
    }
}

/// The right of a host to have one queue; dropped, it goes back.
#[derive(Debug)]
pub(crate) struct Seat {
    hosts: Arc<Hosts>,
    host: Nqn,
    is_io: bool,
    /// Its number among those of discovery controllers, if it is one of these.
    discovery: Option<u64>,
}

/// What a seat is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SeatKind {
    /// A discovery controller.
    Discovery,
    /// A controller, which is of no use without an I/O queue.
    Controller,
    IoQueue,
}

impl Hosts {
    /// Other rules from now on. Hosts that have more than they may keep it, and get no more.
    pub(crate) fn set_rules(&self, rules: HostRules) {
        self.state().rules = rules;
    }

    /// A seat for a queue of `host`, with the number that `number` gives if it is for discovery.
    ///
    /// # Errors
    /// It has as many as it may, or all have; and what it has.
    pub(crate) fn seat(
        self: &Arc<Self>,
        host: &Nqn,
        kind: SeatKind,
        room: &Room<'_>,
        number: u64,
    ) -> Result<Seat, (Failure, HostCounts)> {
        let mut state = self.state();
        let limits = state.rules.of(host);
        let had = state.counts.get(host).copied().unwrap_or_default();
        let is_full = |limit: Option<u32>, has: u32| limit.is_some_and(|limit| has >= limit);
        let why = if is_full(limits.connections, had.connections) {
            Some(Failure::HostConnections)
        } else if kind != SeatKind::Discovery && is_full(limits.io_queues, had.io_queues) {
            Some(Failure::HostQueues)
        } else {
            state.has_room(room).err()
        };
        let mut ended = None;
        let why = match why {
            None if kind == SeatKind::Discovery => match state.discovery_room(room) {
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
        let is_io = kind == SeatKind::IoQueue;
        let counts = state.counts.entry(host.clone()).or_default();
        counts.connections += 1;
        counts.io_queues += u32::from(is_io);
        state.connections += 1;
        self.connected.store(state.counts.len(), Ordering::Relaxed);
        let discovery = (kind == SeatKind::Discovery).then_some(number);
        if let Some(seat) = discovery {
            let from = address_of(room.peer);
            let (_, is_listed) = (room.lists)();
            state.discovery.push(Discovery { seat, from, is_listed, controller: Weak::new() });
        }
        // Its queue's end comes here, too.
        drop(state);
        if let Some(controller) = ended.and_then(|oldest: Weak<Controller>| oldest.upgrade()) {
            controller.kill(DeathReason::MadeRoom);
        }
        Ok(Seat { hosts: Arc::clone(self), host: host.clone(), is_io, discovery })
    }

    /// Hosts that have a queue.
    #[inline]
    pub(crate) fn connected(&self) -> usize {
        self.connected.load(Ordering::Relaxed)
    }

    /// I/O queues that this host may still have.
    pub(crate) fn io_queues_left(&self, host: &Nqn) -> u32 {
        let state = self.state();
        let limits = state.rules.of(host);
        let has = state.counts.get(host).copied().unwrap_or_default();
        let left = |limit: Option<u32>, has: u32| limit.map_or(u32::MAX, |l| l.saturating_sub(has));
        left(limits.connections, has.connections).min(left(limits.io_queues, has.io_queues))
    }

    /// Every host that has a queue, or that has rules of its own, with what it may have.
    pub(crate) fn counts(&self) -> Vec<(Nqn, HostCounts, HostLimits)> {
        let state = self.state();
        let mut all: BTreeMap<&Nqn, HostCounts> =
            state.rules.named.keys().map(|host| (host, HostCounts::default())).collect();
        all.extend(state.counts.iter().map(|(host, counts)| (host, *counts)));
        all.into_iter().map(|(host, counts)| (host.clone(), counts, state.rules.of(host))).collect()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seat {
    /// The controller that has it: one for discovery may have to go for another.
    pub(crate) fn taken_by(&self, controller: &Arc<Controller>) {
        let Some(number) = self.discovery else { return };
        let mut state = self.hosts.state();
        if let Some(one) = state.discovery.iter_mut().find(|one| one.seat == number) {
            one.controller = Arc::downgrade(controller);
        }
    }
}

impl State {
    /// Whether there may be another queue.
    fn has_room(&self, room: &Room<'_>) -> Result<(), Failure> {
        if self.connections >= room.limits.connections {
            return Err(Failure::TargetConnections);
        }
        if self.connections < room.limits.unlisted_connections() {
            return Ok(());
        }
        match (room.lists)() {
            (true, false) => Err(Failure::UnlistedConnections),
            _ => Ok(()),
        }
    }

    /// Whether there may be another discovery controller; and the one that has to go for it. That is the oldest from
    /// where the most come, if these are more than come from where the new one does. For a host that a subsystem lists
    /// it is the oldest of those that none lists, as long as there are such.
    fn discovery_room(&mut self, room: &Room<'_>) -> Result<Option<Weak<Controller>>, Failure> {
        if self.discovery.len() < room.limits.discovery_controllers() as usize {
            return Ok(None);
        }
        let mut counts: BTreeMap<Option<IpAddr>, usize> = BTreeMap::new();
        for one in &self.discovery {
            *counts.entry(one.from).or_default() += 1;
        }
        let most = counts.values().copied().max().unwrap_or(0);
        let own = counts.get(&address_of(room.peer)).copied().unwrap_or(0);
        let from = address_of(room.peer);
        let goes = |one: &Discovery| match own {
            // Its own oldest.
            own if own == most => one.from == from,
            _ => counts.get(&one.from) == Some(&most),
        };
        let unlisted = self.discovery.iter().position(|one| !one.is_listed);
        if let (Some(at), (_, true)) = (unlisted, (room.lists)()) {
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

impl Drop for Seat {
    fn drop(&mut self) {
        let mut state = self.hosts.state();
        state.connections -= 1;
        if let Some(number) = self.discovery {
            state.discovery.retain(|one| one.seat != number);
        }
        let Some(counts) = state.counts.get_mut(&self.host) else { return };
        counts.connections -= 1;
        counts.io_queues -= u32::from(self.is_io);
        // Names come from outside: none is kept for longer than it is in use.
        if counts.connections == 0 {
            state.counts.remove(&self.host);
            self.hosts.connected.store(state.counts.len(), Ordering::Relaxed);
        }
    }
}
