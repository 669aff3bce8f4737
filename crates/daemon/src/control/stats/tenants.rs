//! Usage and limits of hosts and namespaces, and how often they reached their limits.

use std::collections::BTreeMap;

use nvmeof_api::TenantNow;
use nvmeof_nvmf::{HostLimits, HostUsage, Target};
use nvmeof_pacing::{Tenant, TenantLimits, TenantStats};
use serde_json::{Value, json};

use super::{FlowName, Labels, Sample, done};
use crate::tenants::Tenants;

/// Figures of one host or one namespace.
#[derive(Debug, Clone)]
pub(crate) struct TenantFigures {
    name: Name,
    /// Limits; all are absent if nothing is limited.
    limits: TenantLimits,
    counts: TenantStats,
}

#[derive(Debug, Clone)]
enum Name {
    Host { nqn: String, has: HostUsage, may_have: HostLimits },
    Namespace { subsystem: String, nsid: u32 },
}

/// Returns hosts that are connected or named in the config, and namespaces that have limits.
pub(crate) fn tenants(target: &Target, tenants: &Tenants) -> Vec<TenantFigures> {
    let hosts = target.host_counts().into_iter().map(|(nqn, has, may_have)| {
        let tenant = tenants.host(&nqn);
        let name = Name::Host { nqn: nqn.to_string(), has, may_have };
        TenantFigures::of(name, tenant.as_deref())
    });
    let namespaces = tenants.namespaces().map(|(subsystem, nsid, tenant)| {
        let name = Name::Namespace { subsystem: subsystem.to_string(), nsid };
        TenantFigures::of(name, Some(tenant))
    });
    hosts.chain(namespaces).collect()
}

/// Returns tenants that have a limit, with their completed and waiting commands.
///
/// The tenants with the most waiting commands come first.
pub(super) fn limited(sample: &Sample, labels: &Labels) -> Vec<TenantNow> {
    let mut done_for = BTreeMap::<Key, (u64, u64)>::new();
    for (whose, tally) in done(&sample.reactors) {
        // Admin commands are never limited.
        for key in keys(&FlowName::known(&whose, labels)).filter(|_| whose.device.is_some()) {
            let (ops, bytes) = done_for.entry(key).or_default();
            *ops += tally.ops.iter().sum::<u64>();
            *bytes += tally.bytes.iter().sum::<u64>();
        }
    }
    let mut waiting = BTreeMap::<Key, u64>::new();
    for flow in sample.reactors.iter().flat_map(|report| &report.flows) {
        for key in keys(&FlowName::of(flow, labels)) {
            *waiting.entry(key).or_default() += u64::from(flow.figures.waiting);
        }
    }
    let tenants = sample.tenants.iter().map(TenantFigures::now).filter(TenantNow::is_limited);
    let mut all: Vec<_> = tenants
        .map(|tenant| {
            let key = (tenant.host.clone(), tenant.subsystem.clone(), tenant.nsid);
            let (ops, bytes) = done_for.get(&key).copied().unwrap_or_default();
            let waiting = waiting.get(&key).copied().unwrap_or_default();
            TenantNow { ops, bytes, waiting, ..tenant }
        })
        .collect();
    all.sort_by_key(|tenant| std::cmp::Reverse((tenant.waiting, tenant.held_back())));
    all
}

/// Host, subsystem and namespace number, as in [`TenantNow`].
type Key = (String, String, Option<u32>);

/// Returns the tenants to which a flow belongs.
fn keys(flow: &FlowName) -> impl Iterator<Item = Key> + use<> {
    let host = (!flow.host.is_empty()).then(|| (flow.host.clone(), String::new(), None));
    let namespace = flow.nsid.map(|nsid| (String::new(), flow.subsystem.clone(), Some(nsid)));
    host.into_iter().chain(namespace)
}

