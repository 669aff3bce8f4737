//! A sample for Prometheus, as OpenMetrics text.
//!
//! docs/observe.md lists every metric. A test compares the exported metrics with that list and with
//! the dashboard in docs/grafana.

#[cfg(test)]
mod exposition;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt::Error;

use nvmeof_api::TenantSnapshot;
use nvmeof_pacing::FlowStats;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeGaugeValue, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use super::limited_tenants::limited;
use super::{FlowName, Labels, Sample, add_named, done, total};
use crate::logs;
use crate::reactor::stats::{Class, ErrorClass, Histogram, Report, StageCounts};

/// Prefix of every metric name.
const PREFIX: &str = "nvmeof_tgt";

/// Values of one export.
#[derive(Debug)]
pub(crate) struct Scrape {
    pub(in crate::control) sample: Sample,
    pub(in crate::control) labels: Labels,
    pub(in crate::control) availability: Availability,
    /// Bytes of memory mapped for data buffers.
    pub(crate) buffer_memory: u64,
}

/// Availability of the listeners and devices in the config.
#[derive(Debug, Default)]
pub(in crate::control) struct Availability {
    /// Listeners, by URL: true if hosts can connect.
    pub(in crate::control) listeners: Vec<(String, bool)>,
    /// Devices, by name: true if the device is present.
    pub(in crate::control) devices: Vec<(String, bool)>,
}

impl Scrape {
    /// Formats it as text.
    pub(crate) fn text(self) -> String {
        let mut registry = Registry::with_prefix(PREFIX);
        registry.register_collector(Box::new(self));
        let mut text = String::new();
        // A write to a string does not fail.
        let _ = prometheus_client::encoding::text::encode(&mut text, &registry);
        text
    }
}

impl Collector for Scrape {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let all = total(&self.sample.reactors);
        let mut page = Page { encoder };
        self.daemon(&mut page)?;
        self.pacer(&mut page, &all)?;
        self.reactors(&mut page)?;
        self.listeners(&mut page, &all)?;
        self.namespaces(&mut page, &all)?;
        self.hosts(&mut page)?;
        self.flows(&mut page)?;
        self.tenants(&mut page)?;
        rdma(&mut page, &all)
    }
}

