//! Cases with slow devices alongside fast ones.

use super::case_result::CaseResult;
use super::runner::SuiteRunner;
use super::{Case, Family, SuiteError};
use nvmeof_sim::Platform;
use nvmeof_sim::RunResult;
use nvmeof_sim::scenario::{Job, Nanos, Scenario};
use nvmeof_sim::setups::{self, MS};

pub(super) const ABOUT: &str = "16 drives split in three, 0, 16 or 32 thirds 1 ms slower (tests 11 \
    and 12): at least 98 % of the link in total (or of what no pacing reaches with an endless cache, \
    where that is less); the slow flows together at least the smaller of 5 % of the link and 80 % of \
    what they reach alone, unpaced and with an endless cache.";

const DRIVES: u32 = 16;
const DELAY: Nanos = MS;

pub(super) fn cases(runner: &SuiteRunner) -> Vec<Case> {
    let mut cases = Vec::new();
    let few = runner.pick(&[1, 2, 4, 8, 16, 32, 64][..], &[1, 8, 64]);
    for (name, platform) in runner.platforms() {
        for slow in [0, 16, 32] {
            for depth in [85, 341] {
                let name = format!("{name} {slow} slow, 3 x qd {depth}");
                cases.push(case(name, platform, scenario(slow, [depth; 3])));
            }
        }
        for slow in [16, 32] {
            for fast_depth in [256, 1024] {
                for &depth in few {
                    let name = format!("{name} {slow} slow, qd {depth} {depth} {fast_depth}");
                    let depths = [depth, depth, fast_depth];
                    cases.push(case(name, platform, scenario(slow, depths)));
                }
            }
        }
    }
    cases
}

/// Returns a scenario with a job on every third of the drives: the first `slow` devices are slow.
pub(super) fn scenario(slow: u32, depths: [u32; 3]) -> Scenario {
    let mut scenario = Scenario::reads(setups::split3(DRIVES, slow, DELAY), 1);
    let third = DRIVES as usize;
    let job = |(at, depth): (usize, u32)| Job::reads(at * third..(at + 1) * third, depth);
    scenario.jobs = depths.into_iter().enumerate().map(job).collect();
    scenario
}

fn case(name: String, platform: &Platform, scenario: Scenario) -> Case {
    let platform = platform.clone();
    Case::new(Family::Slow, name, move |runner| judge(runner, &platform, &scenario))
}

fn judge(
    runner: &SuiteRunner,
    platform: &Platform,
    scenario: &Scenario,
) -> Result<CaseResult, SuiteError> {
    let run_result = runner.try_policy(platform, scenario)?;
    let mut case_result = CaseResult::of(&run_result, runner.ceiling(platform, scenario)?);
    case_result.share(98.0);
    if let Some(alone) = only_slow(scenario) {
        let alone = runner.reference_run(platform, &alone.endless())?;
        let bound = (0.05 * platform.link_gbps()).min(0.8 * alone);
        case_result.at_least("slow Gb/s", of_slow(scenario, &run_result), bound);
    }
    Ok(case_result)
}

fn is_slow(scenario: &Scenario, device: usize) -> bool {
    matches!(scenario.devices.get(device), Some(nvmeof_sim::scenario::Device::Part { delay, .. }) if *delay > 0)
}

/// Returns the load of the slow devices alone; `None` if there are none.
fn only_slow(scenario: &Scenario) -> Option<Scenario> {
    let mut alone = scenario.clone();
    alone.jobs.retain(|job| job.devices.iter().all(|device| is_slow(scenario, *device)));
    (!alone.jobs.is_empty()).then_some(alone)
}

fn of_slow(scenario: &Scenario, run_result: &RunResult) -> f64 {
    let slow = run_result.flows.iter().filter(|flow| is_slow(scenario, flow.device as usize));
    slow.map(|flow| flow.metrics.gbps).sum()
}

#[cfg(test)]
mod tests {
    use super::{is_slow, only_slow, scenario};

    #[test]
    fn jobs_cover_the_thirds() {
        for (slow, jobs) in [(0, None), (16, Some(1)), (32, Some(2))] {
            let scenario = scenario(slow, [1, 2, 3]);
            assert_eq!(scenario.devices.len(), 48);
            let number = (0..48).filter(|d| is_slow(&scenario, *d)).count();
            assert_eq!(number, slow as usize);
            assert_eq!(only_slow(&scenario).map(|alone| alone.jobs.len()), jobs);
        }
    }
}
