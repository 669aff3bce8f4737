//! Published rows, the results under the same conditions, and a verdict on both.

use std::collections::BTreeMap;

use crate::point::{MeasuredRow, Point, RunOrigin};
use crate::table::{Column, Table};
use crate::values::{fixed, signed};

/// Deviation of a bandwidth that still counts as agreement, as a fraction of the measured one.
const BANDWIDTH_WITHIN: f64 = 0.05;
/// The same of a hit rate, in percentage points.
const HITS_WITHIN: f64 = 5.0;
/// Shares of the rows that must agree: in bandwidth and hit rate, and in bandwidth for "in part".
const AGREES: (f64, f64) = (0.85, 0.75);
const AGREES_IN_PART: f64 = 0.5;

/// Results under one condition: rows that were measured, and the means of what was simulated.
#[derive(Debug, Clone, PartialEq)]
pub struct ComparedRow {
    /// Cells in front of the results.
    pub lead: Vec<String>,
    /// Every measured row.
    pub measured: Vec<MeasuredRow>,
    /// Simulated goodput in Gb/s.
    pub gbps: f64,
    /// Simulated mean latency in us.
    pub latency_us: f64,
    /// Simulated hits in percent.
    pub hit_pct: Option<f64>,
}

impl ComparedRow {
    /// Returns the error of the simulated bandwidth against this row, as a fraction.
    fn error(&self, row: &MeasuredRow) -> f64 {
        self.gbps / row.gbps - 1.0
    }

    fn mean(&self, of: impl Fn(&MeasuredRow) -> Option<f64>) -> Option<f64> {
        mean(self.measured.iter().filter_map(of))
    }
}

/// Returns a comparison for each condition of simulated points that has measured rows.
#[must_use]
pub fn compared(points: &[Point], lead: impl Fn(&Point) -> Vec<String>) -> Vec<ComparedRow> {
    let with_rows =
        |point: &&Point| point.place == RunOrigin::Simulated && !point.measured.is_empty();
    let mut groups: Vec<Vec<&Point>> = Vec::new();
    for point in points.iter().filter(with_rows) {
        let same = |group: &&mut Vec<&Point>| {
            group[0].setting == point.setting && group[0].platform == point.platform
        };
        match groups.iter_mut().find(same) {
            Some(group) => group.push(point),
            None => groups.push(vec![point]),
        }
    }
    let row = |group: &Vec<&Point>| {
        let of = |of: fn(&Point) -> Option<f64>| mean(group.iter().filter_map(|point| of(point)));
        ComparedRow {
            lead: lead(group[0]),
            measured: group[0].measured.clone(),
            gbps: of(|point| Some(point.total.gbps)).unwrap_or_default(),
            latency_us: of(|point| Some(point.total.latency_us.mean)).unwrap_or_default(),
            hit_pct: of(|point| point.hit_pct),
        }
    };
    groups.iter().map(row).collect()
}

/// Returns the table of measured and simulated results and of the errors of the simulated ones.
#[must_use]
pub fn comparison_table(lead: Vec<Column>, rows: &[ComparedRow]) -> Table {
    let mut columns = lead;
    let numbers = [
        ("runs", "measured"),
        ("bandwidth", "Gb/s, measured"),
        ("deviation", "Gb/s, measured"),
        ("bandwidth", "Gb/s, simulated"),
        ("error", "%, simulated"),
        ("LLC hits", "%, measured"),
        ("LLC hits", "%, simulated"),
        ("error", "points, simulated"),
        ("latency", "us, measured"),
        ("latency", "us, simulated"),
    ];
    columns.extend(numbers.map(|(name, unit)| Column::numbers(name, unit)));
    let difference = |value: Option<f64>| value.map_or_else(String::new, |value| signed(value, 1));
    let mut table = Table::new(columns);
    for row in rows {
        let bandwidth = row.mean(|row| Some(row.gbps));
        let hits = row.mean(|row| row.hit_pct);
        let error = bandwidth.map(|gbps| (row.gbps / gbps - 1.0) * 100.0);
        let simulated_hits = hits.and(row.hit_pct);
        let mut cells = row.lead.clone();
        cells.extend([
            row.measured.len().to_string(),
            fixed(bandwidth, 1),
            fixed(row.mean(|row| row.stddev_gbps), 1),
            fixed(Some(row.gbps), 1),
            difference(error),
            fixed(hits, 1),
            fixed(simulated_hits, 1),
            difference(simulated_hits.zip(hits).map(|(simulated, hits)| simulated - hits)),
            fixed(row.mean(|row| row.latency_us), 1),
            fixed(Some(row.latency_us), 1),
        ]);
        table.push(cells);
    }
    table
}

