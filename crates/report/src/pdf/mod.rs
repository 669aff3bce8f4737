//! PDF reports: A4, selectable text, plots as vectors, an outline.
//!
//! ```text
//! heading, paragraph, table, picture --layout--> pages of operators --write--> bytes
//!                                       | pictures: canvas, for plotters
//!                                       | widths and encoding: font
//! ```
//!
//! The fonts are two of the fourteen that every PDF reader has, so none is embedded. Characters
//! outside of Windows' Latin encoding become question marks.

mod canvas;
mod font;
mod layout;
mod table;
#[cfg(test)]
pub(crate) mod tests;
mod write;

use crate::plot::Picture;
use crate::report_sink::ReportSink;
use crate::table::Table;

/// A document, filled from top to bottom.
#[derive(Debug, Clone)]
pub struct Pdf {
    title: String,
    blocks: Vec<Block>,
}

/// A block of the layout: a heading never ends a page, a picture is never cut.
#[derive(Debug, Clone)]
enum Block {
    Heading { level: u8, text: String },
    Paragraph { text: String, stands_out: bool },
    Table(Table),
    Picture { picture: Box<Picture>, caption: String },
    Lines(Vec<String>),
    Contents(Vec<(u8, String, String)>),
}

impl Pdf {
    /// An empty document. `mark` follows the title and names the origin of the figures.
    #[must_use]
    pub fn new(title: &str, mark: &str) -> Self {
        let title = if mark.is_empty() { title.to_owned() } else { format!("{title} ({mark})") };
        let heading = Block::Heading { level: 0, text: title.clone() };
        Self { title, blocks: vec![heading] }
    }

    /// The document as a PDF file.
    #[must_use]
    pub fn document(&self) -> Vec<u8> {
        write::document(&self.title, layout::pages(&self.title, &self.blocks))
    }
}

impl ReportSink for Pdf {
    fn heading(&mut self, level: u8, number: &str, text: &str) {
        let text = format!("{number} {text}");
        self.blocks.push(Block::Heading { level: level.max(1), text });
    }

    fn contents(&mut self, entries: &[(u8, String, String)]) {
        self.blocks.push(Block::Contents(entries.to_vec()));
    }

    fn preformatted(&mut self, text: &str) {
        self.blocks.push(Block::Lines(text.lines().map(str::to_owned).collect()));
    }

    fn paragraph(&mut self, text: &str, stands_out: bool) {
        self.blocks.push(Block::Paragraph { text: text.into(), stands_out });
    }

    fn table(&mut self, table: &Table) {
        self.blocks.push(Block::Table(table.clone()));
    }

    fn pictures(&mut self, pictures: &[Picture], captions: &[String]) {
        let both = pictures.iter().cloned().zip(captions.iter().cloned());
        self.blocks.extend(both.map(|(picture, caption)| {
            let picture = Box::new(picture);
            Block::Picture { picture, caption }
        }));
    }
}
