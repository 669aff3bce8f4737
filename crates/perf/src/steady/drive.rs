//! Runs a procedure on a drive from the first step to the last, with a results file.

use std::time::Instant;

use nvmeof_report::steady::Preparation;

use super::bench::{Bench, Trouble};
use super::procedure::{Next, Outcome, Procedure};
use super::store::Store;

/// Continues until no step is left. Each outcome is stored first and then passed to `tell`.
///
/// # Errors
/// Reason for the early end; the procedure and the file contain the completed steps.
pub(crate) fn drive(
    procedure: &mut Procedure,
    bench: &mut dyn Bench,
    store: &mut Store,
    tell: &mut dyn FnMut(&Procedure, &Outcome),
) -> Result<(), Trouble> {
    loop {
        let outcome = match procedure.next() {
            Next::Over => return Ok(()),
            Next::Purge(_) => Outcome::Purged(bench.purge()?),
            Next::Fill(_, point) => {
                let began = Instant::now();
                let reading = bench.measure(&point)?;
                Outcome::Filled(Preparation {
                    done: true,
                    how: "sequential writes of 128 KiB".into(),
                    seconds: began.elapsed().as_secs_f64(),
                    bytes: reading.bytes,
                })
            }
            Next::Measure(_, point) => Outcome::Measured(bench.measure(&point)?),
        };
        store.keep(&outcome)?;
        if let Err(error) = procedure.take(outcome.clone()) {
            // The outcome of a drive fits the requested step.
            return Err(Trouble::Results(error.to_string()));
        }
        tell(procedure, &outcome);
    }
}

#[cfg(test)]
mod tests {
    use nvmeof_report::steady::{Study, Test, Verdict};

    use super::super::fake::{Drive, plan, setup};
    use super::*;
    use crate::steady::judge;

    /// Runs a plan on a drive, with a results file of this name.
    fn run(name: &str, drive: &mut Drive) -> (Result<(), Trouble>, Study, std::path::PathBuf) {
        let folder = std::env::temp_dir().join(format!("steady-drive-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join(name);
        let _ = std::fs::remove_file(&path);
        let mut store = Store::create(&path, &plan(), &setup()).unwrap();
        let mut procedure = Procedure::new(plan());
        let ended = super::drive(&mut procedure, drive, &mut store, &mut |_, _| {});
        let partial = ended.as_ref().err().map(ToString::to_string).unwrap_or_default();
        (ended, procedure.study(setup(), partial, 0), path)
    }

    #[test]
    fn rounds_go_on_until_five_are_steady() {
        let mut drive = Drive::steady_after(3);
        let (ended, study, _) = run("steady.jsonl", &mut drive);
        assert_eq!(ended, Ok(()));
        assert_eq!(study.tests.len(), 4);
        assert_eq!(drive.purges, 4, "each test begins with a purge");
        for run in &study.tests[..3] {
            let Verdict::Steady(window) = &run.verdict else { panic!("{:?}", run.verdict) };
            assert_eq!(run.rounds.len(), 3 + judge::WINDOW, "{}", run.test);
            assert_eq!(window.first, 4);
            assert!(
                run.rounds
                    .iter()
                    .all(|round| round.readings.len() == plan().points(run.test).len())
            );
            assert_eq!(run.precondition.as_ref().unwrap().bytes, 128 << 20, "twice its capacity");
        }
        let saturation = &study.tests[3];
        assert_eq!(saturation.precondition, None);
        assert_eq!(saturation.verdict, Verdict::Over { why: "4 x capacity written".into() });
        assert!((256 << 20..320 << 20).contains(&drive.written), "{}", drive.written);
    }

    #[test]
    fn a_steady_state_that_is_never_reached_is_given_up_after_25_rounds() {
        let (ended, study, _) = run("never.jsonl", &mut Drive::never_steady());
        assert_eq!(ended, Ok(()));
        for run in &study.tests[..3] {
            assert_eq!(run.rounds.len(), 25, "{}", run.test);
            let Verdict::Unsteady { window, most: 25 } = &run.verdict else {
                panic!("{:?}", run.verdict)
            };
            assert_eq!((window.first, window.last()), (21, 25));
        }
        assert!(
            matches!(study.tests[3].verdict, Verdict::Over { .. }),
            "the next test is run all the same"
        );
    }

    #[test]
    fn a_drive_that_dies_leaves_what_it_did_and_another_goes_on() {
        // The fill, a whole round, and half of the second one.
        let mut drive = Drive::dies_after(1 + 56 + 28);
        let (ended, study, path) = run("dies.jsonl", &mut drive);
        assert_eq!(ended, Err(Trouble::Device("it was taken away".into())));
        assert_eq!(study.partial, "the device failed: it was taken away");
        assert_eq!(study.tests.len(), 1);
        let counts: Vec<_> =
            study.tests[0].rounds.iter().map(|round| round.readings.len()).collect();
        assert_eq!((counts, &study.tests[0].verdict), (vec![56, 28], &Verdict::Cut));
        let (mut store, stored) = Store::resume(&path).unwrap();
        let mut procedure = stored.procedure;
        let mut drive = Drive::steady_after(0);
        super::drive(&mut procedure, &mut drive, &mut store, &mut |_, _| {}).unwrap();
        let study = procedure.study(setup(), String::new(), stored.resumed);
        assert_eq!(drive.purges, 3, "the first test's purge is not repeated");
        assert_eq!(study.tests.iter().map(|run| run.test).collect::<Vec<_>>(), Test::ALL);
        assert_eq!(study.tests[0].rounds.len(), 5);
        assert!(matches!(study.tests[0].verdict, Verdict::Steady(_)));
    }

    #[test]
    fn outcomes_out_of_turn_change_nothing() {
        let mut procedure = Procedure::new(plan());
        let first = procedure.next();
        assert!(procedure.take(Outcome::Filled(Preparation::default())).is_err());
        assert_eq!(procedure.next(), first);
    }

    #[test]
    fn no_two_points_have_the_same_seed() {
        let mut procedure = Procedure::new(plan());
        let mut drive = Drive::steady_after(0);
        let mut seeds = std::collections::BTreeSet::new();
        for _ in 0..300 {
            let outcome = match procedure.next() {
                Next::Purge(_) => Outcome::Purged(drive.purge().unwrap()),
                Next::Fill(_, point) => {
                    assert!(seeds.insert(point.seed));
                    Outcome::Filled(Preparation::default())
                }
                Next::Measure(_, point) => {
                    assert!(seeds.insert(point.seed));
                    Outcome::Measured(drive.measure(&point).unwrap())
                }
                Next::Over => break,
            };
            procedure.take(outcome).unwrap();
        }
        assert!(seeds.len() > 200);
    }
}
