//! Numbers chapters, sections and figures, and lists the contents.

use crate::plot::Picture;
use crate::report_sink::ReportSink;
use crate::table::Table;

/// A numbered heading: level, number and text.
pub(super) type Entry = (u8, String, String);

/// A sink that numbers what passes through it.
pub(super) struct NumberedSink<'s> {
    sink: Option<&'s mut dyn ReportSink>,
    chapter: usize,
    section: usize,
    figure: usize,
    pub(super) entries: Vec<Entry>,
}

impl<'s> NumberedSink<'s> {
    /// Passes everything on.
    pub(super) fn new(sink: &'s mut dyn ReportSink) -> Self {
        Self { sink: Some(sink), ..Self::silent() }
    }

    /// Only collects headings.
    pub(super) fn silent() -> Self {
        Self { sink: None, chapter: 0, section: 0, figure: 0, entries: Vec::new() }
    }

    pub(super) fn heading(&mut self, level: u8, text: &str) {
        let number = if level <= 1 {
            (self.chapter, self.section) = (self.chapter + 1, 0);
            self.chapter.to_string()
        } else {
            self.section += 1;
            format!("{}.{}", self.chapter, self.section)
        };
        if let Some(sink) = &mut self.sink {
            sink.heading(level, &number, text);
        }
        self.entries.push((level, number, text.to_owned()));
    }

    pub(super) fn contents(&mut self, entries: &[Entry]) {
        if let Some(sink) = &mut self.sink {
            sink.contents(entries);
        }
    }

    pub(super) fn paragraph(&mut self, text: &str, stands_out: bool) {
        if let Some(sink) = &mut self.sink {
            sink.paragraph(text, stands_out);
        }
    }

    pub(super) fn preformatted(&mut self, text: &str) {
        if let Some(sink) = &mut self.sink {
            sink.preformatted(text);
        }
    }

    pub(super) fn table(&mut self, table: &Table) {
        if let Some(sink) = &mut self.sink {
            sink.table(table);
        }
    }

    /// Pictures, each with a caption that explains what to see in it.
    pub(super) fn pictures(&mut self, pictures: &[Picture], meaning: &str) {
        let captions = pictures.iter().map(|picture| {
            self.figure += 1;
            format!("Figure {}. {}. {meaning}", self.figure, picture.title())
        });
        let captions: Vec<String> = captions.collect();
        if let Some(sink) = &mut self.sink {
            sink.pictures(pictures, &captions);
        }
    }
}
