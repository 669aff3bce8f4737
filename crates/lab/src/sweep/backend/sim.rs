//! The simulator as a backend: setup -> scenario -> outcome -> point.

use std::path::Path;

use anyhow::{Context, Error, Result, bail, ensure};
use nvmeof_pacing as pacing;
use nvmeof_report::{
    Figures, Flow, Latency, Point, PointConfig, PointPart, RunOrigin, Sample, jain,
};
use nvmeof_sim::{Platform, RunResult, Scenario, run_result, scenario};
use nvmeof_workspace::running_program;

use super::super::conditions::{RunMachine, conditions};
use super::super::plan::{PlannedPoint, show_size};
use super::super::published::PublishedRows;
use super::super::setup::{
    DeviceKind, DisturbanceKind, FillRate, HostJob, Initiator, PacingSetup, PeriodTuner,
    PointSetup, TargetDevices,
};
use super::{PointRun, SweepBackend, digest};
use crate::averages::mean;

const MIB: f64 = 1_048_576.0;
const NS_A_SECOND: f64 = 1e9;
/// Points that run concurrently: each uses a whole core, and the machine can have other work.
const PARALLEL_POINTS: usize = 2;

/// The simulator, for one platform.
#[derive(Debug)]
pub(crate) struct Simulator {
    name: String,
    platform: Platform,
    /// Identifies the build of the simulator and of the policies.
    code: String,
    /// Rows measured on the machine that the platform models.
    published: PublishedRows,
}

impl Simulator {
    /// Creates the simulator with the platform of this file.
    pub(crate) fn new(name: &str, file: &Path) -> Result<Self> {
        let code = std::fs::read(running_program::path());
        let code = digest(&code.context("cannot read this very program")?);
        let (platform, published) = (Platform::load(file)?, PublishedRows::of(name, file)?);
        Ok(Self { name: name.to_owned(), platform, code, published })
    }

    fn machine(&self) -> RunMachine {
        RunMachine {
            target: format!("simulated platform {}", self.name),
            hosts: String::new(),
            commit: nvmeof_build_info::COMMIT.to_owned(),
        }
    }

    /// Returns the platform with the changes of this point.
    fn platform(&self, setup: &PointSetup) -> Result<Platform> {
        let mut table = toml::Table::try_from(&self.platform)?;
        let mut factors = [1.0; 3];
        for (key, value) in &setup.platform {
            let scales = ["scale-rate", "scale-cache", "scale-time"];
            if let Some(at) = scales.iter().position(|scale| scale == key) {
                factors[at] = *value;
                continue;
            }
            let Some(number) = table.get_mut(key) else {
                let known: Vec<_> = table.keys().map(String::as_str).chain(scales).collect();
                bail!(
                    "platform.{key}: a platform has no such number; allowed: {}",
                    known.join(", ")
                );
            };
            *number = match number {
                // A count has no fraction; the conversion below rejects the others.
                toml::Value::Integer(_) if value.fract() == 0.0 => {
                    toml::Value::Integer(format!("{value:.0}").parse()?)
                }
                _ => toml::Value::Float(*value),
            };
        }
        let changed: Platform = table.try_into().context("[platform]")?;
        let [rate, cache, time] = factors;
        let changed = changed.scaled(rate, cache, time);
        let is_local = setup.hosts.contains(&Initiator::Local);
        let changed = if is_local { without_fabric(&changed) } else { changed };
        changed.check()?;
        Ok(changed)
    }
}

impl SweepBackend for Simulator {
    fn platform(&self) -> String {
        self.name.clone()
    }

    fn check(&self, point: &PlannedPoint) -> Result<()> {
        ensure!(
            point.setup.set.is_empty(),
            "target.set: the simulator has no such keys; use only-where = [\"local\", \"remote\"]"
        );
        self.platform(&point.setup)?;
        let scenario = scenario(&point.setup, 1)?;
        scenario.check().map_err(Error::msg)?;
        if let scenario::Pacing::Policy(config) = &scenario.pacing {
            let sizes = scenario.jobs.iter().flat_map(|job| &job.blocks).map(|(size, _)| *size);
            let machine = pacing::PacedMachine {
                cores: scenario.cores as usize,
                largest: sizes.max().unwrap_or(1),
            };
            pacing::SharedPolicy::new(config, machine).context("target.pacing")?;
        }
        Ok(())
    }

