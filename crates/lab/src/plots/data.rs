//! Input files of the figures and tables.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use anyhow::{Context, Result};
use nvmeof_report::{Point, json};
use serde::{Deserialize, Serialize};

use crate::bench::pacing::activity::PacerActivity;
use crate::output;
use crate::rows::{self, ResultRow};

/// File below [`super::FOLDER`].
pub(super) const SIMULATED: &str = "simulated.jsonl";
pub(super) const MEASURED: &str = "measured.jsonl";
pub(super) const ACTIVITY: &str = "activity.json";
pub(super) const SUITE: &str = "suite.jsonl";
pub(super) const TRIED: &str = "tried.csv";
/// Deviation of the simulator from the measurements with io_pacing; a test of the simulator checks
/// it.
pub(super) const CALIBRATION: &str = "calibration.txt";

/// All data behind the pages.
#[derive(Debug, Default)]
pub(super) struct PlotData {
    pub(super) simulated: Vec<Point>,
    /// Empty until a real run is committed.
    pub(super) measured: Vec<Point>,
    /// The pacer's activity in one real run; `None` until one is committed.
    pub(super) activity: Option<PacerActivity>,
    /// Rows measured with the Mellanox SPDK io_pacing prototype.
    pub(super) published: Vec<ResultRow>,
    pub(super) suite: Vec<SuiteCase>,
    pub(super) tried: Vec<Experiment>,
    pub(super) calibration: String,
    /// The contents of the fourteen tests, with verdicts.
    pub(super) contents: String,
}

/// Verdict of the acceptance suite on a case.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct SuiteCase {
    pub(super) family: String,
    /// Question that the family answers.
    pub(super) about: String,
    pub(super) case: String,
    pub(super) met: bool,
    /// Number of runs, one per seed; the case has their median.
    pub(super) runs: usize,
    /// Number of runs that missed a bound.
    pub(super) missed: usize,
    pub(super) gbps: f64,
    /// Percent of the reference, if there is one.
    pub(super) percent: Option<f64>,
    pub(super) checks: Vec<BoundCheck>,
    /// Violations that the machine's checkers found.
    pub(super) violations: Vec<String>,
}

/// A bound and the value compared with it; no value: never.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct BoundCheck {
    pub(super) what: String,
    pub(super) value: Option<f64>,
    /// `>=` or `<=`.
    pub(super) sign: String,
    pub(super) bound: f64,
    pub(super) holds: bool,
}

/// An experiment of the design note.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Experiment {
    pub(super) question: String,
    /// Platform, load, change, Gb/s.
    pub(super) cells: Vec<String>,
}

impl PlotData {
    /// Loads the committed data below this root.
    pub(super) fn load(root: &Path) -> Result<Self> {
        let folder = root.join(super::FOLDER);
        Ok(Self {
            simulated: points(&folder.join(SIMULATED))?,
            measured: points(&folder.join(MEASURED))?,
            activity: activity(&text(&folder.join(ACTIVITY))?)?,
            published: rows::read(&root.join(rows::PUBLISHED))?,
            suite: cases(&text(&folder.join(SUITE))?)?,
            tried: tried(&text(&folder.join(TRIED))?),
            calibration: text(&folder.join(CALIBRATION))?,
            contents: super::measuring::contents(root)?,
        })
    }
}

pub(super) fn write_points(file: &Path, points: &[Point]) -> Result<()> {
    let lines: serde_json::Result<String> = points.iter().map(json::line).collect();
    output::write(file, &lines?)
}

pub(super) fn write_cases(file: &Path, cases: &[SuiteCase]) -> Result<()> {
    let line = |case: &SuiteCase| Ok(serde_json::to_string(case)? + "\n");
    let lines: Result<String> = cases.iter().map(line).collect();
    output::write(file, &lines?)
}

/// Reads points; none if the file does not exist.
fn points(file: &Path) -> Result<Vec<Point>> {
    if file.try_exists()? { crate::points::read(file) } else { Ok(Vec::new()) }
}

/// Reads a file; empty if it does not exist.
fn text(file: &Path) -> Result<String> {
    match fs::read_to_string(file) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(String::new()),
        read => read.with_context(|| format!("cannot read {}", file.display())),
    }
}

pub(super) fn activity(text: &str) -> Result<Option<PacerActivity>> {
    if text.is_empty() {
        return Ok(None);
    }
    serde_json::from_str(text).map(Some).context(ACTIVITY)
}

fn cases(text: &str) -> Result<Vec<SuiteCase>> {
    text.lines().map(|line| serde_json::from_str(line).context(SUITE)).collect()
}

/// Parses lines of question, platform, load, variant and Gb/s; `#` begins a remark.
fn tried(text: &str) -> Vec<Experiment> {
    let lines = text.lines().filter(|line| !line.starts_with('#')).skip(1);
    lines
        .map(|line| {
            let mut cells = line.split(',').map(|cell| cell.trim().to_owned());
            Experiment { question: cells.next().unwrap_or_default(), cells: cells.collect() }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::tried;

    #[test]
    fn experiments_have_a_head_and_remarks() {
        let found = tried("# how\nquestion,platform\nlag,A,x\n");
        assert_eq!((found.len(), found[0].question.as_str()), (1, "lag"));
        assert_eq!(found[0].cells, ["A", "x"]);
    }
}
