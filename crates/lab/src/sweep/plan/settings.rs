//! Settings of the command line, `KEY=VALUE`, which replace values of a plan.
//!
//! They stand after the plan in one text, so that every value of a point has a position in it.

use std::ops::Range;

use toml::de::DeTable;

use super::expand::{Assignment, flatten};
use super::problem::{PlanError, ProblemReport};

/// The plan's text with the settings after it.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) text: String,
    /// The text of each setting, with spaces in place of the text before it.
    alone: Vec<String>,
}

impl Settings {
    /// Appends the settings to the text of a plan.
    pub(super) fn after(plan: &str, settings: &[String]) -> Result<Self, PlanError> {
        let mut text = plan.to_owned();
        let mut places: Vec<Range<usize>> = Vec::new();
        for setting in settings {
            text.push('\n');
            let start = text.len();
            text.push_str(&line(setting)?);
            places.push(start..text.len());
        }
        let alone = |at: &Range<usize>| " ".repeat(at.start) + &text[at.clone()];
        let alone = places.iter().map(alone).collect();
        Ok(Self { text, alone })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.alone.is_empty()
    }

    /// Returns the values with their keys, or `None` after reporting an error.
    pub(super) fn assignments<'a>(
        &'a self,
        report: &mut ProblemReport<'_>,
    ) -> Option<Vec<Assignment<'a>>> {
        let mut assignments = Vec::new();
        for text in &self.alone {
            match DeTable::parse(text) {
                Ok(table) => flatten("", "", table.into_inner(), &mut assignments),
                Err(error) => {
                    report.error(&error.span().unwrap_or(0..0), "", error.message(), "");
                    return None;
                }
            }
        }
        if let Some(varied) = assignments.iter().find(|one| one.key.starts_with("vary.")) {
            let what = "cannot be set; set the key itself, which then does not vary";
            report.error(&varied.span, &varied.key, what, "");
            return None;
        }
        Some(assignments)
    }
}

/// Returns a setting as a line of TOML. A value that is none is text without its quotes.
fn line(setting: &str) -> Result<String, PlanError> {
    let wrong = || PlanError {
        problems: vec![format!(
            "--set {setting}: is no setting; write KEY=VALUE, as load.block-size=64KiB"
        )],
    };
    let (key, value) = setting.split_once('=').ok_or_else(wrong)?;
    let (key, value) = (key.trim(), value.trim());
    if key.is_empty() || value.is_empty() || setting.contains('\n') {
        return Err(wrong());
    }
    let plain = format!("{key} = {value}");
    if plain.parse::<toml::Table>().is_ok() {
        return Ok(plain);
    }
    Ok(format!("{key} = {}", toml::Value::String(value.to_owned())))
}
