//! Applies a desired state: checks everything, then changes what differs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use nvmeof_wire::Nqn;

use crate::controller::{Controller, Event, TeardownReason};
use crate::limits::{CNTLID_MAX, MAX_NAMESPACES, MAX_NSID};
use crate::quiesce::{Association, Quiesce};
use crate::spec::{
    Access, DeviceId, DiscoverySpec, NamespaceSpec, PortId, PortSpec, SubsystemSpec, TargetSpec,
};
use crate::subsystem::Subsystem;
use crate::target::{Registry, Target};

/// Changes that [`Target::apply`] made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Subsystems that are new, or replaced because serial, model or controller IDs changed.
    pub subsystems_added: Vec<Nqn>,
    /// Subsystems that were removed or replaced.
    pub subsystems_removed: Vec<Nqn>,
    /// Namespaces added, removed or changed in subsystems that stay.
    pub namespaces_changed: Vec<(Nqn, u32)>,
    /// Controllers that were ended.
    pub controllers_ended: usize,
    /// The discovery log has changed.
    pub discovery_changed: bool,
    /// Ended controllers with commands at a device; the change completes when they are quiet.
    pub quiescing: Vec<Quiesce>,
    /// Namespaces that were removed or changed, in their old form.
    pub retired: Vec<RetiredNamespace>,
}

/// A namespace that was removed or changed; commands of it can be in flight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetiredNamespace {
    /// Its subsystem.
    pub subnqn: Nqn,
    /// Its namespace ID.
    pub nsid: u32,
    /// Its old device.
    pub device: DeviceId,
    /// The namespace is gone or its ID belongs to another disk.
    ///
    /// False if, for example, the same disk was resized.
    pub is_removed: bool,
}

impl Changes {
    /// Returns true if nothing changed; commands of earlier removals can still be at a device.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let quiescing = self.quiescing.clone();
        *self == Self { quiescing, ..Self::default() }
    }
}

/// Reason to reject a [`TargetSpec`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApplyError {
    /// Two subsystems have the same name.
    #[error("subsystem {0}: the NQN is used twice; give each subsystem its own")]
    DuplicateNqn(Nqn),
    /// The name belongs to the discovery service.
    #[error("subsystem {0}: this NQN belongs to the discovery service; choose another")]
    ReservedNqn(Nqn),
    /// Invalid serial number.
    #[error("subsystem {nqn}: serial {serial:?} is not 1 to 20 printable ASCII characters")]
    BadSerial {
        /// The subsystem.
        nqn: Nqn,
        /// Its serial number.
        serial: String,
    },
    /// Invalid model number.
    #[error("subsystem {nqn}: model {model:?} is not 1 to 40 printable ASCII characters")]
    BadModel {
        /// The subsystem.
        nqn: Nqn,
        /// Its model number.
        model: String,
    },
    /// Invalid range of controller IDs.
    #[error(
        "subsystem {nqn}: controller IDs {min} to {max} are no range within 1 to {CNTLID_MAX} (ffefh)"
    )]
    BadCntlidRange {
        /// The subsystem.
        nqn: Nqn,
        /// Lowest ID.
        min: u16,
        /// Highest ID.
        max: u16,
    },
    /// Too many namespaces.
    #[error(
        "subsystem {nqn}: {count} namespaces are too many; use another subsystem for those beyond \
         {MAX_NAMESPACES}"
    )]
    TooManyNamespaces {
        /// The subsystem.
        nqn: Nqn,
        /// Number of its namespaces.
        count: usize,
    },
    /// Invalid namespace ID.
    #[error("subsystem {nqn}: NSID {nsid} is not within 1 to {MAX_NSID}")]
    BadNsid {
        /// The subsystem.
        nqn: Nqn,
        /// The namespace.
        nsid: u32,
    },
    /// Two namespaces have the same ID.
    #[error("subsystem {nqn}: NSID {nsid} is used twice; give each namespace its own")]
    DuplicateNsid {
        /// The subsystem.
        nqn: Nqn,
        /// The namespace.
        nsid: u32,
    },
    /// Invalid block size.
    #[error(
        "subsystem {nqn}, NSID {nsid}: block size {block_size} is not a power of two within 512 to 65536"
    )]
    BadBlockSize {
        /// The subsystem.
        nqn: Nqn,
        /// The namespace.
        nsid: u32,
        /// Its block size in bytes.
        block_size: u32,
    },
    /// Invalid size.
    #[error(
        "subsystem {nqn}, NSID {nsid}: {blocks} blocks of {block_size} bytes are not within 1 block to 2^63 - 1 bytes"
    )]
    BadSize {
        /// The subsystem.
        nqn: Nqn,
        /// The namespace.
        nsid: u32,
        /// Size in blocks.
        blocks: u64,
        /// Bytes per block.
        block_size: u32,
    },
    /// Two namespaces have the same UUID, NGUID or EUI64.
    #[error(
        "subsystem {nqn}, NSID {nsid}: the {identifier} is that of another namespace; hosts take them for one"
    )]
    DuplicateIdentifier {
        /// The subsystem.
        nqn: Nqn,
        /// The second namespace that has it.
        nsid: u32,
        /// Name of the identifier.
        identifier: &'static str,
    },
    /// Two listeners have the same ID.
    #[error("listener {}: the port ID is used twice", .0.0)]
    DuplicatePort(PortId),
    /// An address or service is too long for the discovery log.
    #[error(
        "listener or referral {address}: at most 256 characters of address and 32 of service fit"
    )]
    BadAddress {
        /// The address.
        address: String,
    },
}