    fn fingerprint(&self, setup: &PointSetup, seed: u64) -> String {
        let repeat_is_not_in_it = PointSetup { repeat: 1, ..setup.clone() };
        let numbers = self.platform.fingerprint();
        digest(format!("{repeat_is_not_in_it:?} {seed} {numbers} {}", self.code).as_bytes())
    }

    fn run(&self, run: &PointRun<'_>) -> Result<Point> {
        let platform = self.platform(&run.point.setup)?;
        let scenario = scenario(&run.point.setup, run.seed)?;
        let outcome = nvmeof_sim::run(&platform, &scenario)?;
        let fingerprint = self.fingerprint(&run.point.setup, run.seed);
        let setup = &run.point.setup;
        let measured = self.published.like(&run.plan.test, setup);
        let conditions = conditions(setup, &self.machine());
        Ok(Point { conditions, measured, ..point(run, &self.name, fingerprint, outcome) })
    }

    fn parallel_points(&self) -> usize {
        PARALLEL_POINTS
    }
}

/// Returns the machine for a load on the target itself: the drives, and nothing between them and
/// the load that takes time.
fn without_fabric(platform: &Platform) -> Platform {
    const AT_ONCE_GBPS: f64 = 1e6;
    Platform {
        one_way_us: 0.0,
        drive_path_us: 0.0,
        step_us: 0.0,
        port_gbps: AT_ONCE_GBPS,
        fetch_hit_gbps: AT_ONCE_GBPS,
        fetch_miss_gbps: AT_ONCE_GBPS,
        fetch_quiet_gbps: AT_ONCE_GBPS,
        ..platform.clone()
    }
}

/// Returns the scenario for the simulator.
pub(crate) fn scenario(setup: &PointSetup, seed: u64) -> Result<Scenario> {
    let initiator = setup.hosts[0];
    ensure!(
        setup.hosts.iter().all(|host| *host == initiator),
        "host.initiator: the simulator runs the same program on all hosts; \
         use hosts of one kind, or --where remote"
    );
    ensure!(
        initiator != Initiator::Local || setup.hosts.len() == 1,
        "host.count: a target is one machine, so a local load is one host"
    );
    let jobs = setup.jobs.iter().map(|job| scenario::Job {
        devices: job.devices.iter().map(|at| *at as usize).collect(),
        queue_depth: job.queue_depth,
        threads: job.threads,
        blocks: job.blocks.clone(),
        reads: job.reads,
        weight: job.weight,
        hosts: job.hosts.clone(),
        from: job.from,
        until: job.until,
    });
    let disturbances = setup.disturbances.iter().map(|disturbance| scenario::Disturbance {
        at: disturbance.at,
        lasts: disturbance.lasts,
        what: match disturbance.what {
            DisturbanceKind::Link(rate) => scenario::DisturbanceKind::Link(rate),
            DisturbanceKind::Drives => scenario::DisturbanceKind::Drives,
            DisturbanceKind::Cores => scenario::DisturbanceKind::Cores,
        },
    });
    Ok(Scenario {
        seed,
        warm_up: setup.ramp,
        time: setup.time,
        sample: setup.sample,
        hosts: u32::try_from(setup.hosts.len())?,
        initiator: match initiator {
            Initiator::FioKernel => scenario::Initiator::Kernel,
            Initiator::FioSpdk | Initiator::Perf | Initiator::Local => scenario::Initiator::Spdk,
        },
        cores: setup.cores,
        devices: devices(&setup.devices),
        jobs: jobs.collect(),
        pacing: policy(&setup.pacing, setup.cores),
        disturbances: disturbances.collect(),
    })
}

/// Lists the devices part by part, each on the drives in order, the slow ones first.
fn devices(devices: &TargetDevices) -> Vec<scenario::Device> {
    let delay = |at: u32| {
        let delay = devices.delay.filter(|(_, slow)| at < *slow);
        delay.map_or(scenario::Delay::None, |(delay, _)| scenario::Delay::AfterData(delay))
    };
    let device = |at: u32| {
        let (drive, delay) = (at % devices.count, delay(at));
        match devices.kind {
            DeviceKind::Null => scenario::Device::Null,
            DeviceKind::Drive => scenario::Device::Drive { drive, delay },
            DeviceKind::Part(_) => scenario::Device::Part { drive, delay },
        }
    };
    (0..devices.namespaces()).map(device).collect()
}

