//! The tables of a sweep.

use std::collections::BTreeSet;

use crate::point::{Point, PointPart, RunOrigin, short_key};
use crate::table::{Column, Table};
use crate::values::fixed;

const MIB: f64 = 1_048_576.0;

/// Selects the parts of a point.
type PartsOf = fn(&Point) -> &[PointPart];
pub(super) const PARTS: &[(&str, PartsOf)] = &[
    ("By host", |point| &point.hosts),
    ("By job", |point| &point.jobs),
    ("By block size", |point| &point.sizes),
];

/// A figure of a point as a column.
struct Figure {
    name: &'static str,
    unit: &'static str,
    /// Digits after the point.
    decimals: usize,
    /// The tables of the Mellanox SPDK io_pacing prototype have it.
    brief: bool,
    of: fn(&Point) -> Option<f64>,
}

const fn figure(
    name: &'static str,
    unit: &'static str,
    decimals: usize,
    brief: bool,
    of: fn(&Point) -> Option<f64>,
) -> Figure {
    Figure { name, unit, decimals, brief, of }
}

/// Figures of the load: rates and latencies.
const LOAD: &[Figure] = &[
    figure("kIOPS", "", 1, true, |point| Some(point.total.kiops)),
    figure("bandwidth", "Gb/s", 1, true, |point| Some(point.total.gbps)),
    figure("wire", "Gb/s", 1, true, |point| point.wire_gbps),
    figure("latency", "us", 1, true, |point| Some(point.total.latency_us.mean)),
    figure("p50", "us", 1, false, |point| Some(point.total.latency_us.p50)),
    figure("p99", "us", 1, true, |point| Some(point.total.latency_us.p99)),
    figure("p99.9", "us", 1, false, |point| Some(point.total.latency_us.p99_9)),
    figure("largest", "us", 1, false, |point| Some(point.total.latency_us.max)),
    figure("stddev", "Gb/s", 2, true, |point| point.stddev_gbps),
    figure("Jain", "", 3, true, |point| point.fairness),
];

/// Figures of the target, of CPUs and of the network.
const TARGET: &[Figure] = &[
    figure("LLC hit", "%", 1, true, |point| point.hit_pct),
    figure("buffers", "", 1, true, |point| point.buffers_mean),
    figure("most buffers", "", 0, false, |point| point.buffers_max.and_then(count)),
    figure("in flight", "MiB", 1, true, |point| point.in_flight_mib),
    figure("budget", "MiB", 1, false, |point| point.budget_bytes.map(|bytes| bytes / MIB)),
    figure("period", "us", 3, false, |point| point.period_us),
    figure("period seen", "us a core", 3, true, |point| point.period_seen_us),
    figure("target", "CPUs", 2, false, |point| point.target_cpus),
    figure("hosts", "CPUs", 2, false, |point| point.host_cpus),
    figure("RNR", "", 0, false, |point| count(point.network?.rnr?)),
    figure("retransmits", "", 0, false, |point| count(point.network?.retransmitted)),
    figure("drops", "", 0, false, |point| count(point.network?.dropped)),
    figure("starved", "", 0, false, |point| point.starved_queues.map(f64::from)),
];

/// No run counts more than 2^32 of anything here.
fn count(value: u64) -> Option<f64> {
    u32::try_from(value).ok().map(f64::from)
}

/// One row per point: the varied values, then rates and latencies.
#[must_use]
pub fn table(points: &[Point]) -> Table {
    columns(points, LOAD.iter())
}

/// One row per point: the varied values, then everything about the target, CPUs and network.
#[must_use]
pub fn target_table(points: &[Point]) -> Table {
    columns(points, TARGET.iter())
}

/// The same with the columns of the Mellanox SPDK io_pacing prototype, to fit a terminal.
#[must_use]
pub fn brief_table(points: &[Point]) -> Table {
    columns(points, LOAD.iter().chain(TARGET).filter(|figure| figure.brief))
}

/// Builds the table; a column without any value is omitted.
fn columns(points: &[Point], figures: impl Iterator<Item = &'static Figure>) -> Table {
    let keys = keys(points);
    let known = |figure: &&Figure| points.iter().any(|point| (figure.of)(point).is_some());
    let figures: Vec<_> = figures.filter(known).collect();
    let mut columns = leading(points, &keys);
    columns.extend(figures.iter().map(|figure| Column::numbers(figure.name, figure.unit)));
    let mut table = Table::new(columns);
    for point in points {
        let mut row = lead(points, point, &keys);
        row.extend(figures.iter().map(|figure| fixed((figure.of)(point), figure.decimals)));
        table.push(row);
    }
    table
}

