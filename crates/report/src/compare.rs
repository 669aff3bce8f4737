//! Compares two sets of results point by point, and separates differences from chance.
//!
//! Points match if they belong to one plan and all varied values are equal; runs of a point are
//! repetitions. The interval is Welch's for the difference of two means, with a confidence of 95 %;
//! it requires at least two runs on each side.

use std::collections::BTreeMap;

use crate::point::{Point, VariedKey};
use crate::table::{Column, Table};
use crate::values::signed;

/// A compared metric.
#[derive(Debug, Clone, Copy)]
pub struct Metric {
    /// Its name.
    pub name: &'static str,
    /// Its unit.
    pub unit: &'static str,
    /// Larger values are better.
    pub more_is_better: bool,
    of: fn(&Point) -> f64,
}

/// All compared metrics.
pub const METRICS: &[Metric] = &[
    Metric { name: "bandwidth", unit: "Gb/s", more_is_better: true, of: |point| point.total.gbps },
    Metric {
        name: "latency",
        unit: "us",
        more_is_better: false,
        of: |point| point.total.latency_us.mean,
    },
    Metric {
        name: "p99",
        unit: "us",
        more_is_better: false,
        of: |point| point.total.latency_us.p99,
    },
];

/// One metric of one point on both sides.
#[derive(Debug, Clone)]
pub struct Difference {
    /// Label of the point.
    pub label: String,
    /// The compared metric.
    pub metric: Metric,
    /// Runs of the first side.
    pub before: RunSummary,
    /// Runs of the second side.
    pub after: RunSummary,
    /// 1/2 of the width of the interval of the difference; `None` with too few runs.
    pub half_width: Option<f64>,
}

/// Summary of the runs of a point.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RunSummary {
    /// Number of runs.
    pub count: usize,
    /// Their mean.
    pub mean: f64,
    /// Their variance; 0 for one run.
    variance: f64,
}

/// Significance of a difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Significance {
    /// The second side is better beyond chance.
    Better,
    /// The second side is worse beyond chance.
    Worse,
    /// The interval contains zero.
    Same,
    /// With one run on a side, chance cannot be estimated.
    Unknown,
}

/// Differences of both sides, point by point.
#[derive(Debug, Clone, Default)]
pub struct Comparison {
    /// Differences, in the order of the first side.
    pub differences: Vec<Difference>,
    /// Points that only one side has.
    pub only_before: Vec<String>,
    /// See [`Comparison::only_before`].
    pub only_after: Vec<String>,
}

/// Compares two sets of results.
#[must_use]
pub fn compare(before: &[Point], after: &[Point]) -> Comparison {
    let (first, second) = (grouped(before), grouped(after));
    let mut comparison = Comparison::default();
    for (key, (label, runs)) in in_order(before, &first) {
        let Some((_, others)) = second.get(&key) else {
            comparison.only_before.push(label.clone());
            continue;
        };
        for metric in METRICS {
            let (before, after) = (RunSummary::of(runs, *metric), RunSummary::of(others, *metric));
            comparison.differences.push(Difference {
                label: label.clone(),
                metric: *metric,
                before,
                after,
                half_width: half_width(before, after),
            });
        }
    }
    let only = in_order(after, &second).into_iter().filter(|(key, _)| !first.contains_key(key));
    comparison.only_after = only.map(|(_, (label, _))| label.clone()).collect();
    comparison
}

impl Comparison {
    /// One row per point and metric; `names` are the names of the sides.
    #[must_use]
    pub fn table(&self, names: [&str; 2]) -> Table {
        let mut table = Table::new(vec![
            Column::words("point"),
            Column::words("metric"),
            Column::numbers(names[0], ""),
            Column::numbers(names[1], ""),
            Column::numbers("ratio", ""),
            Column::numbers("difference", "%"),
            Column::numbers("95 % interval", "%"),
            Column::words("verdict"),
        ]);
        for difference in &self.differences {
            let percent = |value: f64| signed(value, 1);
            let relative = difference.relative();
            let interval = difference.half_width.filter(|_| difference.before.mean != 0.0);
            let interval = interval.map(|half| {
                let half = half / difference.before.mean * 100.0;
                let middle = relative.unwrap_or_default();
                format!("{} to {}", percent(middle - half), percent(middle + half))
            });
            table.push(vec![
                difference.label.clone(),
                format!("{} {}", difference.metric.name, difference.metric.unit),
                format!("{:.2}", difference.before.mean),
                format!("{:.2}", difference.after.mean),
                difference.ratio().map_or_else(String::new, |ratio| format!("{ratio:.3}")),
                relative.map_or_else(String::new, percent),
                interval.unwrap_or_else(|| "one run".to_owned()),
                difference.significance().name().to_owned(),
            ]);
        }
        table
    }

