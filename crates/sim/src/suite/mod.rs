//! The acceptance suite of `adaptive`: families of runs with bounds, each judged on its own.
//!
//! ```text
//! Family -> Cases -> (runs on a platform, references found by other runs) -> Verdict
//! ```
//!
//! A [`Case`] runs the policy under test on one or more machines and holds what comes out against
//! bounds. Where a bound speaks of "the best static setting" or of "an endless cache", the
//! [`Lab`] finds that reference by running it, on the same machine with the same seed. Every run
//! is also held to the checkers: a violation of theirs fails the case whatever the figures.
//!
//! A case is judged with a few seeds, where these do not agree with many, and by what is in the middle of them
//! (`several.rs`).

mod cores;
mod depth;
mod gaps;
mod lab;
mod machines;
mod scale;
mod several;
mod slow;
mod small;
mod stall;
mod table;
mod tenants;
mod verdict;

use std::fmt;

pub use gaps::{Gap, as_list, disagreements, known_gaps};
pub use lab::{Extent, Lab, SuiteError};
pub use several::Seeds;
pub use table::{Style, heading, line};
pub use verdict::{Bound, Check, Figures, Verdict};

/// Seeds that tests, pages and the example judge a case with unless told otherwise.
pub const SEEDS: u64 = 3;
/// And all of them, where those do not agree whether every bound is kept.
pub const SEEDS_TO_DECIDE: u64 = 15;

/// What is asked of a policy, one kind of question a family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// Line rate at every queue depth, with few buffers and little spread.
    Depth,
    /// Any number of target cores; every queue is served.
    Cores,
    /// Slow devices beside fast ones.
    Slow,
    /// Stalls and changes of the link's rate.
    Stall,
    /// Other caches, drives, block sizes and mixes.
    Machines,
    /// Small commands among large ones.
    Small,
    /// The same machine in other units.
    Scale,
    /// Users with weights.
    Tenants,
}

impl Family {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Depth,
        Self::Cores,
        Self::Slow,
        Self::Stall,
        Self::Machines,
        Self::Small,
        Self::Scale,
        Self::Tenants,
    ];

    /// Its name on a command line.
    #[must_use]
    pub fn name(self) -> &'static str {
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

    /// The one of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|family| family.name() == name)
    }

    /// What it asks, with the bounds.
    #[must_use]
    pub fn about(self) -> &'static str {
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

    /// Its cases on the platforms of this lab.
    #[must_use]
    pub fn cases(self, lab: &Lab) -> Vec<Case> {
        match self {
            Self::Depth => depth::cases(lab),
            Self::Cores => cores::cases(lab),
            Self::Slow => slow::cases(lab),
            Self::Stall => stall::cases(lab),
            Self::Machines => machines::cases(lab),
            Self::Small => small::cases(lab),
            Self::Scale => scale::cases(lab),
            Self::Tenants => tenants::cases(lab),
        }
    }
}

type Judge = Box<dyn Fn(&Lab) -> Result<Verdict, SuiteError> + Send + Sync>;

/// One question with a yes or no for an answer.
pub struct Case {
    /// Of which family.
    pub family: Family,
    /// Platform and case, the same in every run of the suite.
    pub name: String,
    judge: Judge,
}

impl Case {
    fn new(
        family: Family,
        name: impl Into<String>,
        judge: impl Fn(&Lab) -> Result<Verdict, SuiteError> + Send + Sync + 'static,
    ) -> Self {
        Self { family, name: name.into(), judge: Box::new(judge) }
    }

    /// Runs it.
    ///
    /// # Errors
    /// [`SuiteError`] when a scenario cannot be run at all; a bound that is not kept is no error.
    pub fn judge(&self, lab: &Lab) -> Result<Verdict, SuiteError> {
        let start = std::time::Instant::now();
        let mut verdict = (self.judge)(lab)?;
        verdict.real_seconds = start.elapsed().as_secs_f64();
        (verdict.judged, verdict.missed) = (1, usize::from(!verdict.passes()));
        Ok(verdict)
    }
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.family.name(), self.name)
    }
}
