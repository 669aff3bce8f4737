//! Plots and tables of real runs, for any devices, policies and depths.

use nvmeof_report::{Axis, Column, Plot, Point, Series, Table};

use super::distinct;
use super::figures::{Figure, upwards};
use crate::averages::median;
use crate::bench::pacing::{self, activity::PacerActivity};

/// The varied keys of `cargo xtask bench pacing`.
const DEVICE: &str = "device";
const POLICY: &str = "policy";

/// Points that belong in one plot: the machine and the devices.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PlotGroup<'a> {
    platform: &'a str,
    device: &'a str,
}

impl PlotGroup<'_> {
    /// Returns the machine's name without the kernel and the number of CPUs.
    fn machine(&self) -> &str {
        self.platform.split(',').next().unwrap_or_default()
    }
}

fn group(point: &Point) -> PlotGroup<'_> {
    let device = point.value(DEVICE).unwrap_or(&point.setting.devices);
    PlotGroup { platform: &point.platform, device }
}

fn policy(point: &Point) -> &str {
    point.value(POLICY).unwrap_or(&point.policy)
}

/// Content of each group's plot.
struct GroupPlot {
    name: &'static str,
    title: &'static str,
    axis: (&'static str, &'static str),
    of: fn(&Point) -> f64,
}

const DRAWN: [GroupPlot; 2] = [
    GroupPlot {
        name: "bandwidth",
        title: "Bandwidth over queue depth",
        axis: ("bandwidth", "Gb/s"),
        of: |point| point.total.gbps,
    },
    GroupPlot {
        name: "p99",
        title: "99th percentile of latency",
        axis: ("latency", "us"),
        of: |point| point.total.latency_us.p99,
    },
];

/// Two plots for each group.
pub(super) fn figures(points: &[Point]) -> Vec<Figure> {
    let mut figures = Vec::new();
    for (at, group) in distinct(points.iter().map(group)).iter().enumerate() {
        let of_group = || points.iter().filter(|point| self::group(point) == *group);
        for drawn in &DRAWN {
            let line = |name: &&str| {
                let points = of_group().filter(|point| policy(point) == *name);
                let points = points.map(|point| (depth(point), (drawn.of)(point)));
                Series::new(name, points.collect())
            };
            let plot = Plot {
                title: format!(
                    "{}, {}, measured on {}",
                    drawn.title,
                    group.device,
                    group.machine()
                ),
                note: format!("measured on {}", group.platform),
                x: Axis::new("commands out, all together", "").log2(),
                y: upwards(drawn.axis),
                series: distinct(points.iter().map(policy)).iter().map(line).collect(),
            };
            figures.push(Figure { file: file(at, group, drawn.name), plot });
        }
    }
    figures
}

/// Plots the pacer's activity over time in one run.
pub(super) fn over_time(activity: &PacerActivity) -> Vec<Figure> {
    // Without kernel and number of CPUs, like other titles.
    let place = activity.place.split(',').next().unwrap_or_default();
    let figure = |(name, plot): (&str, Plot)| Figure {
        file: format!("measured-{name}.svg"),
        plot: Plot { title: format!("{}, {place}", plot.title), ..plot },
    };
    activity.plots().into_iter().map(figure).collect()
}

/// Returns the section of the page about that run.
pub(super) fn activity(activity: Option<&PacerActivity>) -> String {
    let Some(activity) = activity else {
        return "**No measured run is shown yet.**\n".to_owned();
    };
    let mut text = format!("In a real run from its first command on ({}):\n\n", activity.note());
    for Figure { file, plot } in over_time(activity) {
        text += &format!("![{}]({})\n", plot.title, format_args!("pacing/{file}"));
    }
    text
}

fn depth(point: &Point) -> f64 {
    f64::from(u32::try_from(point.setting.offered).unwrap_or(u32::MAX))
}

fn file(at: usize, group: &PlotGroup<'_>, drawn: &str) -> String {
    let words = group.device.split(|c: char| !c.is_ascii_alphanumeric());
    let words: Vec<_> = words.filter(|word| !word.is_empty()).collect();
    format!("measured-{}-{}-{drawn}.svg", at + 1, words.join("-").to_lowercase())
}

