//! An NVM or discovery subsystem: access rule, namespaces and controllers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use nvmeof_wire::Nqn;

use crate::controller::{Controller, ControllerKey};
use crate::limits::CNTLID_MAX;
use crate::namespace::NamespaceTable;
use crate::spec::{Access, DeviceId, NamespaceSpec, SubsystemSpec};

/// Type of a subsystem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SubsystemKind {
    /// Namespaces and I/O controllers.
    Nvm,
    /// The discovery service: discovery controllers only.
    Discovery,
}

/// A subsystem.
///
/// The fields that identify it to hosts never change. A config that changes one of them creates
/// another subsystem of the same name.
#[derive(Debug)]
pub(crate) struct Subsystem {
    pub(crate) nqn: Nqn,
    pub(crate) kind: SubsystemKind,
    pub(crate) serial: String,
    pub(crate) model: String,
    pub(crate) cntlid_min: u16,
    pub(crate) cntlid_max: u16,
    access: RwLock<Access>,
    namespaces: RwLock<Arc<NamespaceTable>>,
    /// Incremented after a change of `namespaces`; queues compare it with that of their snapshot.
    generation: AtomicU32,
    controllers: Mutex<Controllers>,
    /// Maximum time of a command at a device, in milliseconds.
    quiesce_bound_ms: AtomicU64,
}

#[derive(Debug)]
struct Controllers {
    by_id: BTreeMap<u16, Arc<Controller>>,
    /// Start of the search for a free ID; an ID is reused as late as possible.
    next: u16,
}

impl Controllers {
    /// The controllers of this host.
    fn of<'a>(
        &'a self,
        host: &'a Nqn,
        host_id: &'a [u8; 16],
    ) -> impl Iterator<Item = &'a Arc<Controller>> {
        let controllers = self.by_id.values();
        controllers.filter(move |one| one.host_nqn == *host && one.host_id == *host_id)
    }
}

impl Subsystem {
    /// Creates a subsystem from a checked spec.
    pub(crate) fn new(spec: SubsystemSpec) -> Self {
        Self {
            nqn: spec.nqn,
            kind: SubsystemKind::Nvm,
            serial: spec.serial,
            model: spec.model,
            cntlid_min: spec.cntlid_min,
            cntlid_max: spec.cntlid_max,
            access: RwLock::new(spec.access),
            namespaces: RwLock::new(Arc::new(NamespaceTable::new(spec.namespaces))),
            generation: AtomicU32::new(0),
            controllers: Mutex::new(Controllers { by_id: BTreeMap::new(), next: spec.cntlid_min }),
            quiesce_bound_ms: AtomicU64::new(milliseconds(spec.quiesce_bound)),
        }
    }

    /// Creates the discovery service of this NQN.
    pub(crate) fn discovery(nqn: Nqn) -> Self {
        Self {
            kind: SubsystemKind::Discovery,
            ..Self::new(SubsystemSpec {
                nqn,
                serial: "discovery".to_owned(),
                model: "nvmeof-tgt discovery".to_owned(),
                cntlid_min: 1,
                cntlid_max: CNTLID_MAX,
                access: Access::AnyHost,
                namespaces: Vec::new(),
                quiesce_bound: Duration::ZERO,
            })
        }
    }

    /// Returns true if this host may connect.
    pub(crate) fn allows(&self, host: &Nqn) -> bool {
        self.access.read().unwrap_or_else(PoisonError::into_inner).allows(host)
    }

    /// Returns true if it lists this host; `None` if it accepts any host.
    pub(crate) fn lists(&self, host: &Nqn) -> Option<bool> {
        match &*self.access.read().unwrap_or_else(PoisonError::into_inner) {
            Access::AnyHost => None,
            Access::Hosts(hosts) => Some(hosts.contains(host)),
        }
    }

