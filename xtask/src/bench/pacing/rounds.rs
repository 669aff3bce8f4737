//! Everything that is measured, in turns.
//!
//! ```text
//! round --a depth--> daemon and load --a cycle--> comparison --a policy--> stint --a device--> turn
//! ```

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use nvmeof_report::{Plot, Point};
use serde_json::Value;

use super::activity::{self, Moment};
use super::apart::Apart;
use super::plan::{self, Comparison, Device, NSIDS, POLICIES, Policy, Served, Step};
use super::result::{self, Counted};
use super::serving::Serving;
use super::turns::Load;
use super::{Args, Output, Plan};
use crate::bench::load::{self, Endpoint};
use crate::bench::pinned;
use crate::interrupt;
use crate::workspace::{Workspace, output_of};

/// How often the daemon writes down what it counted while it is measured, and in the run that is
/// drawn over time.
const INTERVAL: &str = "50ms";
const FINE_INTERVAL: &str = "10ms";
/// How long a load goes on before its first turn, on each namespace: memory is touched for the first time meanwhile.
const WARM_UP: Duration = Duration::from_millis(500);
/// A load that completes nothing for so long has nothing outstanding any more, and how often that is looked at.
const EMPTY: Duration = Duration::from_millis(20);
const LOOKS: u32 = 1000;
/// Times a comparison is tried.
const ATTEMPTS: u32 = 3;
/// The run that is drawn over time.
const ACTIVITY_TIME: Duration = Duration::from_secs(3);

/// Whoever measures.
pub(super) struct Bench<'a> {
    pub(super) args: &'a Args,
    pub(super) plan: &'a Plan,
    pub(super) workspace: &'a Workspace,
    /// For the config and what both sides write.
    pub(super) folder: PathBuf,
    pub(super) machine: String,
    pub(super) build: u64,
}

/// A daemon under load.
struct Loaded {
    serving: Serving,
    load: Load,
}

/// What was counted, by step and in the order of cycles.
type Turns = Vec<(Step, Vec<Counted>)>;

