//! The whole command on files and on a drive in memory.
//!
//! Runs end by the number of reads, so a busy machine changes nothing. The tests only check that
//! figures exist.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::Parser as _;
use nvmeof_fake_drive::{FakeDrive, FakeDriveConfig};
use nvmeof_report::engines::EngineRow;
use nvmeof_sysfs_fixture as fixture;

use super::rebind::DriveRebinder;
use super::*;
use crate::args::{Cli, Command};
use crate::patience::Patience;

const ADDRESS: &str = "0000:01:00.0";

fn parse(arguments: &str) -> Box<EnginesArgs> {
    let words = ["nvmeof-perf", "engines"].into_iter().chain(arguments.split_whitespace());
    match Cli::try_parse_from(words).unwrap().command {
        Command::Engines(args) => Box::new(args),
        other => panic!("{other:?}"),
    }
}

fn run_with(arguments: &str, fake: Option<&FakeDrive>, stop: bool) -> Result<EngineComparison> {
    run_on(DriveRebinder::this(), arguments, fake, stop)
}

fn run_on(
    rebinder: DriveRebinder,
    arguments: &str,
    fake: Option<&FakeDrive>,
    stop: bool,
) -> Result<EngineComparison> {
    let args = parse(&format!("{arguments} --time 600s --ios 40 --ramp 0s"));
    check(&args)?;
    let flag = || Arc::new(AtomicBool::new(stop));
    let mut measurer = RowMeasurer::new(&args, flag(), flag());
    measurer.rebinder = rebinder;
    if let Some(fake) = fake {
        let fake = fake.clone();
        measurer.open_function = Box::new(move |_| Ok(fake.function()));
    }
    measure_all(&args, &mut measurer, &mut args.files.open()?)
}

fn file(folder: &tempfile::TempDir, name: &str) -> String {
    let path = folder.path().join(name);
    std::fs::write(&path, vec![7; 1 << 20]).unwrap();
    path.display().to_string()
}

fn why(row: &EngineRow) -> &str {
    match &row.outcome {
        RowOutcome::Unable(why) => why,
        RowOutcome::Measured(figures) => panic!("{}: {figures:?}", row.engine),
    }
}

#[test]
fn every_engine_is_a_row_on_files_one_by_one_and_striped() {
    let folder = tempfile::tempdir().unwrap();
    let (one, other) = (file(&folder, "one"), file(&folder, "other"));
    let takes_direct = nvmeof_engines::sector_size(Path::new(&one)).is_ok();
    let engines =
        run_with(&format!("--device {one} --device {other} --concurrency 1,4"), None, false)
            .unwrap();
    assert!(!engines.partial);
    assert_eq!(engines.drives.len(), 2);
    for layout in [ReadLayout::Individual, ReadLayout::Stripe] {
        for engine in Engine::ALL {
            let of = |row: &&EngineRow| row.layout == layout && row.engine == engine.name();
            let rows: Vec<&EngineRow> = engines.rows.iter().filter(of).collect();
            let unable = rows.iter().any(|row| matches!(row.outcome, RowOutcome::Unable(_)));
            assert_eq!(rows.len(), if unable { 1 } else { 2 }, "{engine}: {rows:?}");
            match engine {
                Engine::Vfio => assert!(why(rows[0]).contains("drives bind"), "{rows:?}"),
                Engine::IoUringPolled if unable => {
                    assert!(why(rows[0]).contains("polled"), "{rows:?}");
                }
                _ if !takes_direct => assert!(why(rows[0]).contains("direct"), "{rows:?}"),
                _ => {
                    let last = rows.last().unwrap();
                    let RowOutcome::Measured(figures) = &last.outcome else { panic!("{last:?}") };
                    assert!(figures.kiops > 0.0 && figures.cpu_us > 0.0, "{engine}: {figures:?}");
                    assert_eq!(figures.errors, 0, "{engine}");
                    assert_eq!(figures.threads * figures.depth, 4, "{engine}");
                    let is_synchronous = engine.is_synchronous();
                    assert_eq!(figures.threads == 4, is_synchronous || figures.depth == 1);
                }
            }
        }
    }
}

