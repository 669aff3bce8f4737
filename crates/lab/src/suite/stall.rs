//! Cases with temporary stalls and slowdowns.

use super::case_result::CaseResult;
use super::runner::{SuiteRunner, mean_gbps};
use super::{Case, Family, SuiteError};
use nvmeof_sim::Platform;
use nvmeof_sim::RunResult;
use nvmeof_sim::scenario::{DisturbanceKind, Job, Nanos, Scenario};
use nvmeof_sim::setups::{self, MS};

pub(super) const ABOUT: &str = "16 drives: the link or all drives stall for 2 ms: back at 98 % of what \
    the load can get within 100 ms, no later 50 ms below it, and 99 % over the time after those 100 ms; \
    the link falls to half its rate for 500 ms: 98 % of the new rate within 200 ms, and 99 % over the \
    time after those, both ways; one drive of 16, each with its own load, stalls for 500 ms: the others \
    make 99 % of what they get without it. A load that unpaced and with an endless cache is not back by \
    then itself, as shallow ones that move by more than 2 % anyway, has 50 ms more than that takes, and \
    99 % of what it gets so.";

/// Step in which the series is evaluated.
const STEP: Nanos = 10 * MS;
/// Length of a stretch; every stretch must reach the bandwidth.
const STRETCH: Nanos = 50 * MS;
/// Time in which a load has to recover from a stall.
const AFTER_STALL: Nanos = 100 * MS;
/// Time in which a load has to follow the rate of the link.
const AFTER_CHANGE: Nanos = 200 * MS;
/// Start of the disturbance.
const AT: Nanos = 700 * MS;
/// Duration of the stall of one drive.
const ONE: Nanos = 500 * MS;
/// Duration of the halved link rate.
const HALF: Nanos = 500 * MS;

pub(super) fn cases(runner: &SuiteRunner) -> Vec<Case> {
    let mut cases = Vec::new();
    for (name, platform) in runner.platforms() {
        let loads = |depth: u32| {
            let (spdk, kernel) = (Scenario::reads, Scenario::kernel_reads);
            [
                ("qd", spdk(setups::drives(16), depth)),
                ("kernel qd", kernel(setups::drives(16), depth / 8)),
            ]
        };
        let depths = runner.pick(&[32, 128, 512, 2048][..], &[32, 256, 2048]);
        for (kind, load) in depths.iter().flat_map(|depth| loads(*depth)) {
            let scenario = || load.clone();
            let name = |what: &str| format!("{name} {what}, {kind} {}", load.jobs[0].queue_depth);
            let link = scenario().disturbed(DisturbanceKind::Link(0.0), AT, 2 * MS);
            cases.push(stall(name("link 2 ms"), platform, link));
            let drives = scenario().disturbed(DisturbanceKind::Drives, AT, 2 * MS);
            cases.push(stall(name("drives 2 ms"), platform, drives));
            let half = scenario().disturbed(DisturbanceKind::Link(0.5), AT, HALF);
            cases.push(half_link(name("half the link"), platform, half));
        }
        for &depth in runner.pick(&[8, 32, 128][..], &[32]) {
            let name = format!("{name} one drive, 16 x qd {depth}");
            cases.push(one_drive(name, platform, depth));
        }
    }
    cases
}

/// Runs a scenario in one window up to `end`, with fine samples.
fn run(
    runner: &SuiteRunner,
    platform: &Platform,
    scenario: Scenario,
    end: Nanos,
) -> Result<RunResult, SuiteError> {
    let mut scenario = scenario.lasting(AT, end - AT);
    scenario.sample = STEP;
    runner.run(platform, &scenario)
}

/// Runs the same load without pacing and with an unlimited cache.
fn unpaced(
    runner: &SuiteRunner,
    platform: &Platform,
    scenario: &Scenario,
    end: Nanos,
) -> Result<RunResult, SuiteError> {
    run(runner, platform, runner.under_test(scenario).endless(), end)
}

/// Returns the ms in which a load has to recover, if it recovers after `bare` without pacing:
/// `asked`, if that is possible.
fn limit(asked: Nanos, bare: Option<Nanos>) -> f64 {
    let late = bare.filter(|bare| *bare > asked).map(|bare| bare + STRETCH);
    in_ms(Some(late.unwrap_or(asked)))
}

/// Returns the bandwidth of the load without disturbances and with an unlimited cache.
fn undisturbed(
    runner: &SuiteRunner,
    platform: &Platform,
    scenario: &Scenario,
) -> Result<f64, SuiteError> {
    let mut scenario = scenario.clone();
    scenario.disturbances.clear();
    runner.ceiling(platform, &scenario)
}

fn stall(name: String, platform: &Platform, scenario: Scenario) -> Case {
    let platform = platform.clone();
    Case::new(Family::Stall, name, move |runner| {
        let over = AT + 2 * MS;
        let end = over + 300 * MS;
        let run_result = run(runner, &platform, runner.under_test(&scenario), end)?;
        let reference = undisturbed(runner, &platform, &scenario)?;
        let mut case_result = CaseResult::of(&run_result, reference);
        let back = |of: &RunResult| back_at(of, 0.98 * reference, over, end);
        let unpaced = unpaced(runner, &platform, &scenario, end)?;
        let bare = back(&unpaced);
        case_result.at_most("back after ms", in_ms(back(&run_result)), limit(AFTER_STALL, bare));
        let then = |of: &RunResult| mean_gbps(of, over + AFTER_STALL, end);
        let reference = reference.min(then(&unpaced));
        case_result.at_least("% then", 100.0 * then(&run_result) / reference, 99.0);
        Ok(case_result)
    })
}

