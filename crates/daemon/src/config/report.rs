//! Collects the problems of a config, each with its position in the text.

use std::ops::Range;

use super::{ConfigError, Problem};

/// Byte range of a value in the text.
pub(crate) type Span = Range<usize>;

/// Text of a config and its problems so far.
#[derive(Debug)]
pub(crate) struct Report<'a> {
    file: &'a str,
    text: &'a str,
    problems: Vec<(Option<usize>, Problem)>,
    warnings: Vec<Problem>,
}

impl<'a> Report<'a> {
    pub(crate) fn new(file: &'a str, text: &'a str) -> Self {
        Self { file, text, problems: Vec::new(), warnings: Vec::new() }
    }

    pub(crate) fn text(&self) -> &'a str {
        self.text
    }

    /// Reports that the value at `span` is invalid.
    pub(crate) fn error(
        &mut self,
        span: &Span,
        key: &str,
        what: impl Into<String>,
        allowed: impl Into<String>,
    ) {
        let problem = self.problem(Some(span.start), key, &what.into(), &allowed.into());
        self.problems.push((Some(span.start), problem));
    }

    /// Reports that the config as a whole is invalid.
    pub(crate) fn error_in_file(&mut self, key: &str, what: impl Into<String>, allowed: &str) {
        let problem = self.problem(None, key, &what.into(), allowed);
        self.problems.push((None, problem));
    }

    /// Reports that the value at `span` is valid but probably unintended.
    pub(crate) fn warning(
        &mut self,
        span: &Span,
        key: &str,
        what: impl Into<String>,
        allowed: impl Into<String>,
    ) {
        let problem = self.problem(Some(span.start), key, &what.into(), &allowed.into());
        self.warnings.push(problem);
    }

    /// Returns a problem to report later if the value at `span` fails to work.
    pub(crate) fn foresee(&self, span: &Span, key: &str, what: &str, allowed: &str) -> Problem {
        self.problem(Some(span.start), key, what, allowed)
    }

    /// Returns the line of a value.
    pub(crate) fn line(&self, span: &Span) -> usize {
        position(self.text, span.start).0
    }

    /// Returns the warnings, or all problems in the order of the file.
    pub(crate) fn finish(mut self) -> Result<Vec<Problem>, ConfigError> {
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

/// Escapes control characters of a text that may quote the config.
///
/// A problem then takes one line and cannot move the terminal's cursor.
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

/// Returns line and column of a byte, from 1.
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
