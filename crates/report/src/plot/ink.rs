//! Colors of plots.
//!
//! plotters writes fixed colors. Here they are placeholders, each of which becomes a class and a
//! fixed color. [`STYLE`] colors the class by the reader's scheme; the fixed color serves readers
//! without styles.

use std::fmt::Write as _;

use plotters::style::RGBColor;

use crate::html::escape;

/// Number of colors.
pub(super) const COLORS: usize = 8;

/// Colors of series in the light scheme, distinct with red-green color blindness.
///
/// Further series reuse them with dashed lines.
const LIGHT: [&str; COLORS] =
    ["#2a78d6", "#eb6834", "#1baf7a", "#b77f00", "#d4568a", "#008300", "#4a3aa7", "#e34948"];

/// Dashes of each cycle through the colors.
const DASHES: [&str; 4] = ["", "7 4", "2 3", "9 3 2 3"];
/// The same for PDF.
const FLAT_DASHES: [&[f32]; 4] = [&[], &[7.0, 4.0], &[2.0, 3.0], &[9.0, 3.0, 2.0, 3.0]];

const INK_LIGHT: &str = "#1a1a19";
const SOFT_LIGHT: &str = "#5f5e5a";
const GRID_LIGHT: &str = "#e1e0d9";
const GROUND_LIGHT: &str = "#fcfcfb";

/// Opacity of areas between lines, so that lines over them stay visible.
const AREA_OPACITY: f32 = 0.16;
/// Number of shades of cells.
const HEAT_STEPS: u8 = 40;

/// The styles of every plot, with their colors for both schemes.
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
svg.plot .mark,svg.plot .area,svg.plot .area-key,svg.plot .heat{fill:var(--s)}
svg.plot .line,svg.plot .key{stroke:var(--s)}
";

/// Main text.
pub(crate) const INK: RGBColor = RGBColor(7, 1, 1);
/// Explanatory text and lines.
pub(crate) const SOFT: RGBColor = RGBColor(7, 1, 2);
/// Background that hides elements behind it.
pub(crate) const GROUND: RGBColor = RGBColor(7, 1, 4);
/// Grid lines.
pub(crate) const GRID: RGBColor = RGBColor(7, 1, 3);

/// The placeholder of a series' markers and line. Series beyond 256 share colors with the first.
pub(super) fn series(index: usize) -> RGBColor {
    RGBColor(7, 0, u8::try_from(index % 256).unwrap_or(0))
}

/// The placeholder of a series' line in the legend.
pub(super) fn key(index: usize) -> RGBColor {
    RGBColor(7, 2, series(index).2)
}

/// The placeholder of the area of an area series.
pub(super) fn area(index: usize) -> RGBColor {
    RGBColor(7, 4, series(index).2)
}

/// The placeholder of an area in the legend.
pub(super) fn area_key(index: usize) -> RGBColor {
    RGBColor(7, 5, series(index).2)
}

/// The placeholder of a bar or a lone marker in the legend.
pub(super) fn bar_key(index: usize) -> RGBColor {
    RGBColor(7, 6, series(index).2)
}

/// The placeholder of a cell with this share of the maximum, 0 to 1.
pub(super) fn heat(share: f64) -> RGBColor {
    let steps = (share.clamp(0.0, 1.0) * f64::from(HEAT_STEPS)).round();
    let step = (0..=HEAT_STEPS).find(|step| f64::from(*step) >= steps);
    RGBColor(7, 3, step.unwrap_or(HEAT_STEPS))
}

/// A light-scheme color for a placeholder, for PDF.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct FlatInk {
    /// Red, green and blue, 0 to 1.
    pub(crate) rgb: [f32; 3],
    /// Lengths of the dashes; empty for a solid line.
    pub(crate) dashes: &'static [f32],
}

