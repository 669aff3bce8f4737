//! `cargo xtask bench pacing`: the daemon under each pacing policy, on NVMe/TCP over loopback or on
//! another listener.
//!
//! | file | content |
//! |---|---|
//! | `plan` | policies, devices and depths, their order, and the daemon's config for each |
//! | `rounds` | the measurements, round by round |
//! | `switching_daemon` | a daemon that changes its policy while it serves |
//! | `load_generator` | a continuous load, counted in turns |
//! | `link` | a link that is slower than the machine, and varies less |
//! | `result` | a turn as a point |
//! | `activity` | the pacer's activity over time, from the daemon's statistics |
//! | `comparison` | comparisons of adaptive with the other policies |
//! | `show` | tables, plots, the page |
//! | `mix_plan` | `--mixes`: pairs of namespaces, their loads, and the daemon's config |
//! | `mix_turns` | the measurements of the mixes, in pairs of turns |
//! | `mix_results` | ratios, table and page of the mixes |

pub(crate) mod activity;
mod comparison;
mod link;
mod load_generator;
mod mix_plan;
mod mix_results;
mod mix_turns;
mod plan;
mod result;
mod rounds;
mod show;
mod switching_daemon;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use nvmeof_console::{complain, show};
use nvmeof_report::{Point, json};
use nvmeof_workspace::checkout::{Workspace, run_checked};

use super::server;
use super::{machine, require_programs};
use crate::listen::ListenAddress;
use crate::{interrupt, output, points};
use activity::PacerActivity;
use link::{LinkRate, LoadLink};
use mix_plan::Mix;
use plan::{BenchDevice, BenchPolicy, DEVICES, MeasuredStep};
use result::MIXES_TEST;
use rounds::PacingBench;
use show::ReportContent;

#[derive(Debug, clap::Args)]
#[command(
    after_help = "The daemon and the load generator have a CPU each, and a link between them that is slower than they are. \
    In\neach round and for each depth, one daemon serves one continuous load and changes from policy to policy. Each policy\n\
    begins without learned state and with nothing outstanding. Compared policies thus have the same memory and connection\n\
    and are measured shortly after one another; adaptive settles longer (--adaptive-settle). Ratios are within a round;\n\
    their median is shown with its 95 % confidence interval.\n\n\
    With --mixes, one daemon serves fast and slow namespaces: memory, null, a file, and null\n\
    behind 100 us, 1 ms and 10 ms. One continuous load runs on two of them, and the policy\n\
    changes from none to adaptive and back. Ratios are within a pair of adjacent turns. The\n\
    slow namespace has to keep 0.9 of its bandwidth and both together 0.97, by the lower ends\n\
    of the intervals. The full run takes about 30 minutes, --quick about one; an interval\n\
    takes at least 6 pairs.\n\n\
    Example: cargo xtask bench pacing --repeat 20 --json pacing.jsonl --svg plots --html pacing.html\n         \
    cargo xtask bench pacing --link none --devices ram --depths 256\n         \
    cargo xtask bench pacing --mixes --only 'ram + 1ms' --repeat 10"
)]
pub(super) struct PacingArgs {
    /// Queue depths, over all jobs and namespaces
    #[arg(
        long,
        value_name = "N,...",
        value_delimiter = ',',
        default_value = "32,64,256,1024,2048"
    )]
    depths: Vec<u32>,
    /// Devices to read
    #[arg(long, value_name = "DEVICE,...", value_delimiter = ',', value_enum, default_values_t = DEVICES.to_vec())]
    devices: Vec<BenchDevice>,
    /// Measure mixes of a fast and a slow namespace, adaptive against none
    #[arg(long, conflicts_with_all = ["devices", "depths", "svg", "from", "activity"])]
    mixes: bool,
    /// Only mixes whose names contain this
    #[arg(long, value_name = "TEXT", requires = "mixes")]
    only: Option<String>,
    /// Threads of the load generator, each with its own connection; they share its CPU
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    jobs: u32,
    /// Time to count in a turn: a number and ms or s [default: 1s; 1.2s with --mixes]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    time: Option<Duration>,
    /// Time for the load to settle before that [default: 1s; 300ms with --mixes]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    ramp: Option<Duration>,
    /// Additional time for the load to settle under adaptive, which learns from a number of
    /// commands: a slow link carries few in a second. 0s for the same time as the other policies
    /// [default: 3s; 0s with --mixes]
    #[arg(long, value_name = "TIME", value_parser = duration_or_none)]
    adaptive_settle: Option<Duration>,
    /// Rounds over all points, or pairs of turns of each mix [default: 10; 20 with --mixes]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeat: Option<u32>,
    /// One round of 200 ms a point at depths 32, 256 and 2048, or 6 pairs of each of 6 mixes: to
    /// see that everything works
    #[arg(long, conflicts_with_all = ["depths", "time", "ramp", "adaptive_settle", "repeat"])]
    quick: bool,
    /// Address at which the daemon listens
    #[arg(long, value_name = "tcp://ADDR|rdma://ADDR", default_value_t)]
    listen: ListenAddress,
    /// Rate of the link: a number and gbit, or none for the machine's own speed, which varies on a
    /// shared machine. A link is made in its own network namespace, which requires root [default:
    /// 10gbit for tcp:// on a loopback address, none otherwise]
    #[arg(long, value_name = "RATE|none")]
    link: Option<LinkRate>,
    /// CPU of the daemon
    #[arg(long, value_name = "CPU", default_value_t = 0)]
    target_cpu: usize,
    /// CPU of the load generator
    #[arg(long, value_name = "CPU", default_value_t = 1)]
    initiator_cpu: usize,
    /// Use the existing release binaries
    #[arg(long)]
    no_build: bool,
    /// Measure nothing: show what an earlier run wrote with --json
    #[arg(long, value_name = "FILE", conflicts_with_all = ["json", "quick", "depths"])]
    from: Option<PathBuf>,
    /// Measure nothing: draw what a pacer did over time, from what `nvmeof-tgt --stats` wrote, with
    /// --svg or --html
    #[arg(long, value_name = "FILE", conflicts_with_all = ["from", "json", "quick", "depths"])]
    activity: Option<PathBuf>,
    /// Write every point of a round to this file as JSON lines, as soon as its depth is complete
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write tables and plots to this file as a page
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write the plots into this folder, a file each, and what the pacer did over time as
    /// activity.json
    #[arg(long, value_name = "DIR")]
    svg: Option<PathBuf>,
}

