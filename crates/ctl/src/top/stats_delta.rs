//! Difference between two samples: rates, times, and the current state of the later sample.

use nvmeof_api::{
    FlowSnapshot, LatencyHistogram, LiveStats, OpStats, PacerSnapshot, TenantSnapshot,
};
use serde::Serialize;

use super::figures::to_float;

/// Difference between two samples.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct StatsDelta {
    /// Seconds between the samples.
    pub(crate) seconds: f64,
    /// State of the pacer.
    pub(crate) pacer: PacerSnapshot,
    /// Deferred commands per second.
    pub(crate) deferred_per_second: f64,
    pub(crate) read: CommandRates,
    pub(crate) write: CommandRates,
    pub(crate) other: CommandRates,
    /// Wire delay: from a read's data being complete in memory to its having been sent.
    pub(crate) wire_delay: LatencySummary,
    /// Failed commands per second.
    pub(crate) errors_per_second: f64,
    pub(crate) reactors: Vec<ReactorRow>,
    pub(crate) flows: Vec<FlowRow>,
    pub(crate) flows_omitted: u64,
    pub(crate) tenants: Vec<TenantRow>,
    pub(crate) tenants_omitted: u64,
}

/// Commands of one kind.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub(crate) struct CommandRates {
    pub(crate) ops_per_second: f64,
    pub(crate) bytes_per_second: f64,
    pub(crate) latency: LatencySummary,
}

/// Times in nanoseconds; `None` without measurements.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub(crate) struct LatencySummary {
    pub(crate) mean_ns: Option<u64>,
    pub(crate) p50_ns: Option<u64>,
    pub(crate) p99_ns: Option<u64>,
    pub(crate) p99_9_ns: Option<u64>,
}

/// A reactor.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub(crate) struct ReactorRow {
    /// Fraction of turns with work.
    pub(crate) busy: f64,
    pub(crate) ops_per_second: f64,
    pub(crate) in_flight_bytes: u64,
    pub(crate) waiting: u64,
}

/// Commands of one host for one namespace.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct FlowRow {
    pub(crate) subsystem: String,
    pub(crate) nsid: Option<u32>,
    pub(crate) host: String,
    pub(crate) device: String,
    pub(crate) ops_per_second: f64,
    pub(crate) read_bytes_per_second: f64,
    pub(crate) write_bytes_per_second: f64,
    pub(crate) in_flight: u64,
    pub(crate) in_flight_bytes: u64,
    pub(crate) waiting: u64,
    /// Errors since the daemon's start.
    pub(crate) errors: u64,
}

/// A host or a namespace with limits.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct TenantRow {
    /// Limits and usage, in the later sample.
    #[serde(flatten)]
    pub(crate) now: TenantSnapshot,
    pub(crate) ops_per_second: f64,
    pub(crate) bytes_per_second: f64,
    /// Commands per second that its limits throttled.
    pub(crate) throttled_per_second: f64,
}

impl StatsDelta {
    pub(crate) fn between(before: &LiveStats, now: &LiveStats) -> Self {
        let seconds = to_float(now.at_ns.saturating_sub(before.at_ns)) / 1e9;
        let over = |now: u64, before: u64| per_second(now, before, seconds);
        let rate = |op: &str| {
            let find = |live: &LiveStats| live.work.iter().find(|work| work.op == op).cloned();
            CommandRates::between(
                &find(before).unwrap_or_default(),
                &find(now).unwrap_or_default(),
                seconds,
            )
        };
        let reactors = now.reactors.iter().enumerate().map(|(index, now)| {
            let before = before.reactors.get(index).unwrap_or(now);
            let turns = now.turns.saturating_sub(before.turns).max(1);
            let busy = now.busy_turns.saturating_sub(before.busy_turns);
            ReactorRow {
                busy: to_float(busy) / to_float(turns),
                ops_per_second: over(now.started, before.started),
                in_flight_bytes: now.in_flight_bytes,
                waiting: now.waiting,
            }
        });
        Self {
            seconds,
            deferred_per_second: over(now.pacer.deferred, before.pacer.deferred),
            pacer: now.pacer.clone(),
            read: rate("read"),
            write: rate("write"),
            other: rate("other"),
            wire_delay: LatencySummary::of(&now.wire_delay.since(&before.wire_delay)),
            errors_per_second: over(now.errors, before.errors),
            reactors: reactors.collect(),
            flows: now.flows.iter().map(|flow| FlowRow::between(before, flow, seconds)).collect(),
            flows_omitted: now.flows_omitted,
            tenants: now
                .tenants
                .iter()
                .map(|one| TenantRow::between(before, one, seconds))
                .collect(),
            tenants_omitted: now.tenants_omitted,
        }
    }
}

impl CommandRates {
    fn between(before: &OpStats, now: &OpStats, seconds: f64) -> Self {
        Self {
            ops_per_second: per_second(now.ops, before.ops, seconds),
            bytes_per_second: per_second(now.bytes, before.bytes, seconds),
            latency: LatencySummary::of(&now.times.since(&before.times)),
        }
    }
}

impl LatencySummary {
    fn of(times: &LatencyHistogram) -> Self {
        Self {
            mean_ns: times.mean(),
            p50_ns: times.quantile(500),
            p99_ns: times.quantile(990),
            p99_9_ns: times.quantile(999),
        }
    }
}

impl FlowRow {
    fn between(before: &LiveStats, now: &FlowSnapshot, seconds: f64) -> Self {
        let same = |one: &&FlowSnapshot| {
            (&one.subsystem, one.nsid, &one.host, &one.device)
                == (&now.subsystem, now.nsid, &now.host, &now.device)
        };
        let before = before.flows.iter().find(same).unwrap_or(now);
        let ops = |flow: &FlowSnapshot| flow.reads + flow.writes + flow.others;
        let over = |now: u64, before: u64| per_second(now, before, seconds);
        Self {
            subsystem: now.subsystem.clone(),
            nsid: now.nsid,
            host: now.host.clone(),
            device: now.device.clone(),
            ops_per_second: over(ops(now), ops(before)),
            read_bytes_per_second: over(now.read_bytes, before.read_bytes),
            write_bytes_per_second: over(now.write_bytes, before.write_bytes),
            in_flight: now.in_flight,
            in_flight_bytes: now.in_flight_bytes,
            waiting: now.waiting,
            errors: now.errors,
        }
    }

    pub(crate) fn bytes_per_second(&self) -> f64 {
        self.read_bytes_per_second + self.write_bytes_per_second
    }
}

impl TenantRow {
    fn between(before: &LiveStats, now: &TenantSnapshot, seconds: f64) -> Self {
        let same = |one: &&TenantSnapshot| {
            (&one.host, &one.subsystem, one.nsid) == (&now.host, &now.subsystem, now.nsid)
        };
        let before = before.tenants.iter().find(same).unwrap_or(now);
        let over = |now: u64, before: u64| per_second(now, before, seconds);
        Self {
            ops_per_second: over(now.ops, before.ops),
            bytes_per_second: over(now.bytes, before.bytes),
            throttled_per_second: over(now.throttled(), before.throttled()),
            now: now.clone(),
        }
    }

    /// Returns the NQN of a host, or the subsystem's NQN and the NSID of a namespace.
    pub(crate) fn name(&self) -> String {
        match self.now.nsid {
            Some(nsid) => format!("{}/{nsid}", self.now.subsystem),
            None => self.now.host.clone(),
        }
    }
}

fn per_second(now: u64, before: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { to_float(now.saturating_sub(before)) / seconds } else { 0.0 }
}
