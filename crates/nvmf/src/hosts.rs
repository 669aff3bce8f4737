//! How much one host may have at once, in all subsystems together, and how much it has.
//!
//! Hosts are told apart by the NQN they name in Connect. What is counted is a [`Seat`], which a connected
//! queue owns and gives back with its end.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nvmeof_wire::Nqn;

use crate::failure::Failure;

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
}

#[derive(Debug, Default)]
struct State {
    rules: HostRules,
    counts: BTreeMap<Nqn, HostCounts>,
}

/// The right of a host to have one queue; dropped, it goes back.
#[derive(Debug)]
pub(crate) struct Seat {
    hosts: Arc<Hosts>,
    host: Nqn,
    is_io: bool,
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

    /// A seat for a queue of `host`.
    ///
    /// # Errors
    /// It has as many as it may, and what it has.
    pub(crate) fn seat(
        self: &Arc<Self>,
        host: &Nqn,
        kind: SeatKind,
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
            None
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
        drop(state);
        Ok(Seat { hosts: Arc::clone(self), host: host.clone(), is_io })
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

impl Drop for Seat {
    fn drop(&mut self) {
        let mut state = self.hosts.state();
        let Some(counts) = state.counts.get_mut(&self.host) else { return };
        counts.connections -= 1;
        counts.io_queues -= u32::from(self.is_io);
        // Names come from outside: none is kept for longer than it is in use.
        if counts.connections == 0 {
            state.counts.remove(&self.host);
        }
    }
}
