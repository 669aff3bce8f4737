//! Table with a line per case, for a terminal or in Markdown.

use super::Case;
use super::case_result::{CaseBound, CaseResult, Check};

/// Format of the lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Style {
    /// Aligned columns.
    Text,
    /// A Markdown table.
    Markdown,
}

const COLUMNS: [(&str, usize); 11] = [
    ("case", 41),
    ("Gb/s", 6),
    ("% ref", 6),
    ("sd", 5),
    ("buffers", 7),
    ("max", 5),
    ("hit %", 5),
    ("budget KiB", 10),
    ("p99 us", 7),
    ("real s", 6),
    ("verdict", 0),
];

/// Returns the heading of a table.
pub(crate) fn heading(style: Style) -> String {
    let names = COLUMNS.map(|(name, _)| name.to_owned());
    match style {
        Style::Text => columns(&names),
        Style::Markdown => {
            let rule = COLUMNS.map(|(name, _)| match name {
                "case" | "verdict" => "---".to_owned(),
                _ => "---:".to_owned(),
            });
            format!("| {} |\n| {} |", names.join(" | "), rule.join(" | "))
        }
    }
}

/// Returns the line of a case.
pub(crate) fn line(style: Style, case: &Case, case_result: &CaseResult) -> String {
    let f = &case_result.metrics;
    let cells = [
        case.name.clone(),
        format!("{:.1}", f.gbps),
        format!("{:.1}", case_result.percent()),
        format!("{:.2}", f.stddev_gbps),
        format!("{:.0}", f.buffers_mean),
        f.buffers_max.to_string(),
        format!("{:.1}", f.hit_pct),
        f.budget.map_or_else(|| "-".to_owned(), |bytes| (bytes / 1024).to_string()),
        format!("{:.0}", f.p99_us),
        format!("{:.1}", case_result.real_seconds),
        answer(case_result),
    ];
    match style {
        Style::Text => columns(&cells),
        Style::Markdown => format!("| {} |", cells.join(" | ")),
    }
}

/// Returns `ok` with every value, or the bounds that do not hold.
fn answer(case_result: &CaseResult) -> String {
    let mut note = case_result.note.clone();
    if case_result.judged > 1 && case_result.missed > 0 {
        let (missed, judged) = (case_result.missed, case_result.judged);
        note = [format!("missed by {missed} of {judged} seeds"), note].join("; ");
    }
    let note = if note.is_empty() { note } else { format!(" ({})", note.trim_end_matches("; ")) };
    if case_result.passes() {
        let all: Vec<_> = case_result.checks.iter().map(shown).collect();
        return format!("ok: {}{note}", all.join("; "));
    }
    let mut broken: Vec<_> = case_result.failures().map(shown).collect();
    if let Some(first) = case_result.violations.first() {
        broken.push(format!("{} violations: {first}", case_result.violations.len()));
    }
    format!("FAIL: {}{note}", broken.join("; "))
}

fn shown(check: &Check) -> String {
    let (sign, bound) = match check.bound {
        CaseBound::AtLeast(bound) => (">=", bound),
        CaseBound::AtMost(bound) => ("<=", bound),
    };
    format!("{} {} {sign} {}", check.what, number(check.value), number(bound))
}

fn number(value: f64) -> String {
    if value.abs() >= 1000.0 { format!("{value:.0}") } else { format!("{value:.2}") }
}

fn columns(cells: &[String; 11]) -> String {
    let mut line = String::new();
    for (at, (cell, (_, width))) in cells.iter().zip(COLUMNS).enumerate() {
        if at == 0 || width == 0 {
            line.push_str(&format!("{cell:<width$}"));
        } else {
            line.push_str(&format!(" {cell:>width$}"));
        }
        if at + 2 == COLUMNS.len() {
            line.push_str("  ");
        }
    }
    line
}
