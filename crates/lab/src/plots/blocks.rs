//! Tables inside the pages: the text between `<!-- generated: NAME -->` and `<!-- end -->`.

use anyhow::{Context, Result, bail};
use nvmeof_report::{Column, Point, Table};

use super::data::{BoundCheck, PlotData, SuiteCase};
use super::figures::{KERNEL, LINES, POOLS, SLOW, USERSPACE, of};
use super::gather::PLATFORMS;
use super::measured;

pub(super) const OPENING: &str = "<!-- generated: ";
pub(super) const CLOSING: &str = "<!-- end -->";

const NOT_RUN: &str = "The suite was not run yet.\n";

/// Returns the page with every block regenerated.
pub(super) fn fill(page: &str, data: &PlotData) -> Result<String> {
    let mut filled = String::new();
    let mut rest = page;
    while let Some((before, after)) = rest.split_once(OPENING) {
        let (name, body) = after.split_once(" -->\n").context("a block without a name")?;
        let (_, after) = body.split_once(CLOSING).with_context(|| format!("{name} has no end"))?;
        filled += &format!("{before}{OPENING}{name} -->\n{}{CLOSING}", block(name, data)?);
        rest = after;
    }
    Ok(filled + rest)
}

fn block(name: &str, data: &PlotData) -> Result<String> {
    Ok(match name {
        "io-pacing" => published(data).markdown(),
        "depth" => depths(data, USERSPACE).markdown(),
        "kernel" => depths(data, KERNEL).markdown(),
        "slow" => slow(data).markdown(),
        "measured" => measured::markdown(&data.measured),
        "activity" => measured::activity(data.activity.as_ref()),
        "contents" => data.contents.clone(),
        "suite" => suite(&data.suite).markdown(),
        "gaps" => gaps(&data.suite),
        "missed" => missed(&data.suite),
        "calibration" => format!("\n```\n{}```\n\n", data.calibration),
        _ => match name.strip_prefix("tried ") {
            Some(question) => tried(data, question)?.markdown(),
            None => bail!("there is no block {name}"),
        },
    })
}

fn one(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.1}"))
}

fn published(data: &PlotData) -> Table {
    let mut columns = vec![Column::numbers("queue depth per host", "")];
    for platform in PLATFORMS {
        for name in ["no pacing", "96 buffers"] {
            columns.push(Column::numbers(&format!("{platform}, {name}:"), "Gb/s"));
            columns.push(Column::numbers("hits", "%"));
        }
    }
    let mut table = Table::new(columns);
    for depth in [32, 64, 128, 256, 1024, 2048] {
        let mut row = vec![depth.to_string()];
        for platform in PLATFORMS {
            for test in ["3", "5"] {
                let found = data.published.iter().find(|row| {
                    row.platform == platform
                        && row.test == test
                        && row.initiator == USERSPACE
                        && row.qd == depth
                });
                row.push(one(found.and_then(|row| row.bw_gbps)));
                row.push(one(found.and_then(|row| row.l3_hit_pct)));
            }
        }
        table.push(row);
    }
    table
}

/// One row per platform and depth: bandwidth and hits of each policy, and the ceiling.
fn depths(data: &PlotData, initiator: &str) -> Table {
    let mut columns = vec![Column::words("platform"), Column::numbers("queue depth", "")];
    for (name, ..) in LINES {
        columns.push(Column::numbers(&format!("{name}:"), "Gb/s"));
        columns.push(Column::numbers("hits", "%"));
    }
    columns.push(Column::numbers("adaptive, in flight:", "commands"));
    columns.push(Column::numbers("endless cache:", "Gb/s"));
    let mut table = Table::new(columns);
    for platform in PLATFORMS {
        let points = |plan, policy| {
            of(data, platform, plan, policy).filter(|p| p.setting.initiator == initiator)
        };
        for adaptive in points("adaptive-03", "adaptive") {
            let depth = adaptive.setting.qd;
            let at = |plan, policy| points(plan, policy).find(|p| p.setting.qd == depth);
            let Some(pool) = at("test-05", "prototype") else { continue };
            let mut row = vec![platform.to_owned(), depth.to_string()];
            for point in [at("test-03", "none"), Some(pool), Some(adaptive)] {
                row.push(one(point.map(|point| point.total.gbps)));
                row.push(one(point.and_then(|point| point.hit_pct)));
            }
            row.push(adaptive.buffers_mean.map_or_else(String::new, |mean| format!("{mean:.0}")));
            row.push(one(at("adaptive-03", "endless-cache").map(|point| point.total.gbps)));
            table.push(row);
        }
    }
    table
}

