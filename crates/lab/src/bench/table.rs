//! The results as text: aligned for a terminal, or as Markdown.

use std::fmt::Write as _;

use super::lines::BenchLine;
use super::load::{LineSample, Spread};
use super::{StartTimes, TargetResults};

const HEAD: [&str; 8] =
    ["line", "target", "IOPS", "lowest-highest", "Gb/s", "p50 us", "p99 us", "CPU s / M I/O"];

/// Returns one row for each line and target.
pub(super) fn lines(lines: &[&BenchLine], outcomes: &[TargetResults], markdown: bool) -> String {
    let mut rows = vec![HEAD.map(str::to_owned).to_vec()];
    for (index, line) in lines.iter().enumerate() {
        for outcome in outcomes {
            rows.push(row(line, outcome.name, &outcome.samples[index]));
        }
    }
    if markdown { as_markdown(&rows) } else { as_text(&rows) }
}

/// Returns the results that belong to no line.
pub(super) fn totals(starts: &StartTimes, outcomes: &[TargetResults]) -> String {
    let show =
        |spread: &Spread| format!("{:.1} ({:.1}-{:.1})", spread.median, spread.min, spread.max);
    let mut text = format!(
        "start to `ready`: {} ms\nresident at start: {} MiB\n",
        show(&starts.ready_ms),
        show(&starts.rss_mib),
    );
    for outcome in outcomes {
        if let Some(percent) = outcome.idle_percent {
            let _ = writeln!(
                text,
                "idle, ten hosts connected, {}: {percent:.2} % of a CPU",
                outcome.name
            );
        }
    }
    text
}

fn row(line: &BenchLine, name: &str, samples: &[LineSample]) -> Vec<String> {
    let iops = spread(samples, |sample| sample.iops);
    let one = |value: f64| format!("{value:.1}");
    let cpu: Option<Vec<f64>> = samples.iter().map(|sample| sample.cpu).collect();
    vec![
        line.name.to_owned(),
        name.to_owned(),
        thousands(iops.median),
        format!("{}-{}", thousands(iops.min), thousands(iops.max)),
        one(spread(samples, |sample| sample.gbps).median),
        one(spread(samples, |sample| sample.p50).median),
        one(spread(samples, |sample| sample.p99).median),
        cpu.map_or_else(|| "-".to_owned(), |cpu| format!("{:.2}", Spread::of(&cpu).median)),
    ]
}

fn spread(samples: &[LineSample], of: impl Fn(&LineSample) -> f64) -> Spread {
    Spread::of(&samples.iter().map(of).collect::<Vec<_>>())
}

fn thousands(value: f64) -> String {
    format!("{:.1}k", value / 1e3)
}

fn as_markdown(rows: &[Vec<String>]) -> String {
    let mut text = String::new();
    for (index, row) in rows.iter().enumerate() {
        let _ = writeln!(text, "| {} |", row.join(" | "));
        if index == 0 {
            let _ = writeln!(text, "|---|---|{}", "--:|".repeat(row.len() - 2));
        }
    }
    text
}

fn as_text(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max()
    };
    let widths: Vec<_> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    let mut text = String::new();
    for row in rows {
        let cells: Vec<_> = row
            .iter()
            .zip(&widths)
            .enumerate()
            .map(|(column, (cell, &width))| match column {
                0 | 1 => format!("{cell:<width$}"),
                _ => format!("{cell:>width$}"),
            })
            .collect();
        let _ = writeln!(text, "{}", cells.join("  ").trim_end());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::lines::LINES;
    use super::super::load::Endpoint;
    use super::*;

    fn outcome(name: &'static str, iops: f64) -> TargetResults {
        let endpoint = Endpoint { address: "tcp://h:1/n".into(), null: 1, ram: 2 };
        let sample = LineSample { iops, gbps: 1.0, p50: 10.0, p99: 20.0, cpu: None };
        let samples = vec![vec![sample; 3]];
        TargetResults { name, endpoint, process: None, samples, idle_percent: None }
    }

    #[test]
    fn a_row_has_the_medians_of_its_line() {
        let text = lines(&[&LINES[0]], &[outcome("ours", 111_000.0)], true);
        let rows: Vec<_> = text.lines().collect();
        assert_eq!(rows.len(), 3, "{text}");
        assert!(rows[2].contains("| ours | 111.0k |"), "{text}");
        let pipes = |row: &str| row.matches('|').count();
        assert!(rows.iter().all(|row| pipes(row) == pipes(rows[0])), "{text}");
    }
}
