//! Statistics: samples of all reactors, with the names of hosts, devices and listeners.
//!
//! | module | contents |
//! |---|---|
//! | `device_totals` | I/O commands by device and by reactor |
//! | `json` | a sample as JSON lines |
//! | `live` | a sample for displays |
//! | `metrics` | a sample for Prometheus |
//! | `table` | a sample as a table for the log |
//! | `record` | samples to a file, at an interval |
//! | `tenants` | usage and limits of hosts and namespaces |
//! | `limited_tenants` | tenants that have limits, with what waits for them |

mod device_totals;
mod json;
mod limited_tenants;
mod live;
pub(super) mod metrics;
mod record;
mod table;
mod tenants;

use std::collections::BTreeMap;

use nvmeof_nvmf::{DeviceId, PortId};
use nvmeof_pacing::{AdaptiveState, AdaptiveStatus, FlowStats, PolicyStatus};

use crate::reactor::stats::{
    CommandCounters, CounterKey, DeviceStats, Flow, Histogram, Latencies, NAMES_MAX, Port, Report,
    StageCounts, add_counters, add_source,
};

pub(super) use device_totals::device_counters;
pub(crate) use device_totals::{DeviceCounters, DeviceTotals};
pub(super) use json::{SCHEMA, sample as lines};
pub(super) use live::live;
pub(crate) use record::{RecordOptions, Recorder};
pub(super) use table::table;
pub(super) use tenants::{TenantFigures, tenants};

/// Reports of all reactors, taken at about the same time.
#[derive(Debug, Clone, Default)]
pub(super) struct Sample {
    /// Name of the policy in force.
    pub(super) policy: &'static str,
    /// State of the policy.
    pub(super) pacing: PolicyStatus,
    /// One report per reactor, in order.
    pub(super) reactors: Vec<Report>,
    /// Connected hosts, and namespaces that have limits.
    pub(super) tenants: Vec<TenantFigures>,
}

impl Sample {
    /// Returns the sum of the pacers' counters.
    pub(super) fn paced(&self) -> nvmeof_pacing::PacerCounters {
        total(&self.reactors).pacer
    }
}

/// Names of devices and listeners.
#[derive(Debug, Clone, Default)]
pub(super) struct Labels {
    devices: BTreeMap<u32, DeviceLabel>,
    ports: BTreeMap<PortId, String>,
}

#[derive(Debug, Clone, Default)]
struct DeviceLabel {
    name: String,
    subsystem: String,
    nsid: Option<u32>,
}

impl Labels {
    /// Adds a device with the subsystem and number of the namespace that it backs, if there is one.
    pub(super) fn add_device(&mut self, id: DeviceId, name: &str, before: Option<(&str, u32)>) {
        let label = DeviceLabel {
            name: name.to_owned(),
            subsystem: before.map_or_else(String::new, |(subsystem, _)| subsystem.to_owned()),
            nsid: before.map(|(_, nsid)| nsid),
        };
        self.devices.insert(id.0, label);
    }

    /// Adds a listener.
    pub(super) fn add_port(&mut self, id: PortId, url: String) {
        self.ports.insert(id, url);
    }

    /// Returns the name of a device.
    pub(super) fn device_name(&self, id: DeviceId) -> String {
        self.device(id).name
    }

    /// Returns the name of a device that the config has.
    fn known_device(&self, id: DeviceId) -> Option<&str> {
        self.devices.get(&id.0).map(|label| label.name.as_str())
    }

    fn device(&self, id: DeviceId) -> DeviceLabel {
        let closed = || DeviceLabel { name: format!("closed-{}", id.0), ..DeviceLabel::default() };
        self.devices.get(&id.0).cloned().unwrap_or_else(closed)
    }

    fn port(&self, id: PortId) -> String {
        self.ports.get(&id).cloned().unwrap_or_else(|| format!("closed-{}", id.0))
    }
}

/// Name of a flow. Flows with the same name on different connections are reported as one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
struct FlowName {
    subsystem: String,
    nsid: Option<u32>,
    host: String,
    device: String,
}

