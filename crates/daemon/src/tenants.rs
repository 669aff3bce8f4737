//! What hosts and namespaces may have: the limits and weights of the config, as reactors find them.
//!
//! A host of the config is always known here; any other that connects becomes known when its first I/O
//! command comes, if hosts have limits by default, and is forgotten some time after its last queue went and
//! nothing of it is in flight any more.
//! The I/O path never comes here: a connection asks once.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nvmeof_nvmf::{DeviceId, HostLimits, HostRules};
use nvmeof_pacing::{ConfigError, Machine, Tenant};
use nvmeof_wire::Nqn;

use crate::config::{Config, Share};

/// What a host has against others, and what it may have.
#[derive(Debug, Clone, Default)]
pub(crate) struct HostShare {
    /// At least 1, or 0 for 1.
    pub(crate) weight: u16,
    /// Its limits, if it has any.
    pub(crate) tenant: Option<Arc<Tenant>>,
}

/// The same of a device, which is the one namespace's before it.
#[derive(Debug, Clone, Default)]
pub(crate) struct DeviceShare {
    /// As [`HostShare::weight`].
    pub(crate) weight: u16,
    /// As [`HostShare::tenant`].
    pub(crate) tenant: Option<Arc<Tenant>>,
}

/// The shares of all, for the reactors: what is not in here has none of its own.
#[derive(Debug, Clone, Default)]
pub(crate) struct Shares {
    devices: Arc<HashMap<u32, DeviceShare>>,
    hosts: Arc<Hosts>,
}

impl Shares {
    /// Of these devices, and of hosts as they are known now.
    pub(crate) fn new(
        devices: impl Iterator<Item = (DeviceId, DeviceShare)>,
        hosts: &Arc<Hosts>,
    ) -> Self {
        let devices = devices.map(|(id, share)| (id.0, share)).collect();
        Self { devices: Arc::new(devices), hosts: Arc::clone(hosts) }
    }

    /// Of a device.
    pub(crate) fn device(&self, id: DeviceId) -> DeviceShare {
        self.devices.get(&id.0).cloned().unwrap_or_default()
    }

    /// Of a host.
    pub(crate) fn host(&self, nqn: &Nqn) -> HostShare {
        self.hosts.share(nqn)
    }
}

/// What every host may have.
#[derive(Debug, Default)]
pub(crate) struct Hosts {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    machine: Option<Machine>,
    others: Share,
    named: BTreeMap<Nqn, HostShare>,
    /// Those of the others that were asked for.
    known: BTreeMap<Nqn, Arc<Tenant>>,
}

impl Hosts {
    /// What this host has, from now until a change.
    fn share(&self, nqn: &Nqn) -> HostShare {
        let mut state = self.state();
        if let Some(share) = state.named.get(nqn) {
            return share.clone();
        }
        let weight = state.others.weight;
        let limits = state.others.limits;
        let Some(machine) = state.machine.filter(|_| limits.is_any()) else {
            return HostShare { weight, tenant: None };
        };
        if let Some(tenant) = state.known.get(nqn) {
            return HostShare { weight, tenant: Some(Arc::clone(tenant)) };
        }
        // Names come from outside: those that nobody uses any more are not kept. What a host left in flight is still its own.
        state.known.retain(|_, tenant| Arc::strong_count(tenant) > 1 || tenant.counts().taken > 0);
        // The defaults were checked when they were set.
        let tenant = Tenant::new(limits, machine).ok();
        if let Some(tenant) = &tenant {
            state.known.insert(nqn.clone(), Arc::clone(tenant));
        }
        HostShare { weight, tenant }
    }

    /// The limits of a host that has any and is known.
    pub(crate) fn tenant(&self, nqn: &Nqn) -> Option<Arc<Tenant>> {
        let state = self.state();
        let named = state.named.get(nqn).map(|share| share.tenant.clone());
        named.unwrap_or_else(|| state.known.get(nqn).cloned())
    }

    fn change(&self, config: &Config, machine: Machine) -> Result<(), ConfigError> {
        let mut state = self.state();
        let mut named = BTreeMap::new();
        for host in &config.hosts {
            let before = state.named.get(&host.nqn).and_then(|share| share.tenant.as_ref());
            let before = before.or_else(|| state.known.get(&host.nqn));
            let tenant = changed(before, &host.share.limits, machine)?;
            named.insert(host.nqn.clone(), HostShare { weight: host.share.weight, tenant });
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

/// The tenant there was with these limits; none if there are none.
fn changed(
    before: Option<&Arc<Tenant>>,
    limits: &nvmeof_pacing::TenantLimits,
    machine: Machine,
) -> Result<Option<Arc<Tenant>>, ConfigError> {
    match before {
        _ if !limits.is_any() => Ok(None),
        Some(before) if before.limits() == limits => Ok(Some(Arc::clone(before))),
        Some(before) => before.change(*limits, machine).map(Some),
        None => Tenant::new(*limits, machine).map(Some),
    }
}

/// Hosts and namespaces with what they may have, as the control plane keeps them.
#[derive(Debug)]
pub(crate) struct Tenants {
    machine: Machine,
    hosts: Arc<Hosts>,
    /// By subsystem and number.
    namespaces: BTreeMap<(Nqn, u32), Arc<Tenant>>,
}

impl Tenants {
    /// For reactors of this machine.
    pub(crate) fn new(machine: Machine) -> Self {
        Self { machine, hosts: Arc::default(), namespaces: BTreeMap::new() }
    }

    /// Whether the limits of `config` can be: they were checked against its own `[limits]`, which may be
    /// others than those that run.
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

    /// What hosts and namespaces may have from now on; `device` says what a device's queues are named.
    /// Limits that cannot be stay as they were, with an error in the log: [`Self::check`] comes first.
    pub(crate) fn change(
        &mut self,
        config: &Config,
        device: impl Fn(&str) -> Option<DeviceId>,
    ) -> Shares {
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
                    devices.push((id, DeviceShare { weight: namespace.weight, tenant }));
                }
                if let Some(tenant) = tenant {
                    namespaces.insert(key, tenant);
                }
            }
        }
        self.namespaces = namespaces;
        Shares::new(devices.into_iter(), &self.hosts)
    }

    /// The limits of a host that has any and is known.
    pub(crate) fn host(&self, nqn: &Nqn) -> Option<Arc<Tenant>> {
        self.hosts.tenant(nqn)
    }

    /// The namespaces that have limits.
    pub(crate) fn namespaces(&self) -> impl Iterator<Item = (&Nqn, u32, &Arc<Tenant>)> {
        self.namespaces.iter().map(|((nqn, nsid), tenant)| (nqn, *nsid, tenant))
    }
}

/// How many connections and queues each host may have.
pub(crate) fn host_rules(config: &Config) -> HostRules {
    let of = |share: &Share| HostLimits {
        connections: share.max_connections,
        io_queues: share.max_queues,
    };
    HostRules {
        others: of(&config.host_defaults),
        named: config.hosts.iter().map(|host| (host.nqn.clone(), of(&host.share))).collect(),
    }
}