/// Agreement of a simulation with measured rows. Every measured row counts, unstable ones too.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Verdict {
    rows: u32,
    bandwidth_met: u32,
    hit_rows: u32,
    hits_met: u32,
    /// Sum of the absolute errors of the bandwidth, as fractions.
    error: f64,
    /// Smallest and largest bandwidth in Gb/s: measured, and simulated.
    measured: Option<(f64, f64)>,
    simulated: Option<(f64, f64)>,
    /// Numbers of rows by source.
    sources: BTreeMap<String, u32>,
}

impl Verdict {
    /// Returns the verdict on these rows, if there are any.
    #[must_use]
    pub fn of(rows: &[ComparedRow]) -> Option<Self> {
        let mut verdict = Self::default();
        for row in rows {
            let wider = |ends: Option<(f64, f64)>, value: f64| {
                let (low, high) = ends.unwrap_or((value, value));
                Some((low.min(value), high.max(value)))
            };
            verdict.simulated = wider(verdict.simulated, row.gbps);
            for measured in &row.measured {
                let error = row.error(measured).abs();
                verdict.rows += 1;
                verdict.error += error;
                verdict.bandwidth_met += u32::from(error <= BANDWIDTH_WITHIN);
                verdict.measured = wider(verdict.measured, measured.gbps);
                *verdict.sources.entry(measured.source.clone()).or_default() += 1;
                if let Some((simulated, hits)) = row.hit_pct.zip(measured.hit_pct) {
                    verdict.hit_rows += 1;
                    verdict.hits_met += u32::from((simulated - hits).abs() <= HITS_WITHIN);
                }
            }
        }
        (verdict.rows > 0).then_some(verdict)
    }

    /// Returns the verdict in a word or three.
    #[must_use]
    pub fn word(&self) -> &'static str {
        let share = |met: u32, of: u32| if of > 0 { f64::from(met) / f64::from(of) } else { 1.0 };
        let bandwidth = share(self.bandwidth_met, self.rows);
        let hits = share(self.hits_met, self.hit_rows);
        match bandwidth {
            bandwidth if bandwidth >= AGREES.0 && hits >= AGREES.1 => "agrees",
            bandwidth if bandwidth >= AGREES_IN_PART => "agrees in part",
            _ => "disagrees",
        }
    }

    /// Returns the verdict in a sentence, with the numbers behind it.
    #[must_use]
    pub fn sentence(&self) -> String {
        let ends = |ends: Option<(f64, f64)>| match ends {
            Some((low, high)) if high - low >= 0.05 => format!("{low:.1} to {high:.1}"),
            Some((low, _)) => format!("{low:.1}"),
            None => "none".to_owned(),
        };
        let sources: Vec<_> = self.sources.keys().map(String::as_str).collect();
        let mut text = format!(
            "simulated {}: {} Gb/s simulated, {} Gb/s measured ({}). Simulated bandwidth is within \
             {} in {} of {} rows (mean error {:.1} %)",
            self.word(),
            ends(self.simulated),
            ends(self.measured),
            sources.join(", "),
            bandwidth_within(),
            self.bandwidth_met,
            self.rows,
            self.error / f64::from(self.rows.max(1)) * 100.0,
        );
        if self.hit_rows > 0 {
            text += &format!(
                ", simulated LLC hits are within {HITS_WITHIN:.0} points in {} of {}",
                self.hits_met, self.hit_rows
            );
        }
        text + "."
    }

    /// Returns the cells of a table of verdicts, for [`Verdict::columns`].
    #[must_use]
    pub fn cells(&self) -> Vec<String> {
        vec![
            self.word().to_owned(),
            format!("{} of {}", self.bandwidth_met, self.rows),
            format!("{:.1}", self.error / f64::from(self.rows.max(1)) * 100.0),
            match self.hit_rows {
                0 => String::new(),
                _ => format!("{} of {}", self.hits_met, self.hit_rows),
            },
        ]
    }

    /// Returns the columns of a table of verdicts.
    #[must_use]
    pub fn columns() -> Vec<Column> {
        vec![
            Column::words("simulated"),
            Column::numbers(&format!("bandwidth within {}", bandwidth_within()), "rows"),
            Column::numbers("mean error", "%"),
            Column::numbers(&format!("hits within {HITS_WITHIN:.0} points"), "rows"),
        ]
    }
}

