//! Limits of tenants: namespaces, `[host-defaults]` and `[[host]]`.

use std::collections::BTreeMap;

use nvmeof_api::document::Size;
use nvmeof_api::units::show_size;
use nvmeof_api::units::{PERIOD_FORM, RATE_FORM, parse_period, parse_rate, show_period, show_rate};
use nvmeof_pacing::TenantLimits;
use nvmeof_wire::Nqn;
use toml::Spanned;

use super::super::raw::{RawHost, RawHostDefaults, RawLimit};
use super::defaults;
use crate::config::report::Report;
use crate::config::values::Key;
use crate::config::values::{integer, parse_nqn, required, size};
use crate::config::{Host, HostQosConfig};
use crate::limits::{CONNECTIONS_MAX, HOST_WEIGHT_MAX, TenantBounds};

const NQN_FORM: &str = "set the host's NQN from /etc/nvme/hostnqn on the host";

/// Keys that `[[host]]` and `[host-defaults]` share.
struct Keys<'r> {
    table: &'static str,
    limit: &'r Key<RawLimit>,
    weight: &'r Key<i64>,
    max_connections: &'r Key<i64>,
    max_queues: &'r Key<i64>,
    max_in_flight: &'r Key<Size>,
}

/// Validates the shares of hosts: the default and those of named hosts.
pub(super) fn hosts(
    report: &mut Report<'_>,
    others: &RawHostDefaults,
    named: &[Spanned<RawHost>],
    bounds: &TenantBounds,
) -> (HostQosConfig, Vec<Host>) {
    let RawHostDefaults { limit, weight, max_connections, max_queues, max_in_flight } = others;
    let table = "host-defaults";
    let keys = Keys { table, limit, weight, max_connections, max_queues, max_in_flight };
    let none = HostQosConfig { weight: defaults::WEIGHT, ..HostQosConfig::default() };
    let others = share(report, &keys, &none, bounds);
    let (mut hosts, mut seen) = (Vec::new(), BTreeMap::<Nqn, usize>::new());
    for entry in named {
        let RawHost { nqn, limit, weight, max_connections, max_queues, max_in_flight } =
            entry.get_ref();
        let table = "host";
        let keys = Keys { table, limit, weight, max_connections, max_queues, max_in_flight };
        let share = share(report, &keys, &others, bounds);
        let value = required(report, &entry.span(), "host.nqn", nqn, NQN_FORM);
        let Some(value) = value else { continue };
        let Some(nqn) = parse_nqn(report, "host.nqn", value) else { continue };
        if let Some(first) = seen.insert(nqn.clone(), report.line(&value.span())) {
            let what = format!("the host of line {first} is this one already");
            report.error(&value.span(), "host.nqn", what, "put all of a host into one [[host]]");
        }
        hosts.push(Host { nqn, share });
    }
    (others, hosts)
}

/// Validates a share; absent keys are as in `default`.
fn share(
    report: &mut Report<'_>,
    keys: &Keys<'_>,
    default: &HostQosConfig,
    bounds: &TenantBounds,
) -> HostQosConfig {
    let name = |key: &str| format!("{}.{key}", keys.table);
    let limits = match keys.limit {
        Some(value) => limit(report, &name("limit"), value, bounds),
        None => TenantLimits { in_flight: None, ..default.limits },
    };
    let in_flight = match keys.max_in_flight {
        Some(value) => in_flight(report, &name("max-in-flight"), value, bounds),
        None => default.limits.in_flight,
    };
    HostQosConfig {
        limits: TenantLimits { in_flight, ..limits },
        weight: integer(report, &name("weight"), keys.weight, default.weight, 1..=HOST_WEIGHT_MAX),
        max_connections: count(
            report,
            &name("max-connections"),
            keys.max_connections,
            2,
            default.max_connections,
        ),
        max_queues: count(report, &name("max-queues"), keys.max_queues, 1, default.max_queues),
    }
}

