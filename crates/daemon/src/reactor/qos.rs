//! Weights and limits of hosts and devices, as the control plane sends them.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use nvmeof_nvmf::DeviceId;
use nvmeof_pacing::Tenant;
use nvmeof_wire::Nqn;

/// Weights and limits of all devices and hosts. Any that is not listed has none.
#[derive(Debug, Clone, Default)]
pub(crate) struct QosTable {
    devices: Arc<HashMap<u32, DeviceQos>>,
    hosts: Option<Arc<dyn HostQosSource>>,
}

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

/// Source of the weights and limits of hosts.
///
/// Hosts that the config does not name are registered when they are queried. A connection queries
/// its host once, so the call is not on the path of commands.
pub(crate) trait HostQosSource: fmt::Debug + Send + Sync {
    /// Returns the weight and limits of a host, which are valid until the next change.
    fn host_qos(&self, nqn: &Nqn) -> HostQos;
}

impl QosTable {
    /// Creates the table of these devices and of the hosts of `hosts`.
    pub(crate) fn new(
        devices: impl Iterator<Item = (DeviceId, DeviceQos)>,
        hosts: Arc<dyn HostQosSource>,
    ) -> Self {
        let devices = devices.map(|(id, qos)| (id.0, qos)).collect();
        Self { devices: Arc::new(devices), hosts: Some(hosts) }
    }

    /// Returns the weight and limits of a device.
    pub(crate) fn device(&self, id: DeviceId) -> DeviceQos {
        self.devices.get(&id.0).cloned().unwrap_or_default()
    }

    /// Returns the weight and limits of a host.
    pub(crate) fn host(&self, nqn: &Nqn) -> HostQos {
        self.hosts.as_ref().map_or_else(HostQos::default, |hosts| hosts.host_qos(nqn))
    }
}
