//! `nvmeof-perf run`: opens the target, loads it and reports.

#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::{self, BufReader, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context, Result};
use nvmeof_console::{complain, show};
use serde::Serialize;
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::args::{OutputFormat, RunArgs};
use crate::fio::fio_json;
use crate::intervals::IntervalConsole;
use crate::load::{LoadSpec, run_mark};
use crate::plan::{UsageError, usage_error};
use crate::rate_limit::ThinkTime;
use crate::report::{RunParameters, RunReport};
use crate::resume::ResumableRun;
use crate::target::{Target, TargetNeeds};
use crate::units::TrimUse;
use crate::workload::distribution::Distribution;

/// Exit code for arguments that do not fit the target.
pub(crate) const USAGE: u8 = 2;
/// Default measuring time of a run without another end.
const DEFAULT_TIME: Duration = Duration::from_secs(10);

/// Returns a flag that Ctrl-C and SIGTERM set; a second signal ends the process immediately.
pub(crate) fn stop_on_signals() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(&stop))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&stop)))
            .context("cannot handle signals")?;
    }
    Ok(stop)
}

/// Returns a flag that Ctrl-C and SIGTERM alone set, unlike other early ends of a load.
pub(crate) fn asked_to_stop() -> Result<Arc<AtomicBool>> {
    let asked = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&asked)).context("cannot handle signals")?;
    }
    Ok(asked)
}

