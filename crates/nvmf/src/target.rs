//! The running state of a target: subsystems, listeners, and the way to change them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use nvmeof_wire::Nqn;

pub use crate::apply::{ApplyError, Changes, RetiredNamespace};
use crate::controller::{Controller, ControllerKey};
use crate::hosts::{HostCounts, HostLimits, HostRules, Hosts};
use crate::limits::Limits;
use crate::quiesce::Departing;
use crate::spec::{PortId, PortSpec, ReferralSpec, TargetSpec};
use crate::subsystem::Subsystem;

/// Everything hosts can reach. Shared by all reactors and the control plane.
#[derive(Debug)]
pub struct Target {
    pub(crate) limits: Limits,
    pub(crate) notifier: Arc<Notifier>,
    pub(crate) hosts: Arc<Hosts>,
    /// Controllers that are gone and whose commands are not.
    pub(crate) departing: Arc<Departing>,
    registry: RwLock<Registry>,
    next_key: AtomicU64,
    next_queue: AtomicU64,
    /// Queues that exist, connected or not.
    pub(crate) queues: AtomicUsize,
}

/// How many there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TargetCounts {
    /// Controllers, discovery controllers among them.
    pub controllers: usize,
    /// Queues, one a connection, those before Connect among them.
    pub queues: usize,
}

/// A controller, as somebody who looks from outside wants to know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControllerInfo {
    /// Its ID in its subsystem.
    pub cntlid: u16,
    /// Its subsystem.
    pub subnqn: Nqn,
    /// Its host.
    pub hostnqn: Nqn,
    /// The listener its admin queue came through.
    pub port: PortId,
}

/// What [`Target::apply`] replaces.
#[derive(Debug)]
pub(crate) struct Registry {
    /// NVM subsystems.
    pub(crate) subsystems: BTreeMap<Nqn, Arc<Subsystem>>,
    /// The discovery service.
    pub(crate) discovery: Arc<Subsystem>,
    pub(crate) ports: BTreeMap<PortId, PortSpec>,
    /// Those of them that do not listen for now: no discovery log has them.
    pub(crate) hidden_ports: BTreeSet<PortId>,
    pub(crate) referrals: Vec<ReferralSpec>,
    /// GENCTR of the discovery log (Base 5.16.1.23): bumped with every change of what it lists.
    pub(crate) discovery_generation: u64,
}

impl Registry {
    /// Whether any subsystem lists hosts, and whether one lists this host.
    pub(crate) fn lists(&self, host: &Nqn) -> (bool, bool) {
        let mut any = false;
        for subsystem in self.subsystems.values() {
            match subsystem.lists(host) {
                Some(true) => return (true, true),
                Some(false) => any = true,
                None => {}
            }
        }
        (any, false)
    }
}

