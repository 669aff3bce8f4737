//! What the daemon's pacer did over time, from the file that `nvmeof-tgt --stats` writes.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use nvmeof_report::plot::Shape;
use nvmeof_report::{Axis, Plot, Series};
use serde_json::Value;

const MIB: f64 = 1_048_576.0;

/// One `total` line.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Moment {
    /// Seconds since the daemon began to record.
    pub(super) t: f64,
    /// Turns of the loop a second, in thousands; since the moment before, as the next two.
    pub(super) kpolls: f64,
    /// Commands started.
    pub(super) ios: f64,
    /// Microseconds from one command to the next; none if there was none.
    pub(super) period_us: Option<f64>,
    /// None if the policy has none.
    pub(super) budget_mib: Option<f64>,
    pub(super) in_flight: f64,
    pub(super) in_flight_mib: f64,
    pub(super) waiting: f64,
}

/// Reads the file; a last line that was cut off is left out.
pub(super) fn read(path: &Path) -> Result<Vec<Moment>> {
    let text =
        fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    parse(&text).with_context(|| path.display().to_string())
}

fn parse(text: &str) -> Result<Vec<Moment>> {
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let mut moments = Vec::new();
    for line in whole.lines() {
        let line: Value = serde_json::from_str(line).context("not a line of statistics")?;
        if line["kind"] == "total" {
            moments.push(moment(&line)?);
        }
    }
    Ok(moments)
}

fn moment(line: &Value) -> Result<Moment> {
    let maybe = |pointer: &str| line.pointer(pointer).and_then(Value::as_f64);
    let number =
        |pointer: &str| maybe(pointer).with_context(|| format!("the daemon tells no {pointer}"));
    let elapsed = number("/interval/ns")?;
    let a_second = if elapsed > 0.0 { 1e9 / elapsed } else { 0.0 };
    Ok(Moment {
        t: number("/t")?,
        kpolls: number("/interval/polls")? * a_second / 1e3,
        ios: number("/interval/ios")?,
        period_us: maybe("/interval/io_period_ns").map(|ns| ns / 1e3),
        budget_mib: maybe("/policy/budget_bytes").map(|bytes| bytes / MIB),
        in_flight: number("/pacer/in_flight")?,
        in_flight_mib: number("/pacer/bytes_in_flight")? / MIB,
        waiting: number("/pacer/waiting")?,
    })
}

/// Those in which commands started, in the last so many seconds of them.
pub(super) fn last(moments: &[Moment], seconds: f64) -> &[Moment] {
    let end = moments.iter().rposition(|moment| moment.ios > 0.0).map_or(0, |last| last + 1);
    let busy = &moments[..end];
    let from = busy.last().map_or(0.0, |last| last.t - seconds);
    &busy[busy.partition_point(|moment| moment.t <= from)..]
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

    const LINES: &str = concat!(
        "{\"kind\":\"start\",\"schema\":1}\n",
        "{\"kind\":\"reactor\",\"t\":0.1}\n",
        "{\"kind\":\"total\",\"t\":0.1,\"interval\":{\"ns\":100000000,\"polls\":500,\"ios\":200,",
        "\"io_period_ns\":5000},\"policy\":{\"budget_bytes\":2097152},",
        "\"pacer\":{\"in_flight\":16,\"bytes_in_flight\":1048576,\"waiting\":48}}\n",
        "{\"kind\":\"total\",\"t\":0.2,\"interval\":{\"ns\":0,\"polls\":0,\"ios\":0,",
        "\"io_period_ns\":null},\"policy\":{\"budget_bytes\":null},",
        "\"pacer\":{\"in_flight\":0,\"bytes_in_flight\":0,\"waiting\":0}}\n",
        "{\"kind\":\"tot",
    );

    #[test]
    fn total_lines_are_read_and_a_cut_one_is_not() {
        let moments = parse(LINES).expect("good lines");
        let busy = Moment {
            t: 0.1,
            kpolls: 5.0,
            ios: 200.0,
            period_us: Some(5.0),
            budget_mib: Some(2.0),
            in_flight: 16.0,
            in_flight_mib: 1.0,
            waiting: 48.0,
        };
        assert_eq!(moments, [busy, Moment { t: 0.2, ..Moment::default() }]);
        assert!(parse("{\"kind\":\"total\"}\n").is_err());
        assert!(parse("").expect("nothing").is_empty());
    }

    #[test]
    fn only_the_end_of_what_was_busy_counts() {
        let at = |tenths: f64, ios| Moment { t: tenths / 10.0, ios, ..Moment::default() };
        let moments = [at(1.0, 9.0), at(2.0, 9.0), at(3.0, 9.0), at(4.0, 9.0), at(5.0, 0.0)];
        assert_eq!(last(&moments, 0.15), &moments[2..4]);
        assert_eq!(last(&moments, 9.0), &moments[..4]);
        assert!(last(&moments[4..], 9.0).is_empty());
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
