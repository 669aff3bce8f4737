//! The tables, the plot and the page.

use super::find::gigabytes;
use super::{DriveScaling, ScaleRun, summary};
use crate::plot::SeriesShape;
use crate::table::{Column, Table};
use crate::units::show_size;
use crate::values::{signed, whole};
use crate::{Axis, HtmlPage, Plot, RunOrigin, Series};

/// Name of the reference measurements.
const REFERENCE: &str = "measured: all_ssd_read, drive_scaling.csv";

/// The table of one order, with the reference measurements if it has any.
#[must_use]
pub fn table(scaling: &DriveScaling, run: &ScaleRun) -> Table {
    let compared = has_reference(scaling, run);
    let mut columns = vec![
        Column::numbers("drives", ""),
        Column::words("new"),
        Column::words("root complex"),
        Column::numbers("on it", ""),
        Column::numbers("read", "GiB/s"),
        Column::numbers("read", "GB/s"),
        Column::numbers("more", "GiB/s"),
        Column::numbers("a drive", "GiB/s"),
        Column::numbers("least", "GiB/s"),
        Column::numbers("of alone", "%"),
        Column::numbers("it carries", "GiB/s"),
    ];
    let has_cpus = run.steps.iter().any(|step| step.cpus.is_some());
    if has_cpus {
        columns.push(Column::numbers("CPU", "CPUs"));
    }
    if compared {
        columns.extend([Column::numbers("measured", "GiB/s"), Column::numbers("off", "%")]);
    }
    columns.push(Column::words("note"));
    let mut table = Table::new(columns);
    let mut before = 0.0;
    for (at, step) in run.steps.iter().enumerate() {
        let drives = at + 1;
        let least = step.shares.iter().copied().fold(f64::INFINITY, f64::min);
        let of_alone = run.alone().map(|alone| step.share() / alone * 100.0);
        let root = &step.root_complex;
        let known = |text: String| if root.is_empty() { "?".to_owned() } else { text };
        let mut cells = vec![
            drives.to_string(),
            step.drive.clone(),
            known(root.clone()),
            known(run.on(root, drives).to_string()),
            format!("{:.2}", step.gib_per_s),
            format!("{:.2}", gigabytes(step.gib_per_s)),
            signed(step.gib_per_s - before, 2),
            format!("{:.2}", step.share()),
            format!("{least:.2}"),
            of_alone.map_or_else(|| "?".to_owned(), |percent| format!("{percent:.0}")),
            known(format!("{:.2}", run.carried(root, at))),
        ];
        if has_cpus {
            cells.push(step.cpus.map_or_else(|| "?".to_owned(), |cpus| format!("{cpus:.2}")));
        }
        before = step.gib_per_s;
        if compared {
            let measured = scaling.reference.iter().find(|(count, _)| *count == drives);
            cells.extend(match measured {
                Some((_, rate)) => {
                    let off = (step.gib_per_s / rate - 1.0) * 100.0;
                    [format!("{rate:.1}"), signed(off, 1)]
                }
                None => [String::new(), String::new()],
            });
        }
        let mut notes: Vec<String> =
            step.full.iter().map(|what| format!("{what} is full")).collect();
        if step.partial {
            notes.push("partial: ended before its time".to_owned());
        }
        notes.extend(step.problem.clone());
        cells.push(notes.join("; "));
        table.push(cells);
    }
    table
}

/// The drives of the last step of an order: location, rate and latency of each.
#[must_use]
pub fn drive_table(run: &ScaleRun) -> Option<Table> {
    let step = run.steps.iter().rfind(|step| !step.latencies.is_empty())?;
    let mut table = Table::new(vec![
        Column::words("drive"),
        Column::words("root complex"),
        Column::words("adapter"),
        Column::numbers("read", "GiB/s"),
        Column::numbers("read", "GB/s"),
        Column::numbers("p50", "us"),
        Column::numbers("p99", "us"),
        Column::numbers("min", "us"),
        Column::numbers("max", "us"),
        Column::numbers("deviation", "us"),
    ]);
    let known = |text: &str| if text.is_empty() { "?".to_owned() } else { text.to_owned() };
    for ((of, share), latency) in run.steps.iter().zip(&step.shares).zip(&step.latencies) {
        let times = [latency.p50, latency.p99, latency.min, latency.max, latency.deviation];
        let place = [of.drive.clone(), known(&of.root_complex), known(&of.adapter)];
        let rates = [*share, gigabytes(*share)].map(|rate| format!("{rate:.2}"));
        let times = times.map(|time| format!("{time:.1}"));
        table.push(place.into_iter().chain(rates).chain(times).collect());
    }
    Some(table)
}