/// Validates a number of connections; 0 means no limit.
fn count(
    report: &mut Report<'_>,
    name: &str,
    key: &Key<i64>,
    least: u32,
    default: Option<u32>,
) -> Option<u32> {
    let Some(value) = key else { return default };
    match u32::try_from(*value.get_ref()) {
        Ok(0) => None,
        Ok(count) if (least..=CONNECTIONS_MAX).contains(&count) => Some(count),
        _ => {
            let what = format!("{} is out of range", value.get_ref());
            let why =
                if least > 1 { " (a host needs one for a controller, one for I/O)" } else { "" };
            let allowed =
                format!("allowed: {least} to {CONNECTIONS_MAX}{why}, or 0 for any number");
            report.error(&value.span(), name, what, allowed);
            None
        }
    }
}

fn in_flight(
    report: &mut Report<'_>,
    name: &str,
    value: &Spanned<Size>,
    bounds: &TenantBounds,
) -> Option<u64> {
    let bytes = size(report, name, value)?;
    if bytes == 0 {
        return None;
    }
    if !bounds.in_flight.contains(&bytes) {
        let what = format!("{} is out of range", show_size(bytes));
        let allowed = format!(
            "allowed: {} (twice max-transfer) to {} (buffer-memory), or 0 for no bound",
            show_size(*bounds.in_flight.start()),
            show_size(*bounds.in_flight.end())
        );
        report.error(&value.span(), name, what, allowed);
    }
    Some(bytes)
}

/// Validates the rate limits of a tenant, without the limit on bytes in flight.
pub(super) fn limit(
    report: &mut Report<'_>,
    name: &str,
    value: &Spanned<RawLimit>,
    bounds: &TenantBounds,
) -> TenantLimits {
    let RawLimit { iops, bandwidth, burst } = value.get_ref();
    if let (Some(burst), None, None) = (burst, iops, bandwidth) {
        let what = "no rate is set for the burst";
        let allowed = "add iops = 10000 or bandwidth = \"10Gb/s\", or omit the key";
        report.error(&burst.span(), &format!("{name}.burst"), what, allowed);
    }
    let range = bounds.iops.clone();
    let iops = iops.as_ref().map(|_| integer(report, &format!("{name}.iops"), iops, 1, range));
    let bandwidth = bandwidth
        .as_ref()
        .and_then(|value| bandwidth_of(report, &format!("{name}.bandwidth"), value, bounds));
    let burst = burst
        .as_ref()
        .and_then(|value| burst_of(report, &format!("{name}.burst"), value, bounds))
        .unwrap_or(defaults::BURST);
    TenantLimits { iops, bandwidth, burst, in_flight: None }
}

fn bandwidth_of(
    report: &mut Report<'_>,
    name: &str,
    value: &Spanned<String>,
    bounds: &TenantBounds,
) -> Option<u64> {
    match parse_rate(value.get_ref()) {
        Ok(rate) if bounds.bandwidth.contains(&rate) => return Some(rate),
        Ok(rate) => {
            let what = format!("{} is out of range", show_rate(rate));
            let allowed = format!(
                "allowed: {} (the largest command in a second) to {}; omit the key for no limit",
                show_rate(*bounds.bandwidth.start()),
                show_rate(*bounds.bandwidth.end())
            );
            report.error(&value.span(), name, what, allowed);
        }
        Err(what) => report.error(&value.span(), name, what, RATE_FORM),
    }
    None
}

fn burst_of(
    report: &mut Report<'_>,
    name: &str,
    value: &Spanned<String>,
    bounds: &TenantBounds,
) -> Option<u64> {
    match parse_period(value.get_ref()) {
        Ok(burst) if bounds.burst.contains(&burst) => return Some(burst),
        Ok(burst) => {
            let what = format!("{} is out of range", show_period(burst));
            let (least, most) = (*bounds.burst.start(), *bounds.burst.end());
            let allowed = format!("allowed: {} to {}", show_period(least), show_period(most));
            report.error(&value.span(), name, what, allowed);
        }
        Err(what) => report.error(&value.span(), name, what, PERIOD_FORM),
    }
    None
}
