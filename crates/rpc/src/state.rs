//! The running state that methods read.

use std::collections::BTreeMap;

use nvmeof_api::document::{Document, Limit};
use nvmeof_api::view::{ConnectionView, DeviceView, ListenerView, NamespaceView, SubsystemView};
use uuid::Uuid;

use crate::RpcError;

/// Namespace of the version 5 UUIDs of bdevs that no call created: an arbitrary fixed one.
const BDEV_SPACE: Uuid = Uuid::from_u128(0x1f3c_5e8a_0b7d_4c21_9a64_77d0_e5b2_3c18);

/// Properties of bdevs by name, which the daemon keeps until it stops.
pub type BdevProperties = BTreeMap<String, BdevProperty>;

/// Properties that SPDK's bdevs have and that namespaces have here.
///
/// A call sets them before or after the namespace exists.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BdevProperty {
    /// UUID of the bdev, if a call created it.
    pub uuid: Option<Uuid>,
    /// Rate limits of the bdev, if a call set them.
    pub limit: Option<Limit>,
}

/// The running state.
#[derive(Debug, Clone, Default)]
pub struct State {
    /// Version of the daemon, like `0.1.0`.
    pub version: String,
    /// Process ID of the daemon.
    pub pid: u32,
    /// CPUs of the reactors, in order.
    pub cpus: Vec<usize>,
    /// Limits of every transport.
    pub limits: TransportLimits,
    /// The running config.
    pub document: Document,
    /// Devices, in the order of the config.
    pub devices: Vec<DeviceView>,
    /// Subsystems, in the order of the config.
    pub subsystems: Vec<SubsystemView>,
    /// Namespaces of all subsystems, in the order of the config.
    pub namespaces: Vec<NamespaceView>,
    /// Listeners, in the order of the config.
    pub listeners: Vec<ListenerView>,
    /// Properties of bdevs.
    pub properties: BdevProperties,
}

/// Limits of every transport.
#[derive(Debug, Clone, Copy, Default)]
pub struct TransportLimits {
    /// Entries per queue.
    pub queue_depth: u16,
    /// I/O queues per controller.
    pub io_queues: u16,
    /// Maximum bytes of in-capsule data.
    pub in_capsule: u32,
    /// Maximum bytes per command.
    pub max_transfer: u32,
    /// Minimum keep-alive timeout in milliseconds.
    pub keep_alive_min_ms: u64,
    /// Namespaces per subsystem.
    pub namespaces: u32,
}

/// Connections and counters.
#[derive(Debug, Clone, Default)]
pub struct Activity {
    /// Connections of all hosts.
    pub connections: Vec<ConnectionView>,
    /// Time of the daemon's clock in nanoseconds.
    pub at_ns: u64,
    /// Completed I/O commands of each reactor, in order.
    pub completed: Vec<u64>,
    /// Counters by device.
    pub bdevs: BTreeMap<String, BdevCounters>,
}

/// I/O commands of all hosts on one device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BdevCounters {
    /// Reads answered.
    pub reads: u64,
    /// Writes answered.
    pub writes: u64,
    /// Bytes of the reads.
    pub read_bytes: u64,
    /// Bytes of the writes.
    pub write_bytes: u64,
}

impl State {
    /// Returns the device with this name, or with this UUID as an alias.
    ///
    /// # Errors
    /// There is none.
    pub(crate) fn bdev(&self, name: &str) -> Result<&DeviceView, RpcError> {
        let named = self.devices.iter().find(|one| one.config.name == name);
        let alias = || {
            let uuid: Uuid = name.parse().ok()?;
            self.devices.iter().find(|one| self.uuid(&one.config.name) == uuid)
        };
        named.or_else(alias).ok_or_else(|| RpcError::no_bdev(name))
    }

    /// Returns the properties of a bdev that calls set.
    pub(crate) fn property(&self, name: &str) -> BdevProperty {
        self.properties.get(name).cloned().unwrap_or_default()
    }

    /// Returns the UUID of a bdev: its own, or that of its namespace.
    pub(crate) fn uuid(&self, name: &str) -> Uuid {
        let own = self.property(name).uuid;
        let of_namespace = || self.namespace_on(name)?.uuid.parse().ok();
        own.or_else(of_namespace).unwrap_or_else(|| Uuid::new_v5(&BDEV_SPACE, name.as_bytes()))
    }

    /// Returns the limits of a bdev: those of its namespace, or its own until it has one.
    pub(crate) fn limit(&self, name: &str) -> Option<Limit> {
        match self.namespace_on(name) {
            Some(namespace) => namespace.config.limit.clone(),
            None => self.property(name).limit,
        }
    }

    /// Returns the namespace on a bdev.
    fn namespace_on(&self, name: &str) -> Option<&NamespaceView> {
        self.namespaces.iter().find(|one| one.config.device == name)
    }

    /// Returns the namespaces of a subsystem.
    pub(crate) fn namespaces_of<'s>(
        &'s self,
        nqn: &'s str,
    ) -> impl Iterator<Item = &'s NamespaceView> {
        self.namespaces.iter().filter(move |one| one.subsystem == nqn)
    }
}
