//! `[[listener]]` and `[[referral]]`.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use nvmeof_wire::Nqn;
use toml::Spanned;

use super::super::problem::{Report, Span};
use super::super::raw::{Key, RawListener, RawReferral};
use super::super::{Fabric, Listener, Problem, Referral};
use super::values::{address, choice, integer, required};
use super::{defaults, subsystems::parse_nqn};

const FABRICS: [(&str, Fabric); 2] = [("tcp", Fabric::Tcp), ("rdma", Fabric::Rdma)];
const FABRIC_FORM: &str = "allowed: \"tcp\", \"rdma\"";
const PORT_FORM: &str = "stop it, or choose a free port, or 0 for any";
const ADDRESS_FORM: &str = "allowed: an IPv4 or IPv6 address, as \"0.0.0.0\" or \"::1\"";

/// The listeners, at least one, and what to say of each if its port turns out to be taken.
pub(super) fn listeners(
    report: &mut Report<'_>,
    raw: &[Spanned<RawListener>],
) -> (Vec<Listener>, Vec<Problem>) {
    if raw.is_empty() {
        let allowed = "add a [[listener]] with type and address";
        report.error_in_file("listener", "there is none, so no host could connect", allowed);
    }
    let mut seen: BTreeMap<Listener, usize> = BTreeMap::new();
    let mut listeners = Vec::new();
    let mut taken = Vec::new();
    for entry in raw {
        let raw = entry.get_ref();
        let fabric = fabric(report, &entry.span(), "listener.type", &raw.kind);
        let address =
            required(report, &entry.span(), "listener.address", &raw.address, ADDRESS_FORM)
                .and_then(|value| address(report, "listener.address", value));
        let port = integer(report, "listener.port", &raw.port, defaults::PORT, 0..=u16::MAX);
        let (Some(fabric), Some(address)) = (fabric, address) else { continue };
        let listener = Listener { fabric, address, port };
        if fabric == Fabric::Rdma
            && let Some(kind) = &raw.kind
        {
            let what = "RDMA is not built into this version: nothing will listen there";
            report.warning(&kind.span(), "listener.type", what, "\"tcp\" works");
        }
        // Port 0 is another port each time.
        if port != 0
            && let Some(first) = seen.insert(listener, report.line(&entry.span()))
        {
            let what = format!("the listener of line {first} has the same type, address and port");
            let at = raw.address.as_ref().map_or(entry.span(), |value| value.span());
            report.error(&at, "listener.address", what, "remove one, or change the port");
        }
        listeners.push(listener);
        let at = raw.port.as_ref().map_or(entry.span(), |value| value.span());
        let what = format!("something else listens at {}", SocketAddr::new(address, port));
        taken.push(report.foresee(&at, "listener.port", &what, PORT_FORM));
    }
    (listeners, taken)
}

/// Other discovery services.
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
