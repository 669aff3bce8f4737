use super::*;
use crate::plot::{Axis, Plot, Series};
use crate::table::Column;

fn plot(title: &str) -> Picture {
    Picture::Plot(Plot {
        title: title.into(),
        note: "note".into(),
        x: Axis::new("round", ""),
        y: Axis::new("rate", "IOPS").from_zero(),
        series: vec![
            Series::new("4 KiB", vec![(1.0, 100.0), (2.0, 120.0)]),
            Series::new("x", vec![]),
        ],
    })
}

/// Returns the strings of a PDF in order, page by page, whose streams are not compressed.
pub(crate) fn texts(file: &[u8]) -> Vec<Vec<String>> {
    let file: String = file.iter().map(|byte| char::from(*byte)).collect();
    let pages =
        file.split("\nstream\n").skip(1).map(|rest| rest.split("endstream").next().unwrap());
    let shown = |page: &str| {
        let strings = page.lines().filter_map(|line| line.strip_prefix('(')?.strip_suffix(") Tj"));
        strings.map(|text| text.replace("\\(", "(").replace("\\)", ")")).collect()
    };
    pages.map(shown).collect()
}

#[test]
fn text_stands_in_the_file_as_text() {
    let mut pdf = Pdf::new("A drive", "measured");
    pdf.heading(1, "1", "Convergence");
    pdf.paragraph("All rounds.", false);
    pdf.pictures(&[plot("IOPS of all rounds")], &["Figure 1. Rounds.".into()]);
    let mut table = Table::new(vec![Column::words("mix"), Column::numbers("rate", "IOPS")]);
    table.push(vec!["0/100".into(), "12345".into()]);
    pdf.table(&table);
    let file = pdf.document();
    assert!(file.starts_with(b"%PDF-1."));
    let texts = texts(&file);
    assert_eq!(texts.len(), 1);
    for text in [
        "A drive (measured)",
        "1 Convergence",
        "All rounds.",
        "IOPS of all rounds",
        "rate (IOPS)",
        "4 KiB",
        "mix",
        "IOPS",
        "0/100",
        "12345",
        "page 1 of 1",
    ] {
        assert!(texts[0].iter().any(|shown| shown == text), "{text}: {texts:?}");
    }
}

#[test]
fn a_heading_stands_on_the_page_of_what_follows_it() {
    let mut pdf = Pdf::new("t", "");
    for number in 0..7 {
        pdf.heading(1, "1", &format!("chapter {number}"));
        pdf.heading(2, "1.1", &format!("section {number}"));
        pdf.paragraph(&format!("words {number}"), true);
        pdf.pictures(&[plot(&format!("picture {number}"))], &[format!("caption {number}")]);
    }
    let texts = texts(&pdf.document());
    assert!(texts.len() > 3, "{}", texts.len());
    for number in 0..7 {
        let page_of = |what: &str| {
            let text = format!("{what} {number}");
            texts.iter().position(|page| page.iter().any(|shown| shown.ends_with(&text))).unwrap()
        };
        let picture = page_of("picture");
        for what in ["chapter", "section", "words", "caption"] {
            assert_eq!(page_of(what), picture, "{what} {number}");
        }
    }
}

/// Eight pictures of about half a page: each fills the rest of a page, a little smaller, if it can.
#[test]
fn no_page_is_half_empty() {
    let mut pdf = Pdf::new("t", "");
    for number in 0..8 {
        pdf.paragraph(&format!("words {number}"), false);
        pdf.pictures(&[plot(&format!("picture {number}"))], &[String::new()]);
    }
    let pages = texts(&pdf.document());
    let pictures =
        |page: &Vec<String>| page.iter().filter(|text| text.starts_with("picture ")).count();
    let most = pages.iter().map(pictures).max().unwrap();
    let full = pages.iter().filter(|page| pictures(page) == most).count();
    assert!(
        most >= 2 && full + 1 >= pages.len(),
        "{:?}",
        pages.iter().map(pictures).collect::<Vec<_>>()
    );
}

#[test]
fn the_head_of_a_long_table_stands_on_each_of_its_pages() {
    let mut table = Table::new(vec![Column::words("what"), Column::numbers("n", "")]);
    for number in 0..200 {
        table.push(vec![format!("row {number}"), number.to_string()]);
    }
    let mut pdf = Pdf::new("t", "");
    pdf.table(&table);
    let texts = texts(&pdf.document());
    assert!(texts.len() >= 3);
    assert!(texts.iter().all(|page| page.iter().any(|text| text == "what")));
    let rows = texts.iter().flatten().filter(|text| text.starts_with("row ")).count();
    assert_eq!(rows, 200);
}

#[test]
fn a_wide_table_stays_on_the_page() {
    let mut columns = vec![Column::words("command line")];
    columns.extend((0..12).map(|n| Column::numbers(&format!("number {n}"), "MiB/s")));
    let mut table = Table::new(columns);
    let mut row = vec!["nvmeof-perf steady --device /dev/nvme0n1 ".repeat(8)];
    row.extend((0..12).map(|n| format!("{n}00000.5")));
    table.push(row);
    let rows = table::PdfTable::new(&table, layout::INNER);
    assert!(rows.width() <= layout::INNER + 0.5, "{}", rows.width());
    for (text, x, _) in rows.places(&rows.rows[0]) {
        assert!(
            x >= 0.0 && x + font::Font::Plain.width(text, rows.size) <= layout::INNER + 0.5,
            "{text}"
        );
    }
}

#[test]
fn an_empty_document_has_a_page() {
    assert_eq!(texts(&Pdf::new("t", "").document()).len(), 1);
}

/// Wherever on a page it begins: a picture is never cut off from its heading or its caption.
#[test]
fn a_heading_its_picture_and_its_caption_are_on_one_page() {
    for before in 0..60 {
        let mut pdf = Pdf::new("t", "");
        (0..before).for_each(|number| pdf.paragraph(&format!("words {number}"), false));
        pdf.heading(1, "1", "chapter");
        pdf.pictures(&[plot("picture")], &["long ".repeat(200) + "caption"]);
        let pages = texts(&pdf.document());
        let page_of = |what: &str| {
            pages.iter().position(|page| page.iter().any(|shown| shown.ends_with(what))).unwrap()
        };
        let picture = page_of("picture");
        assert_eq!((page_of("chapter"), page_of("caption")), (picture, picture), "{before}");
        assert_eq!(picture, pages.len() - 1, "no empty page: {before}");
    }
}
