//! Selects the varied key on the x axis and the keys that name the series.

use std::collections::{BTreeMap, BTreeSet};

use crate::plot::{Axis, Series};
use crate::point::{MeasuredRow, Point, PointConfig, short_key};
use crate::values::distinct;

/// Minimum ratio of the largest to the smallest value at which steps of x double.
const WIDE: f64 = 8.0;

/// Name of the part of a plot that a point belongs to.
type PartOf<'a> = Box<dyn Fn(&Point) -> String + 'a>;

/// Points with their positions on the x axis.
pub(super) type PlacedPoints<'a> = Vec<(f64, &'a Point)>;

/// Layout of the points of a sweep in a plot.
#[derive(Debug, Clone)]
pub(super) struct SweepLayout {
    /// Key on the x axis; `None`: the points in their order.
    x: Option<String>,
    /// The values of x, if they are not numbers.
    names: Vec<String>,
    log2: bool,
    /// Keys whose values name a series.
    series: Vec<String>,
}

impl SweepLayout {
    pub(super) fn of(points: &[Point]) -> Self {
        let keys = varying(points);
        let everywhere = |key: &&String| points.iter().all(|point| point.value(key).is_some());
        let number = |key: &String| {
            points.iter().all(|p| p.value(key).is_some_and(|v| v.parse::<f64>().is_ok()))
        };
        // Numbers before names, many values before few, depth before others, the policy last. In
        // reverse, because the last of equal keys wins, and the first one of the plan should.
        let x = keys.iter().rev().filter(everywhere).max_by_key(|key| {
            let policy = key.ends_with("policy");
            (number(key), !policy, values(points, key).len(), key.ends_with("queue-depth"))
        });
        let x = x.cloned();
        let names = match &x {
            Some(key) if !number(key) => {
                distinct(points.iter().filter_map(|point| shown(point, key)))
            }
            _ => Vec::new(),
        };
        let log2 = match &x {
            Some(key) if names.is_empty() => is_wide(points, key),
            _ => false,
        };
        let mut series: Vec<String> = Vec::new();
        for key in keys {
            let known = |by: &String| determines(points, by, &key);
            if x.as_ref() != Some(&key) && !x.iter().chain(&series).any(known) {
                series.push(key);
            }
        }
        Self { x, names, log2, series }
    }

    pub(super) fn axis(&self) -> Axis {
        let title = match self.x.as_deref() {
            Some("job.queue-depth") => "queue depth, per host and job",
            Some(key) => &plain(key),
            None => "point",
        };
        Axis { log2: self.log2, names: self.names.clone(), ..Axis::new(title, "") }
    }

