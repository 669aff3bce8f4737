//! Tests of the exported text, and of the documents that describe it.

use std::collections::BTreeSet;
use std::sync::Arc;

use nvmeof_nvmf::{DeviceId, PortId};
use nvmeof_pacing::PolicyStatus;
use nvmeof_wire::{Nqn, Status};
use serde_json::Value;

use super::exposition::{Family, read};
use super::*;
use crate::control::stats::TenantFigures;
use crate::reactor::stats::{CommandCounters, CounterKey, DeviceStats, Flow, Port, RdmaDevice};

const PAGE: &str = include_str!("../../../../../../docs/observe.md");
const DASHBOARD: &str = include_str!("../../../../../../docs/grafana/nvmeof-tgt.json");

/// Two reactors with every kind of work, for a host with special characters in its name.
fn scrape() -> Scrape {
    let mut labels = Labels::default();
    labels.add_port(PortId(1), "tcp://[::1]:4420".into());
    labels.add_device(DeviceId(0), "disk\\0", Some(("nqn.2026-11.org.example:a", 7)));
    let names = Some((nqn("nqn.2026-11.org.example:a"), nqn("host \"of\" \\ all, {evil}")));
    let mut counters = CommandCounters::default();
    counters.count(Class::Read, 4096, Status::SUCCESS);
    counters.count(Class::Write, 4096, Status::WRITE_FAULT);
    let mut report = Report::default();
    report.counters.turns = 10;
    let mut port = Port::new(PortId(1));
    port.requests = 2;
    port.latencies.record(Class::Read, 90_000);
    report.counters.ports = vec![port];
    let mut device = DeviceStats::new(DeviceId(0));
    device.read_time = 80_000;
    device.latencies.record(Class::Read, 90_000);
    device.latencies.record(Class::Read, u64::MAX / 4);
    report.counters.devices = vec![device];
    report.counters.wire.record(20_000);
    report.counters.sources = vec![RdmaDevice { name: "rxe0".into(), ..Default::default() }];
    let of_device = CounterKey { names: names.clone(), device: Some(0) };
    report.command_counters =
        vec![(CounterKey { names, device: None }, counters), (of_device.clone(), counters)];
    report.past = Arc::new([(of_device, counters), (CounterKey::default(), counters)].into());
    let figures = FlowStats { in_flight: 3, bytes_in_flight: 12288, ..FlowStats::default() };
    report.flows = vec![Flow { queue: None, device: DeviceId(0), figures, ended: false }];
    let pacing =
        PolicyStatus { budget: Some(1 << 20), period: Some(5_500), ..PolicyStatus::default() };
    let reactors = vec![report.clone(), report];
    let tenants = vec![
        TenantFigures::of_host("host \"of\" \\ all, {evil}"),
        TenantFigures::of_namespace("nqn.2026-11.org.example:a", 7),
    ];
    let sample = Sample { policy: "adaptive", pacing, reactors, tenants };
    let availability = Availability {
        listeners: vec![("tcp://[::1]:4420".into(), true), ("tcp://192.0.2.1:4420".into(), false)],
        devices: vec![("disk\\0".into(), true), ("away".into(), false)],
    };
    Scrape { sample, labels, availability, buffer_memory: 4096 }
}

fn nqn(name: &str) -> Nqn {
    Nqn::new(name).unwrap()
}

