//! `cargo xtask bench pacing`: the daemon under each pacing policy, on NVMe/TCP over the loopback
//! interface or on another listener.
//!
//! | file | what |
//! |---|---|
//! | `plan` | policies, devices and depths, their order, and the daemon's config for each |
//! | `serving` | a daemon that goes from one policy to another while it serves |
//! | `yardstick` | whether the two CPUs are far apart now |
//! | `apart` | which runs are left out for that |
//! | `result` | one run as a point |
//! | `activity` | what the pacer did over time, from the daemon's statistics |
//! | `known` | how far the middle of what was measured is known |
//! | `verdict` | whether adaptive keeps what it promises |
//! | `show` | tables, plots, the page |

mod activity;
mod apart;
mod known;
mod plan;
mod result;
mod serving;
mod show;
mod verdict;
mod yardstick;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use nvmeof_report::{Plot, Point, json};
use serde_json::Value;

use super::load::{self, Endpoint};
use super::server;
use super::{go_first, machine, pinned, require_programs};
use crate::interrupt;
use crate::listen::Listen;
use crate::workspace::{Workspace, output_of, run_checked};
use activity::Moment;
use apart::Apart;
use plan::{DEVICES, Device, NSIDS, Policy, Served, Step};
use serving::Serving;
use show::Shown;

/// How often the daemon writes down what it counted while it is measured, and in the run that is
/// drawn over time.
const INTERVAL: &str = "50ms";
const FINE_INTERVAL: &str = "10ms";
/// Times a point is tried.
const ATTEMPTS: u32 = 3;
/// The run that is drawn over time.
const ACTIVITY_TIME: Duration = Duration::from_secs(3);

#[derive(Debug, clap::Args)]
#[command(
    after_help = "The daemon and the load generator have a CPU each. In each round a daemon is started for each depth, \
    which goes\nfrom one policy to the next while it serves, so that those that are compared have the same memory \
    and are\nmeasured shortly after one another. Ratios are within a round; their median is told, with how far it is \
    known\nby so many rounds.\n\n\
    Example: cargo xtask bench pacing --repeat 20 --json pacing.jsonl --svg plots --html pacing.html\n\n\
    A busy neighbour on the same core costs more than any policy wins: a point is measured again if \
    the CPUs\nare further apart meanwhile than they can be, as where a virtual machine was moved. Look at the \
    spread all the same."
)]
pub(super) struct Args {
    /// Queue depths, over all jobs and namespaces
    #[arg(
        long,
        value_name = "N,...",
        value_delimiter = ',',
        default_value = "32,64,256,1024,2048"
    )]
    depths: Vec<u32>,
    /// What is read
    #[arg(long, value_name = "DEVICE,...", value_delimiter = ',', value_enum, default_values_t = DEVICES.to_vec())]
    devices: Vec<Device>,
    /// Threads of the load generator, each with a connection of its own; they share its CPU
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    jobs: u32,
    /// How long each point is measured in each round: a number and ms or s
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = duration)]
    time: Duration,
    /// How long it runs before that
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = duration)]
    ramp: Duration,
    /// Rounds over all points
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeat: u32,
    /// One round of 200 ms a point at depths 32, 256 and 2048: to see that everything works
    #[arg(long, conflicts_with_all = ["depths", "time", "ramp", "repeat"])]
    quick: bool,
    /// Where the daemon listens
    #[arg(long, value_name = "tcp://ADDR|rdma://ADDR", default_value_t)]
    listen: Listen,
    /// CPU of the daemon
    #[arg(long, value_name = "CPU", default_value_t = 0)]
    target_cpu: usize,
    /// CPU of the load generator
    #[arg(long, value_name = "CPU", default_value_t = 1)]
    initiator_cpu: usize,
    /// Run both sides under SCHED_FIFO, for machines that are not ours alone; the kernel takes 5 % of
    /// each second away then, unless told not to, and tails show it
    #[arg(long)]
    realtime: bool,
    /// Take the release binaries as they are
    #[arg(long)]
    no_build: bool,
    /// Measure nothing: show what an earlier run wrote with --json
    #[arg(long, value_name = "FILE", conflicts_with_all = ["json", "quick", "depths"])]
    from: Option<PathBuf>,
    /// Write every run to this file as JSON lines, as soon as it is over
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write tables and plots to this file as a page
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write the plots into this folder, a file each
    #[arg(long, value_name = "DIR")]
    svg: Option<PathBuf>,
}

