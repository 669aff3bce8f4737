//! The table, the plots and the page.

use super::{
    EngineComparison, EngineRow, REFERENCE_SOURCE, ReadLayout, ReferenceRow, RowOutcome,
    about_polling,
};
use crate::plot::SeriesShape;
use crate::table::{Column, Table};
use crate::{Axis, HtmlPage, Plot, Series};

/// A table with one row per engine, layout, format and concurrency.
#[must_use]
pub fn table(engines: &EngineComparison) -> Table {
    let mut table = Table::new(vec![
        Column::numbers("format", "B"),
        Column::words("layout"),
        Column::numbers("drives", ""),
        Column::words("engine"),
        Column::numbers("at once", ""),
        Column::numbers("threads", ""),
        Column::numbers("reads", "k/s"),
        Column::numbers("mean", "us"),
        Column::numbers("p99", "us"),
        Column::numbers("CPU a read", "us"),
        Column::words("note"),
    ]);
    for row in &engines.rows {
        let mut cells = vec![
            if row.lba_bytes == 0 { "?".to_owned() } else { row.lba_bytes.to_string() },
            layout(row),
            row.drives.len().to_string(),
            row.engine.clone(),
            if row.concurrency == 0 { "any".to_owned() } else { row.concurrency.to_string() },
        ];
        let mut notes: Vec<String> = Vec::new();
        match &row.outcome {
            RowOutcome::Measured(figures) => {
                cells.extend([
                    figures.threads.to_string(),
                    format!("{:.1}", figures.kiops),
                    format!("{:.1}", figures.mean_us),
                    format!("{:.1}", figures.p99_us),
                    format!("{:.2}", figures.cpu_us),
                ]);
                if figures.partial {
                    notes.push("partial: ended before its time".to_owned());
                }
                if figures.errors > 0 {
                    notes.push(format!("{} reads failed", figures.errors));
                }
            }
            RowOutcome::Unable(why) => {
                cells.extend(std::iter::repeat_n("-".to_owned(), 5));
                notes.push(why.clone());
            }
        }
        notes.extend(row.note.clone());
        cells.push(notes.join("; "));
        table.push(cells);
    }
    table
}

/// Reads a second by layout and concurrency, one series per engine; one plot per LBA format.
#[must_use]
pub fn plots(engines: &EngineComparison) -> Vec<(u32, Plot)> {
    let mut marks = Vec::new();
    for row in &engines.rows {
        let RowOutcome::Measured(figures) = &row.outcome else { continue };
        let (lba_bytes, engine) = (row.lba_bytes, row.engine.as_str());
        let place = format!("{} {}", layout(row), row.concurrency);
        marks.push(PlotMark { lba_bytes, place, engine, kiops: figures.kiops });
    }
    let drives = engines.drives.len();
    let partial = if engines.partial { ", partial" } else { "" };
    let note = format!(
        "measured on {} (Linux {}, {} CPUs), {drives} drives{partial}",
        engines.machine.host, engines.machine.kernel, engines.machine.cpus
    );
    draw(&block(engines.block_bytes), &note, &marks)
}

/// The plots of the reference.
#[must_use]
pub fn reference_plots(rows: &[ReferenceRow]) -> Vec<(u32, Plot)> {
    let marks: Vec<PlotMark<'_>> = rows
        .iter()
        .map(|row| PlotMark {
            lba_bytes: row.lba_bytes,
            place: format!("{} {}", row.layout, row.concurrency),
            engine: &row.engine,
            kiops: row.kiops,
        })
        .collect();
    draw("4 KiB", &format!("{REFERENCE_SOURCE}; 16 logical drives"), &marks)
}

/// The reference as a table.
#[must_use]
pub fn reference_table(rows: &[ReferenceRow]) -> Table {
    let mut table = Table::new(vec![
        Column::numbers("format", "B"),
        Column::words("layout"),
        Column::words("engine"),
        Column::numbers("at once", ""),
        Column::numbers("reads", "k/s"),
    ]);
    for row in rows {
        table.push(vec![
            row.lba_bytes.to_string(),
            row.layout.clone(),
            row.engine.clone(),
            row.concurrency.to_string(),
            format!("{:.0}", row.kiops),
        ]);
    }
    table
}

