//! Prose in the field's words: phrases to avoid, and the width of lines, each with a ratchet.
//!
//! A ratchet is a count that may only fall. `prose.txt` has one line for each phrase: the count in
//! Markdown files, the count in comments, and the pattern. A count above its ratchet is a finding,
//! and a count below it too, so that the ratchet follows.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use regex::{Regex, RegexBuilder};

/// The ratchets.
const RATCHETS: &str = "xtask/src/checks/prose.txt";
/// Columns of a line.
const WIDTH: usize = 100;
/// The pattern that stands for lines of prose that are wider.
const WIDE: &str = "<over 100 columns>";

/// A phrase to avoid, and how many lines may still have it.
#[derive(Debug)]
struct Ratchet {
    documents: usize,
    comments: usize,
    /// As in the file.
    text: String,
    /// `None` for the width.
    pattern: Option<Regex>,
}

/// Lines of prose.
#[derive(Debug, Default)]
struct Prose {
    documents: Vec<String>,
    comments: Vec<String>,
}

/// Counts that differ from their ratchets, one line each.
pub(super) fn findings(root: &Path, files: &[String]) -> Result<Vec<String>> {
    let text = fs::read_to_string(root.join(RATCHETS))
        .with_context(|| format!("cannot read {RATCHETS}"))?;
    let mut prose = Prose::default();
    for file in files {
        // A file that is being removed is another check's business.
        let Ok(text) = fs::read_to_string(root.join(file)) else { continue };
        prose.add(file, &text);
    }
    let mut findings = Vec::new();
    for ratchet in ratchets(&text)? {
        findings.extend(ratchet.judge("Markdown", ratchet.documents, &prose.documents));
        findings.extend(ratchet.judge("comments", ratchet.comments, &prose.comments));
    }
    Ok(findings)
}

fn ratchets(text: &str) -> Result<Vec<Ratchet>> {
    let parse = |line: &str| {
        let mut fields = line.splitn(3, ' ');
        let (documents, comments, text) = (fields.next()?, fields.next()?, fields.next()?);
        let pattern = RegexBuilder::new(text).case_insensitive(true).build();
        Some(Ratchet {
            documents: documents.parse().ok()?,
            comments: comments.parse().ok()?,
            text: text.to_owned(),
            pattern: if text == WIDE { None } else { Some(pattern.ok()?) },
        })
    };
    text.lines()
        .map(|line| {
            parse(line).with_context(|| {
                format!("{RATCHETS}: {line:?} is not two counts and a regular expression")
            })
        })
        .collect()
}

impl Prose {
    fn add(&mut self, file: &str, text: &str) {
        if file.ends_with(".md") {
            self.documents.extend(documents(text));
        } else if file.ends_with(".rs") {
            let comments = text.lines().filter(|line| line.trim_start().starts_with("//"));
            self.comments.extend(comments.map(str::to_owned));
        }
    }
}

/// Lines of a Markdown file that are no table and no block of code.
fn documents(text: &str) -> impl Iterator<Item = String> {
    let mut is_code = false;
    text.lines().filter_map(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        (!is_code && !is_fence && !line.starts_with('|')).then(|| line.to_owned())
    })
}

impl Ratchet {
    fn matches(&self, line: &str) -> bool {
        match &self.pattern {
            Some(pattern) => pattern.is_match(line),
            None => line.chars().count() > WIDTH,
        }
    }

    /// What is wrong with the count of matching lines, if anything is.
    fn judge(&self, kind: &str, most: usize, lines: &[String]) -> Option<String> {
        let found: Vec<&String> = lines.iter().filter(|line| self.matches(line)).collect();
        let (count, text) = (found.len(), &self.text);
        if count < most {
            return Some(format!("{RATCHETS}: {text} has {count} lines in {kind}: lower {most}"));
        }
        let last = found.last().filter(|_| count > most)?;
        let last = last.trim();
        Some(format!(
            "{count} lines in {kind} match {text}, and {most} may: find other words, as for {last:?}"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(ratchet: &str, file: &str, text: &str) -> usize {
        let mut prose = Prose::default();
        prose.add(file, text);
        let all = ratchets(ratchet).unwrap();
        let judge = |one: &Ratchet| {
            let documents = one.judge("Markdown", one.documents, &prose.documents);
            let comments = one.judge("comments", one.comments, &prose.comments);
            usize::from(documents.is_some()) + usize::from(comments.is_some())
        };
        all.iter().map(judge).sum()
    }

    #[test]
    fn a_count_may_neither_grow_nor_fall_behind_its_ratchet() {
        let page = "The host waits meanwhile.\n\nMeanwhile it reads.\n";
        let pattern = r"\bmeanwhile\b";
        for (most, findings) in [(1, 1), (2, 0), (3, 1)] {
            let ratchet = format!("{most} 0 {pattern}");
            assert_eq!(judged(&ratchet, "a.md", page), findings, "{most}");
        }
        let code = "let meanwhile = 1; // Not a line of comment: meanwhile.\n// Meanwhile.\n";
        assert_eq!(judged(&format!("0 1 {pattern}"), "a.rs", code), 0);
        assert_eq!(judged(&format!("0 0 {pattern}"), "a.toml", page), 0);
    }

    #[test]
    fn tables_and_blocks_may_be_wide() {
        let wide = "word ".repeat(21);
        let page = format!("| {wide} |\n```sh\n{wide}\n```\n{wide}\n");
        assert_eq!(judged(&format!("1 0 {WIDE}"), "a.md", &page), 0);
        assert_eq!(judged(&format!("0 1 {WIDE}"), "a.rs", &format!("    /// {wide}")), 0);
    }

    #[test]
    fn a_ratchet_that_is_none_is_told() {
        assert!(ratchets("1 0 (").is_err());
        assert!(ratchets("a b").is_err());
    }
}
