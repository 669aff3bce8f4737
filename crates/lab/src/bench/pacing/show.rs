//! The results as tables, plots and a page.

use anyhow::Result;
use nvmeof_report::{Axis, Column, HtmlPage, Plot, Point, Series, Table, json};

use super::activity::PacerActivity;
use super::comparison::{
    ComparisonOutcome, ComparisonResult, FAST_GBPS, GBPS, P99, P99_9, PointFigure, PolicyPoints,
    SLOW_GBPS, at_all_depths, cells, kept,
};
use super::plan::{BenchDevice, BenchPolicy, POLICIES};
use crate::bench::load::Spread;

/// Description of a run, for all output.
#[derive(Debug)]
pub(super) struct ReportContent<'a> {
    pub(super) points: &'a [Point],
    pub(super) devices: &'a [BenchDevice],
    pub(super) depths: &'a [u32],
    pub(super) comparisons: &'a [ComparisonResult],
    /// Machine, rounds, times.
    pub(super) about: &'a str,
    /// The same in a few words, for plots.
    pub(super) note: &'a str,
    pub(super) activity: Option<&'a PacerActivity>,
}

/// One row for each depth and policy: medians over the rounds.
pub(super) fn table(points: &[Point], device: BenchDevice, depths: &[u32]) -> Table {
    let mut columns = vec![
        Column::numbers("depth", ""),
        Column::words("policy"),
        Column::numbers("bandwidth", "Gb/s"),
        Column::numbers("lowest-highest", "Gb/s"),
        Column::numbers("of the best", ""),
        Column::numbers("mean", "us"),
        Column::numbers("p50", "us"),
        Column::numbers("p99", "us"),
        Column::numbers("p99.9", "us"),
        Column::numbers("budget", "MiB"),
        Column::numbers("in flight", "MiB"),
    ];
    if device == BenchDevice::Mix {
        columns.push(Column::numbers("fast", "Gb/s"));
        columns.push(Column::numbers("of it alone", ""));
        columns.push(Column::numbers("slow", "Gb/s"));
    }
    let mut table = Table::new(columns);
    for &depth in depths {
        let cells = cells(points, device, depth);
        let gbps = |cell: &PolicyPoints<'_>| cell.spread(GBPS).median;
        let best = cells.iter().max_by(|a, b| gbps(&a.1).total_cmp(&gbps(&b.1)));
        let Some((_, best)) = best else { continue };
        for (policy, cell) in &cells {
            let alone = PolicyPoints::of(points, *policy, BenchDevice::Ram, depth);
            table.push(row(
                depth,
                *policy,
                cell,
                best,
                (device == BenchDevice::Mix).then_some(&alone),
            ));
        }
    }
    table
}

/// `alone`: the same policy with the fast namespace alone, if there are two.
fn row(
    depth: u32,
    policy: BenchPolicy,
    cell: &PolicyPoints<'_>,
    best: &PolicyPoints<'_>,
    alone: Option<&PolicyPoints<'_>>,
) -> Vec<String> {
    let Spread { median, min, max } = cell.spread(GBPS);
    let whole = |of: PointFigure| format!("{:.0}", cell.spread(of).median);
    let mib = |of| cell.median_of(of).map_or_else(|| "-".to_owned(), |mib| format!("{mib:.1}"));
    let mut row = vec![
        depth.to_string(),
        policy.to_string(),
        format!("{median:.2}"),
        format!("{min:.2}-{max:.2}"),
        format!("{:.3}", cell.over(GBPS, best, GBPS).median),
        whole(|point| point.total.latency_us.mean),
        whole(|point| point.total.latency_us.p50),
        whole(P99),
        whole(P99_9),
        mib(|point| point.budget_bytes.map(|bytes| bytes / 1_048_576.0)),
        mib(|point| point.in_flight_mib),
    ];
    if let Some(alone) = alone {
        let kept = cell.over(FAST_GBPS, alone, GBPS).median;
        row.push(format!("{:.2}", cell.spread(FAST_GBPS).median));
        row.push(if kept.is_nan() { "-".to_owned() } else { format!("{kept:.3}") });
        row.push(format!("{:.2}", cell.spread(SLOW_GBPS).median));
    }
    row
}

