//! Tests of the whole sweep: the shipped plans, a small plan in the simulator, and interruption.

use std::sync::atomic::{AtomicUsize, Ordering};

use nvmeof_report::RunOrigin;

use super::backend::{PointRun, SweepBackend};
use super::plan::PlannedPoint;
use super::run::SweepRuns;
use super::setup::PointSetup;
use super::*;

const TINY: &str = r#"
name = "tiny"
test = "tiny"

[load]
time = "40ms"
ramp = "10ms"

[[host]]
initiator = "fio-spdk"
count = 2

[[job]]
queue-depth = 32

[vary]
target.pacing.policy = ["none", "endless-cache"]
job.queue-depth = [16, 64]
"#;

pub(super) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn simulator(platform: &str) -> Simulator {
    let file = root().join(format!("configs/platforms/{platform}.toml"));
    Simulator::new(platform, &file).unwrap()
}

/// A backend that only counts runs.
#[derive(Default)]
struct CountingBackend {
    simulator: Option<Simulator>,
    runs: AtomicUsize,
    /// The run that fails, and the run that panics.
    fails: Option<usize>,
    panics: Option<usize>,
}

impl SweepBackend for CountingBackend {
    fn platform(&self) -> String {
        "A".to_owned()
    }

    fn check(&self, _: &PlannedPoint) -> Result<()> {
        Ok(())
    }

    fn fingerprint(&self, setup: &PointSetup, seed: u64) -> String {
        backend::digest(format!("{setup:?} {seed}").as_bytes())
    }

    fn run(&self, run: &PointRun<'_>) -> Result<Point> {
        let number = self.runs.fetch_add(1, Ordering::Relaxed);
        anyhow::ensure!(self.fails != Some(number), "the drive is gone");
        assert!(self.panics != Some(number), "a thing that cannot be");
        let fingerprint = self.fingerprint(&run.point.setup, run.seed);
        let point = self.simulator.as_ref().unwrap().run(run)?;
        Ok(Point { fingerprint, ..point })
    }

    fn parallel_points(&self) -> usize {
        1
    }
}

fn counter() -> CountingBackend {
    CountingBackend { simulator: Some(simulator("A")), ..CountingBackend::default() }
}

fn tiny() -> SweepPlan {
    SweepPlan::parse("tiny.toml", TINY).unwrap()
}

pub(super) fn shipped() -> Vec<(String, SweepPlan)> {
    let folder = root().join("configs/sweeps");
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> =
        files.filter(|file| file.extension().is_some_and(|kind| kind == "toml")).collect();
    files.sort();
    let load = |file: &PathBuf| {
        let plan = SweepPlan::load(file).unwrap_or_else(|error| panic!("{error}"));
        (stem(file).unwrap(), plan)
    };
    files.iter().map(load).collect()
}

#[test]
fn every_plan_we_ship_has_points_that_can_run() {
    let plans = shipped();
    let simulators = ["A", "B"].map(|platform| (platform, simulator(platform)));
    for number in 1..=14 {
        let name = format!("test-{number:02}");
        assert!(plans.iter().any(|(file, _)| *file == name), "{name}");
    }
    for (file, plan) in plans {
        assert_eq!(plan.name, file, "a plan is called as its file");
        assert!(!plan.about.is_empty(), "{file} says what it is for");
        for (platform, simulator) in &simulators {
            let points: Vec<_> =
                plan.points.iter().filter(|point| point.runs_on(platform, "sim")).collect();
            assert!(!points.is_empty(), "{file} on {platform}");
            for point in points {
                simulator
                    .check(point)
                    .unwrap_or_else(|e| panic!("{file} {:?}: {e:#}", point.varied));
            }
        }
    }
}

#[test]
fn the_first_and_the_last_point_of_every_plan_we_ship_run() {
    let simulator = simulator("A");
    for (file, mut plan) in shipped() {
        plan.points.retain(|point| point.runs_on("A", "sim"));
        for at in [0, plan.points.len() - 1] {
            let mut point = plan.points[at].clone();
            // The run ends before the disturbance would begin.
            point.setup.disturbances.clear();
            point.setup.jobs.iter_mut().for_each(|job| job.from = 0);
            (point.setup.time, point.setup.ramp) = (10_000_000, 5_000_000);
            let run = PointRun { plan: &plan, point: &point, repetition: 1, seed: 1 };
            let result = simulator.run(&run).unwrap_or_else(|error| panic!("{file}: {error:#}"));
            if result.policy != "prototype" {
                assert!(result.problems.is_empty(), "{file} {at}: {:?}", result.problems);
                assert!(result.total.gbps > 0.0, "{file} {at}");
            }
        }
    }
}

