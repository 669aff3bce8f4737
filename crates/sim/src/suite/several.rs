//! One case with several seeds: what is in the middle of them.
//!
//! A run with one seed is one draw. Bounds that lie within what chance moves are missed by some
//! draws and kept by others, whatever the policy does; what it does in the middle of several says
//! more, and how many of them missed stands beside it. Two of three may be chance as well: so where the
//! first few do not agree, many decide, whichever way those few went. Nor do they agree where each misses another bound,
//! so that the middle keeps all.

use super::verdict::{Check, Verdict};
use super::{Case, Lab, SuiteError};

/// The same lab with one seed after another: a few for every case, all for one on which these do not agree.
#[derive(Debug)]
pub struct Seeds {
    labs: Vec<Lab>,
    few: usize,
}

impl Seeds {
    /// The seed of this lab and the next ones: so many for every case, and so many in all.
    #[must_use]
    pub fn new(lab: &Lab, few: u64, in_all: u64) -> Self {
        let labs = lab.with_seeds(in_all.max(few));
        Self { few: usize::try_from(few).map_or(labs.len(), |few| few.min(labs.len())), labs }
    }
}

impl Case {
    /// Runs it with the first few seeds, and with all if some of these keep every bound and others do not; says what is
    /// in the middle.
    ///
    /// # Errors
    /// As [`Case::judge`].
    pub fn judge_each(&self, seeds: &Seeds) -> Result<Verdict, SuiteError> {
        let (few, others) = seeds.labs.split_at(seeds.few);
        let judge_all = |labs: &[Lab]| -> Result<Vec<_>, _> {
            labs.iter().map(|lab| self.judge(lab)).collect()
        };
        let mut verdicts = judge_all(few)?;
        if !agree(&verdicts) {
            verdicts.extend(judge_all(others)?);
        }
        Ok(middle(verdicts))
    }

    /// As [`Case::judge_each`], but runs it with no more of them when so many kept every bound that what is in the middle of
    /// all keeps them too: the same bounds are kept, with the values of those that were run. What is broken in one that was
    /// not run is not seen, nor that one of the first few that was not run does not agree.
    ///
    /// # Errors
    /// As [`Case::judge`].
    pub fn judge_until_kept(&self, seeds: &Seeds) -> Result<Verdict, SuiteError> {
        let mut verdicts = Vec::new();
        let mut kept = 0;
        for lab in &seeds.labs {
            let verdict = self.judge(lab)?;
            kept += usize::from(verdict.passes());
            verdicts.push(verdict);
            let is_decided_by_few =
                kept == verdicts.len() || verdicts.len() <= seeds.few && agree(&verdicts);
            let decide = if is_decided_by_few { seeds.few } else { seeds.labs.len() };
            if kept > decide / 2 || verdicts.len() == decide {
                break;
            }
        }
        Ok(middle(verdicts))
    }
}

/// Do all keep every bound, or all miss, and so does what is in the middle?
fn agree(verdicts: &[Verdict]) -> bool {
    let kept = verdicts.iter().filter(|verdict| verdict.passes()).count();
    kept == verdicts.len() || kept == 0 && !middle(verdicts.to_vec()).passes()
}

/// Every check as it is in the middle of these verdicts of one case, with the figures and the course
/// of the one whose share of the reference is. What is broken in any of them stays broken.
///
/// Of an even number the worse of the two in the middle counts.
#[must_use]
fn middle(mut verdicts: Vec<Verdict>) -> Verdict {
    let judged = verdicts.len();
    let missed = verdicts.iter().filter(|verdict| !verdict.passes()).count();
    let real_seconds = verdicts.iter().map(|verdict| verdict.real_seconds).sum();
    let violations = verdicts.iter().flat_map(|v| v.violations.iter().cloned()).collect();
    let checks = names(&verdicts).into_iter().filter_map(|what| of_all(&verdicts, what)).collect();
    verdicts.sort_by(|a, b| b.percent().total_cmp(&a.percent()));
    let Some(shown) = verdicts.into_iter().nth(judged / 2) else { return Verdict::default() };
    Verdict { checks, violations, real_seconds, judged, missed, ..shown }
}

/// What is checked in any of them, in order. A reference that only some seeds find is held only in
/// these.
fn names(verdicts: &[Verdict]) -> Vec<&'static str> {
    let mut names = Vec::new();
    for check in verdicts.iter().flat_map(|verdict| &verdict.checks) {
        if !names.contains(&check.what) {
            names.push(check.what);
        }
    }
    names
}