/// Parses a duration of milliseconds at least: shorter ones measure nothing.
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

/// Parses the same, or zero.
fn duration_or_none(text: &str) -> Result<Duration, String> {
    match text {
        "0s" | "0ms" | "0" => Ok(Duration::ZERO),
        text => duration(text),
    }
}

/// Parameters of the run, after `--quick` is applied.
#[derive(Debug)]
struct BenchPlan {
    depths: Vec<u32>,
    mixes: Vec<Mix>,
    time: Duration,
    ramp: Duration,
    adaptive_settle: Duration,
    repeat: u32,
}

impl BenchPlan {
    fn of(args: &PacingArgs) -> Result<Self> {
        if args.mixes {
            return Self::of_mixes(args);
        }
        let ms = Duration::from_millis;
        let quick = ms(200);
        let mut plan = match args.quick {
            true => Self {
                depths: vec![32, 256, 2048],
                mixes: Vec::new(),
                time: quick,
                ramp: quick,
                adaptive_settle: quick,
                repeat: 1,
            },
            false => Self {
                depths: args.depths.clone(),
                mixes: Vec::new(),
                time: args.time.unwrap_or(ms(1000)),
                ramp: args.ramp.unwrap_or(ms(1000)),
                adaptive_settle: args.adaptive_settle.unwrap_or(ms(3000)),
                repeat: args.repeat.unwrap_or(10),
            },
        };
        plan.depths.sort_unstable();
        plan.depths.dedup();
        let all =
            plan.depths.iter().flat_map(|&depth| args.devices.iter().map(move |d| (depth, *d)));
        for (depth, device) in all {
            let (step, jobs) =
                (MeasuredStep { policy: BenchPolicy::None, device, depth }, args.jobs);
            ensure!(
                step.qd(jobs).is_some() && depth / jobs <= 4000,
                "--depths {depth}: {jobs} jobs and {} namespace(s) ({device}) cannot share it, or a \
                 queue would be deeper than 4000",
                device.namespaces()
            );
        }
        Ok(plan)
    }

