//! One case with several seeds: what is in the middle of them.
//!
//! A run with one seed is one draw. Bounds that lie within what chance moves are missed by some
//! draws and kept by others, whatever the policy does; what it does in the middle of several says
//! more, and how many of them missed stands beside it.

use super::verdict::{Check, Verdict};

/// Every check as it is in the middle of these verdicts of one case, with the figures and the course
/// of the one whose share of the reference is. What is broken in any of them stays broken.
///
/// Of an even number the worse of the two in the middle counts.
#[must_use]
pub(super) fn middle(mut verdicts: Vec<Verdict>) -> Verdict {
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

    use super::middle;
    use crate::scenario::Pacing;
    use crate::suite::{Case, Extent, Family, Lab, Verdict};

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

    #[test]
    fn no_more_are_judged_than_decide() {
        let labs =
            Lab::new(Vec::new(), Pacing::Policy(PolicyConfig::None), Extent::Quick).with_seeds(3);
        let judged = |late: [f64; 3]| {
            let nth = AtomicUsize::new(0);
            let next = move |_: &Lab| Ok(of(99.5, late[nth.fetch_add(1, Ordering::Relaxed)]));
            let found = Case::new(Family::Depth, "late", next).judge_until_kept(&labs);
            let found = found.expect("nothing is run");
            (found.judged, found.missed, found.passes())
        };
        assert_eq!(judged([1.0, 1.0, 30.0]), (2, 0, true));
        assert_eq!(judged([30.0, 1.0, 1.0]), (3, 1, true));
        assert_eq!(judged([30.0, 1.0, 30.0]), (3, 2, false));
        assert_eq!(judged([30.0, 30.0, 1.0]), (3, 2, false));
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