/// Returns the PDF color of a color; one that is no placeholder stays unchanged.
pub(crate) fn flat(colour: (u8, u8, u8)) -> FlatInk {
    let whole = |hex: &str| FlatInk { rgb: rgb(hex), dashes: &[] };
    let index = usize::from(colour.2);
    match colour {
        (7, 1, 1) => whole(INK_LIGHT),
        (7, 1, 2) => whole(SOFT_LIGHT),
        (7, 1, 3) => whole(GRID_LIGHT),
        (7, 1, 4) => FlatInk { rgb: [1.0; 3], dashes: &[] },
        (7, 3, step) => FlatInk { rgb: over_white(LIGHT[0], heat_opacity(step)), dashes: &[] },
        (7, 4 | 5, _) => {
            FlatInk { rgb: over_white(LIGHT[index % LIGHT.len()], AREA_OPACITY), dashes: &[] }
        }
        (7, 6, _) => FlatInk { rgb: rgb(LIGHT[index % LIGHT.len()]), dashes: &[] },
        (7, 0 | 2, _) => FlatInk {
            rgb: rgb(LIGHT[index % LIGHT.len()]),
            dashes: FLAT_DASHES[(index / LIGHT.len()) % FLAT_DASHES.len()],
        },
        (red, green, blue) => {
            FlatInk { rgb: [red, green, blue].map(|part| f32::from(part) / 255.0), dashes: &[] }
        }
    }
}

fn rgb(hex: &str) -> [f32; 3] {
    [1, 3, 5].map(|at| {
        let part = hex.get(at..at + 2).and_then(|part| u8::from_str_radix(part, 16).ok());
        f32::from(part.unwrap_or(0)) / 255.0
    })
}

fn over_white(hex: &str, opacity: f32) -> [f32; 3] {
    rgb(hex).map(|part| part * opacity + 1.0 - opacity)
}

/// Text stays readable on the darkest cell, in both schemes.
fn heat_opacity(step: u8) -> f32 {
    0.04 + 0.66 * f32::from(step) / f32::from(HEAT_STEPS)
}

/// Replaces the placeholders by classes and colors, and adds a description and a class to the root.
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

/// Makes a standalone file, with the styles, all series' colors and a background.
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

/// The attributes for a placeholder, whose code is its last four digits.
fn paint(attribute: &str, code: &str) -> String {
    let fixed = |class: &str, colour: &str| format!("class=\"{class}\" {attribute}=\"{colour}\"");
    match (code, attribute) {
        ("0101", "fill") => fixed("ink", INK_LIGHT),
        ("0102", "fill") => fixed("soft", SOFT_LIGHT),
        ("0102" | "0101", _) => fixed("rule", SOFT_LIGHT),
        ("0103", _) => fixed("grid", GRID_LIGHT),
        ("0104", _) => fixed("ground", GROUND_LIGHT),
        (heat, _) if heat.starts_with("03") => {
            let step = u8::from_str_radix(&heat[2..], 16).unwrap_or(0);
            let opacity = heat_opacity(step);
            format!("class=\"heat c0\" {attribute}=\"{}\" fill-opacity=\"{opacity:.3}\"", LIGHT[0])
        }
        _ => {
            let index = usize::from_str_radix(&code[2..], 16).unwrap_or(0);
            let colour = index % LIGHT.len();
            let shape = match attribute {
                _ if code.starts_with("04") => "area",
                _ if code.starts_with("05") || code.starts_with("06") => "area-key",
                "fill" => "mark",
                _ if code.starts_with("02") => "key",
                _ => "line",
            };
            let dash = DASHES[(index / LIGHT.len()) % DASHES.len()];
            let dash = match (dash, shape) {
                (_, "area-key") if code.starts_with("06") => String::new(),
                (_, "area" | "area-key") => format!(" fill-opacity=\"{AREA_OPACITY}\""),
                ("", _) | (_, "mark") => String::new(),
                _ => format!(" stroke-dasharray=\"{dash}\""),
            };
            format!("class=\"{shape} s{index} c{colour}\" {attribute}=\"{}\"{dash}", LIGHT[colour])
        }
    }
}