impl Scrape {
    fn daemon(&self, page: &mut Page<'_>) -> Result<(), Error> {
        let version = vec![("version", env!("CARGO_PKG_VERSION").to_owned())];
        page.gauges("build", "The daemon that answers", None, [(version, 1)])?;
        let help = "Memory from which data buffers are taken";
        page.gauges("buffer_memory", help, Some(&Unit::Bytes), [(vec![], self.buffer_memory)])?;
        let leaked = nvmeof_pacing::leaked_permits();
        page.counters(
            "leaked_permits",
            "Permits that were never returned; any value but 0 is a defect of the daemon",
            None,
            [(vec![], leaked)],
        )?;
        let help = "Log lines that standard error did not take";
        page.counters("log_lines_dropped", help, None, [(vec![], logs::dropped())])?;
        let each = |label: &'static str, all: &[(String, bool)]| -> Vec<(Names, u64)> {
            all.iter().map(|(name, up)| (vec![(label, name.clone())], u64::from(*up))).collect()
        };
        let help =
            "1 if hosts can connect, 0 if the listener waits for its address, device or port";
        page.gauges("listener_up", help, None, each("listener", &self.availability.listeners))?;
        let help = "1 if the device is present, 0 if it is missing";
        page.gauges("device_up", help, None, each("device", &self.availability.devices))
    }

    fn pacer(&self, page: &mut Page<'_>, all: &Report) -> Result<(), Error> {
        let Report { pacer, counters, .. } = all;
        let policy = vec![("policy", self.sample.policy.to_owned())];
        page.gauges("pacer_policy", "The active policy, with value 1", None, [(policy, 1)])?;
        let budget = self.sample.pacing.budget.map(|budget| (vec![], budget));
        let help = "Maximum bytes in flight; absent for a policy without a budget";
        page.gauges("pacer_budget", help, Some(&Unit::Bytes), budget)?;
        let period = self.sample.pacing.period.map(|period| (vec![], seconds(period)));
        let help = "Time from one command to the next; absent for a policy without a period";
        page.gauges("pacer_period", help, Some(&Unit::Seconds), period)?;
        let help = "Commands in flight";
        page.gauges("pacer_in_flight", help, None, [(vec![], pacer.outstanding())])?;
        let help = "Bytes of the buffers of commands in flight";
        let bytes = [(vec![], pacer.bytes_in_flight)];
        page.gauges("pacer_in_flight", help, Some(&Unit::Bytes), bytes)?;
        let help = "Commands that wait for admission";
        page.gauges("pacer_waiting", help, None, [(vec![], pacer.waiting())])?;
        let help = "Admitted commands";
        page.counters("pacer_started", help, None, [(vec![], pacer.started)])?;
        let help = "Times that admission of a waiting command was deferred";
        page.counters("pacer_deferred", help, None, [(vec![], pacer.deferred)])?;
        let help = "Time from a read's data being complete in memory until it has been sent";
        page.histograms("pacer_wire_delay", help, [(vec![], &*counters.wire)])
    }

    fn reactors(&self, page: &mut Page<'_>) -> Result<(), Error> {
        let each = |figure: fn(&Report) -> u64| {
            let reports = self.sample.reactors.iter().enumerate();
            reports.map(move |(index, report)| (of_reactor(index), figure(report)))
        };
        let turns = each(|report| report.counters.turns);
        page.counters("reactor_turns", "Turns of the loop", None, turns)?;
        let busy = each(|report| report.counters.busy_turns);
        page.counters("reactor_busy_turns", "Turns of the loop that found work", None, busy)?;
        let started = each(|report| report.pacer.started);
        page.counters("reactor_started", "Admitted commands", None, started)?;
        let waiting = each(|report| report.pacer.waiting());
        page.gauges("reactor_waiting", "Commands that wait for admission", None, waiting)?;
        let in_flight = each(|report| report.pacer.bytes_in_flight);
        let help = "Bytes of commands in flight";
        page.gauges("reactor_in_flight", help, Some(&Unit::Bytes), in_flight)?;
        let requests = self.sample.reactors.iter().enumerate().flat_map(|(index, report)| {
            // The counts at the end of the turn.
            let [.., sent] = &report.stages;
            states(sent).into_iter().map(move |(state, count)| {
                let mut labels = of_reactor(index);
                labels.push(("state", state.to_owned()));
                (labels, count)
            })
        });
        page.gauges("reactor_requests", "Commands by the state they are in", None, requests)
    }

    fn listeners(&self, page: &mut Page<'_>, all: &Report) -> Result<(), Error> {
        let ports = &all.counters.ports;
        let label =
            |port: &crate::reactor::stats::Port| vec![("listener", self.labels.port(port.id))];
        let requests = ports.iter().map(|port| (label(port), port.requests));
        page.counters("listener_requests", "Commands of every kind", None, requests)?;
        let completions = ports.iter().map(|port| (label(port), port.completions));
        page.counters("listener_completions", "Completions of every kind", None, completions)?;
        let latencies = ports.iter().flat_map(|port| {
            Class::ALL.map(|class| {
                let mut labels = label(port);
                labels.push(("op", class.name().to_owned()));
                (labels, port.latencies.of(class))
            })
        });
        let help = "Latency of I/O commands, from the capsule until the response has left";
        page.histograms("listener_latency", help, latencies)
    }

    fn namespaces(&self, page: &mut Page<'_>, all: &Report) -> Result<(), Error> {
        let label = |device: &crate::reactor::stats::DeviceStats| {
            let known = self.labels.device(device.id);
            vec![
                ("subsystem", known.subsystem),
                ("nsid", known.nsid.map_or_else(String::new, |nsid| nsid.to_string())),
                ("device", known.name),
            ]
        };
        let devices = &all.counters.devices;
        let latencies = devices.iter().flat_map(|device| {
            Class::ALL.map(|class| {
                let mut labels = label(device);
                labels.push(("op", class.name().to_owned()));
                (labels, device.latencies.of(class))
            })
        });
        let help =
            "Latency of I/O commands of a namespace, from the capsule until the response has left";
        page.histograms("namespace_latency", help, latencies)?;
        let reads = devices.iter().map(|device| (label(device), device.reads));
        page.counters(
            "namespace_device_reads",
            "Reads that the device has completed",
            None,
            reads,
        )?;
        let time = devices.iter().map(|device| (label(device), seconds(device.read_time)));
        let help = "Total device time of these reads";
        page.counters("namespace_device_read", help, Some(&Unit::Seconds), time)?;
        let zero_copy = devices.iter().map(|device| (label(device), device.zero_copy_reads));
        let help = "Zero-copy reads, answered from memory of the device";
        page.counters("namespace_zero_copy_reads", help, None, zero_copy)
    }

    fn hosts(&self, page: &mut Page<'_>) -> Result<(), Error> {
        let mut named = BTreeMap::new();
        for (whose, counters) in done(&self.sample.reactors) {
            let name = FlowName::known(&whose, &self.labels);
            named
                .entry(name)
                .or_insert_with(crate::reactor::stats::CommandCounters::default)
                .add(&counters);
        }
        let by_class = |figures: fn(&crate::reactor::stats::CommandCounters) -> [u64; 3]| {
            named.iter().flat_map(move |(name, counters)| {
                let figures = Class::ALL.into_iter().zip(figures(counters));
                figures.map(|(class, figure)| {
                    let mut labels = of_flow(name);
                    labels.push(("op", class.name().to_owned()));
                    (labels, figure)
                })
            })
        };
        let help = "Completed commands; those without a namespace are admin and rejected commands";
        page.counters("commands", help, None, by_class(|tally| tally.ops))?;
        let help = "Bytes transferred between host and target";
        let bytes = by_class(|tally| tally.bytes);
        page.counters("transferred", help, Some(&Unit::Bytes), bytes)?;
        let errors = named.iter().flat_map(|(name, counters)| {
            let figures = ErrorClass::ALL.into_iter().zip(counters.errors);
            figures.filter(|(_, count)| *count > 0).map(|(class, count)| {
                let mut labels = of_flow(name);
                labels.push(("type", class.name().to_owned()));
                (labels, count)
            })
        });
        let help = "Commands that failed, by status code type";
        page.counters("command_errors", help, None, errors)?;
        let mut connections = BTreeMap::new();
        let live = self.sample.reactors.iter().flat_map(|report| &report.command_counters);
        for (whose, _) in live.filter(|(whose, _)| whose.device.is_none()) {
            *connections.entry(FlowName::known(whose, &self.labels)).or_insert(0) += 1;
        }
        let connections = connections.iter().map(|(name, count)| {
            let FlowName { subsystem, host, .. } = name.clone();
            (vec![("subsystem", subsystem), ("host", host)], *count)
        });
        page.gauges("connections", "Connections of hosts, one per queue", None, connections)
    }

    fn flows(&self, page: &mut Page<'_>) -> Result<(), Error> {
        let mut named = BTreeMap::<FlowName, FlowStats>::new();
        for flow in self.sample.reactors.iter().flat_map(|report| &report.flows) {
            add_named(&mut named, FlowName::of(flow, &self.labels), &flow.figures);
        }
        let each = |figure: fn(&FlowStats) -> u64| {
            named.iter().map(move |(name, figures)| (of_flow(name), figure(figures)))
        };
        let help = "Commands with data in flight";
        page.gauges("flow_in_flight", help, None, each(|flow| flow.in_flight.into()))?;
        let bytes = each(|flow| flow.bytes_in_flight);
        page.gauges(
            "flow_in_flight",
            "Bytes of the buffers of commands in flight",
            Some(&Unit::Bytes),
            bytes,
        )?;
        let help = "Commands that wait for admission";
        page.gauges("flow_waiting", help, None, each(|flow| flow.waiting.into()))
    }
}

