//! The config file: reads `target.toml`, validates it and converts it to a [`Config`].
//!
//! ```text
//! text --parse--> Parsed (each value with its position) --validate--> Config
//!                    |                                     |
//!                    '----------> Problem(s) <-------------'
//!                                   file:line:column: key: what; allowed
//! ```
//!
//! Unknown keys are rejected. All problems are reported together, each with its line. A config with
//! any problem is not used, neither at start nor on reload. `configs/target.toml` documents every
//! key; tests compare it with the code.

mod cpus;
pub(crate) mod loaded;
mod machine;
mod parse;
mod raw;
#[cfg(test)]
mod tests;
mod validate;

use std::path::Path;

use crate::config::{Config, ConfigError};

pub use machine::Machine;

use crate::config::report::Report;
use loaded::Loaded;

impl Config {
    /// Reads and validates the file for this machine.
    ///
    /// # Errors
    /// All problems, with file, line and key.
    pub fn load(file: &Path) -> Result<Self, ConfigError> {
        Ok(Loaded::read(file)?.config)
    }

    /// Validates a text for a machine; `file` only appears in errors.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn parse(file: &str, text: &str, machine: &Machine) -> Result<Self, ConfigError> {
        let mut report = Report::new(file, text);
        let config = parse::parse(&mut report)
            .and_then(|parsed| validate::validate(&mut report, &parsed, machine));
        let warnings = report.finish()?;
        match config {
            Some(config) => Ok(Config { warnings, ..config }),
            // Every path without a config has reported the reason.
            None => Err(ConfigError { problems: Vec::new() }),
        }
    }
}
