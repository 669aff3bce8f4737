//! Simulated machine compared with the measured rows, fitted and held out.

use std::path::Path;

use nvmeof_sim::Platform;
use nvmeof_sim::calibration::{Compared, ROWS, RUN, RowsMet, compare, head, rows, table};

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

/// Minimum fraction of the rows with matched bandwidth, in the fitted half and in the held-out one.
const LEAST_BANDWIDTH: f64 = 0.9;
/// As above, for hit rates.
const LEAST_HIT: f64 = 0.8;

fn judge(name: &str) {
    let compared = compared(name);
    for fitted in [true, false] {
        let half = RowsMet::of(compared.iter().filter(|one| one.row.fitted() == fitted));
        let which = if fitted { "fitted" } else { "held out" };
        assert!(half.bandwidth_share() >= LEAST_BANDWIDTH, "{which}, bandwidth: {half:?}");
        assert!(half.hit_share() >= LEAST_HIT, "{which}, hit rate: {half:?}");
    }
}

#[test]
fn platform_a_predicts_what_was_measured() {
    judge("A");
}

#[test]
fn platform_b_predicts_what_was_measured() {
    judge("B");
}

/// Figures of policies are valid for the machine on which they were found: any change of it
/// requires new runs.
#[test]
fn the_machines_are_the_ones_that_figures_were_found_on() {
    let found = ["A", "B"].map(|name| format!("{:#018x}", platform(name).fingerprint()));
    assert_eq!(found, ["0x9a639175ebc1b864", "0x5521752a4e0134b4"]);
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