    /// The current access rule.
    pub(crate) fn access(&self) -> Access {
        self.access.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the access rule. Returns true if it changed.
    pub(crate) fn set_access(&self, access: Access) -> bool {
        let mut current = self.access.write().unwrap_or_else(PoisonError::into_inner);
        let changed = *current != access;
        *current = access;
        changed
    }

    /// The current namespaces.
    pub(crate) fn namespaces(&self) -> Arc<NamespaceTable> {
        Arc::clone(&self.namespaces.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Generation of the current namespace table.
    ///
    /// Read it before [`Self::namespaces`], so that a snapshot never counts as newer than it is.
    #[inline]
    pub(crate) fn generation(&self) -> u32 {
        self.generation.load(Ordering::Acquire)
    }

    /// Replaces the namespaces; returns the added, removed and changed NSIDs, ascending.
    pub(crate) fn set_namespaces(&self, specs: Vec<NamespaceSpec>) -> Vec<u32> {
        let table = Arc::new(NamespaceTable::new(specs));
        let mut current = self.namespaces.write().unwrap_or_else(PoisonError::into_inner);
        let changed = current.changed_since(&table);
        if !changed.is_empty() {
            *current = table;
            self.generation.fetch_add(1, Ordering::Release);
        }
        changed
    }

    /// Maximum time of a command at a device.
    pub(crate) fn quiesce_bound(&self) -> Duration {
        Duration::from_millis(self.quiesce_bound_ms.load(Ordering::Relaxed))
    }

    /// Sets this maximum, which depends on the devices of the namespaces.
    pub(crate) fn set_quiesce_bound(&self, bound: Duration) {
        self.quiesce_bound_ms.store(milliseconds(bound), Ordering::Relaxed);
    }

    /// Devices that can lose completed writes on power failure until they are flushed.
    pub(crate) fn devices_to_flush(&self) -> Vec<DeviceId> {
        let namespaces = self.namespaces();
        let cached = namespaces.iter().filter(|namespace| namespace.spec.volatile_cache);
        let devices: BTreeSet<DeviceId> = cached.map(|namespace| namespace.spec.device).collect();
        devices.into_iter().collect()
    }

    /// Returns true if any namespace has a volatile write cache.
    pub(crate) fn has_volatile_cache(&self) -> bool {
        self.namespaces().iter().any(|namespace| namespace.spec.volatile_cache)
    }

    /// Creates a controller with a free ID. `None`: every ID is in use.
    pub(crate) fn add_controller(
        &self,
        make: impl FnOnce(u16) -> Controller,
    ) -> Option<Arc<Controller>> {
        let mut controllers = self.controllers();
        let first = controllers.next.clamp(self.cntlid_min, self.cntlid_max);
        let cntlid = (first..=self.cntlid_max)
            .chain(self.cntlid_min..first)
            .find(|id| !controllers.by_id.contains_key(id))?;
        controllers.next =
            if cntlid == self.cntlid_max { self.cntlid_min } else { cntlid.saturating_add(1) };
        let controller = Arc::new(make(cntlid));
        controllers.by_id.insert(cntlid, Arc::clone(&controller));
        Some(controller)
    }

    /// The controller of this ID.
    pub(crate) fn controller(&self, cntlid: u16) -> Option<Arc<Controller>> {
        self.controllers().by_id.get(&cntlid).cloned()
    }

    /// The controllers of this host.
    pub(crate) fn controllers_of(&self, host: &Nqn, host_id: &[u8; 16]) -> Vec<ControllerKey> {
        let controllers = self.controllers();
        controllers.of(host, host_id).map(|one| one.key).collect()
    }

    /// Returns true if a queue of this host lost its connection and has commands at a device.
    pub(crate) fn has_closing_queue(&self, host: &Nqn, host_id: &[u8; 16]) -> bool {
        let controllers = self.controllers();
        controllers.of(host, host_id).any(|one| one.quiesce().has_closing_queue())
    }

    /// All controllers, in ascending order of ID.
    pub(crate) fn all_controllers(&self) -> Vec<Arc<Controller>> {
        self.controllers().by_id.values().cloned().collect()
    }

    /// Number of controllers.
    pub(crate) fn controller_count(&self) -> usize {
        self.controllers().by_id.len()
    }

    /// Removes a controller whose admin queue has ended.
    pub(crate) fn remove_controller(&self, controller: &Controller) {
        let mut controllers = self.controllers();
        let is_same = |other: &Arc<Controller>| other.key == controller.key;
        if controllers.by_id.get(&controller.cntlid).is_some_and(is_same) {
            controllers.by_id.remove(&controller.cntlid);
        }
    }

    fn controllers(&self) -> MutexGuard<'_, Controllers> {
        self.controllers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
