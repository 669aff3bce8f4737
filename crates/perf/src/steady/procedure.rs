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

use nvmeof_report::steady::{
    DriveTest, DriveTestSetup, Measurement, Preparation, SteadyStateResult, TestKind, TestRound,
    TestRun,
};

use super::drive_under_test::{DriveTestPoint, PointEnd};
use super::judge;
use super::plan::DriveTestPlan;

/// A drive test in progress.
#[derive(Debug)]
pub(crate) struct Procedure {
    plan: DriveTestPlan,
    /// The last one is in progress, unless the stage is `Over`.
    runs: Vec<TestRun>,
    stage: Stage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Purge(TestKind),
    Fill(TestKind),
    /// Point number `at` of the last round.
    Round(TestKind, usize),
    Over,
}

/// The next step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum NextStep {
    Purge(TestKind),
    Fill(TestKind, DriveTestPoint),
    Measure(TestKind, DriveTestPoint),
    Over,
}

/// Outcome of a step.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum StepOutcome {
    Purged(Preparation),
    Filled(Preparation),
    Measured(Measurement),
}

/// An outcome that does not fit the next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the file has {found} where {wanted} was expected")]
pub(crate) struct UnexpectedOutcome {
    found: &'static str,
    wanted: &'static str,
}

impl Procedure {
    pub(crate) fn new(plan: DriveTestPlan) -> Self {
        let mut this = Self { plan, runs: Vec::new(), stage: Stage::Over };
        this.advance();
        this
    }

    /// The next step; the same until [`Procedure::take`] receives its outcome.
    pub(crate) fn next(&self) -> NextStep {
        match self.stage {
            Stage::Over => NextStep::Over,
            Stage::Purge(test) => NextStep::Purge(test),
            Stage::Fill(test) => {
                let (workload, bytes) = self.plan.fill();
                NextStep::Fill(
                    test,
                    DriveTestPoint { workload, until: PointEnd::Bytes(bytes), seed: self.seed(0) },
                )
            }
            Stage::Round(test, at) => {
                let workload = self.plan.points(test)[at];
                let seconds = self.plan.point_seconds(test);
                let until = PointEnd::Time(Duration::from_secs_f64(seconds));
                NextStep::Measure(test, DriveTestPoint { workload, until, seed: self.seed(at + 1) })
            }
        }
    }

    /// Takes the outcome of [`Procedure::next`].
    ///
    /// # Errors
    /// Another step was next: nothing has changed.
    pub(crate) fn take(&mut self, outcome: StepOutcome) -> Result<(), UnexpectedOutcome> {
        let wanted = match self.stage {
            Stage::Purge(_) => "a purge",
            Stage::Fill(_) => "preconditioning",
            Stage::Round(..) => "a reading of another workload",
            Stage::Over => "nothing",
        };
        let found = match &outcome {
            StepOutcome::Purged(_) => "a purge",
            StepOutcome::Filled(_) => "preconditioning",
            StepOutcome::Measured(_) => "a reading",
        };
        let unexpected = UnexpectedOutcome { found, wanted };
        let run = self.runs.last_mut().ok_or(unexpected)?;
        match (self.stage, outcome) {
            (Stage::Purge(test), StepOutcome::Purged(done)) => {
                run.purge = Some(done);
                self.stage = match test {
                    TestKind::Saturation => Stage::Round(test, 0),
                    _ => Stage::Fill(test),
                };
            }
            (Stage::Fill(test), StepOutcome::Filled(done)) => {
                run.precondition = Some(done);
                self.stage = Stage::Round(test, 0);
            }
            (Stage::Round(test, at), StepOutcome::Measured(measurement)) => {
                let points = self.plan.points(test);
                if points[at] != measurement.workload {
                    return Err(unexpected);
                }
                if at == 0 {
                    run.rounds.push(TestRound::default());
                }
                if let Some(round) = run.rounds.last_mut() {
                    round.measurements.push(measurement);
                }
                if at + 1 < points.len() {
                    self.stage = Stage::Round(test, at + 1);
                } else {
                    self.judge(test);
                }
            }
            _ => return Err(unexpected),
        }
        Ok(())
    }

    /// Test and number of a round that has just ended, and its value that must become steady.
    pub(crate) fn ended_round(&self) -> Option<(TestKind, usize, f64)> {
        if matches!(self.stage, Stage::Fill(_) | Stage::Round(_, 1..)) {
            return None;
        }
        let run = self.runs.iter().rev().find(|run| !run.rounds.is_empty())?;
        let value = run.rounds.last()?.variable(run.test)?;
        Some((run.test, run.rounds.len(), value))
    }

    /// The tests so far.
    pub(crate) fn drive_test(
        &self,
        setup: DriveTestSetup,
        partial: String,
        resumed: usize,
    ) -> DriveTest {
        DriveTest { setup, tests: self.runs.clone(), partial, resumed }
    }

    /// Judges a completed round of `test`.
    fn judge(&mut self, test: TestKind) {
        let Some(run) = self.runs.last_mut() else { return };
        let result = match test {
            TestKind::Saturation => saturated(&self.plan, run),
            _ => steady(&self.plan, run),
        };
        match result {
            Some(result) => {
                run.result = result;
                self.advance();
            }
            None => self.stage = Stage::Round(test, 0),
        }
    }

    /// Moves to the next test.
    fn advance(&mut self) {
        let next = self.plan.tests.get(self.runs.len()).copied();
        self.stage = next.map_or(Stage::Over, Stage::Purge);
        self.runs.extend(next.map(|test| TestRun {
            test,
            planned: self.plan.steps(test),
            purge: None,
            precondition: None,
            rounds: Vec::new(),
            result: SteadyStateResult::Cut,
        }));
    }

    fn seed(&self, point: usize) -> u64 {
        let rounds = self.runs.last().map_or(0, |run| run.rounds.len());
        let parts =
            [self.runs.len(), rounds, point].map(|part| u64::try_from(part).unwrap_or(u64::MAX));
        parts.into_iter().fold(self.plan.seed, |seed, part| nvmeof_random::mix(seed ^ part))
    }
}

fn steady(plan: &DriveTestPlan, run: &TestRun) -> Option<SteadyStateResult> {
    let window = judge::window(&run.variables())?;
    if judge::is_steady(&window) {
        return Some(SteadyStateResult::Steady(window));
    }
    let most = plan.rounds;
    (run.rounds.len() >= most).then_some(SteadyStateResult::Unsteady { window, most })
}

fn saturated(plan: &DriveTestPlan, run: &TestRun) -> Option<SteadyStateResult> {
    let measurements = || run.rounds.iter().flat_map(|round| &round.measurements);
    let written: u64 = measurements().map(|measurement| measurement.bytes).sum();
    let seconds: f64 = measurements().map(|measurement| measurement.seconds).sum();
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
    Some(SteadyStateResult::Over { why })
}
