//! The measurements, interleaved in turns.
//!
//! ```text
//! round --a depth--> daemon and load --a comparison--> a run of each policy --> a turn a device
//! ```

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::process::Command;
use std::slice;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nvmeof_console::complain;
use nvmeof_report::Point;
use nvmeof_workspace::checkout::{Workspace, output_of};
use serde_json::Value;

use super::activity::{PacerActivity, StatsSample};
use super::link::{LinkRate, LoadLink};
use super::load_generator::LoadGenerator;
use super::plan::{
    self, BenchDevice, BenchPolicy, ComparedRuns, DaemonConfig, MeasuredStep, NSIDS, POLICIES,
};
use super::result::{self, TurnLabels};
use super::switching_daemon::SwitchingDaemon;
use super::{BenchPlan, PacingArgs, ResultsOutput};
use crate::bench::load::{self, Endpoint};
use crate::bench::pinned;
use crate::interrupt;

/// Maximum interval of the daemon's statistics during a measurement, which cost time on its one
/// CPU.
pub(super) const INTERVAL: Duration = Duration::from_millis(200);
/// Minimum number of intervals in a turn.
pub(super) const MOMENTS: u32 = 4;
/// Interval in the run that is plotted over time.
const FINE_INTERVAL: Duration = Duration::from_millis(10);
/// Time of a load before its first turn, on each namespace: the load touches its memory for the
/// first time.
pub(super) const WARM_UP: Duration = Duration::from_millis(500);
/// Number of attempts at a comparison or a mix.
pub(super) const ATTEMPTS: u32 = 3;
/// Duration of the run that is plotted over time.
const ACTIVITY_TIME: Duration = Duration::from_secs(3);

/// The state of a benchmark.
pub(super) struct PacingBench<'a> {
    pub(super) args: &'a PacingArgs,
    pub(super) plan: &'a BenchPlan,
    pub(super) workspace: &'a Workspace,
    /// Folder of the config and of both sides' output.
    pub(super) folder: PathBuf,
    pub(super) machine: String,
    pub(super) build: u64,
    /// Rate of the link between daemon and load.
    pub(super) rate: LinkRate,
    pub(super) link: LoadLink,
}

/// A daemon under load; the load ends first.
struct LoadedDaemon {
    load: LoadGenerator,
    switching_daemon: SwitchingDaemon,
}