/// Milliseconds at least: what is shorter measures nothing.
fn duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = match text.strip_suffix("ms") {
        Some(number) => (number, 1e-3),
        None => (text.strip_suffix('s').unwrap_or("none"), 1.0),
    };
    let seconds = number.parse::<f64>().map(|number| number * unit);
    seconds
        .ok()
        .filter(|seconds| (0.1..=3600.0).contains(seconds))
        .map(Duration::from_secs_f64)
        .ok_or_else(|| format!("`{text}` is not a time from 100ms to 3600s"))
}

/// What is run, after `--quick` had its say.
#[derive(Debug)]
struct Plan {
    depths: Vec<u32>,
    time: Duration,
    ramp: Duration,
    repeat: u32,
}

impl Plan {
    fn of(args: &Args) -> Result<Self> {
        let quick = Duration::from_millis(200);
        let mut plan = match args.quick {
            true => Self { depths: vec![32, 256, 2048], time: quick, ramp: quick, repeat: 1 },
            false => Self {
                depths: args.depths.clone(),
                time: args.time,
                ramp: args.ramp,
                repeat: args.repeat,
            },
        };
        plan.depths.sort_unstable();
        plan.depths.dedup();
        for step in plan::round(0, &args.devices, &plan.depths) {
            let (device, depth, jobs) = (step.device, step.depth, args.jobs);
            ensure!(
                step.qd(jobs).is_some() && depth / jobs <= 4000,
                "--depths {depth}: {jobs} jobs and {} namespace(s) ({device}) cannot share it, or a \
                 queue would be deeper than 4000",
                device.namespaces()
            );
        }
        Ok(plan)
    }
}

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    if let Some(path) = &args.from {
        return again(args, path);
    }
    let plan = Plan::of(args)?;
    let workspace = Workspace::find()?;
    // Of several busy threads on a CPU, SCHED_FIFO runs one to its end before the next.
    ensure!(args.jobs == 1 || !args.realtime, "--realtime takes one job: they share a CPU");
    let cpus = [args.target_cpu, args.initiator_cpu];
    ensure!(cpus[0] != cpus[1], "each side needs a CPU of its own, not both CPU {}", cpus[0]);
    require_programs()?;
    server::time_of(cpus)?; // Before anything is built: they exist.
    let mut json = Output::open(args)?;
    if !args.no_build {
        let programs = ["-p", "nvmeof-tgt", "-p", "nvmeof-perf", "-p", "nvmeof-ctl"];
        run_checked(workspace.cargo(["build", "--release", "--locked"]).args(programs))?;
    }
    if args.realtime {
        go_first()?;
    }
    let folder = workspace.target().join("bench-pacing");
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let build = build_of(&workspace)?;
    let bench =
        Bench { args, plan: &plan, workspace: &workspace, folder, machine: machine(), build };

    let before = server::time_of(cpus)?;
    let wanted = plan::round(0, &args.devices, &plan.depths).len() * usize::try_from(plan.repeat)?;
    let mut apart = Apart::new(cpus, plan.time, wanted)?;
    interrupt::handle_signals()?;
    let points = bench.rounds(&mut json, &mut apart)?;
    if interrupt::is_noted() {
        let kept = json.place().unwrap_or("nowhere, for want of --json".to_owned());
        eprintln!("interrupted after {} runs; they are kept in {kept}", points.len());
        return Ok(ExitCode::from(interrupt::STATUS));
    }
    let stolen = server::time_of(cpus)?.stolen_since(before);
    let activity = bench.activity()?;

    let note = format!("measured locally on {}, {} round(s)", bench.machine, plan.repeat);
    let about = format!(
        "{}; over {}; {} job(s); {} round(s) of {:?} after {:?} a point; {}; {stolen:.1} % of both \
         CPUs' time taken by other machines; {apart}",
        bench.machine,
        args.listen,
        args.jobs,
        plan.repeat,
        plan.time,
        plan.ramp,
        if args.realtime { "SCHED_FIFO" } else { "ordinary scheduling" },
    );
    let verdicts = verdict::all(&points, &args.devices, &plan.depths);
    let shown = Shown {
        points: &points,
        devices: &args.devices,
        depths: &plan.depths,
        verdicts: &verdicts,
        about: &about,
        note: &note,
        activity: &activity,
    };
    print!("{}", show::markdown(&shown));
    write_files(args, &shown)?;
    Ok(ExitCode::SUCCESS)
}

