//! Tables in a PDF: columns as wide as their contents, text in several lines if it is too wide.

use plotters::style::RGBColor;

use super::font::Font;
use crate::plot::ink;
use crate::table::{Alignment, Table};

const SIZE: f32 = 8.0;
/// Smallest readable font size.
const SMALLEST: f32 = 5.5;
/// Padding on both sides of a cell, relative to the font size.
const PADDING: f32 = 0.6;
const LEADING: f32 = 1.25;
/// Maximum rows of a table that is never split.
const SHORT: usize = 16;
/// Minimum width of a text column, relative to the font size.
const NARROWEST: f32 = 8.0;

/// A table with its column widths.
#[derive(Debug)]
pub(super) struct PdfTable {
    /// Font size.
    pub(super) size: f32,
    pub(super) head: TableRow,
    pub(super) rows: Vec<TableRow>,
    /// Widths of columns, with their padding.
    widths: Vec<f32>,
    aligned: Vec<Alignment>,
}

/// Lines of the cells of a row.
#[derive(Debug)]
pub(super) struct TableRow {
    pub(super) font: Font,
    cells: Vec<Vec<String>>,
}

impl TableRow {
    pub(super) fn colour(&self) -> RGBColor {
        match self.font {
            Font::Plain => ink::INK,
            Font::Bold => ink::SOFT,
        }
    }
}

impl PdfTable {
    /// Lays out a table in `width`.
    pub(super) fn new(table: &Table, width: f32) -> Self {
        let aligned: Vec<_> = table.columns.iter().map(|column| column.align).collect();
        let head: Vec<Vec<String>> = table
            .columns
            .iter()
            .map(|column| {
                let lines =
                    [&column.name, &column.unit].into_iter().filter(|text| !text.is_empty());
                lines.cloned().collect()
            })
            .collect();
        let natural = |size: f32| -> Vec<f32> {
            let of = |at: usize| {
                let head = head[at].iter().map(|text| Font::Bold.width(text, size));
                let cells = table.rows.iter().map(|row| Font::Plain.width(&row[at], size));
                head.chain(cells).fold(0.0, f32::max) + 2.0 * PADDING * size
            };
            (0..aligned.len()).map(of).collect()
        };
        let mut size = SIZE;
        let mut widths = natural(size);
        narrow(&mut widths, &aligned, size, width);
        while widths.iter().sum::<f32>() > width && size > SMALLEST {
            size -= 0.5;
            widths = natural(size);
            narrow(&mut widths, &aligned, size, width);
        }
        let lines = |font: Font, at: usize, text: &str| {
            font.wrap(text, size, widths[at] - 2.0 * PADDING * size + 0.01)
        };
        let head = head
            .iter()
            .enumerate()
            .map(|(at, cell)| cell.iter().flat_map(|text| lines(Font::Bold, at, text)).collect());
        let head = TableRow { font: Font::Bold, cells: head.collect() };
        let row = |row: &Vec<String>| {
            let cells = row.iter().enumerate().map(|(at, text)| lines(Font::Plain, at, text));
            TableRow { font: Font::Plain, cells: cells.collect() }
        };
        let rows = table.rows.iter().map(row).collect();
        Self { size, head, rows, widths, aligned }
    }

    pub(super) fn width(&self) -> f32 {
        self.widths.iter().sum()
    }

    pub(super) fn height(&self, row: &TableRow) -> f32 {
        let lines = row.cells.iter().map(Vec::len).max().unwrap_or(0);
        if lines == 0 {
            return 0.0;
        }
        let lines = f32::from(u16::try_from(lines).unwrap_or(u16::MAX));
        (lines * LEADING + 0.5) * self.size
    }

    /// Height that has to fit on one page: all of a short table, the head and two rows of a long
    /// one.
    pub(super) fn beginning(&self) -> f32 {
        let together = if self.rows.len() <= SHORT { SHORT } else { 2 };
        let rows = self.rows.iter().take(together).map(|row| self.height(row));
        self.height(&self.head) + rows.sum::<f32>()
    }

    /// The lines of a row, each with its distance from the left and from the top to the baseline.
    pub(super) fn places<'a>(
        &'a self,
        row: &'a TableRow,
    ) -> impl Iterator<Item = (&'a str, f32, f32)> + 'a {
        let mut left = 0.0;
        let cells = row.cells.iter().enumerate().map(move |(at, lines)| {
            let from = left;
            left += self.widths[at];
            (at, from, lines)
        });
        let pad = PADDING * self.size;
        cells.flat_map(move |(at, from, lines)| {
            let mut down = 0.25 * self.size;
            lines.iter().map(move |text| {
                down += LEADING * self.size;
                let x = match self.aligned[at] {
                    Alignment::Left => from + pad,
                    Alignment::Right => {
                        from + self.widths[at] - pad - row.font.width(text, self.size)
                    }
                };
                (text.as_str(), x, down - 0.15 * self.size)
            })
        })
    }
}

/// Makes text columns narrower, the widest first, until all fit.
fn narrow(widths: &mut [f32], aligned: &[Alignment], size: f32, most: f32) {
    let too_much = widths.iter().sum::<f32>() - most;
    if too_much <= 0.0 {
        return;
    }
    let words = (0..widths.len()).filter(|at| aligned[*at] == Alignment::Left);
    let Some(widest) = words.max_by(|a, b| widths[*a].total_cmp(&widths[*b])) else { return };
    let least = NARROWEST * size;
    if widths[widest] > least {
        widths[widest] = (widths[widest] - too_much).max(least);
    }
}