fn slow(data: &PlotData) -> Table {
    let mut columns = vec![Column::words("platform"), Column::numbers("slow parts", "")];
    for (name, ..) in POOLS {
        columns.push(Column::numbers(&format!("{name}:"), "Gb/s"));
        columns.push(Column::numbers("of it slow parts", "Gb/s"));
    }
    columns.push(Column::numbers("endless cache:", "Gb/s"));
    let mut table = Table::new(columns);
    for platform in PLATFORMS {
        for number in SLOW {
            let mut row = vec![platform.to_owned(), number.to_string()];
            let slow = |point: &&Point| point.setting.num_delay.unwrap_or(0) == number;
            for (_, plan, policy, buffers) in POOLS {
                let point = of(data, platform, plan, policy)
                    .filter(slow)
                    .find(|point| point.setting.num_buffers == buffers);
                row.push(one(point.map(|point| point.total.gbps)));
                row.push(one(point.and_then(|point| of_slow(point, number))));
            }
            let ceiling = of(data, platform, "adaptive-11", "endless-cache").find(slow);
            row.push(one(ceiling.map(|point| point.total.gbps)));
            table.push(row);
        }
    }
    table
}

/// Bandwidth of the jobs on slow parts: the first third, or the first two.
fn of_slow(point: &Point, slow: u32) -> Option<f64> {
    let jobs = usize::try_from(slow / 16).ok()?;
    (jobs > 0).then(|| point.jobs.iter().take(jobs).map(|job| job.figures.gbps).sum())
}

/// One row per family.
fn suite(cases: &[SuiteCase]) -> Table {
    let mut table = Table::new(vec![
        Column::words("family"),
        Column::words("what is asked"),
        Column::numbers("cases", ""),
        Column::numbers("met", ""),
        Column::numbers("runs", ""),
        Column::numbers("that missed", ""),
    ]);
    for family in cases.chunk_by(|one, next| one.family == next.family) {
        let first = &family[0];
        let mut row = vec![first.family.clone(), first.about.clone()];
        row.extend(counts(family));
        table.push(row);
    }
    let mut row = vec!["all".to_owned(), String::new()];
    row.extend(counts(cases));
    table.push(row);
    table
}

/// Counts: cases, cases that are met, their runs with one seed, and the runs that missed a bound.
fn counts(cases: &[SuiteCase]) -> [String; 4] {
    let sum = |of: fn(&SuiteCase) -> usize| cases.iter().map(of).sum::<usize>().to_string();
    [sum(|_| 1), sum(|case| usize::from(case.met)), sum(|case| case.runs), sum(|case| case.missed)]
}

/// Lists every case that some seeds miss although the median meets it.
fn missed(cases: &[SuiteCase]) -> String {
    let mut table = Table::new(vec![
        Column::words("family"),
        Column::words("case"),
        Column::numbers("runs", ""),
        Column::numbers("that missed", ""),
    ]);
    for case in cases.iter().filter(|case| case.met && case.missed > 0) {
        let [_, _, runs, missed] = counts(std::slice::from_ref(case));
        table.push(vec![case.family.clone(), case.case.clone(), runs, missed]);
    }
    match (cases.is_empty(), table.is_empty()) {
        (true, _) => NOT_RUN.to_owned(),
        (_, true) => "None.\n".to_owned(),
        _ => table.markdown(),
    }
}

/// Lists every bound that is missed.
fn gaps(cases: &[SuiteCase]) -> String {
    let mut table = Table::new(vec![
        Column::words("family"),
        Column::words("case"),
        Column::words("bound"),
        Column::words("reached"),
        Column::numbers("bandwidth", "Gb/s"),
        Column::numbers("of the reference", "%"),
    ]);
    for case in cases {
        for check in case.checks.iter().filter(|check| !check.holds) {
            table.push(vec![
                case.family.clone(),
                case.case.clone(),
                bound(check),
                check.value.map_or_else(|| "never".to_owned(), |value| format!("{value:.2}")),
                format!("{:.1}", case.gbps),
                one(case.percent),
            ]);
        }
        for broken in &case.violations {
            table.push(vec![case.family.clone(), case.case.clone(), broken.clone()]);
        }
    }
    match (cases.is_empty(), table.is_empty()) {
        (true, _) => NOT_RUN.to_owned(),
        (_, true) => "Every bound is kept.\n".to_owned(),
        _ => table.markdown(),
    }
}

fn bound(check: &BoundCheck) -> String {
    format!("{} {} {:.2}", check.what, check.sign, check.bound)
}

fn tried(data: &PlotData, question: &str) -> Result<Table> {
    let mut table = Table::new(vec![
        Column::words("platform"),
        Column::words("load"),
        Column::words("control"),
        Column::numbers("bandwidth, simulated:", "Gb/s"),
    ]);
    for tried in data.tried.iter().filter(|tried| tried.question == question) {
        table.push(tried.cells.clone());
    }
    if table.is_empty() {
        bail!("nothing was tried about {question}");
    }
    Ok(table)
}