    /// Divides the points over plots of at most `most` series, each plot with its name.
    ///
    /// If there are too many series for one plot, the values of the key with the fewest values
    /// divide them; the series of a single key are divided evenly.
    pub(super) fn plots<'a>(
        &self,
        points: &'a [Point],
        most: usize,
    ) -> Vec<(String, SweepLayout, PlacedPoints<'a>)> {
        let placed = points.iter().enumerate();
        let placed = placed.filter_map(|(at, point)| Some((self.place(point, at)?, point)));
        self.divided(placed.collect(), most, String::new())
    }

    fn divided<'a>(
        &self,
        placed: PlacedPoints<'a>,
        most: usize,
        name: String,
    ) -> Vec<(String, SweepLayout, PlacedPoints<'a>)> {
        let names = distinct(placed.iter().map(|(_, point)| self.name(point)));
        if names.len() <= most {
            return vec![(name, self.clone(), placed)];
        }
        let count =
            |key: &String| distinct(placed.iter().map(|(_, point)| shown(point, key))).len();
        let fewest = self.series.iter().filter(|key| count(key) > 1).min_by_key(|key| count(key));
        let (inner, part_of): (Self, PartOf<'_>) = match fewest {
            Some(key) if self.series.len() > 1 => {
                let rest = self.series.iter().filter(|other| *other != key).cloned().collect();
                let inner = Self { series: rest, ..self.clone() };
                (inner, Box::new(move |point| label(point, key)))
            }
            _ => {
                let size = names.len().div_ceil(names.len().div_ceil(most));
                let part = move |point: &Point| {
                    let at = names.iter().position(|name| *name == self.name(point)).unwrap_or(0);
                    let part = &names[at / size * size..names.len().min((at / size + 1) * size)];
                    format!("{} to {}", part[0], part[part.len() - 1])
                };
                (self.clone(), Box::new(part))
            }
        };
        let mut parts: Vec<(String, PlacedPoints<'a>)> = Vec::new();
        for (x, point) in placed {
            let part = part_of(point);
            match parts.iter_mut().find(|(known, _)| *known == part) {
                Some((_, points)) => points.push((x, point)),
                None => parts.push((part, vec![(x, point)])),
            }
        }
        let whole = |part: &str| {
            let names = [name.as_str(), part].into_iter().filter(|name| !name.is_empty());
            names.collect::<Vec<_>>().join(", ")
        };
        parts.into_iter().flat_map(|(part, own)| inner.divided(own, most, whole(&part))).collect()
    }

    /// The points that have this figure, grouped in series.
    pub(super) fn series(
        &self,
        points: &[(f64, &Point)],
        of: fn(&Point) -> Option<f64>,
    ) -> Vec<Series> {
        let mut series: Vec<Series> = Vec::new();
        for (x, point) in points {
            let name = self.name(point);
            let index = series.iter().position(|known| known.name == name).unwrap_or_else(|| {
                series.push(Series::new(&name, Vec::new()));
                series.len() - 1
            });
            if let Some(y) = of(point) {
                series[index].points.push((*x, y));
            }
        }
        series
    }

    /// The rows that were measured under the conditions of the points, grouped in the same series.
    pub(super) fn published(
        &self,
        points: &[(f64, &Point)],
        of: fn(&MeasuredRow) -> Option<f64>,
    ) -> Vec<Series> {
        let mut series: Vec<Series> = Vec::new();
        let mut known: Vec<(&str, &PointConfig)> = Vec::new();
        for (x, point) in points {
            // Every run under a condition has all of its rows.
            let condition = (point.platform.as_str(), &point.setting);
            if known.contains(&condition) {
                continue;
            }
            known.push(condition);
            let name = self.name(point);
            let rows = point.measured.iter().filter_map(of).map(|y| (*x, y));
            match series.iter_mut().find(|known| known.name == name) {
                Some(series) => series.points.extend(rows),
                None => series.push(Series::new(&name, rows.collect())),
            }
        }
        series.retain(|series| !series.points.is_empty());
        series
    }

    fn name(&self, point: &Point) -> String {
        let parts = self.series.iter().map(|key| label(point, key));
        parts.filter(|part| !part.is_empty()).collect::<Vec<_>>().join(", ")
    }

    fn place(&self, point: &Point, at: usize) -> Option<f64> {
        let index = |at: usize| u32::try_from(at).ok().map(f64::from);
        match &self.x {
            None => index(at + 1),
            Some(key) if self.names.is_empty() => point.value(key)?.parse().ok(),
            Some(key) => {
                let value = shown(point, key)?;
                index(self.names.iter().position(|name| *name == value)?)
            }
        }
    }
}

/// Returns a value as plots show it: a table of devices by their name in the CSV.
fn shown(point: &Point, key: &str) -> Option<String> {
    let value = point.value(key)?;
    Some(if value.starts_with('{') { point.setting.devices.clone() } else { value.to_owned() })
}

/// Returns a value with its key, if the value alone is ambiguous; empty if the point has none.
fn label(point: &Point, key: &str) -> String {
    match shown(point, key) {
        Some(value) if value.starts_with(|c: char| c.is_ascii_digit()) => {
            format!("{} {value}", plain(key))
        }
        Some(value) => value,
        None => String::new(),
    }
}

/// Returns the short name of a key in words.
fn plain(key: &str) -> String {
    short_key(key).replace('-', " ").replace('.', ": ")
}

/// Keys with more than one value, in the order of the plan.
fn varying(points: &[Point]) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let keys = points.iter().flat_map(|point| &point.varied).map(|varied| &varied.key);
    let keys: Vec<_> = keys.filter(|key| seen.insert((*key).clone())).cloned().collect();
    let same =
        |key: &String| points.windows(2).all(|pair| pair[0].value(key) == pair[1].value(key));
    // The number of repetitions does not make another point.
    keys.into_iter().filter(|key| !same(key) && key != "load.repeat").collect()
}

