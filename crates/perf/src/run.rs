//! `nvmeof-perf run`: connect, plan, run the jobs, report.

#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use nvmeof_initiator::{Controller, MAX_QUEUE_DEPTH, Options};
use serde::Serialize;
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::args::RunArgs;
use crate::host;
use crate::job::{Counter, Job, JobQueue, JobResult, Shared, Timing, pin};
use crate::lane::{Buffers, Lane};
use crate::plan::{self, Flow, Load, Misfit, misfit};
use crate::progress::Progress;
use crate::report::{FlowTotals, Parameters, Report, TargetReport, Totals};
use crate::stats::{Series, Tally, Verified};

/// I/O queues asked of a controller; it grants what it has.
const ASK_QUEUES: u16 = 1024;
/// Time between two looks at keep alives and progress.
const TICK: Duration = Duration::from_millis(50);
/// Exit code for arguments that do not fit the target.
pub(crate) const USAGE: u8 = 2;

/// The whole run. The exit code says whether I/Os or verification failed.
pub(crate) fn run(args: &RunArgs) -> Result<ExitCode> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // The second one ends the process at once.
        signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(&stop))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&stop)))
            .context("cannot handle signals")?;
    }
    let report = match execute_run(args, &stop) {
        Ok(report) => report,
        Err(error) if error.is::<Misfit>() => {
            eprintln!("error: {error:#}");
            return Ok(ExitCode::from(USAGE));
        }
        Err(error) => return Err(error),
    };
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

/// Connects, runs, disconnects.
fn execute_run(args: &RunArgs, stop: &Arc<AtomicBool>) -> Result<Report> {
    let options = Options {
        queues: ASK_QUEUES,
        depth: u16::try_from(MAX_QUEUE_DEPTH).unwrap_or(u16::MAX),
        ..host::options(&args.host, args.connect.iter().map(|endpoint| &endpoint.address))?
    };
    let mut controllers = Vec::new();
    for endpoint in &args.connect {
        controllers.push(Controller::connect(endpoint, &options)?);
    }
    let result = load_controllers(args, &options, &mut controllers, stop);
    disconnect(controllers);
    result
}

