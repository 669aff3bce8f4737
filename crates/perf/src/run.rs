//! `nvmeof-perf run`: open the target, load it, report.

#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result};
use serde::Serialize;
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::args::RunArgs;
use crate::load::{LoadSpec, run_mark};
use crate::plan::Misfit;
use crate::report::{Parameters, Report};
use crate::target::{Needs, Target};

/// Exit code for arguments that do not fit the target.
pub(crate) const USAGE: u8 = 2;

/// Set by Ctrl-C and SIGTERM; the second one ends the process at once.
pub(crate) fn stop_on_signals() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(&stop))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&stop)))
            .context("cannot handle signals")?;
    }
    Ok(stop)
}

/// The whole run. The exit code says whether I/Os or verification failed.
pub(crate) fn run(args: &RunArgs) -> Result<ExitCode> {
    let stop = stop_on_signals()?;
    let report = execute_run(args, &stop)?;
    for message in &report.messages {
        eprintln!("error: {message}");
    }
    if args.json.as_deref() != Some("-".as_ref()) {
        print!("{}", report.text());
    }
    if let Some(path) = &args.json {
        write_json(path, &report)?;
    }
    Ok(if report.is_clean() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Opens the target, loads it, closes it.
fn execute_run(args: &RunArgs, stop: &Arc<AtomicBool>) -> Result<Report> {
    let spec = load(args)?;
    let needs = Needs {
        jobs: spec.jobs,
        depth: spec.qd,
        shared: spec.shared,
        writes: spec.mix.read_percent < 100,
    };
    let mut target = Target::open(&args.target, &needs)?;
    let report = target
        .run(&spec, stop)
        .map(|measured| Report::new(parameters(args, &spec, &target), &target, &measured));
    target.close();
    report
}

/// Writes `value` to `path`, or to standard output if that is `-`.
pub(crate) fn write_json(path: &Path, value: &impl Serialize) -> Result<()> {
    let mut text = serde_json::to_string_pretty(value)?;
    text.push('\n');
    if path == Path::new("-") {
        io::stdout().write_all(text.as_bytes()).context("cannot write to standard output")
    } else {
        File::create(path)
            .and_then(|mut file| file.write_all(text.as_bytes()))
            .with_context(|| format!("cannot write --json {}", path.display()))
    }
}

fn load(args: &RunArgs) -> Result<LoadSpec> {
    let Ok(bs) = u32::try_from(args.bs) else {
        return Err(Misfit(format!("--bs {} is more than one command can carry", args.bs)).into());
    };
    Ok(LoadSpec {
        qd: args.shared_qd.unwrap_or(args.qd),
        shared: args.shared_qd.is_some(),
        jobs: args.jobs,
        ramp: args.ramp,
        time: args.time,
        ios: args.ios,
        rate: args.rate,
        offset: args.offset,
        size: args.size,
        seed: args.seed,
        verify: args.verify.then(run_mark),
        cpus: args.cpus.clone(),
        ..LoadSpec::new(args.rw, bs)
    })
}

fn parameters(args: &RunArgs, spec: &LoadSpec, opened: &Target) -> Parameters {
    let kind = if spec.mix.random { "rand" } else { "" };
    let target = &args.target;
    let nsids = target.nsid.as_ref().map(|list| list.0.clone());
    Parameters {
        connect: target.connect.iter().map(ToString::to_string).collect(),
        device: target.device.iter().map(ToString::to_string).collect(),
        stripe: target.stripe,
        nsid: nsids.as_deref().and_then(|list| <[u32; 1]>::try_from(list).ok()).map(|[nsid]| nsid),
        nsids,
        rw: match spec.mix.read_percent {
            100 => format!("{kind}read"),
            0 => format!("{kind}write"),
            percent => format!("{kind}rw:{percent}"),
        },
        read_percent: spec.mix.read_percent,
        random: spec.mix.random,
        bs: args.bs,
        qd: spec.qd,
        shared_qd: spec.shared,
        jobs: args.jobs,
        cpus: args.cpus.as_ref().map(|cpus| cpus.0.clone()),
        time_s: args.time.as_secs_f64(),
        ios: args.ios,
        ramp_s: args.ramp.as_secs_f64(),
        size: args.size,
        offset: args.offset,
        rate_iops: args.rate.map(|rate| rate.iops(args.bs)),
        seed: args.seed,
        hostnqn: opened.hostnqn().map(ToOwned::to_owned),
        hdgst: target.host.hdgst,
        ddgst: target.host.ddgst,
        verify: args.verify,
    }
}