impl PacingBench<'_> {
    pub(super) fn rounds(&self, output: &mut ResultsOutput) -> Result<Vec<Point>> {
        let mut points = Vec::new();
        for round in 0..self.plan.repeat {
            for &depth in &self.plan.depths {
                let measured = self.depth(depth, round);
                if interrupt::is_noted() {
                    return Ok(points);
                }
                for point in measured? {
                    output.keep(&point)?;
                    points.push(point);
                }
            }
            complain!("round {} of {} done", round + 1, self.plan.repeat);
        }
        Ok(points)
    }

    /// Measures all points of a depth in a round, in the order of tables.
    fn depth(&self, depth: u32, round: u32) -> Result<Vec<Point>> {
        let mut points = Vec::new();
        let mut loaded = None;
        for comparison in plan::round(round, &self.args.devices, depth) {
            points.extend(self.try_to_compare(&mut loaded, &comparison, round + 1)?);
        }
        if let Some(LoadedDaemon { load, switching_daemon }) = loaded {
            // All points are complete, so an error at the end costs none of them.
            if let Err(error) = load.stop().and_then(|()| switching_daemon.stop()) {
                complain!("round {}, the end of depth {depth}: {error:#}", round + 1);
            }
        }
        let place = |policy: &str| POLICIES.iter().position(|known| known.to_string() == policy);
        points.sort_by_key(|point| place(&point.policy));
        Ok(points)
    }

    /// Measures a comparison, with further attempts after an error.
    ///
    /// The machine can stop for longer than a turn lasts, which must not lose hours of results.
    fn try_to_compare(
        &self,
        loaded: &mut Option<LoadedDaemon>,
        comparison: &ComparedRuns,
        repetition: u32,
    ) -> Result<Vec<Point>> {
        let mut attempt = 1;
        loop {
            match self.compare(loaded, comparison, repetition) {
                Err(error) if attempt < ATTEMPTS && !interrupt::is_noted() => {
                    complain!("once more, round {repetition}: {error:#}");
                    // The next attempt inherits nothing of the failed one.
                    *loaded = None;
                    attempt += 1;
                }
                outcome => return outcome,
            }
        }
    }

    fn compare(
        &self,
        loaded: &mut Option<LoadedDaemon>,
        comparison: &ComparedRuns,
        repetition: u32,
    ) -> Result<Vec<Point>> {
        let mut points = Vec::new();
        for run in comparison {
            for (number, &step) in run.steps.iter().enumerate() {
                let what = || format!("cannot measure {step}");
                if loaded.is_none() {
                    *loaded = Some(self.start(step).with_context(what)?);
                }
                let loaded = loaded.as_mut().context("nothing serves")?;
                if number == 0 {
                    let LoadedDaemon { switching_daemon, load } = loaded;
                    switching_daemon
                        .hand_over(slice::from_mut(load), run.policy)
                        .with_context(what)?;
                }
                points.push(self.turn(loaded, step, repetition).with_context(what)?);
            }
        }
        Ok(points)
    }

    fn turn(
        &self,
        loaded: &mut LoadedDaemon,
        step: MeasuredStep,
        repetition: u32,
    ) -> Result<Point> {
        let (time, ramp) = (self.plan.time, self.plan.settle(step.policy));
        let LoadedDaemon { switching_daemon, load } = loaded;
        let depths = step.depths(self.args.jobs).context("the jobs cannot share this depth")?;
        load.change_to(&depths)?;
        interrupt::sleep(ramp);
        let before = switching_daemon.recorded()?;
        let counted = load.count(time)?;
        let moments = switching_daemon.moments_since(before)?;
        if interrupt::is_noted() {
            bail!("interrupted");
        }
        let mut hasher = DefaultHasher::new();
        (self.build, self.served(step.depth).config(), step.policy.config()).hash(&mut hasher);
        (depths, self.args.jobs, ramp, time).hash(&mut hasher);
        self.rate.to_string().hash(&mut hasher);
        let run = result::TurnContext {
            labels: TurnLabels::of(step, self.args.jobs),
            repetition,
            machine: &self.machine,
            link: self.rate,
            adaptive_settle: self.plan.adaptive_settle,
            fingerprint: &format!("{:016x}", hasher.finish()),
        };
        result::point(&run, &counted, &moments).and_then(result::with_work)
    }

    /// Runs adaptive once, from its first command on, for the plots over time.
    ///
    /// It uses two namespaces if any measured device has two, at the median depth.
    pub(super) fn activity(&self) -> Result<Option<PacerActivity>> {
        let device = self.args.devices.iter().copied().max_by_key(|device| device.namespaces());
        let depth = self.plan.depths.get(self.plan.depths.len() / 2).copied();
        let (Some(device), Some(depth)) = (device, depth) else { return Ok(None) };
        let step = MeasuredStep { policy: BenchPolicy::Adaptive, device, depth };
        let time = if self.args.quick { self.plan.time * 2 } else { ACTIVITY_TIME };
        let run = || {
            let switching_daemon = self.serve(step, FINE_INTERVAL)?;
            let moments = self.moments(&switching_daemon, step, time)?;
            switching_daemon.stop().map(|()| moments)
        };
        let moments = run().with_context(|| format!("cannot draw {step}"))?;
        let place = format!("measured on {}", self.machine);
        Ok(Some(PacerActivity { run: step.to_string(), place, moments }))
    }

    /// Returns the daemon's statistics from the first command of a step on.
    fn moments(
        &self,
        switching_daemon: &SwitchingDaemon,
        step: MeasuredStep,
        time: Duration,
    ) -> Result<Vec<StatsSample>> {
        let Some(mut args) = step.arguments(&switching_daemon.address(), self.args.jobs) else {
            bail!("{} jobs cannot share this depth", self.args.jobs);
        };
        args.extend(["--time".to_owned(), format!("{}ms", time.as_millis())]);
        let before = switching_daemon.recorded()?;
        self.perf(args)?;
        switching_daemon.moments_since(before)
    }

    fn served(&self, depth: u32) -> DaemonConfig {
        let PacingArgs { jobs, target_cpu: cpu, listen, .. } = *self.args;
        DaemonConfig { depth, jobs, cpu, listen }
    }

    /// Starts the daemon under the policy of this step, and a load that waits for its turns.
    fn start(&self, step: MeasuredStep) -> Result<LoadedDaemon> {
        let switching_daemon = self.serve(step, INTERVAL.min(self.plan.time / MOMENTS))?;
        let jobs = self.args.jobs;
        let mut command = self.initiator();
        command.args(plan::turns_of(&switching_daemon.address(), step.depth, jobs));
        let mut load = LoadGenerator::start(command, &NSIDS)?;
        for device in [BenchDevice::Ram, BenchDevice::Delay] {
            let depths = MeasuredStep { device, ..step }.depths(jobs);
            load.change_to(&depths.context("the jobs cannot share this depth")?)?;
            interrupt::sleep(WARM_UP);
        }
        Ok(LoadedDaemon { load, switching_daemon })
    }

    /// Starts the daemon for this step and others of its depth, and writes its memory once.
    fn serve(&self, step: MeasuredStep, interval: Duration) -> Result<SwitchingDaemon> {
        let Self { workspace, folder, link, args, .. } = self;
        let command = link.command(pinned(workspace, false, args.target_cpu, "nvmeof-tgt"));
        let served = self.served(step.depth).config();
        let interval = format!("{}ms", interval.as_millis());
        let switching_daemon =
            SwitchingDaemon::start(workspace, command, folder, served, step.policy, &interval)?;
        for nsid in NSIDS {
            let endpoint = Endpoint { address: switching_daemon.address(), null: nsid, ram: nsid };
            self.perf(load::fill(&endpoint))?;
        }
        Ok(switching_daemon)
    }

    /// Returns the load generator's command, at its end of the link.
    pub(super) fn initiator(&self) -> Command {
        let Self { workspace, link, args, .. } = self;
        link.command(pinned(workspace, false, args.initiator_cpu, "nvmeof-perf"))
    }

    /// Runs the load generator to its end and returns its report.
    pub(super) fn perf(&self, args: Vec<String>) -> Result<Value> {
        let json = self.folder.join("point.json");
        let mut command = self.initiator();
        command.args(args).arg("--json").arg(&json);
        output_of(&mut command)?;
        let text = fs::read(&json).with_context(|| format!("cannot read {}", json.display()))?;
        Ok(serde_json::from_slice(&text)?)
    }
}
