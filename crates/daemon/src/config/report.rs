//! Collects the problems of a config, each with its position in the text.

use std::fmt::Display;
use std::ops::Range;

use super::{ConfigError, Problem};

/// Byte range of a value in the text.
pub(crate) type Span = Range<usize>;

/// Text of a config and its problems so far.
#[derive(Debug)]
pub(crate) struct Report<'a> {
    file: &'a str,
    text: &'a str,
    /// First byte of each line.
    lines: Vec<usize>,
    problems: Vec<(Option<usize>, Problem)>,
    warnings: Vec<Problem>,
}

impl<'a> Report<'a> {
    pub(crate) fn new(file: &'a str, text: &'a str) -> Self {
        let newlines = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
        let lines = std::iter::once(0).chain(newlines.map(|(at, _)| at + 1)).collect();
        Self { file, text, lines, problems: Vec::new(), warnings: Vec::new() }
    }

    pub(crate) fn text(&self) -> &'a str {
        self.text
    }

    /// Reports that the value at `span` is invalid.
    pub(crate) fn error(
        &mut self,
        span: &Span,
        key: &str,
        what: impl Display,
        allowed: impl Display,
    ) {
        let problem = self.problem(Some(span.start), key, what, allowed);
        self.problems.push((Some(span.start), problem));
    }

    /// Reports that the config as a whole is invalid.
    pub(crate) fn error_in_file(&mut self, key: &str, what: impl Display, allowed: &str) {
        let problem = self.problem(None, key, what, allowed);
        self.problems.push((None, problem));
    }

    /// Reports that the value at `span` is valid but probably unintended.
    pub(crate) fn warning(
        &mut self,
        span: &Span,
        key: &str,
        what: impl Display,
        allowed: impl Display,
    ) {
        let problem = self.problem(Some(span.start), key, what, allowed);
        self.warnings.push(problem);
    }

    /// Returns a problem to report later if the value at `span` fails to work.
    pub(crate) fn foresee(&self, span: &Span, key: &str, what: &str, allowed: &str) -> Problem {
        self.problem(Some(span.start), key, what, allowed)
    }

    /// Returns the line of a value.
    pub(crate) fn line(&self, span: &Span) -> usize {
        self.position(span.start).0
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

    fn problem(
        &self,
        at: Option<usize>,
        key: &str,
        what: impl Display,
        allowed: impl Display,
    ) -> Problem {
        let position = at.map(|at| self.position(at));
        let (what, allowed) = (one_line(&what.to_string()), one_line(&allowed.to_string()));
        Problem { file: self.file.into(), position, key: one_line(key), what, allowed }
    }

    /// Returns line and column of a byte, from 1.
    fn position(&self, at: usize) -> (usize, usize) {
        let at = self.text.floor_char_boundary(at);
        let line = self.lines.partition_point(|start| *start <= at);
        (line, self.text[self.lines[line - 1]..at].chars().count() + 1)
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
