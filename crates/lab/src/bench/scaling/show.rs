//! The curves as tables and as a page.

use anyhow::Result;
use nvmeof_report::{Axis, Column, HtmlPage, Plot, Series, Table};
use serde_json::{Value, json};

use super::PointRounds;
use super::measure::Round;
use super::points::{Curve, list};
use crate::bench::load::Spread;

/// A figure of a round, with its name and its unit.
struct Figure {
    name: &'static str,
    unit: &'static str,
    decimals: usize,
    of: fn(&Round) -> Option<f64>,
}

const FIGURES: [Figure; 9] = [
    figure("p50, depth 1", "us", 1, |round| Some(round.one.p50)),
    figure("p99, depth 1", "us", 1, |round| Some(round.one.p99)),
    figure("depth 1", "k IOPS", 1, |round| Some(round.one.iops / 1e3)),
    figure("depth 32", "k IOPS", 1, |round| Some(round.deep.iops / 1e3)),
    figure("CPU, depth 32", "s / M I/O", 2, |round| round.deep.cpu),
    figure("idle CPU", "%", 2, |round| Some(round.idle_percent)),
    figure("a connection", "KiB", 1, |round| round.connection_kib),
    figure("start", "ms", 1, |round| Some(round.start_ms)),
    figure("resident at start", "MiB", 1, |round| Some(round.rss_mib)),
];

const fn figure(
    name: &'static str,
    unit: &'static str,
    decimals: usize,
    of: fn(&Round) -> Option<f64>,
) -> Figure {
    Figure { name, unit, decimals, of }
}

impl Figure {
    /// Returns the median over the rounds of a point.
    fn median(&self, result: &PointRounds) -> Option<f64> {
        let values: Option<Vec<f64>> = result.rounds.iter().map(self.of).collect();
        values.map(|values| Spread::of(&values).median)
    }

    /// Returns it as text.
    fn cell(&self, result: &PointRounds) -> String {
        let decimals = self.decimals;
        self.median(result).map_or_else(|| "-".to_owned(), |median| format!("{median:.decimals$}"))
    }
}

/// Returns a sentence on each point that failed. Its rounds before that count.
fn failed(results: &[PointRounds]) -> impl Iterator<Item = String> {
    results.iter().filter_map(|PointRounds { point, rounds, failure }| {
        let first = failure.as_ref()?.lines().next()?;
        Some(format!("{point}: failed after {} round(s): {first}", rounds.len()))
    })
}

/// Returns the CPUs of daemon and hosts.
pub(super) fn placement(results: &[PointRounds]) -> String {
    let mut parts: Vec<String> = Vec::new();
    for PointRounds { point, .. } in results {
        let (target, hosts) = (list(&point.target_cpus), list(&point.host_cpus));
        let part = match point.curve {
            Curve::Reactors => format!("reactors on CPUs {target}, their hosts on {hosts}"),
            _ => format!("one reactor on CPU {target}, its hosts on {hosts}"),
        };
        if !parts.contains(&part) {
            parts.push(part);
        }
    }
    parts.join("; ")
}

/// Returns the curves that have results, each with its points.
fn curves(results: &[PointRounds]) -> Vec<(Curve, Vec<&PointRounds>)> {
    let mut curves: Vec<(Curve, Vec<&PointRounds>)> = Vec::new();
    for result in results.iter().filter(|result| !result.rounds.is_empty()) {
        let curve = result.point.curve;
        match curves.iter_mut().find(|(of, _)| *of == curve) {
            Some((_, points)) => points.push(result),
            None => curves.push((curve, vec![result])),
        }
    }
    curves
}

fn table(curve: Curve, points: &[&PointRounds]) -> Table {
    let heads = FIGURES.iter().map(|figure| Column::numbers(figure.name, figure.unit));
    let columns = std::iter::once(Column::numbers(curve.names().1, "")).chain(heads);
    let mut table = Table::new(columns.collect());
    for result in points {
        let cells = FIGURES.iter().map(|figure| figure.cell(result));
        table.push(std::iter::once(result.point.count.to_string()).chain(cells).collect());
    }
    table
}

/// Returns the tables for a terminal.
pub(super) fn text(results: &[PointRounds]) -> String {
    let tables = curves(results)
        .into_iter()
        .map(|(curve, points)| format!("{}\n{}\n", curve.names().0, table(curve, &points).text()));
    tables.chain(failed(results).map(|failed| format!("{failed}\n"))).collect()
}

/// Returns the tables as Markdown.
pub(super) fn markdown(results: &[PointRounds], about: &str) -> String {
    let mut text = format!("{about}\n");
    for (curve, points) in curves(results) {
        text.push_str(&format!("\n{}:\n\n{}", curve.names().0, table(curve, &points).markdown()));
    }
    for failed in failed(results) {
        text.push_str(&format!("\n* {failed}\n"));
    }
    text
}

