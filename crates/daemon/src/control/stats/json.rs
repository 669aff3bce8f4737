//! A sample as JSON lines.
//!
//! The format is versioned: under one number of [`SCHEMA`] a key never changes its meaning, but new
//! keys may be added.

use std::collections::BTreeMap;

use nvmeof_pacing::{FlowStats, PolicyStatus};
use serde_json::{Value, json};

use super::{FlowName, Interval, Labels, Sample, TenantFigures, mean, state_name, total};
use crate::logs;
use crate::reactor::stats::{
    Class, CommandCounters, CounterKey, ErrorClass, Flow, Latencies, RdmaDevice, Report,
    StageCounts,
};

/// Version of the format.
pub(in crate::control) const SCHEMA: u32 = 3;

/// Returns the lines of a sample: one per reactor, and a total.
///
/// `seconds` is the time since recording began.
pub(in crate::control) fn sample(
    seconds: f64,
    now: &Sample,
    before: Option<&Sample>,
    labels: &Labels,
) -> Vec<Value> {
    let mut lines = Vec::with_capacity(now.reactors.len() + 1);
    for (index, report) in now.reactors.iter().enumerate() {
        let before = before.and_then(|before| before.reactors.get(index));
        let mut line = figures(Interval { now: report, before }, labels);
        line["kind"] = json!("reactor");
        line["t"] = json!(seconds);
        line["reactor"] = json!(index);
        line["pacer"]["in_flight_mean_ns"] = json!(mean_time_in_flight(&report.flows));
        line["flows"] = report.flows.iter().map(|flow| flow_line(flow, labels)).collect();
        lines.push(line);
    }
    lines.push(total_line("total", seconds, now, before, labels));
    lines
}

/// Returns the total of all reactors, with the policy.
pub(super) fn total_line(
    kind: &str,
    seconds: f64,
    now: &Sample,
    before: Option<&Sample>,
    labels: &Labels,
) -> Value {
    let (sum, before) = (total(&now.reactors), before.map(|before| total(&before.reactors)));
    let mut line = figures(Interval { now: &sum, before: before.as_ref() }, labels);
    line["kind"] = json!(kind);
    line["t"] = json!(seconds);
    line["policy"] = policy(now.policy, &now.pacing);
    line["log_lines_dropped"] = json!(logs::dropped());
    line["tenants"] = now.tenants.iter().map(TenantFigures::json).collect();
    line
}

/// Returns the figures of flows that are identified only by name.
pub(super) fn named_flows(flows: &BTreeMap<FlowName, FlowStats>) -> Value {
    flows.iter().map(|(name, figures)| named(name, figures)).collect()
}

fn policy(name: &str, snapshot: &PolicyStatus) -> Value {
    json!({
        "name": name,
        "budget_bytes": snapshot.budget,
        "period_ns": snapshot.period,
        "state": snapshot.adaptive.map(|status| state_name(status.state)),
        "trials": snapshot.adaptive.map(|status| status.trials),
        "last_gain_permille": snapshot.adaptive.map(|status| status.last_gain_permille),
        "charges_slow_devices": snapshot.adaptive.map(|status| status.charges_slow_devices),
    })
}

fn figures(interval: Interval<'_>, labels: &Labels) -> Value {
    let Report { counters, pacer, stages: [received, admitted, sent], .. } = interval.now;
    json!({
        "turns": counters.turns,
        "busy_turns": counters.busy_turns,
        "pacer": {
            "calls": counters.pacer_calls,
            "enqueued": pacer.enqueued,
            "started": pacer.started,
            "started_without_data": pacer.started_without_data,
            "started_small": pacer.started_small,
            "released": pacer.released,
            "cancelled": pacer.cancelled,
            "too_large": pacer.too_large,
            "deferred": pacer.deferred,
            "in_flight": pacer.outstanding(),
            "bytes_in_flight": pacer.bytes_in_flight,
            "waiting": pacer.waiting(),
        },
        "interval": {
            "ns": interval.nanos(),
            "turns": interval.turns(),
            "turn_period_ns": interval.turn_period(),
            "ios": interval.started(),
            "io_period_ns": interval.io_period(),
        },
        "states": {
            "received": states(received),
            "admitted": states(admitted),
            "sent": states(sent),
        },
        "listeners": listeners(interval, labels),
        "devices": devices(interval, labels),
        "rdma_devices": rdma_devices(&counters.sources),
        "interval_wire_delay": wire_delay(interval),
    })
}

/// Returns the mean time from start to end of the flows' completed commands with data.
fn mean_time_in_flight(flows: &[Flow]) -> Option<u64> {
    let sum = |of: fn(&FlowStats) -> u64| flows.iter().map(|flow| of(&flow.figures)).sum();
    mean(sum(|figures| figures.in_flight_ns), sum(|figures| figures.completed))
}

/// Returns the wire delay: the time from data complete in memory to data sent.
fn wire_delay(interval: Interval<'_>) -> Value {
    let wire = interval.wire_delay();
    json!({
        "reads": wire.count(),
        "mean_ns": mean(wire.sum(), wire.count()),
        "p50_ns": wire.quantile(500),
        "p99_ns": wire.quantile(990),
    })
}

fn states(stages: &StageCounts) -> Value {
    json!({
        "waiting": stages.waiting,
        "buffer_wait": stages.buffer_wait,
        "h2c_transfer": stages.h2c_transfer,
        "on_device": stages.on_device,
        "sending": stages.sending,
        "admin": stages.admin,
    })
}

