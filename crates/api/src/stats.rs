//! What was counted.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::Live;

/// What was counted, since the daemon's start.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Stats {
    /// Version of the lines' form.
    pub schema: u32,
    /// Seconds since the daemon serves.
    pub seconds: f64,
    /// A line for each reactor (`kind` is `reactor`), and one for all together (`total`): what
    /// `--stats` writes, as docs/stats.md tells. Their `interval` is that since the start.
    pub lines: Vec<Map<String, Value>>,
    /// Where things stand, for whoever draws it.
    #[serde(default)]
    pub live: Live,
}