/// Runs the whole command. The exit code shows failed I/Os and failed verification.
pub(crate) fn run(args: &RunArgs) -> Result<ExitCode> {
    let stop = stop_on_signals()?;
    let report = execute_run(args, &stop)?;
    for message in &report.messages {
        complain!("error: {message}");
    }
    let standard: &Path = "-".as_ref();
    let json = match (&args.json, args.output_format) {
        (Some(path), _) => Some(path.as_path()),
        (None, OutputFormat::FioJson) => Some(standard),
        (None, OutputFormat::Json) => None,
    };
    if json != Some(standard) && !args.intervals {
        show(report.text());
    }
    match (json, args.output_format) {
        (Some(path), OutputFormat::Json) => write_json(path, &report)?,
        (Some(path), OutputFormat::FioJson) => write_json(path, &fio_json(&report))?,
        (None, _) => {}
    }
    Ok(if report.is_clean() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Opens the target, loads it, closes it.
fn execute_run(args: &RunArgs, stop: &Arc<AtomicBool>) -> Result<RunReport> {
    let mut spec = load(args)?;
    let needs = TargetNeeds {
        jobs: spec.jobs,
        depth: spec.qd,
        shared: spec.shared,
        writes: spec.mix.destroys(),
    };
    let mut target = Target::open(&args.target, &needs)?;
    let report = load_target(args, &mut spec, &mut target, stop);
    target.close();
    report
}

fn load_target(
    args: &RunArgs,
    spec: &mut LoadSpec,
    target: &mut Target,
    stop: &Arc<AtomicBool>,
) -> Result<RunReport> {
    let parameters = parameters(args, spec, target);
    let resume = args.resume.as_deref();
    let state = resume.map(|path| ResumableRun::open(path, &parameters, spec)).transpose()?;
    if let Some(state) = &state {
        state.begin(spec);
    }
    let measured = target.run(spec, stop)?;
    let mut report = RunReport::new(parameters, target, &measured);
    if let Some(state) = state {
        report.resumed_bytes = Some(state.resumed_bytes());
        report.messages.extend(state.end(&measured).err().map(|error| format!("{error:#}")));
    }
    Ok(report)
}

/// Writes `value` to `path`, or to standard output if that is `-`.
pub(crate) fn write_json(path: &Path, value: &impl Serialize) -> Result<()> {
    let mut text = serde_json::to_string_pretty(value)?;
    text.push('\n');
    if path == Path::new("-") {
        // The exit status shows a failure.
        show(text);
        Ok(())
    } else {
        File::create(path)
            .and_then(|mut file| file.write_all(text.as_bytes()))
            .with_context(|| format!("cannot write --json {}", path.display()))
    }
}

fn load(args: &RunArgs) -> Result<LoadSpec> {
    let Ok(bs) = u32::try_from(args.bs) else {
        return Err(
            UsageError(format!("--bs {} is more than one command can carry", args.bs)).into()
        );
    };
    let is_bounded = args.io_size.is_some() || args.loops.is_some();
    usage_error!(
        args.intervals && args.json.as_deref() == Some(Path::new("-")),
        "--intervals writes to standard output: set a file for --json"
    );
    usage_error!(
        args.resume.is_some() && !is_bounded,
        "--resume is for runs that end after --io-size or --loops: only these can be resumed"
    );
    usage_error!(
        !args.rw.random && args.random_distribution != Distribution::Uniform,
        "--random-distribution is for random I/Os, and --rw {} has none; use --rw rand{}",
        args.rw,
        args.rw
    );
    usage_error!(
        args.rate_read.is_some() && !args.rw.has_reads()
            || args.rate_write.is_some() && (!args.rw.writes() || args.rw.trim != TrimUse::None),
        "--rate-read needs reads, and --rate-write needs writes without trims: for --rw {} use --rate",
        args.rw
    );
    let has_end = is_bounded || args.intervals;
    let time = args.time.unwrap_or(if has_end { Duration::MAX } else { DEFAULT_TIME });
    Ok(LoadSpec {
        split: args.bssplit.clone(),
        distribution: args.random_distribution.clone(),
        qd: args.shared_qd.unwrap_or(args.qd),
        shared: args.shared_qd.is_some(),
        jobs: args.jobs,
        ramp: args.ramp,
        announces: args.announce,
        time,
        ios: args.ios,
        loops: args.loops,
        io_size: args.io_size,
        rates: args.rate.clone().map(|rates| rates.0).unwrap_or_default(),
        read_rates: args.rate_read.clone().map(|rates| rates.0).unwrap_or_default(),
        write_rates: args.rate_write.clone().map(|rates| rates.0).unwrap_or_default(),
        think: args.thinktime.map(|time| ThinkTime { ios: args.thinktime_blocks, time }),
        refill: args.refill_buffers,
        offset: args.offset,
        size: args.size,
        seed: args.seed,
        verify: args.verify.then(run_mark),
        cpus: args.cpus.clone(),
        intervals: args.intervals.then(standard_console),
        ..LoadSpec::new(args.rw, bs)
    })
}

fn standard_console() -> IntervalConsole {
    IntervalConsole(Arc::new(|| (Box::new(BufReader::new(io::stdin())), Box::new(io::stdout()))))
}

fn parameters(args: &RunArgs, spec: &LoadSpec, opened: &Target) -> RunParameters {
    let target = &args.target;
    let nsids = target.nsid.as_ref().map(|list| list.0.clone());
    RunParameters {
        connect: target.connect.iter().map(ToString::to_string).collect(),
        device: target.device.iter().map(ToString::to_string).collect(),
        stripe: target.stripe,
        nsid: nsids.as_deref().and_then(|list| <[u32; 1]>::try_from(list).ok()).map(|[nsid]| nsid),
        nsids,
        rw: spec.mix.to_string(),
        read_percent: spec.mix.read_percent,
        random: spec.mix.random,
        bs: args.bs,
        qd: spec.qd,
        shared_qd: spec.shared,
        jobs: args.jobs,
        cpus: args.cpus.as_ref().map(|cpus| cpus.0.clone()),
        bssplit: spec.split.as_ref().map(ToString::to_string),
        random_distribution: spec.distribution.to_string(),
        time_s: (spec.time < Duration::MAX).then_some(spec.time.as_secs_f64()),
        ios: args.ios,
        io_size: args.io_size,
        loops: args.loops,
        thinktime_us: spec.think.map(|think| think.time.as_micros()),
        thinktime_blocks: spec.think.map(|think| think.ios),
        refill_buffers: args.refill_buffers,
        percentiles: args.percentiles.0.clone(),
        ramp_s: args.ramp.as_secs_f64(),
        size: args.size,
        offset: args.offset,
        rate_iops: spec.rates.iter().map(|rate| rate.iops(args.bs)).reduce(f64::min),
        seed: args.seed,
        hostnqn: opened.hostnqn().map(ToOwned::to_owned),
        hdgst: target.host.hdgst,
        ddgst: target.host.ddgst,
        verify: args.verify,
    }
}
