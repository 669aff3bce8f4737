//! Plans: TOML in, checked points out.
//!
//! ```text
//! text, --set --expand--> one document per point, each value with its position
//!      --raw-----> the known keys
//!      --check---> Setup, or the errors: file:line:column: key: problem; allowed
//! ```
//!
//! Every point of every group is checked, including points that will not run.

mod check;
mod expand;
mod pacing;
mod problem;
mod raw;
mod settings;
#[cfg(test)]
mod tests;
mod units;

use std::path::Path;

use nvmeof_report::VariedKey;
use toml::Deserializer;

use super::setup::{HostJob, PointSetup};

use expand::ExpandedPlan;
use problem::{ProblemReport, closest};
use raw::RawPlan;
use settings::Settings;

pub(crate) use problem::PlanError;
pub(crate) use units::show_size;

/// Measured time of a point in nanoseconds, if the plan is only tried.
const SHORT_TIME: u64 = 200_000_000;
const SHORT_RAMP: u64 = 100_000_000;

/// A plan and its points.
#[derive(Debug, Clone)]
pub(crate) struct SweepPlan {
    /// Name of the plan; results carry it.
    pub(crate) name: String,
    /// The test it runs.
    pub(crate) test: String,
    /// Purpose of the plan, for the page.
    pub(crate) about: String,
    /// Points in the order they run; at least one.
    pub(crate) points: Vec<PlannedPoint>,
}

/// One point.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PlannedPoint {
    /// Varied keys, in the order of the file.
    pub(crate) varied: Vec<VariedKey>,
    /// Platforms of the point; empty: all.
    pub(crate) only_platform: Vec<String>,
    /// Backends of the point; empty: all.
    pub(crate) only_where: Vec<String>,
    /// Configuration of the run.
    pub(crate) setup: PointSetup,
}

impl PlannedPoint {
    /// Returns whether the point is meant to run there.
    pub(crate) fn runs_on(&self, platform: &str, place: &str) -> bool {
        let meant =
            |only: &[String], name: &str| only.is_empty() || only.iter().any(|word| word == name);
        meant(&self.only_platform, platform) && meant(&self.only_where, place)
    }
}

impl SweepPlan {
    /// Reads and checks a plan.
    ///
    /// # Errors
    /// Returns every problem, with file, line and key.
    pub(crate) fn load(file: &Path) -> Result<Self, PlanError> {
        Self::load_with(file, &[])
    }

    /// Reads and checks a plan with settings `KEY=VALUE`, which replace those of the plan.
    ///
    /// # Errors
    /// Like [`SweepPlan::load`].
    pub(crate) fn load_with(file: &Path, settings: &[String]) -> Result<Self, PlanError> {
        let name = file.display().to_string();
        let text = std::fs::read_to_string(file).map_err(|error| PlanError {
            problems: vec![format!("{name}: cannot read the file: {error}")],
        })?;
        let mut plan = Self::parse_with(&name, &text, settings)?;
        let folder = file.parent().unwrap_or(Path::new(""));
        for PlannedPoint { setup, .. } in &mut plan.points {
            setup.config = setup.config.take().map(|config| folder.join(config));
        }
        Ok(plan)
    }

    /// Shortens every point and runs it once; points with an event at a set time keep their times.
    pub(crate) fn shorten(&mut self) {
        for PlannedPoint { setup, .. } in &mut self.points {
            setup.repeat = 1;
            let timed = |job: &HostJob| job.from > 0 || job.until.is_some();
            if setup.disturbances.is_empty() && !setup.jobs.iter().any(timed) {
                setup.time = setup.time.min(SHORT_TIME);
                setup.ramp = setup.ramp.min(SHORT_RAMP);
            }
        }
    }

    /// Checks a text; `file` is only its name in errors.
    #[cfg(test)]
    pub(crate) fn parse(file: &str, text: &str) -> Result<Self, PlanError> {
        Self::parse_with(file, text, &[])
    }

    fn parse_with(file: &str, text: &str, settings: &[String]) -> Result<Self, PlanError> {
        let settings = Settings::after(text, settings)?;
        let mut report = ProblemReport::new(file, &settings.text, text.len());
        let plan = read(&mut report, &settings);
        match plan {
            Some(plan) if report.is_clean() => Ok(plan),
            _ => Err(report.into_error()),
        }
    }
}

fn read<'a>(report: &mut ProblemReport<'a>, settings: &'a Settings) -> Option<SweepPlan> {
    let mut plan: Option<SweepPlan> = None;
    for expanded in expand::expand(report, settings)? {
        let Some(raw) = raw(report, &expanded) else { continue };
        let Some(setup) = check::setup(report, &raw) else { continue };
        let (name, test, about) = check::names(report, &raw)?;
        let plan = plan.get_or_insert_with(|| SweepPlan { name, test, about, points: Vec::new() });
        let varied = expanded.varied.into_iter().map(|(key, value)| VariedKey { key, value });
        let point = PlannedPoint {
            varied: varied.collect(),
            only_platform: expanded.only_platform,
            only_where: expanded.only_where,
            setup,
        };
        let same = |other: &PlannedPoint| {
            other.varied == point.varied
                && other.only_platform == point.only_platform
                && other.only_where == point.only_where
        };
        if plan.points.iter().any(same) {
            // A setting can make two points of a plan the same.
            if !settings.is_empty() {
                continue;
            }
            let values = point.varied.iter().map(|v| format!("{} = {}", v.key, v.value));
            let what = format!("the same point twice: {}", values.collect::<Vec<_>>().join(", "));
            report.error_in_file("vary", &what, "load.repeat, to run a point several times");
            return None;
        }
        plan.points.push(point);
    }
    plan
}

fn raw(report: &mut ProblemReport<'_>, point: &ExpandedPlan<'_>) -> Option<RawPlan> {
    match serde::Deserialize::deserialize(Deserializer::from(point.document.clone())) {
        Ok(raw) => Some(raw),
        Err(error) => {
            explain(report, point, &error);
            None
        }
    }
}

/// Reports the parser's error in the form of a plan's errors.
fn explain(report: &mut ProblemReport<'_>, point: &ExpandedPlan<'_>, error: &toml::de::Error) {
    let span = error.span().unwrap_or(0..0);
    let message = error.message();
    let key = expand::key_at(point.document.get_ref(), &span);
    if let Some((unknown, known)) = unknown_field(message) {
        let meant = closest(unknown, &known);
        let meant = meant.map_or_else(String::new, |name| format!(" (did you mean `{name}`?)"));
        report.error(&span, &key, "unknown key", &format!("{}{meant}", known.join(", ")));
    } else if let Some((what, expected)) = message.split_once(", expected ") {
        report.error(&span, &key, what, expected);
    } else {
        report.error(&span, &key, "is of the wrong kind", message);
    }
}

/// Parses serde's message about an unknown field: its name and the known fields.
fn unknown_field(message: &str) -> Option<(&str, Vec<&str>)> {
    let rest = message.strip_prefix("unknown field `")?;
    let (unknown, rest) = rest.split_once('`')?;
    // Every second part between backticks is a name.
    Some((unknown, rest.split('`').skip(1).step_by(2).collect()))
}