    /// Short turns: within seconds, the speed of a shared machine varies more than policies differ.
    fn of_mixes(args: &PacingArgs) -> Result<Self> {
        let ms = Duration::from_millis;
        let (time, ramp, repeat) = if args.quick { (200, 200, 6) } else { (1200, 300, 20) };
        let mixes = mix_plan::chosen(args.quick, args.only.as_deref().unwrap_or_default());
        let names = mix_plan::MIXES.iter().map(Mix::to_string).collect::<Vec<_>>().join("; ");
        ensure!(!mixes.is_empty(), "--only matches no mix; the mixes are: {names}");
        Ok(Self {
            depths: Vec::new(),
            mixes,
            time: args.time.unwrap_or(ms(time)),
            ramp: args.ramp.unwrap_or(ms(ramp)),
            adaptive_settle: args.adaptive_settle.unwrap_or_default(),
            repeat: args.repeat.unwrap_or(repeat),
        })
    }

    /// Returns the time that the load settles under a policy.
    fn settle(&self, policy: BenchPolicy) -> Duration {
        match policy {
            BenchPolicy::Adaptive => self.ramp + self.adaptive_settle,
            _ => self.ramp,
        }
    }
}

pub(super) fn run(args: &PacingArgs) -> Result<ExitCode> {
    if let Some(path) = &args.from {
        return again(args, path);
    }
    if let Some(path) = &args.activity {
        return draw_activity(args, path);
    }
    let plan = BenchPlan::of(args)?;
    let workspace = Workspace::find()?;
    let cpus = [args.target_cpu, args.initiator_cpu];
    ensure!(cpus[0] != cpus[1], "each side needs a CPU of its own, not both CPU {}", cpus[0]);
    require_programs()?;
    server::time_of(cpus)?; // Fails before the build if a CPU does not exist.
    let rate = args.link.unwrap_or(LinkRate::usual(args.listen));
    rate.check(args.listen)?;
    let mut json = ResultsOutput::open(args)?;
    if !args.no_build {
        let programs = ["-p", "nvmeof-tgt", "-p", "nvmeof-perf", "-p", "nvmeof-ctl"];
        run_checked(workspace.cargo(["build", "--release", "--locked"]).args(programs))?;
    }
    let folder = workspace.target().join("bench-pacing");
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let build = build_of(&workspace)?;
    interrupt::handle_signals()?;
    let (plan, machine) = (&plan, machine());
    let link = LoadLink::make(rate)?;
    let bench =
        PacingBench { args, plan, workspace: &workspace, folder, machine, build, rate, link };

    let before = server::time_of(cpus)?;
    let points = if args.mixes { bench.mixes(&mut json)? } else { bench.rounds(&mut json)? };
    if interrupt::is_noted() {
        let kept = json.place().unwrap_or("nowhere, for want of --json".to_owned());
        complain!("interrupted after {} points; they are kept in {kept}", points.len());
        return Ok(ExitCode::from(interrupt::STATUS));
    }
    let stolen = server::time_of(cpus)?.stolen_since(before);
    report(&bench, &points, stolen)
}

/// Shows the results and writes them to files.
fn report(bench: &PacingBench<'_>, points: &[Point], stolen: f64) -> Result<ExitCode> {
    let PacingBench { args, plan, rate, .. } = bench;
    let about = format!(
        "{}; over {}, link: {rate}; {} job(s); {} round(s) of {:?} after {:?} a point, {:?} with \
         adaptive; {stolen:.1} % of both CPUs' time taken by other machines",
        bench.machine,
        args.listen,
        args.jobs,
        plan.repeat,
        plan.time,
        plan.ramp,
        plan.settle(BenchPolicy::Adaptive),
    );
    if args.mixes {
        return report_mixes(args, points, &about);
    }
    let is_drawn = args.html.is_some() || args.svg.is_some();
    let activity = if is_drawn { bench.activity() } else { Ok(None) };
    let activity = activity.unwrap_or_else(|error| {
        // A failed picture loses no measurement.
        complain!("{error:#}");
        None
    });

    let note = note(&bench.machine, points.first(), plan.repeat);
    let comparisons = comparison::all(points, &args.devices, &plan.depths);
    let shown = ReportContent {
        points,
        devices: &args.devices,
        depths: &plan.depths,
        comparisons: &comparisons,
        about: &about,
        note: &note,
        activity: activity.as_ref(),
    };
    show(show::markdown(&shown));
    write_files(args, &shown)?;
    Ok(ExitCode::SUCCESS)
}

