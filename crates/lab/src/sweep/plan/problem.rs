//! Errors in a plan: file, line, column, key, the problem and the allowed values.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;

/// Position of a value in the text, in bytes.
pub(super) type Span = Range<usize>;

/// A plan that cannot be used, with all its errors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PlanError {
    /// One line per problem, in the order of the file.
    pub(crate) problems: Vec<String>,
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.problems.join("\n"))
    }
}

impl std::error::Error for PlanError {}

/// The text of a plan and the errors found in it. The same error in several points is reported
/// once.
#[derive(Debug)]
pub(super) struct ProblemReport<'a> {
    file: &'a str,
    /// The plan, and after it the settings of the command line.
    pub(super) text: &'a str,
    /// Length of the plan's text.
    plan: usize,
    problems: BTreeSet<(usize, String)>,
}

impl<'a> ProblemReport<'a> {
    /// `text` begins with the plan, which has `plan` bytes.
    pub(super) fn new(file: &'a str, text: &'a str, plan: usize) -> Self {
        Self { file, text, plan, problems: BTreeSet::new() }
    }

    /// Returns the text of the plan alone.
    pub(super) fn plan_text(&self) -> &'a str {
        &self.text[..self.plan]
    }

    /// Reports that the value at `span` cannot be used.
    pub(super) fn error(&mut self, span: &Span, key: &str, what: &str, allowed: &str) {
        let problem = format_problem(key, what, allowed);
        let text = match span.start > self.plan {
            true => format!("--set {}: {problem}", line_at(self.text, span.start)),
            false => {
                let (line, column) = position(self.text, span.start);
                format!("{}:{line}:{column}: {problem}", self.file)
            }
        };
        self.problems.insert((span.start, text));
    }

    /// Reports that the plan as a whole cannot be used.
    pub(super) fn error_in_file(&mut self, key: &str, what: &str, allowed: &str) {
        let text = format!("{}: {}", self.file, format_problem(key, what, allowed));
        self.problems.insert((usize::MAX, text));
    }

    pub(super) fn is_clean(&self) -> bool {
        self.problems.is_empty()
    }

    /// Returns all errors, in the order of the file.
    pub(super) fn into_error(self) -> PlanError {
        PlanError { problems: self.problems.into_iter().map(|(_, text)| text).collect() }
    }
}

fn format_problem(key: &str, what: &str, allowed: &str) -> String {
    let key = if key.is_empty() { String::new() } else { format!("{key}: ") };
    let allowed = if allowed.is_empty() { String::new() } else { format!("; allowed: {allowed}") };
    format!("{key}{what}{allowed}")
}

/// Returns the line of a byte.
fn line_at(text: &str, at: usize) -> &str {
    let at = text.floor_char_boundary(at);
    let start = text[..at].rfind('\n').map_or(0, |newline| newline + 1);
    text[start..].lines().next().unwrap_or_default()
}

/// Returns line and column of a byte, from 1.
fn position(text: &str, at: usize) -> (usize, usize) {
    let before = &text[..text.floor_char_boundary(at)];
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    let line = before.bytes().filter(|byte| *byte == b'\n').count() + 1;
    (line, before[line_start..].chars().count() + 1)
}

/// Returns the known name that an unknown one probably means: one edit away for every three
/// letters.
pub(super) fn closest<'a>(wrong: &str, known: &[&'a str]) -> Option<&'a str> {
    let wrong = wrong.to_lowercase().replace('_', "-");
    let far = (wrong.chars().count() / 3).max(1);
    let distances = known.iter().map(|name| (edits(&wrong, name), *name));
    distances.filter(|(distance, _)| *distance <= far).min().map(|(_, name)| name)
}

/// Counts the letters to insert, delete or replace to get from one word to the other.
fn edits(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, letter) in from.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, other) in to.iter().enumerate() {
            let replace = diagonal + usize::from(letter != *other);
            diagonal = row[j + 1];
            row[j + 1] = replace.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_counted_in_characters_from_one() {
        let text = "a = 1\nü = 2\n";
        assert_eq!(position(text, 0), (1, 1));
        assert_eq!(position(text, 6), (2, 1));
        assert_eq!(position(text, 9), (2, 3));
        assert_eq!(position(text, 999), (3, 1));
    }

    #[test]
    fn a_close_name_is_meant() {
        let known = ["queue-depth", "threads", "weight"];
        assert_eq!(closest("queue_depth", &known), Some("queue-depth"));
        assert_eq!(closest("thread", &known), Some("threads"));
        assert_eq!(closest("wieght", &known), Some("weight"));
        assert_eq!(closest("nonsense", &known), None);
    }
}