/// One row per part; empty if every point has a single one.
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
pub(super) fn keys(points: &[Point]) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let keys = points.iter().flat_map(|point| &point.varied).map(|varied| varied.key.clone());
    keys.filter(|key| seen.insert(key.clone())).collect()
}

/// The columns in front of the varied values, and whether runs are numbered.
fn mixed(points: &[Point]) -> (bool, bool) {
    let differ = |pair: &[Point]| {
        pair[0].place != pair[1].place
            || pair[0].platform != pair[1].platform
            || pair[0].plan != pair[1].plan
    };
    (points.windows(2).any(differ), points.iter().any(|point| point.repetition > 1))
}

/// Returns whether any point is simulated: every table then says of each row where it is from.
fn is_simulated(points: &[Point]) -> bool {
    points.iter().any(|point| point.place == RunOrigin::Simulated)
}

fn leading(points: &[Point], keys: &[String]) -> Vec<Column> {
    let (places, runs) = mixed(points);
    let mut columns = Vec::new();
    if places {
        columns.extend(["plan", "where", "platform"].map(Column::words));
    } else if is_simulated(points) {
        columns.push(Column::words("where"));
    }
    columns.extend(key_columns(points, keys));
    if runs {
        columns.push(Column::numbers("run", ""));
    }
    columns
}

/// A column for each varied key.
pub(super) fn key_columns(points: &[Point], keys: &[String]) -> Vec<Column> {
    let mut columns = Vec::new();
    for key in keys {
        let numbers = points.iter().all(|p| p.value(key).is_none_or(|v| v.parse::<f64>().is_ok()));
        let short = short_key(key);
        // Two keys with the same last part are distinguished by their whole names.
        let name = if keys.iter().filter(|other| short_key(other) == short).count() > 1 {
            key
        } else {
            short
        };
        columns.push(if numbers { Column::numbers(name, "") } else { Column::words(name) });
    }
    columns
}

/// The values of the varied keys.
pub(super) fn values(point: &Point, keys: &[String]) -> Vec<String> {
    keys.iter().map(|key| point.value(key).unwrap_or_default().to_owned()).collect()
}

fn lead(points: &[Point], point: &Point, keys: &[String]) -> Vec<String> {
    let (places, runs) = mixed(points);
    let mut row = Vec::new();
    if places {
        row.extend([point.plan.clone(), point.place.to_string(), point.platform.clone()]);
    } else if is_simulated(points) {
        row.push(point.place.to_string());
    }
    row.extend(values(point, keys));
    if runs {
        row.push(point.repetition.to_string());
    }
    row
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::point::tests::point;

    #[test]
    fn what_varied_leads_and_units_stand_in_the_head() {
        let points = [point(64, "none"), point(1024, "none")];
        let text = table(&points).markdown();
        let lines: Vec<_> = text.lines().collect();
        assert!(
            lines[0].starts_with("| where     | policy | queue-depth | kIOPS | bandwidth Gb/s |"),
            "{text}"
        );
        assert!(
            lines[2].starts_with("| simulated | none   |          64 | 176.2 |          184.8 |"),
            "{text}"
        );
        assert_eq!(lines.len(), 4);
        let target = target_table(&points).markdown();
        assert!(target.lines().nth(2).unwrap().contains("12.0"), "the budget in MiB: {target}");
        assert!(!target.contains("period"), "nobody has one: {target}");
        assert_eq!(target.matches("simulated").count(), 2, "{target}");
        let brief = brief_table(&points).markdown();
        assert!(brief.contains("LLC hit %") && !brief.contains("p99.9"), "{brief}");
    }

    #[test]
    fn runs_and_places_have_columns_only_where_they_differ() {
        let one = point(64, "none");
        let again = Point { repetition: 2, ..one.clone() };
        let real = Point { place: RunOrigin::Remote, ..one.clone() };
        assert!(!table(&[real]).markdown().contains("where"));
        let head = |points: &[Point]| table(points).markdown().lines().next().unwrap().to_owned();
        assert!(!head(std::slice::from_ref(&one)).contains(" run "));
        assert!(head(&[one.clone(), again]).contains(" run "));
        let local = Point { place: RunOrigin::Local, ..one.clone() };
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
