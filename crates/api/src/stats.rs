//! Counters.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::LiveStats;

/// Counters since the daemon's start.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Stats {
    /// Version of the format of the lines.
    pub schema: u32,
    /// Seconds since the daemon began to serve.
    pub seconds: f64,
    /// One line per reactor (`kind` is `reactor`), and one for all reactors (`total`), as written
    /// by `--stats`.
    ///
    /// docs/stats.md documents them. Their `interval` is the time since the start.
    pub lines: Vec<Map<String, Value>>,
    /// Figures for live displays.
    #[serde(default)]
    pub live: LiveStats,
}
