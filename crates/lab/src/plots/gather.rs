//! Runs the simulations behind the pages, and keeps the values they show.

use std::path::Path;

use crate::suite::{
    Case, CaseBound, CaseResult, Check, Family, SEEDS, SEEDS_TO_DECIDE, Seeds, SuiteMode,
    SuiteRunner,
};
use anyhow::{Result, bail, ensure};
use nvmeof_console::complain;
use nvmeof_pacing::PolicyConfig;
use nvmeof_report::{Point, RunOrigin, VariedKey};
use nvmeof_sim::Platform;
use nvmeof_sim::calibration::{ROWS, RUN, compare, head, rows, table};
use nvmeof_sim::scenario::Pacing;
use nvmeof_workspace::checkout::Workspace;
use nvmeof_workspace::parallel::run_parallel;

use super::data::{BoundCheck, SuiteCase};
use crate::{points, sweep};

pub(super) const PLATFORMS: [&str; 2] = ["A", "B"];
/// Maximum number of cases judged concurrently.
const PARALLEL_CASES: usize = 2;

/// Points of a plan that the pages show.
struct PlanSelection {
    plan: &'static str,
    wanted: fn(&[VariedKey]) -> bool,
    platforms: &'static [&'static str],
    keep: KeptValues,
}

/// Values of a point that are kept in addition to its totals.
#[derive(Clone, Copy)]
struct KeptValues {
    series: bool,
    jobs: bool,
}

const TOTALS: KeptValues = KeptValues { series: false, jobs: false };

const PARTS: &[PlanSelection] = &[
    PlanSelection { plan: "test-03", wanted: is_doubled, platforms: &PLATFORMS, keep: TOTALS },
    PlanSelection { plan: "test-05", wanted: is_doubled, platforms: &PLATFORMS, keep: TOTALS },
    PlanSelection {
        plan: "adaptive-03",
        wanted: |varied| value(varied, "policy") != "none" && is_doubled(varied),
        platforms: &PLATFORMS,
        keep: TOTALS,
    },
    PlanSelection {
        plan: "test-11",
        wanted: |varied| value(varied, "queue-depth") == "341",
        platforms: &PLATFORMS,
        keep: KeptValues { series: false, jobs: true },
    },
    PlanSelection {
        plan: "adaptive-11",
        wanted: |varied| value(varied, "queue-depth") == "341",
        platforms: &PLATFORMS,
        keep: KeptValues { series: false, jobs: true },
    },
    PlanSelection { plan: "test-14", wanted: |_| true, platforms: &["B"], keep: TOTALS },
    PlanSelection {
        plan: "adaptive-stall",
        wanted: |varied| value(varied, "what") == "link" && value(varied, "queue-depth") == "256",
        platforms: &PLATFORMS,
        keep: KeptValues { series: true, jobs: false },
    },
];

/// Returns whether the depth belongs to the doubling series.
fn is_doubled(varied: &[VariedKey]) -> bool {
    !["36", "40", "44", "48"].contains(&value(varied, "queue-depth"))
}

/// Returns the value of the key that ends so.
fn value<'a>(varied: &'a [VariedKey], key: &str) -> &'a str {
    let ends = |varied: &&VariedKey| varied.key.rsplit('.').next() == Some(key);
    varied.iter().find(ends).map_or("", |varied| &varied.value)
}

/// Returns every simulated point that the pages show.
pub(super) fn simulated(workspace: &Workspace) -> Result<Vec<Point>> {
    let mut all = Vec::new();
    for part in PARTS {
        for platform in part.platforms {
            complain!("{} on platform {platform}", part.plan);
            let points = sweep::simulate(workspace, part.plan, platform, part.wanted)?;
            ensure!(!points.is_empty(), "{}: no point of it is shown", part.plan);
            all.extend(points.into_iter().map(|point| slim(point, part.keep)));
        }
    }
    Ok(all)
}