impl FlowName {
    fn of(flow: &Flow, labels: &Labels) -> Self {
        Self::known(&CounterKey::of(flow.queue.as_ref(), Some(flow.device)), labels)
    }

    fn known(whose: &CounterKey, labels: &Labels) -> Self {
        let device = whose.device.map(|id| labels.device(DeviceId(id)));
        let DeviceLabel { name, nsid, .. } = device.unwrap_or_default();
        let names = whose.names.as_ref();
        let (subsystem, host) = names.map_or_else(Default::default, |(subsystem, host)| {
            (subsystem.to_string(), host.to_string())
        });
        Self { subsystem, nsid, host, device: name }
    }
}

/// Adds up the counters of all reactors, by subsystem, host and device.
fn done(reports: &[Report]) -> BTreeMap<CounterKey, CommandCounters> {
    let mut sum = BTreeMap::new();
    for report in reports {
        let past = report.past.iter();
        let live = report.command_counters.iter().map(|(whose, counters)| (whose, counters));
        past.chain(live)
            .for_each(|(whose, counters)| add_counters(&mut sum, whose.clone(), counters));
    }
    sum
}

/// Adds the figures of one flow to a sum.
fn add_figures(sum: &mut FlowStats, more: &FlowStats) {
    sum.waiting += more.waiting;
    sum.in_flight += more.in_flight;
    sum.bytes_in_flight += more.bytes_in_flight;
    sum.admitted += more.admitted;
    sum.admitted_bytes += more.admitted_bytes;
    sum.completed += more.completed;
    sum.in_flight_ns += more.in_flight_ns;
}

/// Adds the figures of a flow to those with its name.
///
/// If there are too many names, they go to the empty name.
fn add_named(flows: &mut BTreeMap<FlowName, FlowStats>, name: FlowName, figures: &FlowStats) {
    let full = flows.len() >= NAMES_MAX && !flows.contains_key(&name);
    let name = if full { FlowName::default() } else { name };
    add_figures(flows.entry(name).or_default(), figures);
}

/// Adds up the reports of all reactors; flows, listeners and devices stay separate.
fn total(reports: &[Report]) -> Report {
    let mut sum = Report::default();
    for report in reports {
        sum.at = sum.at.max(report.at);
        let (into, from) = (&mut sum.counters, &report.counters);
        into.turns += from.turns;
        into.busy_turns += from.busy_turns;
        into.pacer_calls += from.pacer_calls;
        from.ports.iter().for_each(|port| add_port(&mut into.ports, port));
        from.devices.iter().for_each(|device| add_device(&mut into.devices, device));
        from.sources.iter().for_each(|one| add_source(&mut into.sources, &one.name, &one.counts));
        into.wire.add(&from.wire);
        add_counts(&mut sum.pacer, &report.pacer);
        for (into, from) in sum.stages.iter_mut().zip(&report.stages) {
            add_stages(into, from);
        }
        sum.flows.extend(report.flows.iter().cloned());
        sum.closed.add(&report.closed);
    }
    sum
}

fn add_counts(into: &mut nvmeof_pacing::PacerCounters, from: &nvmeof_pacing::PacerCounters) {
    into.enqueued += from.enqueued;
    into.too_large += from.too_large;
    into.cancelled += from.cancelled;
    into.started += from.started;
    into.started_without_data += from.started_without_data;
    into.started_small += from.started_small;
    into.released += from.released;
    into.released_without_data += from.released_without_data;
    into.bytes_in_flight += from.bytes_in_flight;
    into.deferred += from.deferred;
}

fn add_stages(into: &mut StageCounts, from: &StageCounts) {
    into.waiting += from.waiting;
    into.buffer_wait += from.buffer_wait;
    into.h2c_transfer += from.h2c_transfer;
    into.on_device += from.on_device;
    into.sending += from.sending;
    into.admin += from.admin;
}

