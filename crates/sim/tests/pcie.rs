//! Model of a machine with 30 drives, compared with the measured rows of that machine.

use std::path::Path;

use nvmeof_sim::pcie::{Check, MEASURED, PcieMachine, PcieReadMode, compare, rows};

/// Rows with a larger deviation have to be in [`EXPLAINED`].
const NEAR: f64 = 0.1;
/// Rows that the model misses, and why. None at present.
const EXPLAINED: [(usize, &str); 0] = [];

fn machine() -> PcieMachine {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs/pcie");
    PcieMachine::load(&folder.join("pcie-30.toml")).expect("the machine is sound")
}

fn compared() -> Vec<Check> {
    compare(&machine(), &rows(MEASURED).expect("the rows are sound"))
}

#[test]
fn every_measured_row_is_near_or_explained() {
    let compared = compared();
    assert_eq!(compared.len(), 30);
    for (drives, check) in (1..).zip(&compared) {
        let off = check.off();
        println!("{drives:2} {:6.1} {:6.1} {:+.1} %", check.measured, check.simulated, off * 100.0);
        let explained = EXPLAINED.iter().any(|(row, _)| *row == drives);
        assert_eq!(off.abs() > NEAR, explained, "{check:?}");
    }
}

#[test]
fn the_knee_and_the_dips_are_where_they_were_measured() {
    let compared = compared();
    let growth = |drives: usize| compared[drives - 1].simulated - compared[drives - 2].simulated;
    let one = compared[0].simulated;
    // Up to ten drives, each adds its single rate; the eleventh does not.
    assert!((2..=10).all(|drives| growth(drives) > 0.99 * one));
    assert!(growth(11) < 0.5 * one, "{}", growth(11));
    // The next nine add more again.
    assert!((12..=19).all(|drives| growth(drives) > 0.9 * one));
    for dip in [20, 23, 24] {
        assert!(growth(dip) < 0.0, "{dip}: {}", growth(dip));
    }
    assert!((compared[29].simulated / 122.0 - 1.0).abs() < 0.02);
}

/// Cause of the knee: with the eleventh drive, one root complex has six.
#[test]
fn a_root_complex_is_full_at_the_knee_and_a_pair_at_the_end() {
    let machine = machine();
    let full = |count: usize| {
        let drives: Vec<usize> = (0..count).collect();
        let read = machine.read(&drives, PcieReadMode::Striped);
        let full = read.loads.into_iter().filter(|load| load.is_full());
        full.map(|load| (load.of.join(" "), load.drives)).collect::<Vec<_>>()
    };
    assert_eq!(full(10), []);
    assert_eq!(full(11), [("0000:60".to_owned(), 6)]);
    assert_eq!(full(20), [("0000:60".to_owned(), 7)]);
    let pair = |drives| [("0000:40 0000:60".to_owned(), drives)];
    assert_eq!(full(23), pair(14));
    assert_eq!(full(30), pair(16));
}

/// With one queue each, other drives are not slowed down: an additional drive never reduces the
/// total.
#[test]
fn reads_from_a_queue_each_have_no_dips() {
    let machine = machine();
    let total = |count: usize| {
        let drives: Vec<usize> = (0..count).collect();
        machine.read(&drives, PcieReadMode::Independent).total
    };
    assert!((1..30).all(|count| total(count + 1) >= total(count) - 1e-9));
    assert!(total(30) > 122.0);
}
