//! Weights and limits of hosts and devices, as reactors use them.
//!
//! Named hosts are always registered. Another host is registered at its first I/O command, if there
//! are default limits. It is removed some time after its last queue is closed and its last command
//! in flight has completed.
//!
//! The I/O path does not call this module: a connection queries its share once.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nvmeof_nvmf::DeviceId;
use nvmeof_pacing::{ConfigError, Machine, Tenant, TenantLimits};
use nvmeof_wire::Nqn;

/// Weight and limits of a host.
#[derive(Debug, Clone, Default)]
pub(crate) struct HostQos {
    /// Weight relative to other hosts; 0 counts as 1.
    pub(crate) weight: u16,
    /// Limits, if the host has any.
    pub(crate) tenant: Option<Arc<Tenant>>,
}

/// Weight and limits of a device: those of the one namespace that it backs.
#[derive(Debug, Clone, Default)]
pub(crate) struct DeviceQos {
    /// As [`HostQos::weight`].
    pub(crate) weight: u16,
    /// As [`HostQos::tenant`].
    pub(crate) tenant: Option<Arc<Tenant>>,
}

/// Shares of all devices and hosts, for the reactors. Any that is not listed has none.
#[derive(Debug, Clone, Default)]
pub(crate) struct QosTable {
    devices: Arc<HashMap<u32, DeviceQos>>,
    hosts: Arc<Hosts>,
}

impl QosTable {
    /// Creates the shares of these devices; hosts are shared with `hosts`.
    pub(crate) fn new(
        devices: impl Iterator<Item = (DeviceId, DeviceQos)>,
        hosts: &Arc<Hosts>,
    ) -> Self {
        let devices = devices.map(|(id, share)| (id.0, share)).collect();
        Self { devices: Arc::new(devices), hosts: Arc::clone(hosts) }
    }

    /// Returns the share of a device.
    pub(crate) fn device(&self, id: DeviceId) -> DeviceQos {
        self.devices.get(&id.0).cloned().unwrap_or_default()
    }

    /// Returns the share of a host.
    pub(crate) fn host(&self, nqn: &Nqn) -> HostQos {
        self.hosts.share(nqn)
    }
}

/// Weight and limits that a host is assigned.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct HostShare {
    /// As [`HostQos::weight`].
    pub(crate) weight: u16,
    /// Limits on rates and on bytes in flight.
    pub(crate) limits: TenantLimits,
}

/// Shares of all hosts.
#[derive(Debug, Default)]
pub(crate) struct Hosts {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    machine: Option<Machine>,
    others: HostShare,
    named: BTreeMap<Nqn, HostQos>,
    /// Hosts without a config entry that were queried.
    known: BTreeMap<Nqn, Arc<Tenant>>,
}

impl Hosts {
    /// Returns the share of this host, which is valid until the next change.
    fn share(&self, nqn: &Nqn) -> HostQos {
        let mut state = self.state();
        if let Some(share) = state.named.get(nqn) {
            return share.clone();
        }
        let weight = state.others.weight;
        let limits = state.others.limits;
        let Some(machine) = state.machine.filter(|_| limits.is_any()) else {
            return HostQos { weight, tenant: None };
        };
        if let Some(tenant) = state.known.get(nqn) {
            return HostQos { weight, tenant: Some(Arc::clone(tenant)) };
        }
        // Host names come from outside, so unused entries are removed. A host with commands in
        // flight stays.
        state.known.retain(|_, tenant| Arc::strong_count(tenant) > 1 || tenant.counts().taken > 0);
        // The defaults were checked when they were set.
        let tenant = Tenant::new(limits, machine).ok();
        if let Some(tenant) = &tenant {
            state.known.insert(nqn.clone(), Arc::clone(tenant));
        }
        HostQos { weight, tenant }
    }

    /// Returns the limits of a host, if it is registered and has any.
    pub(crate) fn tenant(&self, nqn: &Nqn) -> Option<Arc<Tenant>> {
        let state = self.state();
        let named = state.named.get(nqn).map(|share| share.tenant.clone());
        named.unwrap_or_else(|| state.known.get(nqn).cloned())
    }

    /// Sets the shares of named hosts and of all others.
    ///
    /// # Errors
    /// A limit is invalid for `machine`; then nothing changes.
    pub(crate) fn change(
        &self,
        named_shares: impl Iterator<Item = (Nqn, HostShare)>,
        others: HostShare,
        machine: Machine,
    ) -> Result<(), ConfigError> {
        let mut state = self.state();
        let mut named = BTreeMap::new();
        for (nqn, share) in named_shares {
            let before = state.named.get(&nqn).and_then(|share| share.tenant.as_ref());
            let before = before.or_else(|| state.known.get(&nqn));
            let tenant = changed(before, &share.limits, machine)?;
            named.insert(nqn, HostQos { weight: share.weight, tenant });
        }
        let mut known = BTreeMap::new();
        let left =
            state.named.iter().filter_map(|(nqn, share)| Some((nqn, share.tenant.as_ref()?)));
        for (nqn, tenant) in state.known.iter().chain(left) {
            if !named.contains_key(nqn)
                && let Some(tenant) = changed(Some(tenant), &others.limits, machine)?
            {
                known.insert(nqn.clone(), tenant);
            }
        }
        *state = State { machine: Some(machine), others, named, known };
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the tenant with these limits, based on the earlier one; none without limits.
pub(crate) fn changed(
    before: Option<&Arc<Tenant>>,
    limits: &TenantLimits,
    machine: Machine,
) -> Result<Option<Arc<Tenant>>, ConfigError> {
    match before {
        _ if !limits.is_any() => Ok(None),
        Some(before) if before.limits() == limits => Ok(Some(Arc::clone(before))),
        Some(before) => before.change(*limits, machine).map(Some),
        None => Tenant::new(*limits, machine).map(Some),
    }
}
