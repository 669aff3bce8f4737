//! Pictures of a drive test.

use super::model::{Measurement, SteadyStateResult, SteadyWindow, TestKind, TestRound, TestRun};
use super::tables::{mean_of, measured, mix, mixes_of, percent, sizes_of, times, written};
use crate::plot::{Axis, Grid, Picture, Plot, Series, SeriesShape, number};
use crate::units::show_size;
use crate::values::whole;

/// Bars of a histogram of response times per doubling.
const BARS: f64 = 4.0;

/// The variable that must become steady, and those of other sizes, over all rounds.
pub(super) fn convergence(run: &TestRun) -> Vec<Picture> {
    match run.test {
        TestKind::Iops => {
            let lines = lines(&run.rounds, true, 0, Measurement::iops);
            let note = "random writes, each block size; all rounds";
            vec![over_rounds("IOPS", note, Axis::new("rate", "IOPS").log10(), lines)]
        }
        TestKind::Throughput => [(0, "writes"), (100, "reads")]
            .map(|(percent, what)| {
                let lines = lines(&run.rounds, false, percent, Measurement::mib_per_s);
                let note = format!("sequential {what}, each block size; all rounds");
                let axis = Axis::new("rate", "MiB/s").from_zero();
                over_rounds(&format!("throughput of {what}"), &note, axis, lines)
            })
            .into(),
        TestKind::Latency => {
            let mixes = mixes_of(&run.rounds);
            let of_mix = |percent: u8| {
                lines(&run.rounds, true, percent, |measurement| measurement.times.mean)
            };
            let all: Vec<Vec<Series>> = mixes.iter().map(|percent| of_mix(*percent)).collect();
            let values = all.iter().flatten().flat_map(|series| &series.points);
            let most = values.map(|point| point.1).fold(0.0, f64::max);
            let pictures = mixes.iter().zip(all).map(|(percent, lines)| {
                let axis = Axis::new("mean response time", "us").from_zero().up_to(most);
                let what = format!("mean response time, reads/writes {}", mix(*percent));
                over_rounds(
                    &what,
                    "one command at a time, each block size; all rounds",
                    axis,
                    lines,
                )
            });
            pictures.collect()
        }
        TestKind::Saturation => Vec::new(),
    }
}

fn over_rounds(what: &str, note: &str, y: Axis, series: Vec<Series>) -> Picture {
    let rounds = series.iter().map(|line| line.points.len()).max().unwrap_or(0);
    Picture::Plot(Plot {
        title: format!("Convergence: {what}"),
        note: note.into(),
        x: rounds_axis(1, rounds),
        y,
        series,
    })
}

/// An axis of rounds: positions 0, 1, 2, ... with the numbers of the rounds as names.
fn rounds_axis(first: usize, count: usize) -> Axis {
    let names = (first..first + count).map(|number| number.to_string()).collect();
    Axis { names, ..Axis::new("round", "") }
}

/// One line per block size.
fn lines(
    rounds: &[TestRound],
    random: bool,
    read_percent: u8,
    figure: fn(&Measurement) -> f64,
) -> Vec<Series> {
    let sizes = sizes_of(rounds);
    let line = |bs: &u64| {
        let of = |(at, round): (usize, &TestRound)| {
            Some((whole(at), figure(round.find(random, read_percent, *bs)?)))
        };
        Series::new(&show_size(*bs), rounds.iter().enumerate().filter_map(of).collect())
    };
    sizes.iter().map(line).collect()
}