fn add_port(ports: &mut Vec<Port>, from: &Port) {
    match ports.iter_mut().find(|port| port.id == from.id) {
        None => ports.push(from.clone()),
        Some(into) => {
            into.polls += from.polls;
            into.requests += from.requests;
            into.completions += from.completions;
            into.ios += from.ios;
            into.latency += from.latency;
            into.latency_max = into.latency_max.max(from.latency_max);
            into.latencies.add(&from.latencies);
        }
    }
}

fn add_device(devices: &mut Vec<DeviceStats>, from: &DeviceStats) {
    match devices.iter_mut().find(|device| device.id == from.id) {
        None => devices.push(from.clone()),
        Some(into) => {
            into.reads += from.reads;
            into.read_time += from.read_time;
            into.zero_copy_reads += from.zero_copy_reads;
            into.latencies.add(&from.latencies);
        }
    }
}

/// Returns the name of what the adaptive policy does.
fn state_name(state: AdaptiveState) -> &'static str {
    match state {
        AdaptiveState::Open => "open",
        AdaptiveState::Trial => "trial",
        AdaptiveState::Held => "held",
        AdaptiveState::ShortQueue => "short-queue",
    }
}

/// Says in a few words what the adaptive policy does, and why.
pub(super) fn state_words(status: &AdaptiveStatus, now: u64) -> String {
    let gain = format!("{:+.1} %", f64::from(status.last_gain_permille) / 10.0);
    match (status.state, status.last_trial) {
        (AdaptiveState::Open, None) => "open: no overshoot seen, no trial yet".to_owned(),
        (AdaptiveState::Open, Some(at)) => {
            let seconds = now.saturating_sub(at) / 1_000_000_000;
            format!("open: no overshoot seen, last trial {seconds} s ago, {gain}")
        }
        (AdaptiveState::Trial, _) => "trial: measures the rate with less in flight".to_owned(),
        (AdaptiveState::ShortQueue, _) => {
            "short queue: for weights, or for small commands beside large ones".to_owned()
        }
        (AdaptiveState::Held, _) if status.charges_slow_devices => {
            format!("held: less in flight gained {gain}, slow devices hold data")
        }
        (AdaptiveState::Held, _) => format!("held: less in flight gained {gain}"),
    }
}

/// Returns `sum` divided by `count`, rounded down; `None` if `count` is 0.
fn mean(sum: u64, count: u64) -> Option<u64> {
    sum.checked_div(count)
}

/// Changes on one reactor (or on all) since an earlier report.
#[derive(Debug, Clone, Copy)]
struct Interval<'a> {
    now: &'a Report,
    before: Option<&'a Report>,
}