impl Bench<'_> {
    /// How many comparisons there are in all.
    pub(super) fn comparisons(&self) -> Result<usize> {
        let a_cycle = plan::cycle(0, &self.args.devices, 1).len();
        let cycles = u64::from(self.plan.turns) * u64::from(self.plan.repeat);
        Ok(a_cycle * self.plan.depths.len() * usize::try_from(cycles)?)
    }

    pub(super) fn rounds(&self, output: &mut Output, apart: &mut Apart) -> Result<Vec<Point>> {
        let mut points = Vec::new();
        for round in 0..self.plan.repeat {
            for &depth in &self.plan.depths {
                let turns = self.depth(depth, round, apart)?;
                if interrupt::is_noted() {
                    return Ok(points);
                }
                for (step, turns) in &turns {
                    let point = self.point(*step, round + 1, turns);
                    output.keep(&point)?;
                    points.push(point);
                }
            }
            eprintln!("round {} of {} done", round + 1, self.plan.repeat);
        }
        Ok(points)
    }

    /// All turns of a depth in a round; not all of them if it is interrupted.
    fn depth(&self, depth: u32, round: u32, apart: &mut Apart) -> Result<Turns> {
        let mut turns: Turns = Vec::new();
        let mut loaded = None;
        for cycle in 0..self.plan.turns {
            let number = round * self.plan.turns + cycle;
            for comparison in plan::cycle(number, &self.args.devices, depth) {
                let counted = apart.leave_out(|| self.try_to_compare(&mut loaded, &comparison));
                if interrupt::is_noted() {
                    // Whoever serves, and whoever loads, goes with us.
                    return Ok(turns);
                }
                for (step, counted) in counted? {
                    match turns.iter_mut().find(|(known, _)| *known == step) {
                        Some((_, turns)) => turns.push(counted),
                        None => turns.push((step, vec![counted])),
                    }
                }
            }
        }
        if let Some(Loaded { serving, load }) = loaded {
            load.stop().with_context(|| format!("cannot measure depth {depth}"))?;
            // All that was counted is there, so how it ends costs none of it.
            if let Err(error) = serving.stop() {
                eprintln!("round {}, the daemon's end: {error:#}", round + 1);
            }
        }
        // In the order of tables, whoever came first here.
        let place = |policy| POLICIES.iter().position(|known| *known == policy);
        turns.sort_by_key(|(step, _)| place(step.policy));
        Ok(turns)
    }

    /// The machine may stop for longer than a turn lasts; hours of results are not lost for that.
    fn try_to_compare(
        &self,
        loaded: &mut Option<Loaded>,
        comparison: &Comparison,
    ) -> Result<Vec<(Step, Counted)>> {
        let mut attempt = 1;
        loop {
            match self.compare(loaded, comparison) {
                Err(error) if attempt < ATTEMPTS && !interrupt::is_noted() => {
                    eprintln!("once more: {error:#}");
                    // Whatever went wrong, the next one has nothing of it.
                    *loaded = None;
                    attempt += 1;
                }
                outcome => return outcome,
            }
        }
    }

    fn compare(
        &self,
        loaded: &mut Option<Loaded>,
        comparison: &Comparison,
    ) -> Result<Vec<(Step, Counted)>> {
        let mut counted = Vec::new();
        for stint in comparison {
            for (number, &step) in stint.steps.iter().enumerate() {
                let what = || format!("cannot measure {step}");
                if loaded.is_none() {
                    *loaded = Some(self.start(step).with_context(what)?);
                }
                let loaded = loaded.as_mut().context("nothing serves")?;
                if number == 0 {
                    Self::hand_over(loaded, stint.policy).with_context(what)?;
                }
                counted.push((step, self.turn(loaded, step).with_context(what)?));
                if interrupt::is_noted() {
                    bail!("interrupted");
                }
            }
        }
        Ok(counted)
    }

    /// Has the next policy begin with nothing of what the one before has left.
    fn hand_over(Loaded { serving, load }: &mut Loaded, policy: Policy) -> Result<()> {
        load.change_to(&plan::nothing())?;
        // Nothing that waits is held up for long.
        serving.go_on_with(Policy::None)?;
        let is_empty = |_| Ok(load.count(EMPTY)?["ios"] == 0);
        let looks = (0..LOOKS).map(is_empty).find(|look: &Result<bool>| !matches!(look, Ok(false)));
        ensure!(looks.transpose()? == Some(true), "what is outstanding does not come to an end");
        serving.go_on_with(policy)
    }

    fn turn(&self, loaded: &mut Loaded, step: Step) -> Result<Counted> {
        let Loaded { serving, load } = loaded;
        let depths = step.depths(self.args.jobs);
        load.change_to(&depths.context("the jobs cannot share this depth")?)?;
        thread::sleep(self.plan.ramp);
        let before = serving.recorded()?;
        let result = load.count(self.plan.time)?;
        let moments = serving.moments_since(before)?;
        Counted::read(step, &result, moments)
    }

    fn point(&self, step: Step, repetition: u32, turns: &[Counted]) -> Point {
        let Plan { time, ramp, .. } = *self.plan;
        let mut hasher = DefaultHasher::new();
        (self.build, self.served(step.depth).config(step.policy)).hash(&mut hasher);
        (step.depths(self.args.jobs), self.args.jobs, ramp, time).hash(&mut hasher);
        (self.args.realtime, turns.len()).hash(&mut hasher);
        let run = result::Run {
            step,
            repetition,
            jobs: self.args.jobs,
            machine: &self.machine,
            fingerprint: &format!("{:016x}", hasher.finish()),
        };
        let mut point = result::point(&run, turns);
        if self.args.realtime {
            // The thread that writes statistics gets the CPU only while the reactor sleeps, which
            // is when little is in flight.
            (point.buffers_mean, point.in_flight_mib) = (None, None);
        }
        point
    }

    /// The plots of one run of adaptive, from its first command on: with two namespaces if that is
    /// measured at all, at the depth in the middle.
    pub(super) fn activity(&self) -> Result<Vec<(&'static str, Plot)>> {
        let device = self.args.devices.iter().copied().max_by_key(|device| device.namespaces());
        let depth = self.plan.depths.get(self.plan.depths.len() / 2).copied();
        let (Some(device), Some(depth)) = (device, depth) else { return Ok(Vec::new()) };
        let step = Step { policy: Policy::Adaptive, device, depth };
        let time = if self.args.quick { self.plan.time * 2 } else { ACTIVITY_TIME };
        // Not in real time: the daemon shall find the time to write down what it does.
        let draw = || {
            let serving = self.serve(step, FINE_INTERVAL, false)?;
            let moments = self.moments(&serving, step, time)?;
            serving.stop().map(|()| moments)
        };
        let moments = draw().with_context(|| format!("cannot draw {step}"))?;
        let note = format!("{step}; measured locally on {}", self.machine);
        Ok(activity::plots(&moments, &note))
    }

    /// What the daemon writes down from the first command of a step on.
    fn moments(&self, serving: &Serving, step: Step, time: Duration) -> Result<Vec<Moment>> {
        let Some(mut args) = step.arguments(&serving.address(), self.args.jobs) else {
            bail!("{} jobs cannot share this depth", self.args.jobs);
        };
        args.extend(["--time".to_owned(), format!("{}ms", time.as_millis())]);
        let before = serving.recorded()?;
        self.perf(args, false)?;
        serving.moments_since(before)
    }

    fn served(&self, depth: u32) -> Served {
        let Args { jobs, target_cpu: cpu, listen, .. } = *self.args;
        Served { depth, jobs, cpu, listen }
    }

    /// Starts the daemon under the policy of this step, and a load that waits for its turns.
    fn start(&self, step: Step) -> Result<Loaded> {
        let serving = self.serve(step, INTERVAL, self.args.realtime)?;
        let Args { jobs, initiator_cpu, realtime, .. } = *self.args;
        let mut command = pinned(self.workspace, realtime, initiator_cpu, "nvmeof-perf");
        command.args(plan::turns_of(&serving.address(), step.depth, jobs));
        let mut load = Load::start(command)?;
        for device in [Device::Ram, Device::Delay] {
            let depths = Step { device, ..step }.depths(jobs);
            load.change_to(&depths.context("the jobs cannot share this depth")?)?;
            thread::sleep(WARM_UP);
        }
        Ok(Loaded { serving, load })
    }

    /// Starts the daemon for this step and others of its depth, and writes its memory once.
    fn serve(&self, step: Step, interval: &str, realtime: bool) -> Result<Serving> {
        let command = pinned(self.workspace, realtime, self.args.target_cpu, "nvmeof-tgt");
        let served = self.served(step.depth);
        let Self { workspace, folder, .. } = self;
        let serving = Serving::start(workspace, command, folder, served, step.policy, interval)?;
        for nsid in NSIDS {
            let endpoint = Endpoint { address: serving.address(), null: nsid, ram: nsid };
            self.perf(load::fill(&endpoint), realtime)?;
        }
        Ok(serving)
    }

    /// Runs the load generator to its end and hands back what it reports.
    fn perf(&self, args: Vec<String>, realtime: bool) -> Result<Value> {
        let json = self.folder.join("point.json");
        let mut command = pinned(self.workspace, realtime, self.args.initiator_cpu, "nvmeof-perf");
        command.args(args).arg("--json").arg(&json);
        output_of(&mut command)?;
        let text = fs::read(&json).with_context(|| format!("cannot read {}", json.display()))?;
        Ok(serde_json::from_slice(&text)?)
    }
}
