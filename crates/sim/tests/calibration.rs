//! Simulated machine compared with the measured rows, test by test.

use std::path::Path;

use nvmeof_sim::Platform;
use nvmeof_sim::calibration::{Compared, ROWS, RUN, RowsMet, compare, head, rows, table, tests};

fn platform(name: &str) -> Platform {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs/platforms");
    Platform::load(&folder.join(format!("{name}.toml"))).expect("the platform is sound")
}

/// Compares every row of a platform, in short runs.
#[expect(clippy::print_stdout, reason = "a failed test shows it")]
fn compared(name: &str) -> Vec<Compared> {
    let mut rows = rows(ROWS).expect("the rows are sound");
    rows.retain(|row| row.platform == name);
    let (platform, (warm_up, time)) = (platform(name), RUN);
    let compared = compare(&platform, &rows, warm_up, time).expect("the rows can be run");
    let head = head(name, &platform);
    println!("{head}{}", table(&compared, true));
    let page = include_str!("../../../docs/pacing/calibration.txt");
    let shown = head + &table(&compared, false);
    assert!(page.contains(&shown), "another table is shown: run `cargo xtask plots`\n{shown}");
    compared
}

/// Least number of rows of a test with a bandwidth within 5 %, and with a hit rate within five
/// points: slightly below what the platforms' numbers reach.
type Least = (u32, u32, u32);

/// Bounds of platform A: one row below what is reached, and one more for each 25.
const A: &[Least] = &[
    (1, 5, 0),
    (2, 13, 4),
    (3, 12, 5),
    (4, 13, 7),
    (5, 10, 5),
    (6, 38, 38),
    (7, 19, 0),
    (9, 3, 7),
    (10, 23, 25),
    (11, 9, 11),
    (12, 21, 23),
    (13, 19, 19),
    (14, 68, 58),
];
/// Bounds of platform B.
const B: &[Least] =
    &[(1, 4, 5), (2, 5, 4), (3, 9, 6), (4, 5, 2), (5, 5, 5), (10, 19, 19), (13, 4, 4)];

/// Checks every test of a platform, and the shares of all of its rows.
fn judge(name: &str, least: &[Least], all: (f64, f64)) {
    let compared = compared(name);
    let judged: Vec<u32> = least.iter().map(|(test, ..)| *test).collect();
    assert_eq!(tests(&compared), judged, "each test has a bound");
    for &(test, bandwidth, hit) in least {
        let met = RowsMet::of(compared.iter().filter(|one| one.row.test == test));
        assert!(met.bandwidth_met >= bandwidth, "test {test}, bandwidth: {met:?}");
        assert!(met.hit_met >= hit, "test {test}, hit rate: {met:?}");
    }
    let met = RowsMet::of(compared.iter());
    assert!(met.bandwidth_share() >= all.0, "bandwidth: {met:?}");
    assert!(met.hit_share() >= all.1, "hit rate: {met:?}");
}

#[test]
fn platform_a_is_as_close_to_what_was_measured_as_the_page_says() {
    judge("A", A, (0.79, 0.76));
}

#[test]
fn platform_b_is_as_close_to_what_was_measured_as_the_page_says() {
    judge("B", B, (0.96, 0.84));
}

/// Figures of policies are valid for the machine on which they were found: any change of it
/// requires new runs.
#[test]
fn the_machines_are_the_ones_that_figures_were_found_on() {
    let found = ["A", "B"].map(|name| format!("{:#018x}", platform(name).fingerprint()));
    assert_eq!(found, ["0x77958805b36a5650", "0x2c69e5bb1651866f"]);
}

#[test]
fn every_row_is_a_scenario_or_ran_without_a_fabric() {
    let rows = rows(ROWS).unwrap();
    assert_eq!(rows.len(), ROWS.lines().count() - 1);
    for row in &rows {
        assert_eq!(row.scenario().is_none(), row.hosts == 0, "{row:?}");
    }
    assert!(nvmeof_sim::calibration::rows("platform,test\nA,x").is_err());
}

#[test]
fn rows_that_differ_in_each_run_of_the_real_machine_are_not_judged() {
    let rows = rows(ROWS).unwrap();
    let not: Vec<_> = rows.iter().filter(|row| !row.judged()).collect();
    assert_eq!(not.len(), 7);
    assert!(not.iter().all(|row| (row.platform.as_str(), row.test, row.qd) == ("A", 10, 1024)));
}

#[test]
fn the_page_lists_every_number_of_a_platform() {
    let page = include_str!("../../../docs/design/simulator.md");
    let numbers = platform("A").numbers();
    assert!(numbers.len() <= 25, "{} numbers", numbers.len());
    for (key, _) in numbers {
        assert!(page.contains(&format!("`{key}`")), "{key} is not in the table");
    }
}
