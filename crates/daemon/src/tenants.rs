//! Tenants: the limits and weights that the config gives hosts and namespaces.
//!
//! The control plane turns them into the [`QosTable`] that reactors use.

use std::collections::BTreeMap;
use std::sync::Arc;

use nvmeof_nvmf::{DeviceId, HostLimits, HostQuotas};
use nvmeof_pacing::{ConfigError, Machine, Tenant};
use nvmeof_wire::Nqn;

use crate::config::{Config, HostQosConfig};
use crate::qos::{DeviceQos, HostShare, Hosts, QosTable, changed};

/// Limits of hosts and namespaces, as the control plane stores them.
#[derive(Debug)]
pub(crate) struct Tenants {
    machine: Machine,
    hosts: Arc<Hosts>,
    /// Tenants by subsystem NQN and NSID.
    namespaces: BTreeMap<(Nqn, u32), Arc<Tenant>>,
}

impl Tenants {
    /// Creates tenants for the reactors of this machine.
    pub(crate) fn new(machine: Machine) -> Self {
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
        if let Err(error) = self.change_hosts(config) {
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
        QosTable::new(devices.into_iter(), &self.hosts)
    }

    fn change_hosts(&self, config: &Config) -> Result<(), ConfigError> {
        let share =
            |share: &HostQosConfig| HostShare { weight: share.weight, limits: share.limits };
        let named = config.hosts.iter().map(|host| (host.nqn.clone(), share(&host.share)));
        self.hosts.change(named, share(&config.host_defaults), self.machine)
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
