//! Layout of blocks on pages.

use pdf_writer::{Content, Name, Str};
use plotters::drawing::IntoDrawingArea as _;

use super::Block;
use super::canvas::Canvas;
use super::font::{Font, encode};
use super::table::{PdfTable, TableRow};
use super::write::{BOLD_NAME, PLAIN_NAME};
use crate::plot::Picture;
use crate::plot::ink::{self, flat};

/// Width of A4 in points.
pub(super) const WIDTH: f32 = 595.28;
pub(super) const HEIGHT: f32 = 841.89;
const MARGIN: f32 = 42.0;
const TOP: f32 = HEIGHT - 46.0;
const BOTTOM: f32 = 52.0;
/// Width between the margins.
pub(super) const INNER: f32 = WIDTH - 2.0 * MARGIN;
const TEXT: f32 = 9.5;
const LEADING: f32 = 13.0;
const FOOT: f32 = 8.0;
/// A picture is drawn smaller, down to this scale, where it fills the rest of a page.
const SHRUNK: f32 = 0.6;
/// Maximum height of a picture that is as wide as the page.
const PICTURE_MOST: f32 = TOP - BOTTOM - 60.0;

/// Pages as operators, and the positions of their headings.
pub(super) struct PdfPages {
    pub(super) contents: Vec<Content>,
    pub(super) bookmarks: Vec<Bookmark>,
}

/// A heading on a page.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Bookmark {
    pub(super) level: u8,
    pub(super) text: String,
    /// Index of the page, from 0.
    pub(super) page: usize,
    /// Points from the bottom of the page.
    pub(super) top: f32,
}

/// Lays blocks out, once without page numbers in the contents and once with them.
pub(super) fn pages(title: &str, blocks: &[Block]) -> PdfPages {
    let bookmarks = lay_out(title, blocks, &[]).bookmarks;
    lay_out(title, blocks, &bookmarks)
}

/// Lays blocks out; `known` are the headings with their pages, if those are known.
fn lay_out(title: &str, blocks: &[Block], known: &[Bookmark]) -> PdfPages {
    let mut layout = PageLayout { contents: vec![Content::new()], bookmarks: Vec::new(), y: TOP };
    for (index, block) in blocks.iter().enumerate() {
        match block {
            Block::Heading { level, text } => {
                layout.heading(*level, text, beginning(&blocks[index + 1..]));
            }
            Block::Paragraph { text, stands_out } => layout.paragraph(text, *stands_out),
            Block::Table(table) => layout.table(&PdfTable::new(table, INNER)),
            Block::Picture { picture, caption } => layout.picture(picture, caption),
            Block::Lines(lines) => layout.lines(lines),
            Block::Contents(entries) => layout.contents_list(entries, known),
        }
    }
    layout.feet(title);
    PdfPages { contents: layout.contents, bookmarks: layout.bookmarks }
}

/// Height that has to be on the same page as a heading before it.
fn beginning(rest: &[Block]) -> f32 {
    match rest.first() {
        None => 0.0,
        Some(Block::Heading { level, .. }) => heading_height(*level) + beginning(&rest[1..]),
        // A short paragraph belongs to the block that follows it.
        Some(Block::Paragraph { text, .. }) => {
            let lines = Font::Plain.wrap(text, TEXT, INNER - 12.0).len();
            let own = paragraph_height(lines);
            if lines <= 4 { own + beginning(&rest[1..]) } else { own }
        }
        Some(Block::Table(table)) => PdfTable::new(table, INNER).beginning(),
        Some(Block::Picture { picture, caption }) => {
            let caption = Font::Plain.wrap(caption, FOOT, INNER).len();
            SHRUNK * scaled(picture).1 + caption_height(caption)
        }
        Some(Block::Lines(lines)) => lines_height(indented(lines).len()),
        Some(Block::Contents(_)) => 0.0,
    }
}

fn heading_size(level: u8) -> f32 {
    match level {
        0 => 18.0,
        1 => 14.0,
        _ => 11.0,
    }
}

fn heading_height(level: u8) -> f32 {
    heading_size(level) * 2.1
}

fn paragraph_height(lines: usize) -> f32 {
    f32::from(u16::try_from(lines).unwrap_or(u16::MAX)) * LEADING + 5.0
}