/// Implements [`Target::apply`].
pub(crate) fn apply(target: &Target, spec: TargetSpec) -> Result<Changes, ApplyError> {
    check(&spec)?;
    let mut registry = target.registry_mut();
    let mut changes = Changes::default();
    let before = DiscoverySnapshot::of(&registry);

    let ports: BTreeMap<PortId, PortSpec> =
        spec.ports.into_iter().map(|port| (port.id, port)).collect();
    let gone: BTreeSet<PortId> = registry
        .ports
        .iter()
        .filter(|(id, port)| !ports.get(id).is_some_and(|other| other.is_same_socket(port)))
        .map(|(id, _)| *id)
        .collect();
    registry.hidden_ports.retain(|id| ports.contains_key(id));
    registry.ports = ports;
    registry.referrals = spec.referrals;
    apply_discovery(&mut registry, spec.discovery, &mut changes);

    let mut old = std::mem::take(&mut registry.subsystems);
    for wanted in spec.subsystems {
        let nqn = wanted.nqn.clone();
        let subsystem = match old.remove(&nqn) {
            Some(running) if is_same_identity(&running, &wanted) => {
                update(&running, wanted, &mut changes);
                running
            }
            other => {
                if let Some(replaced) = other {
                    remove(&replaced, &mut changes);
                }
                changes.subsystems_added.push(nqn.clone());
                Arc::new(Subsystem::new(wanted))
            }
        };
        registry.subsystems.insert(nqn, subsystem);
    }
    for removed in old.values() {
        remove(removed, &mut changes);
    }
    let is_cut_off = |port: PortId, subnqn: &Nqn| {
        gone.contains(&port) || !registry.ports.get(&port).is_none_or(|port| port.serves(subnqn))
    };
    for controller in controllers(&registry) {
        let Controller { port, subsystem, host_nqn, .. } = &*controller;
        if !controller.is_discovery() && is_cut_off(*port, &subsystem.nqn) || gone.contains(port) {
            end(&controller, TeardownReason::PortRemoved, &mut changes);
        } else if controller.is_discovery() && !registry.allows(subsystem, host_nqn) {
            end(&controller, TeardownReason::HostNotAllowed, &mut changes);
        }
    }
    let is_removed = |one: &Quiesce| {
        let association = one.association();
        is_shut_out(&registry, association)
            || one.port().is_some_and(|port| is_cut_off(port, &association.subnqn))
    };
    for quiesce in target.quiescing.matching(is_removed) {
        if !changes.quiescing.contains(&quiesce) {
            changes.quiescing.push(quiesce);
        }
    }
    announce(&mut registry, &before, &mut changes);
    drop(registry);
    if !changes.is_empty() {
        target.notifier.notify();
    }
    Ok(changes)
}

