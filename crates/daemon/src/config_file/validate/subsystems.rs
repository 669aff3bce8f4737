//! `[[subsystem]]` and `[[subsystem.namespace]]`.

use std::collections::{BTreeMap, BTreeSet};

use nvmeof_api::document::DeviceConfig;
use nvmeof_nvmf::limits::{CNTLID_MAX, MAX_NAMESPACES, MAX_NSID};
use nvmeof_pacing::TenantLimits;
use nvmeof_wire::Nqn;
use toml::Spanned;

use super::super::raw::{RawNamespace, RawSubsystem};
use super::defaults;
use super::tenants::limit;
use crate::config::identity::{self, parse_hex};
use crate::config::report::{Report, Span};
use crate::config::table::WrittenTable;
use crate::config::values::Key;
use crate::config::values::{NQN_FORM, integer, one_of, parse_nqn, required};
use crate::config::{Namespace, Subsystem};
use crate::limits::{self, TenantBounds};

/// Values that must be unique in the whole config, with their lines.
#[derive(Debug, Default)]
struct Seen<'r> {
    nqns: BTreeMap<Nqn, usize>,
    devices: BTreeMap<&'r str, usize>,
    identifiers: BTreeMap<Vec<u8>, usize>,
}

/// Validates the subsystems and their namespaces, which name devices.
pub(super) fn subsystems(
    report: &mut Report<'_>,
    raw: &[Spanned<RawSubsystem>],
    devices: &[WrittenTable<DeviceConfig>],
    bounds: &TenantBounds,
) -> Vec<Subsystem> {
    let mut seen = Seen::default();
    let known: Vec<Spanned<String>> =
        devices.iter().filter_map(|device| device.common("name")).collect();
    let names: Vec<&str> = known.iter().map(|name| name.get_ref().as_str()).collect();
    let mut subsystems = Vec::new();
    for entry in raw {
        let nqn = required(report, &entry.span(), "subsystem.nqn", &entry.get_ref().nqn, NQN_FORM)
            .and_then(|value| nqn(report, value, &mut seen));
        // Continue without a name, to report all problems together.
        let nqn = nqn.unwrap_or_else(Nqn::discovery);
        subsystems.push(subsystem(report, entry, nqn, (&names, bounds), &mut seen));
    }
    if subsystems.is_empty() {
        let what = "there is none: hosts will find nothing to connect to";
        report.warning(&(0..0), "subsystem", what, "add a [[subsystem]]");
    }
    let configs = || devices.iter().filter_map(|device| device.config.as_ref());
    let bases: Vec<&str> = configs().flat_map(DeviceConfig::bases).collect();
    let stripes = configs().filter(|config| matches!(config, DeviceConfig::Stripe(_)));
    let members: Vec<&str> = stripes.flat_map(DeviceConfig::bases).collect();
    for name in &known {
        let text = name.get_ref().as_str();
        let (served, member) = (seen.devices.get(text), members.contains(&text));
        if served.is_none() && !bases.contains(&text) {
            let what = format!("no namespace uses device \"{text}\"");
            report.warning(&name.span(), "device.name", what, "add a [[subsystem.namespace]]");
        }
        if let (Some(line), true) = (served, member) {
            let what = format!("the namespace of line {line} shares its data with a stripe");
            let allowed = "let hosts reach a member through its stripe only";
            report.warning(&name.span(), "device.name", what, allowed);
        }
    }
    subsystems
}

fn nqn(report: &mut Report<'_>, value: &Spanned<String>, seen: &mut Seen<'_>) -> Option<Nqn> {
    let nqn = parse_nqn(report, "subsystem.nqn", value)?;
    if nqn.is_discovery() {
        let what = "this is the name of the discovery service, which is always there";
        report.error(&value.span(), "subsystem.nqn", what, NQN_FORM);
    }
    if let Some(first) = seen.nqns.insert(nqn.clone(), report.line(&value.span())) {
        let what = format!("the subsystem of line {first} has this NQN already");
        let allowed = "give each subsystem its own NQN";
        report.error(&value.span(), "subsystem.nqn", what, allowed);
    }
    Some(nqn)
}