fn families() -> Vec<Family> {
    let text = scrape().text();
    read(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

#[test]
fn a_strict_reader_takes_it_and_every_family_has_figures() {
    let families = families();
    let empty: Vec<_> = families.iter().filter(|one| one.figures.is_empty()).collect();
    assert!(empty.is_empty(), "{empty:?}");
    let find = |name: &str| {
        let found = families.iter().find(|family| family.asked_for() == name);
        &found.unwrap_or_else(|| panic!("no {name}")).figures
    };
    // Two reactors, each with one open and two closed connections, all under one name.
    let reads = |op: &'static str| {
        let commands = find("nvmeof_tgt_commands_total").iter();
        let mut of =
            commands.filter(move |one| one.labels["op"] == op && one.labels["nsid"] == "7");
        of.next().map(|one| (one.value, one.labels["host"].clone()))
    };
    assert_eq!(reads("read"), Some((4.0, "host \"of\" \\ all, {evil}".into())));
    let latency = find("nvmeof_tgt_namespace_latency_seconds").iter();
    let last = latency.filter(|one| one.labels.get("le").is_some_and(|end| end == "+Inf"));
    assert_eq!(last.map(|one| one.value).sum::<f64>(), 4.0);
    assert_eq!(find("nvmeof_tgt_connections")[0].value, 2.0);
    let up = |family: &str, label: &str| -> Vec<(String, f64)> {
        find(family).iter().map(|one| (one.labels[label].clone(), one.value)).collect()
    };
    let waits = ("tcp://192.0.2.1:4420".to_owned(), 0.0);
    assert_eq!(up("nvmeof_tgt_listener_up", "listener"), [("tcp://[::1]:4420".into(), 1.0), waits]);
    let missing = ("away".to_owned(), 0.0);
    assert_eq!(up("nvmeof_tgt_device_up", "device"), [("disk\\0".into(), 1.0), missing]);
    assert_eq!(find("nvmeof_tgt_pacer_budget_bytes")[0].value, 1048576.0);
    assert_eq!(find("nvmeof_tgt_pacer_period_seconds")[0].value, 5.5e-6);
    let throttled = find("nvmeof_tgt_tenant_throttled_seconds_total").iter();
    let throttled: Vec<_> = throttled
        .map(|one| (one.labels["limit"].as_str(), one.labels["nsid"].as_str(), one.value))
        .collect();
    assert_eq!(throttled, [("rate", "", 0.5), ("in_flight", "", 0.25), ("rate", "7", 0.0)]);
}

#[test]
fn an_idle_daemon_without_bounds_is_taken_too() {
    let sample = Sample { policy: "none", ..Sample::default() };
    let text = Scrape {
        sample,
        labels: Labels::default(),
        availability: Availability::default(),
        buffer_memory: 0,
    }
    .text();
    let families = read(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let budget = families.iter().find(|one| one.name == "nvmeof_tgt_pacer_budget_bytes").unwrap();
    assert!(budget.figures.is_empty(), "there is no bound: {budget:?}");
}

#[test]
fn the_page_lists_every_metric_and_no_other() {
    let exported: BTreeSet<_> = families().iter().map(Family::asked_for).collect();
    let rows = PAGE.lines().filter_map(|line| line.strip_prefix("| `nvmeof_tgt_"));
    let listed: BTreeSet<_> = rows
        .filter_map(|row| row.split(['`', '{']).next())
        .map(|name| format!("nvmeof_tgt_{name}"))
        .collect();
    assert_eq!(listed, exported);
}

#[test]
fn the_dashboard_asks_for_nothing_that_is_not_exported() {
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let exported: BTreeSet<_> = families().iter().flat_map(Family::names).collect();
    let known: BTreeSet<_> = families()
        .iter()
        .flat_map(|family| family.figures.iter().flat_map(|figure| figure.labels.keys().cloned()))
        .collect();
    let (mut asked, mut labels) = (BTreeSet::new(), BTreeSet::new());
    for query in queries(&dashboard) {
        asked.extend(words(&query, "nvmeof_tgt_"));
        for part in query.split("by (").skip(1) {
            let by = part.split(')').next().unwrap_or("");
            labels.extend(by.split(',').map(|label| label.trim().to_owned()));
        }
    }
    assert!(asked.len() > 15, "{asked:?}");
    let missing: Vec<_> = asked.difference(&exported).collect();
    assert!(missing.is_empty(), "the dashboard asks for {missing:?}");
    let missing: Vec<_> = labels.difference(&known).collect();
    assert!(missing.is_empty(), "the dashboard groups by {missing:?}");
}

/// Returns every expression of the dashboard: of its panels, and of its variables.
fn queries(value: &Value) -> Vec<String> {
    match value {
        Value::Object(members) => members
            .iter()
            .flat_map(|(key, value)| match value {
                Value::String(text) if key == "expr" || key == "query" => vec![text.clone()],
                value => queries(value),
            })
            .collect(),
        Value::Array(values) => values.iter().flat_map(queries).collect(),
        _ => Vec::new(),
    }
}

fn words(text: &str, prefix: &str) -> Vec<String> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    words.filter(|word| word.starts_with(prefix)).map(str::to_owned).collect()
}