/// The window with the allowed range and its best-fit line.
pub(super) fn verification(test: TestKind, window: &SteadyWindow, steady: bool) -> Picture {
    let (first, last) = (0.0, whole(window.values.len().saturating_sub(1)));
    let half = window.mean * window.range_allowed / 2.0;
    let (low, high) = (window.mean - half, window.mean + half);
    let level = |y: f64| vec![(first, y), (last, y)];
    let points = (0..).map(whole).zip(window.values.iter().copied());
    let band = format!("mean +- {}", percent(window.range_allowed / 2.0));
    let series = vec![
        Series::new(test.variable(), points.collect()),
        Series { name: "mean".into(), points: level(window.mean), shape: SeriesShape::Line },
        Series {
            name: format!("best fit, slope {}", percent(window.slope)),
            points: vec![(first, window.fit_first), (last, window.fit_last)],
            shape: SeriesShape::Line,
        },
        Series {
            name: band,
            points: vec![(first, low), (last, low), (last, high), (first, high)],
            shape: SeriesShape::Area,
        },
    ];
    Picture::Plot(Plot {
        title: format!("Steady state window: {}", test.variable()),
        note: format!(
            "rounds {} to {}: range {} of the mean, slope {}: {}",
            window.first,
            window.last(),
            percent(window.range),
            percent(window.slope),
            if steady { "steady" } else { "not steady" }
        ),
        x: rounds_axis(window.first, window.values.len()),
        y: Axis::new(axis_name(test), test.unit()),
        series,
    })
}

fn axis_name(test: TestKind) -> &'static str {
    match test {
        TestKind::Latency => "mean response time",
        _ => "rate",
    }
}

/// Means over the window against the block size.
pub(super) fn measurement(run: &TestRun) -> Vec<Picture> {
    let rounds = measured(run);
    let sizes = sizes_of(rounds);
    let line = |name: String, random: bool, percent: u8, figure: fn(&Measurement) -> f64| {
        let at = |bs: &u64| Some((kib(*bs), mean_of(rounds, (random, percent, *bs), figure)?));
        Series::new(&name, sizes.iter().filter_map(at).collect())
    };
    let mixes = mixes_of(rounds);
    let note = format!("means of the last {} rounds", rounds.len());
    let x = Axis::new("block size", "KiB").log2();
    let of_mixes = |figure: fn(&Measurement) -> f64| {
        let lines = mixes.iter().map(|percent| line(mix(*percent), true, *percent, figure));
        lines.collect::<Vec<_>>()
    };
    let (title, y, series) = match run.test {
        TestKind::Iops => {
            let y = Axis::new("rate", "IOPS").log10();
            ("Measurement: IOPS, reads/writes", y, of_mixes(Measurement::iops))
        }
        TestKind::Throughput => {
            let line =
                |name: &str, percent| line(name.into(), false, percent, Measurement::mib_per_s);
            let y = Axis::new("rate", "MiB/s").from_zero();
            ("Measurement: throughput", y, vec![line("read", 100), line("write", 0)])
        }
        TestKind::Latency => {
            let y = Axis::new("mean response time", "us").from_zero();
            let lines = of_mixes(|measurement| measurement.times.mean);
            ("Measurement: mean response time, reads/writes", y, lines)
        }
        TestKind::Saturation => return Vec::new(),
    };
    vec![Picture::Plot(Plot { title: title.into(), note, x, y, series })]
}

/// Mixes by block sizes, as cells and as a surface; of latencies the mean and the maximum.
pub(super) fn surface(run: &TestRun) -> Vec<Picture> {
    let rounds = measured(run);
    let means = |figure: fn(&Measurement) -> f64| move |workload| mean_of(rounds, workload, figure);
    let note = format!("means of the last {} rounds", rounds.len());
    let grids = match run.test {
        TestKind::Iops => vec![grid(run, "IOPS", &note, &means(Measurement::iops))],
        TestKind::Latency => {
            let mean = means(|measurement| measurement.times.mean);
            let longest = |(random, percent, bs): (bool, u8, u64)| {
                let found = rounds.iter().filter_map(|round| round.find(random, percent, bs));
                found.map(|measurement| measurement.times.max).reduce(f64::max)
            };
            let of_window = format!("longest in the last {} rounds", rounds.len());
            vec![
                grid(run, "Mean response time in us", &note, &mean),
                grid(run, "Maximum response time in us", &of_window, &longest),
            ]
        }
        TestKind::Throughput | TestKind::Saturation => Vec::new(),
    };
    grids
        .into_iter()
        .flat_map(|grid| [Picture::Cells(grid.clone()), Picture::Surface(grid)])
        .collect()
}

