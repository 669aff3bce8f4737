//! Result of a change or of a dry run.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::document::Difference;

/// Result of a change; with `dry_run`, its expected result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Change {
    /// True if nothing was changed.
    pub dry_run: bool,
    /// Revision of the state after the change.
    pub revision: String,
    /// Differences, item by item.
    pub changes: Vec<Difference>,
    /// Keys that differ from the running state and take effect at the next start.
    pub pending_restart: Vec<String>,
    /// Valid settings that are probably unintended.
    pub warnings: Vec<String>,
    /// Addresses that hosts can connect to since this change, of new listeners and of those that
    /// waited.
    #[serde(default)]
    pub listening: Vec<String>,
}

/// Result of a save.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Saved {
    /// The file.
    pub file: String,
    /// File with the previous text, if that was different; in the same folder.
    pub previous: Option<String>,
    /// Revision of the state that was written.
    pub revision: String,
}