/// Shows the results of mixes and writes the page.
fn report_mixes(args: &PacingArgs, points: &[Point], about: &str) -> Result<ExitCode> {
    show(mix_results::markdown(points, about));
    let page = |path: &PathBuf| write(path, &mix_results::page(points, about)?);
    args.html.as_ref().map_or(Ok(()), page)?;
    Ok(ExitCode::SUCCESS)
}

/// Compares `adaptive` with the other policies in points of this bench, for a page; `None` for
/// other points.
pub(crate) fn findings(points: &[Point]) -> Option<String> {
    let is_of_one = |pair: &[Point]| {
        (&pair[0].platform, &pair[0].machines) == (&pair[1].platform, &pair[1].machines)
    };
    if !points.windows(2).all(is_of_one) {
        return None;
    }
    let depths = depths_of(points);
    let overall = show::overall(points, DEVICES, &depths);
    if overall.is_empty() {
        return None;
    }
    let mut text = format!(
        "\nMeasured, `adaptive` over each other policy in the same round, at all depths together; in brackets the \
         95 % confidence interval of the median:\n\n{}",
        overall.markdown()
    );
    let kept = show::kept_by_fast(points, &depths);
    if !kept.is_empty() {
        text += &format!(
            "\nMeasured, `adaptive`, what the fast namespace of the mix keeps of what it gets alone with as many commands \
             out:\n\n{}",
            kept.markdown()
        );
    }
    Some(text)
}

/// Returns the depths of these points.
fn depths_of(points: &[Point]) -> Vec<u32> {
    let depth = |point: &Point| point.value(result::DEPTH)?.parse().ok();
    let depths: BTreeSet<u32> = points.iter().filter_map(depth).collect();
    depths.into_iter().collect()
}

/// Shows the results in a file.
fn again(args: &PacingArgs, path: &Path) -> Result<ExitCode> {
    let shown_path = path.display();
    let points = points::read(path)?;
    let depths = depths_of(&points);
    let Some(first) = points.first() else { bail!("{shown_path}: there is no result") };
    let rounds = points.iter().map(|point| point.repetition).max().unwrap_or_default();
    let is_other = |point: &&Point| point.machines != first.machines;
    if let Some(other) = points.iter().find(is_other) {
        bail!(
            "{shown_path}: some were measured {}, and some {}: show them separately",
            first.machines.as_deref().unwrap_or("without a link"),
            other.machines.as_deref().unwrap_or("without a link")
        );
    }
    let note = note(&first.platform, Some(first), rounds);
    let about = format!(
        "{}, {}; {} job(s); {rounds} round(s) of {:.1} s a point",
        first.platform,
        first.machines.as_deref().unwrap_or("without a link"),
        first.setting.jobs,
        first.measured_s
    );
    if first.test == MIXES_TEST {
        ResultsOutput::open(args)?;
        return report_mixes(args, &points, &about);
    }
    let shown = ReportContent {
        points: &points,
        devices: &args.devices,
        depths: &depths,
        comparisons: &comparison::all(&points, &args.devices, &depths),
        about: &about,
        note: &note,
        activity: None,
    };
    ResultsOutput::open(args)?;
    show(show::markdown(&shown));
    write_files(args, &shown)?;
    Ok(ExitCode::SUCCESS)
}

/// Describes the measurement in a few words.
fn note(machine: &str, point: Option<&Point>, rounds: u32) -> String {
    let link = point.and_then(|point| point.machines.as_deref());
    let link = link.map_or_else(String::new, |link| format!(", {link}"));
    format!("measured locally on {machine}{link}, {rounds} round(s)")
}