/// A grid of a figure by mix and block size.
fn grid(
    run: &TestRun,
    what: &str,
    note: &str,
    figure: &dyn Fn((bool, u8, u64)) -> Option<f64>,
) -> Grid {
    let rounds = measured(run);
    let mixes = mixes_of(rounds);
    let sizes = sizes_of(rounds);
    let row = |percent: &u8| sizes.iter().map(|bs| figure((true, *percent, *bs))).collect();
    Grid {
        title: format!("{what}, by mix and block size"),
        note: note.into(),
        x: "block size".into(),
        columns: sizes.iter().map(|bs| show_size(*bs)).collect(),
        y: "reads/writes, %".into(),
        rows: mixes.iter().map(|percent| mix(*percent)).collect(),
        values: mixes.iter().map(row).collect(),
    }
}

/// Response times of the variable that must become steady, over the window.
pub(super) fn response_times(run: &TestRun) -> Vec<Picture> {
    let rounds = measured(run);
    let workloads: Vec<(String, (bool, u8, u64))> = match run.test {
        TestKind::Iops => [(100, "reads"), (0, "writes")]
            .map(|(percent, what)| (format!("4 KiB random {what}"), (true, percent, 4096)))
            .into(),
        TestKind::Throughput => [(100, "reads"), (0, "writes")]
            .map(|(percent, what)| (format!("1 MiB sequential {what}"), (false, percent, 1 << 20)))
            .into(),
        TestKind::Latency => [100, 65, 0]
            .map(|percent| (format!("4 KiB, {}", mix(percent)), (true, percent, 4096)))
            .into(),
        TestKind::Saturation => vec![("4 KiB random writes".into(), (true, 0, 4096))],
    };
    let series = workloads.into_iter().map(|(name, (random, percent, bs))| {
        let found = rounds.iter().filter_map(|round| round.find(random, percent, bs));
        let counts: Vec<_> =
            found.flat_map(|measurement| measurement.histogram.iter().copied()).collect();
        Series { name, points: steps(&counts), shape: SeriesShape::Line }
    });
    vec![Picture::Plot(Plot {
        title: "Response time histogram".into(),
        note: format!("share of commands, {BARS} bars a doubling; last {} rounds", rounds.len()),
        x: Axis::new("response time", "us").log10(),
        y: Axis::new("commands", "%").from_zero(),
        series: series.collect(),
    })]
}

/// The outline of a histogram, each bar with its share of all commands in percent.
fn steps(counts: &[(f64, u64)]) -> Vec<(f64, f64)> {
    let bar = |micros: f64| (micros.max(1e-3).log2() * BARS).floor();
    let mut bars: Vec<(f64, u64)> = Vec::new();
    for (micros, count) in counts.iter().filter(|(_, count)| *count > 0) {
        let at = bar(*micros);
        match bars.iter_mut().find(|(other, _)| (*other - at).abs() < 0.5) {
            Some((_, sum)) => *sum += count,
            None => bars.push((at, *count)),
        }
    }
    bars.sort_by(|a, b| a.0.total_cmp(&b.0));
    let all: u64 = bars.iter().map(|(_, count)| count).sum();
    let mut points = Vec::new();
    let edge = |bar: f64| (bar / BARS).exp2();
    let mut end: Option<f64> = None;
    for (at, count) in bars {
        #[expect(clippy::cast_precision_loss, reason = "a share")]
        let share = count as f64 * 100.0 / all.max(1) as f64;
        if end.is_none_or(|end| at - end > 0.5) {
            points.extend(end.map(|end| (edge(end), 0.0)));
            points.push((edge(at), 0.0));
        }
        // A step is two points at almost one position: a line has one value at each position.
        points.push((edge(at) * 1.0001, share));
        points.push((edge(at + 1.0) * 0.9999, share));
        end = Some(at + 1.0);
    }
    points.extend(end.map(|end| (edge(end), 0.0)));
    points
}