#[test]
fn a_drive_under_our_own_driver_is_read_and_by_no_other() {
    let fake = FakeDrive::new(FakeDriveConfig::default());
    let arguments =
        format!("--device pci:{ADDRESS} --concurrency 8 --jobs 2 --layout single,stripe");
    let engines = run_with(&arguments, Some(&fake), false).unwrap();
    assert_eq!(engines.drives[0].lba_bytes, 512);
    assert!(!engines.drives[0].serial.is_empty());
    for row in &engines.rows {
        match (row.engine.as_str(), row.layout) {
            ("vfio", ReadLayout::Single) => {
                let RowOutcome::Measured(figures) = &row.outcome else { panic!("{row:?}") };
                assert_eq!((figures.threads, figures.depth, figures.errors), (2, 4, 0));
            }
            ("vfio", _) => assert_eq!(why(row), "a stripe takes two drives or more"),
            _ => assert!(why(row).contains("drives unbind"), "{row:?}"),
        }
    }
    fake.assert_clean();
}

#[test]
fn a_drive_is_formatted_only_if_it_is_named_and_formatted_back() {
    let fake = FakeDrive::new(FakeDriveConfig::default());
    let arguments = format!(
        "--device pci:{ADDRESS} --concurrency 2 --layout single --engine vfio --lba-size 512,4096"
    );
    let engines = run_with(&arguments, Some(&fake), false).unwrap();
    let [measured, refused] = &engines.rows[..] else { panic!("{:?}", engines.rows) };
    assert!(matches!(measured.outcome, RowOutcome::Measured(_)) && measured.lba_bytes == 512);
    let serial = engines.drives[0].serial.clone();
    assert!(why(refused).contains(&format!("--destroy-data {serial}")), "{refused:?}");

    let engines =
        run_with(&format!("{arguments} --destroy-data {serial}"), Some(&fake), false).unwrap();
    let formats: Vec<u32> = engines.rows.iter().map(|row| row.lba_bytes).collect();
    assert_eq!(formats, [512, 4096]);
    assert!(engines.rows.iter().all(|row| matches!(row.outcome, RowOutcome::Measured(_))));
    let again = run_with(&arguments, Some(&fake), false).unwrap();
    assert_eq!(again.drives[0].lba_bytes, 512, "formatted back");
    // A format that the drive does not support.
    let odd = arguments.replace("512,4096", "1024");
    let engines = run_with(&format!("{odd} --destroy-data {serial}"), Some(&fake), false).unwrap();
    assert!(why(&engines.rows[0]).contains("no LBA format"), "{:?}", engines.rows);
}

/// Two drives under the kernel driver; one of them has a mounted filesystem.
#[test]
fn a_drive_is_handed_over_for_each_engine_and_back() {
    let folder = tempfile::tempdir_in(fixture::folder()).unwrap();
    let mut machine = fixture::Machine::new(folder.path()).unwrap();
    for address in ["0000:01:00.0", "0000:02:00.0"] {
        machine.drive(&fixture::host(0), address).unwrap();
    }
    machine.mount(None, "30 1 259:8 / /data rw - ext4 /dev/nvme1n1 rw").unwrap();
    let fake = FakeDrive::new(FakeDriveConfig::default());
    let run = |arguments: &str, stop| {
        let rebinder = DriveRebinder::of(machine.system(), Box::new(machine.kernel()));
        run_on(
            rebinder,
            &format!("{arguments} --concurrency 2 --engine psync,vfio"),
            Some(&fake),
            stop,
        )
    };
    let drivers = || -> Vec<_> {
        let all = machine.system().nvme_functions().unwrap();
        all.into_iter().map(|function| function.driver.unwrap()).collect()
    };
    let both = "--device /dev/nvme0n1 --device /dev/nvme1n1 --rebind";
    let engines = run(both, false).unwrap();
    assert_eq!(drivers(), ["nvme", "nvme"]);
    let of = |engine: &str, drive: &str| {
        let is_it = |row: &&EngineRow| row.engine == engine && row.drives == [drive];
        engines.rows.iter().find(is_it).unwrap_or_else(|| panic!("{:?}", engines.rows))
    };
    let row = of("vfio", "/dev/nvme0n1");
    assert!(
        matches!(&row.outcome, RowOutcome::Measured(figures) if figures.errors == 0),
        "{row:?}"
    );
    assert!(why(of("vfio", "/dev/nvme1n1")).contains("/data"), "{:?}", engines.rows);
    // The kernel's engines follow; they report obstacles to opening these files themselves.
    assert!(engines.rows.iter().any(|row| row.engine == "psync"), "{:?}", engines.rows);
    assert_eq!(engines.drives[0].serial, "SERIAL00");

    assert!(run(both, true).unwrap().partial);
    assert_eq!(drivers(), ["nvme", "nvme"]);
    for (arguments, says) in [
        ("--device /no/drive --rebind", "no --device is an NVMe drive"),
        ("--device /dev/nvme0n1 --device pci:0000:01:00.0 --rebind", "named by two"),
    ] {
        let error = run(arguments, false).unwrap_err();
        assert!(
            error.is::<crate::plan::UsageError>() && error.to_string().contains(says),
            "{error}"
        );
    }
    fake.assert_clean();
}

