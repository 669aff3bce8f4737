//! Tables for a terminal, as Markdown and as HTML. The head has the units; numbers align to the
//! right.

use std::fmt::Write as _;

use crate::html::escape;

/// Length from which a text cell is broken into lines on a page.
const LONG: usize = 40;

/// Alignment of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Alignment {
    /// Left, for text.
    Left,
    /// Right, for numbers.
    Right,
}

/// The head of a column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// Name of the column.
    pub name: String,
    /// The unit of its numbers; empty if they have none.
    pub unit: String,
    /// Alignment of the column.
    pub align: Alignment,
}

impl Column {
    /// A column of text.
    #[must_use]
    pub fn words(name: &str) -> Self {
        Self { name: name.into(), unit: String::new(), align: Alignment::Left }
    }

    /// A column of numbers.
    #[must_use]
    pub fn numbers(name: &str, unit: &str) -> Self {
        Self { name: name.into(), unit: unit.into(), align: Alignment::Right }
    }

    fn head(&self) -> String {
        if self.unit.is_empty() {
            self.name.clone()
        } else {
            format!("{} {}", self.name, self.unit)
        }
    }
}

/// A table of text.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Table {
    pub(crate) columns: Vec<Column>,
    pub(crate) rows: Vec<Vec<String>>,
}

impl Table {
    /// An empty table.
    #[must_use]
    pub fn new(columns: Vec<Column>) -> Self {
        Self { columns, rows: Vec::new() }
    }

    /// Adds a row; missing cells at its end are empty, excess cells are dropped.
    pub fn push(&mut self, mut row: Vec<String>) {
        row.resize(self.columns.len(), String::new());
        self.rows.push(row);
    }

    /// Number of rows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Returns true if there is no row.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Markdown, padded for reading in a terminal.
    #[must_use]
    pub fn markdown(&self) -> String {
        let cell = |text: &str| text.replace('|', "\\|").replace('\n', " ");
        let heads: Vec<_> = self.columns.iter().map(|column| cell(&column.head())).collect();
        let rows: Vec<Vec<_>> =
            self.rows.iter().map(|row| row.iter().map(|text| cell(text)).collect()).collect();
        let widths: Vec<_> = (0..self.columns.len())
            .map(|at| {
                let cells = rows.iter().map(|row| row[at].chars().count());
                cells.chain([heads[at].chars().count(), 3]).max().unwrap_or(3)
            })
            .collect();
        let line = |cells: &[String]| {
            let padded =
                cells.iter().zip(&widths).zip(&self.columns).map(|((cell, &width), column)| {
                    match column.align {
                        Alignment::Left => format!("{cell:<width$}"),
                        Alignment::Right => format!("{cell:>width$}"),
                    }
                });
            format!("| {} |\n", padded.collect::<Vec<_>>().join(" | "))
        };
        let mut text = line(&heads);
        for (column, width) in self.columns.iter().zip(&widths) {
            let dashes = "-".repeat(width + 1);
            let rule = match column.align {
                Alignment::Left => format!("|-{dashes}"),
                Alignment::Right => format!("|{dashes}:"),
            };
            text.push_str(&rule);
        }
        text.push_str("|\n");
        for row in &rows {
            text.push_str(&line(row));
        }
        text
    }

    /// Plain text in columns with two spaces in between: for a terminal, and for `awk`.
    #[must_use]
    pub fn text(&self) -> String {
        let cell = |text: &str| text.replace(char::is_control, " ");
        let heads = self.columns.iter().map(|column| cell(&column.head())).collect();
        let rows = self.rows.iter().map(|row| row.iter().map(|text| cell(text)).collect());
        let lines: Vec<Vec<String>> = std::iter::once(heads).chain(rows).collect();
        let width = |at: usize| lines.iter().map(|line| line[at].chars().count()).max();
        let widths: Vec<_> = (0..self.columns.len()).map(|at| width(at).unwrap_or(0)).collect();
        let mut text = String::new();
        for line in &lines {
            let padded = line.iter().zip(&widths).zip(&self.columns);
            let padded = padded.map(|((cell, &width), column)| match column.align {
                Alignment::Left => format!("{cell:<width$}"),
                Alignment::Right => format!("{cell:>width$}"),
            });
            text.push_str(padded.collect::<Vec<_>>().join("  ").trim_end());
            text.push('\n');
        }
        text
    }

    /// An HTML `<table>`.
    #[must_use]
    pub fn html(&self) -> String {
        let class = |column: &Column| match column.align {
            Alignment::Left => "",
            Alignment::Right => " class=\"n\"",
        };
        let mut text = String::from("<table>\n<thead><tr>");
        for column in &self.columns {
            let _ = write!(text, "<th scope=\"col\"{}>{}", class(column), escape(&column.name));
            if !column.unit.is_empty() {
                let _ = write!(text, "<span class=\"u\">{}</span>", escape(&column.unit));
            }
            text.push_str("</th>");
        }
        text.push_str("</tr></thead>\n<tbody>\n");
        for row in &self.rows {
            text.push_str("<tr>");
            for (cell, column) in row.iter().zip(&self.columns) {
                let is_long = column.align == Alignment::Left && cell.chars().count() > LONG;
                let class = if is_long { " class=\"l\"" } else { class(column) };
                let _ = write!(text, "<td{class}>{}</td>", escape(cell));
            }
            text.push_str("</tr>\n");
        }
        text.push_str("</tbody>\n</table>\n");
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_text_is_in_columns() {
        let wanted = "policy  bandwidth Gb/s\nnone             142.4\na|b\n";
        assert_eq!(table().text(), wanted);
        let mut table = Table::new(vec![Column::words("a")]);
        table.push(vec!["x\n\u{1b}[2J".into()]);
        assert_eq!(table.text(), "a\nx  [2J\n");
    }

    fn table() -> Table {
        let mut table =
            Table::new(vec![Column::words("policy"), Column::numbers("bandwidth", "Gb/s")]);
        table.push(vec!["none".into(), "142.4".into()]);
        table.push(vec!["a|b".into()]);
        table
    }

    #[test]
    fn numbers_stand_to_the_right_under_their_unit() {
        assert_eq!(
            table().markdown(),
            "| policy | bandwidth Gb/s |\n\
             |--------|---------------:|\n\
             | none   |          142.4 |\n\
             | a\\|b   |                |\n"
        );
    }

    #[test]
    fn long_words_are_broken_into_lines_and_numbers_are_not() {
        let mut table = table();
        table.push(vec!["why ".repeat(20), "9".repeat(70)]);
        let html = table.html();
        assert_eq!(html.matches("<td class=\"l\">").count(), 1);
        assert!(html.contains("<td class=\"n\">999"), "{html}");
    }

    #[test]
    fn html_has_every_cell_and_no_markup_from_outside() {
        let mut table = table();
        table.push(vec!["<script>".into(), "1".into()]);
        let html = table.html();
        assert_eq!(html.matches("<td").count(), 6);
        assert_eq!(html.matches("<th ").count(), 2);
        assert!(html.contains("<td>&lt;script&gt;</td>"), "{html}");
        assert!(html.contains("<span class=\"u\">Gb/s</span>"), "{html}");
        assert_eq!((table.len(), table.is_empty()), (3, false));
    }
}
