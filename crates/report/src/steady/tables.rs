//! Tables of a drive test.

use super::model::{
    DriveTest, DriveTestSetup, Measurement, Preparation, SteadyStateResult, SteadyWindow, TestKind,
    TestRound, TestRun, Workload,
};
use crate::plot::number;
use crate::table::{Column, Table};
use crate::units::show_size;
use crate::values::{distinct, whole};

/// The label of a share of reads.
pub(super) fn mix(read_percent: u8) -> String {
    format!("{read_percent}/{}", 100 - read_percent.min(100))
}

pub(super) fn percent(share: f64) -> String {
    if share.is_finite() { format!("{:.1} %", share * 100.0) } else { "-".to_owned() }
}

pub(super) fn setup(setup: &DriveTestSetup) -> Table {
    let mut table = Table::new(vec![Column::words(""), Column::words("")]);
    let mut row = |name: &str, value: &str| {
        if !value.trim().is_empty() {
            table.push(vec![name.into(), value.trim().into()]);
        }
    };
    row("device", &setup.device);
    row("drive", &setup.model);
    row("serial number", &setup.serial);
    row("firmware", &setup.firmware);
    row("capacity tested", &format!("{} ({} bytes)", show_size(setup.capacity), setup.capacity));
    row("logical block", &format!("{} bytes", setup.block_size));
    row("path", &setup.path);
    row("host", &setup.host);
    row("kernel", &setup.kernel);
    row("kernel command line", &setup.kernel_command_line);
    row("distribution", &setup.distribution);
    row("board", &setup.board);
    row("BIOS", &setup.bios);
    row("processor", &format!("{} x {}", setup.processors, setup.processor));
    row("microcode", &setup.microcode);
    row("program", &setup.version);
    row("note", &setup.note);
    row("command line", &setup.command_line);
    row("begun", &setup.started);
    row("load", &format!("{} jobs, iodepth {}, buffers refilled", setup.jobs, setup.iodepth));
    row("length of a point", &format!("{} s", number(setup.seconds)));
    let fill = format!("{} x capacity, sequential writes of 128 KiB", number(setup.precondition));
    row("preconditioning", &fill);
    table
}

/// The results, one row per test.
#[must_use]
pub fn result_table(drive_test: &DriveTest) -> Table {
    let mut table = Table::new(vec![
        Column::words("test"),
        Column::words("has to be steady"),
        Column::words("verdict"),
        Column::numbers("rounds", ""),
        Column::words("window"),
        Column::numbers("mean", ""),
        Column::numbers("range", "at most 20 %"),
        Column::numbers("slope", "at most 10 %"),
    ]);
    for run in &drive_test.tests {
        let (result, window) = match &run.result {
            SteadyStateResult::Steady(window) => ("steady".to_owned(), Some(window)),
            SteadyStateResult::Unsteady { window, most } => {
                (format!("NOT steady in {most} rounds"), Some(window))
            }
            SteadyStateResult::Over { why } => (why.clone(), None),
            SteadyStateResult::Cut => ("cut short: partial".to_owned(), None),
        };
        let mean = |window: &SteadyWindow| format!("{} {}", number(window.mean), run.test.unit());
        table.push(vec![
            run.test.title().into(),
            run.test.variable().into(),
            result,
            run.rounds.len().to_string(),
            window.map_or_else(String::new, |w| format!("rounds {} to {}", w.first, w.last())),
            window.map_or_else(String::new, mean),
            window.map_or_else(String::new, |w| percent(w.range)),
            window.map_or_else(String::new, |w| percent(w.slope)),
        ]);
    }
    table
}

/// The preparation of the drive for each test.
pub(super) fn preparations(drive_test: &DriveTest) -> Table {
    let mut table = Table::new(vec![
        Column::words("test"),
        Column::words("purge"),
        Column::words("preconditioning"),
        Column::numbers("written", ""),
        Column::numbers("took", "s"),
    ]);
    let how = |preparation: &Option<Preparation>| match preparation {
        Some(done) if done.done => done.how.clone(),
        Some(not) => format!("none: {}", not.how),
        None => "-".to_owned(),
    };
    for run in &drive_test.tests {
        let both = || [&run.purge, &run.precondition].into_iter().flatten();
        table.push(vec![
            run.test.title().into(),
            how(&run.purge),
            how(&run.precondition),
            show_size(both().map(|one| one.bytes).sum()),
            format!("{:.1}", both().map(|one| one.seconds).sum::<f64>()),
        ]);
    }
    table
}

/// The window's rounds, compared with the best-fit line.
pub(super) fn window(test: TestKind, window: &SteadyWindow) -> Table {
    let unit = test.unit();
    let mut table = Table::new(vec![
        Column::words(""),
        Column::numbers("measured", unit),
        Column::numbers("best fit", unit),
    ]);
    let last = window.values.len().saturating_sub(1).max(1);
    for (at, value) in window.values.iter().enumerate() {
        let share = whole(at) / whole(last);
        let fit = window.fit_first + (window.fit_last - window.fit_first) * share;
        let name = format!("round {}", window.first + at);
        table.push(vec![name, number(*value), number(fit)]);
    }
    table.push(vec!["mean".into(), number(window.mean), String::new()]);
    let (range, slope) = (percent(window.range), percent(window.slope));
    table.push(vec![
        format!("range (at most {})", percent(window.range_allowed)),
        range,
        String::new(),
    ]);
    table.push(vec![
        format!("slope (at most {})", percent(window.slope_allowed)),
        slope,
        String::new(),
    ]);
    table
}