impl Interval<'_> {
    /// Returns its length in nanoseconds; 0 for the first report, which has no predecessor.
    fn nanos(&self) -> u64 {
        self.before.map_or(0, |before| self.now.at.saturating_sub(before.at))
    }

    fn turns(&self) -> u64 {
        let before = self.before.map_or(0, |before| before.counters.turns);
        self.now.counters.turns.saturating_sub(before)
    }

    fn started(&self) -> u64 {
        let before = self.before.map_or(0, |before| before.pacer.started);
        self.now.pacer.started.saturating_sub(before)
    }

    /// Returns the mean nanoseconds from one turn to the next.
    fn turn_period(&self) -> Option<u64> {
        mean(self.nanos(), self.turns()).filter(|nanos| *nanos > 0)
    }

    /// Returns the mean nanoseconds from one start of a command to the next.
    fn io_period(&self) -> Option<u64> {
        mean(self.nanos(), self.started()).filter(|nanos| *nanos > 0)
    }

    /// Returns the I/O commands that ended at this listener, and their total nanoseconds.
    fn latency(&self, port: &Port) -> (u64, u64) {
        let before = self.before.into_iter().flat_map(|before| &before.counters.ports);
        let before = before.into_iter().find(|before| before.id == port.id);
        let (ios, latency) = before.map_or((0, 0), |before| (before.ios, before.latency));
        (port.ios.saturating_sub(ios), port.latency.saturating_sub(latency))
    }

    /// Returns the times of commands that ended at this listener.
    fn latencies_at(&self, port: &Port) -> Latencies {
        let before = self.before.into_iter().flat_map(|before| &before.counters.ports);
        let before = before.into_iter().find(|before| before.id == port.id);
        before.map_or_else(
            || (*port.latencies).clone(),
            |before| port.latencies.since(&before.latencies),
        )
    }

    /// Returns the times of commands for this device.
    fn latencies_of(&self, device: &DeviceStats) -> Latencies {
        let before = self.before.into_iter().flat_map(|before| &before.counters.devices);
        let before = before.into_iter().find(|before| before.id == device.id);
        before.map_or_else(
            || (*device.latencies).clone(),
            |before| device.latencies.since(&before.latencies),
        )
    }

    /// Returns the wire delay: the time that the data of reads waited in memory until it was sent.
    fn wire_delay(&self) -> Histogram {
        let now = &self.now.counters.wire;
        self.before.map_or_else(|| (**now).clone(), |before| now.since(&before.counters.wire))
    }

    /// Returns the reads that this device completed, and their total nanoseconds.
    fn reads(&self, device: &DeviceStats) -> (u64, u64) {
        let before = self.before.into_iter().flat_map(|before| &before.counters.devices);
        let before = before.into_iter().find(|before| before.id == device.id);
        let (reads, time) = before.map_or((0, 0), |before| (before.reads, before.read_time));
        (device.reads.saturating_sub(reads), device.read_time.saturating_sub(time))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reactor::stats::Class;

    fn port(id: u16, ios: u64, latency: u64) -> Port {
        Port {
            polls: 1,
            requests: ios,
            completions: ios,
            ios,
            latency,
            latency_max: latency,
            ..Port::new(PortId(id))
        }
    }

    fn report(at: u64, turns: u64, ports: Vec<Port>) -> Report {
        let mut report = Report { at, ..Report::default() };
        (report.counters.turns, report.counters.ports) = (turns, ports);
        report.pacer.started = turns / 2;
        report
    }

    #[test]
    fn a_total_adds_up_by_listener() {
        let sum = total(&[
            report(10, 4, vec![port(1, 2, 100), port(2, 1, 7)]),
            report(12, 6, vec![port(2, 3, 50)]),
        ]);
        assert_eq!((sum.at, sum.counters.turns, sum.pacer.started), (12, 10, 5));
        let ports: Vec<_> =
            sum.counters.ports.iter().map(|p| (p.id.0, p.ios, p.latency, p.latency_max)).collect();
        assert_eq!(ports, [(1, 2, 100, 100), (2, 4, 57, 50)]);
    }

    #[test]
    fn what_was_done_with_closed_devices_is_one_line_if_it_was_anything() {
        let labels = Labels::default();
        let lines = |closed: &CommandCounters| json::commands(&BTreeMap::new(), closed, &labels);
        assert_eq!(lines(&CommandCounters::default()), serde_json::json!([]));
        let mut one = report(10, 4, Vec::new());
        one.closed.count(Class::Read, 4096, nvmeof_wire::Status::SUCCESS);
        let lines = lines(&total(&[one.clone(), one]).closed);
        assert_eq!((&lines[0]["device"], &lines[0]["host"]), (&"closed".into(), &"".into()));
        assert_eq!(
            (&lines[0]["ops"]["read"], &lines[0]["bytes"]["read"]),
            (&2.into(), &8192.into())
        );
    }

    #[test]
    fn an_interval_is_what_came_between_two_reports() {
        let before = report(1000, 10, vec![port(1, 2, 100)]);
        let now = report(3000, 30, vec![port(1, 6, 500), port(2, 1, 9)]);
        let interval = Interval { now: &now, before: Some(&before) };
        assert_eq!((interval.nanos(), interval.turns()), (2000, 20));
        assert_eq!((interval.turn_period(), interval.io_period()), (Some(100), Some(200)));
        assert_eq!(interval.latency(&now.counters.ports[0]), (4, 400));
        assert_eq!(interval.latency(&now.counters.ports[1]), (1, 9));
        let first = Interval { now: &now, before: None };
        assert_eq!((first.nanos(), first.turn_period()), (0, None));
        assert_eq!(mean(1, 0), None);
    }
}