#[test]
fn every_key_of_a_plan_is_documented() {
    let text = fs::read_to_string(root().join("configs/sweeps/README.md")).unwrap();
    let tables = [
        ("", "x = 1"),
        ("[target]", "x = 1"),
        ("[target]", "devices.x = 1"),
        ("[target]", "pacing.x = 1"),
        ("[load]", "x = 1"),
        ("[load]", "blocks = [{ x = 1 }]"),
        ("[[job]]", "x = 1"),
        ("[[host]]", "x = 1"),
        ("[[disturb]]", "x = 1"),
    ];
    let mut keys = 0;
    for (table, line) in tables {
        let error =
            SweepPlan::parse("p.toml", &format!("{table}\n{line}\n")).unwrap_err().to_string();
        let allowed = error.split("allowed: ").nth(1).unwrap_or_else(|| panic!("{error}"));
        for key in allowed.split(", ") {
            assert!(text.contains(&format!("`{key}`")), "{table} {key} is not documented");
            keys += 1;
        }
    }
    assert!(keys > 50, "{keys}");
}

/// The rows of the measured tests that each plan must have, by platform.
#[test]
fn the_fourteen_tests_have_the_points_they_are_defined_with() {
    let counts: Vec<_> = shipped()
        .into_iter()
        .filter(|(file, _)| file.starts_with("test-"))
        .map(|(_, plan)| {
            ["A", "B"].map(|platform| {
                let points = plan.points.iter().filter(|point| point.runs_on(platform, "sim"));
                points.map(|point| point.setup.repeat).sum::<u32>()
            })
        })
        .collect();
    let expected = [
        [8, 8],
        [16, 16],
        [15, 15],
        [16, 16],
        [12, 12],
        [40, 40],
        [40, 40],
        [24, 24],
        [10, 10],
        [35, 35],
        [12, 24],
        [28, 98],
        [21, 5],
        [108, 18],
    ];
    assert_eq!(counts, expected);
}

#[test]
fn settings_are_named_as_the_measured_rows_name_them() {
    let rows = |file: &str, platform: &str| -> Vec<String> {
        let plan = SweepPlan::load(&root().join(format!("configs/sweeps/{file}.toml"))).unwrap();
        let points = plan.points.iter().filter(|point| point.runs_on(platform, "sim"));
        let row = |point: &PlannedPoint| {
            let s = backend::sim::setting(&point.setup);
            let or = |value: Option<u32>| value.map_or_else(String::new, |value| value.to_string());
            format!(
                "{},{},{},{},{},{},{},{},{},{}",
                s.devices,
                s.initiator,
                s.hosts,
                s.jobs,
                or(s.buf_cache),
                or(s.job3_qd),
                s.num_buffers.map_or_else(String::new, |buffers| buffers.to_string()),
                or(s.num_delay),
                s.qd,
                s.offered
            )
        };
        points.map(row).collect()
    };
    let has = |file: &str, platform: &str, row: &str| {
        let rows = rows(file, platform);
        assert!(rows.iter().any(|own| own == row), "{file}: {row} is not in {rows:#?}");
    };
    has("test-01", "A", "null1,fio+SPDK,2,1,,,,,256,512");
    has("test-03", "A", "nvme16,fio+SPDK,2,1,,,,,2048,4096");
    has("test-03", "A", "nvme16,fio+kernel 8 jobs,2,8,,,,,32,512");
    has("test-04", "B", "null16,fio+SPDK,2,1,,,96,,64,128");
    has("test-05", "A", "nvme16,fio+SPDK,2,1,6,,96,,1024,2048");
    has("test-10", "B", "nvme16,fio+SPDK,2,1,32,,128,,256,512");
    has("test-11", "A", "split3+delay,fio+SPDK,2,3,,,48,32,341,2046");
    has("test-12", "B", "split3+delay,fio+SPDK,2,3,,1024,96,16,64,2304");
    has("test-13", "A", "split3+delay,fio+SPDK,1,1,,,,48,1,1");
    has("test-13", "B", "split3,fio+SPDK,1,3,,,,,1,3");
    has("test-13", "B", "local1,SPDK perf,0,1,,,,,1,1");
    has("test-14", "B", "nvme16,fio+SPDK,2,1,,,,,256,512");
}

