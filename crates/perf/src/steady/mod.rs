//! `nvmeof-perf steady`: drive tests that run until the drive is in steady state.
//!
//! They follow SNIA's Solid State Storage Performance Test Specification (PTS).
//!
//! ```text
//! SteadyArgs --> DriveTestPlan --> Procedure <--> drive <--> DriveUnderTest
//!                                                   |          (OverwritableDevice: purge)
//!                        ResultStore (results, line by line) --> DriveTest --> report (HTML, PDF)
//! ```
//!
//! | file | content |
//! |---|---|
//! | `plan` | the tests, their points and lengths; quick mode |
//! | `procedure` | the next step, given the earlier ones; no clock, no I/O |
//! | `judge` | steady state of five rounds |
//! | `drive` | runs the procedure from the first step to the last |
//! | `drive_under_test` | interface to a drive; `device`: an open target; `fake`: drives of the tests |
//! | `store` | the results file, and resuming from it |
//! | `purge` | purge of a drive; `disk`, `ata`: of SATA, SAS and other block devices |
//! | `disk_hold` | exclusive hold of a drive of the kernel while it is purged |
//! | `setup` | description of drive and host in the report |

mod ata;
mod device;
mod disk;
mod disk_hold;
mod drive;
mod drive_under_test;
#[cfg(test)]
mod fake;
mod judge;
mod plan;
mod procedure;
mod purge;
mod setup;
mod store;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nvmeof_console::{complain, say};
use nvmeof_report::steady::{self, DriveTest, DriveTestSetup, TestKind};

use self::device::OverwritableDevice;
use self::plan::{DriveTestPlan, TestOptions, UntestableDrive};
use self::procedure::{NextStep, Procedure, StepOutcome};
use self::store::ResultStore;
use crate::args::TargetArgs;
use crate::plan::UsageError;
use crate::results::replace;
use crate::run::stop_on_signals;
use crate::units;

const EXAMPLE: &str = "\
Examples:
  nvmeof-perf steady --device pci:0000:61:00.0 --destroy-data pci:0000:61:00.0 --out drive-1
  nvmeof-perf steady --connect tcp://10.0.0.1:4420/NQN --nsid 1 --tests iops,latency --out shelf
  nvmeof-perf steady --device /dev/nvme1n1 --destroy-data /dev/nvme1n1 --resume drive-1.jsonl
  nvmeof-perf steady --report drive-1.jsonl

Purges the drive, fills it twice, and runs rounds until five of them are steady; for each test. All of it takes a day or
more; --quick shows in minutes that it works. Results are kept line by line in NAME.jsonl, the report is NAME.html and
NAME.pdf, also of a test that is cut short.

Exit code: 0 all tests came to their end (the report says which were steady), 1 cut short or failed, 2 wrong usage.";

/// `nvmeof-perf steady`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct SteadyArgs {
    #[command(flatten)]
    pub(crate) target: TargetArgs,
    /// Tests to run: iops, throughput, latency, saturation.
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        value_parser = test,
        default_value = "iops,throughput,latency,saturation"
    )]
    tests: Vec<TestKind>,
    /// Threads, each with its own queue (latency: 1).
    #[arg(long, value_name = "N", default_value_t = plan::JOBS, value_parser = clap::value_parser!(u16).range(1..=256))]
    jobs: u16,
    /// I/Os kept outstanding, per job (latency: 1).
    #[arg(long, value_name = "N", default_value_t = plan::IODEPTH, value_parser = clap::value_parser!(u32).range(1..=1024))]
    iodepth: u32,
    /// Length of a point [default: 60s, in quick mode 500ms].
    #[arg(long, value_name = "TIME", value_parser = point_time)]
    time: Option<Duration>,
    /// Maximum rounds until a steady state.
    #[arg(long, value_name = "N", default_value_t = plan::ROUNDS, value_parser = rounds)]
    rounds: usize,
    /// Scale durations and preconditioning down, to check that the test works: figures are no
    /// results. The report says so.
    #[arg(long)]
    quick: bool,
    /// Test only the first SIZE bytes of the device.
    #[arg(long, value_name = "SIZE", value_parser = units::size)]
    size: Option<u64>,
    /// Remark for the report, as a slot, a setting or a purpose.
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    note: String,
    /// Seed of addresses and data.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Prefix of the names of results (.jsonl) and reports (.html, .pdf) [default: steady].
    #[arg(long, value_name = "NAME")]
    out: Option<PathBuf>,
    /// Resume the test whose results are in this file, with its original arguments.
    #[arg(
        long,
        value_name = "FILE.jsonl",
        conflicts_with_all = ["tests", "jobs", "iodepth", "time", "rounds", "quick", "size", "note", "seed", "out"]
    )]
    resume: Option<PathBuf>,
    /// Only write the reports of the results in this file, even if they are incomplete (--out:
    /// elsewhere than next to it). A run may be in progress.
    #[arg(
        long,
        value_name = "FILE.jsonl",
        group = "where",
        conflicts_with_all = ["tests", "jobs", "iodepth", "time", "rounds", "quick", "size", "note", "seed", "resume"]
    )]
    report: Option<PathBuf>,
}

