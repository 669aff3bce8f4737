//! Self-contained pages that open from disk and follow the reader's light or dark scheme.

use std::fmt::Write as _;

use crate::plot::{Picture, Plot, STYLE};
use crate::point::Condition;
use crate::table::Table;

/// Styles of the page around the plots.
const PAGE_STYLE: &str = "\
body{background:var(--ground);color:var(--ink);font:15px/1.5 system-ui,sans-serif;margin:0 auto;\
max-width:1280px;overflow-wrap:break-word;padding:24px}
h1{font-size:24px;margin:0}h2{font-size:18px;margin:32px 0 8px}h3{font-size:15px;margin:20px 0 6px}p{margin:6px 0;max-width:90ch}
.note{color:var(--soft)}
.warning{border-left:4px solid var(--s1);padding:4px 12px}
.mark-where{border:1px solid var(--soft);border-radius:4px;font-size:13px;padding:1px 8px;\
vertical-align:middle;margin-left:8px}
.scroll,pre{overflow-x:auto}
pre{font-size:13px;line-height:1.35}
table{border-collapse:collapse;font-size:13px;font-variant-numeric:tabular-nums;margin:8px 0}
th,td{border-bottom:1px solid var(--grid);padding:3px 6px;text-align:left;white-space:nowrap}
th.n,td.n{text-align:right}td.l{white-space:normal;min-width:30ch}th{vertical-align:bottom;white-space:normal}
.u{color:var(--soft);display:block;font-weight:normal}
.plots{display:grid;gap:16px;grid-template-columns:repeat(auto-fill,minmax(min(100%,520px),1fr))}
.plots svg{height:auto;max-width:100%}
.block{display:grid;gap:2px 16px;grid-template-columns:minmax(80px,max-content) minmax(0,1fr);margin:12px 0}
.block dt,.soft{color:var(--soft)}.block dd{margin:0}
.contents{margin:8px 0;padding-left:20px}.contents li{margin:4px 0}a{color:var(--s0)}
summary{cursor:pointer;margin:16px 0 4px}
figure{margin:0}figcaption{color:var(--soft);font-size:13px;padding:0 14px}
nav{columns:2 320px}nav h2{column-span:all}nav a{color:var(--ink)}.c.sub{padding-left:24px}
pre.loops{white-space:pre-wrap}
@media (max-width:600px){body{padding:12px}td{white-space:normal}td.n{white-space:nowrap}td.l{min-width:16ch}
tr:has(.n) td.l{min-width:30ch}}
";

/// A page, filled from top to bottom.
#[derive(Debug, Clone)]
pub struct HtmlPage {
    title: String,
    body: String,
}

impl HtmlPage {
    /// An empty page. `mark` follows the title and names the origin of the figures.
    #[must_use]
    pub fn new(title: &str, mark: &str) -> Self {
        let mut body = format!("<h1>{}", escape(title));
        if !mark.is_empty() {
            let _ = write!(body, "<span class=\"mark-where\">{}</span>", escape(mark));
        }
        body.push_str("</h1>\n");
        let title = if mark.is_empty() { title.to_owned() } else { format!("{title} ({mark})") };
        Self { title, body }
    }

    /// A heading.
    pub fn heading(&mut self, text: &str) {
        let _ = writeln!(self.body, "<h2>{}</h2>", escape(text));
    }

    /// A heading that links of the page lead to.
    pub fn section(&mut self, id: &str, text: &str) {
        let _ = writeln!(self.body, "<h2 id=\"{}\">{}</h2>", escape(id), escape(text));
    }

    /// A table of contents: for each section its ID, its title, and a sentence about it.
    pub fn contents(&mut self, sections: &[(String, String, String)]) {
        self.body.push_str("<ul class=\"contents\">\n");
        for (id, title, about) in sections {
            let (id, title, about) = (escape(id), escape(title), escape(about));
            let _ = writeln!(
                self.body,
                "<li><a href=\"#{id}\">{title}</a> <span class=\"soft\">{about}</span></li>"
            );
        }
        self.body.push_str("</ul>\n");
    }

    /// Names with their values.
    pub fn block(&mut self, parts: &[Condition]) {
        self.body.push_str("<dl class=\"block\">\n");
        for Condition { name, value } in parts {
            let _ = writeln!(self.body, "<dt>{}</dt><dd>{}</dd>", escape(name), escape(value));
        }
        self.body.push_str("</dl>\n");
    }

    /// A heading below [`HtmlPage::heading`].
    pub fn subheading(&mut self, text: &str) {
        let _ = writeln!(self.body, "<h3>{}</h3>", escape(text));
    }

    /// A highlighted paragraph.
    pub fn warning(&mut self, text: &str) {
        let _ = writeln!(self.body, "<p class=\"warning\">{}</p>", escape(text));
    }

    /// A paragraph.
    pub fn paragraph(&mut self, text: &str) {
        let _ = writeln!(self.body, "<p class=\"note\">{}</p>", escape(text));
    }

    /// Text with its own line breaks and indentation; lines that are too long are broken.
    pub fn loops(&mut self, text: &str) {
        let _ = writeln!(self.body, "<pre class=\"loops\">{}</pre>", escape(text));
    }