#[test]
fn a_small_plan_goes_through_the_simulator_to_every_output() {
    let plan = tiny();
    let simulator = simulator("A");
    run::check(&plan, &simulator).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("results.jsonl");
    let mut results = ResultsFile::open(&file, false).unwrap();
    let runs = SweepRuns::of(&plan, "A", 7);
    let (points, failures) = runs.all(&simulator, &mut results);
    assert!(failures.is_empty(), "{failures:?}");
    assert_eq!(points.len(), 4);
    for point in &points {
        assert!(point.problems.is_empty(), "{:?}", point.problems);
        assert_eq!((point.place, point.platform.as_str()), (RunOrigin::Simulated, "A"));
        assert!(point.total.gbps > 1.0 && point.total.gbps < 200.0, "{}", point.total.gbps);
        assert!(point.total.latency_us.p50 <= point.total.latency_us.p99);
        assert_eq!((point.hosts.len(), point.jobs.len()), (2, 1));
        assert!(!point.series.is_empty());
    }
    let offered: Vec<_> = points.iter().map(|point| point.setting.offered).collect();
    assert_eq!(offered, [32, 128, 32, 128]);
    let (kept, _) = nvmeof_report::json::read(fs::read(&file).unwrap().as_slice()).unwrap();
    assert_eq!(kept.len(), points.len());
    assert!(points.iter().all(|point| kept.contains(point)));
    let text = csv::document(&points);
    assert_eq!(text.lines().count(), 5);
    assert!(text.lines().skip(1).all(|row| row.contains(",sim,")), "{text}");
    let page = sweep::page(&points, "").unwrap();
    assert!(page.contains("simulated on platform A"));
}

#[test]
fn the_same_seed_gives_the_same_figures() {
    let plan = tiny();
    let simulator = simulator("A");
    let all = |seed| {
        let runs = SweepRuns::of(&plan, "A", seed);
        runs.all(&simulator, &mut ResultsFile::default()).0
    };
    assert!(all(1) == all(1));
    let (one, two) = (all(1), all(2));
    assert!(one.iter().zip(&two).all(|(one, two)| one.fingerprint != two.fingerprint));
}

#[test]
fn resuming_leaves_out_what_is_there_and_runs_what_was_cut_off() {
    let plan = tiny();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("results.jsonl");
    let sweep = |resume, seed| {
        let backend = counter();
        let mut results = ResultsFile::open(&file, resume).unwrap();
        results.begin().unwrap();
        let runs = SweepRuns::of(&plan, "A", seed);
        let (points, failures) = runs.all(&backend, &mut results);
        assert!(failures.is_empty());
        (backend.runs.into_inner(), points)
    };
    let (ran, first) = sweep(false, 1);
    assert_eq!(ran, 4);
    let (ran, again) = sweep(true, 1);
    assert_eq!(ran, 0);
    assert!(again == first);
    // The sweep was killed while it wrote the third line.
    let text = fs::read_to_string(&file).unwrap();
    let lines: Vec<_> = text.split_inclusive('\n').collect();
    fs::write(&file, format!("{}{}{}", lines[0], lines[1], &lines[2][..100])).unwrap();
    let (ran, again) = sweep(true, 1);
    assert_eq!(ran, 2);
    assert!(again == first);
    assert!(fs::read_to_string(&file).unwrap() == text);
    // Another seed is another run; without --resume the file starts empty.
    assert_eq!(sweep(true, 2).0, 4);
    assert_eq!(fs::read_to_string(&file).unwrap().lines().count(), 8);
    assert_eq!(sweep(false, 1).0, 4);
    assert!(fs::read_to_string(&file).unwrap() == text);
}

#[test]
fn a_run_that_fails_or_panics_is_named_and_the_others_are_kept() {
    let plan = tiny();
    let backend = CountingBackend { fails: Some(0), panics: Some(2), ..counter() };
    let runs = SweepRuns::of(&plan, "A", 1);
    let (points, failures) = runs.all(&backend, &mut ResultsFile::default());
    assert_eq!(points.len(), 2);
    assert_eq!(
        failures,
        [
            "tiny, target.pacing.policy = none, job.queue-depth = 16: the drive is gone",
            "tiny, target.pacing.policy = endless-cache, job.queue-depth = 16: \
             the run panicked: a thing that cannot be",
        ]
    );
}