fn policy(setup: &PacingSetup, cores: u32) -> scenario::Pacing {
    let config = match *setup {
        PacingSetup::EndlessCache => return scenario::Pacing::EndlessCache,
        PacingSetup::None => pacing::PolicyConfig::None,
        PacingSetup::Adaptive => pacing::PolicyConfig::Adaptive,
        PacingSetup::BufferCredit { budget } => pacing::PolicyConfig::BufferCredit { budget },
        PacingSetup::TokenBucket { pace, burst, budget } => {
            let pace = match pace {
                FillRate::Rate(rate) => pacing::RateSpec::Rate(rate),
                FillRate::Period(period) => pacing::RateSpec::Period(period),
            };
            pacing::PolicyConfig::TokenBucket(pacing::TokenBucketConfig { pace, burst, budget })
        }
        PacingSetup::Prototype { pool, pacer } => {
            let pool = pool.map(|pool| pacing::PrototypePool {
                buffers: pool.buffers,
                cache: pool.cache.unwrap_or(pool.buffers / cores),
            });
            let pacer = pacer.map(|pacer| pacing::PrototypePacer {
                period: pacer.period,
                credit: pacer.credit,
                bypass_below: pacer.bypass_below,
                drive_limit: pacer.drive_limit,
                tuner: pacer.tuner.map(|tuner| match tuner {
                    PeriodTuner::BytesInFlight { threshold } => {
                        pacing::PrototypeTuner::BytesInFlight { threshold }
                    }
                    PeriodTuner::Bandwidth { interval, step } => {
                        pacing::PrototypeTuner::Bandwidth { interval, step }
                    }
                }),
            });
            pacing::PolicyConfig::Prototype(pacing::PrototypeConfig { pool, pacer })
        }
    };
    scenario::Pacing::Policy(config)
}

fn point(run: &PointRun<'_>, platform: &str, fingerprint: String, outcome: RunResult) -> Point {
    let setup = &run.point.setup;
    let seconds = precise(setup.time) / NS_A_SECOND;
    let figures = |of: &run_result::RunMetrics| figures(of, seconds);
    let part = |name: String, of: &run_result::RunMetrics| PointPart { name, figures: figures(of) };
    let hosts = outcome.hosts.iter().enumerate();
    let jobs = setup.jobs.iter().zip(&outcome.jobs);
    let flows: Vec<_> = outcome.flows.iter().map(|flow| self::flow(flow, &setup.jobs)).collect();
    let shares: Vec<_> = flows.iter().map(|flow| flow.gbps / f64::from(flow.weight)).collect();
    let series: Vec<_> = outcome.series.iter().map(sample).collect();
    let budgets = series.iter().filter_map(|sample| sample.budget_bytes).map(precise);
    let periods = series.iter().filter_map(|sample| sample.period_us);
    Point {
        plan: run.plan.name.clone(),
        test: run.plan.test.clone(),
        varied: run.point.varied.clone(),
        repetition: run.repetition,
        place: RunOrigin::Simulated,
        platform: platform.to_owned(),
        policy: setup.pacing.name().to_owned(),
        machines: None,
        fingerprint,
        seed: run.seed,
        measured_s: seconds,
        setting: setting(setup),
        conditions: Vec::new(),
        measured: Vec::new(),
        total: figures(&outcome.total),
        hosts: hosts.map(|(at, host)| part(format!("host {}", at + 1), host)).collect(),
        jobs: jobs.map(|(job, of)| part(job.name.clone(), of)).collect(),
        sizes: outcome.sizes.iter().map(|(size, of)| part(show_size((*size).into()), of)).collect(),
        fairness: jain(&shares),
        flows,
        wire_gbps: Some(outcome.wire_gbps),
        stddev_gbps: Some(outcome.stddev_gbps),
        hit_pct: Some(outcome.hit_pct),
        hit_from: None,
        buffers_mean: Some(outcome.buffers_mean),
        buffers_max: Some(outcome.buffers_max),
        in_flight_mib: Some(outcome.bytes_in_flight_mean / MIB),
        budget_bytes: mean(budgets),
        period_us: mean(periods),
        period_seen_us: period_seen(setup, seconds, outcome.total.commands),
        starved_queues: Some(outcome.starved_queues),
        target_cpus: None,
        host_cpus: None,
        network: None,
        series,
        problems: outcome.violations,
    }
}

