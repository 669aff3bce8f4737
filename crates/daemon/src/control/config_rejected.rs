//! Rejected configs, for the log and the API.

use std::fmt;

use nvmeof_api::{ApiError, ErrorKind};

use crate::config::{ConfigError, Problem};
use crate::config_file::loaded::{Refused, place, without_lines};

/// Reason why a config cannot run.
#[derive(Debug)]
pub(super) enum ConfigRejected {
    /// The document is invalid.
    Document(Refused),
    /// The file is invalid.
    File(ConfigError),
    /// The check itself failed.
    NotLooked(String),
}

impl ConfigRejected {
    /// Converts it to an API error.
    pub(super) fn to_api_error(&self) -> ApiError {
        match self {
            Self::Document(refused) => invalid(refused),
            Self::File(error) => in_file(error),
            Self::NotLooked(_) => ApiError::new(ErrorKind::Failed, self.to_string()),
        }
    }
}

impl fmt::Display for ConfigRejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Document(refused) => refused.error.fmt(f),
            Self::File(error) => error.fmt(f),
            Self::NotLooked(why) => write!(f, "the config could not be looked at: {why}"),
        }
    }
}

/// Converts the problems of a document, without line numbers, because callers do not see its lines.
fn invalid(refused: &Refused) -> ApiError {
    let one = |problem: &Problem| {
        let what = without_lines(&refused.text, &problem.what);
        ApiError::new(ErrorKind::Invalid, what)
            .at(place(&refused.text, problem))
            .hint(&problem.allowed)
    };
    all(refused.error.problems.iter().map(one))
}

/// Converts the problems of a file.
fn in_file(error: &ConfigError) -> ApiError {
    let one = |problem: &Problem| {
        let mut place = problem.file.clone();
        if let Some((line, column)) = problem.position {
            place = format!("{place}:{line}:{column}");
        }
        if !problem.key.is_empty() {
            place = format!("{place}: {}", problem.key);
        }
        ApiError::new(ErrorKind::Invalid, &problem.what).at(place).hint(&problem.allowed)
    };
    all(error.problems.iter().map(one))
}

/// Returns the first problem, with the others attached to it.
fn all(mut problems: impl Iterator<Item = ApiError>) -> ApiError {
    let first = problems.next();
    debug_assert!(first.is_some(), "a rejection names a problem");
    let mut first =
        first.unwrap_or_else(|| ApiError::new(ErrorKind::Invalid, "the config cannot be used"));
    first.more = problems.collect();
    first
}

/// Formats a warning about a setting that is allowed but probably unintended.
pub(super) fn warning(text: &str, problem: &Problem) -> String {
    let place = place(text, problem);
    let what = without_lines(text, &problem.what);
    format!("{place}: {what}; {}", problem.allowed)
}
