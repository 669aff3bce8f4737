//! `--where local`: reads the drives of this machine.

use std::io::IsTerminal as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Result;
use nvmeof_console::complain;
use nvmeof_core::pci::System;
use nvmeof_report::RunOrigin;
use nvmeof_report::scale::{DriveScaling, ReadLatency, ScaleRun, ScaleStep};

use super::selected_drive::{self, SelectedDrive};
use super::{ReadMode, ResultsWriter, ScaleArgs, empty, forms, orders, with_findings};
use crate::args::TargetArgs;
use crate::load::{LoadResult, LoadSpec};
use crate::machine;
use crate::plan::usage_error;
use crate::run::stop_on_signals;
use crate::stats::LatencyHistogram;
use crate::target::{Target, TargetNeeds};
use crate::units::IoMix;

const GIB: f64 = 1_073_741_824.0;

/// Runs the whole measurement; each step saves the results so far.
pub(super) fn run(args: &ScaleArgs, writer: &mut ResultsWriter) -> Result<DriveScaling> {
    usage_error!(args.machine.is_some(), "--machine is for --where sim");
    let system = System::this();
    let selected = match &args.drives {
        Some(ranges) => selected_drive::of_machine(&system, ranges, args.by)?,
        None => selected_drive::of_specs(&system, &args.device),
    };
    usage_error!(
        selected.is_empty(),
        "no drives: name them with --drives (0-15,19-22, or all) or --device"
    );
    measure(args, &selected, &stop_on_signals()?, writer)
}

/// Reads the drives, one more in each step.
///
/// A lost drive ends the measurement, because later steps would run without it.
pub(super) fn measure(
    args: &ScaleArgs,
    selected: &[SelectedDrive],
    stop: &Arc<AtomicBool>,
    writer: &mut ResultsWriter,
) -> Result<DriveScaling> {
    let needs = TargetNeeds {
        jobs: args.jobs,
        depth: args.depth,
        shared: args.reading == ReadMode::Striped,
        writes: false,
    };
    let devices = TargetArgs::devices(selected.iter().map(|drive| drive.spec.clone()).collect());
    let mut target = Target::open(&devices, &needs)?;
    let mut scaling = empty(args, RunOrigin::Local, machine::this(), selected);
    let orders = orders(args, selected);
    let count = orders.len() * selected.len();
    for (order, places) in orders {
        scaling.runs.push(ScaleRun { order, steps: Vec::new() });
        for drives in 1..=places.len() {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            let done: usize = scaling.runs.iter().map(|run| run.steps.len()).sum();
            tell(done + 1, count, drives);
            let new = &selected[places[drives - 1]];
            let step = read(args, new, &places[..drives], &mut target, stop);
            scaling.partial = step.partial;
            if let Some(run) = scaling.runs.last_mut() {
                run.steps.push(step);
            }
            scaling = with_findings(scaling);
            writer.keep(&forms(&scaling));
        }
    }
    target.close();
    let is_whole = |run: &ScaleRun| {
        run.steps.len() == selected.len() && run.steps.iter().all(|step| !step.partial)
    };
    scaling.partial = !scaling.runs.iter().all(is_whole);
    Ok(scaling)
}

/// Reads the drives with these indices.
fn read(
    args: &ScaleArgs,
    new: &SelectedDrive,
    places: &[usize],
    target: &mut Target,
    stop: &Arc<AtomicBool>,
) -> ScaleStep {
    let spec = |bs| LoadSpec {
        spaces: Some(places.to_vec()),
        qd: args.depth,
        shared: args.reading == ReadMode::Striped,
        sleeps: true,
        jobs: args.jobs,
        ramp: args.ramp,
        time: args.time,
        ios: args.ios,
        cpus: args.cpus.clone(),
        ..LoadSpec::new(IoMix::reads(false, 100), bs)
    };
    let measured = u32::try_from(args.bs)
        .map_err(|_| format!("--bs {} is more than a read can be", args.bs))
        .and_then(|bs| target.run(&spec(bs), stop).map_err(|error| format!("{error:#}")));
    let mut step = ScaleStep {
        drive: new.name.clone(),
        root_complex: new.root_complex(),
        adapter: new.adapter(),
        latencies: Vec::new(),
        cpus: None,
        gib_per_s: 0.0,
        shares: vec![0.0; places.len()],
        full: Vec::new(),
        problem: None,
        partial: false,
    };
    match measured {
        Ok(measured) => fill(&mut step, &measured),
        Err(why) => step.problem = Some(why),
    }
    step
}

#[expect(clippy::cast_precision_loss, reason = "rates")]
fn fill(step: &mut ScaleStep, measured: &LoadResult) {
    let seconds = measured.seconds();
    if seconds > 0.0 {
        let rate = |bytes: u64| bytes as f64 / seconds / GIB;
        step.shares = measured.flows.iter().map(|flow| rate(flow.read.bytes)).collect();
        step.gib_per_s = step.shares.iter().sum();
        step.latencies = measured.flows.iter().map(|flow| latency(&flow.read.latency)).collect();
        step.cpus = Some(measured.cpu as f64 / 1e9 / seconds);
    }
    step.partial = measured.interrupted;
    if measured.errors() > 0 {
        let first = measured.messages.first().map_or("", String::as_str);
        step.problem = Some(format!("{} reads failed: {first}", measured.errors()));
    } else if step.gib_per_s <= 0.0 && !step.partial {
        step.problem = Some("no read was done in the time: use a longer --time".to_owned());
    }
}

/// The latency of a drive's reads, in microseconds.
#[expect(clippy::cast_precision_loss, reason = "microseconds with a fraction")]
fn latency(of: &LatencyHistogram) -> ReadLatency {
    let micros = |nanos: Option<u64>| nanos.unwrap_or(0) as f64 / 1e3;
    ReadLatency {
        p50: micros(of.quantile(0.5)),
        p99: micros(of.quantile(0.99)),
        min: micros(of.min()),
        max: micros(of.max()),
        deviation: of.deviation().unwrap_or(0.0) / 1e3,
    }
}

/// Prints a line of progress, on a terminal only.
fn tell(number: usize, count: usize, drives: usize) {
    if std::io::stderr().is_terminal() {
        complain!("[{number}/{count}] {drives} drives");
    }
}