/// Runs the whole command.
pub(crate) fn run(args: &SteadyArgs) -> Result<ExitCode> {
    if let Some(results) = &args.report {
        return report(args, results);
    }
    let stop = stop_on_signals()?;
    let mut session = match &args.resume {
        Some(path) => Session::resume(args, path, &stop)?,
        None => Session::begin(args, &stop)?,
    };
    let ended = session.run();
    let partial = ended.as_ref().err().map(ToString::to_string).unwrap_or_default();
    let drive_test = session.procedure.drive_test(session.setup, partial, session.resumed);
    say!("\n{}", steady::result_table(&drive_test).markdown());
    let results = &session.results;
    let written = write_reports(results, &results.with_extension(""), &drive_test);
    if let Some(device) = session.device {
        device.close();
    }
    if let Err(error) = ended {
        let shown = results.display();
        complain!(
            "error: {error}; the results so far are in {shown}: resume with --resume {shown}"
        );
        written?;
        return Ok(ExitCode::FAILURE);
    }
    written?;
    Ok(ExitCode::SUCCESS)
}

/// Writes the reports of the results so far.
fn report(args: &SteadyArgs, results: &Path) -> Result<ExitCode> {
    let stored = ResultStore::read(results)?;
    let partial = match stored.procedure.next() {
        NextStep::Over => String::new(),
        _ => "the test is not at its end".to_owned(),
    };
    let drive_test = stored.procedure.drive_test(stored.head.setup, partial, stored.resumed);
    say!("{}", steady::result_table(&drive_test).markdown());
    let name = args.out.clone().unwrap_or_else(|| results.with_extension(""));
    write_reports(results, &name, &drive_test)?;
    Ok(ExitCode::SUCCESS)
}

/// A test that was begun or resumed.
struct Session {
    results: PathBuf,
    store: ResultStore,
    procedure: Procedure,
    setup: DriveTestSetup,
    resumed: usize,
    /// `None` if no step is left.
    device: Option<OverwritableDevice>,
}

type Stop = std::sync::Arc<std::sync::atomic::AtomicBool>;

impl Session {
    fn begin(args: &SteadyArgs, stop: &Stop) -> Result<Self> {
        let name = args.out.as_deref().unwrap_or(Path::new("steady"));
        let results = with_ending(name, "jsonl");
        let device =
            OverwritableDevice::open(&args.target, (args.jobs, args.iodepth), args.size, stop)?;
        let begun = Self::plan(args, &device).and_then(|plan| {
            let mut setup = setup::describe(&plan, device.space());
            setup.note.clone_from(&args.note);
            let store = ResultStore::create(&results, &plan, &setup)?;
            Ok((plan, setup, store))
        });
        match begun {
            Ok((plan, setup, store)) => {
                let procedure = Procedure::new(plan);
                Ok(Self { results, store, procedure, setup, resumed: 0, device: Some(device) })
            }
            Err(error) => {
                device.close();
                Err(error)
            }
        }
    }

    fn plan(args: &SteadyArgs, device: &OverwritableDevice) -> Result<DriveTestPlan> {
        let wanted = TestOptions {
            tests: args.tests.clone(),
            jobs: args.jobs,
            iodepth: args.iodepth,
            time: args.time,
            rounds: args.rounds,
            quick: args.quick,
            seed: args.seed,
        };
        let space = device.space();
        let plan = DriveTestPlan::new(&wanted, device.size(), space.block_size, space.max_transfer);
        plan.map_err(|unfit: UntestableDrive| UsageError(format!("{space}: {unfit}")).into())
    }

    fn resume(args: &SteadyArgs, path: &Path, stop: &Stop) -> Result<Self> {
        let (mut store, stored) = ResultStore::resume(path)?;
        let (plan, setup) = (stored.head.plan, stored.head.setup);
        let mut resumed = stored.resumed;
        let mut device = None;
        if stored.procedure.next() != NextStep::Over {
            let opened = OverwritableDevice::open(
                &args.target,
                (plan.jobs, plan.iodepth),
                Some(plan.capacity),
                stop,
            )?;
            if !setup::is_same(&setup, &plan, opened.space()) {
                let found = opened.space().to_string();
                opened.close();
                let (path, of) = (path.display(), &setup.device);
                bail!(UsageError(format!(
                    "{path} is a test of {of} ({} {}), and {found} is another device",
                    setup.model, setup.serial
                )));
            }
            device = Some(opened);
            store.note_resumed(&setup::now())?;
            resumed += 1;
        }
        let results = path.to_owned();
        Ok(Self { results, store, procedure: stored.procedure, setup, resumed, device })
    }

