//! Runs a procedure on a drive from the first step to the last, with a results file.

use std::time::Instant;

use nvmeof_report::steady::Preparation;

use super::drive_under_test::{DriveTestError, DriveUnderTest};
use super::procedure::{NextStep, Procedure, StepOutcome};
use super::store::ResultStore;

/// Continues until no step is left. Each outcome is stored first and then passed to `tell`.
///
/// # Errors
/// Reason for the early end; the procedure and the file contain the completed steps.
pub(crate) fn drive(
    procedure: &mut Procedure,
    drive_under_test: &mut dyn DriveUnderTest,
    store: &mut ResultStore,
    tell: &mut dyn FnMut(&Procedure, &StepOutcome),
) -> Result<(), DriveTestError> {
    loop {
        let outcome = match procedure.next() {
            NextStep::Over => return Ok(()),
            NextStep::Purge(_) => StepOutcome::Purged(drive_under_test.purge()?),
            NextStep::Fill(_, point) => {
                let began = Instant::now();
                let measurement = drive_under_test.measure(&point)?;
                StepOutcome::Filled(Preparation {
                    done: true,
                    how: "sequential writes of 128 KiB".into(),
                    seconds: began.elapsed().as_secs_f64(),
                    bytes: measurement.bytes,
                })
            }
            NextStep::Measure(_, point) => StepOutcome::Measured(drive_under_test.measure(&point)?),
        };
        store.keep(&outcome)?;
        if let Err(error) = procedure.take(outcome.clone()) {
            // The outcome of a drive fits the requested step.
            return Err(DriveTestError::Results(error.to_string()));
        }
        tell(procedure, &outcome);
    }
}

#[cfg(test)]
mod tests {
    use nvmeof_report::steady::{DriveTest, SteadyStateResult, TestKind};

    use super::super::fake::{FakeDrive, plan, setup};
    use super::*;
    use crate::steady::judge;

    /// Runs a plan on a drive, with a results file of this name.
    fn run(
        name: &str,
        drive: &mut FakeDrive,
    ) -> (Result<(), DriveTestError>, DriveTest, std::path::PathBuf) {
        let folder = std::env::temp_dir().join(format!("steady-drive-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join(name);
        let _ = std::fs::remove_file(&path);
        let mut store = ResultStore::create(&path, &plan(), &setup()).unwrap();
        let mut procedure = Procedure::new(plan());
        let ended = super::drive(&mut procedure, drive, &mut store, &mut |_, _| {});
        let partial = ended.as_ref().err().map(ToString::to_string).unwrap_or_default();
        (ended, procedure.drive_test(setup(), partial, 0), path)
    }

    #[test]
    fn rounds_go_on_until_five_are_steady() {
        let mut drive = FakeDrive::steady_after(3);
        let (ended, drive_test, _) = run("steady.jsonl", &mut drive);
        assert_eq!(ended, Ok(()));
        assert_eq!(drive_test.tests.len(), 4);
        assert_eq!(drive.purges, 4, "each test begins with a purge");
        for run in &drive_test.tests[..3] {
            let SteadyStateResult::Steady(window) = &run.result else { panic!("{:?}", run.result) };
            assert_eq!(run.rounds.len(), 3 + judge::WINDOW, "{}", run.test);
            assert_eq!(window.first, 4);
            assert!(
                run.rounds
                    .iter()
                    .all(|round| round.measurements.len() == plan().points(run.test).len())
            );
            assert_eq!(run.precondition.as_ref().unwrap().bytes, 128 << 20, "twice its capacity");
        }
        let saturation = &drive_test.tests[3];
        assert_eq!(saturation.precondition, None);
        assert_eq!(
            saturation.result,
            SteadyStateResult::Over { why: "4 x capacity written".into() }
        );
        assert!((256 << 20..320 << 20).contains(&drive.written), "{}", drive.written);
    }

    #[test]
    fn a_steady_state_that_is_never_reached_is_given_up_after_25_rounds() {
        let (ended, drive_test, _) = run("never.jsonl", &mut FakeDrive::never_steady());
        assert_eq!(ended, Ok(()));
        for run in &drive_test.tests[..3] {
            assert_eq!(run.rounds.len(), 25, "{}", run.test);
            let SteadyStateResult::Unsteady { window, most: 25 } = &run.result else {
                panic!("{:?}", run.result)
            };
            assert_eq!((window.first, window.last()), (21, 25));
        }
        assert!(
            matches!(drive_test.tests[3].result, SteadyStateResult::Over { .. }),
            "the next test is run all the same"
        );
    }

    #[test]
    fn a_drive_that_dies_leaves_what_it_did_and_another_goes_on() {
        // The fill, a whole round, and half of the second one.
        let mut drive = FakeDrive::dies_after(1 + 56 + 28);
        let (ended, drive_test, path) = run("dies.jsonl", &mut drive);
        assert_eq!(ended, Err(DriveTestError::Device("it was taken away".into())));
        assert_eq!(drive_test.partial, "the device failed: it was taken away");
        assert_eq!(drive_test.tests.len(), 1);
        let counts: Vec<_> =
            drive_test.tests[0].rounds.iter().map(|round| round.measurements.len()).collect();
        assert_eq!((counts, &drive_test.tests[0].result), (vec![56, 28], &SteadyStateResult::Cut));
        let (mut store, stored) = ResultStore::resume(&path).unwrap();
        let mut procedure = stored.procedure;
        let mut drive = FakeDrive::steady_after(0);
        super::drive(&mut procedure, &mut drive, &mut store, &mut |_, _| {}).unwrap();
        let drive_test = procedure.drive_test(setup(), String::new(), stored.resumed);
        assert_eq!(drive.purges, 3, "the first test's purge is not repeated");
        assert_eq!(drive_test.tests.iter().map(|run| run.test).collect::<Vec<_>>(), TestKind::ALL);
        assert_eq!(drive_test.tests[0].rounds.len(), 5);
        assert!(matches!(drive_test.tests[0].result, SteadyStateResult::Steady(_)));
    }

    #[test]
    fn outcomes_out_of_turn_change_nothing() {
        let mut procedure = Procedure::new(plan());
        let first = procedure.next();
        assert!(procedure.take(StepOutcome::Filled(Preparation::default())).is_err());
        assert_eq!(procedure.next(), first);
    }

    #[test]
    fn no_two_points_have_the_same_seed() {
        let mut procedure = Procedure::new(plan());
        let mut drive = FakeDrive::steady_after(0);
        let mut seeds = std::collections::BTreeSet::new();
        for _ in 0..300 {
            let outcome = match procedure.next() {
                NextStep::Purge(_) => StepOutcome::Purged(drive.purge().unwrap()),
                NextStep::Fill(_, point) => {
                    assert!(seeds.insert(point.seed));
                    StepOutcome::Filled(Preparation::default())
                }
                NextStep::Measure(_, point) => {
                    assert!(seeds.insert(point.seed));
                    StepOutcome::Measured(drive.measure(&point).unwrap())
                }
                NextStep::Over => break,
            };
            procedure.take(outcome).unwrap();
        }
        assert!(seeds.len() > 200);
    }
}
