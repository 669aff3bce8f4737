//! The table, the plots and the page.

use super::{
    EngineComparison, EngineRow, REFERENCE_SOURCE, ReadLayout, ReferenceRow, RowOutcome, about_md,
    about_polling,
};
use crate::plot::SeriesShape;
use crate::table::{Column, Table};
use crate::units::show_size;
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

/// Reads a second by engine and concurrency; one plot per LBA format and layout.
#[must_use]
pub fn plots(engines: &EngineComparison) -> Vec<(String, Plot)> {
    let mut marks = Vec::new();
    for row in &engines.rows {
        let RowOutcome::Measured(figures) = &row.outcome else { continue };
        marks.push(PlotMark {
            lba_bytes: row.lba_bytes,
            layout: layout(row),
            engine: &row.engine,
            concurrency: row.concurrency,
            kiops: figures.kiops,
        });
    }
    let drives = engines.drives.len();
    let partial = if engines.partial { ", partial" } else { "" };
    let note = format!("measured on {}, {drives} drives{partial}", engines.machine.line());
    draw(&show_size(u64::from(engines.block_bytes)), &note, &marks)
}

/// The plots of the reference.
#[must_use]
pub fn reference_plots(rows: &[ReferenceRow]) -> Vec<(String, Plot)> {
    let marks: Vec<PlotMark<'_>> = rows
        .iter()
        .map(|row| PlotMark {
            lba_bytes: row.lba_bytes,
            layout: row.layout.clone(),
            engine: &row.engine,
            concurrency: row.concurrency,
            kiops: row.kiops,
        })
        .collect();
    draw("4 KiB", REFERENCE_SOURCE, &marks)
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
            "Machine: {}. {:.1} s a row.",
            engines.machine.line(),
            engines.seconds
        ));
        if engines.partial {
            page.paragraph("Partial: it was ended before all rows were measured.");
        }
        page.table(&drives(engines));
        page.heading("Measured");
        page.plots(&without_names(plots(engines)));
        page.table(&table(engines));
        page.paragraph(
            "CPU a read is the time of the threads that read, in the program and in the kernel on its behalf. Interrupts \
             that meet other threads are not in it; a thread that polls is busy all the time.",
        );
    }
    page.heading("The comparison of synchronous engines");
    page.plots(&without_names(reference_plots(reference)));
    page.heading("Why engines differ on MD RAID-0");
    about_md(reference).iter().for_each(|text| page.paragraph(text));
    page.heading("What high-priority polling is");
    about_polling(reference).iter().for_each(|text| page.paragraph(text));
    page.folded_table(&format!("Figures of the {REFERENCE_SOURCE}"), &reference_table(reference));
    if let Some(json) = engines.and_then(|engines| serde_json::to_string(engines).ok()) {
        page.data("engines", &json);
    }
    page
}

fn without_names(plots: Vec<(String, Plot)>) -> Vec<Plot> {
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
fn index<T: PartialEq>(names: &mut Vec<T>, name: T) -> usize {
    names.iter().position(|known| *known == name).unwrap_or_else(|| {
        names.push(name);
        names.len() - 1
    })
}

/// A bar of a plot.
struct PlotMark<'a> {
    lba_bytes: u32,
    layout: String,
    engine: &'a str,
    concurrency: u32,
    kiops: f64,
}

/// One plot per LBA format and layout: a group of bars per engine, a bar per concurrency.
///
/// Plots of one format have the same vertical axis. The first of a pair names the plot's file.
#[expect(clippy::cast_precision_loss, reason = "a place on an axis of a few names")]
fn draw(block: &str, note: &str, marks: &[PlotMark<'_>]) -> Vec<(String, Plot)> {
    let mut keys = Vec::new();
    let mut plots: Vec<Plot> = Vec::new();
    for mark in marks {
        let at = index(&mut keys, (mark.lba_bytes, mark.layout.as_str()));
        if at == plots.len() {
            let of_format = marks.iter().filter(|other| other.lba_bytes == mark.lba_bytes);
            let most = of_format.map(|other| other.kiops).fold(0.0, f64::max);
            let (lba, layout) = (mark.lba_bytes, layout_title(&mark.layout));
            plots.push(Plot {
                title: format!("{block} random reads, {layout}, blocks of {lba} bytes"),
                note: note.to_owned(),
                x: Axis::new("engine", ""),
                y: Axis::new("reads", "k/s").from_zero().up_to(most),
                series: Vec::new(),
            });
        }
        let plot = &mut plots[at];
        let point = (index(&mut plot.x.names, mark.engine.to_owned()) as f64, mark.kiops);
        let name = format!("{} reads in flight", mark.concurrency);
        match plot.series.iter_mut().find(|series| series.name == name) {
            Some(series) => series.points.push(point),
            None => {
                plot.series.push(Series { name, points: vec![point], shape: SeriesShape::Bars });
            }
        }
    }
    let name = |(lba, layout): &(u32, &str)| {
        let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
        format!("{lba}-{}", layout.chars().map(plain).collect::<String>())
    };
    keys.iter().map(name).zip(plots).collect()
}

/// A layout in a title.
fn layout_title(layout: &str) -> &str {
    match layout {
        "individual" => "individual drives",
        "stripe" => "striped by the program",
        "md-raid0" | "raid0" => "MD RAID-0",
        other => other,
    }
}
