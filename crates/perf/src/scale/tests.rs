//! The whole command on null devices and in the model, and its selection of drives.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::Parser as _;
use nvmeof_core::pci::{PciFunction, System};
use nvmeof_sim::pcie::{Check, PcieMachine, checks};
use nvmeof_sysfs_fixture::{self as fixture, Machine as MadeUp};

use super::local::measure;
use super::*;
use crate::args::{Cli, Command};

fn parse(arguments: &str) -> Box<ScaleArgs> {
    let words = ["nvmeof-perf", "scale"].into_iter().chain(arguments.split_whitespace());
    match Cli::try_parse_from(words).unwrap().command {
        Command::Scale(args) => Box::new(args),
        other => panic!("{other:?}"),
    }
}

fn simulated(arguments: &str) -> Result<DriveScaling> {
    model::run(&parse(&format!("--where sim {arguments}")))
}

fn measured_machine() -> (tempfile::TempDir, System) {
    let folder = tempfile::tempdir_in(fixture::folder()).unwrap();
    let system = MadeUp::measured(folder.path()).unwrap().system();
    (folder, system)
}

#[test]
fn the_model_is_held_against_what_was_measured_and_names_what_is_full() {
    let scaling = simulated("").unwrap();
    assert_eq!(scaling.place, RunOrigin::Simulated);
    let [system, round_robin] = &scaling.runs[..] else { panic!("{:?}", scaling.runs) };
    assert_eq!((system.steps.len(), round_robin.steps.len()), (30, 30));
    assert_eq!(scaling.reference.len(), 30);
    let has = |text: &str| scaling.findings.iter().any(|finding| finding.starts_with(text));
    assert!(has(
        "in system order: root complex 0000:60 is full at 11 drives: 6 drives on it, 37.9"
    ));
    for dip in [20, 23, 24] {
        assert!(has(&format!("in system order: with {dip} drives")), "{:?}", scaling.findings);
    }
    let first = &summary(&scaling)[0];
    assert!(first.starts_with("simulated, in system order: best with "), "{first}");
    assert!(first.ends_with("root complex 0000:60 is full from the 11th drive"), "{first}");
    assert_eq!(scaling.tree.len(), 30);
    assert_eq!(scaling.tree[0], "-[0000:00]-+-01.1---00.0  0000:01:00.0");
    // In round-robin order, no root complex is saturated with eight drives, nor with sixteen.
    assert!(round_robin.steps[..16].iter().all(|step| step.full.is_empty()));
    assert!(round_robin.steps[23].gib_per_s > system.steps[23].gib_per_s);
}

fn other_figures() -> Vec<Check> {
    let (_, machine): (String, PcieMachine) = model::machine(&parse("--where sim")).unwrap();
    let functions = model::functions(&machine).unwrap();
    let round_robin: Vec<usize> = nvmeof_core::pci::order(&functions)
        .iter()
        .filter_map(|function| functions.iter().position(|known| known == *function))
        .collect();
    checks(&machine, &round_robin)
}

/// `nvmeof-perf scale --where sim --svg docs/scaling/pcie-30.svg` writes the picture.
#[test]
fn the_page_has_the_figures_and_the_picture_of_the_model() {
    let docs = |name: &str| {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name);
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{name}: {error}"))
    };
    let page = docs("scaling.md");
    for Check { what, measured, simulated } in other_figures() {
        let row = format!("| {what} | {measured:.1} | {simulated:.1} |");
        assert!(page.contains(&row), "{row}");
    }
    let scaling = simulated("").unwrap();
    let run = &scaling.runs[0];
    let off = |(drives, rate): &(usize, f64)| (run.steps[drives - 1].gib_per_s / rate - 1.0).abs();
    let worst = scaling.reference.iter().map(off).fold(0.0, f64::max);
    assert!(
        page.contains(&format!("within {:.1} % of what was measured", worst * 100.0)),
        "{worst}"
    );
    assert_eq!(docs("scaling/pcie-30.svg"), plot(&scaling).standalone_svg());
}