fn load_controllers(
    args: &RunArgs,
    options: &Options,
    controllers: &mut [Controller],
    stop: &Arc<AtomicBool>,
) -> Result<Report> {
    let flows = plan::flows(args, controllers)?;
    let load = load(args)?;
    let mut targets = Vec::new();
    let queues = connect_queues(controllers, &flows, &load, &mut targets)?;
    let results = execute(args, controllers, &flows, &load, queues, stop);
    let totals = add_up(&flows, results);
    Ok(Report::new(parameters(args, options, &load), targets, &totals))
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

fn load(args: &RunArgs) -> Result<Load> {
    let Ok(bs) = u32::try_from(args.bs) else {
        return Err(Misfit(format!("--bs {} is more than one command can carry", args.bs)).into());
    };
    let run = args.verify.then(|| {
        // Tells this run's blocks from an earlier run's: the time, and the process for two at once.
        let time = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        let time = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        crate::rng::mix(time ^ u64::from(std::process::id()))
    });
    Ok(Load {
        mix: args.rw,
        bs,
        qd: args.shared_qd.unwrap_or(args.qd),
        shared: args.shared_qd.is_some(),
        jobs: args.jobs,
        seed: args.seed,
        verify: run,
    })
}

/// Connects every job's queues to every controller: as many as its I/Os need.
fn connect_queues(
    controllers: &mut [Controller],
    flows: &[Flow],
    load: &Load,
    targets: &mut Vec<TargetReport>,
) -> Result<Vec<Vec<JobQueue>>> {
    let mut jobs: Vec<Vec<JobQueue>> = (0..load.jobs).map(|_| Vec::new()).collect();
    for (index, controller) in controllers.iter_mut().enumerate() {
        let lanes = flows.iter().filter(|flow| flow.controller == index).count();
        let wanted = if load.shared { 1 } else { lanes } * load.qd as usize;
        // A queue of N entries holds N - 1 commands. Where that is all that is missing, one I/O waits here
        // rather than a second queue being connected.
        let most = usize::from(controller.queue_depth());
        let count = wanted.div_ceil(most + 1);
        let depth = u16::try_from(wanted.div_ceil(count)).unwrap_or(u16::MAX);
        let granted = usize::from(controller.info().queues);
        misfit!(
            count * jobs.len() > granted,
            "{} grants {granted} I/O queues of {most} commands, but {} jobs with {wanted} I/Os outstanding each \
             need {}; lower --jobs or --qd, or raise the target's io-queues or queue-depth",
            controller.endpoint(),
            load.jobs,
            count * jobs.len()
        );
        for job in &mut jobs {
            for _ in 0..count {
                job.push(JobQueue { controller: index, queue: controller.open_queue_of(depth)? });
            }
        }
        let info = controller.info();
        targets.push(TargetReport {
            connect: controller.endpoint().to_string(),
            model: info.model.clone(),
            serial: info.serial.clone(),
            firmware: info.firmware.clone(),
            queues: count * jobs.len(),
            queue_depth: depth.min(controller.queue_depth()),
        });
    }
    Ok(jobs)
}

/// Runs the jobs to their end and keeps the controllers alive meanwhile.
fn execute(
    args: &RunArgs,
    controllers: &mut [Controller],
    flows: &[Flow],
    load: &Load,
    queues: Vec<Vec<JobQueue>>,
    stop: &Arc<AtomicBool>,
) -> Vec<JobResult> {
    let jobs = queues.len();
    let counters = (0..jobs).map(|_| Counter::default()).collect();
    let shared = Arc::new(Shared { stop: Arc::clone(stop), counters });
    let start = Arc::new(Barrier::new(jobs));
    let timing = Timing {
        ramp: args.ramp,
        time: args.time,
        ios: args.ios.map_or(u64::MAX, |ios| ios.div_ceil(load.jobs.into())),
        rate: args.rate.map(|rate| rate.iops(args.bs) / f64::from(load.jobs)),
        read_back: args.verify && args.rw.read_percent < 100,
    };
    let (sender, receiver) = channel();
    for (index, queues) in queues.into_iter().enumerate() {
        let (shared, start, sender) = (Arc::clone(&shared), Arc::clone(&start), sender.clone());
        let (flows, load) = (flows.to_vec(), *load);
        let cpu = args.cpus.as_ref().map(|cpus| cpus.0[index % cpus.0.len()]);
        thread::spawn(move || {
            // Before memory is touched, so that it is near the CPU.
            let pinned = cpu.map_or(Ok(()), pin);
            let job = u16::try_from(index).unwrap_or(u16::MAX);
            let lanes = (0..)
                .zip(&flows)
                .map(|(number, flow)| Lane::new(number as usize, flow, &load, job, number))
                .collect();
            let buffers = Buffers::new(&load, index as u64);
            let in_flight_at_most = load.shared.then_some(load.qd);
            let job = Job {
                index,
                lanes,
                buffers,
                in_flight_at_most,
                queues,
                timing,
                pinned,
                shared,
                start,
            };
            // The receiver is there until every job has sent.
            let _ = sender.send(job.run());
        });
    }
    drop(sender);
    let mut progress = Progress::new(args.ramp.saturating_add(args.time));
    let mut results = Vec::new();
    let mut lost = Vec::new();
    let mut alive = vec![true; controllers.len()];
    loop {
        match receiver.recv_timeout(TICK) {
            Ok(result) => results.push(result),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        progress.update(&shared);
        for (controller, alive) in controllers.iter_mut().zip(&mut alive) {
            if *alive && let Err(error) = controller.poll() {
                *alive = false;
                lost.push(format!("admin queue: {error}"));
                shared.stop.store(true, Ordering::Relaxed);
            }
        }
    }
    progress.finish();
    if let Some(first) = results.first_mut() {
        first.lost += lost.len() as u64;
        first.messages.extend(lost);
    }
    results
}

fn add_up(flows: &[Flow], results: Vec<JobResult>) -> Totals {
    let mut totals = Totals {
        flows: Vec::new(),
        series: Series::default(),
        measured: 0,
        cpu: 0,
        lost: 0,
        interrupted: false,
        read_back: !results.is_empty(),
        messages: Vec::new(),
    };
    for flow in flows {
        totals.flows.push(FlowTotals {
            connect: flow.endpoint.clone(),
            subnqn: flow.subnqn.clone(),
            nsid: flow.nsid,
            read: Tally::new(),
            write: Tally::new(),
            errors: 0,
            verified: Verified::default(),
        });
    }
    for result in results {
        totals.series.add(&result.series);
        totals.measured = totals.measured.max(result.measured);
        totals.cpu += result.cpu;
        totals.lost += result.lost;
        totals.interrupted |= result.interrupted;
        totals.read_back &= result.read_back;
        totals.messages.extend(result.messages);
        for lane in &result.lanes {
            let flow = &mut totals.flows[lane.flow];
            flow.read.add(&lane.read);
            flow.write.add(&lane.write);
            flow.errors += lane.errors;
            flow.verified.add(lane.verified);
        }
    }
    totals
}

fn parameters(args: &RunArgs, options: &Options, load: &Load) -> Parameters {
    let kind = if load.mix.random { "rand" } else { "" };
    Parameters {
        connect: args.connect.iter().map(ToString::to_string).collect(),
        nsid: args
            .nsid
            .as_ref()
            .and_then(|list| <[u32; 1]>::try_from(&*list.0).ok())
            .map(|[nsid]| nsid),
        nsids: args.nsid.as_ref().map(|list| list.0.clone()),
        rw: match load.mix.read_percent {
            100 => format!("{kind}read"),
            0 => format!("{kind}write"),
            percent => format!("{kind}rw:{percent}"),
        },
        read_percent: load.mix.read_percent,
        random: load.mix.random,
        bs: args.bs,
        qd: load.qd,
        shared_qd: load.shared,
        jobs: args.jobs,
        cpus: args.cpus.as_ref().map(|cpus| cpus.0.clone()),
        time_s: args.time.as_secs_f64(),
        ios: args.ios,
        ramp_s: args.ramp.as_secs_f64(),
        size: args.size,
        offset: args.offset,
        rate_iops: args.rate.map(|rate| rate.iops(args.bs)),
        seed: args.seed,
        hostnqn: options.hostnqn.to_string(),
        hdgst: options.hdgst,
        ddgst: options.ddgst,
        verify: args.verify,
    }
}

/// Shuts the controllers down; what fails there takes nothing from the result.
fn disconnect(controllers: Vec<Controller>) {
    for controller in controllers {
        if let Err(error) = controller.disconnect() {
            eprintln!("warning: disconnect: {error}");
        }
    }
}
