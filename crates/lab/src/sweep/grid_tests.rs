//! The plans of the fourteen tests produce every row of io_pacing's tables.

use std::collections::BTreeMap;

use super::tests::{root, shipped};
use super::*;
use crate::rows::{self, ResultRow};

/// Conditions of every row of both machines, without results.
const GRID: &str = include_str!("../../data/pacing_grid.csv");
/// Rows of the grid.
const ROWS: usize = 614;

fn grid() -> Vec<ResultRow> {
    rows::parse(GRID.as_bytes()).unwrap()
}

/// Returns the conditions of a row in words, without the number of its run.
fn conditions(row: &ResultRow) -> String {
    format!("{:?}", ResultRow { run: 0, ..row.clone() })
}

#[test]
fn the_plans_produce_every_row_of_the_grid() {
    let (grid, plans) = (grid(), shipped());
    assert_eq!(grid.len(), ROWS);
    let mut same: BTreeMap<String, (&ResultRow, u32)> = BTreeMap::new();
    for row in &grid {
        same.entry(conditions(row)).or_insert((row, 0)).1 += 1;
    }
    let mut missing = Vec::new();
    for (row, wanted) in same.values() {
        let plan = plans.iter().find(|(file, _)| *file == format!("test-{:0>2}", row.test));
        let points = plan.unwrap().1.points.iter().filter(|point| {
            let setting = backend::sim::setting(&point.setup);
            point.runs_on(&row.platform, "sim")
                && row.has_conditions(&setting)
                && published::is_published_load(&point.setup)
        });
        let runs: u32 = points.map(|point| point.setup.repeat).sum();
        if runs < *wanted {
            missing.push(format!("{runs} of {wanted} runs of {}", conditions(row)));
        }
    }
    assert!(missing.is_empty(), "{} rows: {missing:#?}", missing.len());
}

#[test]
fn every_published_row_stands_beside_a_point() {
    let published = rows::parse(nvmeof_sim::calibration::ROWS.as_bytes()).unwrap();
    let plans = shipped();
    for row in published {
        let (_, plan) =
            plans.iter().find(|(file, _)| *file == format!("test-{:0>2}", row.test)).unwrap();
        let file = root().join(format!("configs/platforms/{}.toml", row.platform));
        let rows = published::PublishedRows::of(&row.platform, &file).unwrap();
        let measured = row.measured().unwrap();
        let is_beside = |point: &plan::PlannedPoint| {
            point.runs_on(&row.platform, "sim")
                && rows.like(&plan.test, &point.setup).contains(&measured)
        };
        assert!(plan.points.iter().any(is_beside), "{row:?}");
    }
}

/// A point that differs in anything that the columns of a row do not say has no published row.
#[test]
fn other_conditions_have_no_published_row() {
    let file = root().join("configs/platforms/A.toml");
    let rows = published::PublishedRows::of("A", &file).unwrap();
    let plan = |changes: &[&str]| {
        let changes: Vec<String> = changes.iter().map(|change| (*change).to_owned()).collect();
        let plan = root().join("configs/sweeps/test-03.toml");
        SweepPlan::load_with(&plan, &changes).unwrap()
    };
    let beside = |plan: &SweepPlan| -> usize {
        plan.points.iter().map(|point| rows.like(&plan.test, &point.setup).len()).sum()
    };
    assert_eq!(beside(&plan(&[])), 15);
    assert_eq!(beside(&plan(&["load.time=100ms"])), 15, "a shorter run of the same load");
    for change in [
        "load.block-size=64KiB",
        "load.reads=70",
        "target.pacing.policy=adaptive",
        "target.cores=5",
        "target.devices.count=8",
        "target.devices.slow=4",
        "host.count=3",
        "job.threads=2",
        "job.devices=[0, 1]",
        "platform.cache-share-mib=4",
    ] {
        assert_eq!(beside(&plan(&[change])), 0, "{change}");
    }
    let copy = tempfile::tempdir().unwrap();
    let copied = copy.path().join("A.toml");
    fs::copy(&file, &copied).unwrap();
    let strangers = published::PublishedRows::of("A", &copied).unwrap();
    let own = plan(&[]);
    assert!(own.points.iter().all(|point| strangers.like(&own.test, &point.setup).is_empty()));
}