/// Returns tables and plots as a page that opens from disk, with every round.
pub(super) fn page(results: &[PointRounds], about: &str) -> Result<String> {
    let mut page = HtmlPage::new("Scaling", "measured locally");
    page.paragraph(about);
    for (curve, points) in curves(results) {
        page.heading(curve.names().0);
        page.table(&table(curve, &points));
        let plots: Vec<_> = FIGURES.iter().filter_map(|one| plot(curve, &points, one)).collect();
        page.plots(&plots);
    }
    failed(results).for_each(|failed| page.paragraph(&failed));
    page.data("results", &serde_json::to_string(&json(results, about))?);
    Ok(page.document())
}

/// Returns the plot of a figure, or `None` if no point has it.
fn plot(curve: Curve, points: &[&PointRounds], figure: &Figure) -> Option<Plot> {
    let values: Vec<(f64, f64)> = points
        .iter()
        .filter_map(|result| Some((f64::from(result.point.count), figure.median(result)?)))
        .collect();
    (!values.is_empty()).then(|| Plot {
        title: figure.name.to_owned(),
        note: curve.names().0.to_owned(),
        x: Axis::new(curve.names().1, "").log2(),
        y: Axis::new(figure.name, figure.unit).from_zero(),
        series: vec![Series::new("", values)],
    })
}

/// Returns every round.
pub(super) fn json(results: &[PointRounds], about: &str) -> Value {
    let point = |PointRounds { point, rounds, failure }: &PointRounds| {
        json!({
            "curve": point.curve.names().0,
            "count": point.count,
            "target_cpus": point.target_cpus,
            "host_cpus": point.host_cpus,
            "failure": failure,
            "rounds": rounds.iter().map(Round::json).collect::<Vec<_>>(),
        })
    };
    json!({
        "schema_version": 1,
        "about": about,
        "points": results.iter().map(point).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::super::points::ScalingPoint;
    use super::*;
    use crate::bench::load::LineSample;

    fn result(curve: Curve, count: u32, p50: [f64; 3]) -> PointRounds {
        let sample = |p50| LineSample { iops: 1e5, gbps: 1.0, p50, p99: 20.0, cpu: Some(1.0) };
        let round = |p50| Round {
            start_ms: 7.0,
            rss_mib: 9.0,
            connection_kib: (count > 1).then_some(5.5),
            idle_percent: 0.25,
            one: sample(p50),
            deep: sample(40.0),
        };
        let (target_cpus, host_cpus) = (vec![0], vec![1]);
        let point = ScalingPoint { curve, count, target_cpus, host_cpus, jobs: 1 };
        PointRounds { point, rounds: p50.map(round).to_vec(), failure: None }
    }

    #[test]
    fn a_point_that_fails_keeps_its_rounds_and_is_named() {
        let mut results = [
            result(Curve::Connections, 1, [10.0, 30.0, 11.0]),
            result(Curve::Connections, 4096, [12.0; 3]),
        ];
        results[0].failure = Some("the daemon ended\nat once".to_owned());
        results[1].rounds.clear();
        results[1].failure = Some("too many files".to_owned());
        let text = text(&results);
        assert!(
            text.contains("1 I/O queue: failed after 3 round(s): the daemon ended\n"),
            "{text}"
        );
        assert!(text.contains("4096 I/O queues: failed after 0 round(s)"), "{text}");
        assert!(text.contains("11.0"), "{text}");
        assert!(markdown(&results, "").contains("\n* 4096 I/O queues: failed after"));
        assert!(page(&results, "").expect("a page").contains("too many files"));
        assert_eq!(placement(&results), "one reactor on CPU 0, its hosts on 1");
    }

    #[test]
    fn every_curve_has_a_table_of_medians_and_plots() {
        let results = [
            result(Curve::Connections, 1, [10.0, 30.0, 11.0]),
            result(Curve::Connections, 4096, [12.0, 13.0, 90.0]),
            result(Curve::Reactors, 1, [10.0, 10.0, 10.0]),
        ];
        let text = markdown(&results, "a machine");
        let row = |start: &str| {
            let mut rows = text.lines().map(|line| line.replace(' ', ""));
            rows.find(|line| line.starts_with(start)).expect("a row")
        };
        assert!(row("|1|").starts_with("|1|11.0|20.0|100.0|100.0|1.00|0.25|-|7.0|"), "{text}");
        assert!(row("|4096|").contains("|13.0|20.0|100.0|100.0|1.00|0.25|5.5|"), "{text}");
        assert_eq!(text.matches(":\n\n|").count(), 2, "{text}");
        let page = page(&results, "a machine").expect("a page");
        // The curve of reactors has no plot of memory per connection.
        assert_eq!(page.matches("<svg").count(), FIGURES.len() * 2 - 1);
        assert!(page.contains("\"connection_kib\":5.5"));
    }
}