/// Two drives of a machine, and the calls of mdadm on it.
struct MdBench {
    machine: fixture::Machine,
    calls: std::cell::RefCell<Vec<String>>,
    /// Options of mdadm whose next call fails, as while a program has the array open.
    fails: std::cell::RefCell<Vec<&'static str>>,
    /// Option of mdadm whose call is interrupted by Ctrl-C.
    interrupts: std::cell::Cell<&'static str>,
    _folder: tempfile::TempDir,
}

impl MdBench {
    fn new() -> Self {
        let folder = tempfile::tempdir_in(fixture::folder()).unwrap();
        let mut machine = fixture::Machine::new(folder.path()).unwrap();
        for address in ["0000:01:00.0", "0000:02:00.0"] {
            machine.drive(&fixture::host(0), address).unwrap();
        }
        Self {
            machine,
            calls: std::cell::RefCell::default(),
            fails: std::cell::RefCell::default(),
            interrupts: std::cell::Cell::default(),
            _folder: folder,
        }
    }

    fn mdadm(&self, arguments: &[String]) -> Result<(), String> {
        self.calls.borrow_mut().push(arguments.join(" "));
        let mut fails = self.fails.borrow_mut();
        match fails.iter().position(|option| *option == arguments[0]) {
            Some(at) => Err(format!("{}: device or resource busy", fails.remove(at))),
            None => self.machine.mdadm(arguments),
        }
    }

    fn run(&self, arguments: &str) -> EngineComparison {
        let both = "--device /dev/nvme0n1 --device /dev/nvme1n1";
        let args = parse(&format!(
            "{both} --concurrency 2 --engine psync,libaio,vfio --time 600s --ios 40 --ramp 0s {arguments}"
        ));
        let (stop, asked) = (Arc::default(), Arc::<AtomicBool>::default());
        let mut measurer = RowMeasurer::new(&args, stop, Arc::clone(&asked));
        let system = self.machine.system();
        measurer.patience = Patience { most: Duration::from_secs(600), pause: Duration::ZERO };
        measurer.rebinder = DriveRebinder::of(system, Box::new(self.machine.kernel()));
        measurer.mdadm = Box::new(|arguments| {
            asked.fetch_or(arguments[0] == self.interrupts.get(), Ordering::Relaxed);
            self.mdadm(arguments)
        });
        measure_all(&args, &mut measurer, &mut args.files.open().unwrap()).unwrap()
    }

    /// Rows of the array: those of synchronous and asynchronous kernel engines, then the driver's.
    fn rows(&self, arguments: &str) -> Vec<EngineRow> {
        let engines = self.run(arguments);
        let is_array = |row: &EngineRow| row.layout == ReadLayout::MdRaid0;
        engines.rows.into_iter().filter(is_array).collect()
    }

    fn exists(&self, name: &str) -> bool {
        self.machine.system().sys.join("class/block").join(name).exists()
    }
}

#[test]
fn an_array_of_the_machine_is_read_and_left_assembled() {
    let bench = MdBench::new();
    assert!(bench.rows("").is_empty(), "there is no array");
    bench.machine.md_array("md0", "raid0", &["nvme1n1", "nvme0n1"]).unwrap();
    let rows = bench.rows("");
    assert_eq!(rows.len(), 3, "{rows:?}");
    for row in &rows[..2] {
        let RowOutcome::Measured(figures) = &row.outcome else { panic!("{row:?}") };
        assert_eq!((figures.errors, row.drives.len()), (0, 2));
        assert!(row.note.as_ref().unwrap().contains("md0, chunks of 8 KiB"), "{row:?}");
    }
    assert!(why(&rows[2]).contains("the kernel's"), "{rows:?}");
    assert!(bench.exists("md0") && bench.calls.borrow().is_empty());
    // With the flag, too.
    assert_eq!(bench.rows("--build-md").len(), 3);
    assert!(bench.exists("md0") && bench.calls.borrow().is_empty());
}