impl Scrape {
    /// Writes the limits and usage of hosts and namespaces that have limits, and their waits.
    fn tenants(&self, page: &mut Page<'_>) -> Result<(), Error> {
        let all = limited(&self.sample, &self.labels);
        let each = |figure: fn(&TenantSnapshot) -> Option<u64>| {
            all.iter().filter_map(move |tenant| Some((of_tenant(tenant), figure(tenant)?)))
        };
        let bytes = Some(&Unit::Bytes);
        let iops = each(|one| one.max_iops);
        page.gauges(
            "tenant_limit_iops",
            "Limit of I/Os a second of a host or namespace",
            None,
            iops,
        )?;
        let help = "Limit of bytes a second of a host or namespace";
        page.gauges("tenant_limit_bandwidth", help, bytes, each(|one| one.max_bandwidth_bytes))?;
        let help = "Limit of bytes in flight of a host or namespace";
        page.gauges("tenant_limit_in_flight", help, bytes, each(|one| one.max_in_flight_bytes))?;
        let connections = each(|one| one.max_connections.map(u64::from));
        page.gauges(
            "tenant_limit_connections",
            "Limit of connections of a host",
            None,
            connections,
        )?;
        let queues = each(|one| one.max_queues.map(u64::from));
        page.gauges("tenant_limit_queues", "Limit of I/O queues of a host", None, queues)?;
        let help = "Bytes that count against the limit of bytes in flight";
        page.gauges("tenant_in_flight", help, bytes, each(|one| one.limited_in_flight_bytes))?;
        let of_host = |one: &TenantSnapshot, figure: u64| (!one.host.is_empty()).then_some(figure);
        let each_host = |figure: fn(&TenantSnapshot) -> u64| {
            let with = move |one| Some((of_tenant(one), of_host(one, figure(one))?));
            all.iter().filter_map(with)
        };
        let connections = each_host(|one| one.connections.into());
        page.gauges("tenant_connections", "Connections of a host", None, connections)?;
        let queues = each_host(|one| one.io_queues.into());
        page.gauges("tenant_queues", "I/O queues of a host", None, queues)?;
        let help =
            "Connect commands rejected for the limits of a host, since it last had no connection";
        page.gauges("tenant_refused", help, None, each_host(|one| one.refused))?;
        let help = "Commands of a host or namespace that wait for a limit or for the pacer";
        page.gauges("tenant_waiting", help, None, each(|one| Some(one.waiting)))?;
        let throttled = all
            .iter()
            .flat_map(|one| throttled_by(one, [one.throttled_by_rate, one.throttled_by_in_flight]));
        page.counters(
            "tenant_throttled",
            "Times that a command was throttled by a limit",
            None,
            throttled,
        )?;
        let waits = all.iter().flat_map(|one| {
            throttled_by(
                one,
                [one.throttled_by_rate_ns, one.throttled_by_in_flight_ns].map(seconds),
            )
        });
        let help = "Time that any command was throttled by a limit, summed over reactors";
        page.counters("tenant_throttled", help, Some(&Unit::Seconds), waits)
    }
}

