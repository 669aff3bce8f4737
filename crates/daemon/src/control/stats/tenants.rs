//! What hosts and namespaces have of what they may have, and how often that was not enough.

use nvmeof_nvmf::{HostCounts, HostLimits, Target};
use nvmeof_pacing::{Tenant, TenantCounts, TenantLimits};
use serde_json::{Value, json};

use crate::tenants::Tenants;

/// One host, or one namespace.
#[derive(Debug, Clone)]
pub(crate) struct TenantFigures {
    name: Name,
    /// Nothing is limited where all are left out.
    limits: TenantLimits,
    counts: TenantCounts,
}

#[derive(Debug, Clone)]
enum Name {
    Host { nqn: String, has: HostCounts, may_have: HostLimits },
    Namespace { subsystem: String, nsid: u32 },
}

/// Hosts that are connected or named in the config, and namespaces that have limits.
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
    fn of(name: Name, tenant: Option<&Tenant>) -> Self {
        let limits = tenant.map(|tenant| *tenant.limits()).unwrap_or_default();
        Self { name, limits, counts: tenant.map(Tenant::counts).unwrap_or_default() }
    }

    /// As an object of a line.
    pub(super) fn json(&self) -> Value {
        let TenantLimits { iops, bandwidth, in_flight, .. } = self.limits;
        let counts = &self.counts;
        let mut line = json!({
            "iops": iops,
            "bandwidth_bytes": bandwidth,
            "held_by_rate": counts.held_by_rate,
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
                line["held_by_in_flight"] = json!(counts.held_by_in_flight);
                line["in_flight_wait_ns"] = json!(counts.in_flight_ns);
            }
        }
        line
    }

    /// As a line of the table.
    pub(super) fn line(&self) -> String {
        let TenantCounts { held_by_rate, rate_ns, held_by_in_flight, in_flight_ns, taken } =
            self.counts;
        let rates = format!("held by its rate {held_by_rate} times, {rate_ns} ns");
        match &self.name {
            Name::Namespace { subsystem, nsid } => {
                format!("stats namespace {subsystem} nsid {nsid}: {rates}\n")
            }
            Name::Host { nqn, has, .. } => format!(
                "stats host {nqn}: connections {}, I/O queues {}, refused {}, {rates}, by bytes in flight \
                 {held_by_in_flight} times, {in_flight_ns} ns, taken {taken} bytes\n",
                has.connections, has.io_queues, has.refused,
            ),
        }
    }
}
