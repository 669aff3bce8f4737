//! Converts a config to the target's desired state.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use nvmeof_nvmf::{
    Access, AddressFamily, DiscoverySpec, NamespaceSpec, PortId, PortSpec, ReferralSpec,
    SubsystemSpec, TargetSpec, TransportKind,
};

use super::devices::Open;
use super::identity::{DeviceFacts, Identities, Identity, identities};
use crate::config::{Config, Fabric, Listener, Namespace, Subsystem};

/// Returns the desired state, with the actual addresses of the listeners.
pub(super) fn target_spec<'a>(
    config: &Config,
    ports: impl Iterator<Item = (PortId, &'a Listener, SocketAddr)>,
    device: impl Fn(&str) -> Option<&'a Open>,
) -> anyhow::Result<TargetSpec> {
    let identities = identities(config, &|name| device(name).map(DeviceFacts::of));
    let subsystems = config
        .subsystems
        .iter()
        .map(|subsystem| subsystem_spec(subsystem, &identities, &device))
        .collect::<anyhow::Result<_>>()?;
    let ports = ports.map(|(id, listener, address)| port_spec(id, listener, address)).collect();
    let discovery = DiscoverySpec {
        nqn: config.discovery.nqn.clone(),
        is_restricted: config.discovery.is_restricted,
    };
    let referrals = config
        .referrals
        .iter()
        .map(|referral| ReferralSpec {
            transport: transport(referral.fabric),
            family: family(referral.address),
            nqn: referral.nqn.clone(),
            address: referral.address.to_string(),
            service: referral.port.to_string(),
        })
        .collect();
    Ok(TargetSpec { subsystems, ports, discovery, referrals })
}

/// Returns the description of a listener at its actual address.
pub(super) fn port_spec(id: PortId, listener: &Listener, address: SocketAddr) -> PortSpec {
    PortSpec {
        id,
        transport: transport(listener.fabric),
        family: family(address.ip()),
        address: address.ip().to_string(),
        service: address.port().to_string(),
        v6_only: listener.v6_only,
        subsystems: listener.subsystems.clone(),
        folds_always: listener.folds_always,
    }
}

fn subsystem_spec<'a>(
    subsystem: &Subsystem,
    identities: &Identities,
    device: &impl Fn(&str) -> Option<&'a Open>,
) -> anyhow::Result<SubsystemSpec> {
    let mut quiesce_bound = Duration::ZERO;
    let namespaces = subsystem
        .namespaces
        .iter()
        .map(|namespace| {
            let identity = identities.get(&(subsystem.nqn.clone(), namespace.nsid));
            let (open, identity) = device(&namespace.device).zip(identity).ok_or_else(|| {
                anyhow::anyhow!("namespace {}: no device {:?}", namespace.nsid, namespace.device)
            })?;
            quiesce_bound = quiesce_bound.max(open.quiesce_bound());
            Ok(namespace_spec(namespace, identity, open))
        })
        .collect::<anyhow::Result<_>>()?;
    Ok(SubsystemSpec {
        nqn: subsystem.nqn.clone(),
        serial: subsystem.serial.clone(),
        model: subsystem.model.clone(),
        cntlid_min: subsystem.cntlid_min,
        cntlid_max: subsystem.cntlid_max,
        access: match &subsystem.hosts {
            None => Access::AnyHost,
            Some(hosts) => Access::Hosts(hosts.clone()),
        },
        namespaces,
        quiesce_bound,
    })
}

fn namespace_spec(namespace: &Namespace, identity: &Identity, open: &Open) -> NamespaceSpec {
    let info = open.device.info();
    NamespaceSpec {
        nsid: namespace.nsid,
        device: open.id,
        block_size: info.block_size,
        blocks: info.size / u64::from(info.block_size),
        uuid: identity.uuid,
        nguid: identity.nguid,
        eui64: identity.eui64,
        read_only: info.read_only,
        volatile_cache: info.volatile_cache,
        deallocate: info.deallocate,
        deallocate_reads_zero: info.deallocate_reads_zero,
        write_zeroes: info.write_zeroes,
        preferred: info.geometry.to_blocks(info.block_size),
    }
}

fn transport(fabric: Fabric) -> TransportKind {
    match fabric {
        Fabric::Tcp => TransportKind::Tcp,
        Fabric::Rdma => TransportKind::Rdma,
    }
}

fn family(address: IpAddr) -> AddressFamily {
    match address {
        IpAddr::V4(_) => AddressFamily::Ipv4,
        IpAddr::V6(_) => AddressFamily::Ipv6,
    }
}