/// Changes name and access of the discovery service.
fn apply_discovery(registry: &mut Registry, wanted: DiscoverySpec, changes: &mut Changes) {
    registry.discovery_is_restricted = wanted.is_restricted;
    let nqn = wanted.nqn.unwrap_or_else(Nqn::discovery);
    if registry.discovery.nqn == nqn {
        return;
    }
    // Its controllers report the old name.
    for controller in registry.discovery.all_controllers() {
        end(&controller, TeardownReason::SubsystemRemoved, changes);
    }
    registry.discovery = Arc::new(Subsystem::discovery(nqn));
}

/// Implements [`Target::show_port`].
pub(crate) fn show_port(target: &Target, port: PortSpec) {
    change_ports(target, |registry| {
        registry.hidden_ports.remove(&port.id);
        registry.ports.insert(port.id, port);
    });
}

/// Implements [`Target::hide_port`].
pub(crate) fn hide_port(target: &Target, port: PortId) {
    change_ports(target, |registry| {
        if registry.ports.contains_key(&port) {
            registry.hidden_ports.insert(port);
        }
    });
}

/// Changes the listeners or their visibility, and notifies hosts whose discovery log changes.
fn change_ports(target: &Target, change: impl FnOnce(&mut Registry)) {
    let mut registry = target.registry_mut();
    let mut changes = Changes::default();
    let before = DiscoverySnapshot::of(&registry);
    change(&mut registry);
    announce(&mut registry, &before, &mut changes);
    drop(registry);
    if !changes.is_empty() {
        target.notifier.notify();
    }
}

impl Registry {
    /// The listeners that discovery logs list.
    pub(crate) fn shown_ports(&self) -> impl Iterator<Item = &PortSpec> {
        self.ports.values().filter(|port| !self.hidden_ports.contains(&port.id))
    }
}

/// Inputs of the discovery log.
#[derive(PartialEq, Eq)]
struct DiscoverySnapshot {
    ports: BTreeMap<PortId, PortSpec>,
    referrals: Vec<crate::spec::ReferralSpec>,
    access: BTreeMap<Nqn, Access>,
    /// NQN of the discovery service.
    service: Nqn,
}

/// A listener without what no log shows.
fn listed(port: &PortSpec) -> PortSpec {
    PortSpec { folds_always: false, ..port.clone() }
}

impl DiscoverySnapshot {
    fn of(registry: &Registry) -> Self {
        let access = |(nqn, subsystem): (&Nqn, &Arc<Subsystem>)| (nqn.clone(), subsystem.access());
        Self {
            ports: registry.shown_ports().map(|port| (port.id, listed(port))).collect(),
            referrals: registry.referrals.clone(),
            access: registry.subsystems.iter().map(access).collect(),
            service: registry.discovery.nqn.clone(),
        }
    }

    /// Returns true if this host sees a different log in `other`.
    fn differs_for(&self, other: &Self, host: &Nqn) -> bool {
        let seen = |visible: &Self| -> Vec<Nqn> {
            let allowed = visible.access.iter().filter(|(_, access)| access.allows(host));
            allowed.map(|(nqn, _)| nqn.clone()).collect()
        };
        self.ports != other.ports || self.referrals != other.referrals || seen(self) != seen(other)
    }
}

