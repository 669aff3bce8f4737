//! Cases with slow devices alongside fast ones.

use std::collections::BTreeMap;

use super::case_result::CaseResult;
use super::runner::SuiteRunner;
use super::{Case, Family, SuiteError};
use nvmeof_sim::Platform;
use nvmeof_sim::RunResult;
use nvmeof_sim::scenario::{Delay, Device, Job, Scenario};
use nvmeof_sim::setups::{self, MS};

pub(super) const ABOUT: &str = "16 drives split in three, 0, 16 or 32 thirds 1 ms slower: after their \
    data is in memory (tests 11 and 12), or before it arrives. At least 98 % of the link in total (or \
    of what no pacing reaches with an endless cache, where that is less). With the delay before the \
    data, each slow flow at least 90 % of what it gets unpaced and with an endless cache. Flows that \
    share the depth of one job and host count together: chance distributes their commands.";

const DRIVES: u32 = 16;
const AFTER_DATA: Delay = Delay::AfterData(MS);
const BEFORE_DATA: Delay = Delay::BeforeData(MS);
/// Depth of the fast devices next to slow ones with few commands each.
const FAST_DEPTH: u32 = 1024;

pub(super) fn cases(runner: &SuiteRunner) -> Vec<Case> {
    let mut cases = Vec::new();
    for (name, platform) in runner.platforms() {
        let mut add = |words: String, scenario| {
            cases.push(case(format!("{name} {words}"), platform, scenario));
        };
        for slow in [0, 16, 32] {
            for depth in [85, 341] {
                let scenario = thirds(slow, AFTER_DATA, [depth; 3]);
                add(format!("{slow} slow, 3 x qd {depth}"), scenario);
            }
        }
        for slow in [16, 32] {
            for fast in [256, FAST_DEPTH] {
                for &depth in runner.pick(&[1, 2, 4, 8, 16, 32, 64][..], &[1, 8, 64]) {
                    let scenario = thirds(slow, AFTER_DATA, [depth, depth, fast]);
                    add(format!("{slow} slow, qd {depth} {depth} {fast}"), scenario);
                }
            }
        }
        for slow in [16, 32] {
            let words = format!("{slow} slow before data");
            for depth in [85, 341] {
                let scenario = thirds(slow, BEFORE_DATA, [depth; 3]);
                add(format!("{words}, 3 x qd {depth}"), scenario);
            }
            for &fast in runner.pick(&[256, FAST_DEPTH][..], &[FAST_DEPTH]) {
                for &depth in runner.pick(&[1, 2, 4, 8, 16, 32, 64][..], &[1, 64]) {
                    let scenario = thirds(slow, BEFORE_DATA, [depth, depth, fast]);
                    add(format!("{words}, qd {depth} {depth} {fast}"), scenario);
                }
            }
            for &depth in runner.pick(&[1, 2, 4][..], &[1]) {
                let scenario = each_its_own(slow, BEFORE_DATA, depth);
                add(format!("{words}, {slow} x qd {depth} and {FAST_DEPTH}"), scenario);
            }
        }
    }
    cases
}

/// Returns a scenario with a job on every third of the drives: the first `slow` devices are slow.
pub(super) fn thirds(slow: u32, delay: Delay, depths: [u32; 3]) -> Scenario {
    let mut scenario = Scenario::reads(setups::split3(DRIVES, slow, delay), 1);
    let third = DRIVES as usize;
    let job = |(at, depth): (usize, u32)| Job::reads(at * third..(at + 1) * third, depth);
    scenario.jobs = depths.into_iter().enumerate().map(job).collect();
    scenario
}

