//! The running state of a target: subsystems, listeners, and the methods to change them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use nvmeof_wire::Nqn;

pub use crate::apply::{ApplyError, Changes, RetiredNamespace};
use crate::controller::{Controller, ControllerKey};
use crate::hosts::{HostLimits, HostQuotas, HostRegistry, HostUsage};
use crate::limits::Limits;
use crate::quiesce::QuiescingControllers;
use crate::spec::{PortId, PortSpec, ReferralSpec, TargetSpec};
use crate::subsystem::{Subsystem, SubsystemKind};

/// Everything that hosts can reach. Shared by all reactors and the control plane.
#[derive(Debug)]
pub struct Target {
    pub(crate) limits: Limits,
    pub(crate) notifier: Arc<Notifier>,
    pub(crate) hosts: Arc<HostRegistry>,
    /// Ended controllers with commands that are still at a device.
    pub(crate) quiescing: Arc<QuiescingControllers>,
    registry: RwLock<Registry>,
    next_key: AtomicU64,
    next_queue: AtomicU64,
    /// Queues that exist, connected or not.
    pub(crate) queues: AtomicUsize,
}

/// Number of controllers and queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TargetCounts {
    /// Controllers, including discovery controllers.
    pub controllers: usize,
    /// Queues, one per connection, including those before Connect.
    pub queues: usize,
}

/// A controller, for observers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControllerInfo {
    /// ID in its subsystem.
    pub cntlid: u16,
    /// NQN of its subsystem.
    pub subnqn: Nqn,
    /// NQN of its host.
    pub hostnqn: Nqn,
    /// The listener of its admin queue.
    pub port: PortId,
}

/// State that [`Target::apply`] replaces.
#[derive(Debug)]
pub(crate) struct Registry {
    /// NVM subsystems.
    pub(crate) subsystems: BTreeMap<Nqn, Arc<Subsystem>>,
    /// The discovery service; its NQN is the unique one, if it has one.
    pub(crate) discovery: Arc<Subsystem>,
    /// Only hosts that may connect to a subsystem may connect to it.
    pub(crate) discovery_is_restricted: bool,
    pub(crate) ports: BTreeMap<PortId, PortSpec>,
    /// Ports that do not listen at the moment; no discovery log lists them.
    pub(crate) hidden_ports: BTreeSet<PortId>,
    pub(crate) referrals: Vec<ReferralSpec>,
    /// GENCTR of the discovery log (Base 5.16.1.23), incremented with every change of its contents.
    pub(crate) discovery_generation: u64,
}

impl Registry {
    /// The subsystem of this name.
    pub(crate) fn subsystem(&self, nqn: &Nqn) -> Option<&Arc<Subsystem>> {
        if nqn.is_discovery() || *nqn == self.discovery.nqn {
            return Some(&self.discovery);
        }
        self.subsystems.get(nqn)
    }

    /// Returns true if this host may connect to a subsystem or to the discovery service.
    pub(crate) fn allows(&self, subsystem: &Subsystem, host: &Nqn) -> bool {
        match subsystem.kind {
            SubsystemKind::Nvm => subsystem.allows(host),
            SubsystemKind::Discovery => {
                !self.discovery_is_restricted
                    || self.subsystems.values().any(|one| one.allows(host))
            }
        }
    }