/// Returns true if serial, model and controller IDs are unchanged, so that the subsystem can stay.
fn is_same_identity(running: &Subsystem, wanted: &SubsystemSpec) -> bool {
    running.serial == wanted.serial
        && running.model == wanted.model
        && running.cntlid_min == wanted.cntlid_min
        && running.cntlid_max == wanted.cntlid_max
}

/// Changes access and namespaces of a subsystem that stays.
fn update(running: &Subsystem, wanted: SubsystemSpec, changes: &mut Changes) {
    if running.set_access(wanted.access) {
        for controller in running.all_controllers() {
            if !running.allows(&controller.host_nqn) {
                end(&controller, TeardownReason::HostNotAllowed, changes);
            }
        }
    }
    running.set_quiesce_bound(wanted.quiesce_bound);
    let before = running.namespaces();
    let changed = running.set_namespaces(wanted.namespaces);
    if changed.is_empty() {
        return;
    }
    let after = running.namespaces();
    let retire = |nsid: &u32| {
        let old = &before.get(*nsid)?.spec;
        let is_removed = after.get(*nsid).is_none_or(|new| new.spec.uuid != old.uuid);
        let subnqn = wanted.nqn.clone();
        Some(RetiredNamespace { subnqn, nsid: *nsid, device: old.device, is_removed })
    };
    changes.retired.extend(changed.iter().filter_map(retire));
    for controller in running.all_controllers() {
        controller.namespaces_changed(&changed);
    }
    changes.namespaces_changed.extend(changed.into_iter().map(|nsid| (wanted.nqn.clone(), nsid)));
}

fn remove(subsystem: &Subsystem, changes: &mut Changes) {
    for controller in subsystem.all_controllers() {
        end(&controller, TeardownReason::SubsystemRemoved, changes);
    }
    changes.subsystems_removed.push(subsystem.nqn.clone());
}

fn end(controller: &Controller, reason: TeardownReason, changes: &mut Changes) {
    if controller.kill(reason) {
        changes.controllers_ended += 1;
        if !controller.quiesce().is_quiet() {
            changes.quiescing.push(controller.quiesce().clone());
        }
    }
}

/// Returns true if the association's host may no longer connect, or the subsystem is gone.
///
/// The association can have lost its connections before, and its commands still have to complete.
fn is_shut_out(registry: &Registry, association: &Association) -> bool {
    let subsystem = registry.subsystems.get(&association.subnqn);
    !subsystem.is_some_and(|subsystem| subsystem.allows(&association.host_nqn))
}

fn controllers(registry: &Registry) -> Vec<Arc<Controller>> {
    let subsystems = registry.subsystems.values().chain([&registry.discovery]);
    subsystems.flat_map(|subsystem| subsystem.all_controllers()).collect()
}

/// Counts the change of the discovery log, and posts the event to hosts whose log changed.
fn announce(registry: &mut Registry, before: &DiscoverySnapshot, changes: &mut Changes) {
    let after = DiscoverySnapshot::of(registry);
    if after == *before {
        return;
    }
    registry.discovery_generation = registry.discovery_generation.wrapping_add(1);
    changes.discovery_changed = true;
    for controller in registry.discovery.all_controllers() {
        if before.differs_for(&after, &controller.host_nqn) {
            controller.post_event(Event::DiscoveryChanged);
        }
    }
}

fn check(spec: &TargetSpec) -> Result<(), ApplyError> {
    let mut nqns = BTreeSet::new();
    let mut identifiers = BTreeSet::new();
    for subsystem in &spec.subsystems {
        if subsystem.nqn.is_discovery() || spec.discovery.nqn.as_ref() == Some(&subsystem.nqn) {
            return Err(ApplyError::ReservedNqn(subsystem.nqn.clone()));
        }
        if !nqns.insert(&subsystem.nqn) {
            return Err(ApplyError::DuplicateNqn(subsystem.nqn.clone()));
        }
        check_subsystem(subsystem)?;
        let mut nsids = BTreeSet::new();
        for namespace in &subsystem.namespaces {
            if !nsids.insert(namespace.nsid) {
                let (nqn, nsid) = (subsystem.nqn.clone(), namespace.nsid);
                return Err(ApplyError::DuplicateNsid { nqn, nsid });
            }
            check_namespace(&subsystem.nqn, namespace)?;
            check_identifiers(&subsystem.nqn, namespace, &mut identifiers)?;
        }
    }
    check_addresses(spec)
}