/// Returns the point without values that no page shows or that differ between builds.
fn slim(point: Point, keep: KeptValues) -> Point {
    let KeptValues { series, jobs } = keep;
    Point {
        fingerprint: String::new(),
        conditions: Vec::new(),
        measured: Vec::new(),
        hosts: Vec::new(),
        jobs: if jobs { point.jobs } else { Vec::new() },
        sizes: Vec::new(),
        flows: Vec::new(),
        series: if series { point.series } else { Vec::new() },
        ..point
    }
}

/// Reads real runs from a file; rejects failed runs and simulated ones.
pub(super) fn real(file: &Path) -> Result<Vec<Point>> {
    let shown = file.display();
    let points = points::read(file)?;
    ensure!(!points.is_empty(), "{shown}: no result in it");
    for point in &points {
        if point.place == RunOrigin::Simulated {
            bail!("{shown}: {} of {} is simulated", point.label(), point.plan);
        }
        if let Some(problem) = point.problems.first() {
            bail!("{shown}: {} of {}: {problem}", point.label(), point.plan);
        }
    }
    // Flows distinguish slow namespaces from fast ones.
    let slim = |point: Point| Point { flows: point.flows.clone(), ..slim(point, TOTALS) };
    Ok(points.into_iter().map(slim).collect())
}

/// Computes the simulator's deviation from the measurements, one line per test and half.
pub(super) fn calibration(workspace: &Workspace) -> Result<String> {
    let rows = rows(ROWS).map_err(anyhow::Error::msg)?;
    let (warm_up, time) = RUN;
    let mut text = String::new();
    for name in PLATFORMS {
        let file = workspace.root().join(format!("configs/platforms/{name}.toml"));
        let platform = Platform::load(&file)?;
        let of_platform: Vec<_> = rows.iter().filter(|row| row.platform == name).cloned().collect();
        let compared = compare(&platform, &of_platform, warm_up, time)?;
        if !text.is_empty() {
            text.push('\n');
        }
        text += &(head(name, &platform) + &table(&compared, false));
    }
    Ok(text)
}

/// Runs the acceptance suite on `adaptive`, in the cases that the tests require.
pub(super) fn suite(workspace: &Workspace) -> Result<Vec<SuiteCase>> {
    let load = |name: &str| -> Result<(String, Platform)> {
        let file = workspace.root().join(format!("configs/platforms/{name}.toml"));
        Ok((name.to_owned(), Platform::load(&file)?))
    };
    let platforms: Result<Vec<_>> = PLATFORMS.iter().map(|name| load(name)).collect();
    let lab =
        SuiteRunner::new(platforms?, Pacing::Policy(PolicyConfig::Adaptive), SuiteMode::Quick);
    let seeds = Seeds::new(&lab, SEEDS, SEEDS_TO_DECIDE);
    let cases: Vec<Case> = Family::ALL.iter().flat_map(|family| family.cases(&lab)).collect();
    complain!("{} cases of the acceptance suite, {SEEDS} seeds, or {SEEDS_TO_DECIDE}", cases.len());
    let judge = |case: &Case| Ok(judged(case, &case.judge_each(&seeds)?));
    run_parallel(&cases, PARALLEL_CASES, |_| false, judge).into_iter().collect()
}

fn judged(case: &Case, verdict: &CaseResult) -> SuiteCase {
    SuiteCase {
        family: case.family.name().to_owned(),
        about: case.family.about().to_owned(),
        case: case.name.clone(),
        met: verdict.passes(),
        runs: verdict.judged,
        missed: verdict.missed,
        gbps: verdict.metrics.gbps,
        percent: Some(verdict.percent()).filter(|percent| percent.is_finite()),
        checks: verdict.checks.iter().map(held).collect(),
        violations: verdict.violations.clone(),
    }
}

fn held(check: &Check) -> BoundCheck {
    let (sign, bound) = match check.bound {
        CaseBound::AtLeast(bound) => (">=", bound),
        CaseBound::AtMost(bound) => ("<=", bound),
    };
    BoundCheck {
        what: check.what.to_owned(),
        value: check.value.is_finite().then_some(check.value),
        sign: sign.to_owned(),
        bound,
        holds: check.holds(),
    }
}
