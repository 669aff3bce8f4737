//! A sample for displays: `live` of `/v1/stats`.

use std::collections::BTreeMap;

use nvmeof_api::{
    Bucket, FlowSnapshot, LatencyHistogram, LiveStats, OpStats, PacerSnapshot, ReactorSnapshot,
};

use super::limited_tenants::limited;
use super::{FlowName, Labels, Sample, done, state_words, total};
use crate::reactor::stats::{Class, CommandCounters, Histogram, Report};

/// Maximum number of flows; `work` includes the flows that are omitted.
const FLOWS_MAX: usize = 200;
/// Maximum number of tenants.
const TENANTS_MAX: usize = 200;

/// Returns the current state.
pub(crate) fn live(sample: &Sample, labels: &Labels) -> LiveStats {
    let all = total(&sample.reactors);
    let (flows, mut counters) = flows(sample, labels);
    counters.add(&all.closed);
    let tenants = limited(sample, labels);
    let beyond =
        |all: usize, most: usize| u64::try_from(all.saturating_sub(most)).unwrap_or(u64::MAX);
    LiveStats {
        at_ns: all.at,
        pacer: pacer(sample, &all),
        work: work(&all, &counters),
        wire_delay: times([&*all.counters.wire]),
        errors: counters.errors.iter().sum(),
        reactors: sample.reactors.iter().map(reactor).collect(),
        flows_omitted: beyond(flows.len(), FLOWS_MAX),
        flows: flows.into_iter().take(FLOWS_MAX).collect(),
        tenants_omitted: beyond(tenants.len(), TENANTS_MAX),
        tenants: tenants.into_iter().take(TENANTS_MAX).collect(),
    }
}

fn pacer(sample: &Sample, all: &Report) -> PacerSnapshot {
    let (pacing, counts) = (&sample.pacing, &all.pacer);
    PacerSnapshot {
        policy: sample.policy.to_owned(),
        budget_bytes: pacing.budget,
        period_ns: pacing.period,
        state: pacing.adaptive.map(|status| state_words(&status, crate::clock::now())),
        in_flight: counts.outstanding(),
        in_flight_bytes: counts.bytes_in_flight,
        waiting: counts.waiting(),
        started: counts.started,
        deferred: counts.deferred,
    }
}

fn work(all: &Report, counters: &CommandCounters) -> Vec<OpStats> {
    let one = |class: Class| {
        let latencies = all.counters.ports.iter().map(|port| port.latencies.of(class));
        let times = times(latencies);
        let bytes = counters.bytes[class as usize];
        OpStats { op: class.name().to_owned(), ops: times.count, bytes, times }
    };
    Class::ALL.map(one).into()
}

/// Merges several histograms.
fn times<'a>(histograms: impl IntoIterator<Item = &'a Histogram>) -> LatencyHistogram {
    let mut sum = Histogram::default();
    histograms.into_iter().for_each(|one| sum.add(one));
    let buckets = sum.buckets().map(|(end_ns, count)| Bucket { end_ns, count });
    LatencyHistogram {
        count: sum.count(),
        sum_ns: sum.sum(),
        buckets: buckets.filter(|bucket| bucket.count > 0).collect(),
    }
}

fn reactor(report: &Report) -> ReactorSnapshot {
    ReactorSnapshot {
        turns: report.counters.turns,
        busy_turns: report.counters.busy_turns,
        started: report.pacer.started,
        in_flight_bytes: report.pacer.bytes_in_flight,
        waiting: report.pacer.waiting(),
    }
}