/// A page with all results; without figures of this machine, the reference alone.
#[must_use]
pub fn page(engines: Option<&EngineComparison>, reference: &[ReferenceRow]) -> HtmlPage {
    let mark = engines.map_or("reference", |_| "local");
    let mut page = HtmlPage::new("I/O engines side by side", mark);
    if let Some(engines) = engines {
        page.paragraph(&format!("Command: {}", engines.command));
        page.paragraph(&format!(
            "Machine: {}, Linux {}, {} CPUs. {:.1} s a row.",
            engines.machine.host, engines.machine.kernel, engines.machine.cpus, engines.seconds
        ));
        if engines.partial {
            page.paragraph("Partial: it was ended before all rows were measured.");
        }
        page.table(&drives(engines));
        page.plots(&without_format(plots(engines)));
        page.plots(&without_format(reference_plots(reference)));
        page.table(&table(engines));
        page.paragraph(
            "CPU a read is the time of the threads that read, in the program and in the kernel on its behalf. Interrupts \
             that meet other threads are not in it; a thread that polls is busy all the time.",
        );
    } else {
        page.plots(&without_format(reference_plots(reference)));
    }
    page.heading("What high-priority polling is");
    for paragraph in about_polling(reference) {
        page.paragraph(&paragraph);
    }
    page.folded_table(&format!("Figures of the {REFERENCE_SOURCE}"), &reference_table(reference));
    if let Some(json) = engines.and_then(|engines| serde_json::to_string(engines).ok()) {
        page.data("engines", &json);
    }
    page
}

fn without_format(plots: Vec<(u32, Plot)>) -> Vec<Plot> {
    plots.into_iter().map(|(_, plot)| plot).collect()
}

fn drives(engines: &EngineComparison) -> Table {
    let mut table = Table::new(vec![
        Column::words("drive"),
        Column::words("model"),
        Column::words("serial number"),
        Column::words("firmware"),
        Column::numbers("size", "GB"),
        Column::numbers("format", "B"),
    ]);
    for drive in &engines.drives {
        #[expect(clippy::cast_precision_loss, reason = "a size to be shown")]
        let gigabytes = drive.bytes as f64 / 1e9;
        table.push(vec![
            drive.name.clone(),
            drive.model.clone(),
            drive.serial.clone(),
            drive.firmware.clone(),
            format!("{gigabytes:.1}"),
            drive.lba_bytes.to_string(),
        ]);
    }
    table
}

/// The name of a layout, for a single drive with the name of the drive.
fn layout(row: &EngineRow) -> String {
    match (row.layout, &row.drives[..]) {
        (ReadLayout::Single, [drive]) => format!("{} {drive}", row.layout.name()),
        _ => row.layout.name().to_owned(),
    }
}

/// The index of a name, added if it is new.
#[expect(clippy::cast_precision_loss, reason = "a place on an axis of a few names")]
fn place(names: &mut Vec<String>, name: &str) -> f64 {
    let at = names.iter().position(|known| known == name).unwrap_or_else(|| {
        names.push(name.to_owned());
        names.len() - 1
    });
    at as f64
}

/// A marker of a plot.
struct PlotMark<'a> {
    lba_bytes: u32,
    /// Position on the x axis.
    place: String,
    engine: &'a str,
    kiops: f64,
}

/// One plot per LBA format.
fn draw(block: &str, note: &str, marks: &[PlotMark<'_>]) -> Vec<(u32, Plot)> {
    let mut plots: Vec<(u32, Plot)> = Vec::new();
    for mark in marks {
        let at = plots.iter().position(|(bytes, _)| *bytes == mark.lba_bytes);
        let at = at.unwrap_or_else(|| {
            let plot = Plot {
                title: format!("{block} random reads, blocks of {} bytes", mark.lba_bytes),
                note: note.to_owned(),
                x: Axis::new("layout and reads at once", ""),
                y: Axis::new("reads", "k/s").from_zero(),
                series: Vec::new(),
            };
            plots.push((mark.lba_bytes, plot));
            plots.len() - 1
        });
        let plot = &mut plots[at].1;
        let x = place(&mut plot.x.names, &mark.place);
        match plot.series.iter_mut().find(|series| series.name == mark.engine) {
            Some(series) => series.points.push((x, mark.kiops)),
            None => plot.series.push(Series {
                name: mark.engine.to_owned(),
                points: vec![(x, mark.kiops)],
                shape: SeriesShape::Marks,
            }),
        }
    }
    plots.iter_mut().for_each(|(_, plot)| side_by_side(plot));
    plots
}

/// Part of the distance between two positions that the engines of a position share.
const SHARE: f64 = 0.7;

/// Shifts engines in the order of the legend, because equal figures would hide each other.
fn side_by_side(plot: &mut Plot) {
    let Ok(count) = u32::try_from(plot.series.len()) else { return };
    for (number, series) in (0..count).zip(&mut plot.series) {
        let shift = (f64::from(number) + 0.5) / f64::from(count) - 0.5;
        series.points.iter_mut().for_each(|point| point.0 += SHARE * shift);
    }
}

fn block(bytes: u32) -> String {
    if bytes.is_multiple_of(1024) { format!("{} KiB", bytes / 1024) } else { format!("{bytes} B") }
}