#[test]
fn an_array_that_does_not_serve_or_is_in_use_is_refused() {
    for (set, says) in [
        (
            &(|machine: &fixture::Machine| {
                let folder = "sys/class/block/md0";
                machine.write(&format!("{folder}/ro"), "1").unwrap();
                machine.write(&format!("{folder}/md/array_state"), "read-auto").unwrap();
            }) as &dyn Fn(&fixture::Machine),
            "is read-only (read-auto)",
        ),
        (
            &|machine| machine.write("sys/class/block/md0/md/array_state", "inactive").unwrap(),
            "its state is `inactive`",
        ),
        (
            &|machine| machine.write("sys/class/block/md0/md/level", "raid5").unwrap(),
            "is raid5, not RAID-0",
        ),
        (
            &|machine| machine.mount(None, "30 1 259:1000 / /data rw - ext4 /dev/md0 rw").unwrap(),
            "is in use: ",
        ),
    ] {
        let bench = MdBench::new();
        bench.machine.md_array("md0", "raid0", &["nvme0n1", "nvme1n1"]).unwrap();
        set(&bench.machine);
        for arguments in ["--layout md-raid0", "--layout md-raid0 --build-md"] {
            let rows = bench.rows(arguments);
            assert!(why(&rows[0]).contains(says), "{says}: {rows:?}");
            assert!(bench.exists("md0") && bench.calls.borrow().is_empty());
        }
    }
}

#[test]
fn an_array_is_assembled_without_writing_and_stopped() {
    let bench = MdBench::new();
    let rows = bench.rows("--layout md-raid0");
    assert!(why(&rows[0]).contains("--build-md"), "{rows:?}");
    assert!(bench.calls.borrow().is_empty());
    let rows = bench.rows("--build-md");
    assert_eq!(rows.len(), 3);
    for row in &rows[..2] {
        assert!(matches!(row.outcome, RowOutcome::Measured(_)), "{row:?}");
        assert!(row.note.as_ref().unwrap().contains("assembled for this comparison"), "{row:?}");
    }
    let expected = [
        "--build /dev/md127 --level=0 --chunk=8 --raid-devices=2 /dev/nvme0n1 /dev/nvme1n1",
        "--readonly /dev/md127",
        "--stop /dev/md127",
    ];
    assert_eq!(*bench.calls.borrow(), expected, "once for all rows");
    assert!(!bench.exists("md127"));
}

#[test]
fn an_array_is_stopped_after_an_interruption() {
    let bench = MdBench::new();
    bench.interrupts.set("--readonly");
    assert!(bench.run("--build-md").partial);
    assert_eq!(options(&bench), ["--build", "--readonly", "--stop"]);
    assert!(!bench.exists("md127"));
}

fn options(bench: &MdBench) -> Vec<String> {
    let calls = bench.calls.borrow();
    calls.iter().map(|call| call.split(' ').next().unwrap().to_owned()).collect()
}

/// udev has the new array open for a moment.
#[test]
fn an_array_is_set_read_only_and_stopped_with_patience() {
    let bench = MdBench::new();
    bench.fails.replace(vec!["--readonly", "--stop"]);
    let rows = bench.rows("--build-md");
    assert!(matches!(rows[0].outcome, RowOutcome::Measured(_)), "{rows:?}");
    assert_eq!(options(&bench), ["--build", "--readonly", "--readonly", "--stop", "--stop"]);
}

#[test]
fn an_array_whose_assembly_fails_is_stopped() {
    for fails in ["--build", "--readonly"] {
        for members in [&["nvme0n1", "nvme1n1"][..], &["nvme0n1"], &[]] {
            let bench = MdBench::new();
            let system = bench.machine.system();
            let run: md::RunMdadm<'_> = Box::new(|arguments| match arguments[0].as_str() {
                // It was killed after it had added these drives.
                "--build" if fails == "--build" => {
                    bench.machine.block("devices/virtual/block", "md127", 1127).unwrap();
                    bench.machine.md_array("md127", "raid0", members).unwrap();
                    Err("mdadm was killed".to_owned())
                }
                option if option == fails => Err("mdadm was killed".to_owned()),
                _ => bench.mdadm(arguments),
            });
            let mdadm = md::Mdadm { system: &system, run: &run, patience: Patience::NONE };
            let drives = ["nvme0n1".to_owned(), "nvme1n1".to_owned()];
            let why = md::BuiltArray::build(&mdadm, &drives, 8192).unwrap_err();
            assert_eq!(why, "mdadm was killed");
            assert!(!bench.exists("md127"), "{fails} {members:?}");
            assert_eq!(bench.calls.borrow().last().unwrap(), "--stop /dev/md127");
        }
    }
}

/// Another program took the number between the check and the assembly.
#[test]
fn an_array_of_other_drives_is_not_stopped_after_a_failed_assembly() {
    let bench = MdBench::new();
    let system = bench.machine.system();
    let run: md::RunMdadm<'_> = Box::new(|arguments| {
        assert_eq!(arguments[0], "--build");
        bench.machine.block("devices/virtual/block", "sda", 640).unwrap();
        bench.machine.md_array("md127", "raid0", &["sda"]).unwrap();
        Err("the array exists".to_owned())
    });
    let mdadm = md::Mdadm { system: &system, run: &run, patience: Patience::NONE };
    let drives = ["nvme0n1".to_owned(), "nvme1n1".to_owned()];
    let why = md::BuiltArray::build(&mdadm, &drives, 8192).unwrap_err();
    assert!(why.contains("the array exists; /dev/md127 is another array"), "{why}");
}

