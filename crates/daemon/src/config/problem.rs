//! What is wrong with a config: file, line, column, key, what was wrong and what is allowed.

use std::fmt;
use std::ops::Range;

/// A config that cannot be used, with everything that is wrong with it. The daemon ends with
/// status 2.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    /// At least one problem, in the order of the file.
    pub problems: Vec<Problem>,
}

/// One thing that is wrong, or doubtful, at one place of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The file as it was named.
    pub file: String,
    /// Line and column from 1, in characters; `None` if it concerns the file as a whole.
    pub position: Option<(usize, usize)>,
    /// The key, dotted, as `device.size`; empty if there is none.
    pub key: String,
    /// What was wrong.
    pub what: String,
    /// What is allowed, or what to do; empty if `what` says it.
    pub allowed: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.file)?;
        if let Some((line, column)) = self.position {
            write!(f, "{line}:{column}:")?;
        }
        if !self.key.is_empty() {
            write!(f, " {}:", self.key)?;
        }
        write!(f, " {}", self.what)?;
        if !self.allowed.is_empty() {
            write!(f, "; {}", self.allowed)?;
        }
        Ok(())
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, problem) in self.problems.iter().enumerate() {
            let end = if at + 1 == self.problems.len() { "" } else { "\n" };
            write!(f, "{problem}{end}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigError {}

/// Where a value stands in the text, in bytes.
pub(super) type Span = Range<usize>;

/// The text of a config and what was found wrong with it so far.
#[derive(Debug)]
pub(super) struct Report<'a> {
    file: &'a str,
    text: &'a str,
    problems: Vec<(Option<usize>, Problem)>,
    warnings: Vec<Problem>,
}

impl<'a> Report<'a> {
    pub(super) fn new(file: &'a str, text: &'a str) -> Self {
        Self { file, text, problems: Vec::new(), warnings: Vec::new() }
    }

    pub(super) fn text(&self) -> &'a str {
        self.text
    }

    /// The value at `span` cannot be used.
    pub(super) fn error(
        &mut self,
        span: &Span,
        key: &str,
        what: impl Into<String>,
        allowed: impl Into<String>,
    ) {
        let problem = self.problem(Some(span.start), key, &what.into(), &allowed.into());
        self.problems.push((Some(span.start), problem));
    }

    /// The config as a whole cannot be used.
    pub(super) fn error_in_file(&mut self, key: &str, what: impl Into<String>, allowed: &str) {
        let problem = self.problem(None, key, &what.into(), allowed);
        self.problems.push((None, problem));
    }

    /// The value at `span` can be used, but is probably not what was meant.
    pub(super) fn warning(
        &mut self,
        span: &Span,
        key: &str,
        what: impl Into<String>,
        allowed: impl Into<String>,
    ) {
        let problem = self.problem(Some(span.start), key, &what.into(), &allowed.into());
        self.warnings.push(problem);
    }

    /// What to say if the value at `span` turns out not to work later on.
    pub(super) fn foresee(&self, span: &Span, key: &str, what: &str, allowed: &str) -> Problem {
        self.problem(Some(span.start), key, what, allowed)
    }

    /// The line a value stands on.
    pub(super) fn line(&self, span: &Span) -> usize {
        position(self.text, span.start).0
    }

    /// Everything found: the warnings, or all problems in the order of the file.
    pub(super) fn finish(mut self) -> Result<Vec<Problem>, ConfigError> {
        if self.problems.is_empty() {
            return Ok(self.warnings);
        }
        self.problems.sort_by_key(|(at, _)| at.unwrap_or(usize::MAX));
        Err(ConfigError {
            problems: self.problems.into_iter().map(|(_, problem)| problem).collect(),
        })
    }

    fn problem(&self, at: Option<usize>, key: &str, what: &str, allowed: &str) -> Problem {
        let position = at.map(|at| position(self.text, at));
        let (key, what, allowed) = (one_line(key), one_line(what), one_line(allowed));
        Problem { file: self.file.into(), position, key, what, allowed }
    }
}

/// A text that may quote the config, whose values can be anything: a problem is one line, and moves no cursor.
fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for one in text.chars() {
        if one.is_control() {
            line.extend(one.escape_default());
        } else {
            line.push(one);
        }
    }
    line
}

/// Line and column of a byte, from 1.
fn position(text: &str, at: usize) -> (usize, usize) {
    let mut at = at.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    let before = &text[..at];
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    let line = before.bytes().filter(|byte| *byte == b'\n').count() + 1;
    (line, before[line_start..].chars().count() + 1)
}
