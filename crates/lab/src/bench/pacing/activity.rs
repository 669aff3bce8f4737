//! Activity of the daemon's pacer over time, from the file that `nvmeof-tgt --stats` writes.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use nvmeof_report::plot::SeriesShape;
use nvmeof_report::{Axis, Plot, Series};
use serde::{Deserialize, Serialize};

pub(super) use crate::daemon_stats::StatsSample;
use crate::daemon_stats::parse;

/// Activity of a pacer in a run, with a description of the run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct PacerActivity {
    /// Load and machine of the run.
    pub(crate) run: String,
    pub(crate) place: String,
    pub(crate) moments: Vec<StatsSample>,
}

impl PacerActivity {
    /// Reads a file that a daemon wrote with `--stats`, from its first moment to its last.
    pub(super) fn of_stats(path: &Path) -> Result<Self> {
        let moments = read(path, 0)?;
        ensure!(!moments.is_empty(), "{}: no `total` line in it", path.display());
        let run = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        Ok(Self { run, place: "from a daemon's statistics".to_owned(), moments })
    }

    pub(crate) fn note(&self) -> String {
        format!("{}; {}", self.run, self.place)
    }

    /// Returns a plot for each unit, over the time since the first moment, with the names of their
    /// files.
    pub(crate) fn plots(&self) -> Vec<(&'static str, Plot)> {
        plots(&self.moments, &self.note())
    }
}

/// Reads the file from the first line that begins at `from` bytes or later; drops a truncated last
/// line.
pub(super) fn read(path: &Path, from: u64) -> Result<Vec<StatsSample>> {
    let mut text = String::new();
    let read = |text: &mut String| {
        let mut file = BufReader::new(File::open(path)?);
        // Start one byte earlier: if that byte ends a line, all of the line at `from` is read.
        if let Some(before) = from.checked_sub(1) {
            file.seek(SeekFrom::Start(before))?;
            file.read_until(b'\n', &mut Vec::new())?;
        }
        file.read_to_string(text)
    };
    read(&mut text).with_context(|| format!("cannot read {}", path.display()))?;
    parse(&text).with_context(|| path.display().to_string())
}

fn plots(moments: &[StatsSample], note: &str) -> Vec<(&'static str, Plot)> {
    let begin = moments.first().map_or(0.0, |first| first.t);
    let series = |name: &str, of: &dyn Fn(&StatsSample) -> Option<f64>| Series {
        name: name.to_owned(),
        points: moments.iter().filter_map(|m| Some((m.t - begin, of(m)?))).collect(),
        shape: SeriesShape::Line,
    };
    let plot = |title: &str, y: Axis, series| Plot {
        title: title.to_owned(),
        note: note.to_owned(),
        x: Axis::new("time", "s"),
        y: y.from_zero(),
        series,
    };
    vec![
        (
            "activity-polls",
            plot(
                "Pacer activity: polls",
                Axis::new("polls", "1000/s"),
                vec![series("polls", &|m| Some(m.kpolls))],
            ),
        ),
        (
            "activity-period",
            plot(
                "Pacer activity: period",
                Axis::new("from one I/O to the next", "us"),
                vec![series("period", &|m| m.period_us)],
            ),
        ),
        (
            "activity-budget",
            plot(
                "Pacer activity: budget",
                Axis::new("data", "MiB"),
                vec![
                    series("budget", &|m| m.budget_mib),
                    series("in flight", &|m| Some(m.in_flight_mib)),
                ],
            ),
        ),
        (
            "activity-commands",
            plot(
                "Pacer activity: commands",
                Axis::new("commands", ""),
                vec![
                    series("in flight", &|m| Some(m.in_flight)),
                    series("waiting", &|m| Some(m.waiting)),
                ],
            ),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon_stats::tests::LINES;

    #[test]
    fn a_file_is_read_from_the_next_line_on() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), LINES).expect("it is written");
        let times = |from: usize| {
            let moments =
                read(file.path(), u64::try_from(from).expect("small")).expect("good lines");
            moments.iter().map(|moment| moment.t).collect::<Vec<_>>()
        };
        let second = LINES.match_indices("{\"kind\":\"total\"").nth(1).expect("there is one").0;
        assert_eq!(times(0), [0.1, 0.2]);
        assert_eq!(times(second - 1), [0.2]);
        assert_eq!(times(second), [0.2]);
        assert!(times(second + 1).is_empty());
        assert!(times(LINES.len()).is_empty());
    }

    #[test]
    fn every_plot_shows_every_moment_that_has_its_figure() {
        let moments = parse(LINES).expect("good lines");
        let plots = plots(&moments, "a note");
        let counts: Vec<Vec<usize>> = plots
            .iter()
            .map(|(_, plot)| plot.series.iter().map(|series| series.points.len()).collect())
            .collect();
        assert_eq!(counts, [vec![2], vec![1], vec![1, 2], vec![2, 2]]);
        assert_eq!(plots[0].1.series[0].points[0].0, 0.0, "from the first moment on");
    }
}