fn subsystem<'r>(
    report: &mut Report<'_>,
    entry: &'r Spanned<RawSubsystem>,
    nqn: Nqn,
    (names, bounds): (&[&str], &TenantBounds),
    seen: &mut Seen<'r>,
) -> Subsystem {
    let raw = entry.get_ref();
    let hosts = hosts(report, &entry.span(), raw);
    let serial = text(report, "subsystem.serial", &raw.serial, 20)
        .unwrap_or_else(|| identity::serial(nqn.as_str()));
    let model = text(report, "subsystem.model", &raw.model, 40)
        .unwrap_or_else(|| defaults::MODEL.to_owned());
    let range = 1..=CNTLID_MAX;
    let cntlid_min =
        integer(report, "subsystem.cntlid-min", &raw.cntlid_min, *range.start(), range.clone());
    let cntlid_max = integer(report, "subsystem.cntlid-max", &raw.cntlid_max, *range.end(), range);
    if cntlid_min > cntlid_max
        && let Some(value) = raw.cntlid_min.as_ref().or(raw.cntlid_max.as_ref())
    {
        let what = format!("the controller IDs {cntlid_min} to {cntlid_max} are none");
        let allowed = format!("allowed: 1 to {CNTLID_MAX}, cntlid-min at most cntlid-max");
        report.error(&value.span(), "subsystem.cntlid-min", what, allowed);
    }
    if let Some(entry) = raw.namespace.get(MAX_NAMESPACES as usize) {
        let what = format!("the subsystem has {} namespaces", raw.namespace.len());
        let allowed = format!("at most {MAX_NAMESPACES}; use another subsystem for the rest");
        report.error(&entry.span(), "subsystem.namespace", what, allowed);
    }
    let mut nsids = BTreeMap::new();
    let mut namespaces = Vec::new();
    for entry in &raw.namespace {
        if let Some(mut namespace) = namespace(report, entry, names, &mut nsids, seen) {
            if let Some(value) = &entry.get_ref().limit {
                namespace.limits = limit(report, "namespace.limit", value, bounds);
            }
            namespaces.push(namespace);
        }
    }
    Subsystem { nqn, hosts, serial, model, cntlid_min, cntlid_max, namespaces }
}

/// Validates the hosts that may connect: any host or a list, one of which must be set.
fn hosts(report: &mut Report<'_>, header: &Span, raw: &RawSubsystem) -> Option<BTreeSet<Nqn>> {
    const FORM: &str = "set allow-any-host = true, or hosts = [\"nqn...\"]";
    let any = raw.allow_any_host.as_ref();
    match (any.map(|value| (*value.get_ref(), value.span())), &raw.hosts) {
        (None, None) => {
            let what = "neither allow-any-host nor hosts is set";
            report.error(header, "subsystem.allow-any-host", what, FORM);
            None
        }
        (Some((false, span)), None) => {
            let what = "no host may connect";
            report.error(&span, "subsystem.allow-any-host", what, FORM);
            None
        }
        (Some((true, span)), Some(_)) => {
            let what = "any host may connect, and yet hosts are listed";
            report.error(&span, "subsystem.allow-any-host", what, "leave out one of the two");
            None
        }
        (Some((true, _)), None) => None,
        (_, Some(list)) => {
            let names = list.get_ref().iter();
            let mut hosts = BTreeSet::new();
            for value in names {
                let Some(nqn) = parse_nqn(report, "subsystem.hosts", value) else { continue };
                if !hosts.insert(nqn) {
                    let what = "this host is listed twice";
                    report.error(&value.span(), "subsystem.hosts", what, "remove one");
                }
            }
            if list.get_ref().is_empty() {
                let what = "the list is empty: no host can connect";
                report.warning(&list.span(), "subsystem.hosts", what, "add a host's NQN");
            }
            Some(hosts)
        }
    }
}

/// Validates printable ASCII of 1 to `most` characters.
fn text(report: &mut Report<'_>, name: &str, key: &Key<String>, most: usize) -> Option<String> {
    let value = key.as_ref()?;
    let text = value.get_ref();
    let printable = text.chars().all(|c| c == ' ' || c.is_ascii_graphic());
    if !(1..=most).contains(&text.len()) || !printable || text.trim() != text {
        let what = format!("\"{}\" is not supported", text.escape_debug());
        let allowed =
            format!("allowed: 1 to {most} printable ASCII characters, no space at either end");
        report.error(&value.span(), name, what, allowed);
        return None;
    }
    Some(text.clone())
}