/// Returns plots of bandwidth and tail over depth, a line per policy, for each device; with the
/// names of their files.
pub(super) fn plots(shown: &ReportContent<'_>) -> Vec<(String, Plot)> {
    let figures: [(&str, &str, &str, &str, PointFigure); 3] = [
        ("bandwidth", "Bandwidth", "bandwidth", "Gb/s", GBPS),
        ("p99", "99th percentile of latency", "latency", "us", P99),
        ("fast", "Bandwidth of the fast namespace", "bandwidth", "Gb/s", FAST_GBPS),
    ];
    let mut plots = Vec::new();
    for &device in shown.devices {
        for (file, title, name, unit, of) in figures {
            if file == "fast" && device != BenchDevice::Mix {
                continue;
            }
            let y = Axis::new(name, unit);
            let plot = Plot {
                title: format!("{title}: {device}"),
                note: shown.note.to_owned(),
                x: Axis::new("queue depth in total", "").log2(),
                // The values range from tens of microseconds to hundreds of milliseconds.
                y: if file == "p99" { y.log2() } else { y.from_zero() },
                series: POLICIES.iter().map(|&p| series(shown, device, p, of)).collect(),
            };
            plots.push((format!("{device}-{file}"), plot));
        }
    }
    plots
}

/// Returns the median at each depth.
fn series(
    shown: &ReportContent<'_>,
    device: BenchDevice,
    policy: BenchPolicy,
    of: PointFigure,
) -> Series {
    let at = |&depth: &u32| {
        let cell = PolicyPoints::of(shown.points, policy, device, depth);
        (!cell.is_empty()).then(|| (f64::from(depth), cell.spread(of).median))
    };
    Series::new(&policy.to_string(), shown.depths.iter().filter_map(at).collect())
}

/// Returns tables and comparisons as Markdown that is readable in a terminal too.
pub(super) fn markdown(shown: &ReportContent<'_>) -> String {
    let mut text = format!("measured locally: {}\n", shown.about);
    for &device in shown.devices {
        let table = table(shown.points, device, shown.depths).markdown();
        text += &format!("\n### {device}: {}\n\n{table}", device.about());
    }
    text += "\n### adaptive over the other policies, at all depths together\n\n";
    text += &overall(shown.points, shown.devices, shown.depths).markdown();
    text += "\n### comparisons\n\n";
    for comparison in shown.comparisons {
        text += &format!("* {comparison}\n");
    }
    text + &summary(shown.comparisons) + "\n"
}

/// Returns a row for each device with one namespace and each other policy.
pub(super) fn overall(points: &[Point], devices: &[BenchDevice], depths: &[u32]) -> Table {
    let mut columns = vec![Column::words("device"), Column::words("policy")];
    columns.extend(["bandwidth", "p99", "p99.9"].map(|name| Column::numbers(name, "ratio")));
    let mut table = Table::new(columns);
    let devices = devices.iter().filter(|device| **device != BenchDevice::Mix);
    for (&device, &policy) in devices.flat_map(|device| POLICIES.iter().map(move |p| (device, p))) {
        let ratio = |of| at_all_depths(points, device, depths, policy, of);
        let is_measured = !ratio(GBPS).median.is_nan();
        if policy != BenchPolicy::Adaptive && is_measured {
            let ratios = [GBPS, P99, P99_9].map(|of| ratio(of).to_string());
            table
                .push([device.to_string(), policy.to_string()].into_iter().chain(ratios).collect());
        }
    }
    table
}

/// Returns the share of its bandwidth alone that the fast namespace of a mix keeps, a row per
/// depth.
pub(super) fn kept_by_fast(points: &[Point], depths: &[u32]) -> Table {
    let columns = [Column::numbers("commands out", ""), Column::numbers("kept", "ratio")];
    let mut table = Table::new(columns.into());
    for &depth in depths {
        if let Some(comparison) = kept(points, depth) {
            table.push(vec![depth.to_string(), comparison.ratio.to_string()]);
        }
    }
    table
}

/// Returns the number of comparisons that are met.
fn summary(comparisons: &[ComparisonResult]) -> String {
    let count =
        |outcome| comparisons.iter().filter(|comparison| comparison.outcome() == outcome).count();
    let [met, equal, inconclusive, missed] = [
        ComparisonOutcome::Met,
        ComparisonOutcome::Equal,
        ComparisonOutcome::Inconclusive,
        ComparisonOutcome::Missed,
    ]
    .map(count);
    format!(
        "\n{met} of {} met; {equal} equal: within 1 % over the whole confidence interval; {inconclusive} inconclusive: short \
         by less than these rounds resolve; {missed} not met",
        comparisons.len()
    )
}

