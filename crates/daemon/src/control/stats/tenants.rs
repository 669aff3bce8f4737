//! Usage and limits of hosts and namespaces, and how often they reached their limits.

use nvmeof_api::TenantSnapshot;
use nvmeof_nvmf::{HostLimits, HostUsage, Target};
use nvmeof_pacing::{Tenant, TenantLimits, TenantStats};
use serde_json::{Value, json};

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

impl TenantFigures {
    /// Returns its figures, without those that come from the reactors.
    pub(super) fn now(&self) -> TenantSnapshot {
        let TenantLimits { iops, bandwidth, in_flight, .. } = self.limits;
        let TenantStats { throttled_by_rate, rate_ns, throttled_by_in_flight, in_flight_ns, taken } =
            self.counts;
        let mut now = TenantSnapshot {
            max_iops: iops,
            max_bandwidth_bytes: bandwidth,
            max_in_flight_bytes: in_flight,
            limited_in_flight_bytes: in_flight.map(|_| taken),
            throttled_by_rate,
            throttled_by_rate_ns: rate_ns,
            throttled_by_in_flight,
            throttled_by_in_flight_ns: in_flight_ns,
            ..TenantSnapshot::default()
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
            "throttled_by_rate": counts.throttled_by_rate,
            "throttled_by_rate_ns": counts.rate_ns,
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
                line["limited_in_flight_bytes"] = json!(in_flight.map(|_| counts.taken));
                line["throttled_by_in_flight"] = json!(counts.throttled_by_in_flight);
                line["throttled_by_in_flight_ns"] = json!(counts.in_flight_ns);
            }
        }
        line
    }

    /// Formats it as a line of the table.
    pub(super) fn line(&self) -> String {
        let TenantStats { throttled_by_rate, rate_ns, throttled_by_in_flight, in_flight_ns, taken } =
            self.counts;
        let rates = format!("throttled by its rate {throttled_by_rate} times, {rate_ns} ns");
        match &self.name {
            Name::Namespace { subsystem, nsid } => {
                format!("stats namespace {subsystem} nsid {nsid}: {rates}\n")
            }
            Name::Host { nqn, has, .. } => format!(
                "stats host {nqn}: connections {}, I/O queues {}, refused {}, {rates}, by bytes in flight \
                 {throttled_by_in_flight} times, {in_flight_ns} ns, {taken} bytes limited in flight\n",
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
