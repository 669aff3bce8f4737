//! `[[listener]]` and `[[referral]]`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use nvmeof_wire::Nqn;
use toml::Spanned;

use super::super::raw::{RawDiscovery, RawListener, RawReferral, RawSubsystem};
use super::defaults;
use crate::config::report::{Report, Span};
use crate::config::values::Key;
use crate::config::values::{address, choice, integer, one_of, parse_nqn, required};
use crate::config::{Discovery, Fabric, Listener, Problem, Rdma, Referral};

const FABRICS: [(&str, Fabric); 2] = [("tcp", Fabric::Tcp), ("rdma", Fabric::Rdma)];
const FABRIC_FORM: &str = "allowed: \"tcp\", \"rdma\"";
const PORT_FORM: &str = "stop it, or choose a free port, or 0 for any";
/// Bounds of a completion queue: a few queues of the minimum depth, and the maximum of large
/// devices.
const COMPLETIONS_MIN: u32 = 256;
const COMPLETIONS_MAX: u32 = 4 << 20;
/// Maximum length of an RDMA device name (IBV_SYSFS_NAME_MAX less the terminator).
const DEVICE_NAME_MAX: usize = 63;
const ADDRESS_FORM: &str = "allowed: an IPv4 or IPv6 address, as \"0.0.0.0\" or \"::1\"";

/// Validates the listeners, with a problem to report for each if its port is in use.
///
/// At least one is required, unless calls of `[rpc]` can add some.
pub(super) fn listeners(
    report: &mut Report<'_>,
    raw: &[Spanned<RawListener>],
    subsystems: &[Spanned<RawSubsystem>],
    has_rpc: bool,
) -> (Vec<Listener>, Vec<Problem>) {
    if raw.is_empty() {
        let what = "there is none, so no host could connect";
        let allowed = "add a [[listener]] with type and address";
        match has_rpc {
            true => report.warning(&(0..0), "listener", what, "add one by RPC"),
            false => report.error_in_file("listener", what, allowed),
        }
    }
    let mut seen: BTreeMap<(Fabric, IpAddr, u16), usize> = BTreeMap::new();
    let (mut listeners, mut places) = (Vec::new(), Vec::new());
    let mut taken = Vec::new();
    for entry in raw {
        let raw = entry.get_ref();
        let fabric = fabric(report, &entry.span(), "listener.type", &raw.kind);
        let address =
            required(report, &entry.span(), "listener.address", &raw.address, ADDRESS_FORM)
                .and_then(|value| address(report, "listener.address", value));
        let served = served(report, raw, subsystems);
        let default = match &served {
            Some(none) if none.is_empty() => defaults::DISCOVERY_PORT,
            _ => defaults::NVM_PORT,
        };
        let port = integer(report, "listener.port", &raw.port, default, 0..=u16::MAX);
        let (Some(fabric), Some(address)) = (fabric, address) else { continue };
        let rdma = rdma(report, raw, fabric);
        // The system assigns a different port to each listener with port 0.
        if port != 0
            && let Some(first) = seen.insert((fabric, address, port), report.line(&entry.span()))
        {
            let what = format!("the listener of line {first} has the same type, address and port");
            let at = raw.address.as_ref().map_or(entry.span(), |value| value.span());
            report.error(&at, "listener.address", what, "remove one, or change the port");
        }
        places.push(raw.address.as_ref().map_or(entry.span(), |value| value.span()));
        listeners.push(Listener {
            fabric,
            address,
            port,
            v6_only: false,
            rdma,
            subsystems: served,
            folds_always: folds_always(report, raw, fabric),
        });
        let at = raw.port.as_ref().map_or(entry.span(), |value| value.span());
        let what = format!("something else listens at {}", SocketAddr::new(address, port));
        taken.push(report.foresee(&at, "listener.port", &what, PORT_FORM));
    }
    leave_ipv4(report, &mut listeners, &places);
    (listeners, taken)
}

