//! Judgment of one case with several seeds, by their median.
//!
//! A run with one seed is one sample. If a bound lies within the noise, some samples miss it and
//! others keep it, whatever the policy does. The median of several is more reliable; the number of
//! seeds that missed is reported with it. Two of three may still be chance. If the first few seeds
//! disagree, many decide, whatever the result of the first ones. The first ones also disagree if
//! each misses another bound, so that the median keeps all.

use super::case_result::{CaseResult, Check};
use super::{Case, SuiteError, SuiteRunner};

/// The same lab with consecutive seeds: a few for every case, all for a case on which these
/// disagree.
#[derive(Debug)]
pub(crate) struct Seeds {
    labs: Vec<SuiteRunner>,
    few: usize,
}

impl Seeds {
    /// Creates the seed of this lab and the next ones: `few` for every case, and `in_all` in total.
    pub(crate) fn new(runner: &SuiteRunner, few: u64, in_all: u64) -> Self {
        let labs = runner.with_seeds(in_all.max(few));
        Self { few: usize::try_from(few).map_or(labs.len(), |few| few.min(labs.len())), labs }
    }
}

impl Case {
    /// Runs the case with the first few seeds, and with all if only some of these keep every bound.
    /// Returns the median.
    ///
    /// # Errors
    /// As [`Case::judge`].
    pub(crate) fn judge_each(&self, seeds: &Seeds) -> Result<CaseResult, SuiteError> {
        let (few, others) = seeds.labs.split_at(seeds.few);
        let judge_all = |labs: &[SuiteRunner]| -> Result<Vec<_>, _> {
            labs.iter().map(|runner| self.judge(runner)).collect()
        };
        let mut case_results = judge_all(few)?;
        if !agree(&case_results) {
            case_results.extend(judge_all(others)?);
        }
        Ok(median(case_results))
    }

    /// As [`Case::judge_each`], but stops once enough seeds kept every bound that the median of all
    /// keeps them, too. The result keeps the same bounds, with the values of the seeds that were
    /// run. A violation in a seed that was not run stays undetected, as does a disagreement of one
    /// of the first few.
    ///
    /// # Errors
    /// As [`Case::judge`].
    #[cfg(test)]
    pub(crate) fn judge_until_kept(&self, seeds: &Seeds) -> Result<CaseResult, SuiteError> {
        let mut case_results = Vec::new();
        let mut kept = 0;
        for runner in &seeds.labs {
            let case_result = self.judge(runner)?;
            kept += usize::from(case_result.passes());
            case_results.push(case_result);
            let is_decided_by_few = kept == case_results.len()
                || case_results.len() <= seeds.few && agree(&case_results);
            let decide = if is_decided_by_few { seeds.few } else { seeds.labs.len() };
            if kept > decide / 2 || case_results.len() == decide {
                break;
            }
        }
        Ok(median(case_results))
    }
}

/// Returns whether all keep every bound, or all and their median miss one.
fn agree(case_results: &[CaseResult]) -> bool {
    let kept = case_results.iter().filter(|case_result| case_result.passes()).count();
    kept == case_results.len() || kept == 0 && !median(case_results.to_vec()).passes()
}

/// Returns the median of every check of these verdicts of one case. The figures and the series are
/// those of the verdict with the median share of the reference. A violation in any of them is kept.
///
/// Of an even number the worse of the two median values counts.
fn median(mut case_results: Vec<CaseResult>) -> CaseResult {
    let judged = case_results.len();
    let missed = case_results.iter().filter(|case_result| !case_result.passes()).count();
    let real_seconds = case_results.iter().map(|case_result| case_result.real_seconds).sum();
    let violations = case_results.iter().flat_map(|v| v.violations.iter().cloned()).collect();
    let checks =
        names(&case_results).into_iter().filter_map(|what| of_all(&case_results, what)).collect();
    case_results.sort_by(|a, b| b.percent().total_cmp(&a.percent()));
    let Some(shown) = case_results.into_iter().nth(judged / 2) else {
        return CaseResult::default();
    };
    CaseResult { checks, violations, real_seconds, judged, missed, ..shown }
}