/// Returns the mean time from one I/O to the next that a core started, in us, if a rate paces them.
pub(crate) fn period_seen(setup: &PointSetup, seconds: f64, commands: u64) -> Option<f64> {
    setup.pacing.period()?;
    let cores = f64::from(setup.cores);
    (commands > 0).then(|| seconds * 1e6 * cores / precise(commands))
}

/// Describes the point in the terms of the CSV's columns.
pub(crate) fn setting(setup: &PointSetup) -> PointConfig {
    let jobs = &setup.jobs;
    let threads: u32 = jobs.iter().map(|job| job.planned_depth().1).sum();
    let initiator = setup.hosts[0];
    let offered = jobs.iter().map(|job| {
        let hosts = u64::try_from(job.hosts_of(setup.hosts.len())).unwrap_or(u64::MAX);
        hosts * u64::from(job.queue_depth) * u64::from(job.threads)
    });
    let program = match initiator {
        Initiator::Local => "SPDK perf".to_owned(),
        Initiator::FioSpdk => "fio+SPDK".to_owned(),
        Initiator::Perf => "nvmeof-perf".to_owned(),
        Initiator::FioKernel if threads > 1 => format!("fio+kernel {threads} jobs"),
        Initiator::FioKernel => "fio+kernel".to_owned(),
    };
    let largest = jobs.iter().flat_map(|job| &job.blocks).map(|(size, _)| *size).max();
    let depth = |job: &HostJob| job.planned_depth().0;
    let third = jobs.get(2).map(depth);
    let hosts = setup.hosts.iter().filter(|host| **host != Initiator::Local).count();
    PointConfig {
        devices: setup.devices.name(initiator),
        initiator: program,
        hosts: u32::try_from(hosts).unwrap_or(u32::MAX),
        jobs: threads,
        cores: Some(setup.cores),
        period_ns: setup.pacing.period(),
        buf_cache: setup.pacing.cache(),
        job3_qd: third.filter(|third| *third != depth(&jobs[0])),
        num_buffers: setup.pacing.buffers(largest.unwrap_or(1)),
        num_delay: setup.devices.delay.map(|(_, slow)| slow),
        qd: depth(&jobs[0]),
        offered: offered.sum(),
    }
}

fn figures(of: &run_result::RunMetrics, seconds: f64) -> Figures {
    Figures {
        kiops: precise(of.commands) / seconds / 1e3,
        gbps: of.gbps,
        latency_us: latency(&of.latency),
        at_target_us: Some(latency(&of.at_target)),
    }
}

fn latency(of: &run_result::Quantiles) -> Latency {
    Latency {
        mean: of.mean / 1e3,
        p50: precise(of.p50) / 1e3,
        p99: precise(of.p99) / 1e3,
        p99_9: precise(of.p99_9) / 1e3,
        max: precise(of.max) / 1e3,
    }
}

fn flow(of: &run_result::FlowMetrics, jobs: &[HostJob]) -> Flow {
    let weight =
        usize::try_from(of.job).ok().and_then(|at| jobs.get(at)).map_or(1, |job| job.weight);
    Flow {
        host: of.host,
        job: of.job,
        device: of.device,
        weight,
        gbps: of.metrics.gbps,
        mean_us: of.metrics.latency.mean / 1e3,
        p99_us: precise(of.metrics.latency.p99) / 1e3,
    }
}

fn sample(of: &run_result::Sample) -> Sample {
    Sample {
        t: precise(of.at) / NS_A_SECOND,
        gbps: of.gbps,
        hit_pct: Some(of.hit_pct),
        buffers: Some(of.buffers),
        waiting: Some(of.waiting),
        budget_bytes: of.budget,
        period_us: of.period.map(|period| precise(period) / 1e3),
    }
}

/// Converts to a float, exact below 2^53, which is 100 days of nanoseconds.
#[expect(clippy::cast_precision_loss, reason = "no count here comes near 2^53")]
fn precise(value: u64) -> f64 {
    value as f64
}
