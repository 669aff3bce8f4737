//! Bounds that `adaptive` does not reach yet; a test keeps the list correct.

mod list;

use list::LIST;

use super::case_result::CaseResult;
use super::{Case, Family};

/// A bound that is not reached, with the value reached.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Gap {
    /// Family of the case.
    pub(crate) family: Family,
    /// Name of the case.
    pub(crate) case: &'static str,
    /// Name of its check.
    pub(crate) what: &'static str,
    /// The value reached.
    pub(crate) reached: f64,
    /// Known reason.
    pub(crate) why: &'static str,
}

/// A shortfall may differ from the record by this factor before the record is wrong.
#[cfg(test)]
const LATITUDE: f64 = 1.5;

/// Returns the bounds not reached in the cases of [`super::SuiteMode::Quick`] on platforms A and B.
#[cfg(test)]
pub(crate) fn known_gaps() -> &'static [Gap] {
    LIST
}

/// Returns the differences between these verdicts and these gaps, as text; empty if the list is
/// correct. A gap of a case that was not run is ignored.
#[cfg(test)]
pub(crate) fn disagreements(gaps: &[Gap], case_results: &[(Case, CaseResult)]) -> Vec<String> {
    let mut words = Vec::new();
    for (case, case_result) in case_results {
        let name = format!("{} {}", case.family.name(), case.name);
        words.extend(case_result.violations.iter().map(|broken| format!("{name}: {broken}")));
        let of_case = |gap: &&Gap| gap.family == case.family && gap.case == case.name;
        for gap in gaps.iter().filter(of_case) {
            if !case_result.checks.iter().any(|check| check.what == gap.what) {
                words.push(format!("{name}: there is no check {:?}", gap.what));
            }
        }
        for check in &case_result.checks {
            let gap = gaps.iter().filter(of_case).find(|gap| gap.what == check.what);
            let found =
                format!("{name}: {} is {:.2}, bound {:?}", check.what, check.value, check.bound);
            match (gap, check.holds()) {
                (None, true) => {}
                (None, false) => words.push(found),
                (Some(_), true) => words.push(format!("{found}: the gap is closed, strike it out")),
                (Some(gap), false) => {
                    let recorded = super::Check { value: gap.reached, ..*check }.shortfall();
                    let now = check.shortfall();
                    if now > LATITUDE * recorded {
                        words.push(format!("{found}: the gap grew from {:.2}", gap.reached));
                    } else if recorded > LATITUDE * now {
                        words.push(format!("{found}: the gap shrank from {:.2}", gap.reached));
                    }
                }
            }
        }
    }
    words
}

/// Returns the text of the file with the list, for these verdicts. Known reasons are kept.
pub(crate) fn as_list(case_results: &[(Case, CaseResult)]) -> String {
    let mut lines = String::new();
    for (case, case_result) in case_results {
        for check in case_result.failures() {
            let of_check = |gap: &&Gap| {
                gap.family == case.family && gap.case == case.name && gap.what == check.what
            };
            let why = LIST.iter().find(of_check).map_or("", |gap| gap.why);
            let value = if check.value.is_infinite() {
                "f64::INFINITY".to_owned()
            } else {
                format!("{:.2}", check.value)
            };
            let (family, name, what) = (case.family, &case.name, check.what);
            lines += &format!(
                "    Gap {{ family: Family::{family:?}, case: {name:?}, what: {what:?}, \
                 reached: {value}, why: {why:?} }},\n"
            );
        }
    }
    if lines.is_empty() {
        return format!("{HEAD}use super::Gap;\n\n{LIST_OF}];\n");
    }
    format!("{HEAD}use super::Gap;\nuse crate::suite::Family;\n\n{LIST_OF}\n{lines}];\n")
}

const HEAD: &str = "\
//! The list, as `cargo run -p nvmeof-lab -- suite --quick --gaps FILE` writes it.\n\n";

const LIST_OF: &str = "pub(super) const LIST: &[Gap] = &[";

#[cfg(test)]
mod tests {
    use super::{Gap, disagreements};
    use crate::suite::{Case, CaseResult, Family};

    fn run(value: f64) -> Vec<(Case, CaseResult)> {
        let case = Case::new(Family::Depth, "x", |_| Ok(CaseResult::default()));
        let mut case_result = CaseResult::default();
        case_result.at_least("share", value, 99.0);
        vec![(case, case_result)]
    }

    #[test]
    fn the_list_has_to_be_true() {
        let gap = Gap { family: Family::Depth, case: "x", what: "share", reached: 97.0, why: "" };
        let words = |gaps: &[Gap], value| disagreements(gaps, &run(value)).len();
        assert_eq!(words(&[], 99.0), 0);
        assert_eq!(words(&[], 98.9), 1, "a bound not kept and not listed");
        assert_eq!(words(&[gap], 97.0), 0);
        assert_eq!(words(&[gap], 96.5), 0);
        assert_eq!(words(&[gap], 95.9), 1, "grew");
        assert_eq!(words(&[gap], 98.0), 1, "shrank");
        assert_eq!(words(&[gap], 99.1), 1, "closed");
        assert_eq!(words(&[Gap { what: "other", ..gap }], 99.1), 1, "about nothing");
        assert_eq!(words(&[Gap { case: "y", ..gap }], 99.1), 0, "about what was not run");
        let mut broken = run(99.5);
        broken[0].1.violations.push("two permits".into());
        assert_eq!(disagreements(&[], &broken).len(), 1);
    }
}
