//! Files that a command writes.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

/// Writes a file.
pub(crate) fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// Checks that a file can be written, without changing its content.
pub(crate) fn check_writable(path: &Path) -> Result<()> {
    let opened = fs::File::options().create(true).append(true).open(path);
    opened.map(|_| ()).with_context(|| format!("cannot write {}", path.display()))
}
