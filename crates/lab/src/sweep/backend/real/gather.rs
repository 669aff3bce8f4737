//! Builds one point from the counters of the hosts, the daemon and the kernel.

use nvmeof_report::{Flow, NetworkCounters, Point, PointPart, RunOrigin, Sample, jain};

use super::super::super::conditions::{RunMachine, conditions};
use super::super::PointRun;
use super::super::sim::{period_seen, setting};
use super::cache::CacheHits;
use super::counters::CounterChange;
use super::load::measured::real;
use super::load::{LoadResult, LoadTask};
use crate::averages::mean;
use crate::daemon_stats::{self, StatsSample};

const MIB: f64 = 1_048_576.0;

/// All data of one run.
#[derive(Debug)]
pub(super) struct PointSources<'a> {
    pub(super) run: &'a PointRun<'a>,
    pub(super) place: RunOrigin,
    pub(super) platform: &'a str,
    pub(super) machines: &'a str,
    pub(super) on: &'a RunMachine,
    pub(super) fingerprint: String,
    pub(super) interface: &'a str,
    /// Tasks, each with the number of its job.
    pub(super) tasks: &'a [(usize, LoadTask<'a>)],
    /// One entry per task.
    pub(super) measured: &'a [LoadResult],
    pub(super) change: CounterChange,
    pub(super) hits: &'a CacheHits,
    pub(super) hit_from: String,
    pub(super) moments: &'a [StatsSample],
}

pub(super) fn point(of: &PointSources<'_>) -> Point {
    let setup = &of.run.point.setup;
    let together = LoadResult::together(of.measured);
    let part = |name: String, which: &dyn Fn(&(usize, LoadTask<'_>)) -> bool| {
        let own = of.tasks.iter().zip(of.measured).filter(|(task, _)| which(task));
        PointPart {
            name,
            figures: LoadResult::together(own.map(|(_, measured)| measured)).figures(),
        }
    };
    let hosts = (0..setup.hosts.len())
        .map(|host| part(format!("host {}", host + 1), &|(_, task)| task.host == host));
    let jobs = setup.jobs.iter().enumerate();
    let jobs = jobs.map(|(number, job)| part(job.name.clone(), &|(own, _)| *own == number));
    let flows = flows(of);
    let shares: Vec<_> = flows.iter().map(|flow| flow.gbps / f64::from(flow.weight)).collect();
    let moments = daemon_stats::last(of.moments, together.seconds);
    let mean = |of: &dyn Fn(&StatsSample) -> Option<f64>| mean(moments.iter().filter_map(of));
    let most = moments.iter().map(|moment| moment.in_flight).fold(0.0, f64::max);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count")]
    let most = (!moments.is_empty()).then_some(most as u64);
    let series = series(&together, moments, of.hits);
    let change = of.change;
    Point {
        plan: of.run.plan.name.clone(),
        test: of.run.plan.test.clone(),
        varied: of.run.point.varied.clone(),
        repetition: of.run.repetition,
        place: of.place,
        platform: of.platform.to_owned(),
        policy: setup.pacing.name().to_owned(),
        machines: Some(of.machines.to_owned()),
        fingerprint: of.fingerprint.clone(),
        seed: of.run.seed,
        measured_s: together.seconds,
        setting: setting(setup),
        conditions: conditions(setup, of.on),
        measured: Vec::new(),
        total: together.figures(),
        hosts: hosts.collect(),
        jobs: jobs.collect(),
        sizes: Vec::new(),
        fairness: jain(&shares),
        flows,
        wire_gbps: Some(wire_gbps(of)),
        stddev_gbps: deviation(of.measured),
        hit_pct: of.hits.pct,
        hit_from: Some(of.hit_from.clone()),
        buffers_mean: mean(&|moment| Some(moment.in_flight)),
        buffers_max: most,
        in_flight_mib: mean(&|moment| Some(moment.in_flight_mib)),
        budget_bytes: mean(&|moment| moment.budget_mib.map(|mib| mib * MIB)),
        period_us: mean(&|moment| moment.policy_period_us),
        period_seen_us: period_seen(setup, together.seconds, together.ios),
        starved_queues: None,
        target_cpus: Some(change.cpus),
        host_cpus: Some(if together.seconds > 0.0 {
            together.cpu_s / together.seconds
        } else {
            0.0
        }),
        network: Some(NetworkCounters {
            dropped: change.dropped,
            retransmitted: change.retransmitted,
            rnr: change.rnr,
        }),
        series,
        problems: Vec::new(),
    }
}

/// Returns the data rate on the target's interface, in the direction that the jobs use.
fn wire_gbps(of: &PointSources<'_>) -> f64 {
    let (jobs, change) = (&of.run.point.setup.jobs, of.change);
    let reads = jobs.iter().all(|job| job.reads >= 1.0);
    let writes = jobs.iter().all(|job| job.reads <= 0.0);
    match (of.interface, reads, writes) {
        // On loopback, data sent on the interface is also received on it.
        ("lo", ..) | (_, true, _) => change.sent_gbps,
        (_, _, true) => change.received_gbps,
        _ => change.sent_gbps + change.received_gbps,
    }
}

fn flows(of: &PointSources<'_>) -> Vec<Flow> {
    let mut flows = Vec::new();
    for ((number, task), measured) in of.tasks.iter().zip(of.measured) {
        for space in &measured.spaces {
            let at = task.nsids.iter().position(|nsid| *nsid == space.nsid);
            let Some(device) = at.and_then(|at| task.job.devices.get(at)) else { continue };
            flows.push(Flow {
                host: u32::try_from(task.host).unwrap_or(u32::MAX),
                job: u32::try_from(*number).unwrap_or(u32::MAX),
                device: *device,
                weight: task.job.weight,
                gbps: space.gbps,
                mean_us: space.mean_us,
                p99_us: space.p99_us,
            });
        }
    }
    flows
}

/// Joins the hosts' samples with the daemon's last statistics before the end of each.
fn series(together: &LoadResult, moments: &[StatsSample], hits: &CacheHits) -> Vec<Sample> {
    let begin = moments.first().map_or(0.0, |first| first.t);
    let sample = |(at, gbps): (usize, &f64)| {
        let t = real(at as u64 + 1) / 10.0;
        let moment = moments.iter().rfind(|moment| moment.t - begin <= t);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "counts")]
        let count =
            |of: fn(&StatsSample) -> Option<f64>| moment.and_then(of).map(|value| value as u64);
        Sample {
            t,
            gbps: *gbps,
            hit_pct: hits.series.get(at).copied().flatten(),
            buffers: count(|moment| Some(moment.in_flight)),
            waiting: count(|moment| Some(moment.waiting)),
            budget_bytes: count(|moment| moment.budget_mib.map(|mib| mib * MIB)),
            period_us: moment.and_then(|moment| moment.policy_period_us),
        }
    };
    together.series.iter().enumerate().map(sample).collect()
}

/// Returns the deviation over the whole samples of all hosts; the last one can be incomplete.
fn deviation(measured: &[LoadResult]) -> Option<f64> {
    let whole = measured.iter().flat_map(|one| &one.series[..one.series.len().saturating_sub(1)]);
    let whole: Vec<f64> = whole.copied().collect();
    let middle = mean(whole.iter().copied())?;
    mean(whole.iter().map(|gbps| (gbps - middle).powi(2))).map(f64::sqrt)
}