    /// Text with its own line breaks and columns, in a box that scrolls if it is too wide.
    pub fn preformatted(&mut self, text: &str) {
        let _ = writeln!(self.body, "<pre>{}</pre>", escape(text));
    }

    /// A table, in a box that scrolls if it is too wide.
    pub fn table(&mut self, table: &Table) {
        let _ = writeln!(self.body, "<div class=\"scroll\">\n{}</div>", table.html());
    }

    /// A table that opens on a click on its title.
    pub fn folded_table(&mut self, title: &str, table: &Table) {
        let _ = writeln!(
            self.body,
            "<details><summary>{}</summary>\n<div class=\"scroll\">\n{}</div></details>",
            escape(title),
            table.html()
        );
    }

    /// Plots next to each other.
    pub fn plots(&mut self, plots: &[Plot]) {
        self.body.push_str("<div class=\"plots\">\n");
        for plot in plots {
            self.body.push_str(&plot.svg());
        }
        self.body.push_str("</div>\n");
    }

    /// Pictures of any kind with captions, next to each other.
    pub fn pictures(&mut self, pictures: &[Picture], captions: &[String]) {
        self.body.push_str("<div class=\"plots\">\n");
        for (picture, caption) in pictures.iter().zip(captions) {
            let (svg, caption) = (picture.svg(), escape(caption));
            let _ =
                writeln!(self.body, "<figure>\n{svg}<figcaption>{caption}</figcaption></figure>");
        }
        self.body.push_str("</div>\n");
    }

    /// A heading with its number, which is also the name of its place.
    pub fn numbered_heading(&mut self, level: u8, number: &str, text: &str) {
        let (tag, number) = (if level <= 1 { "h2" } else { "h3" }, escape(number));
        let _ = writeln!(self.body, "<{tag} id=\"s{number}\">{number} {}</{tag}>", escape(text));
    }

    /// The contents, with links to [numbered headings](Self::numbered_heading).
    pub fn numbered_contents(&mut self, entries: &[(u8, String, String)]) {
        self.body.push_str("<nav>\n<h2>Contents</h2>\n");
        for (level, number, text) in entries {
            let (class, number) = (if *level <= 1 { "c" } else { "c sub" }, escape(number));
            let _ = writeln!(
                self.body,
                "<div class=\"{class}\"><a href=\"#s{number}\">{number} {}</a></div>",
                escape(text)
            );
        }
        self.body.push_str("</nav>\n");
    }

    /// Data for programs: JSON in an invisible element.
    pub fn data(&mut self, id: &str, json: &str) {
        // `<` occurs only inside a JSON string, where `\u003c` means the same.
        let json = json.replace('<', "\\u003c");
        let _ = writeln!(
            self.body,
            "<script type=\"application/json\" id=\"{}\">{json}</script>",
            escape(id)
        );
    }

    /// The document.
    #[must_use]
    pub fn document(&self) -> String {
        format!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n\
             <link rel=\"icon\" href=\"data:,\">\n\
             <title>{}</title>\n<style>\n{STYLE}{PAGE_STYLE}</style>\n</head>\n<body>\n{}</body>\n\
             </html>\n",
            escape(&self.title),
            self.body
        )
    }
}

/// Escapes text for an element or a quoted attribute.
pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::Column;

    #[test]
    fn text_from_outside_is_text() {
        let mut page = HtmlPage::new("a <b>", "simulated");
        page.heading("<h>");
        page.paragraph("\"x\" & <y>");
        page.data("results", "{\"name\":\"</script><b>\"}");
        page.section("<i>", "<h>");
        page.contents(&[("<i>".into(), "<j>".into(), "<k>".into())]);
        page.block(&[Condition::new("<l>", "<m>")]);
        let mut table = Table::new(vec![Column::words("<c>")]);
        table.push(vec!["<d>".into()]);
        page.table(&table);
        page.folded_table("<t>", &table);
        let html = page.document();
        for tag in ["<b>", "<h>", "<y>", "<c>", "<d>", "<t>", "<i>", "<j>", "<k>", "<l>", "<m>"] {
            assert!(!html.contains(tag), "{tag}: {html}");
        }
        assert!(html.contains("<title>a &lt;b&gt; (simulated)</title>"));
        assert_eq!(html.matches("</script>").count(), 1);
        assert!(html.contains("{\"name\":\"\\u003c/script>\\u003cb>\"}"));
    }

    #[test]
    fn every_element_is_closed() {
        let mut page = HtmlPage::new("t", "simulated");
        page.paragraph("p");
        page.section("s", "h");
        page.contents(&[("s".into(), "h".into(), "about".into())]);
        page.block(&[Condition::new("n", "v")]);
        let mut table = Table::new(vec![Column::numbers("n", "us")]);
        table.push(vec!["1".into()]);
        page.table(&table);
        page.folded_table("more", &table);
        page.plots(&[]);
        let html = page.document();
        for tag in [
            "html", "head", "body", "style", "table", "tr", "td", "div", "details", "span", "dl",
            "dt", "dd", "ul", "li", "a",
        ] {
            let open = html.matches(&format!("<{tag}>")).count()
                + html.matches(&format!("<{tag} ")).count();
            assert!(open > 0, "no {tag}");
            assert_eq!(open, html.matches(&format!("</{tag}>")).count(), "{tag}");
        }
    }
}
