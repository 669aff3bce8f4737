//! Output medium of a report: a page for a browser, or a PDF.

use crate::html::HtmlPage;
use crate::plot::Picture;
use crate::table::Table;

/// Receives a report from top to bottom.
pub trait ReportSink {
    /// A heading with its number; `level` 1 is a chapter, 2 a section.
    fn heading(&mut self, level: u8, number: &str, text: &str);
    /// The contents: level, number and text of each heading.
    fn contents(&mut self, entries: &[(u8, String, String)]);
    /// Lines whose indentation means something.
    fn preformatted(&mut self, text: &str);
    /// A paragraph; an important one is highlighted.
    fn paragraph(&mut self, text: &str, stands_out: bool);
    /// A table.
    fn table(&mut self, table: &Table);
    /// Pictures that belong together, each with its caption.
    fn pictures(&mut self, pictures: &[Picture], captions: &[String]);
}

impl ReportSink for HtmlPage {
    fn heading(&mut self, level: u8, number: &str, text: &str) {
        self.numbered_heading(level, number, text);
    }

    fn contents(&mut self, entries: &[(u8, String, String)]) {
        self.numbered_contents(entries);
    }

    fn preformatted(&mut self, text: &str) {
        self.loops(text);
    }

    fn paragraph(&mut self, text: &str, stands_out: bool) {
        if stands_out {
            self.warning(text);
        } else {
            Self::paragraph(self, text);
        }
    }

    fn table(&mut self, table: &Table) {
        Self::table(self, table);
    }

    fn pictures(&mut self, pictures: &[Picture], captions: &[String]) {
        Self::pictures(self, pictures, captions);
    }
}