/// Returns one figure for the rates, and one for bytes in flight, which only hosts have.
fn throttled_by<V>(
    tenant: &TenantSnapshot,
    figures: [V; 2],
) -> impl Iterator<Item = (Names, V)> + use<V> {
    let limits = if tenant.host.is_empty() { &["rate"][..] } else { &["rate", "in_flight"][..] };
    let names = of_tenant(tenant);
    limits.iter().zip(figures).map(move |(limit, figure)| {
        let mut labels = names.clone();
        labels.push(("limit", (*limit).to_owned()));
        (labels, figure)
    })
}

/// Writes the metrics of RDMA completion queues.
fn rdma(page: &mut Page<'_>, all: &Report) -> Result<(), Error> {
    let each = |figure: fn(&nvmeof_transport::CqCounters) -> u64| {
        let sources = all.counters.sources.iter();
        sources.map(move |one| (vec![("rdma_device", one.name.clone())], figure(&one.counts)))
    };
    page.counters("rdma_polls", "Polls of completion queues", None, each(|one| one.polls))?;
    let completions = each(|one| one.completions);
    page.counters("rdma_completions", "Completions that they brought", None, completions)?;
    let help = "Queue pairs that the device has not destroyed";
    page.gauges("rdma_quarantined_qps", help, None, each(|one| one.quarantined_qps))
}