/// Restricts listeners at "::" to IPv6 if an IPv4 listener has the same port.
fn leave_ipv4(report: &mut Report<'_>, listeners: &mut [Listener], places: &[Span]) {
    let v4: Vec<(Fabric, u16, IpAddr)> = listeners
        .iter()
        .filter(|one| one.address.is_ipv4() && one.port != 0)
        .map(|one| (one.fabric, one.port, one.address))
        .collect();
    let all = listeners.iter_mut().zip(places);
    for (one, place) in all.filter(|(one, _)| one.address == Ipv6Addr::UNSPECIFIED) {
        let here = |other: &&(Fabric, u16, IpAddr)| (other.0, other.1) == (one.fabric, one.port);
        let at: Vec<IpAddr> = v4.iter().filter(here).map(|other| other.2).collect();
        one.v6_only = !at.is_empty();
        if one.v6_only && !at.iter().any(IpAddr::is_unspecified) {
            let what = format!(
                "\"::\" accepts no IPv4 host, because {} has port {}, too; IPv4 hosts reach only that",
                at[0], one.port
            );
            let allowed = "add a listener at \"0.0.0.0\", or remove the IPv4 one";
            report.warning(place, "listener.address", what, allowed);
        }
    }
}

/// Validates the subsystems that a listener serves; `None`: all.
fn served(
    report: &mut Report<'_>,
    raw: &RawListener,
    subsystems: &[Spanned<RawSubsystem>],
) -> Option<BTreeSet<Nqn>> {
    let list = raw.subsystems.as_ref()?;
    let known: Vec<&str> = subsystems
        .iter()
        .filter_map(|one| one.get_ref().nqn.as_ref())
        .map(|nqn| nqn.get_ref().as_str())
        .collect();
    let mut served = BTreeSet::new();
    for value in list.get_ref() {
        let Some(nqn) = parse_nqn(report, "listener.subsystems", value) else { continue };
        if !known.contains(&nqn.as_str()) {
            let what = format!("there is no subsystem \"{nqn}\"");
            let allowed = one_of(&known, nqn.as_str());
            report.error(&value.span(), "listener.subsystems", what, allowed);
        }
        if !served.insert(nqn) {
            let what = "this subsystem is listed twice";
            report.error(&value.span(), "listener.subsystems", what, "remove one");
        }
    }
    Some(served)
}

/// Validates when responses are folded into data, a choice of TCP.
fn folds_always(report: &mut Report<'_>, raw: &RawListener, fabric: Fabric) -> bool {
    const NAME: &str = "listener.fold-responses";
    let Some(value) = &raw.fold_responses else { return true };
    if fabric != Fabric::Tcp {
        let what = format!("unknown key of a listener of type \"{}\"", fabric.name());
        report.error(&value.span(), NAME, what, "remove it, or set type = \"tcp\"");
    }
    choice(report, NAME, value, &[("always", true), ("if-disabled", false)]).unwrap_or(true)
}

/// Validates the discovery service.
pub(super) fn discovery(
    report: &mut Report<'_>,
    raw: &RawDiscovery,
    subsystems: &[Spanned<RawSubsystem>],
) -> Discovery {
    let nqn = raw.nqn.as_ref().and_then(|value| {
        let nqn = parse_nqn(report, "discovery.nqn", value)?;
        let names = subsystems.iter().filter_map(|one| one.get_ref().nqn.as_ref());
        if names.into_iter().any(|name| name.get_ref() == nqn.as_str()) {
            let what = "a subsystem has this NQN";
            let allowed = "give the discovery service its own NQN, or remove the key";
            report.error(&value.span(), "discovery.nqn", what, allowed);
        }
        Some(nqn).filter(|nqn| !nqn.is_discovery())
    });
    let is_restricted = raw.restricted.as_ref().is_some_and(|value| *value.get_ref());
    let is_announced = raw.mdns.as_ref().is_some_and(|value| *value.get_ref());
    Discovery { nqn, is_restricted, is_announced }
}

