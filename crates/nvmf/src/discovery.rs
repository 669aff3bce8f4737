//! The discovery log of a host (Base 5.16.1.23): accessible subsystems and their addresses.
//!
//! A log is generated completely from one state of the target, and its generation counter changes
//! with that state. A host that reads it in parts can therefore check that the parts belong
//! together.

use std::ops::Bound;

use nvmeof_wire::log::{
    AddressFamily as WireFamily, DISCOVERY_RECORD_SIZE, DiscoveryEntry, DiscoveryHeader,
    DiscoverySubtype, RdmaConnection, RdmaProvider, RdmaQueuePair, TcpSecurity, TransportType,
    Tsas, eflags, treq,
};
use nvmeof_wire::zerocopy::IntoBytes;
use nvmeof_wire::{Nqn, U16};

use crate::admin::page::PageWriter;
use crate::controller::Controller;
use crate::limits::ADMIN_QUEUE_MIN;
use crate::spec::{AddressFamily, PortSpec, ReferralSpec, TransportKind};
use crate::target::{Registry, Target};

/// CNTLID of an entry: the controller is created when a host connects.
const CNTLID_DYNAMIC: u16 = 0xffff;

/// Position in the log that a host read last.
///
/// A host that reads the log in pieces, from start to end, costs only what it reads and not the
/// whole log each time.
#[derive(Debug, Clone)]
pub(crate) struct Bookmark {
    /// GENCTR of the log that the position belongs to.
    generation: u64,
    /// Entries of subsystems.
    entries: u64,
    /// The last subsystem that was read, and the number of these entries before it.
    last: Option<(Nqn, u64)>,
}

/// Writes the log for the host of this discovery controller: a header and its entries.
///
/// The entries are the listeners of this discovery service, then each subsystem that the host may
/// connect to at every listener that serves it, then the referrals.
pub(crate) fn put_log_page(target: &Target, controller: &Controller, page: &mut PageWriter<'_>) {
    let registry = target.registry();
    let ports = reachable_ports(&registry, controller);
    let generation = registry.discovery_generation;
    let bookmark = controller.admin().bookmark.take();
    let bookmark = bookmark.filter(|known| known.generation == generation);
    let mut bookmark = bookmark.unwrap_or_else(|| {
        let entries = shown(&registry, controller, &ports, Bound::Unbounded).map(|one| one.1);
        Bookmark { generation, entries: entries.sum(), last: None }
    });

    let records = ports.len() as u64 + bookmark.entries + registry.referrals.len() as u64;
    page.put(DiscoveryHeader::new(generation, records).as_bytes());
    put_service(&registry, &ports, page);
    put_subsystems(&registry, controller, &ports, &mut bookmark, page);
    registry.referrals.iter().for_each(|place| page.put(referral(place).as_bytes()));
    controller.admin().bookmark = Some(bookmark);
}

/// A listener, and its entry without the fields that depend on the subsystem.
type Port<'r> = (&'r PortSpec, DiscoveryEntry);

/// The listeners that this host can reach.
fn reachable_ports<'r>(registry: &'r Registry, controller: &Controller) -> Vec<Port<'r>> {
    let ports = registry.shown_ports();
    ports.filter_map(|port| Some((port, listener(port, controller)?))).collect()
}

/// The subsystems that the log shows to this host, from `first` on, each with its number of
/// entries.
fn shown<'a>(
    registry: &'a Registry,
    controller: &'a Controller,
    ports: &'a [Port<'a>],
    first: Bound<Nqn>,
) -> impl Iterator<Item = (&'a Nqn, u64)> {
    let subsystems = registry.subsystems.range((first, Bound::Unbounded));
    let allowed = subsystems.filter(|(_, one)| one.allows(&controller.host_nqn));
    allowed.map(|(nqn, _)| (nqn, ports.iter().filter(|(port, _)| port.serves(nqn)).count() as u64))
}