/// Destination of results as they arrive.
#[derive(Debug)]
struct ResultsOutput(Option<(File, PathBuf)>);

impl ResultsOutput {
    /// Checks that the file can be written, before anything is measured.
    fn open(args: &PacingArgs) -> Result<Self> {
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

    /// Returns the file, if there is one.
    fn place(&self) -> Option<String> {
        self.0.as_ref().map(|(_, path)| path.display().to_string())
    }

    fn keep(&mut self, point: &Point) -> Result<()> {
        let Some((file, path)) = &mut self.0 else { return Ok(()) };
        json::write(file, point).with_context(|| format!("cannot write {}", path.display()))
    }
}

fn write_files(args: &PacingArgs, shown: &ReportContent<'_>) -> Result<()> {
    if let Some(path) = &args.html {
        write(path, &show::page(shown)?)?;
    }
    if let Some(folder) = &args.svg {
        for (name, plot) in show::plots(shown) {
            write(&folder.join(name).with_extension("svg"), &plot.standalone_svg())?;
        }
        if let Some(activity) = shown.activity {
            write_activity(folder, activity)?;
        }
    }
    Ok(())
}

/// Writes the plots of a pacer's activity, and their data.
fn write_activity(folder: &Path, activity: &PacerActivity) -> Result<()> {
    for (name, plot) in activity.plots() {
        write(&folder.join(name).with_extension("svg"), &plot.standalone_svg())?;
    }
    write(&folder.join("activity.json"), &(serde_json::to_string(activity)? + "\n"))
}

fn write(path: &Path, text: &str) -> Result<()> {
    output::write(path, text)
}

/// Plots a daemon's pacer activity, from the file that the daemon wrote.
fn draw_activity(args: &PacingArgs, stats: &Path) -> Result<ExitCode> {
    ensure!(
        args.svg.is_some() || args.html.is_some(),
        "--activity draws: say where, with --svg DIR or --html FILE"
    );
    let activity = PacerActivity::of_stats(stats)?;
    ResultsOutput::open(args)?;
    if let Some(path) = &args.html {
        write(path, &show::page_of_activity(&activity))?;
    }
    args.svg.as_ref().map_or(Ok(()), |folder| write_activity(folder, &activity))?;
    Ok(ExitCode::SUCCESS)
}

/// Returns a hash that changes with the binaries.
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

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        args: PacingArgs,
    }

    fn plan(line: &str) -> Result<BenchPlan> {
        let cli = Cli::try_parse_from(std::iter::once("pacing").chain(line.split_whitespace()))?;
        BenchPlan::of(&cli.args)
    }

    #[test]
    fn without_a_word_it_is_what_was_asked_for() {
        let cli = Cli::try_parse_from(["pacing"]).expect("defaults");
        assert_eq!(cli.args.devices, DEVICES);
        let plan = BenchPlan::of(&cli.args).expect("they can be shared");
        assert_eq!(plan.depths, [32, 64, 256, 1024, 2048]);
        assert_eq!((plan.repeat, cli.args.jobs, cli.args.link), (10, 1, None));
    }

    #[test]
    fn quick_is_one_short_round() {
        let quick = plan("--quick").expect("it can be shared");
        assert_eq!((quick.repeat, quick.time), (1, Duration::from_millis(200)));
        assert!(plan("--quick --repeat 2").is_err());
    }

    #[test]
    fn mixes_have_short_turns_and_are_chosen_by_name() {
        let full = plan("--mixes").expect("all of them");
        assert_eq!((full.mixes.len(), full.repeat), (mix_plan::MIXES.len(), 20));
        let quick = plan("--mixes --quick").expect("the first ones");
        assert!(quick.mixes.len() < full.mixes.len() && quick.time < full.time);
        // A confidence interval takes six pairs.
        assert!(quick.repeat >= 6);
        let error = plan("--mixes --only tape").expect_err("there is none");
        assert!(error.to_string().contains("ram + 1ms"), "{error}");
        for other in ["--only ram", "--mixes --depths 4", "--mixes --svg d"] {
            assert!(plan(other).is_err(), "{other}");
        }
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