/// The values of a key, each once, in the order of the points.
fn values(points: &[Point], key: &str) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let values = points.iter().filter_map(|point| point.value(key));
    values.filter(|value| seen.insert(value.to_string())).map(str::to_owned).collect()
}

fn is_wide(points: &[Point], key: &str) -> bool {
    let numbers: Vec<f64> = points.iter().filter_map(|p| p.value(key)?.parse().ok()).collect();
    let least = numbers.iter().copied().fold(f64::INFINITY, f64::min);
    let most = numbers.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    least > 0.0 && most >= WIDE * least
}

/// Returns true if the value of one key determines that of the other.
fn determines(points: &[Point], one: &str, other: &str) -> bool {
    let mut known: BTreeMap<Option<&str>, Option<&str>> = BTreeMap::new();
    points.iter().all(|point| {
        let value = point.value(other);
        *known.entry(point.value(one)).or_insert(value) == value
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::point::VariedKey;
    use crate::point::tests::point;

    const MOST: usize = 8;

    fn varied(pairs: &[(&str, &str)]) -> Point {
        let varied = pairs
            .iter()
            .map(|(key, value)| VariedKey { key: (*key).to_owned(), value: (*value).to_owned() });
        Point { varied: varied.collect(), ..point(1, "none") }
    }

    fn bandwidth(point: &Point) -> Option<f64> {
        Some(point.total.gbps)
    }

    /// The series of a layout that requires a single plot.
    fn all(layout: &SweepLayout, points: &[Point]) -> Vec<Series> {
        let plots = layout.plots(points, MOST);
        assert_eq!(plots.len(), 1);
        plots[0].1.series(&plots[0].2, bandwidth)
    }

    #[test]
    fn too_many_series_are_spread_over_plots() {
        let mut points = Vec::new();
        for initiator in ["spdk", "kernel"] {
            for policy in 0..9 {
                for depth in ["1", "2", "4", "8", "16", "32", "64", "128", "256", "512"] {
                    let policy = format!("p{policy}");
                    points.push(varied(&[
                        ("host.initiator", initiator),
                        ("target.pacing.policy", &policy),
                        ("job.queue-depth", depth),
                    ]));
                }
            }
        }
        let plots = SweepLayout::of(&points).plots(&points, MOST);
        let names: Vec<_> = plots.iter().map(|(name, ..)| name.as_str()).collect();
        let halves = ["spdk, p0 to p4", "spdk, p5 to p8", "kernel, p0 to p4", "kernel, p5 to p8"];
        assert_eq!(names, halves);
        let mut all = 0;
        for (_, layout, placed) in &plots {
            let series = layout.series(placed, bandwidth);
            assert!(series.len() <= MOST);
            all += series.len();
            assert!(series.iter().all(|series| series.points.len() == 10));
        }
        assert_eq!(all, 18, "each once");
    }

    #[test]
    fn the_first_of_two_keys_that_go_together_is_x() {
        let point = |buffers, cache| varied(&[("p.buffers", buffers), ("p.cache", cache)]);
        let points = [point("96", "24"), point("64", "16"), point("48", "12")];
        let layout = SweepLayout::of(&points);
        assert_eq!(layout.x.as_deref(), Some("p.buffers"));
        assert!(layout.series.is_empty());
    }

    #[test]
    fn the_key_with_most_numbers_goes_along_x() {
        let mut points = Vec::new();
        for buffers in ["16", "32", "64", "96"] {
            for depth in ["256", "1024"] {
                points.push(varied(&[("p.buffers", buffers), ("job.queue-depth", depth)]));
            }
        }
        let layout = SweepLayout::of(&points);
        assert_eq!(layout.x.as_deref(), Some("p.buffers"));
        assert!(!layout.axis().log2);
        let series = all(&layout, &points);
        let names: Vec<_> = series.iter().map(|series| series.name.as_str()).collect();
        assert_eq!(names, ["queue depth 256", "queue depth 1024"]);
        assert!(series.iter().all(|series| series.points.len() == 4));
    }

    #[test]
    fn keys_that_go_together_are_named_once() {
        let points = [
            varied(&[
                ("host.initiator", "kernel"),
                ("target.cores", "16"),
                ("job.queue-depth", "2"),
            ]),
            varied(&[
                ("host.initiator", "kernel"),
                ("target.cores", "16"),
                ("job.queue-depth", "4"),
            ]),
            varied(&[("host.initiator", "spdk"), ("target.cores", "4"), ("job.queue-depth", "4")]),
        ];
        let layout = SweepLayout::of(&points);
        assert_eq!(layout.series, ["host.initiator"]);
    }

    #[test]
    fn a_key_that_only_some_points_have_is_not_x() {
        let points = [
            varied(&[("p.policy", "adaptive"), ("job.queue-depth", "32")]),
            varied(&[("p.policy", "adaptive"), ("job.queue-depth", "2048")]),
            varied(&[("p.policy", "credit"), ("p.budget", "1"), ("job.queue-depth", "32")]),
            varied(&[("p.policy", "credit"), ("p.budget", "2"), ("job.queue-depth", "32")]),
            varied(&[("p.policy", "credit"), ("p.budget", "3"), ("job.queue-depth", "2048")]),
        ];
        let layout = SweepLayout::of(&points);
        assert_eq!(layout.x.as_deref(), Some("job.queue-depth"));
        assert!(layout.axis().log2);
        let shown: usize = all(&layout, &points).iter().map(|s| s.points.len()).sum();
        assert_eq!(shown, points.len());
    }

    #[test]
    fn values_that_are_no_numbers_are_named() {
        let points = [
            varied(&[("load.block-size", "4KiB"), ("p.policy", "none")]),
            varied(&[("load.block-size", "1MiB"), ("p.policy", "none")]),
        ];
        let layout = SweepLayout::of(&points);
        assert_eq!(layout.axis().names, ["4KiB", "1MiB"]);
        assert_eq!(layout.axis().title, "block size");
        assert_eq!(all(&layout, &points)[0].points, [(0.0, 184.8), (1.0, 184.8)]);
    }

    #[test]
    fn names_are_in_words() {
        let mut point = varied(&[
            ("job.fast.queue-depth", "64"),
            ("target.pacing.period", "5600ns"),
            ("host.initiator", "fio-spdk"),
            ("target.devices", "{ kind = \"null\", count = 16 }"),
        ]);
        point.setting.devices = "null16".into();
        let keys: Vec<_> = point.varied.iter().map(|varied| label(&point, &varied.key)).collect();
        assert_eq!(keys, ["fast: queue depth 64", "period 5600ns", "fio-spdk", "null16"]);
        assert_eq!(label(&point, "target.cores"), "");
    }

    #[test]
    fn measured_rows_are_drawn_once_for_all_runs_under_their_conditions() {
        let row = MeasuredRow {
            source: "s".into(),
            gbps: 100.0,
            latency_us: None,
            stddev_gbps: None,
            hit_pct: None,
            buffers: None,
        };
        let mut first = varied(&[("job.queue-depth", "32")]);
        first.measured = vec![row.clone(), MeasuredRow { gbps: 90.0, ..row }];
        let again = Point { repetition: 2, ..first.clone() };
        let mut other = varied(&[("job.queue-depth", "64")]);
        other.setting.qd = 64;
        let points = [first, again, other];
        let layout = SweepLayout::of(&points);
        let placed = &layout.plots(&points, MOST)[0].2;
        let series = layout.published(placed, |row| Some(row.gbps));
        assert_eq!(series.len(), 1);
        assert_eq!(series[0].points, [(32.0, 100.0), (32.0, 90.0)]);
        assert!(layout.published(placed, |row| row.hit_pct).is_empty());
    }

    #[test]
    fn without_anything_varied_the_points_stand_in_their_order() {
        let points = [varied(&[]), varied(&[])];
        let layout = SweepLayout::of(&points);
        assert_eq!(layout.axis().title, "point");
        assert_eq!(all(&layout, &points)[0].points, [(1.0, 184.8), (2.0, 184.8)]);
    }
}