/// Writes the entries of the discovery service, one for each listener.
fn put_service(registry: &Registry, ports: &[Port<'_>], page: &mut PageWriter<'_>) {
    // Listeners on every address report the address that the host used, so the information
    // differs from listener to listener.
    let is_same = !registry.shown_ports().any(PortSpec::is_wildcard);
    let duplicate = if is_same { eflags::DUPLICATE } else { 0 };
    let (subnqn, eflags) =
        (registry.discovery.nqn.to_field(), U16::new(eflags::PERSISTENT | duplicate));
    for (_, port) in ports {
        let subtype = DiscoverySubtype::CURRENT_DISCOVERY;
        page.put(DiscoveryEntry { subtype, subnqn, eflags, ..*port }.as_bytes());
    }
}

/// Writes the entries of the subsystems, from the bookmark if the host reads on from there.
fn put_subsystems(
    registry: &Registry,
    controller: &Controller,
    ports: &[Port<'_>],
    bookmark: &mut Bookmark,
    page: &mut PageWriter<'_>,
) {
    const SIZE: u64 = DISCOVERY_RECORD_SIZE as u64;
    let mut passed = 0;
    let mut first = Bound::Unbounded;
    if let Some((nqn, before)) = &bookmark.last
        && page.skip(before * SIZE)
    {
        (passed, first) = (*before, Bound::Included(nqn.clone()));
    }
    for (nqn, entries) in shown(registry, controller, ports, first) {
        if page.is_full() {
            break;
        }
        if !page.skip(entries * SIZE) {
            let subnqn = nqn.to_field();
            for (_, port) in ports.iter().filter(|(port, _)| port.serves(nqn)) {
                let subtype = DiscoverySubtype::NVM;
                page.put(DiscoveryEntry { subtype, subnqn, ..*port }.as_bytes());
            }
            bookmark.last = Some((nqn.clone(), passed));
        }
        passed += entries;
    }
    // The remaining entries, if any, are outside of the requested part.
    page.skip(bookmark.entries.saturating_sub(passed) * SIZE);
}

/// An entry for this listener, without the fields that depend on the subsystem.
///
/// `None` if it listens on every address and no address for this host is known.
fn listener(port: &PortSpec, controller: &Controller) -> Option<DiscoveryEntry> {
    let (family, address) = reachable(port, controller)?;
    let mut entry = place(port.transport, family, &address, &port.service);
    entry.portid.set(port.id.0);
    entry.treq = treq::SQ_FLOW_CONTROL_OFF;
    entry.asqsz.set(controller.limits.admin_queue_depth());
    Some(entry)
}

/// Entry of another discovery service.
fn referral(referral: &ReferralSpec) -> DiscoveryEntry {
    let ReferralSpec { transport, family, nqn, address, service } = referral;
    let mut entry = place(*transport, *family, address, service);
    entry.subtype = DiscoverySubtype::REFERRAL;
    entry.subnqn = nqn.to_field();
    entry.asqsz.set(ADMIN_QUEUE_MIN);
    entry
}

fn place(
    transport: TransportKind,
    family: AddressFamily,
    address: &str,
    service: &str,
) -> DiscoveryEntry {
    let (trtype, tsas) = match transport {
        TransportKind::Tcp => (TransportType::TCP, Tsas::Tcp { sectype: TcpSecurity::NONE }),
        TransportKind::Rdma => (
            TransportType::RDMA,
            Tsas::Rdma {
                qptype: RdmaQueuePair::CONNECTED,
                prtype: RdmaProvider::NONE,
                cms: RdmaConnection::RDMA_CM,
                pkey: 0,
            },
        ),
        TransportKind::Loop => (TransportType::INTRA_HOST, Tsas::None),
    };
    let mut entry = DiscoveryEntry {
        trtype,
        adrfam: match family {
            AddressFamily::Ipv4 => WireFamily::IPV4,
            AddressFamily::Ipv6 => WireFamily::IPV6,
            AddressFamily::Loop => WireFamily::INTRA_HOST,
        },
        cntlid: U16::new(CNTLID_DYNAMIC),
        ..DiscoveryEntry::default()
    };
    entry.set_address(address, service);
    entry.set_tsas(tsas);
    entry
}

/// Address at which a host reaches a listener.
///
/// For a listener on every address, the log reports the address that this host used, if the
/// listener accepts its family.
fn reachable(port: &PortSpec, controller: &Controller) -> Option<(AddressFamily, String)> {
    let as_configured = || (port.family, port.address.clone());
    if !port.is_wildcard() {
        return Some(as_configured());
    }
    let Some(used) = controller.local_address() else {
        return Some(as_configured());
    };
    let family = if used.is_ipv4() { AddressFamily::Ipv4 } else { AddressFamily::Ipv6 };
    let takes_both = port.family == AddressFamily::Ipv6 && !port.v6_only;
    let reached = family == port.family || takes_both || port.id == controller.port;
    reached.then(|| (family, used.to_string()))
}

#[cfg(test)]
mod tests;
