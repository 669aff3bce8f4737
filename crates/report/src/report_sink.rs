//! Output medium of a report: a page for a browser, or a PDF.

use crate::html::HtmlPage;
use crate::plot::Picture;
use crate::table::Table;

/// Receives a report from top to bottom.
pub trait ReportSink {
    /// A heading; `level` 1 is a chapter, 2 a section.
    fn heading(&mut self, level: u8, text: &str);
    /// A paragraph; an important one is highlighted.
    fn paragraph(&mut self, text: &str, stands_out: bool);
    /// A table.
    fn table(&mut self, table: &Table);
    /// Pictures that belong together.
    fn pictures(&mut self, pictures: &[Picture]);
}

impl ReportSink for HtmlPage {
    fn heading(&mut self, level: u8, text: &str) {
        if level <= 1 {
            Self::heading(self, text);
        } else {
            self.subheading(text);
        }
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

    fn pictures(&mut self, pictures: &[Picture]) {
        Self::pictures(self, pictures);
    }
}