fn check_subsystem(subsystem: &SubsystemSpec) -> Result<(), ApplyError> {
    let nqn = || subsystem.nqn.clone();
    if !is_text(&subsystem.serial, 20) {
        return Err(ApplyError::BadSerial { nqn: nqn(), serial: subsystem.serial.clone() });
    }
    if !is_text(&subsystem.model, 40) {
        return Err(ApplyError::BadModel { nqn: nqn(), model: subsystem.model.clone() });
    }
    let (min, max) = (subsystem.cntlid_min, subsystem.cntlid_max);
    if min == 0 || max < min || max > CNTLID_MAX {
        return Err(ApplyError::BadCntlidRange { nqn: nqn(), min, max });
    }
    let count = subsystem.namespaces.len();
    if count > MAX_NAMESPACES as usize {
        return Err(ApplyError::TooManyNamespaces { nqn: nqn(), count });
    }
    Ok(())
}

fn check_namespace(nqn: &Nqn, namespace: &NamespaceSpec) -> Result<(), ApplyError> {
    let &NamespaceSpec { nsid, block_size, blocks, .. } = namespace;
    let nqn = || nqn.clone();
    if !(1..=MAX_NSID).contains(&nsid) {
        return Err(ApplyError::BadNsid { nqn: nqn(), nsid });
    }
    if !block_size.is_power_of_two() || !(512..=65536).contains(&block_size) {
        return Err(ApplyError::BadBlockSize { nqn: nqn(), nsid, block_size });
    }
    let bytes = blocks.checked_mul(u64::from(block_size));
    if blocks == 0 || bytes.is_none_or(|bytes| i64::try_from(bytes).is_err()) {
        return Err(ApplyError::BadSize { nqn: nqn(), nsid, blocks, block_size });
    }
    Ok(())
}

/// Checks identifiers: hosts reject a namespace that shares one with another, in any subsystem.
fn check_identifiers<'a>(
    nqn: &Nqn,
    namespace: &'a NamespaceSpec,
    seen: &mut BTreeSet<(&'static str, &'a [u8])>,
) -> Result<(), ApplyError> {
    let identifiers: [(&'static str, &[u8]); 3] =
        [("UUID", &namespace.uuid), ("NGUID", &namespace.nguid), ("EUI64", &namespace.eui64)];
    for (identifier, value) in identifiers {
        let is_set = value.iter().any(|byte| *byte != 0);
        if is_set && !seen.insert((identifier, value)) {
            let (nqn, nsid) = (nqn.clone(), namespace.nsid);
            return Err(ApplyError::DuplicateIdentifier { nqn, nsid, identifier });
        }
    }
    Ok(())
}

fn check_addresses(spec: &TargetSpec) -> Result<(), ApplyError> {
    let mut ids = BTreeSet::new();
    for port in &spec.ports {
        if !ids.insert(port.id) {
            return Err(ApplyError::DuplicatePort(port.id));
        }
    }
    let ports = spec.ports.iter().map(|port| (&port.address, &port.service));
    let referrals = spec.referrals.iter().map(|referral| (&referral.address, &referral.service));
    for (address, service) in ports.chain(referrals) {
        if !is_text(address, 256) || !is_text(service, 32) {
            return Err(ApplyError::BadAddress { address: address.clone() });
        }
    }
    Ok(())
}

/// Returns true for 1 to `max` printable ASCII characters.
fn is_text(text: &str, max: usize) -> bool {
    (1..=max).contains(&text.len()) && text.bytes().all(|byte| matches!(byte, 0x20..=0x7e))
}
