//! The results as a table and as a page.

use anyhow::Result;
use nvmeof_report::{Column, HtmlPage, Table};

use super::{LinePairs, Pair};
use crate::bench::load::{LineSample, Spread};
use crate::bench::median_interval::MedianInterval;

/// Returns a row for each line: medians of both targets, and medians of the pairs' ratios.
pub(super) fn table(results: &[LinePairs]) -> Table {
    let mut table = Table::new(vec![
        Column::words("line"),
        Column::numbers("A", "k IOPS"),
        Column::numbers("B", "k IOPS"),
        Column::numbers("A / B", ""),
        Column::numbers("lowest-highest", ""),
        Column::numbers("p50 of A, B", "us"),
        Column::numbers("p99 of A, B", "us"),
        Column::numbers("CPU of A, B", "s / M I/O"),
    ]);
    for LinePairs { line, pairs, .. } in results.iter().filter(|result| !result.pairs.is_empty()) {
        let iops = |pair: &Pair| pair[0].iops / pair[1].iops;
        let ratios: Vec<f64> = pairs.iter().map(iops).collect();
        let Spread { min, max, .. } = Spread::of(&ratios);
        let both = |of: fn(&LineSample) -> f64| [0, 1].map(|side| median(pairs, side, of));
        let [a, b] = both(|sample| sample.iops);
        let two = |[a, b]: [f64; 2]| format!("{a:.1}, {b:.1}");
        table.push(vec![
            line.name(),
            format!("{:.1}", a / 1e3),
            format!("{:.1}", b / 1e3),
            MedianInterval::of(&ratios).to_string(),
            format!("{min:.2}-{max:.2}"),
            two(both(|sample| sample.p50)),
            two(both(|sample| sample.p99)),
            [0, 1].map(|side| cpu(pairs, side)).join(", "),
        ]);
    }
    table
}

fn median(pairs: &[Pair], side: usize, of: fn(&LineSample) -> f64) -> f64 {
    Spread::of(&pairs.iter().map(|pair| of(&pair[side])).collect::<Vec<_>>()).median
}

fn cpu(pairs: &[Pair], side: usize) -> String {
    let used: Option<Vec<f64>> = pairs.iter().map(|pair| pair[side].cpu).collect();
    used.map_or_else(|| "-".to_owned(), |used| format!("{:.2}", Spread::of(&used).median))
}

/// Returns what a person needs to judge the table.
pub(super) fn note(about: &str) -> String {
    format!(
        "{about}\n\nRates and latencies are medians over the rounds. `A / B` is the median of the \
         rounds' ratios of IOPS, with its 95 % confidence interval from six rounds on."
    )
}

/// Returns the table as Markdown.
pub(super) fn markdown(results: &[LinePairs], about: &str) -> String {
    let mut text = format!("{}\n\n{}", note(about), table(results).markdown());
    for failed in failed(results) {
        text.push_str(&format!("\n* {failed}\n"));
    }
    text
}

/// Returns a sentence on each line that failed. Its rounds before that count.
fn failed(results: &[LinePairs]) -> impl Iterator<Item = String> {
    results.iter().filter_map(|LinePairs { line, pairs, failure }| {
        let first = failure.as_ref()?.lines().next()?;
        Some(format!("{}: failed after {} round(s): {first}", line.name(), pairs.len()))
    })
}

/// Returns the table as a page that opens from disk, with every sample.
pub(super) fn page(results: &[LinePairs], about: &str) -> Result<String> {
    let mut page = HtmlPage::new("Two targets in turns", "measured locally");
    for paragraph in note(about).split("\n\n") {
        page.paragraph(paragraph);
    }
    page.table(&table(results));
    failed(results).for_each(|failed| page.paragraph(&failed));
    page.data("results", &serde_json::to_string(&json(results))?);
    Ok(page.document())
}

/// Returns every sample.
pub(super) fn json(results: &[LinePairs]) -> serde_json::Value {
    let line = |LinePairs { line, pairs, failure }: &LinePairs| {
        let pair = |[a, b]: &Pair| serde_json::json!({ "a": a.json(), "b": b.json() });
        serde_json::json!({
            "line": line.name(),
            "rounds": pairs.iter().map(pair).collect::<Vec<_>>(),
            "failure": failure,
        })
    };
    results.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::super::lines::LINES;
    use super::*;

    fn sample(iops: f64) -> LineSample {
        LineSample { iops, gbps: 1.0, p50: 10.0, p99: 20.0, cpu: None }
    }

    #[test]
    fn ratios_are_of_pairs() {
        // The machine becomes faster from round to round; the ratio of the medians would be 2.
        let pairs = vec![
            [sample(100e3), sample(80e3)],
            [sample(200e3), sample(100e3)],
            [sample(400e3), sample(400e3)],
        ];
        let failure = Some("no memory\nmore".to_owned());
        let results = [
            LinePairs { line: &LINES[0], pairs, failure: None },
            LinePairs { line: &LINES[1], pairs: Vec::new(), failure },
        ];
        let text = markdown(&results, "a machine");
        assert!(text.starts_with("a machine\n"), "{text}");
        let (table, failed) = text.trim_end().rsplit_once("\n\n").unwrap_or_default();
        assert!(failed.ends_with("failed after 0 round(s): no memory"), "{failed}");
        let row = table.lines().last().unwrap().replace(' ', "");
        assert!(row.contains("|200.0|100.0|1.250|1.00-2.00|"), "{text}");
        assert!(page(&results, "a machine").unwrap().contains("\"iops\":400000"));
    }
}