/// The other figures of that machine: eight on one root complex, over two, round-robin, sixteen.
#[test]
fn the_other_figures_of_that_machine_are_near() {
    let checks = other_figures();
    assert_eq!(checks.len(), 6);
    for check in checks {
        assert!(check.off().abs() <= 0.1, "{check:?}");
    }
}

/// The model's drives match those of the machine in the test files, except the one behind the
/// switch.
#[test]
fn the_models_drives_hang_where_those_of_the_measured_machine_do() {
    let (_folder, system) = measured_machine();
    let all = system.nvme_functions().unwrap();
    let mut there: Vec<_> =
        all.iter().filter(|f| f.place.ports.len() == 1).map(|f| f.place.clone()).collect();
    let (_, machine) = model::machine(&parse("--where sim")).unwrap();
    let functions = model::functions(&machine).unwrap();
    let mut here: Vec<_> = functions.iter().map(|function| function.place.clone()).collect();
    there.sort_by_key(|place| place.function);
    here.sort_by_key(|place| place.function);
    assert_eq!(here, there);
}

#[test]
fn drives_of_the_model_are_chosen_by_ranges_and_numbered_as_asked() {
    let scaling = simulated("--drives 0-3,8 --by root-complex --order in-order").unwrap();
    let [run] = &scaling.runs[..] else { panic!("{:?}", scaling.runs) };
    assert_eq!(run.order, "in root complex order");
    let drives: Vec<&str> = run.steps.iter().map(|step| step.drive.as_str()).collect();
    assert_eq!(
        drives,
        ["0000:01:00.0", "0000:02:00.0", "0000:03:00.0", "0000:04:00.0", "0000:2a:00.0"]
    );
    assert!(scaling.reference.is_empty(), "what was measured is of other drives");
    // Eight drives of one root complex: saturated, and named.
    let scaling = simulated("--drives 0-7 --by root-complex --order in-order").unwrap();
    assert!(scaling.findings[0].contains("root complex 0000:00 is full at 6 drives"));
    let read = scaling.runs[0].steps[7].gib_per_s;
    assert!((read / 39.7 - 1.0).abs() < 0.1, "{read}");
    let independent = simulated("--reading independent --order in-order").unwrap();
    assert!(independent.reference.is_empty());
    assert!(independent.runs[0].steps.is_sorted_by(|a, b| a.gib_per_s <= b.gib_per_s + 1e-9));
}

#[test]
fn drives_of_a_machine_are_numbered_by_name_slot_or_root_complex() {
    let (_folder, system) = measured_machine();
    let names = |by| -> Vec<String> {
        let all = selected_drive::of_machine(&system, &NumberRanges::All, by).unwrap();
        all.into_iter().map(|drive| drive.name).collect()
    };
    let by_name = names(DriveNumbering::System);
    assert_eq!(by_name.len(), 31);
    // By number, not by letters: nvme2 before nvme10.
    assert_eq!(by_name[..3], ["/dev/nvme0n1", "/dev/nvme1n1", "/dev/nvme2n1"]);
    assert_eq!(by_name[30], "/dev/nvme30n1");
    assert_eq!(names(DriveNumbering::Slot), by_name, "slots have the same numbers there");
    let by_root =
        selected_drive::of_machine(&system, &NumberRanges::All, DriveNumbering::RootComplex)
            .unwrap();
    let roots: Vec<String> = by_root.iter().map(SelectedDrive::root_complex).collect();
    assert!(roots.is_sorted());
    let two = selected_drive::of_machine(&system, &"4,1".parse().unwrap(), DriveNumbering::System)
        .unwrap();
    assert_eq!(
        two.iter().map(|drive| drive.name.as_str()).collect::<Vec<_>>(),
        ["/dev/nvme4n1", "/dev/nvme1n1"]
    );
    let error = selected_drive::of_machine(&system, &"31".parse().unwrap(), DriveNumbering::System);
    let error = error.unwrap_err().to_string();
    assert!(error.contains("there is no drive 31: there are 31 here"), "{error}");
}

