//! What the daemon's pacer did over time, from the file that `nvmeof-tgt --stats` writes.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use nvmeof_report::plot::Shape;
use nvmeof_report::{Axis, Plot, Series};

use crate::daemon_stats::parse;
pub(super) use crate::daemon_stats::{Moment, last};

/// Reads the file; a last line that was cut off is left out.
pub(super) fn read(path: &Path) -> Result<Vec<Moment>> {
    let text =
        fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    parse(&text).with_context(|| path.display().to_string())
}

/// A plot for each unit, over the time since the first moment.
pub(super) fn plots(moments: &[Moment], note: &str) -> Vec<(&'static str, Plot)> {
    let begin = moments.first().map_or(0.0, |first| first.t);
    let series = |name: &str, of: &dyn Fn(&Moment) -> Option<f64>| Series {
        name: name.to_owned(),
        points: moments.iter().filter_map(|m| Some((m.t - begin, of(m)?))).collect(),
        shape: Shape::Line,
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