/// Returns a scenario with a job of `depth` on each slow device, and one on all fast ones.
fn each_its_own(slow: u32, delay: Delay, depth: u32) -> Scenario {
    let mut scenario = Scenario::reads(setups::split3(DRIVES, slow, delay), 1);
    let slow = slow as usize;
    scenario.jobs = (0..slow).map(|device| Job::reads([device], depth)).collect();
    scenario.jobs.push(Job::reads(slow..scenario.devices.len(), FAST_DEPTH));
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
    let under_test = runner.under_test(scenario);
    let run_result = runner.run(platform, &under_test)?;
    let mut case_result = CaseResult::of(&run_result, runner.ceiling(platform, scenario)?);
    case_result.share(98.0);
    if (0..scenario.devices.len()).any(|device| delay(scenario, device) == BEFORE_DATA) {
        let endless = runner.run(platform, &under_test.endless())?;
        let least = least_of_endless(scenario, &run_result, &endless);
        case_result.at_least("least slow flow %", least, 90.0);
    }
    Ok(case_result)
}

fn delay(scenario: &Scenario, device: usize) -> Delay {
    match scenario.devices.get(device) {
        Some(Device::Drive { delay, .. } | Device::Part { delay, .. }) => *delay,
        Some(Device::Null) | None => Delay::None,
    }
}

/// Returns the bandwidth of the slow flows in Gb/s by job and host.
fn slow_flows(scenario: &Scenario, run_result: &RunResult) -> BTreeMap<(u32, u32), f64> {
    let mut slow = BTreeMap::new();
    for flow in &run_result.flows {
        if delay(scenario, flow.device as usize) != Delay::None {
            *slow.entry((flow.job, flow.host)).or_default() += flow.metrics.gbps;
        }
    }
    slow
}

/// Returns the lowest bandwidth of a slow flow, in percent of its bandwidth in `endless`.
fn least_of_endless(scenario: &Scenario, run_result: &RunResult, endless: &RunResult) -> f64 {
    let own = slow_flows(scenario, run_result);
    let percent = |(flow, gbps): (_, &f64)| 100.0 * own.get(flow).unwrap_or(&0.0) / gbps;
    slow_flows(scenario, endless).iter().map(percent).fold(f64::INFINITY, f64::min)
}

#[cfg(test)]
mod tests {
    use super::{AFTER_DATA, BEFORE_DATA, delay, each_its_own, least_of_endless, thirds};
    use nvmeof_sim::RunResult;
    use nvmeof_sim::run_result::{FlowMetrics, RunMetrics};

    #[test]
    fn jobs_cover_the_devices() {
        for (slow, own) in [(0, 1), (16, 17), (32, 33)] {
            for kind in [AFTER_DATA, BEFORE_DATA] {
                for (scenario, jobs) in
                    [(thirds(slow, kind, [1, 2, 3]), 3), (each_its_own(slow, kind, 1), own)]
                {
                    let number = (0..48).filter(|at| delay(&scenario, *at) == kind).count();
                    assert_eq!((number, scenario.jobs.len()), (slow as usize, jobs));
                    let devices = scenario.jobs.iter().flat_map(|job| job.devices.clone());
                    assert_eq!(devices.collect::<Vec<_>>(), (0..48).collect::<Vec<_>>());
                }
            }
        }
    }

    #[test]
    fn the_worst_slow_flow_counts_and_one_without_commands_has_nothing() {
        let scenario = thirds(16, BEFORE_DATA, [1, 2, 3]);
        let run = |flows: &[(u32, u32, u32, f64)]| {
            let flow = |&(job, host, device, gbps): &(u32, u32, u32, f64)| {
                let metrics = RunMetrics { gbps, ..RunMetrics::default() };
                FlowMetrics { host, job, device, metrics }
            };
            RunResult { flows: flows.iter().map(flow).collect(), ..RunResult::default() }
        };
        let endless = run(&[(0, 0, 0, 2.0), (0, 0, 1, 2.0), (0, 1, 0, 4.0), (1, 0, 16, 9.0)]);
        let least = |flows: &[_]| least_of_endless(&scenario, &run(flows), &endless);
        assert_eq!(least(&[(0, 0, 0, 1.0), (0, 0, 1, 3.0), (0, 1, 0, 3.0)]), 75.0);
        assert_eq!(least(&[(0, 0, 0, 4.0), (1, 0, 16, 9.0)]), 0.0);
    }
}