    /// Number of differences with this significance.
    #[must_use]
    pub fn count(&self, significance: Significance) -> usize {
        self.differences
            .iter()
            .filter(|difference| difference.significance() == significance)
            .count()
    }
}

impl Difference {
    /// The second side divided by the first.
    #[must_use]
    pub fn ratio(&self) -> Option<f64> {
        (self.before.mean != 0.0).then(|| self.after.mean / self.before.mean)
    }

    /// The difference in percent of the first side.
    fn relative(&self) -> Option<f64> {
        self.ratio().map(|ratio| (ratio - 1.0) * 100.0)
    }

    /// Compares the difference with the interval of chance.
    #[must_use]
    pub fn significance(&self) -> Significance {
        let difference = self.after.mean - self.before.mean;
        match self.half_width {
            None => Significance::Unknown,
            Some(half) if difference.abs() <= half => Significance::Same,
            Some(_) if (difference > 0.0) == self.metric.more_is_better => Significance::Better,
            Some(_) => Significance::Worse,
        }
    }
}

impl Significance {
    /// Name in tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Better => "better",
            Self::Worse => "worse",
            Self::Same => "no difference",
            Self::Unknown => "not known",
        }
    }
}

impl RunSummary {
    fn of(points: &[&Point], metric: Metric) -> Self {
        let values: Vec<f64> = points.iter().map(|point| (metric.of)(point)).collect();
        let count = real(values.len());
        let mean = values.iter().sum::<f64>() / count.max(1.0);
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        let variance = if values.len() > 1 { squares / (count - 1.0) } else { 0.0 };
        Self { count: values.len(), mean, variance }
    }
}

/// Welch's interval: t times the standard error, with Welch's degrees of freedom.
fn half_width(before: RunSummary, after: RunSummary) -> Option<f64> {
    if before.count < 2 || after.count < 2 {
        return None;
    }
    let part = |runs: RunSummary| runs.variance / real(runs.count);
    let (first, second) = (part(before), part(after));
    let sum = first + second;
    if sum == 0.0 {
        return Some(0.0);
    }
    let below = |part: f64, runs: RunSummary| part.powi(2) / (real(runs.count) - 1.0);
    let freedom = sum.powi(2) / (below(first, before) + below(second, after));
    Some(student(freedom) * sum.sqrt())
}

/// The 97.5 % quantile of Student's t.
///
/// Between two rows of the table it takes the one with fewer degrees of freedom, which is wider.
fn student(freedom: f64) -> f64 {
    const TABLE: &[(f64, f64)] = &[
        (1.0, 12.706),
        (2.0, 4.303),
        (3.0, 3.182),
        (4.0, 2.776),
        (5.0, 2.571),
        (6.0, 2.447),
        (7.0, 2.365),
        (8.0, 2.306),
        (9.0, 2.262),
        (10.0, 2.228),
        (12.0, 2.179),
        (15.0, 2.131),
        (20.0, 2.086),
        (30.0, 2.042),
        (60.0, 2.000),
        (120.0, 1.980),
    ];
    let row = TABLE.iter().rev().find(|(least, _)| freedom >= *least);
    row.map_or(TABLE[0].1, |(_, quantile)| *quantile)
}

type Key = (String, Vec<(String, String)>);
type Groups<'a> = BTreeMap<Key, (String, Vec<&'a Point>)>;

fn key(point: &Point) -> Key {
    let pair = |varied: &VariedKey| (varied.key.clone(), varied.value.clone());
    (point.plan.clone(), point.varied.iter().map(pair).collect())
}

fn grouped(points: &[Point]) -> Groups<'_> {
    let mut groups = Groups::new();
    for point in points {
        let label = || Point { repetition: 1, ..point.clone() }.label();
        groups.entry(key(point)).or_insert_with(|| (label(), Vec::new())).1.push(point);
    }
    groups
}