fn namespace<'r>(
    report: &mut Report<'_>,
    entry: &'r Spanned<RawNamespace>,
    names: &[&str],
    nsids: &mut BTreeMap<i64, usize>,
    seen: &mut Seen<'r>,
) -> Option<Namespace> {
    let (raw, header) = (entry.get_ref(), entry.span());
    let form = format!("allowed: 1 to {MAX_NSID}");
    let nsid = required(report, &header, "namespace.nsid", &raw.nsid, &form);
    if let Some(value) = nsid
        && let Some(first) = nsids.insert(*value.get_ref(), report.line(&value.span()))
    {
        let what = format!("the namespace of line {first} is {} already", value.get_ref());
        let allowed = "give each namespace of a subsystem its own number";
        report.error(&value.span(), "namespace.nsid", what, allowed);
    }
    let number = integer(report, "namespace.nsid", &raw.nsid, 1, 1..=MAX_NSID);
    let form = one_of(names, "");
    let value = required(report, &header, "namespace.device", &raw.device, form)?;
    let device = value.get_ref().as_str();
    if !names.contains(&device) {
        let what = format!("there is no device \"{device}\"");
        let allowed = if names.is_empty() {
            "add a [[device]] of that name".to_owned()
        } else {
            one_of(names, device).to_string()
        };
        report.error(&value.span(), "namespace.device", what, allowed);
    } else if let Some(first) = seen.devices.insert(device, report.line(&value.span())) {
        let what = format!("the namespace of line {first} has device \"{device}\" already");
        let allowed = "give each namespace its own device: devices cannot be shared yet";
        report.error(&value.span(), "namespace.device", what, allowed);
    }
    nsid?;
    if let (Some(value), None) = (&raw.medium, &raw.uuid) {
        let what = "medium belongs to a uuid, and no uuid is set";
        report.error(&value.span(), "namespace.medium", what, "omit the key, or set uuid");
    }
    Some(Namespace {
        nsid: number,
        device: device.to_owned(),
        weight: integer(
            report,
            "namespace.weight",
            &raw.weight,
            defaults::WEIGHT,
            1..=limits::WEIGHT_MAX,
        ),
        limits: TenantLimits::default(),
        uuid: identifier(report, "namespace.uuid", &raw.uuid, &mut seen.identifiers, UUID_FORM),
        medium: raw.medium.as_ref().map(|value| value.get_ref().clone()),
        nguid: identifier(report, "namespace.nguid", &raw.nguid, &mut seen.identifiers, NGUID_FORM),
        eui64: identifier(report, "namespace.eui64", &raw.eui64, &mut seen.identifiers, EUI64_FORM),
    })
}

const UUID_FORM: &str =
    "allowed: 32 hexadecimal digits, as \"7a2f6a52-6b0e-4c8b-9d6e-0f3f5f0b7c11\"";
const NGUID_FORM: &str = "allowed: 32 hexadecimal digits, as \"0123456789abcdef0123456789abcdef\"";
const EUI64_FORM: &str = "allowed: 16 hexadecimal digits, as \"0123456789abcdef\"";

/// Validates an explicit identifier, which no other namespace has.
fn identifier<const N: usize>(
    report: &mut Report<'_>,
    name: &str,
    key: &Key<String>,
    seen: &mut BTreeMap<Vec<u8>, usize>,
    form: &str,
) -> Option<[u8; N]> {
    let value = key.as_ref()?;
    let Some(bytes) = parse_hex::<N>(value.get_ref()).filter(|bytes| *bytes != [0; N]) else {
        let what = format!("\"{}\" is no identifier", value.get_ref());
        report.error(&value.span(), name, what, form);
        return None;
    };
    let mut tagged = name.as_bytes().to_vec();
    tagged.extend(bytes);
    if let Some(first) = seen.insert(tagged, report.line(&value.span())) {
        let what = format!("the namespace of line {first} has the same");
        report.error(&value.span(), name, what, "hosts need a unique one for each namespace");
    }
    Some(bytes)
}