/// Returns the section of the page about real runs.
pub(super) fn markdown(points: &[Point]) -> String {
    if points.is_empty() {
        return "**No measured run is shown yet.** Make one, and show it here, with\n\n\
            ```\ncargo xtask bench pacing --json pacing.jsonl\n\
            cargo xtask plots --draw-only --real pacing.jsonl\n```\n"
            .to_owned();
    }
    let mut text = String::new();
    let place = |point: &Point| match &point.machines {
        Some(machines) => format!("{}, {machines}", point.platform),
        None => point.platform.clone(),
    };
    for place in distinct(points.iter().map(place)) {
        text += &format!("Measured on {place}; medians of the repetitions.\n\n");
    }
    for figure in figures(points) {
        text += &format!("![{}]({})\n", figure.plot.title, format_args!("pacing/{}", figure.file));
    }
    for group in distinct(points.iter().map(group)) {
        text += &format!("\nMeasured, {}:\n\n{}", group.device, table(points, &group).markdown());
        if let Some(table) = each_namespace(points, &group) {
            text +=
                &format!("\nMeasured, {}, each namespace:\n\n{}", group.device, table.markdown());
        }
    }
    text + &pacing::findings(points).unwrap_or_default()
}

/// One row per policy and depth.
fn table(points: &[Point], group: &PlotGroup<'_>) -> Table {
    let mut table = Table::new(vec![
        Column::words("policy"),
        Column::numbers("commands out", ""),
        Column::numbers("bandwidth", "Gb/s"),
        Column::numbers("p99", "us"),
        Column::numbers("p99.9", "us"),
        Column::numbers("in flight, mean", "commands"),
    ]);
    for_each_setting(points, group, |name, offered, runs| {
        table.push(vec![
            name.to_owned(),
            offered.to_string(),
            cell(median_of(runs, |p| Some(p.total.gbps)), 1),
            cell(median_of(runs, |p| Some(p.total.latency_us.p99)), 0),
            cell(median_of(runs, |p| Some(p.total.latency_us.p99_9)), 0),
            cell(median_of(runs, |p| p.buffers_mean), 0),
        ]);
    });
    table
}

/// The same table with the bandwidth of each of several namespaces.
fn each_namespace(points: &[Point], group: &PlotGroup<'_>) -> Option<Table> {
    let of_group = points.iter().filter(|point| self::group(point) == *group);
    let namespaces = of_group.map(|point| point.flows.len()).min().filter(|count| *count > 1)?;
    let mut columns = vec![Column::words("policy"), Column::numbers("commands out", "")];
    for number in 1..=namespaces {
        columns.push(Column::numbers(&format!("namespace {number}"), "Gb/s"));
        columns.push(Column::numbers(&format!("p99 of {number}"), "us"));
    }
    let mut table = Table::new(columns);
    for_each_setting(points, group, |name, offered, runs| {
        let mut row = vec![name.to_owned(), offered.to_string()];
        for at in 0..namespaces {
            row.push(cell(median_of(runs, |p| p.flows.get(at).map(|flow| flow.gbps)), 2));
            row.push(cell(median_of(runs, |p| p.flows.get(at).map(|flow| flow.p99_us)), 0));
        }
        table.push(row);
    });
    Some(table)
}

/// Calls a function with the runs of each policy at each depth of a group.
fn for_each_setting(
    points: &[Point],
    group: &PlotGroup<'_>,
    mut take: impl FnMut(&str, u64, &[&Point]),
) {
    for name in distinct(points.iter().map(policy)) {
        for offered in distinct(points.iter().map(|point| point.setting.offered)) {
            let runs: Vec<&Point> = points
                .iter()
                .filter(|p| self::group(p) == *group && policy(p) == name)
                .filter(|p| p.setting.offered == offered)
                .collect();
            if !runs.is_empty() {
                take(name, offered, &runs);
            }
        }
    }
}

fn median_of(runs: &[&Point], of: impl Fn(&Point) -> Option<f64>) -> Option<f64> {
    let mut values: Vec<f64> = runs.iter().filter_map(|point| of(point)).collect();
    values.sort_by(f64::total_cmp);
    median(&values)
}

fn cell(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(String::new, |value| format!("{value:.digits$}"))
}
