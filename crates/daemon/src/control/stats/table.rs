//! A sample as a table for people.
//!
//! Each line begins with the same word, which distinguishes it from the log around it.

use std::fmt::Write as _;

use super::{DeviceLabel, FlowName, Interval, Labels, Sample, mean, state_words, total};
use crate::reactor::stats::{Report, StageCounts};

/// Maximum number of flows shown.
const FLOWS_MAX: usize = 100;

/// Formats the sample, with the changes since the previous one.
pub(crate) fn table(now: &Sample, before: Option<&Sample>, labels: &Labels) -> String {
    let (sum, before_sum) = (total(&now.reactors), before.map(|before| total(&before.reactors)));
    let mut text = String::new();
    // A write to a string does not fail, here and below.
    let _ = policy(&mut text, now);
    let _ = reactors(&mut text, now, before, &sum, before_sum.as_ref());
    let all = Interval { now: &sum, before: before_sum.as_ref() };
    let _ = states(&mut text, &sum);
    let _ = listeners(&mut text, all, labels);
    let _ = rdma_devices(&mut text, &sum);
    let _ = devices(&mut text, all, labels);
    now.tenants.iter().for_each(|tenant| text.push_str(&tenant.line()));
    let _ = flows(&mut text, now, labels);
    text
}

fn policy(text: &mut String, now: &Sample) -> std::fmt::Result {
    write!(text, "stats policy {}", now.policy)?;
    if let Some(budget) = now.pacing.budget {
        write!(text, ", budget {budget} bytes")?;
    }
    if let Some(period) = now.pacing.period {
        write!(text, ", period {period} ns")?;
    }
    if let Some(status) = &now.pacing.adaptive {
        write!(text, ", {}", state_words(status, crate::clock::now()))?;
    }
    writeln!(text)
}

fn reactors(
    text: &mut String,
    now: &Sample,
    before: Option<&Sample>,
    sum: &Report,
    before_sum: Option<&Report>,
) -> std::fmt::Result {
    writeln!(
        text,
        "stats {:>8} {:>12} {:>9} {:>12} {:>12} {:>9} {:>10} {:>8} {:>12} {:>10}",
        "reactor",
        "turns",
        "ns/turn",
        "pacer calls",
        "I/Os",
        "ns/I/O",
        "in flight",
        "waiting",
        "bytes",
        "deferred"
    )?;
    for (index, report) in now.reactors.iter().enumerate() {
        let before = before.and_then(|before| before.reactors.get(index));
        reactor(text, &index.to_string(), Interval { now: report, before })?;
    }
    reactor(text, "all", Interval { now: sum, before: before_sum })
}

fn reactor(text: &mut String, name: &str, interval: Interval<'_>) -> std::fmt::Result {
    let Report { counters, pacer, .. } = interval.now;
    writeln!(
        text,
        "stats {name:>8} {:>12} {:>9} {:>12} {:>12} {:>9} {:>10} {:>8} {:>12} {:>10}",
        counters.turns,
        shown(interval.turn_period()),
        counters.pacer_calls,
        pacer.started,
        shown(interval.io_period()),
        pacer.outstanding(),
        pacer.waiting(),
        pacer.bytes_in_flight,
        pacer.deferred,
    )
}

fn states(text: &mut String, sum: &Report) -> std::fmt::Result {
    for (moment, stages) in ["received", "admitted", "sent"].iter().zip(&sum.stages) {
        let StageCounts { waiting, buffer_wait, h2c_transfer, on_device, sending, admin } = stages;
        writeln!(
            text,
            "stats requests when {moment}: waiting {waiting}, buffer wait {buffer_wait}, H2C transfer \
             {h2c_transfer}, on device {on_device}, sending {sending}, admin {admin}"
        )?;
    }
    Ok(())
}

fn listeners(text: &mut String, all: Interval<'_>, labels: &Labels) -> std::fmt::Result {
    for port in &all.now.counters.ports {
        let (ios, latency) = all.latency(port);
        writeln!(
            text,
            "stats listener {}: polls {}, requests {}, completions {} ({} per 1000 polls), mean \
             latency {} ns lately, {} ns in all, longest lately {} ns",
            labels.port(port.id),
            port.polls,
            port.requests,
            port.completions,
            shown(mean(port.completions.saturating_mul(1000), port.polls)),
            shown(mean(latency, ios)),
            shown(mean(port.latency, port.ios)),
            port.latency_max,
        )?;
    }
    Ok(())
}

fn rdma_devices(text: &mut String, sum: &Report) -> std::fmt::Result {
    for device in &sum.counters.sources {
        let counts = &device.counts;
        writeln!(
            text,
            "stats RDMA device {}: polls {} ({} found a completion), completions {} ({} per 1000 polls), \
             requests {}",
            device.name,
            counts.polls,
            counts.busy_polls,
            counts.completions,
            shown(mean(counts.completions.saturating_mul(1000), counts.polls)),
            counts.requests,
        )?;
    }
    Ok(())
}

fn devices(text: &mut String, all: Interval<'_>, labels: &Labels) -> std::fmt::Result {
    for device in &all.now.counters.devices {
        let (reads, time) = all.reads(device);
        let DeviceLabel { name, .. } = labels.device(device.id);
        writeln!(
            text,
            "stats device {name}: reads {}, mean latency {} ns lately, {} ns in all, zero-copy {}",
            device.reads,
            shown(mean(time, reads)),
            shown(mean(device.read_time, device.reads)),
            device.zero_copy_reads,
        )?;
    }
    Ok(())
}

fn flows(text: &mut String, now: &Sample, labels: &Labels) -> std::fmt::Result {
    let all = now.reactors.iter().enumerate();
    let mut all = all.flat_map(|(index, report)| report.flows.iter().map(move |f| (index, f)));
    for (reactor, flow) in all.by_ref().take(FLOWS_MAX) {
        let FlowName { subsystem, nsid, host, device } = FlowName::of(flow, labels);
        let figures = &flow.figures;
        writeln!(
            text,
            "stats flow {subsystem} nsid {} host {host} queue {} device {device} reactor {reactor}: \
             in flight {} ({} bytes), waiting {}, admitted {}, mean time in flight {} ns",
            shown(nsid.map(u64::from)),
            shown(flow.queue.as_ref().map(|queue| queue.qid.into())),
            figures.in_flight,
            figures.bytes_in_flight,
            figures.waiting,
            figures.admitted,
            shown(mean(figures.in_flight_ns, figures.completed)),
        )?;
    }
    let more = all.count();
    if more > 0 {
        writeln!(text, "stats and {more} more flows")?;
    }
    Ok(())
}

fn shown(figure: Option<u64>) -> String {
    figure.map_or_else(|| "-".to_owned(), |figure| figure.to_string())
}
