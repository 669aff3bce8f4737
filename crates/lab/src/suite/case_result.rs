//! Result of a case: metrics of the run, and every bound with its value.

use nvmeof_sim::RunResult;
use nvmeof_sim::run_result::Sample;

/// Result of a case.
#[derive(Debug, Clone, Default)]
pub(crate) struct CaseResult {
    /// Metrics of the decisive run (the only one, or the worst).
    pub(crate) metrics: CaseMetrics,
    /// Bandwidth of the reference, in Gb/s.
    pub(crate) reference_gbps: f64,
    /// Every bound.
    pub(crate) checks: Vec<Check>,
    /// Additional remarks.
    pub(crate) note: String,
    /// Series of that run.
    pub(crate) series: Vec<Sample>,
    /// Violations that the checkers found in any of the runs.
    pub(crate) violations: Vec<String>,
    /// Real time, including all references that had to be found.
    pub(crate) real_seconds: f64,
    /// Number of seeds of the median.
    pub(crate) judged: usize,
    /// Number of seeds that missed a bound.
    pub(crate) missed: usize,
}

/// Metrics of one run.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct CaseMetrics {
    /// Goodput in Gb/s.
    pub(crate) gbps: f64,
    /// Its standard deviation over samples and hosts in Gb/s.
    pub(crate) stddev_gbps: f64,
    /// Mean number of commands with a buffer.
    pub(crate) buffers_mean: f64,
    /// Maximum number of commands with a buffer.
    pub(crate) buffers_max: u64,
    /// Percentage of reads from the cache.
    pub(crate) hit_pct: f64,
    /// The policy's budget at the end in bytes, if it has one.
    pub(crate) budget: Option<u64>,
    /// p99 of the latency at the hosts, in µs.
    pub(crate) p99_us: f64,
}

/// Value with its bound.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Check {
    /// Name of the value, with its unit.
    pub(crate) what: &'static str,
    /// Measured value.
    pub(crate) value: f64,
    /// Allowed values.
    pub(crate) bound: CaseBound,
}

/// Allowed values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum CaseBound {
    /// This or more.
    AtLeast(f64),
    /// This or less.
    AtMost(f64),
}

impl Check {
    /// Returns whether the value is within the bound.
    pub(crate) fn holds(&self) -> bool {
        match self.bound {
            CaseBound::AtLeast(bound) => self.value >= bound,
            CaseBound::AtMost(bound) => self.value <= bound,
        }
    }

    /// Returns the distance of the value beyond the bound; 0 or less if it holds.
    pub(crate) fn shortfall(&self) -> f64 {
        match self.bound {
            CaseBound::AtLeast(bound) => bound - self.value,
            CaseBound::AtMost(bound) => self.value - bound,
        }
    }
}

impl CaseMetrics {
    pub(super) fn of(run_result: &RunResult) -> Self {
        Self {
            gbps: run_result.total.gbps,
            stddev_gbps: run_result.stddev_gbps,
            buffers_mean: run_result.buffers_mean,
            buffers_max: run_result.buffers_max,
            hit_pct: run_result.hit_pct,
            budget: run_result.series.last().and_then(|sample| sample.budget),
            p99_us: run_result.total.latency.p99 as f64 / 1000.0,
        }
    }
}

impl CaseResult {
    /// Creates a verdict of this run, compared with `reference_gbps`, without bounds.
    pub(super) fn of(run_result: &RunResult, reference_gbps: f64) -> Self {
        Self {
            metrics: CaseMetrics::of(run_result),
            reference_gbps,
            series: run_result.series.clone(),
            violations: run_result.violations.clone(),
            ..Self::default()
        }
    }

    /// Returns whether every bound holds and no checker found a violation.
    pub(crate) fn passes(&self) -> bool {
        self.violations.is_empty() && self.checks.iter().all(Check::holds)
    }

    /// Returns the bounds that do not hold.
    pub(crate) fn failures(&self) -> impl Iterator<Item = &Check> {
        self.checks.iter().filter(|check| !check.holds())
    }

    /// Returns the bandwidth in percent of the reference.
    pub(crate) fn percent(&self) -> f64 {
        100.0 * self.metrics.gbps / self.reference_gbps
    }

    /// Adds another run of the case: its violations count, too.
    pub(super) fn also(&mut self, run_result: &RunResult) {
        self.violations.extend(run_result.violations.iter().cloned());
    }

    pub(super) fn at_least(&mut self, what: &'static str, value: f64, bound: f64) {
        self.checks.push(Check { what, value, bound: CaseBound::AtLeast(bound) });
    }

    pub(super) fn at_most(&mut self, what: &'static str, value: f64, bound: f64) {
        self.checks.push(Check { what, value, bound: CaseBound::AtMost(bound) });
    }

    /// Checks that the bandwidth is at least `percent` of the reference.
    pub(super) fn share(&mut self, percent: f64) {
        let value = self.percent();
        self.at_least("% of reference", value, percent);
    }
}

#[cfg(test)]
mod tests {
    use super::CaseResult;

    #[test]
    fn a_verdict_fails_by_any_bound_or_violation() {
        let mut case_result = CaseResult { reference_gbps: 10.0, ..CaseResult::default() };
        case_result.metrics.gbps = 9.9;
        case_result.share(99.0);
        case_result.at_most("x", 1.0, 1.0);
        assert!(case_result.passes());
        case_result.violations.push("broken".into());
        assert!(!case_result.passes());
        case_result.violations.clear();
        case_result.at_most("y", 1.001, 1.0);
        assert!(!case_result.passes());
        assert_eq!(case_result.failures().map(|c| c.what).collect::<Vec<_>>(), ["y"]);
        case_result.checks.clear();
        case_result.at_least("not a number", f64::NAN, 0.0);
        assert!(!case_result.passes(), "what was not measured does not pass");
        assert!(
            (super::Check { what: "z", value: 3.0, bound: super::CaseBound::AtMost(1.0) }
                .shortfall()
                - 2.0)
                .abs()
                < 1e-9
        );
    }
}