fn lines_height(lines: usize) -> f32 {
    f32::from(u16::try_from(lines).unwrap_or(u16::MAX)) * LEADING + 8.0
}

/// Height of a caption, with the space below it.
fn caption_height(lines: usize) -> f32 {
    f32::from(u16::try_from(lines).unwrap_or(u16::MAX)) * FOOT * 1.3 + 8.0
}

/// Lines as they are printed, each with its distance from the margin; the parts of a long line are
/// indented further.
fn indented(lines: &[String]) -> Vec<(f32, String)> {
    let parts = |line: &String| {
        let text = line.trim_start();
        let depth = u16::try_from(line.len() - text.len()).unwrap_or(0);
        let indent = 6.0 + 4.0 * f32::from(depth);
        let parts = Font::Plain.wrap(text, TEXT, INNER - indent - 12.0).into_iter().enumerate();
        let parts = parts.map(move |(part, text)| (indent + 12.0 * f32::from(part > 0), text));
        parts.collect::<Vec<_>>()
    };
    lines.iter().flat_map(parts).collect()
}

/// Points per pixel of a picture, and its height in points.
fn scaled(picture: &Picture) -> (f32, f32) {
    let (wide, high) = picture.size();
    #[expect(clippy::cast_precision_loss, reason = "pixels of a picture are few")]
    let (wide, high) = (wide.max(1) as f32, high as f32);
    let scale = (INNER / wide).min(PICTURE_MOST / high.max(1.0));
    (scale, high * scale)
}

struct PageLayout {
    contents: Vec<Content>,
    bookmarks: Vec<Bookmark>,
    /// Upper end of the free space, in points from the bottom.
    y: f32,
}

impl PageLayout {
    fn content(&mut self) -> &mut Content {
        let last = self.contents.len() - 1;
        &mut self.contents[last]
    }

    /// Starts another page, unless the current one has `height` left or is empty.
    fn room_for(&mut self, height: f32) {
        if self.y - height < BOTTOM && self.y < TOP {
            self.contents.push(Content::new());
            self.y = TOP;
        }
    }

    fn heading(&mut self, level: u8, text: &str, next: f32) {
        let size = heading_size(level);
        let lines = Font::Bold.wrap(text, size, INNER);
        let more = f32::from(u16::try_from(lines.len() - 1).unwrap_or(0)) * size * 1.25;
        // The following block may exceed a page.
        self.room_for((heading_height(level) + more + next).min(TOP - BOTTOM));
        let bookmark =
            Bookmark { level, text: text.into(), page: self.contents.len() - 1, top: self.y + 4.0 };
        self.bookmarks.push(bookmark);
        if self.y < TOP {
            self.y -= size * 0.6;
        }
        for line in &lines {
            self.y -= size * 1.25;
            let y = self.y;
            text_at(self.content(), Font::Bold, size, (MARGIN, y), line, ink::INK);
        }
        self.y -= size * 0.45;
    }

    fn paragraph(&mut self, text: &str, stands_out: bool) {
        let indent = if stands_out { 12.0 } else { 0.0 };
        let lines = Font::Plain.wrap(text, TEXT, INNER - indent);
        for line in &lines {
            self.room_for(LEADING);
            self.y -= LEADING;
            let y = self.y;
            if stands_out {
                let [red, green, blue] = flat((7, 0, 1)).rgb;
                let content = self.content();
                content.set_fill_rgb(red, green, blue);
                content.rect(MARGIN, y - 3.5, 3.0, LEADING).fill_nonzero();
            }
            let at = (MARGIN + indent, y);
            text_at(self.content(), Font::Plain, TEXT, at, line, ink::INK);
        }
        self.y -= 5.0;
    }

    fn table(&mut self, rows: &PdfTable) {
        self.room_for(rows.beginning());
        self.row(rows, &rows.head);
        for row in &rows.rows {
            if self.y - rows.height(row) < BOTTOM {
                self.room_for(f32::INFINITY);
                self.row(rows, &rows.head);
            }
            self.row(rows, row);
        }
        self.y -= 10.0;
    }