impl Target {
    /// An empty target.
    #[must_use]
    pub fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Self {
            limits,
            notifier: Arc::default(),
            hosts: Arc::default(),
            departing: Arc::default(),
            registry: RwLock::new(Registry {
                subsystems: BTreeMap::new(),
                discovery: Arc::new(Subsystem::discovery()),
                ports: BTreeMap::new(),
                hidden_ports: BTreeSet::new(),
                referrals: Vec::new(),
                discovery_generation: 0,
            }),
            next_key: AtomicU64::new(0),
            next_queue: AtomicU64::new(1),
            queues: AtomicUsize::new(0),
        })
    }

    /// Makes the running state what `spec` says, all of it or, if anything in it is wrong, nothing.
    /// Hosts hear of changed namespaces and discovery logs; controllers of what is gone end.
    ///
    /// # Errors
    /// [`ApplyError`] says what is wrong; nothing has changed then.
    pub fn apply(&self, spec: TargetSpec) -> Result<Changes, ApplyError> {
        crate::apply::apply(self, spec)
    }

    /// A listener listens: discovery logs have it, as this says, from now on. It may be a new one, or one that was
    /// [hidden](Self::hide_port).
    pub fn show_port(&self, port: PortSpec) {
        crate::apply::show_port(self, port);
    }

    /// A listener does not listen for now: discovery logs do not have it any more. Who came through it stays.
    pub fn hide_port(&self, port: PortId) {
        crate::apply::hide_port(self, port);
    }

    /// Sets what is called whenever queues on any reactor should be looked at
    /// ([`Queue::poll_event`](crate::Queue::poll_event), [`Queue::is_dead`](crate::Queue::is_dead)). It must
    /// only wake the reactors: it may be called with locks of this crate held.
    pub fn set_notifier(&self, notify: Box<dyn Fn() + Send + Sync>) {
        *self.notifier.notify.write().unwrap_or_else(PoisonError::into_inner) = Some(notify);
    }

    /// Bumped before every call of the notifier: an unchanged value means nothing to look at.
    #[inline]
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.notifier.epoch()
    }

    /// Controllers that are gone while commands of them are still with a device.
    #[must_use]
    pub fn departing(&self) -> usize {
        self.departing.count()
    }

    /// The bounds it was made with.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// How many controllers and queues there are.
    #[must_use]
    pub fn counts(&self) -> TargetCounts {
        let registry = self.registry();
        let controllers = registry
            .subsystems
            .values()
            .chain([&registry.discovery])
            .map(|subsystem| subsystem.controller_count())
            .sum();
        TargetCounts { controllers, queues: self.queues.load(Ordering::Relaxed) }
    }

    /// Every controller, those for discovery among them; by subsystem, then by ID.
    #[must_use]
    pub fn controllers(&self) -> Vec<ControllerInfo> {
        let registry = self.registry();
        let subsystems = registry.subsystems.values().chain([&registry.discovery]);
        let all = subsystems.flat_map(|subsystem| subsystem.all_controllers());
        let info = |controller: Arc<Controller>| ControllerInfo {
            cntlid: controller.cntlid,
            subnqn: controller.subsystem.nqn.clone(),
            hostnqn: controller.host_nqn.clone(),
            port: controller.port,
        };
        all.map(info).collect()
    }

    /// Whether any subsystem has a controller of this ID: what a transport can know of an I/O queue before its
    /// Connect names the subsystem.
    #[must_use]
    pub fn has_controller(&self, cntlid: u16) -> bool {
        let registry = self.registry();
        let mut subsystems = registry.subsystems.values().chain([&registry.discovery]);
        subsystems.any(|subsystem| subsystem.controller(cntlid).is_some())
    }

    /// Sets how much each host may have, from the next Connect on.
    pub fn limit_hosts(&self, rules: HostRules) {
        self.hosts.set_rules(rules);
    }

    /// How many hosts have a queue.
    #[inline]
    #[must_use]
    pub fn hosts_connected(&self) -> usize {
        self.hosts.connected()
    }

    /// Every host that has a queue, or rules of its own: what it has, and may have.
    #[must_use]
    pub fn host_counts(&self) -> Vec<(Nqn, HostCounts, HostLimits)> {
        self.hosts.counts()
    }

    /// Whether the host of a controller of this ID may have another I/O queue: what a transport can know before
    /// Connect names the subsystem. Of several such controllers it is enough that one host may.
    #[must_use]
    pub fn may_add_queue(&self, cntlid: u16) -> bool {
        let registry = self.registry();
        let mut controllers =
            registry.subsystems.values().filter_map(|subsystem| subsystem.controller(cntlid));
        controllers.any(|controller| self.hosts.io_queues_left(&controller.host_nqn) > 0)
    }

    /// The state now; [`Self::apply`] waits until it is let go.
    pub(crate) fn registry(&self) -> RwLockReadGuard<'_, Registry> {
        self.registry.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn registry_mut(&self) -> RwLockWriteGuard<'_, Registry> {
        self.registry.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// A name no queue had before.
    pub(crate) fn next_queue(&self) -> u64 {
        self.next_queue.fetch_add(1, Ordering::Relaxed)
    }

    /// A key no controller had before.
    pub(crate) fn next_key(&self) -> ControllerKey {
        ControllerKey(self.next_key.fetch_add(1, Ordering::Relaxed))
    }
}

/// Tells reactors that something happened to their queues.
#[derive(Default)]
pub(crate) struct Notifier {
    epoch: AtomicU64,
    notify: RwLock<Option<Box<dyn Fn() + Send + Sync>>>,
}

impl Notifier {
    /// How often it notified.
    #[inline]
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Bumps the epoch and calls whoever asked for it.
    pub(crate) fn notify(&self) {
        self.epoch.fetch_add(1, Ordering::AcqRel);
        if let Some(notify) = &*self.notify.read().unwrap_or_else(PoisonError::into_inner) {
            notify();
        }
    }
}

impl fmt::Debug for Notifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Notifier").field("epoch", &self.epoch).finish_non_exhaustive()
    }
}