#[test]
fn drives_in_use_and_odd_chunks_make_no_array() {
    let bench = MdBench::new();
    let rows = bench.rows("--build-md --chunk 12k");
    assert!(why(&rows[0]).contains("power of two"), "{rows:?}");
    bench.machine.mount(None, "30 1 259:8 / /data rw - ext4 /dev/nvme1n1 rw").unwrap();
    let rows = bench.rows("--build-md");
    assert!(why(&rows[0]).contains("/dev/nvme1n1 is in use"), "{rows:?}");
    assert!(bench.calls.borrow().is_empty());
}

/// The array was stopped and its number given to other drives.
#[test]
fn an_array_that_became_another_is_not_stopped() {
    let bench = MdBench::new();
    let system = bench.machine.system();
    let run: md::RunMdadm<'_> = Box::new(|arguments| bench.machine.mdadm(arguments));
    let mdadm = md::Mdadm { system: &system, run: &run, patience: Patience::NONE };
    let members = ["nvme0n1".to_owned(), "nvme1n1".to_owned()];
    let built = md::BuiltArray::build(&mdadm, &members, 8192).unwrap();
    run(&["--stop".to_owned(), "/dev/md127".to_owned()]).unwrap();
    bench.machine.md_array("md127", "raid0", &["nvme1n1"]).unwrap();
    assert!(built.stop(&mdadm).unwrap_err().contains("another array"));
    assert!(bench.exists("md127"));
}

#[test]
fn an_interruption_keeps_what_was_measured_and_marks_it() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("r.json").display().to_string();
    let one = file(&folder, "one");
    let arguments = format!("--device {one} --concurrency 2 --engine psync --json {json}");
    let engines = run_with(&arguments, None, true).unwrap();
    assert!(engines.partial && engines.rows.is_empty());
    let engines = run_with(&arguments, None, false).unwrap();
    let kept: EngineComparison = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    assert_eq!(kept.rows.len(), engines.rows.len());
}

#[test]
fn a_drive_that_is_not_there_is_a_row_that_says_so() {
    let engines = run_with("--device /no/such/drive --concurrency 2", None, false).unwrap();
    assert!(!engines.rows.is_empty());
    for row in engines
        .rows
        .iter()
        .filter(|row| row.engine != "vfio" && row.layout == ReadLayout::Individual)
    {
        assert!(why(row).contains("/no/such/drive: file does not exist"), "{row:?}");
    }
}

#[test]
fn what_makes_no_sense_is_wrong_usage() {
    for (arguments, says) in [
        ("--device null", "is no drive"),
        ("--device /x --device /x", "is given 2 times"),
        ("--device /x --bs 4m", "more than a read of one buffer"),
    ] {
        let error = run_with(arguments, None, false).unwrap_err();
        assert!(error.is::<crate::plan::UsageError>(), "{arguments}");
        assert!(error.to_string().contains(says), "{arguments}: {error}");
    }
    for (arguments, says) in [
        ("", "--device"),
        ("--device /x --engine mmap", "`mmap` is no engine: there are sync,"),
        ("--device /x --layout raid5", "single, individual, stripe, md-raid0"),
        ("--device /x --concurrency 0", "1..=32768"),
        ("--device /x --destroy-data S", "--lba-size"),
        ("--device /x --reference", "cannot be used with"),
    ] {
        let words = ["nvmeof-perf", "engines"].into_iter().chain(arguments.split_whitespace());
        let error = Cli::try_parse_from(words).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        assert!(error.to_string().contains(says), "{arguments}: {error}");
    }
}

fn docs(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// `nvmeof-perf engines --reference --svg docs/engines/reference.svg` makes the picture.
#[test]
fn the_page_has_the_figures_and_the_picture_of_the_reference() {
    let rows = reference();
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let page = words(&docs("engines.md"));
    for paragraph in about_md(&rows).into_iter().chain(about_polling(&rows)) {
        assert!(page.contains(&words(&paragraph)), "{paragraph}");
    }
    for engine in Engine::ALL {
        assert!(page.contains(&format!("| `{engine}` |")), "{engine}");
    }
    for (name, picture) in pictures(&reference_plots(&rows)) {
        assert_eq!(docs(&format!("engines/reference-{name}.svg")), picture);
    }
}