/// Shows the results in a file.
fn again(args: &Args, path: &Path) -> Result<ExitCode> {
    let shown_path = path.display();
    let file = File::open(path).with_context(|| format!("cannot read {shown_path}"))?;
    let (points, _) = json::read(BufReader::new(file)).with_context(|| shown_path.to_string())?;
    let depths: BTreeSet<u32> =
        points.iter().filter_map(|point| point.value(result::DEPTH)?.parse().ok()).collect();
    let depths: Vec<u32> = depths.into_iter().collect();
    let Some(first) = points.first() else { bail!("{shown_path}: there is no result") };
    let rounds = points.iter().map(|point| point.repetition).max().unwrap_or_default();
    let note = format!("measured locally on {}, {rounds} round(s)", first.platform);
    let shown = Shown {
        points: &points,
        devices: &args.devices,
        depths: &depths,
        verdicts: &verdict::all(&points, &args.devices, &depths),
        about: &format!(
            "{}; {} job(s); {rounds} round(s) of {:.1} s a point",
            first.platform, first.setting.jobs, first.measured_s
        ),
        note: &note,
        activity: &[],
    };
    Output::open(args)?;
    print!("{}", show::markdown(&shown));
    write_files(args, &shown)?;
    Ok(ExitCode::SUCCESS)
}

/// Where results go as they come.
#[derive(Debug)]
struct Output(Option<(File, PathBuf)>);

impl Output {
    /// Finds out before anything is measured whether it can be written.
    fn open(args: &Args) -> Result<Self> {
        if let Some(folder) = &args.svg {
            fs::create_dir_all(folder)
                .with_context(|| format!("cannot make {}", folder.display()))?;
        }
        let create = |path: &PathBuf| {
            File::create(path).with_context(|| format!("cannot write {}", path.display()))
        };
        args.html.as_ref().map(create).transpose()?;
        Ok(Self(
            args.json
                .as_ref()
                .map(|path| Ok::<_, anyhow::Error>((create(path)?, path.clone())))
                .transpose()?,
        ))
    }

    /// The file, if there is one.
    fn place(&self) -> Option<String> {
        self.0.as_ref().map(|(_, path)| path.display().to_string())
    }

    fn keep(&mut self, point: &Point) -> Result<()> {
        let Some((file, path)) = &mut self.0 else { return Ok(()) };
        json::write(file, point).with_context(|| format!("cannot write {}", path.display()))
    }
}

fn write_files(args: &Args, shown: &Shown<'_>) -> Result<()> {
    let write = |path: &Path, text: String| {
        fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
    };
    if let Some(path) = &args.html {
        write(path, show::page(shown)?)?;
    }
    if let Some(folder) = &args.svg {
        let activity = shown.activity.iter().map(|(name, plot)| ((*name).to_owned(), plot.clone()));
        for (name, plot) in show::plots(shown).into_iter().chain(activity) {
            write(&folder.join(name).with_extension("svg"), plot.standalone_svg())?;
        }
    }
    Ok(())
}

