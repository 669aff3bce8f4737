//! The tables of a sweep.

use std::collections::BTreeSet;

use crate::point::{Part, Point, short_key};
use crate::table::{Column, Table};

const MIB: f64 = 1_048_576.0;

/// What is told of each part of a point, and where it stands.
type PartsOf = fn(&Point) -> &[Part];
pub(super) const PARTS: &[(&str, PartsOf)] = &[
    ("By host", |point| &point.hosts),
    ("By job", |point| &point.jobs),
    ("By block size", |point| &point.sizes),
];

/// One row a point: what varied, then what was measured, with the prototype's own columns first.
#[must_use]
pub fn table(points: &[Point]) -> Table {
    let keys = keys(points);
    let mut columns = leading(points, &keys);
    let numbers = [
        ("kIOPS", ""),
        ("bandwidth", "Gb/s"),
        ("wire", "Gb/s"),
        ("latency", "us"),
        ("p50", "us"),
        ("p99", "us"),
        ("p99.9", "us"),
        ("stddev", "Gb/s"),
        ("LLC hit", "%"),
        ("buffers", ""),
        ("most", ""),
        ("in flight", "MiB"),
        ("budget", "MiB"),
        ("period", "us"),
        ("Jain", ""),
    ];
    columns.extend(numbers.map(|(name, unit)| Column::numbers(name, unit)));
    let mut table = Table::new(columns);
    for point in points {
        let mut row = lead(points, point, &keys);
        let latency = &point.total.latency_us;
        row.extend([
            fixed(Some(point.total.kiops), 1),
            fixed(Some(point.total.gbps), 1),
            fixed(point.wire_gbps, 1),
            fixed(Some(latency.mean), 1),
            fixed(Some(latency.p50), 1),
            fixed(Some(latency.p99), 1),
            fixed(Some(latency.p99_9), 1),
            fixed(point.stddev_gbps, 2),
            fixed(point.hit_pct, 1),
            fixed(point.buffers_mean, 1),
            point.buffers_max.map_or_else(String::new, |most| most.to_string()),
            fixed(point.in_flight_mib, 1),
            fixed(point.budget_bytes.map(|bytes| bytes / MIB), 1),
            fixed(point.period_us, 3),
            fixed(point.fairness, 3),
        ]);
        table.push(row);
    }
    table
}

/// One row a part; empty where every point has but one.
pub(super) fn parts(points: &[Point], of: PartsOf) -> Table {
    let keys = keys(points);
    let mut columns = leading(points, &keys);
    columns.push(Column::words("part"));
    let numbers = [
        ("kIOPS", ""),
        ("bandwidth", "Gb/s"),
        ("latency", "us"),
        ("p50", "us"),
        ("p99", "us"),
        ("p99.9", "us"),
        ("at the target", "us"),
        ("p99 at the target", "us"),
    ];
    columns.extend(numbers.map(|(name, unit)| Column::numbers(name, unit)));
    let mut table = Table::new(columns);
    if points.iter().all(|point| of(point).len() < 2) {
        return table;
    }
    for point in points {
        for part in of(point) {
            let figures = &part.figures;
            let mut row = lead(points, point, &keys);
            row.extend([
                part.name.clone(),
                fixed(Some(figures.kiops), 1),
                fixed(Some(figures.gbps), 1),
                fixed(Some(figures.latency_us.mean), 1),
                fixed(Some(figures.latency_us.p50), 1),
                fixed(Some(figures.latency_us.p99), 1),
                fixed(Some(figures.latency_us.p99_9), 1),
                fixed(figures.at_target_us.map(|latency| latency.mean), 1),
                fixed(figures.at_target_us.map(|latency| latency.p99), 1),
            ]);
            table.push(row);
        }
    }
    table
}

/// Every varied key, in the order of the plan.
fn keys(points: &[Point]) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let keys = points.iter().flat_map(|point| &point.varied).map(|varied| varied.key.clone());
    keys.filter(|key| seen.insert(key.clone())).collect()
}

/// The platform and the place only where they are not the same for all; the run where there are
/// several.
fn mixed(points: &[Point]) -> (bool, bool) {
    let differ = |pair: &[Point]| {
        pair[0].place != pair[1].place
            || pair[0].platform != pair[1].platform
            || pair[0].plan != pair[1].plan
    };
    (points.windows(2).any(differ), points.iter().any(|point| point.repetition > 1))
}

fn leading(points: &[Point], keys: &[String]) -> Vec<Column> {
    let (places, runs) = mixed(points);
    let mut columns = Vec::new();
    if places {
        columns.extend(["plan", "where", "platform"].map(Column::words));
    }
    for key in keys {
        let numbers = points.iter().all(|p| p.value(key).is_none_or(|v| v.parse::<f64>().is_ok()));
        let short = short_key(key);
        // Two keys with the same last part are told apart by the whole.
        let name = if keys.iter().filter(|other| short_key(other) == short).count() > 1 {
            key
        } else {
            short
        };
        columns.push(if numbers { Column::numbers(name, "") } else { Column::words(name) });
    }
    if runs {
        columns.push(Column::numbers("run", ""));
    }
    columns
}

fn lead(points: &[Point], point: &Point, keys: &[String]) -> Vec<String> {
    let (places, runs) = mixed(points);
    let mut row = Vec::new();
    if places {
        row.extend([point.plan.clone(), point.place.to_string(), point.platform.clone()]);
    }
    row.extend(keys.iter().map(|key| point.value(key).unwrap_or_default().to_owned()));
    if runs {
        row.push(point.repetition.to_string());
    }
    row
}

fn fixed(value: Option<f64>, decimals: usize) -> String {
    value.map_or_else(String::new, |value| format!("{value:.decimals$}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::point::Where;
    use crate::point::tests::point;

    #[test]
    fn what_varied_leads_and_units_stand_in_the_head() {
        let text = table(&[point(64, "none"), point(1024, "none")]).markdown();
        let lines: Vec<_> = text.lines().collect();
        assert!(
            lines[0].starts_with("| policy | queue-depth | kIOPS | bandwidth Gb/s |"),
            "{text}"
        );
        assert!(
            lines[2].starts_with("| none   |          64 | 176.2 |          184.8 |"),
            "{text}"
        );
        assert!(lines[2].contains("12.0"), "the budget in MiB: {text}");
        assert_eq!(lines.len(), 4);
    }

    #[test]
    fn runs_and_places_have_columns_only_where_they_differ() {
        let one = point(64, "none");
        let again = Point { repetition: 2, ..one.clone() };
        let head = |points: &[Point]| table(points).markdown().lines().next().unwrap().to_owned();
        assert!(!head(std::slice::from_ref(&one)).contains(" run "));
        assert!(head(&[one.clone(), again]).contains(" run "));
        let local = Point { place: Where::Local, ..one.clone() };
        let text = table(&[one, local]).markdown();
        assert!(text.contains(" where ") && text.contains("| simulated |"), "{text}");
    }

    #[test]
    fn parts_are_shown_where_there_are_several() {
        let points = [point(64, "none"), point(1024, "none")];
        assert_eq!(parts(&points, |point| &point.hosts).len(), 4);
        assert!(parts(&points, |point| &point.jobs).is_empty());
        let text = parts(&points, |point| &point.hosts).markdown();
        assert!(text.contains("host 2") && text.contains("p99 at the target us"), "{text}");
    }
}
