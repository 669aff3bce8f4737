//! Colours. plotters writes fixed ones; what it writes here are stand-ins, each of which becomes a
//! class (which [`STYLE`] colours by the reader's scheme) and a fixed colour for readers without
//! styles.

use std::fmt::Write as _;

use plotters::style::RGBColor;

use crate::html::escape;

/// Colours of series in the light scheme; told apart by people who see red and green alike. After
/// them, lines are dashed.
const LIGHT: [&str; 8] =
    ["#2a78d6", "#eb6834", "#1baf7a", "#b77f00", "#d4568a", "#008300", "#4a3aa7", "#e34948"];

/// How each round through the colours is dashed.
const DASHES: [&str; 4] = ["", "7 4", "2 3", "9 3 2 3"];

/// The styles of every plot, with their colours for both schemes.
pub const STYLE: &str = "\
:root{color-scheme:light dark;--ground:#fcfcfb;--ink:#1a1a19;--soft:#5f5e5a;--grid:#e1e0d9;
--s0:#2a78d6;--s1:#eb6834;--s2:#1baf7a;--s3:#b77f00;--s4:#d4568a;--s5:#008300;--s6:#4a3aa7;--s7:#e34948}
@media (prefers-color-scheme:dark){:root{--ground:#1a1a19;--ink:#f4f3ef;--soft:#b4b2aa;--grid:#3a3936;
--s0:#3987e5;--s1:#e8703a;--s2:#22a878;--s3:#d09a1c;--s4:#e0709c;--s5:#3fa83f;--s6:#9085e9;--s7:#e66767}}
svg.plot .ground{fill:var(--ground)}
svg.plot .ink{fill:var(--ink)}
svg.plot .soft{fill:var(--soft)}
svg.plot .rule{stroke:var(--soft)}
svg.plot .grid{stroke:var(--grid)}
svg.plot .c0{--s:var(--s0)}svg.plot .c1{--s:var(--s1)}svg.plot .c2{--s:var(--s2)}svg.plot .c3{--s:var(--s3)}
svg.plot .c4{--s:var(--s4)}svg.plot .c5{--s:var(--s5)}svg.plot .c6{--s:var(--s6)}svg.plot .c7{--s:var(--s7)}
svg.plot .mark{fill:var(--s)}
svg.plot .line,svg.plot .key{stroke:var(--s)}
";

/// Text that matters.
pub(super) const INK: RGBColor = RGBColor(7, 1, 1);
/// Text and lines that explain.
pub(super) const SOFT: RGBColor = RGBColor(7, 1, 2);
/// Grid lines.
pub(super) const GRID: RGBColor = RGBColor(7, 1, 3);

/// The stand-in of a series' markers and line. More than 256 share colours with the first.
pub(super) fn series(index: usize) -> RGBColor {
    RGBColor(7, 0, u8::try_from(index % 256).unwrap_or(0))
}

/// The stand-in of a series' line in the legend.
pub(super) fn key(index: usize) -> RGBColor {
    RGBColor(7, 2, series(index).2)
}

/// Puts classes and colours in place of the stand-ins, and a description and a class on the whole.
pub(super) fn follow_scheme(drawn: &str, description: &str) -> String {
    let mut text = String::with_capacity(drawn.len() * 3 / 2);
    for line in drawn.lines() {
        let line = recolour(line);
        if let Some(rest) = line.strip_prefix("<svg ") {
            let description = escape(description);
            let _ = writeln!(
                text,
                "<svg class=\"plot\" role=\"img\" aria-label=\"{description}\" {rest}"
            );
        } else {
            text.push_str(&line);
            text.push('\n');
        }
    }
    text
}

/// A file of its own: the styles, all series' colours and a background inside.
pub(super) fn alone(svg: &str) -> String {
    let Some((head, rest)) = svg.split_once(">\n") else { return svg.to_owned() };
    format!(
        "{head}>\n<style>\n{STYLE}</style>\n\
         <rect class=\"ground\" fill=\"#fcfcfb\" width=\"100%\" height=\"100%\"/>\n{rest}"
    )
}

fn recolour(line: &str) -> String {
    for attribute in ["fill", "stroke"] {
        let start = format!("{attribute}=\"#07");
        let Some((before, rest)) = line.split_once(&start) else { continue };
        let Some((code, after)) = rest.split_once('"') else { continue };
        return format!("{before}{}{after}", paint(attribute, code));
    }
    line.to_owned()
}

/// The attributes in place of a stand-in, whose code is its last four digits.
fn paint(attribute: &str, code: &str) -> String {
    let fixed = |class: &str, colour: &str| format!("class=\"{class}\" {attribute}=\"{colour}\"");
    match (code, attribute) {
        ("0101", "fill") => fixed("ink", "#1a1a19"),
        ("0102", "fill") => fixed("soft", "#5f5e5a"),
        ("0102" | "0101", _) => fixed("rule", "#5f5e5a"),
        ("0103", _) => fixed("grid", "#e1e0d9"),
        _ => {
            let index = usize::from_str_radix(&code[2..], 16).unwrap_or(0);
            let colour = index % LIGHT.len();
            let shape = match attribute {
                "fill" => "mark",
                _ if code.starts_with("02") => "key",
                _ => "line",
            };
            let dash = DASHES[(index / LIGHT.len()) % DASHES.len()];
            let dash = match (dash, shape) {
                ("", _) | (_, "mark") => String::new(),
                _ => format!(" stroke-dasharray=\"{dash}\""),
            };
            format!("class=\"{shape} s{index} c{colour}\" {attribute}=\"{}\"{dash}", LIGHT[colour])
        }
    }
}