/// Returns the work of hosts on namespaces, busiest first, and its sum.
fn flows(sample: &Sample, labels: &Labels) -> (Vec<FlowSnapshot>, CommandCounters) {
    let mut named = BTreeMap::<FlowName, FlowSnapshot>::new();
    let mut sum = CommandCounters::default();
    for (whose, counters) in done(&sample.reactors) {
        sum.add(&counters);
        // Admin commands belong to no flow.
        if whose.device.is_none() && whose.names.is_some() {
            continue;
        }
        let flow = named.entry(FlowName::known(&whose, labels)).or_default();
        let [reads, writes, others] = counters.ops;
        flow.reads += reads;
        flow.writes += writes;
        flow.others += others;
        flow.read_bytes += counters.bytes[Class::Read as usize];
        flow.write_bytes += counters.bytes[Class::Write as usize];
        flow.errors += counters.errors.iter().sum::<u64>();
    }
    for flow in sample.reactors.iter().flat_map(|report| &report.flows) {
        // Flows of a host that did not fit are added to the unnamed flow.
        let name = FlowName::of(flow, labels);
        let name = if named.contains_key(&name) { name } else { FlowName::default() };
        let into = named.entry(name).or_default();
        into.in_flight += u64::from(flow.figures.in_flight);
        into.in_flight_bytes += flow.figures.bytes_in_flight;
        into.waiting += u64::from(flow.figures.waiting);
    }
    let mut flows: Vec<_> = named
        .into_iter()
        .map(|(FlowName { subsystem, nsid, host, device }, flow)| FlowSnapshot {
            subsystem,
            nsid,
            host,
            device,
            ..flow
        })
        .collect();
    let busy = |flow: &FlowSnapshot| {
        let now = flow.in_flight + flow.waiting;
        std::cmp::Reverse((now, flow.read_bytes + flow.write_bytes))
    };
    flows.sort_by_key(busy);
    (flows, sum)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use nvmeof_nvmf::{DeviceId, PortId};
    use nvmeof_pacing::FlowStats;
    use nvmeof_wire::{Nqn, Status};

    use super::*;
    use crate::control::stats::TenantFigures;
    use crate::reactor::stats::{CounterKey, Flow, Port};

    fn whose(host: &str, device: u32) -> CounterKey {
        let nqn = |name: &str| Nqn::new(name).unwrap();
        CounterKey { names: Some((nqn("subsystem"), nqn(host))), device: Some(device) }
    }

    #[test]
    fn reactors_are_added_up_by_host_and_namespace() {
        let mut labels = Labels::default();
        labels.add_device(DeviceId(3), "disk", Some(("subsystem", 9)));
        let mut counters = CommandCounters::default();
        counters.count(Class::Read, 4096, Status::SUCCESS);
        counters.count(Class::Write, 512, Status::WRITE_FAULT);
        let mut report = Report { at: 5, ..Report::default() };
        report.command_counters = vec![(whose("a", 3), counters)];
        report.past = Arc::new([(whose("a", 3), counters), (whose("b", 3), counters)].into());
        // Completed work that no longer belongs to a flow.
        report.closed = counters;
        let mut port = Port::new(PortId(1));
        port.latencies.record(Class::Read, 10_000);
        report.counters.ports = vec![port];
        report.counters.wire.record(2000);
        // This flow has completed nothing yet.
        let figures = FlowStats { waiting: 7, ..FlowStats::default() };
        report.flows = vec![Flow { queue: None, device: DeviceId(3), figures, ended: false }];
        let sample =
            Sample { reactors: vec![report.clone(), report], policy: "none", ..Sample::default() };
        let live = live(&sample, &labels);
        let flows: Vec<_> = live
            .flows
            .iter()
            .map(|one| (one.host.as_str(), one.nsid, one.waiting, one.reads, one.read_bytes))
            .collect();
        let expected =
            [("", None, 14, 0, 0), ("a", Some(9), 0, 4, 16384), ("b", Some(9), 0, 2, 8192)];
        assert_eq!(flows, expected);
        assert_eq!((live.errors, live.work[0].bytes, live.work[0].ops), (8, 8 * 4096, 2));
        assert_eq!(live.work[0].times.quantile(500), Some(10240));
        assert_eq!((live.wire_delay.count, live.reactors.len()), (2, 2));
        assert!(live.tenants.is_empty(), "nobody has limits");
    }

    #[test]
    fn tenants_have_what_was_done_for_them_over_all_their_flows() {
        let mut labels = Labels::default();
        labels.add_device(DeviceId(3), "disk", Some(("subsystem", 9)));
        labels.add_device(DeviceId(4), "other", Some(("subsystem", 8)));
        let mut counters = CommandCounters::default();
        counters.count(Class::Read, 4096, Status::SUCCESS);
        let admin = CounterKey { device: None, ..whose("a", 3) };
        let mut report = Report { at: 5, ..Report::default() };
        report.command_counters =
            vec![(whose("a", 3), counters), (whose("a", 4), counters), (admin, counters)];
        report.past = Arc::new([(whose("b", 3), counters)].into());
        let figures = FlowStats { waiting: 7, ..FlowStats::default() };
        report.flows = vec![Flow { queue: None, device: DeviceId(3), figures, ended: false }];
        let tenants = vec![
            TenantFigures::of_host("a"),
            TenantFigures::of_namespace("subsystem", 9),
            TenantFigures::of_host("never-here"),
        ];
        let sample = Sample { reactors: vec![report], tenants, ..Sample::default() };
        let told: Vec<_> = live(&sample, &labels)
            .tenants
            .into_iter()
            .map(|one| (one.host, one.nsid, one.ops, one.bytes, one.max_iops, one.refused))
            .collect();
        let expected = [
            ("a".to_owned(), None, 2, 8192, Some(1000), 1),
            ("never-here".to_owned(), None, 0, 0, Some(1000), 1),
            (String::new(), Some(9), 2, 8192, Some(50), 0),
        ];
        assert_eq!(told, expected);
    }
}
