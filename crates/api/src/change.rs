//! What a change did, or would do.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::document::Difference;

/// What a change did; with `dry_run` what it would do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Change {
    /// Nothing was changed: it was only looked what would be.
    pub dry_run: bool,
    /// The state's number, after the change.
    pub revision: String,
    /// What is another, item by item.
    pub changes: Vec<Difference>,
    /// Keys that differ from what runs and count at the next start.
    pub pending_restart: Vec<String>,
    /// What is allowed but probably not meant.
    pub warnings: Vec<String>,
    /// Where hosts can connect now and could not before: a listener that is new, or that waited until then.
    #[serde(default)]
    pub listening: Vec<String>,
}

/// What was written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Saved {
    /// The file.
    pub file: String,
    /// What the file said before, if it was another text: a file beside it.
    pub previous: Option<String>,
    /// Number of the state that was written.
    pub revision: String,
}