#[test]
fn round_robin_goes_over_root_complexes_and_what_is_no_drive_comes_last() {
    let (_folder, system) = measured_machine();
    let mut selected =
        selected_drive::of_machine(&system, &NumberRanges::All, DriveNumbering::System).unwrap();
    let spec: DeviceSpec = "null".parse().unwrap();
    selected.insert(0, SelectedDrive { name: "null".into(), spec, function: None::<PciFunction> });
    let places = selected_drive::round_robin(&selected);
    assert_eq!(places.len(), 32);
    assert_eq!(places[31], 0);
    let roots: std::collections::BTreeSet<String> =
        places[..4].iter().map(|&at| selected[at].root_complex()).collect();
    assert_eq!(roots.len(), 4);
}

fn read(arguments: &str, stop: bool) -> Result<DriveScaling> {
    let args =
        parse(&format!("{arguments} --time 600s --ios 40 --ramp 0s --jobs 1 --depth 2 --bs 64k"));
    let selected = selected_drive::of_specs(&System::this(), &args.device);
    let stop = Arc::new(AtomicBool::new(stop));
    measure(&args, &selected, &stop, &mut args.files.open()?)
}

#[test]
fn devices_are_read_one_more_with_each_step() {
    let scaling = read("--device null --device ram:1m --device null:2m", false).unwrap();
    let [given, round_robin] = &scaling.runs[..] else { panic!("{:?}", scaling.runs) };
    assert_eq!(given.order, "as given");
    assert_eq!(round_robin.steps.len(), 3);
    for (count, step) in (1..).zip(&given.steps) {
        assert_eq!(step.shares.len(), count);
        assert!(step.gib_per_s > 0.0 && step.problem.is_none(), "{step:?}");
        let sum: f64 = step.shares.iter().sum();
        assert!((sum - step.gib_per_s).abs() < 1e-9);
        // They take turns: every drive gets a share.
        assert!(step.shares.iter().all(|share| *share > 0.0), "{step:?}");
        assert_eq!(step.latencies.len(), count);
        for latency in &step.latencies {
            assert!(latency.min <= latency.p50 && latency.p50 <= latency.p99, "{latency:?}");
            assert!(latency.p99 <= latency.max && latency.deviation >= 0.0, "{latency:?}");
        }
        assert!(step.cpus.is_some_and(|cpus| cpus > 0.0), "{step:?}");
    }
    assert!(!scaling.partial);
}

#[test]
fn an_interruption_keeps_what_was_read_and_marks_it() {
    let scaling = read("--device null --device null:1m", true).unwrap();
    assert!(scaling.partial);
}

#[test]
fn what_makes_no_sense_is_wrong_usage() {
    for (arguments, says) in [
        ("--where sim --device null", "--where local"),
        ("--where sim --drives 30", "there is no drive 30"),
        ("--where sim --machine /no/such/file", "cannot read the machine /no/such/file"),
    ] {
        let error = model::run(&parse(arguments)).unwrap_err();
        assert!(error.to_string().contains(says), "{arguments}: {error}");
    }
    let mut writer = ResultFiles::default().open().unwrap();
    let error = local::run(&parse("--machine x --device null"), &mut writer).unwrap_err();
    assert!(error.to_string().contains("--where sim"), "{error}");
    for (arguments, says) in [
        ("--drives 3-1", "0-15,19-22"),
        ("--drives 1 --device null", "cannot be used with"),
        ("--where mars", "local, sim"),
        ("--by age", "root-complex"),
    ] {
        let words = ["nvmeof-perf", "scale"].into_iter().chain(arguments.split_whitespace());
        let error = Cli::try_parse_from(words).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        assert!(error.to_string().contains(says), "{arguments}: {error}");
    }
}