/// Rates and response times during writes alone.
pub(super) fn saturation(run: &TestRun, capacity: u64) -> Vec<Picture> {
    let curve = written(&run.rounds);
    let line = |name: &str, x: fn(f64, f64, u64) -> f64, figure: fn(&Measurement) -> f64| {
        let at = |(seconds, bytes, measurement): &(f64, f64, &Measurement)| {
            (x(*seconds, *bytes, capacity), figure(measurement))
        };
        Series { name: name.into(), points: curve.iter().map(at).collect(), shape: shape(&curve) }
    };
    let by_bytes = |_: f64, bytes: f64, capacity: u64| times(bytes, capacity);
    let is_long = curve.last().is_some_and(|(seconds, ..)| *seconds > 180.0);
    let (unit, by_time): (_, fn(f64, f64, u64) -> f64) = match is_long {
        true => ("min", |seconds, _, _| seconds / 60.0),
        false => ("s", |seconds, _, _| seconds),
    };
    let purged = run.purge.as_ref().is_some_and(|purge| purge.done);
    let drive = if purged { "to a purged drive" } else { "to a drive that was not purged" };
    let end = match &run.result {
        SteadyStateResult::Over { why } => why.as_str(),
        _ => "cut short",
    };
    let note = format!("4 KiB random writes {drive}; {end}");
    let response = |title: &str, series: Vec<Series>| {
        let x = Axis::new("written", "x capacity").from_zero();
        let y = Axis::new("response time", "us").log10();
        Picture::Plot(Plot { title: title.into(), note: note.clone(), x, y, series })
    };
    let rate = |title: &str, x: Axis, series: Series| {
        let y = Axis::new("rate", "IOPS").from_zero();
        Picture::Plot(Plot { title: title.into(), note: note.clone(), x, y, series: vec![series] })
    };
    vec![
        rate(
            "Write saturation: IOPS over what was written",
            Axis::new("written", "x capacity").from_zero(),
            line("", by_bytes, Measurement::iops),
        ),
        rate(
            "Write saturation: IOPS over time",
            Axis::new("time", unit).from_zero(),
            line("", by_time, Measurement::iops),
        ),
        response(
            "Write saturation: response times",
            vec![
                line("mean", by_bytes, |measurement| measurement.times.mean),
                line("p99.9", by_bytes, |measurement| measurement.times.p99_9),
                line("max", by_bytes, |measurement| measurement.times.max),
            ],
        ),
    ]
}

/// The samples of a day are too many for markers.
fn shape<T>(curve: &[T]) -> SeriesShape {
    if curve.len() > 60 { SeriesShape::Line } else { SeriesShape::MarkedLine }
}

fn kib(bytes: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "block sizes are powers of two")]
    let bytes = bytes as f64;
    bytes / 1024.0
}

/// Text that describes a picture of the window, as an alternative to seeing it.
pub(super) fn window_in_words(test: TestKind, window: &SteadyWindow) -> String {
    let (low, high) =
        window.values.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |ends, value| {
            (ends.0.min(*value), ends.1.max(*value))
        });
    format!(
        "{} between {} and {} {} in rounds {} to {}, mean {}; range {} (at most {}), slope of the best fit {} \
         (at most {}).",
        test.variable(),
        number(low),
        number(high),
        test.unit(),
        window.first,
        window.last(),
        number(window.mean),
        percent(window.range),
        percent(window.range_allowed),
        percent(window.slope),
        percent(window.slope_allowed),
    )
}