    fn row(&mut self, rows: &PdfTable, row: &TableRow) {
        let (top, height) = (self.y, rows.height(row));
        for (text, x, down) in rows.places(row) {
            let at = (MARGIN + x, top - down);
            text_at(self.content(), row.font, rows.size, at, text, row.colour());
        }
        self.y -= height;
        let (y, width) = (self.y, rows.width());
        let [red, green, blue] = shade(ink::GRID);
        let content = self.content();
        content.set_stroke_rgb(red, green, blue);
        content.set_line_width(0.5).set_dash_pattern([], 0.0);
        content.move_to(MARGIN, y).line_to(MARGIN + width, y).stroke();
    }

    fn lines(&mut self, lines: &[String]) {
        let lines = indented(lines);
        self.room_for(lines_height(lines.len()).min(TOP - BOTTOM));
        for (indent, text) in &lines {
            self.room_for(LEADING);
            self.y -= LEADING;
            let at = (MARGIN + indent, self.y);
            text_at(self.content(), Font::Plain, TEXT, at, text, ink::INK);
        }
        self.y -= 8.0;
    }

    /// Numbers and texts of headings, with their pages at the right.
    fn contents_list(&mut self, entries: &[(u8, String, String)], known: &[Bookmark]) {
        for (level, number, text) in entries {
            let text = format!("{number} {text}");
            let page = known.iter().find(|mark| mark.level == *level && mark.text == text);
            let page = page.map_or_else(String::new, |mark| (mark.page + 1).to_string());
            let (font, indent) = match level {
                0 | 1 => (Font::Bold, 0.0),
                _ => (Font::Plain, 14.0),
            };
            self.room_for(LEADING);
            self.y -= LEADING;
            let (y, right) = (self.y, WIDTH - MARGIN - Font::Plain.width(&page, TEXT));
            text_at(self.content(), font, TEXT, (MARGIN + indent, y), &text, ink::INK);
            text_at(self.content(), Font::Plain, TEXT, (right, y), &page, ink::SOFT);
        }
        self.y -= 8.0;
    }

    fn picture(&mut self, picture: &Picture, caption: &str) {
        let (mut scale, mut height) = scaled(picture);
        let caption = Font::Plain.wrap(caption, FOOT, INNER);
        let below = caption_height(caption.len());
        let rest = (self.y - BOTTOM - below) / height;
        if (SHRUNK..1.0).contains(&rest) {
            // It fills the page exactly: to ask for room may fail by a rounding.
            (scale, height) = (scale * rest, height * rest);
        } else {
            self.room_for(height + below);
        }
        let corner = (MARGIN, self.y);
        let canvas = Canvas { content: self.content(), corner, scale, size: picture.size() };
        let area = canvas.into_drawing_area();
        let outcome = picture.draw(&area);
        // Memory accepts everything that is drawn into it.
        debug_assert!(outcome.is_ok(), "{outcome:?}");
        drop(area);
        self.y -= height;
        for line in &caption {
            self.y -= FOOT * 1.3;
            let y = self.y;
            text_at(self.content(), Font::Plain, FOOT, (MARGIN, y), line, ink::SOFT);
        }
        self.y -= 8.0;
    }

    /// Writes the title and the number on each page.
    fn feet(&mut self, title: &str) {
        let count = self.contents.len();
        let title = Font::Plain.wrap(title, FOOT, INNER - 80.0);
        let title = title.first().cloned().unwrap_or_default();
        for (index, content) in self.contents.iter_mut().enumerate() {
            let number = format!("page {} of {count}", index + 1);
            let right = WIDTH - MARGIN - Font::Plain.width(&number, FOOT);
            text_at(content, Font::Plain, FOOT, (MARGIN, 28.0), &title, ink::SOFT);
            text_at(content, Font::Plain, FOOT, (right, 28.0), &number, ink::SOFT);
        }
    }
}

fn shade(colour: plotters::style::RGBColor) -> [f32; 3] {
    flat((colour.0, colour.1, colour.2)).rgb
}

fn text_at(
    content: &mut Content,
    font: Font,
    size: f32,
    at: (f32, f32),
    text: &str,
    colour: plotters::style::RGBColor,
) {
    if text.is_empty() {
        return;
    }
    let [red, green, blue] = shade(colour);
    let name = match font {
        Font::Plain => PLAIN_NAME,
        Font::Bold => BOLD_NAME,
    };
    content.set_fill_rgb(red, green, blue);
    content.begin_text().set_font(Name(name), size).next_line(at.0, at.1);
    content.show(Str(&encode(text))).end_text();
}