/// [`BANDWIDTH_WITHIN`] in percent.
fn bandwidth_within() -> String {
    format!("{:.0} %", BANDWIDTH_WITHIN * 100.0)
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0.0), |(sum, count), value| (sum + value, count + 1.0));
    (count > 0.0).then(|| sum / count)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::point::tests::point;

    /// A measured row with this bandwidth and hit rate.
    pub(in crate::sweep) fn row(gbps: f64, hit_pct: Option<f64>) -> MeasuredRow {
        MeasuredRow {
            source: "Mellanox SPDK io_pacing".into(),
            gbps,
            latency_us: Some(400.0),
            stddev_gbps: Some(1.5),
            hit_pct,
            buffers: None,
        }
    }

    fn compare(points: &[Point]) -> Vec<ComparedRow> {
        compared(points, |point| vec![point.setting.qd.to_string()])
    }

    #[test]
    fn runs_under_one_condition_are_one_row_and_other_conditions_another() {
        let mut one = point(32, "none");
        one.measured = vec![row(100.0, Some(90.0)), row(120.0, None)];
        let mut again = Point { repetition: 2, ..one.clone() };
        (one.total.gbps, again.total.gbps) = (100.0, 110.0);
        let alone = point(64, "none");
        let mut real = Point { place: RunOrigin::Local, ..one.clone() };
        real.setting.qd = 128;
        let rows = compare(&[one.clone(), again, alone, real]);
        assert_eq!(rows.len(), 1);
        assert_eq!((rows[0].gbps, rows[0].measured.len()), (105.0, 2));
        let text = comparison_table(vec![Column::numbers("depth", "")], &rows).markdown();
        let line = text.lines().nth(2).unwrap();
        let cells: Vec<_> = line.split('|').map(str::trim).collect();
        let wanted = ["32", "2", "110.0", "1.5", "105.0", "-4.5", "90.0", "99.1", "+9.1", "400.0"];
        assert_eq!(&cells[1..11], wanted, "{text}");
        assert!(text.lines().next().unwrap().matches("simulated").count() == 5, "{text}");
    }

    #[test]
    fn a_verdict_counts_every_row_and_says_simulated() {
        let mut points: Vec<Point> = [32, 64, 128, 256].map(|depth| point(depth, "none")).into();
        for point in &mut points {
            (point.total.gbps, point.hit_pct) = (100.0, Some(99.0));
            point.measured = vec![row(104.9, Some(94.5))];
        }
        let verdict = |points: &[Point]| Verdict::of(&compare(points)).unwrap();
        assert_eq!(verdict(&points).word(), "agrees");
        points[0].measured = vec![row(106.0, Some(94.5))];
        assert_eq!(verdict(&points).word(), "agrees in part", "three of four");
        let text = verdict(&points).sentence();
        assert!(
            text.starts_with("simulated agrees in part: 100.0 Gb/s simulated, 104.9 to 106.0 ")
        );
        assert!(
            text.contains("(Mellanox SPDK io_pacing)") && text.contains("in 3 of 4 rows"),
            "{text}"
        );
        assert!(text.ends_with("simulated LLC hits are within 5 points in 4 of 4."), "{text}");
        let names: Vec<_> = Verdict::columns().into_iter().map(|column| column.name).collect();
        assert_eq!(verdict(&points).cells().len(), names.len());
        assert!(names.contains(&"bandwidth within 5 %".to_owned()), "{names:?}");
        points.iter_mut().for_each(|point| point.measured = vec![row(200.0, None)]);
        assert_eq!(verdict(&points).word(), "disagrees");
        assert!(Verdict::of(&compare(&[point(1, "none")])).is_none());
    }
}