/// The rounds behind mean figures: the window, or the last ones.
pub(super) fn measured(run: &TestRun) -> &[TestRound] {
    let count = match &run.result {
        SteadyStateResult::Steady(window) | SteadyStateResult::Unsteady { window, .. } => {
            window.values.len()
        }
        SteadyStateResult::Over { .. } | SteadyStateResult::Cut => 5,
    };
    &run.rounds[run.rounds.len().saturating_sub(count)..]
}

/// Mean of a figure over rounds; `None` if none of them has it.
pub(super) fn mean_of(
    rounds: &[TestRound],
    (random, read_percent, bs): (bool, u8, u64),
    figure: impl Fn(&Measurement) -> f64,
) -> Option<f64> {
    let found = rounds.iter().filter_map(|round| round.find(random, read_percent, bs));
    let figures: Vec<f64> = found.map(figure).collect();
    (!figures.is_empty()).then(|| figures.iter().sum::<f64>() / whole(figures.len()))
}

/// The shares of reads that were measured, in the order in which they ran.
pub(super) fn mixes_of(rounds: &[TestRound]) -> Vec<u8> {
    distinct(workloads(rounds).map(|workload| workload.read_percent))
}

/// The block sizes that were measured, in the order in which they ran.
pub(super) fn sizes_of(rounds: &[TestRound]) -> Vec<u64> {
    distinct(workloads(rounds).map(|workload| workload.bs))
}

fn workloads(rounds: &[TestRound]) -> impl Iterator<Item = Workload> + '_ {
    rounds.iter().flat_map(|round| &round.measurements).map(|measurement| measurement.workload)
}

fn shown(value: Option<f64>) -> String {
    value.map_or_else(|| "-".into(), number)
}

/// Mixes by block sizes: rows are block sizes, as in the specification.
pub(super) fn by_mix(rounds: &[TestRound], figure: fn(&Measurement) -> f64, unit: &str) -> Table {
    let mixes = mixes_of(rounds);
    let sizes = sizes_of(rounds);
    let mut columns = vec![Column::words("block size")];
    columns.extend(mixes.iter().map(|percent| Column::numbers(&mix(*percent), unit)));
    let mut table = Table::new(columns);
    for bs in sizes {
        let mut row = vec![show_size(bs)];
        row.extend(
            mixes.iter().map(|percent| shown(mean_of(rounds, (true, *percent, bs), figure))),
        );
        table.push(row);
    }
    table
}

pub(super) fn throughput(rounds: &[TestRound]) -> Table {
    let mut table = Table::new(vec![
        Column::words("block size"),
        Column::numbers("read", "MiB/s"),
        Column::numbers("write", "MiB/s"),
    ]);
    for bs in sizes_of(rounds) {
        let rate = |percent| shown(mean_of(rounds, (false, percent, bs), Measurement::mib_per_s));
        table.push(vec![show_size(bs), rate(100), rate(0)]);
    }
    table
}

/// Response times of each mix and block size.
///
/// Minimum and maximum are over all rounds; the others are means of rounds.
pub(super) fn latencies(rounds: &[TestRound]) -> Table {
    let mut table = Table::new(vec![
        Column::words("read/write"),
        Column::words("block size"),
        Column::numbers("min", "us"),
        Column::numbers("mean", "us"),
        Column::numbers("p99.9", "us"),
        Column::numbers("max", "us"),
        Column::numbers("rate", "IOPS"),
    ]);
    for percent in mixes_of(rounds) {
        for bs in sizes_of(rounds) {
            let all = || rounds.iter().filter_map(|round| round.find(true, percent, bs));
            let mean =
                |figure: fn(&Measurement) -> f64| mean_of(rounds, (true, percent, bs), figure);
            table.push(vec![
                mix(percent),
                show_size(bs),
                shown(all().map(|measurement| measurement.times.min).reduce(f64::min)),
                shown(mean(|measurement| measurement.times.mean)),
                shown(mean(|measurement| measurement.times.p99_9)),
                shown(all().map(|measurement| measurement.times.max).reduce(f64::max)),
                shown(mean(Measurement::iops)),
            ]);
        }
    }
    table
}

/// Write saturation in a few rows, from beginning to end.
pub(super) fn saturation(rounds: &[TestRound], capacity: u64) -> Table {
    const ROWS: usize = 16;
    let mut table = Table::new(vec![
        Column::numbers("after", "s"),
        Column::numbers("written", "GiB"),
        Column::numbers("written", "x capacity"),
        Column::numbers("rate", "IOPS"),
        Column::numbers("mean", "us"),
        Column::numbers("p99.9", "us"),
        Column::numbers("max", "us"),
    ]);
    let curve = written(rounds);
    let step = curve.len().div_ceil(ROWS).max(1);
    for (index, (seconds, bytes, measurement)) in curve.iter().enumerate() {
        if index % step != 0 && index + 1 != curve.len() {
            continue;
        }
        table.push(vec![
            number(*seconds),
            number(bytes / f64::from(1_u32 << 30)),
            number(times(*bytes, capacity)),
            number(measurement.iops()),
            number(measurement.times.mean),
            number(measurement.times.p99_9),
            number(measurement.times.max),
        ]);
    }
    table
}

/// Each sample with the time and the bytes at its end.
pub(super) fn written(rounds: &[TestRound]) -> Vec<(f64, f64, &Measurement)> {
    let (mut seconds, mut bytes) = (0.0, 0.0);
    let mut curve = Vec::new();
    for measurement in rounds.iter().flat_map(|round| &round.measurements) {
        seconds += measurement.seconds;
        #[expect(clippy::cast_precision_loss, reason = "to be shown")]
        {
            bytes += measurement.bytes as f64;
        }
        curve.push((seconds, bytes, measurement));
    }
    curve
}

#[expect(clippy::cast_precision_loss, reason = "to be shown")]
pub(super) fn times(bytes: f64, capacity: u64) -> f64 {
    bytes / capacity.max(1) as f64
}
