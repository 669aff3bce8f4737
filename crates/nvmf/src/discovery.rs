//! The discovery log of a host (Base 5.16.1.23): accessible subsystems and their addresses.
//!
//! A log is generated completely from one state of the target, and its generation counter changes
//! with that state. A host that reads it in parts can therefore check that the parts belong
//! together.

use std::net::IpAddr;
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
use crate::subsystem::Subsystem;
use crate::target::Target;

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
    /// Number of subsystems that the host may connect to.
    subsystems: u64,
    /// The last subsystem that was read, and the number of these subsystems before it.
    last: Option<(Nqn, u64)>,
}

/// Writes the log for the host of this discovery controller: a header and its entries.
///
/// The entries are the listeners of this discovery service, then each subsystem that the host may
/// connect to at every listener, then the referrals.
pub(crate) fn put_log_page(target: &Target, controller: &Controller, page: &mut PageWriter<'_>) {
    let registry = target.registry();
    let ports: Vec<DiscoveryEntry> =
        registry.shown_ports().filter_map(|port| listener(port, controller)).collect();
    let allowed = |subsystem: &Subsystem| subsystem.allows(&controller.host_nqn);
    let generation = registry.discovery_generation;
    let bookmark = controller.admin().bookmark.take();
    let mut bookmark =
        bookmark.filter(|known| known.generation == generation).unwrap_or_else(|| {
            let subsystems = registry.subsystems.values().filter(|one| allowed(one)).count();
            Bookmark { generation, subsystems: subsystems as u64, last: None }
        });

    let at_every_port = ports.len() as u64;
    let records = at_every_port * (1 + bookmark.subsystems) + registry.referrals.len() as u64;
    page.put(DiscoveryHeader::new(generation, records).as_bytes());
    // Every listener reports the same to the same host.
    let service = eflags::PERSISTENT | eflags::DUPLICATE;
    let discovery = &registry.discovery.nqn;
    put_at_every_port(page, &ports, discovery, DiscoverySubtype::CURRENT_DISCOVERY, service);

    let size = at_every_port * DISCOVERY_RECORD_SIZE as u64;
    let mut passed = 0;
    let mut first = Bound::Unbounded;
    if let Some((nqn, before)) = &bookmark.last
        && page.skip(before * size)
    {
        (passed, first) = (*before, Bound::Included(nqn.clone()));
    }
    let rest = registry.subsystems.range((first, Bound::Unbounded));
    for subsystem in rest.map(|(_, subsystem)| subsystem).filter(|one| allowed(one)) {
        if page.is_full() {
            break;
        }
        if !page.skip(size) {
            put_at_every_port(page, &ports, &subsystem.nqn, DiscoverySubtype::NVM, 0);
            bookmark.last = Some((subsystem.nqn.clone(), passed));
        }
        passed += 1;
    }
    // The remaining subsystems, if any, are outside of the requested part.
    page.skip(bookmark.subsystems.saturating_sub(passed) * size);
    registry.referrals.iter().for_each(|place| page.put(referral(place).as_bytes()));
    controller.admin().bookmark = Some(bookmark);
}

/// Writes the entries of a subsystem, one for each listener.
fn put_at_every_port(
    page: &mut PageWriter<'_>,
    ports: &[DiscoveryEntry],
    nqn: &Nqn,
    subtype: DiscoverySubtype,
    flags: u16,
) {
    let (subnqn, eflags) = (nqn.to_field(), U16::new(flags));
    for port in ports {
        page.put(DiscoveryEntry { subtype, subnqn, eflags, ..*port }.as_bytes());
    }
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
    let ReferralSpec { transport, family, address, service } = referral;
    let mut entry = place(*transport, *family, address, service);
    entry.subtype = DiscoverySubtype::REFERRAL;
    entry.subnqn = Nqn::discovery().to_field();
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
/// For a listener on every address, the log reports the address that this host used, which the
/// listener serves, too. If that is of the other family, only the listener that the host used is
/// known to serve both.
fn reachable(port: &PortSpec, controller: &Controller) -> Option<(AddressFamily, String)> {
    let as_configured = || (port.family, port.address.clone());
    let wildcard = port.address.parse().is_ok_and(|address: IpAddr| address.is_unspecified());
    if !wildcard {
        return Some(as_configured());
    }
    let Some(used) = controller.local_address() else {
        return Some(as_configured());
    };
    let family = if used.is_ipv4() { AddressFamily::Ipv4 } else { AddressFamily::Ipv6 };
    let reached = family == port.family || port.id == controller.port;
    reached.then(|| (family, used.to_string()))
}

#[cfg(test)]
mod tests;
