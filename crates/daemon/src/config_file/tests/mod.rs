//! Tests of valid configs, invalid configs, and the documented example.

mod bad;
mod example;
mod good;
mod pacing;
mod pages;
mod refused;
mod stacked;
mod tenants;

use super::Machine;
use crate::config::{Config, ConfigError};

/// Returns a machine with four CPUs, of which the process may run on three.
pub(super) fn machine() -> Machine {
    Machine { cpus: vec![0, 1, 3], open_files: 4096, memory: 8 << 30, open: Vec::new() }
}

pub(super) fn parse(text: &str) -> Result<Config, ConfigError> {
    Config::parse("t.toml", text, &machine())
}

/// Minimal config.
pub(super) const LEAST: &str = "\
[[listener]]
type = \"tcp\"
address = \"127.0.0.1\"
";
