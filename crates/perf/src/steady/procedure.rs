//! The procedure: determines the next step from the earlier ones.
//!
//! It has no clock and does no I/O: a resumed test replays its earlier outcomes.
//!
//! ```text
//!            +------------------------------- next test -------------------------------+
//!            v                                                                         |
//!          Purge --purged--> Fill --filled--> Round --its last point--> steady? --yes--+
//!            |                                  ^  ^                       | no        |
//!            '-- write saturation: no filling --'  '-- fewer rounds than --+           |
//!                                                      allowed             '-- else ---+
//!                                                                                      |
//!          Over <----------------------------- no test left --------------------------+
//! ```
//!
//! A round of write saturation is one sample. Its end is the number of bytes written, or its time.

use std::time::Duration;

use nvmeof_report::steady::{Preparation, Reading, Round, Setup, Study, Test, TestRun, Verdict};

use super::bench::{Point, Until};
use super::judge;
use super::plan::Plan;

/// A drive test in progress.
#[derive(Debug)]
pub(crate) struct Procedure {
    plan: Plan,
    /// The last one is in progress, unless the stage is `Over`.
    runs: Vec<TestRun>,
    stage: Stage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Purge(Test),
    Fill(Test),
    /// Point number `at` of the last round.
    Round(Test, usize),
    Over,
}

/// The next step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Next {
    Purge(Test),
    Fill(Test, Point),
    Measure(Test, Point),
    Over,
}

/// Outcome of a step.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Outcome {
    Purged(Preparation),
    Filled(Preparation),
    Measured(Reading),
}

/// An outcome that does not fit the next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it has {found} where {wanted} was next")]
pub(crate) struct OutOfTurn {
    found: &'static str,
    wanted: &'static str,
}

impl Procedure {
    pub(crate) fn new(plan: Plan) -> Self {
        let mut this = Self { plan, runs: Vec::new(), stage: Stage::Over };
        this.go_on();
        this
    }

    /// The next step; the same until [`Procedure::take`] receives its outcome.
    pub(crate) fn next(&self) -> Next {
        match self.stage {
            Stage::Over => Next::Over,
            Stage::Purge(test) => Next::Purge(test),
            Stage::Fill(test) => {
                let (workload, bytes) = self.plan.fill();
                Next::Fill(test, Point { workload, until: Until::Bytes(bytes), seed: self.seed(0) })
            }
            Stage::Round(test, at) => {
                let seconds = match test {
                    Test::Saturation => self.plan.saturation.sample,
                    _ => self.plan.seconds,
                };
                let workload = self.plan.points(test)[at];
                let until = Until::Time(Duration::from_secs_f64(seconds));
                Next::Measure(test, Point { workload, until, seed: self.seed(at + 1) })
            }
        }
    }

    /// Takes the outcome of [`Procedure::next`].
    ///
    /// # Errors
    /// Another step was next: nothing has changed.
    pub(crate) fn take(&mut self, outcome: Outcome) -> Result<(), OutOfTurn> {
        let wanted = match self.stage {
            Stage::Purge(_) => "a purge",
            Stage::Fill(_) => "preconditioning",
            Stage::Round(..) => "a reading of another workload",
            Stage::Over => "nothing",
        };
        let found = match &outcome {
            Outcome::Purged(_) => "a purge",
            Outcome::Filled(_) => "preconditioning",
            Outcome::Measured(_) => "a reading",
        };
        let out_of_turn = OutOfTurn { found, wanted };
        let run = self.runs.last_mut().ok_or(out_of_turn)?;
        match (self.stage, outcome) {
            (Stage::Purge(test), Outcome::Purged(done)) => {
                run.purge = Some(done);
                self.stage = match test {
                    Test::Saturation => Stage::Round(test, 0),
                    _ => Stage::Fill(test),
                };
            }
            (Stage::Fill(test), Outcome::Filled(done)) => {
                run.precondition = Some(done);
                self.stage = Stage::Round(test, 0);
            }
            (Stage::Round(test, at), Outcome::Measured(reading)) => {
                let points = self.plan.points(test);
                if points[at] != reading.workload {
                    return Err(out_of_turn);
                }
                if at == 0 {
                    run.rounds.push(Round::default());
                }
                if let Some(round) = run.rounds.last_mut() {
                    round.readings.push(reading);
                }
                if at + 1 < points.len() {
                    self.stage = Stage::Round(test, at + 1);
                } else {
                    self.judge(test);
                }
            }
            _ => return Err(out_of_turn),
        }
        Ok(())
    }

    /// Test and number of a round that has just ended, and its value that must become steady.
    pub(crate) fn ended_round(&self) -> Option<(Test, usize, f64)> {
        if matches!(self.stage, Stage::Fill(_) | Stage::Round(_, 1..)) {
            return None;
        }
        let run = self.runs.iter().rev().find(|run| !run.rounds.is_empty())?;
        let value = run.rounds.last()?.variable(run.test)?;
        Some((run.test, run.rounds.len(), value))
    }

    /// The tests so far.
    pub(crate) fn study(&self, setup: Setup, partial: String, resumed: usize) -> Study {
        Study { setup, tests: self.runs.clone(), partial, resumed }
    }

    /// Judges a completed round of `test`.
    fn judge(&mut self, test: Test) {
        let Some(run) = self.runs.last_mut() else { return };
        let verdict = match test {
            Test::Saturation => saturated(&self.plan, run),
            _ => steady(&self.plan, run),
        };
        match verdict {
            Some(verdict) => {
                run.verdict = verdict;
                self.go_on();
            }
            None => self.stage = Stage::Round(test, 0),
        }
    }

    /// Moves to the next test.
    fn go_on(&mut self) {
        let next = self.plan.tests.get(self.runs.len()).copied();
        self.stage = next.map_or(Stage::Over, Stage::Purge);
        self.runs.extend(next.map(|test| TestRun {
            test,
            purge: None,
            precondition: None,
            rounds: Vec::new(),
            verdict: Verdict::Cut,
        }));
    }

    fn seed(&self, point: usize) -> u64 {
        let rounds = self.runs.last().map_or(0, |run| run.rounds.len());
        let parts =
            [self.runs.len(), rounds, point].map(|part| u64::try_from(part).unwrap_or(u64::MAX));
        parts.into_iter().fold(self.plan.seed, |seed, part| crate::rng::mix(seed ^ part))
    }
}

fn steady(plan: &Plan, run: &TestRun) -> Option<Verdict> {
    let window = judge::window(&run.variables())?;
    if judge::is_steady(&window) {
        return Some(Verdict::Steady(window));
    }
    let most = plan.rounds;
    (run.rounds.len() >= most).then_some(Verdict::Unsteady { window, most })
}

fn saturated(plan: &Plan, run: &TestRun) -> Option<Verdict> {
    let readings = || run.rounds.iter().flat_map(|round| &round.readings);
    let written: u64 = readings().map(|reading| reading.bytes).sum();
    let seconds: f64 = readings().map(|reading| reading.seconds).sum();
    // Samples are slightly shorter than requested.
    let half_a_sample = plan.saturation.sample / 2.0;
    let why = if written >= plan.saturation_bytes() {
        format!("{} x capacity written", plan.saturation.fills)
    } else if seconds + half_a_sample >= plan.saturation.seconds {
        match plan.quick {
            true => format!("its {} s of quick mode were over", plan.saturation.seconds),
            false => format!("{} hours were over", plan.saturation.seconds / 3600.0),
        }
    } else {
        return None;
    };
    Some(Verdict::Over { why })
}
