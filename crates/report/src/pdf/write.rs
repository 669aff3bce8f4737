//! Writes pages as the bytes of a PDF file.

use pdf_writer::{Content, Name, Pdf, Rect, Ref, TextStr};

use super::layout::{Bookmark, HEIGHT, PdfPages, WIDTH};

/// Names of the two fonts in operators.
pub(super) const PLAIN_NAME: &[u8] = b"F0";
pub(super) const BOLD_NAME: &[u8] = b"F1";

const PRODUCER: &str = concat!("nvmeof-report ", env!("CARGO_PKG_VERSION"));

/// Allocates object numbers.
#[derive(Debug, Default)]
struct Numbers(i32);

impl Numbers {
    fn next(&mut self) -> Ref {
        self.0 += 1;
        Ref::new(self.0)
    }
}

/// The document as a PDF file.
pub(super) fn document(title: &str, pages: PdfPages) -> Vec<u8> {
    let mut numbers = Numbers::default();
    let [catalog, tree, outline, info, plain, bold] = [(); 6].map(|()| numbers.next());
    let mut pdf = Pdf::new();
    pdf.catalog(catalog).pages(tree).outlines(outline);
    pdf.document_info(info).title(TextStr(title)).producer(TextStr(PRODUCER));
    for (id, base) in [(plain, &b"Helvetica"[..]), (bold, b"Helvetica-Bold")] {
        let mut font = pdf.type1_font(id);
        font.base_font(Name(base)).encoding_predefined(Name(b"WinAnsiEncoding"));
    }
    let mut kids = Vec::new();
    for content in pages.contents {
        kids.push(page(&mut pdf, &mut numbers, tree, [plain, bold], content));
    }
    let count = i32::try_from(kids.len()).unwrap_or(i32::MAX);
    pdf.pages(tree).kids(kids.iter().copied()).count(count);
    write_outline(&mut pdf, &mut numbers, outline, &pages.bookmarks, &kids);
    pdf.finish()
}

fn page(pdf: &mut Pdf, numbers: &mut Numbers, tree: Ref, fonts: [Ref; 2], content: Content) -> Ref {
    let [id, stream] = [(); 2].map(|()| numbers.next());
    let mut page = pdf.page(id);
    page.media_box(Rect::new(0.0, 0.0, WIDTH, HEIGHT)).parent(tree).contents(stream);
    let names = [Name(PLAIN_NAME), Name(BOLD_NAME)];
    page.resources().fonts().pairs(names.into_iter().zip(fonts));
    drop(page);
    pdf.stream(stream, &content.finish());
    id
}

/// Writes headings as a tree of two levels: a section belongs to the chapter before it.
fn write_outline(
    pdf: &mut Pdf,
    numbers: &mut Numbers,
    root: Ref,
    bookmarks: &[Bookmark],
    pages: &[Ref],
) {
    let bookmarks: Vec<(Ref, &Bookmark)> =
        bookmarks.iter().map(|bookmark| (numbers.next(), bookmark)).collect();
    let mut chapters: Vec<(usize, Vec<usize>)> = Vec::new();
    for (index, (_, bookmark)) in bookmarks.iter().enumerate() {
        match chapters.last_mut() {
            Some((_, sections)) if bookmark.level > 1 => sections.push(index),
            _ => chapters.push((index, Vec::new())),
        }
    }
    let firsts: Vec<usize> = chapters.iter().map(|(chapter, _)| *chapter).collect();
    let mut top = pdf.outline(root);
    if let (Some(first), Some(last)) = (firsts.first(), firsts.last()) {
        top.first(bookmarks[*first].0).last(bookmarks[*last].0);
        top.count(i32::try_from(firsts.len()).unwrap_or(i32::MAX));
    }
    drop(top);
    for (at, (chapter, sections)) in chapters.iter().enumerate() {
        item(pdf, root, &bookmarks, &firsts, at, sections, pages);
        for at in 0..sections.len() {
            item(pdf, bookmarks[*chapter].0, &bookmarks, sections, at, &[], pages);
        }
    }
}

/// Writes entry number `at` of `level`, with the child entries `below`.
fn item(
    pdf: &mut Pdf,
    parent: Ref,
    bookmarks: &[(Ref, &Bookmark)],
    level: &[usize],
    at: usize,
    below: &[usize],
    pages: &[Ref],
) {
    let (id, bookmark) = bookmarks[level[at]];
    let mut item = pdf.outline_item(id);
    item.title(TextStr(&bookmark.text)).parent(parent);
    if at > 0 {
        item.prev(bookmarks[level[at - 1]].0);
    }
    if let Some(next) = level.get(at + 1) {
        item.next(bookmarks[*next].0);
    }
    if let (Some(first), Some(last)) = (below.first(), below.last()) {
        item.first(bookmarks[*first].0).last(bookmarks[*last].0);
        // Collapsed.
        item.count(-i32::try_from(below.len()).unwrap_or(i32::MAX));
    }
    if let Some(page) = pages.get(bookmark.page) {
        item.dest().page(*page).xyz(0.0, bookmark.top, None);
    }
}