fn of_reactor(index: usize) -> Names {
    vec![("reactor", index.to_string())]
}

fn of_flow(name: &FlowName) -> Names {
    let FlowName { subsystem, nsid, host, device } = name.clone();
    let nsid = nsid.map_or_else(String::new, |nsid| nsid.to_string());
    vec![("subsystem", subsystem), ("nsid", nsid), ("host", host), ("device", device)]
}

fn of_tenant(tenant: &TenantSnapshot) -> Names {
    let TenantSnapshot { host, subsystem, nsid, .. } = tenant;
    let nsid = nsid.map_or_else(String::new, |nsid| nsid.to_string());
    vec![("subsystem", subsystem.clone()), ("nsid", nsid), ("host", host.clone())]
}

fn states(stages: &StageCounts) -> [(&'static str, u64); 6] {
    let StageCounts { waiting, buffer_wait, h2c_transfer, on_device, sending, admin } = *stages;
    [
        ("waiting", waiting),
        ("buffer-wait", buffer_wait),
        ("h2c-transfer", h2c_transfer),
        ("device", on_device),
        ("sending", sending),
        ("admin", admin),
    ]
}

/// Labels of one figure.
type Names = Vec<(&'static str, String)>;

/// The output.
struct Page<'a> {
    encoder: DescriptorEncoder<'a>,
}

impl Page<'_> {
    fn gauges<V: EncodeGaugeValue>(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<&Unit>,
        figures: impl IntoIterator<Item = (Names, V)>,
    ) -> Result<(), Error> {
        let mut metric =
            self.encoder.encode_descriptor(name, &sentence(help), unit, MetricType::Gauge)?;
        for (labels, figure) in figures {
            metric.encode_family(&labels)?.encode_gauge(&figure)?;
        }
        Ok(())
    }

    fn counters<V: prometheus_client::encoding::EncodeCounterValue>(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<&Unit>,
        figures: impl IntoIterator<Item = (Names, V)>,
    ) -> Result<(), Error> {
        let mut metric =
            self.encoder.encode_descriptor(name, &sentence(help), unit, MetricType::Counter)?;
        for (labels, figure) in figures {
            metric.encode_family(&labels)?.encode_counter::<NoLabelSet, V, f64>(&figure, None)?;
        }
        Ok(())
    }

    /// Writes histograms of times, in octaves.
    fn histograms<'b>(
        &mut self,
        name: &str,
        help: &str,
        figures: impl IntoIterator<Item = (Names, &'b Histogram)>,
    ) -> Result<(), Error> {
        let unit = Some(&Unit::Seconds);
        let mut metric =
            self.encoder.encode_descriptor(name, &sentence(help), unit, MetricType::Histogram)?;
        for (labels, times) in figures {
            let (count, mut below) = (times.count(), 0);
            let mut buckets: Vec<(f64, u64)> = Vec::new();
            for (end, shorter) in times.octaves() {
                buckets.push((seconds(end), shorter - below));
                below = shorter;
            }
            buckets.push((f64::INFINITY, count - below));
            let mut one = metric.encode_family(&labels)?;
            one.encode_histogram::<NoLabelSet>(seconds(times.sum()), count, &buckets, None)?;
        }
        Ok(())
    }
}

fn sentence(help: &str) -> String {
    format!("{help}.")
}

#[expect(clippy::cast_precision_loss, reason = "a sum of more than 104 days loses nanoseconds")]
fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}