/// Returns the times of commands, by class.
fn times(latencies: &Latencies) -> Value {
    let one = |class: Class| {
        let times = latencies.of(class);
        let [p50, p99, p99_9] = [500, 990, 999].map(|per_mille| times.quantile(per_mille));
        let figures =
            json!({"ios": times.count(), "p50_ns": p50, "p99_ns": p99, "p99_9_ns": p99_9});
        (class.name().to_owned(), figures)
    };
    Class::ALL.into_iter().map(one).collect::<serde_json::Map<_, _>>().into()
}

/// Returns the completed commands by host and device; all closed devices share one line.
pub(super) fn commands(
    done: &BTreeMap<CounterKey, CommandCounters>,
    closed: &CommandCounters,
    labels: &Labels,
) -> Value {
    let by = |names: &[&str], figures: &[u64]| -> Value {
        let pairs = names.iter().zip(figures).map(|(name, figure)| ((*name).into(), json!(figure)));
        pairs.collect::<serde_json::Map<_, _>>().into()
    };
    let one = |(name, counters): (FlowName, &CommandCounters)| {
        let FlowName { subsystem, nsid, host, device } = name;
        json!({
            "subsystem": subsystem,
            "nsid": nsid,
            "host": host,
            "device": device,
            "ops": by(&Class::ALL.map(Class::name), &counters.ops),
            "bytes": by(&Class::ALL.map(Class::name), &counters.bytes),
            "errors": by(&ErrorClass::ALL.map(ErrorClass::name), &counters.errors),
        })
    };
    let done = done.iter().map(|(whose, counters)| (FlowName::known(whose, labels), counters));
    let all_closed = FlowName { device: "closed".to_owned(), ..FlowName::default() };
    let closed = (!closed.is_empty()).then_some((all_closed, closed));
    done.chain(closed).map(one).collect()
}

fn listeners(interval: Interval<'_>, labels: &Labels) -> Value {
    let one = |port: &crate::reactor::stats::Port| {
        let (ios, latency) = interval.latency(port);
        json!({
            "listener": labels.port(port.id),
            "polls": port.polls,
            "requests": port.requests,
            "completions": port.completions,
            "completions_per_1000_polls": mean(port.completions.saturating_mul(1000), port.polls),
            "ios": port.ios,
            "latency_ns": mean(port.latency, port.ios),
            "interval_ios": ios,
            "interval_latency_ns": mean(latency, ios),
            "interval_latency_max_ns": port.latency_max,
            "interval_times": times(&interval.latencies_at(port)),
        })
    };
    interval.now.counters.ports.iter().map(one).collect()
}

fn devices(interval: Interval<'_>, labels: &Labels) -> Value {
    let one = |device: &crate::reactor::stats::DeviceStats| {
        let (reads, time) = interval.reads(device);
        json!({
            "device": labels.device(device.id).name,
            "reads": device.reads,
            "read_latency_ns": mean(device.read_time, device.reads),
            "interval_reads": reads,
            "interval_read_latency_ns": mean(time, reads),
            "zero_copy_reads": device.zero_copy_reads,
            "interval_times": times(&interval.latencies_of(device)),
        })
    };
    interval.now.counters.devices.iter().map(one).collect()
}

fn rdma_devices(sources: &[RdmaDevice]) -> Value {
    let one = |device: &RdmaDevice| {
        let counts = &device.counts;
        json!({
            "device": device.name,
            "polls": counts.polls,
            "busy_polls": counts.busy_polls,
            "completions": counts.completions,
            "requests": counts.requests,
            "quarantined_qps": counts.quarantined_qps,
            "completions_per_1000_polls": mean(counts.completions.saturating_mul(1000), counts.polls),
        })
    };
    sources.iter().map(one).collect()
}

fn flow_line(flow: &Flow, labels: &Labels) -> Value {
    let mut line = named(&FlowName::of(flow, labels), &flow.figures);
    line["cntlid"] = json!(flow.queue.as_ref().map(|queue| queue.cntlid));
    line["qid"] = json!(flow.queue.as_ref().map(|queue| queue.qid));
    line["ended"] = json!(flow.ended);
    line
}

fn named(name: &FlowName, figures: &FlowStats) -> Value {
    json!({
        "subsystem": name.subsystem,
        "nsid": name.nsid,
        "host": name.host,
        "device": name.device,
        "in_flight": figures.in_flight,
        "bytes_in_flight": figures.bytes_in_flight,
        "waiting": figures.waiting,
        "admitted": figures.admitted,
        "admitted_bytes": figures.admitted_bytes,
        "completed": figures.completed,
        "in_flight_mean_ns": mean(figures.in_flight_ns, figures.completed),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_time_in_flight_is_that_of_commands_and_not_of_flows() {
        let flow = |over, held| Flow {
            queue: None,
            device: nvmeof_nvmf::DeviceId(0),
            figures: FlowStats { completed: over, in_flight_ns: held, ..FlowStats::default() },
            ended: false,
        };
        assert_eq!(mean_time_in_flight(&[flow(3, 300), flow(1, 500), flow(0, 0)]), Some(200));
        assert_eq!(mean_time_in_flight(&[flow(0, 0)]), None);
    }
}