/// Validates the keys that only an RDMA listener has.
fn rdma(report: &mut Report<'_>, raw: &RawListener, fabric: Fabric) -> Rdma {
    let keys = [
        ("listener.rdma-device", raw.rdma_device.as_ref().map(Spanned::span)),
        ("listener.gid-index", raw.gid_index.as_ref().map(Spanned::span)),
        ("listener.traffic-class", raw.traffic_class.as_ref().map(Spanned::span)),
        ("listener.retry-count", raw.retry_count.as_ref().map(Spanned::span)),
        ("listener.rnr-retry-count", raw.rnr_retry_count.as_ref().map(Spanned::span)),
        ("listener.shared-receives", raw.shared_receives.as_ref().map(Spanned::span)),
        ("listener.completion-queue-depth", raw.completion_queue_depth.as_ref().map(Spanned::span)),
    ];
    let default = Rdma::default();
    if fabric != Fabric::Rdma {
        for (name, span) in keys {
            if let Some(span) = span {
                let what = format!("unknown key of a listener of type \"{}\"", fabric.name());
                report.error(&span, name, what, "remove it, or set type = \"rdma\"");
            }
        }
        return default;
    }
    Rdma {
        device: raw.rdma_device.as_ref().and_then(|value| rdma_device(report, value)),
        gid_index: optional(report, "listener.gid-index", &raw.gid_index),
        traffic_class: optional(report, "listener.traffic-class", &raw.traffic_class),
        retry_count: raw
            .retry_count
            .as_ref()
            .map(|_| integer(report, "listener.retry-count", &raw.retry_count, 0, 0..=7)),
        rnr_retry_count: integer(
            report,
            "listener.rnr-retry-count",
            &raw.rnr_retry_count,
            default.rnr_retry_count,
            0..=7,
        ),
        shared_receives: raw
            .shared_receives
            .as_ref()
            .map_or(default.shared_receives, |value| *value.get_ref()),
        completion_queue_depth: integer(
            report,
            "listener.completion-queue-depth",
            &raw.completion_queue_depth,
            default.completion_queue_depth,
            COMPLETIONS_MIN..=COMPLETIONS_MAX,
        ),
    }
}

/// Returns a byte if the key is present.
fn optional(report: &mut Report<'_>, name: &str, key: &Key<i64>) -> Option<u8> {
    key.as_ref().map(|_| integer(report, name, key, 0, 0..=u8::MAX))
}

fn rdma_device(report: &mut Report<'_>, value: &Spanned<String>) -> Option<String> {
    let name = value.get_ref();
    if name.is_empty() || name.len() > DEVICE_NAME_MAX || name.contains('/') {
        let what = format!("\"{name}\" is no name of an RDMA device");
        let allowed = "allowed: a name that `rdma link` lists, without the port, as \"mlx5_0\"";
        report.error(&value.span(), "listener.rdma-device", what, allowed);
        return None;
    }
    Some(name.clone())
}

/// Validates the other discovery services.
pub(super) fn referrals(report: &mut Report<'_>, raw: &[Spanned<RawReferral>]) -> Vec<Referral> {
    let mut referrals: Vec<Referral> = Vec::new();
    for entry in raw {
        let raw = entry.get_ref();
        let fabric = fabric(report, &entry.span(), "referral.type", &raw.kind);
        let address =
            required(report, &entry.span(), "referral.address", &raw.address, ADDRESS_FORM)
                .and_then(|value| address(report, "referral.address", value));
        let port =
            integer(report, "referral.port", &raw.port, defaults::DISCOVERY_PORT, 1..=u16::MAX);
        let nqn = match &raw.nqn {
            Some(value) => parse_nqn(report, "referral.nqn", value),
            None => Some(Nqn::discovery()),
        };
        let (Some(fabric), Some(address), Some(nqn)) = (fabric, address, nqn) else { continue };
        if address.is_unspecified() {
            let at = raw.address.as_ref().map_or(entry.span(), |value| value.span());
            let what = format!("{address} is no address a host can connect to");
            report.error(&at, "referral.address", what, "name the other service's own address");
        }
        let referral = Referral { fabric, address, port, nqn };
        if referrals.contains(&referral) {
            report.error(&entry.span(), "referral", "the same is there already", "remove one");
        }
        referrals.push(referral);
    }
    referrals
}

fn fabric(report: &mut Report<'_>, header: &Span, name: &str, key: &Key<String>) -> Option<Fabric> {
    let value = required(report, header, name, key, FABRIC_FORM)?;
    choice(report, name, value, &FABRICS)
}
