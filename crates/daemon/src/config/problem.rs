//! Problems of a config: file, line, column, key, the problem and the allowed values.

use std::fmt;

/// An unusable config with all of its problems. The daemon exits with status 2.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    /// At least one problem, in the order of the file.
    pub problems: Vec<Problem>,
}

/// An error or a warning at one place of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Name of the file as given.
    pub file: String,
    /// Line and column from 1, in characters; `None` if the problem concerns the whole file.
    pub position: Option<(usize, usize)>,
    /// Dotted key like `device.size`; empty if there is none.
    pub key: String,
    /// Description of the problem.
    pub what: String,
    /// Allowed values, or the remedy; empty if `what` includes it.
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