    fn run(&mut self) -> Result<(), drive_under_test::DriveTestError> {
        match &mut self.device {
            Some(device) => drive::drive(&mut self.procedure, device, &mut self.store, &mut tell),
            None => Ok(()),
        }
    }
}

/// Prints the progress: one line per round.
fn tell(procedure: &Procedure, outcome: &StepOutcome) {
    match outcome {
        StepOutcome::Purged(done) if done.done => {
            say!("purge: {} ({:.1} s)", done.how, done.seconds);
        }
        StepOutcome::Purged(not) => say!("purge: none: {}", not.how),
        StepOutcome::Filled(done) => {
            say!("preconditioning: {} bytes written ({:.1} s)", done.bytes, done.seconds);
        }
        StepOutcome::Measured(_) => {
            if let Some((test, number, value)) = procedure.ended_round() {
                say!("{test}: round {number}, {} {value:.1} {}", test.variable(), test.unit());
            }
        }
    }
}

/// Writes both formats of the report, under names with the prefix `name`.
///
/// A failure of one does not prevent the other.
fn write_reports(results: &Path, name: &Path, drive_test: &DriveTest) -> Result<()> {
    let (html, pdf) = (steady::html(drive_test), steady::pdf(drive_test));
    let mut written = Ok(());
    for (ending, bytes) in [("html", html.as_bytes()), ("pdf", &pdf)] {
        let path = with_ending(name, ending);
        match replace(&path, bytes) {
            Ok(()) => say!("report: {}", path.display()),
            Err(error) => {
                written = written.and(Err(error).with_context(|| {
                    format!(
                        "cannot write {}; to have the reports elsewhere say: nvmeof-perf steady --report {} --out NAME",
                        path.display(),
                        results.display()
                    )
                }));
            }
        }
    }
    written
}

/// Appends an extension to a name; dots that are part of the name stay.
fn with_ending(name: &Path, ending: &str) -> PathBuf {
    let mut text = name.as_os_str().to_owned();
    text.push(".");
    text.push(ending);
    text.into()
}

fn test(text: &str) -> Result<TestKind, String> {
    TestKind::ALL.into_iter().find(|test| test.name() == text).ok_or_else(|| {
        let names = TestKind::ALL.map(TestKind::name).join(", ");
        format!("there is no test `{text}`; the tests are: {names}")
    })
}

/// Shorter points have nothing to measure.
const SHORTEST: Duration = Duration::from_millis(10);

fn point_time(text: &str) -> Result<Duration, String> {
    match units::duration(text)? {
        time if time >= SHORTEST => Ok(time),
        _ => Err("must be at least 10ms".into()),
    }
}

fn rounds(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(number @ judge::WINDOW..=plan::ROUNDS) => Ok(number),
        _ => Err(format!("`{text}` is no number from {} to {}", judge::WINDOW, plan::ROUNDS)),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::args::{Cli, Command};

    fn args(text: &str) -> SteadyArgs {
        let words = ["nvmeof-perf", "steady"].into_iter().chain(text.split_whitespace());
        match Cli::try_parse_from(words).unwrap().command {
            Command::Steady(args) => args,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn results_that_are_cut_short_have_a_report_elsewhere() {
        let folder = tempfile::tempdir().unwrap();
        let results = folder.path().join("full.jsonl");
        drop(ResultStore::create(&results, &fake::plan(), &fake::setup()).unwrap());
        let out = folder.path().join("other.d/name");
        let line = format!("--report {} --out {}", results.display(), out.display());
        let error = format!("{:#}", run(&args(&line)).unwrap_err());
        assert!(error.contains("name.html") && error.contains("--report"), "{error}");
        std::fs::create_dir(out.parent().unwrap()).unwrap();
        run(&args(&line)).unwrap();
        let page = std::fs::read_to_string(with_ending(&out, "html")).unwrap();
        assert!(page.contains("PARTIAL") && page.contains("not at its end"));
        assert!(with_ending(&out, "pdf").exists());
    }

    /// A folder blocks the path of one report: the other is written.
    #[test]
    fn one_report_that_cannot_be_written_does_not_keep_the_other() {
        let folder = tempfile::tempdir().unwrap();
        let results = folder.path().join("r.jsonl");
        drop(ResultStore::create(&results, &fake::plan(), &fake::setup()).unwrap());
        std::fs::create_dir(folder.path().join("r.html")).unwrap();
        let error = run(&args(&format!("--report {}", results.display()))).unwrap_err();
        assert!(error.to_string().contains("r.html"), "{error}");
        assert!(folder.path().join("r.pdf").exists());
    }
}
