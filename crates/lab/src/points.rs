//! Files of results: one point per line.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use anyhow::{Context, Result};
use nvmeof_report::{Point, json};

/// Reads all points of a file; drops a truncated last line.
pub(crate) fn read(file: &Path) -> Result<Vec<Point>> {
    let opened = File::open(file).with_context(|| format!("cannot read {}", file.display()))?;
    let (points, _) =
        json::read(BufReader::new(opened)).with_context(|| file.display().to_string())?;
    Ok(points)
}