/// Returns a scenario with a job for every drive.
fn each_its_own(depth: u32) -> Scenario {
    let mut scenario = Scenario::reads(setups::drives(16), depth);
    scenario.jobs = (0..16).map(|drive| Job::reads(drive..=drive, depth)).collect();
    scenario
}

fn one_drive(name: String, platform: &Platform, depth: u32) -> Case {
    let platform = platform.clone();
    Case::new(Family::Stall, name, move |runner| {
        let scenario = each_its_own(depth).disturbed(DisturbanceKind::Drive(0), AT, ONE);
        let run_result = run(runner, &platform, runner.under_test(&scenario), AT + ONE)?;
        let mut others = each_its_own(depth);
        others.jobs.remove(0);
        let mut case_result = CaseResult::of(&run_result, runner.ceiling(&platform, &others)?);
        case_result.share(99.0);
        Ok(case_result)
    })
}

fn half_link(name: String, platform: &Platform, scenario: Scenario) -> Case {
    let platform = platform.clone();
    Case::new(Family::Stall, name, move |runner| {
        let over = AT + HALF;
        let end = over + 500 * MS;
        let run_result = run(runner, &platform, runner.under_test(&scenario), end)?;
        let reference = undisturbed(runner, &platform, &scenario)?;
        let mut case_result = CaseResult::of(&run_result, reference);
        // The window contains both rates: the share refers to their mean.
        let halved = reference.min(0.5 * platform.link_gbps());
        case_result.reference_gbps = (reference + halved) / 2.0;
        let bare = unpaced(runner, &platform, &scenario, end)?;
        let down = |of: &RunResult| back_at(of, 0.98 * halved, AT, over);
        let up = |of: &RunResult| back_at(of, 0.98 * reference, over, end);
        let limits = [limit(AFTER_CHANGE, down(&bare)), limit(AFTER_CHANGE, up(&bare))];
        case_result.at_most("down after ms", in_ms(down(&run_result)), limits[0]);
        case_result.at_most("up after ms", in_ms(up(&run_result)), limits[1]);
        let then = |reference: f64, from: Nanos, until: Nanos| {
            let mean = |of: &RunResult| mean_gbps(of, from + AFTER_CHANGE, until);
            100.0 * mean(&run_result) / reference.min(mean(&bare))
        };
        case_result.at_least("% of half then", then(halved, AT, over), 99.0);
        case_result.at_least("% then", then(reference, over, end), 99.0);
        Ok(case_result)
    })
}

/// Returns the time from `from` after which every stretch until `until` has at least `gbps`; `None`
/// if not even the last one has.
fn back_at(run_result: &RunResult, gbps: f64, from: Nanos, until: Nanos) -> Option<Nanos> {
    let starts = run_result.series.iter().map(|s| s.at).filter(|at| *at >= from);
    let mut back = None;
    for start in starts.take_while(|start| start + STRETCH <= until) {
        if mean_gbps(run_result, start, start + STRETCH) < gbps {
            back = None;
        } else if back.is_none() {
            back = Some(start - from);
        }
    }
    back
}

fn in_ms(time: Option<Nanos>) -> f64 {
    time.map_or(f64::INFINITY, |time| time as f64 / MS as f64)
}

#[cfg(test)]
mod tests {
    use super::{MS, STEP, back_at, limit};
    use nvmeof_sim::RunResult;
    use nvmeof_sim::run_result::Sample;

    fn series(rates: impl IntoIterator<Item = f64>) -> RunResult {
        let sample = |(at, gbps): (u64, f64)| Sample { at: at * STEP, gbps, ..Sample::default() };
        RunResult { series: (1..).zip(rates).map(sample).collect(), ..RunResult::default() }
    }

    #[test]
    fn only_a_load_that_cannot_be_back_in_time_has_longer() {
        assert_eq!(limit(100 * MS, Some(0)), 100.0);
        assert_eq!(limit(100 * MS, Some(100 * MS)), 100.0);
        assert_eq!(limit(100 * MS, Some(110 * MS)), 160.0);
        // It never recovers even then: that implies no limit.
        assert_eq!(limit(100 * MS, None), 100.0);
    }

    #[test]
    fn back_means_back_for_good() {
        let end = 20 * STEP;
        let fine = series([100.0; 20]);
        assert_eq!(back_at(&fine, 98.0, 0, end), Some(STEP));
        let late = series((0..20).map(|at| if at < 8 { 50.0 } else { 100.0 }));
        assert_eq!(back_at(&late, 98.0, 0, end), Some(80 * MS));
        let again = series((0..20).map(|at| if at == 0 || at == 12 { 50.0 } else { 100.0 }));
        assert_eq!(back_at(&again, 98.0, 0, end), Some(130 * MS));
        assert_eq!(back_at(&series([97.0; 20]), 98.0, 0, end), None);
    }
}