/// Bandwidth over the number of drives: one line per order, and the sum without any sharing.
#[must_use]
pub fn plot(scaling: &DriveScaling) -> Plot {
    let mut series: Vec<Series> = Vec::new();
    let mark = scaling.mark();
    // First, and therefore on top of the lines.
    if !scaling.reference.is_empty() {
        let points = scaling.reference.iter().map(|(drives, rate)| (whole(*drives), *rate));
        series.push(Series {
            name: REFERENCE.to_owned(),
            points: points.collect(),
            shape: SeriesShape::Marks,
        });
    }
    for run in &scaling.runs {
        let points = (1..).zip(&run.steps).map(|(drives, step)| (whole(drives), step.gib_per_s));
        series.push(Series::new(&format!("{mark}{}", run.order), points.collect()));
    }
    let longest = scaling.runs.iter().max_by_key(|run| run.steps.len());
    if let Some((run, alone)) = longest.and_then(|run| Some((run, run.alone()?))) {
        let most = whole(run.steps.len());
        series.push(Series {
            name: format!("{mark}each as alone"),
            points: vec![(1.0, alone), (most, alone * most)],
            shape: SeriesShape::Line,
        });
    }
    let partial = if scaling.partial { ", partial" } else { "" };
    Plot {
        title: "Read bandwidth by number of drives".to_owned(),
        note: format!("{}{partial}", origin(scaling)),
        x: Axis::new("drives", "").from_zero(),
        y: Axis::new("read", "GiB/s").from_zero(),
        series,
    }
}

/// A page with all results.
#[must_use]
pub fn page(scaling: &DriveScaling) -> HtmlPage {
    let mut page = HtmlPage::new("Drives over root complexes", scaling.place.name());
    summary(scaling).iter().for_each(|line| page.warning(line));
    page.paragraph(&format!("Command: {}", scaling.command));
    let load = &scaling.load;
    let queue = if load.striped {
        "over all drives, which take turns: all go at the pace of the slowest"
    } else {
        "of each drive"
    };
    page.paragraph(&format!(
        "{}. Sequential reads of {}, {} threads, {} outstanding of each {queue}.",
        origin(scaling),
        show_size(load.block_bytes),
        load.jobs,
        load.depth
    ));
    if scaling.partial {
        page.paragraph("Partial: it was ended before all was measured.");
    }
    page.plots(&[plot(scaling)]);
    if !scaling.findings.is_empty() {
        page.heading("What is full, and what is slow");
        scaling.findings.iter().for_each(|text| page.paragraph(text));
    }
    for run in &scaling.runs {
        page.heading(&format!("Drives {}", run.order));
        page.table(&table(scaling, run));
        if let Some(drives) = drive_table(run) {
            page.subheading("Each drive, in the last step");
            page.table(&drives);
        }
    }
    if !scaling.tree.is_empty() {
        page.heading("Bridges above the drives");
        page.preformatted(&scaling.tree.join("\n"));
    }
    if let Ok(json) = serde_json::to_string(scaling) {
        page.data("scaling", &json);
    }
    page
}

/// Returns true for the first run: the reference rows have the drives in system order.
fn has_reference(scaling: &DriveScaling, run: &ScaleRun) -> bool {
    let first = scaling.runs.first();
    !scaling.reference.is_empty() && first.is_some_and(|first| first.order == run.order)
}

fn origin(scaling: &DriveScaling) -> String {
    let machine = &scaling.machine;
    match scaling.place {
        RunOrigin::Simulated => format!("simulated, the machine of {}", machine.host),
        RunOrigin::Local | RunOrigin::Remote => format!("measured on {}", machine.line()),
    }
}