/// Changes when one of the binaries does.
fn build_of(workspace: &Workspace) -> Result<u64> {
    let mut hasher = DefaultHasher::new();
    for binary in ["nvmeof-tgt", "nvmeof-perf", "nvmeofctl"] {
        let path = workspace.release_binary(binary);
        fs::read(&path)
            .with_context(|| format!("cannot read {}; build it", path.display()))?
            .hash(&mut hasher);
    }
    Ok(hasher.finish())
}

struct Bench<'a> {
    args: &'a Args,
    plan: &'a Plan,
    workspace: &'a Workspace,
    /// For the config and what both sides write.
    folder: PathBuf,
    machine: String,
    build: u64,
}

/// What one run of a step left behind.
struct Ran {
    result: Value,
    /// From the start of the load on.
    moments: Vec<Moment>,
}

impl Bench<'_> {
    fn rounds(&self, output: &mut Output, apart: &mut Apart) -> Result<Vec<Point>> {
        let mut points = Vec::new();
        for round in 0..self.plan.repeat {
            let steps = plan::round(round, &self.args.devices, &self.plan.depths);
            for steps in steps.chunk_by(|one, other| one.depth == other.depth) {
                let mut serving = None;
                for &step in steps {
                    let point = apart
                        .leave_out(step.policy, || self.try_point(&mut serving, step, round + 1));
                    if interrupt::is_noted() {
                        // Whoever serves goes with us.
                        return Ok(points);
                    }
                    let point = point?;
                    output.keep(&point)?;
                    points.push(point);
                }
                // All its points are kept, so how it ends costs none of them.
                if let Some(Err(error)) = serving.map(Serving::stop) {
                    eprintln!("round {}, the daemon's end: {error:#}", round + 1);
                }
            }
            eprintln!("round {} of {} done", round + 1, self.plan.repeat);
        }
        Ok(points)
    }

    /// The machine may stop for longer than a point lasts; hours of results are not lost for that.
    fn try_point(
        &self,
        serving: &mut Option<Serving>,
        step: Step,
        repetition: u32,
    ) -> Result<Point> {
        let mut attempt = 1;
        loop {
            match self.point(serving, step, repetition) {
                Err(error) if attempt < ATTEMPTS && !interrupt::is_noted() => {
                    eprintln!("once more: {step}, round {repetition}: {error:#}");
                    // Whatever went wrong, the next one has nothing of it.
                    *serving = None;
                    attempt += 1;
                }
                outcome => return outcome.with_context(|| format!("cannot measure {step}")),
            }
        }
    }

    fn point(&self, serving: &mut Option<Serving>, step: Step, repetition: u32) -> Result<Point> {
        let Plan { ramp, time, .. } = *self.plan;
        let serving = match serving {
            Some(serving) => serving,
            none => none.insert(self.serve(step, INTERVAL, self.args.realtime)?),
        };
        serving.go_on_with(step.policy)?;
        let ran = self.load(serving, step, self.args.realtime, ramp, time)?;
        let mut hasher = DefaultHasher::new();
        (self.build, self.served(step.depth).config(step.policy)).hash(&mut hasher);
        step.arguments("", self.args.jobs).hash(&mut hasher);
        (self.args.jobs, self.plan.ramp, self.plan.time, self.args.realtime).hash(&mut hasher);
        let run = result::Run {
            step,
            repetition,
            jobs: self.args.jobs,
            machine: &self.machine,
            fingerprint: &format!("{:016x}", hasher.finish()),
        };
        let measured = activity::last(&ran.moments, self.plan.time.as_secs_f64());
        let mut point = result::point(&run, &ran.result, measured)?;
        if self.args.realtime {
            // The thread that writes statistics gets the CPU only while the reactor sleeps, which
            // is when little is in flight.
            (point.buffers_mean, point.in_flight_mib) = (None, None);
        }
        Ok(point)
    }

    /// The plots of one run of adaptive, from its first command on: with two namespaces if that is
    /// measured at all, at the depth in the middle.
    fn activity(&self) -> Result<Vec<(&'static str, Plot)>> {
        let device = self.args.devices.iter().copied().max_by_key(|device| device.namespaces());
        let depth = self.plan.depths.get(self.plan.depths.len() / 2).copied();
        let (Some(device), Some(depth)) = (device, depth) else { return Ok(Vec::new()) };
        let step = Step { policy: Policy::Adaptive, device, depth };
        let time = if self.args.quick { self.plan.time * 2 } else { ACTIVITY_TIME };
        // Not in real time: the daemon shall find the time to write down what it does.
        let draw = || {
            let serving = self.serve(step, FINE_INTERVAL, false)?;
            let ran = self.load(&serving, step, false, Duration::ZERO, time)?;
            serving.stop().map(|()| ran)
        };
        let ran = draw().with_context(|| format!("cannot draw {step}"))?;
        let note = format!("{step}; measured locally on {}", self.machine);
        Ok(activity::plots(&ran.moments, &note))
    }

    fn served(&self, depth: u32) -> Served {
        let Args { jobs, target_cpu: cpu, listen, .. } = *self.args;
        Served { depth, jobs, cpu, listen }
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

    /// Loads the daemon as the step says.
    fn load(
        &self,
        serving: &Serving,
        step: Step,
        realtime: bool,
        ramp: Duration,
        time: Duration,
    ) -> Result<Ran> {
        let Some(mut args) = step.arguments(&serving.address(), self.args.jobs) else {
            bail!("{} jobs cannot share this depth", self.args.jobs);
        };
        args.extend(["--time".to_owned(), format!("{}ms", time.as_millis())]);
        args.extend(["--ramp".to_owned(), format!("{}ms", ramp.as_millis())]);
        let before = serving.recorded()?;
        let result = self.perf(args, realtime)?;
        let moments = serving.moments_since(before)?;
        Ok(Ran { result, moments })
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

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    fn plan(line: &str) -> Result<Plan> {
        let cli = Cli::try_parse_from(std::iter::once("pacing").chain(line.split_whitespace()))?;
        Plan::of(&cli.args)
    }

    #[test]
    fn without_a_word_it_is_what_was_asked_for() {
        let cli = Cli::try_parse_from(["pacing"]).expect("defaults");
        assert_eq!(cli.args.devices, DEVICES);
        let plan = Plan::of(&cli.args).expect("they can be shared");
        assert_eq!(plan.depths, [32, 64, 256, 1024, 2048]);
        assert_eq!((plan.repeat, cli.args.jobs), (10, 1));
    }

    #[test]
    fn quick_is_one_short_round() {
        let quick = plan("--quick").expect("it can be shared");
        assert_eq!((quick.repeat, quick.time), (1, Duration::from_millis(200)));
        assert!(plan("--quick --repeat 2").is_err());
    }

    #[test]
    fn depths_are_sorted_and_those_that_cannot_be_shared_are_refused() {
        assert_eq!(plan("--depths 64,32,64").expect("fine").depths, [32, 64]);
        let error = plan("--depths 64,30 --jobs 4").expect_err("30 over 4 jobs");
        assert!(error.to_string().contains("--depths 30"), "{error}");
        assert!(plan("--depths 4 --jobs 4 --devices mix").is_err(), "less than one each");
        assert!(plan("--depths 4 --jobs 4 --devices ram").is_ok());
        assert!(plan("--depths 32768 --jobs 8").is_err(), "deeper than a queue");
    }

    #[test]
    fn times() {
        assert_eq!(duration("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(duration("200ms"), Ok(Duration::from_millis(200)));
        for text in ["5", "1h", "-1s", "0s", "NaNs", "infs", "s"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }
}