/// Returns all results as a page that opens from disk.
pub(super) fn page(shown: &ReportContent<'_>) -> Result<String> {
    let mut page = HtmlPage::new("Pacing policies on NVMe/TCP", "measured locally");
    page.paragraph(shown.about);
    page.heading("Comparisons");
    for comparison in shown.comparisons {
        page.paragraph(&comparison.to_string());
    }
    page.paragraph(summary(shown.comparisons).trim());
    page.heading("Adaptive over the other policies, at all depths together");
    page.table(&overall(shown.points, shown.devices, shown.depths));
    page.heading("Figures");
    let plots: Vec<Plot> = plots(shown).into_iter().map(|(_, plot)| plot).collect();
    page.plots(&plots);
    for &device in shown.devices {
        page.heading(&format!("{device}: {}", device.about()));
        page.table(&table(shown.points, device, shown.depths));
    }
    if let Some(activity) = shown.activity {
        over_time(&mut page, activity);
    }
    page.data("results", &json_list(shown.points)?);
    Ok(page.document())
}

/// Returns the points as a list, for a page.
pub(super) fn json_list(points: &[Point]) -> Result<String> {
    let mut lines = Vec::new();
    for point in points {
        lines.push(json::line(point)?.trim_end().to_owned());
    }
    Ok(format!("[{}]", lines.join(",")))
}

/// Returns a pacer's activity over time as a separate page.
pub(super) fn page_of_activity(activity: &PacerActivity) -> String {
    let mut page = HtmlPage::new("Pacer activity", &activity.note());
    over_time(&mut page, activity);
    page.document()
}

fn over_time(page: &mut HtmlPage, activity: &PacerActivity) {
    page.heading("Pacer activity over time");
    let plots: Vec<Plot> = activity.plots().into_iter().map(|(_, plot)| plot).collect();
    page.plots(&plots);
}

#[cfg(test)]
mod tests {
    use super::super::comparison;
    use super::super::plan::{DEVICES, round};
    use super::super::result::tests::made_up;
    use super::*;

    const DEPTHS: &[u32] = &[32, 64];

    #[test]
    fn every_depth_and_policy_is_a_row_a_mark_and_in_the_page() {
        let runs = DEPTHS.iter().flat_map(|&depth| round(0, DEVICES, depth)).flatten();
        let steps: Vec<_> = runs.flat_map(|run| run.steps).collect();
        let points: Vec<Point> = (1..=2)
            .flat_map(|repetition| steps.iter().map(move |&step| made_up(step, repetition)))
            .collect();
        let comparisons = comparison::all(&points, DEVICES, DEPTHS);
        let shown = ReportContent {
            points: &points,
            devices: DEVICES,
            depths: DEPTHS,
            comparisons: &comparisons,
            about: "a machine",
            note: "a machine",
            activity: None,
        };
        for &device in DEVICES {
            let rows = table(&points, device, DEPTHS).len();
            assert_eq!(rows, DEPTHS.len() * POLICIES.len(), "{device}");
        }
        let plots = plots(&shown);
        assert_eq!(plots.len(), 7, "two a device, and the fast one of two");
        for (name, plot) in &plots {
            let marks: usize = plot.series.iter().map(|series| series.points.len()).sum();
            assert_eq!(marks, DEPTHS.len() * POLICIES.len(), "{name}");
        }
        let text = markdown(&shown);
        assert!(
            text.contains("measured locally: a machine") && text.contains("\n* met: "),
            "{text}"
        );
        let page = page(&shown).expect("points are JSON");
        assert_eq!(page.matches("bench-pacing").count(), points.len());
        let overall = overall(&points, DEVICES, DEPTHS).markdown();
        // Two devices with one namespace, under the header and its line.
        assert_eq!(overall.lines().count() - 2, 2 * (POLICIES.len() - 1), "{overall}");
        assert_eq!(kept_by_fast(&points, DEPTHS).len(), DEPTHS.len());
    }
}
