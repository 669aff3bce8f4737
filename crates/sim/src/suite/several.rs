//! Judgment of one case with several seeds, by their median.
//!
//! A run with one seed is one sample. If a bound lies within the noise, some samples miss it and
//! others keep it, whatever the policy does. The median of several is more reliable; the number of
//! seeds that missed is reported with it. Two of three may still be chance. If the first few seeds
//! disagree, many decide, whatever the result of the first ones. The first ones also disagree if
//! each misses another bound, so that the median keeps all.

use super::verdict::{Check, Verdict};
use super::{Case, Lab, SuiteError};

/// The same lab with consecutive seeds: a few for every case, all for a case on which these
/// disagree.
#[derive(Debug)]
pub struct Seeds {
    labs: Vec<Lab>,
    few: usize,
}

impl Seeds {
    /// Creates the seed of this lab and the next ones: `few` for every case, and `in_all` in total.
    #[must_use]
    pub fn new(lab: &Lab, few: u64, in_all: u64) -> Self {
        let labs = lab.with_seeds(in_all.max(few));
        Self { few: usize::try_from(few).map_or(labs.len(), |few| few.min(labs.len())), labs }
    }
}

impl Case {
    /// Runs the case with the first few seeds, and with all if only some of these keep every bound.
    /// Returns the median.
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

    /// As [`Case::judge_each`], but stops once enough seeds kept every bound that the median of all
    /// keeps them, too. The result keeps the same bounds, with the values of the seeds that were
    /// run. A violation in a seed that was not run stays undetected, as does a disagreement of one
    /// of the first few.
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

/// Returns whether all keep every bound, or all and their median miss one.
fn agree(verdicts: &[Verdict]) -> bool {
    let kept = verdicts.iter().filter(|verdict| verdict.passes()).count();
    kept == verdicts.len() || kept == 0 && !middle(verdicts.to_vec()).passes()
}

/// Returns the median of every check of these verdicts of one case. The figures and the series are
/// those of the verdict with the median share of the reference. A violation in any of them is kept.
///
/// Of an even number the worse of the two median values counts.
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

/// Returns the checks of all verdicts, in order. A reference that only some seeds find is checked
/// only in these.
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
    // A NaN counts as missed, whatever its sign.
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

    /// Returns the number of judged and of missed seeds, and whether the median passes, if these
    /// seeds are late: three for every case and five in total.
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
