//! Acceptance suite of `adaptive`: families of cases with bounds, each judged separately.
//!
//! ```text
//! Family -> Cases -> (runs on a platform, references found by other runs) -> Verdict
//! ```
//!
//! A [`Case`] runs the policy under test on one or more machines and compares the results with
//! bounds. Where a bound refers to "the best static setting" or "an endless cache", the
//! [`SuiteRunner`] runs that reference, on the same machine with the same seed. The checkers apply
//! to every run, too: a violation fails the case whatever the figures.
//!
//! A case is judged with a few seeds, or with many if the few disagree, and by their median
//! (`several.rs`).

mod case_result;
pub(crate) mod command;
mod cores;
mod depth;
mod gaps;
mod machines;
mod runner;
mod scale;
mod several;
mod slow;
mod small;
mod stall;
mod table;
mod tenants;
#[cfg(test)]
mod tests;

use std::fmt;

pub(crate) use case_result::{CaseBound, CaseResult, Check};
pub(crate) use gaps::as_list;
#[cfg(test)]
pub(crate) use gaps::{disagreements, known_gaps};
pub(crate) use runner::{SuiteError, SuiteMode, SuiteRunner};
pub(crate) use several::Seeds;
pub(crate) use table::{Style, heading, line};

/// Number of seeds of a case in tests, on pages and in the example, by default.
pub(crate) const SEEDS: u64 = 3;
/// Total number of seeds if the first ones disagree about the bounds.
pub(crate) const SEEDS_TO_DECIDE: u64 = 15;

/// Family of cases: one kind of requirement on a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Family {
    /// Line rate at every queue depth, with a small deviation.
    Depth,
    /// Any number of target cores; every queue is served.
    Cores,
    /// Slow devices alongside fast ones.
    Slow,
    /// Stalls and changes of the link rate.
    Stall,
    /// Other caches, drives, block sizes and mixes.
    Machines,
    /// Small commands among large ones.
    Small,
    /// The same machine in other units.
    Scale,
    /// Tenants with weights.
    Tenants,
}

impl Family {
    /// All families.
    pub(crate) const ALL: [Self; 8] = [
        Self::Depth,
        Self::Cores,
        Self::Slow,
        Self::Stall,
        Self::Machines,
        Self::Small,
        Self::Scale,
        Self::Tenants,
    ];

    /// Returns its name on a command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Depth => "depth",
            Self::Cores => "cores",
            Self::Slow => "slow",
            Self::Stall => "stall",
            Self::Machines => "machines",
            Self::Small => "small",
            Self::Scale => "scale",
            Self::Tenants => "tenants",
        }
    }

    /// Finds the family with this name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|family| family.name() == name)
    }

    /// Returns its requirement, with the bounds.
    pub(crate) fn about(self) -> &'static str {
        match self {
            Self::Depth => depth::ABOUT,
            Self::Cores => cores::ABOUT,
            Self::Slow => slow::ABOUT,
            Self::Stall => stall::ABOUT,
            Self::Machines => machines::ABOUT,
            Self::Small => small::ABOUT,
            Self::Scale => scale::ABOUT,
            Self::Tenants => tenants::ABOUT,
        }
    }

    /// Returns its cases on the platforms of this lab.
    pub(crate) fn cases(self, runner: &SuiteRunner) -> Vec<Case> {
        match self {
            Self::Depth => depth::cases(runner),
            Self::Cores => cores::cases(runner),
            Self::Slow => slow::cases(runner),
            Self::Stall => stall::cases(runner),
            Self::Machines => machines::cases(runner),
            Self::Small => small::cases(runner),
            Self::Scale => scale::cases(runner),
            Self::Tenants => tenants::cases(runner),
        }
    }
}

type Judge = Box<dyn Fn(&SuiteRunner) -> Result<CaseResult, SuiteError> + Send + Sync>;

/// One requirement that passes or fails.
pub(crate) struct Case {
    /// Its family.
    pub(crate) family: Family,
    /// Platform and case, the same in every run of the suite.
    pub(crate) name: String,
    judge: Judge,
}

impl Case {
    fn new(
        family: Family,
        name: impl Into<String>,
        judge: impl Fn(&SuiteRunner) -> Result<CaseResult, SuiteError> + Send + Sync + 'static,
    ) -> Self {
        Self { family, name: name.into(), judge: Box::new(judge) }
    }

    /// Runs the case.
    ///
    /// # Errors
    /// [`SuiteError`] when a scenario cannot be run; a missed bound is no error.
    pub(crate) fn judge(&self, runner: &SuiteRunner) -> Result<CaseResult, SuiteError> {
        let start = std::time::Instant::now();
        let mut case_result = (self.judge)(runner)?;
        case_result.real_seconds = start.elapsed().as_secs_f64();
        (case_result.judged, case_result.missed) = (1, usize::from(!case_result.passes()));
        Ok(case_result)
    }
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.family.name(), self.name)
    }
}