impl TenantFigures {
    /// Returns its figures, without those that come from the reactors.
    fn now(&self) -> TenantNow {
        let TenantLimits { iops, bandwidth, in_flight, .. } = self.limits;
        let TenantStats { throttled_by_rate, rate_ns, throttled_by_in_flight, in_flight_ns, taken } =
            self.counts;
        let mut now = TenantNow {
            max_iops: iops,
            max_bandwidth_bytes: bandwidth,
            max_in_flight_bytes: in_flight,
            taken_bytes: in_flight.map(|_| taken),
            held_by_rate: throttled_by_rate,
            rate_wait_ns: rate_ns,
            held_by_in_flight: throttled_by_in_flight,
            in_flight_wait_ns: in_flight_ns,
            ..TenantNow::default()
        };
        match &self.name {
            Name::Namespace { subsystem, nsid } => {
                (now.subsystem, now.nsid) = (subsystem.clone(), Some(*nsid));
            }
            Name::Host { nqn, has, may_have } => {
                now.host.clone_from(nqn);
                (now.max_connections, now.max_queues) = (may_have.connections, may_have.io_queues);
                (now.connections, now.io_queues) = (has.connections, has.io_queues);
                now.refused = has.refused;
            }
        }
        now
    }

    fn of(name: Name, tenant: Option<&Tenant>) -> Self {
        let limits = tenant.map(|tenant| *tenant.limits()).unwrap_or_default();
        Self { name, limits, counts: tenant.map(Tenant::counts).unwrap_or_default() }
    }

    /// Formats it as an object of a line.
    pub(super) fn json(&self) -> Value {
        let TenantLimits { iops, bandwidth, in_flight, .. } = self.limits;
        let counts = &self.counts;
        let mut line = json!({
            "iops": iops,
            "bandwidth_bytes": bandwidth,
            "held_by_rate": counts.throttled_by_rate,
            "rate_wait_ns": counts.rate_ns,
        });
        match &self.name {
            Name::Namespace { subsystem, nsid } => {
                line["subsystem"] = json!(subsystem);
                line["nsid"] = json!(nsid);
            }
            Name::Host { nqn, has, may_have } => {
                line["host"] = json!(nqn);
                line["connections"] = json!(has.connections);
                line["io_queues"] = json!(has.io_queues);
                line["refused"] = json!(has.refused);
                line["max_connections"] = json!(may_have.connections);
                line["max_queues"] = json!(may_have.io_queues);
                line["max_in_flight_bytes"] = json!(in_flight);
                line["taken_bytes"] = json!(in_flight.map(|_| counts.taken));
                line["held_by_in_flight"] = json!(counts.throttled_by_in_flight);
                line["in_flight_wait_ns"] = json!(counts.in_flight_ns);
            }
        }
        line
    }

    /// Formats it as a line of the table.
    pub(super) fn line(&self) -> String {
        let TenantStats { throttled_by_rate, rate_ns, throttled_by_in_flight, in_flight_ns, taken } =
            self.counts;
        let rates = format!("held by its rate {throttled_by_rate} times, {rate_ns} ns");
        match &self.name {
            Name::Namespace { subsystem, nsid } => {
                format!("stats namespace {subsystem} nsid {nsid}: {rates}\n")
            }
            Name::Host { nqn, has, .. } => format!(
                "stats host {nqn}: connections {}, I/O queues {}, refused {}, {rates}, by bytes in flight \
                 {throttled_by_in_flight} times, {in_flight_ns} ns, taken {taken} bytes\n",
                has.connections, has.io_queues, has.refused,
            ),
        }
    }
}

#[cfg(test)]
impl TenantFigures {
    /// Returns a host that has reached every limit.
    pub(super) fn of_host(nqn: &str) -> Self {
        let has = HostUsage { connections: 3, io_queues: 2, refused: 1 };
        let may_have = HostLimits { connections: Some(3), io_queues: Some(2) };
        Self {
            name: Name::Host { nqn: nqn.to_owned(), has, may_have },
            limits: TenantLimits {
                iops: Some(1000),
                bandwidth: Some(1 << 20),
                burst: 0,
                in_flight: Some(1 << 19),
            },
            counts: TenantStats {
                throttled_by_rate: 7,
                rate_ns: 500_000_000,
                throttled_by_in_flight: 5,
                in_flight_ns: 250_000_000,
                taken: 4096,
            },
        }
    }

    /// Returns a namespace with a rate limit.
    pub(super) fn of_namespace(subsystem: &str, nsid: u32) -> Self {
        Self {
            name: Name::Namespace { subsystem: subsystem.to_owned(), nsid },
            limits: TenantLimits { iops: Some(50), ..TenantLimits::default() },
            counts: TenantStats::default(),
        }
    }
}