/// Returns the checks of all verdicts, in order. A reference that only some seeds find is checked
/// only in these.
fn names(case_results: &[CaseResult]) -> Vec<&'static str> {
    let mut names = Vec::new();
    for check in case_results.iter().flat_map(|case_result| &case_result.checks) {
        if !names.contains(&check.what) {
            names.push(check.what);
        }
    }
    names
}

fn of_all(case_results: &[CaseResult], what: &str) -> Option<Check> {
    let all = case_results.iter().flat_map(|case_result| &case_result.checks);
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

    use super::{Seeds, median};
    use crate::suite::{Case, CaseResult, Family, SuiteError, SuiteMode, SuiteRunner};
    use nvmeof_sim::scenario::Pacing;

    fn of(gbps: f64, late: f64) -> CaseResult {
        let mut case_result = CaseResult { reference_gbps: 100.0, ..CaseResult::default() };
        case_result.metrics.gbps = gbps;
        case_result.share(99.0);
        case_result.at_most("late", late, 10.0);
        case_result
    }

    #[test]
    fn each_check_is_in_its_own_middle() {
        let found = median(vec![of(98.0, 1.0), of(99.5, 2.0), of(99.2, 30.0)]);
        assert!(found.passes());
        assert_eq!((found.judged, found.missed), (3, 2));
        let values: Vec<f64> = found.checks.iter().map(|check| check.value).collect();
        assert_eq!(values, [99.2, 2.0]);
        assert_eq!(found.metrics.gbps, 99.2);
    }

    #[test]
    fn most_of_them_have_to_hold() {
        assert!(!median(vec![of(98.0, 1.0), of(98.5, 1.0), of(99.5, 1.0)]).passes());
        assert!(!median(vec![of(98.0, 1.0), of(99.5, 1.0)]).passes(), "the worse of two");
        let never = f64::INFINITY;
        for unknown in [f64::NAN, -f64::NAN] {
            assert!(!median(vec![of(99.5, never), of(99.5, unknown), of(99.5, 1.0)]).passes());
            assert!(!median(vec![of(unknown, 1.0), of(98.0, 1.0), of(99.5, 1.0)]).passes());
        }
        assert!(median(vec![of(99.5, never), of(99.5, 1.0), of(99.5, 1.0)]).passes());
    }

    /// Returns the number of judged and of missed seeds, and whether the median passes, if these
    /// seeds are late: three for every case and five in total.
    fn judged(
        late: [bool; 5],
        judge: fn(&Case, &Seeds) -> Result<CaseResult, SuiteError>,
    ) -> (usize, usize, bool) {
        let runner =
            SuiteRunner::new(Vec::new(), Pacing::Policy(PolicyConfig::None), SuiteMode::Quick);
        let nth = AtomicUsize::new(0);
        let next = move |_: &SuiteRunner| {
            Ok(of(99.5, if late[nth.fetch_add(1, Ordering::Relaxed)] { 30.0 } else { 1.0 }))
        };
        let case = Case::new(Family::Depth, "late", next);
        let found = judge(&case, &Seeds::new(&runner, 3, 5)).expect("nothing is run");
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
        let runner =
            SuiteRunner::new(Vec::new(), Pacing::Policy(PolicyConfig::None), SuiteMode::Quick);
        let case = Case::new(Family::Depth, "late", |_| Ok(of(98.0, 30.0)));
        for (few, in_all, judged) in [(1, 1, 1), (1, 15, 1), (3, 1, 3)] {
            let found = case.judge_each(&Seeds::new(&runner, few, in_all)).expect("nothing is run");
            assert_eq!((found.judged, found.missed), (judged, judged), "{few} of {in_all}");
        }
    }

    #[test]
    fn one_that_is_broken_breaks_all() {
        let mut broken = of(99.5, 1.0);
        broken.violations.push("two permits".into());
        let found = median(vec![of(99.5, 1.0), of(99.5, 1.0), broken]);
        assert!(!found.passes());
        assert_eq!((found.judged, found.missed), (3, 1));
    }
}
