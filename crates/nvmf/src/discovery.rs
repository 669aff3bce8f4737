//! The discovery log of a host (Base 5.16.1.23): what it may connect to, and where.
//!
//! A log is made whole from one state of the target, and its generation counter changes with that state,
//! so a host that reads it in parts can tell whether the parts belong together.

use std::net::IpAddr;

use nvmeof_wire::log::{
    AddressFamily as WireFamily, DiscoveryEntry, DiscoveryHeader, DiscoverySubtype, RdmaConnection,
    RdmaProvider, RdmaQueuePair, TcpSecurity, TransportType, Tsas, eflags, treq,
};
use nvmeof_wire::zerocopy::IntoBytes;
use nvmeof_wire::{Nqn, U16};

use crate::controller::Controller;
use crate::limits::ADMIN_QUEUE_MIN;
use crate::spec::{AddressFamily, PortSpec, ReferralSpec, TransportKind};
use crate::target::Target;

/// CNTLID of an entry: the controller is made when a host connects.
const CNTLID_DYNAMIC: u16 = 0xffff;

/// The log as the host of this discovery controller sees it: a header and its entries. First this discovery
/// service's own listeners, then the subsystems the host may connect to at every listener, then referrals.
pub(crate) fn log_page(target: &Target, controller: &Controller) -> Vec<u8> {
    let registry = target.registry();
    let ports: Vec<DiscoveryEntry> =
        registry.ports.values().filter_map(|port| listener(port, controller)).collect();
    let at_every_port = |nqn: &Nqn, subtype, flags| {
        let subnqn = nqn.to_field();
        let of = move |port: &DiscoveryEntry| DiscoveryEntry {
            subtype,
            subnqn,
            eflags: U16::new(flags),
            ..*port
        };
        ports.iter().map(of).collect::<Vec<_>>()
    };

    // Every listener tells the same host the same.
    let service = eflags::PERSISTENT | eflags::DUPLICATE;
    let discovery = &registry.discovery.nqn;
    let mut entries = at_every_port(discovery, DiscoverySubtype::CURRENT_DISCOVERY, service);
    for subsystem in registry.subsystems.values() {
        if subsystem.allows(&controller.host_nqn) {
            entries.extend(at_every_port(&subsystem.nqn, DiscoverySubtype::NVM, 0));
        }
    }
    entries.extend(registry.referrals.iter().map(referral));

    let records = u64::try_from(entries.len()).unwrap_or(u64::MAX);
    let header = DiscoveryHeader::new(registry.discovery_generation, records);
    let mut page = header.as_bytes().to_vec();
    page.extend_from_slice(entries.as_bytes());
    page
}

/// An entry for this listener, without what depends on the subsystem. `None` if it listens everywhere and
/// nothing says where this host can reach it.
fn listener(port: &PortSpec, controller: &Controller) -> Option<DiscoveryEntry> {
    let (family, address) = reachable(port, controller)?;
    let mut entry = place(port.transport, family, &address, &port.service);
    entry.portid.set(port.id.0);
    entry.treq = treq::SQ_FLOW_CONTROL_OFF;
    entry.asqsz.set(controller.limits.admin_queue_depth());
    Some(entry)
}

/// A discovery service elsewhere.
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

/// Where a host reaches a listener. One that listens on every address is told of as the address this host
/// used, which it answers on too; if that is of the other family, only the listener the host came by is
/// known to take both.
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