fn of_all(verdicts: &[Verdict], what: &str) -> Option<Check> {
    let all = verdicts.iter().flat_map(|verdict| &verdict.checks);
    let mut all: Vec<Check> = all.filter(|check| check.what == what).copied().collect();
    // What is not a number is missed, whatever its sign.
    let worse = |check: &Check| !check.holds();
    all.sort_by(|a, b| worse(a).cmp(&worse(b)).then(a.shortfall().total_cmp(&b.shortfall())));
    all.get(all.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use nvmeof_pacing::PolicyConfig;

    use super::{Seeds, middle};
    use crate::scenario::Pacing;
    use crate::suite::{Case, Extent, Family, Lab, SuiteError, Verdict};

    fn of(gbps: f64, late: f64) -> Verdict {
        let mut verdict = Verdict { reference_gbps: 100.0, ..Verdict::default() };
        verdict.figures.gbps = gbps;
        verdict.share(99.0);
        verdict.at_most("late", late, 10.0);
        verdict
    }

    #[test]
    fn each_check_is_in_its_own_middle() {
        let found = middle(vec![of(98.0, 1.0), of(99.5, 2.0), of(99.2, 30.0)]);
        assert!(found.passes());
        assert_eq!((found.judged, found.missed), (3, 2));
        let values: Vec<f64> = found.checks.iter().map(|check| check.value).collect();
        assert_eq!(values, [99.2, 2.0]);
        assert_eq!(found.figures.gbps, 99.2);
    }

    #[test]
    fn most_of_them_have_to_hold() {
        assert!(!middle(vec![of(98.0, 1.0), of(98.5, 1.0), of(99.5, 1.0)]).passes());
        assert!(!middle(vec![of(98.0, 1.0), of(99.5, 1.0)]).passes(), "the worse of two");
        let never = f64::INFINITY;
        for unknown in [f64::NAN, -f64::NAN] {
            assert!(!middle(vec![of(99.5, never), of(99.5, unknown), of(99.5, 1.0)]).passes());
            assert!(!middle(vec![of(unknown, 1.0), of(98.0, 1.0), of(99.5, 1.0)]).passes());
        }
        assert!(middle(vec![of(99.5, never), of(99.5, 1.0), of(99.5, 1.0)]).passes());
    }

    /// How many were judged, how many of them missed, and whether what is in the middle passes, where these seeds are
    /// late: three for every case and five in all.
    fn judged(
        late: [bool; 5],
        judge: fn(&Case, &Seeds) -> Result<Verdict, SuiteError>,
    ) -> (usize, usize, bool) {
        let lab = Lab::new(Vec::new(), Pacing::Policy(PolicyConfig::None), Extent::Quick);
        let nth = AtomicUsize::new(0);
        let next = move |_: &Lab| {
            Ok(of(99.5, if late[nth.fetch_add(1, Ordering::Relaxed)] { 30.0 } else { 1.0 }))
        };
        let case = Case::new(Family::Depth, "late", next);
        let found = judge(&case, &Seeds::new(&lab, 3, 5)).expect("nothing is run");
        (found.judged, found.missed, found.passes())
    }

    #[test]
    fn all_decide_where_the_first_do_not_agree() {
        let each = |late| judged(late, Case::judge_each);
        let (kept, late) = (false, true);
        assert_eq!(each([kept, kept, kept, late, late]), (3, 0, true));
        assert_eq!(each([late, late, late, kept, kept]), (3, 3, false));
        assert_eq!(each([late, late, kept, kept, kept]), (5, 2, true), "three saw it otherwise");
        assert_eq!(each([late, kept, kept, late, late]), (5, 3, false), "and the other way");
    }

    #[test]
    fn no_more_are_judged_than_decide() {
        let until = |late| judged(late, Case::judge_until_kept);
        let (kept, late) = (false, true);
        assert_eq!(until([kept, kept, late, late, late]), (2, 0, true));
        assert_eq!(until([late, late, late, kept, kept]), (3, 3, false));
        assert_eq!(until([late, kept, kept, kept, late]), (4, 1, true));
        assert_eq!(until([late, late, kept, kept, kept]), (5, 2, true));
        assert_eq!(until([kept, late, late, late, kept]), (5, 3, false));
    }

    #[test]
    fn one_seed_decides_alone_and_none_is_judged_twice() {
        let lab = Lab::new(Vec::new(), Pacing::Policy(PolicyConfig::None), Extent::Quick);
        let case = Case::new(Family::Depth, "late", |_| Ok(of(98.0, 30.0)));
        for (few, in_all, judged) in [(1, 1, 1), (1, 15, 1), (3, 1, 3)] {
            let found = case.judge_each(&Seeds::new(&lab, few, in_all)).expect("nothing is run");
            assert_eq!((found.judged, found.missed), (judged, judged), "{few} of {in_all}");
        }
    }

    #[test]
    fn one_that_is_broken_breaks_all() {
        let mut broken = of(99.5, 1.0);
        broken.violations.push("two permits".into());
        let found = middle(vec![of(99.5, 1.0), of(99.5, 1.0), broken]);
        assert!(!found.passes());
        assert_eq!((found.judged, found.missed), (3, 1));
    }
}
