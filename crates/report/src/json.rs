//! Results as JSON lines: one object per point, each with the version of its format.

use std::io::{self, BufRead, Write};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use thiserror::Error;

use crate::{Point, RunOrigin};

/// The version that this crate writes.
///
/// A new field keeps the version; a removed or renamed field, or one with another meaning,
/// increments it.
pub const VERSION: u32 = 1;

/// Reason why a file of results cannot be read.
#[derive(Debug, Error)]
pub enum ResultsError {
    /// The file cannot be read.
    #[error("line {line}: {source}")]
    Io {
        /// Line number, from 1.
        line: usize,
        /// Cause.
        source: io::Error,
    },
    /// Not JSON, or not a result.
    #[error("line {line} is not a result: {source}")]
    Form {
        /// Line number, from 1.
        line: usize,
        /// Cause.
        source: serde_json::Error,
    },
    /// Written by another version of this tool.
    #[error("line {line} has version {found}; this tool reads version {VERSION}")]
    Version {
        /// Line number, from 1.
        line: usize,
        /// Its version, or "no".
        found: String,
    },
}

#[derive(Serialize, Deserialize)]
struct Line<P> {
    version: u32,
    simulated: bool,
    #[serde(flatten)]
    point: P,
}

/// One line, with its newline.
///
/// # Errors
/// No point causes one; the type of serde allows for it.
pub fn line(point: &Point) -> serde_json::Result<String> {
    let simulated = point.place == RunOrigin::Simulated;
    let mut text = serde_json::to_string(&Line { version: VERSION, simulated, point })?;
    text.push('\n');
    Ok(text)
}

/// Writes one line and flushes it to the kernel, so that it survives the end of the process.
///
/// # Errors
/// The error of the writer, for example a full disk.
pub fn write(to: &mut impl Write, point: &Point) -> io::Result<()> {
    to.write_all(line(point)?.as_bytes())?;
    to.flush()
}

/// Reads all results.
///
/// An interruption can cut off the last line, so that its newline is missing. That line is dropped,
/// and the second value is its start (in bytes), so that the caller can truncate the file before it
/// appends.
///
/// # Errors
/// See [`ResultsError`](enum@ResultsError).
pub fn read(mut from: impl BufRead) -> Result<(Vec<Point>, u64), ResultsError> {
    let (mut points, mut end) = (Vec::new(), 0);
    let mut text = Vec::new();
    for line in 1.. {
        text.clear();
        let length = from.read_until(b'\n', &mut text);
        let length = length.map_err(|source| ResultsError::Io { line, source })?;
        if text.last() != Some(&b'\n') {
            break;
        }
        end += length as u64;
        if !text.trim_ascii().is_empty() {
            points.push(parse(&text, line)?);
        }
    }
    Ok((points, end))
}

fn parse(text: &[u8], line: usize) -> Result<Point, ResultsError> {
    let form = |source| ResultsError::Form { line, source };
    let value: Value = serde_json::from_slice(text).map_err(form)?;
    // Checked first, because the format depends on the version.
    let found = value.get("version");
    if found.and_then(Value::as_u64) != Some(VERSION.into()) {
        let found = found.map_or_else(|| "no".to_owned(), Value::to_string);
        return Err(ResultsError::Version { line, found });
    }
    serde_json::from_value::<Line<Point>>(value).map(|line| line.point).map_err(form)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::point::tests::point;

    fn lines(points: &[Point]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for point in points {
            write(&mut bytes, point).unwrap();
        }
        bytes
    }

    #[test]
    fn what_is_written_is_read() {
        let points = [point(32, "none"), point(64, "adaptive")];
        let bytes = lines(&points);
        assert_eq!(bytes.iter().filter(|byte| **byte == b'\n').count(), 2);
        let (read, end) = read(bytes.as_slice()).unwrap();
        assert_eq!(read, points);
        assert_eq!(end, bytes.len() as u64);
    }

    #[test]
    fn every_line_has_its_version_and_says_simulated() {
        let value: Value = serde_json::from_slice(&lines(&[point(32, "none")])).unwrap();
        assert_eq!(value["version"], VERSION);
        assert_eq!(value["simulated"], true);
        assert_eq!(value["where"], "simulated");
        assert_eq!(value["series"].as_array().unwrap().len(), 2);
        let real = Point { place: RunOrigin::Local, ..point(32, "none") };
        let value: Value = serde_json::from_slice(&lines(&[real])).unwrap();
        assert_eq!((&value["simulated"], &value["where"]), (&false.into(), &"local".into()));
    }

    #[test]
    fn a_line_cut_off_at_any_byte_is_left_out_and_the_rest_kept() {
        let whole = lines(&[point(32, "none")]);
        let both = lines(&[point(32, "none"), point(64, "none")]);
        for cut in whole.len()..both.len() {
            let (read, end) = read(&both[..cut]).unwrap();
            assert_eq!(read.len(), 1, "cut at {cut}");
            assert_eq!(end, whole.len() as u64, "cut at {cut}");
        }
    }

    #[test]
    fn another_version_and_garbage_are_refused_with_their_line() {
        let good = String::from_utf8(lines(&[point(32, "none")])).unwrap();
        let newer = good.replace("\"version\":1", "\"version\":2");
        let error = read(format!("{good}{newer}").as_bytes()).unwrap_err().to_string();
        assert_eq!(error, "line 2 has version 2; this tool reads version 1");
        let error = read(b"{}\n".as_slice()).unwrap_err().to_string();
        assert_eq!(error, "line 1 has version no; this tool reads version 1");
        let error = read(format!("{good}\nnonsense\n").as_bytes()).unwrap_err().to_string();
        assert!(error.starts_with("line 3 is not a result: "), "{error}");
        let error = read(b"{\"version\":1}\n".as_slice()).unwrap_err().to_string();
        assert!(error.contains("missing field"), "{error}");
    }
}
