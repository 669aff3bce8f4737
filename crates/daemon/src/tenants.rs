//! Tenants: the limits and weights that the config gives hosts and namespaces, as reactors use
//! them.
//!
//! Hosts of the config are always registered. Another host is registered at its first I/O command,
//! if the config has default limits. It is removed some time after its last queue is closed and its
//! last command in flight has completed.
//!
//! The I/O path does not call this module: a connection queries its share once.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nvmeof_nvmf::{DeviceId, HostLimits, HostQuotas};
use nvmeof_pacing::{ConfigError, PacedMachine, Tenant};
use nvmeof_wire::Nqn;

use crate::config::{Config, HostQosConfig};
use crate::reactor::qos::{DeviceQos, HostQos, HostQosSource, QosTable};

/// Shares of all hosts.
#[derive(Debug, Default)]
pub(crate) struct Hosts {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    machine: Option<PacedMachine>,
    others: HostQosConfig,
    named: BTreeMap<Nqn, HostQos>,
    /// Hosts without a config entry that were queried.
    known: BTreeMap<Nqn, Arc<Tenant>>,
}

impl HostQosSource for Hosts {
    fn host_qos(&self, nqn: &Nqn) -> HostQos {
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
}

impl Hosts {
    /// Returns the limits of a host, if it is registered and has any.
    pub(crate) fn tenant(&self, nqn: &Nqn) -> Option<Arc<Tenant>> {
        let state = self.state();
        let named = state.named.get(nqn).map(|share| share.tenant.clone());
        named.unwrap_or_else(|| state.known.get(nqn).cloned())
    }

    fn change(&self, config: &Config, machine: PacedMachine) -> Result<(), ConfigError> {
        let mut state = self.state();
        let mut named = BTreeMap::new();
        for host in &config.hosts {
            let before = state.named.get(&host.nqn).and_then(|share| share.tenant.as_ref());
            let before = before.or_else(|| state.known.get(&host.nqn));
            let tenant = changed(before, &host.share.limits, machine)?;
            named.insert(host.nqn.clone(), HostQos { weight: host.share.weight, tenant });
        }
        let others = &config.host_defaults;
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
        *state = State { machine: Some(machine), others: others.clone(), named, known };
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the tenant with these limits, based on the earlier one; none without limits.
fn changed(
    before: Option<&Arc<Tenant>>,
    limits: &nvmeof_pacing::TenantLimits,
    machine: PacedMachine,
) -> Result<Option<Arc<Tenant>>, ConfigError> {
    match before {
        _ if !limits.is_any() => Ok(None),
        Some(before) if before.limits() == limits => Ok(Some(Arc::clone(before))),
        Some(before) => before.change(*limits, machine).map(Some),
        None => Tenant::new(*limits, machine).map(Some),
    }
}

/// Limits of hosts and namespaces, as the control plane stores them.
#[derive(Debug)]
pub(crate) struct Tenants {
    machine: PacedMachine,
    hosts: Arc<Hosts>,
    /// Tenants by subsystem NQN and NSID.
    namespaces: BTreeMap<(Nqn, u32), Arc<Tenant>>,
}

impl Tenants {
    /// Creates tenants for the reactors of this machine.
    pub(crate) fn new(machine: PacedMachine) -> Self {
        Self { machine, hosts: Arc::default(), namespaces: BTreeMap::new() }
    }

    /// Checks that the limits of `config` are valid for the running reactors.
    ///
    /// Validation used the config's own `[limits]`, which can differ from the running ones.
    pub(crate) fn check(&self, config: &Config) -> anyhow::Result<()> {
        use anyhow::Context as _;
        let one = |limits| Tenant::new(limits, self.machine).map(drop);
        one(config.host_defaults.limits).context("[host-defaults]")?;
        for host in &config.hosts {
            one(host.share.limits).with_context(|| format!("[[host]] {}", host.nqn))?;
        }
        for subsystem in &config.subsystems {
            for namespace in &subsystem.namespaces {
                let name = || format!("namespace {} of {}", namespace.nsid, subsystem.nqn);
                one(namespace.limits).with_context(name)?;
            }
        }
        Ok(())
    }

    /// Applies the limits of `config`; `device` maps a device name to the ID of its queues.
    ///
    /// Invalid limits stay unchanged and log an error, so call [`Self::check`] first.
    pub(crate) fn change(
        &mut self,
        config: &Config,
        device: impl Fn(&str) -> Option<DeviceId>,
    ) -> QosTable {
        if let Err(error) = self.hosts.change(config, self.machine) {
            tracing::error!(%error, "the limits of hosts stay as they were");
        }
        let mut namespaces = BTreeMap::new();
        let mut devices = Vec::new();
        for subsystem in &config.subsystems {
            for namespace in &subsystem.namespaces {
                let key = (subsystem.nqn.clone(), namespace.nsid);
                let before = self.namespaces.get(&key);
                let tenant = changed(before, &namespace.limits, self.machine).unwrap_or_else(|error| {
                    tracing::error!(%error, nsid = key.1, "the limits of a namespace stay as they were");
                    before.cloned()
                });
                if let Some(id) = device(&namespace.device) {
                    let tenant = tenant.clone();
                    devices.push((id, DeviceQos { weight: namespace.weight, tenant }));
                }
                if let Some(tenant) = tenant {
                    namespaces.insert(key, tenant);
                }
            }
        }
        self.namespaces = namespaces;
        let hosts: Arc<dyn HostQosSource> = self.hosts.clone();
        QosTable::new(devices.into_iter(), hosts)
    }

    /// Returns the limits of a host, if it is registered and has any.
    pub(crate) fn host(&self, nqn: &Nqn) -> Option<Arc<Tenant>> {
        self.hosts.tenant(nqn)
    }

    /// Returns the namespaces that have limits.
    pub(crate) fn namespaces(&self) -> impl Iterator<Item = (&Nqn, u32, &Arc<Tenant>)> {
        self.namespaces.iter().map(|((nqn, nsid), tenant)| (nqn, *nsid, tenant))
    }
}

/// Returns the maximum connections and queues of each host.
pub(crate) fn host_rules(config: &Config) -> HostQuotas {
    let of = |share: &HostQosConfig| HostLimits {
        connections: share.max_connections,
        io_queues: share.max_queues,
    };
    HostQuotas {
        others: of(&config.host_defaults),
        named: config.hosts.iter().map(|host| (host.nqn.clone(), of(&host.share))).collect(),
    }
}