    /// Returns two flags: any subsystem lists hosts; a subsystem lists this host.
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
    /// Creates an empty target.
    #[must_use]
    pub fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Self {
            limits,
            notifier: Arc::default(),
            hosts: Arc::default(),
            quiescing: Arc::default(),
            registry: RwLock::new(Registry {
                subsystems: BTreeMap::new(),
                discovery: Arc::new(Subsystem::discovery(Nqn::discovery())),
                discovery_is_restricted: false,
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

    /// Changes the running state to `spec`, or changes nothing if anything in it is invalid.
    ///
    /// Hosts are notified of changed namespaces and discovery logs. Controllers of removed
    /// subsystems, listeners and hosts end.
    ///
    /// # Errors
    /// [`ApplyError`] describes the invalid part; nothing has changed then.
    pub fn apply(&self, spec: TargetSpec) -> Result<Changes, ApplyError> {
        crate::apply::apply(self, spec)
    }

    /// Adds a listener to the discovery logs.
    ///
    /// The listener is new, or was [hidden](Self::hide_port).
    pub fn show_port(&self, port: PortSpec) {
        crate::apply::show_port(self, port);
    }

    /// Removes a listener that does not listen at the moment from the discovery logs.
    ///
    /// Its connections stay.
    pub fn hide_port(&self, port: PortId) {
        crate::apply::hide_port(self, port);
    }

    /// Sets the callback that requests a poll of the queues on all reactors.
    ///
    /// The reactors then call [`Queue::poll_event`](crate::Queue::poll_event) and
    /// [`Queue::is_dead`](crate::Queue::is_dead). The callback must only wake the reactors, because
    /// this crate can hold locks during the call.
    pub fn set_notifier(&self, notify: Box<dyn Fn() + Send + Sync>) {
        *self.notifier.notify.write().unwrap_or_else(PoisonError::into_inner) = Some(notify);
    }

    /// Epoch, incremented before every call of the notifier. If unchanged, no poll is needed.
    #[inline]
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.notifier.epoch()
    }

    /// Number of ended controllers with commands that are still at a device.
    #[must_use]
    pub fn quiescing(&self) -> usize {
        self.quiescing.count()
    }

    /// The limits of the target.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Number of controllers and queues.
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

    /// Every controller, including discovery controllers; by subsystem, then by ID.
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

    /// Returns true if any subsystem has a controller of this ID.
    ///
    /// A transport can check this for an I/O queue before its Connect names the subsystem.
    #[must_use]
    pub fn has_controller(&self, cntlid: u16) -> bool {
        let registry = self.registry();
        let mut subsystems = registry.subsystems.values().chain([&registry.discovery]);
        subsystems.any(|subsystem| subsystem.controller(cntlid).is_some())
    }

    /// Sets the limits of each host, from the next Connect on.
    pub fn limit_hosts(&self, rules: HostQuotas) {
        self.hosts.set_rules(rules);
    }

    /// Number of hosts that have a queue.
    #[inline]
    #[must_use]
    pub fn hosts_connected(&self) -> usize {
        self.hosts.connected()
    }

    /// Usage and limits of every host that has a queue or its own limits.
    #[must_use]
    pub fn host_counts(&self) -> Vec<(Nqn, HostUsage, HostLimits)> {
        self.hosts.counts()
    }

    /// Returns true if the host of a controller of this ID may connect another I/O queue.
    ///
    /// A transport can check this before Connect names the subsystem. If several controllers have
    /// this ID, one of their hosts suffices.
    #[must_use]
    pub fn may_add_queue(&self, cntlid: u16) -> bool {
        let registry = self.registry();
        let mut controllers =
            registry.subsystems.values().filter_map(|subsystem| subsystem.controller(cntlid));
        controllers.any(|controller| self.hosts.io_queues_left(&controller.host_nqn) > 0)
    }

    /// The current state; [`Self::apply`] waits until the caller releases it.
    pub(crate) fn registry(&self) -> RwLockReadGuard<'_, Registry> {
        self.registry.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn registry_mut(&self) -> RwLockWriteGuard<'_, Registry> {
        self.registry.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns an ID that no queue had before.
    pub(crate) fn next_queue(&self) -> u64 {
        self.next_queue.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns a key that no controller had before.
    pub(crate) fn next_key(&self) -> ControllerKey {
        ControllerKey(self.next_key.fetch_add(1, Ordering::Relaxed))
    }
}

/// Notifies reactors of events on their queues.
#[derive(Default)]
pub(crate) struct Notifier {
    epoch: AtomicU64,
    notify: RwLock<Option<Box<dyn Fn() + Send + Sync>>>,
}

impl Notifier {
    /// Number of notifications.
    #[inline]
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Increments the epoch and calls the callback.
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