#[test]
fn two_sweeps_cannot_write_to_one_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("results.jsonl");
    let first = ResultsFile::open(&file, false).unwrap();
    let error = ResultsFile::open(&file, true).unwrap_err().to_string();
    assert!(error.ends_with("results.jsonl: another sweep writes to it"), "{error}");
    drop(first);
    ResultsFile::open(&file, true).unwrap();
}

#[test]
fn results_that_are_none_are_refused_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("notes.txt");
    fs::write(&file, "dear diary\n").unwrap();
    let error = format!("{:#}", ResultsFile::open(&file, true).unwrap_err());
    assert!(error.contains("notes.txt: line 1 is not a result"), "{error}");
    assert_eq!(fs::read_to_string(&file).unwrap(), "dear diary\n");
}

#[test]
fn earlier_results_are_kept_until_there_can_be_new_ones() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("results.jsonl");
    fs::write(&file, "of yesterday").unwrap();
    // No machine answers.
    drop(ResultsFile::open(&file, false).unwrap());
    assert_eq!(fs::read_to_string(&file).unwrap(), "of yesterday");
    let mut results = ResultsFile::open(&file, false).unwrap();
    results.begin().unwrap();
    assert_eq!(fs::read_to_string(&file).unwrap(), "");
    // The next plan of the same sweep.
    fs::write(&file, "of the first plan").unwrap();
    results.begin().unwrap();
    assert_eq!(fs::read_to_string(&file).unwrap(), "of the first plan");
}

#[test]
fn a_full_disk_stops_the_sweep_and_names_the_file_and_the_result_is_reported() {
    let plan = tiny();
    let backend = counter();
    let full = Path::new("/dev/full");
    let Ok(file) = fs::File::options().write(true).read(true).open(full) else { return };
    let mut results = ResultsFile::over(file, full);
    let (points, failures) = SweepRuns::of(&plan, "A", 1).all(&backend, &mut results);
    assert_eq!((points.len(), failures.len()), (1, 1));
    assert!(failures[0].starts_with("cannot write /dev/full: "), "{failures:?}");
    assert_eq!(backend.runs.into_inner(), 1, "there is no use in going on");
}

#[test]
fn what_a_platform_does_not_have_is_refused_before_anything_runs() {
    let text = format!("{TINY}platform.cash-share-mib = [1]\n");
    let plan = SweepPlan::parse("tiny.toml", &text).unwrap();
    let error = format!("{:#}", run::check(&plan, &simulator("A")).unwrap_err());
    assert!(error.contains("platform.cash-share-mib: a platform has no such number"), "{error}");
    assert!(error.contains("cache-share-mib") && error.contains("scale-cache"), "{error}");
    let text = format!("{TINY}platform.ports = [1.5]\n");
    let plan = SweepPlan::parse("tiny.toml", &text).unwrap();
    assert!(run::check(&plan, &simulator("A")).is_err());
    let mixed = TINY.replacen("[[job]]", "[[host]]\ninitiator = \"fio-kernel\"\n\n[[job]]", 1);
    let plan = SweepPlan::parse("tiny.toml", &mixed).unwrap();
    let error = format!("{:#}", run::check(&plan, &simulator("A")).unwrap_err());
    assert!(error.contains("the simulator runs the same program on all hosts"), "{error}");
}

#[test]
fn a_file_that_cannot_be_written_is_refused_before_anything_runs() {
    let folder = tempfile::tempdir().unwrap();
    let good = folder.path().join("kept.csv");
    fs::write(&good, "earlier").unwrap();
    output::check_writable(&good).unwrap();
    assert_eq!(fs::read_to_string(&good).unwrap(), "earlier");
    let error = output::check_writable(&folder.path().join("no/such.csv")).unwrap_err().to_string();
    assert!(error.starts_with("cannot write ") && error.ends_with("no/such.csv"), "{error}");
}

#[test]
fn a_platform_is_a_name_or_a_file() {
    let workspace = Workspace::find().unwrap();
    let (name, file) = platform(&workspace, "B").unwrap();
    assert_eq!((name.as_str(), file.is_file()), ("B", true));
    let by_file = platform(&workspace, file.to_str().unwrap()).unwrap();
    assert_eq!(by_file, ("B".to_owned(), file));
    let error = platform(&workspace, "C").unwrap_err().to_string();
    assert_eq!(error, "--platform C: no such platform, and no such file; there are A, B");
}
