//! Which varied key goes along x, and what names the series.

use std::collections::{BTreeMap, BTreeSet};

use crate::plot::{Axis, Series};
use crate::point::{Point, Varied, short_key};

/// Steps of x double where the largest value is at least so many times the least.
const WIDE: f64 = 8.0;

/// How the points of a sweep are laid out in a plot.
#[derive(Debug)]
pub(super) struct Layout {
    /// Along x; `None`: the points in their order.
    x: Option<String>,
    /// The values of x, where they are not numbers.
    names: Vec<String>,
    log2: bool,
    /// Keys whose values name a series.
    series: Vec<String>,
}

impl Layout {
    pub(super) fn of(points: &[Point]) -> Self {
        let keys = varying(points);
        let everywhere = |key: &&String| points.iter().all(|point| point.value(key).is_some());
        let number = |key: &String| {
            points.iter().all(|p| p.value(key).is_some_and(|v| v.parse::<f64>().is_ok()))
        };
        // Numbers before names, many values before few, depth before others, the policy last.
        let x = keys.iter().filter(everywhere).max_by_key(|key| {
            let policy = key.ends_with("policy");
            (number(key), !policy, values(points, key).len(), key.ends_with("queue-depth"))
        });
        let x = x.cloned();
        let names = match &x {
            Some(key) if !number(key) => values(points, key),
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
        let title = match &self.x {
            Some(key) if key.ends_with("queue-depth") => "queue depth, per host and job",
            Some(key) => &short_key(key).replace('-', " "),
            None => "point",
        };
        Axis { log2: self.log2, names: self.names.clone(), ..Axis::new(title, "") }
    }

    /// The points that have this figure, in series.
    pub(super) fn series(&self, points: &[Point], of: fn(&Point) -> Option<f64>) -> Vec<Series> {
        let mut series: Vec<Series> = Vec::new();
        for (at, point) in points.iter().enumerate() {
            let name = self.name(point);
            let index = series.iter().position(|known| known.name == name).unwrap_or_else(|| {
                series.push(Series::new(&name, Vec::new()));
                series.len() - 1
            });
            if let (Some(x), Some(y)) = (self.place(point, at), of(point)) {
                series[index].points.push((x, y));
            }
        }
        series
    }

    fn name(&self, point: &Point) -> String {
        let of = |key: &String| point.varied.iter().find(|varied| varied.key == *key);
        let parts = self.series.iter().filter_map(of).map(Varied::label);
        parts.collect::<Vec<_>>().join(", ")
    }

    fn place(&self, point: &Point, at: usize) -> Option<f64> {
        let index = |at: usize| u32::try_from(at).ok().map(f64::from);
        match &self.x {
            None => index(at + 1),
            Some(key) if self.names.is_empty() => point.value(key)?.parse().ok(),
            Some(key) => {
                let value = point.value(key)?;
                index(self.names.iter().position(|name| name == value)?)
            }
        }
    }
}

/// Keys that do not have the same value everywhere, in the order of the plan.
fn varying(points: &[Point]) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let keys = points.iter().flat_map(|point| &point.varied).map(|varied| &varied.key);
    let keys: Vec<_> = keys.filter(|key| seen.insert((*key).clone())).cloned().collect();
    let same =
        |key: &String| points.windows(2).all(|pair| pair[0].value(key) == pair[1].value(key));
    keys.into_iter().filter(|key| !same(key)).collect()
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

/// Who knows the value of one key knows that of the other.
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
    use crate::point::tests::point;

    fn varied(pairs: &[(&str, &str)]) -> Point {
        let varied = pairs
            .iter()
            .map(|(key, value)| Varied { key: (*key).to_owned(), value: (*value).to_owned() });
        Point { varied: varied.collect(), ..point(1, "none") }
    }

    fn bandwidth(point: &Point) -> Option<f64> {
        Some(point.total.gbps)
    }

    #[test]
    fn the_key_with_most_numbers_goes_along_x() {
        let mut points = Vec::new();
        for buffers in ["16", "32", "64", "96"] {
            for depth in ["256", "1024"] {
                points.push(varied(&[("p.buffers", buffers), ("job.queue-depth", depth)]));
            }
        }
        let layout = Layout::of(&points);
        assert_eq!(layout.x.as_deref(), Some("p.buffers"));
        assert!(!layout.axis().log2);
        let series = layout.series(&points, bandwidth);
        let names: Vec<_> = series.iter().map(|series| series.name.as_str()).collect();
        assert_eq!(names, ["queue-depth 256", "queue-depth 1024"]);
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
        let layout = Layout::of(&points);
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
        let layout = Layout::of(&points);
        assert_eq!(layout.x.as_deref(), Some("job.queue-depth"));
        assert!(layout.axis().log2);
        let shown: usize = layout.series(&points, bandwidth).iter().map(|s| s.points.len()).sum();
        assert_eq!(shown, points.len());
    }

    #[test]
    fn values_that_are_no_numbers_are_named() {
        let points = [
            varied(&[("load.block-size", "4KiB"), ("p.policy", "none")]),
            varied(&[("load.block-size", "1MiB"), ("p.policy", "none")]),
        ];
        let layout = Layout::of(&points);
        assert_eq!(layout.axis().names, ["4KiB", "1MiB"]);
        assert_eq!(layout.axis().title, "block size");
        assert_eq!(layout.series(&points, bandwidth)[0].points, [(0.0, 184.8), (1.0, 184.8)]);
    }

    #[test]
    fn without_anything_varied_the_points_stand_in_their_order() {
        let points = [varied(&[]), varied(&[])];
        let layout = Layout::of(&points);
        assert_eq!(layout.axis().title, "point");
        assert_eq!(layout.series(&points, bandwidth)[0].points, [(1.0, 184.8), (2.0, 184.8)]);
    }
}