/// The groups, each once, in the order of the points.
fn in_order<'a, 'p>(
    points: &[Point],
    groups: &'a Groups<'p>,
) -> Vec<(Key, &'a (String, Vec<&'p Point>))> {
    let mut keys: Vec<Key> = Vec::new();
    for point in points {
        let key = key(point);
        if !keys.contains(&key) {
            keys.push(key);
        }
    }
    keys.into_iter().filter_map(|key| groups.get(&key).map(|group| (key, group))).collect()
}

#[expect(clippy::cast_precision_loss, reason = "a number of runs")]
fn real(count: usize) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::point::tests::point;

    fn runs(depth: u32, rates: &[f64]) -> Vec<Point> {
        let run = |(at, gbps): (usize, &f64)| {
            let mut point = point(depth, "none");
            point.repetition = u32::try_from(at).unwrap() + 1;
            point.total.gbps = *gbps;
            point
        };
        rates.iter().enumerate().map(run).collect()
    }

    fn bandwidth(comparison: &Comparison, at: usize) -> &Difference {
        let mut own = comparison.differences.iter().filter(|d| d.metric.name == "bandwidth");
        own.nth(at).unwrap()
    }

    #[test]
    fn a_difference_beyond_chance_is_told_from_one_within() {
        // Welch's interval: means 10 and 12, variances 1 and 1, three runs each: t(4) 2.776 *
        // sqrt(2/3).
        let comparison = compare(&runs(32, &[9.0, 10.0, 11.0]), &runs(32, &[11.0, 12.0, 13.0]));
        let difference = bandwidth(&comparison, 0);
        assert!((difference.half_width.unwrap() - 2.776 * (2.0_f64 / 3.0).sqrt()).abs() < 1e-9);
        assert_eq!(difference.significance(), Significance::Same);
        let comparison = compare(&runs(32, &[9.9, 10.0, 10.1]), &runs(32, &[11.9, 12.0, 12.1]));
        assert_eq!(bandwidth(&comparison, 0).significance(), Significance::Better);
        let comparison = compare(&runs(32, &[11.9, 12.0, 12.1]), &runs(32, &[9.9, 10.0, 10.1]));
        assert_eq!(bandwidth(&comparison, 0).significance(), Significance::Worse);
        assert_eq!(
            (comparison.count(Significance::Worse), comparison.count(Significance::Same)),
            (1, 2)
        );
        assert_eq!(
            bandwidth(&comparison, 0).ratio().map(|ratio| (ratio * 1e4).round()),
            Some(8333.0)
        );
    }

    #[test]
    fn less_latency_is_better() {
        let slower = |add: f64| {
            let mut points = runs(32, &[1.0, 1.0]);
            for (at, point) in (0..).zip(&mut points) {
                point.total.latency_us.mean = 100.0 + add + f64::from(at) * 0.1;
            }
            points
        };
        let comparison = compare(&slower(10.0), &slower(0.0));
        let latency = comparison.differences.iter().find(|d| d.metric.name == "latency").unwrap();
        assert_eq!(latency.significance(), Significance::Better);
    }

    #[test]
    fn one_run_tells_nothing_about_chance_and_strangers_are_named() {
        let (mut before, mut after) = (runs(32, &[10.0]), runs(32, &[20.0, 20.0]));
        before.extend(runs(64, &[1.0]));
        after.extend(runs(128, &[1.0]));
        let comparison = compare(&before, &after);
        assert_eq!(bandwidth(&comparison, 0).significance(), Significance::Unknown);
        assert_eq!(comparison.only_before, ["none, queue-depth 64"]);
        assert_eq!(comparison.only_after, ["none, queue-depth 128"]);
        let text = comparison.table(["old", "new"]).markdown();
        assert!(text.contains("one run") && text.contains("+100.0"), "{text}");
    }

    #[test]
    fn quantiles_never_promise_more_than_there_is() {
        assert_eq!(student(1.0), 12.706);
        assert_eq!(student(3.9), 3.182);
        assert_eq!(student(0.5), 12.706);
        assert_eq!(student(1e9), 1.980);
    }
}
