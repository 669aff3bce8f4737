//! Cases for line rate at every queue depth.

use super::case_result::CaseResult;
use super::runner::SuiteRunner;
use super::{Case, Family, SuiteError};
use nvmeof_sim::Platform;
use nvmeof_sim::scenario::{Device, Scenario};
use nvmeof_sim::setups;

pub(super) const ABOUT: &str = "16 drives or 16 null devices, 128 KiB random reads, two hosts \
    (tests 2 to 6): at least 99 % of the smaller of the link's goodput and what no pacing reaches \
    with an endless cache; standard deviation at most 1 Gb/s.";

pub(super) fn cases(runner: &SuiteRunner) -> Vec<Case> {
    let spdk = runner.pick(&[32, 64, 128, 256, 512, 1024, 2048][..], &[32, 64, 256, 1024, 2048]);
    let kernel = runner.pick(&[2, 4, 8, 16, 32][..], &[2, 8, 32]);
    let seeds = runner.pick(2..=10, 2..=3);
    let mut cases = Vec::new();
    for (name, platform) in runner.platforms() {
        for (kind, devices) in [("nvme", setups::drives(16)), ("null", setups::null(16))] {
            for &depth in spdk {
                let scenario = Scenario::reads(devices.clone(), depth);
                cases.push(case(format!("{name} {kind}16 qd {depth}"), platform, scenario));
            }
            for &depth in kernel {
                let scenario = Scenario::kernel_reads(devices.clone(), depth);
                cases.push(case(format!("{name} {kind}16 kernel qd {depth}"), platform, scenario));
            }
        }
        for depth in [32, 256, 1024, 2048] {
            let devices = setups::drives(16);
            cases.push(again(name, platform, &devices, depth, seeds.clone()));
        }
    }
    cases
}

fn case(name: String, platform: &Platform, scenario: Scenario) -> Case {
    let platform = platform.clone();
    Case::new(Family::Depth, name, move |runner| judge(runner, &platform, &scenario))
}

fn judge(
    runner: &SuiteRunner,
    platform: &Platform,
    scenario: &Scenario,
) -> Result<CaseResult, SuiteError> {
    let ceiling = runner.ceiling(platform, scenario)?;
    let run_result = runner.try_policy(platform, scenario)?;
    let mut case_result = CaseResult::of(&run_result, ceiling);
    case_result.share(99.0);
    case_result.at_most("stddev", run_result.stddev_gbps, 1.0);
    Ok(case_result)
}

/// Test 6: repeated with other seeds; the worst result counts.
fn again(
    name: &str,
    platform: &Platform,
    devices: &[Device],
    depth: u32,
    seeds: std::ops::RangeInclusive<u64>,
) -> Case {
    let platform = platform.clone();
    let scenario = Scenario::reads(devices.to_vec(), depth);
    let name = format!("{name} nvme16 qd {depth} again");
    Case::new(Family::Depth, name, move |runner| {
        let mut worst: Option<CaseResult> = None;
        let mut stddev: f64 = 0.0;
        for seed in seeds.clone() {
            let scenario = scenario.clone().seed(seed);
            let run_result = runner.try_policy(&platform, &scenario)?;
            stddev = stddev.max(run_result.stddev_gbps);
            let mut case_result =
                CaseResult::of(&run_result, runner.ceiling(&platform, &scenario)?);
            if let Some(so_far) = &mut worst {
                case_result.violations.append(&mut so_far.violations);
            }
            worst = match worst {
                Some(so_far) if so_far.percent() <= case_result.percent() => {
                    Some(CaseResult { violations: case_result.violations, ..so_far })
                }
                _ => Some(case_result),
            };
        }
        let mut case_result = worst.unwrap_or_default();
        case_result.share(99.0);
        case_result.at_most("worst stddev", stddev, 1.0);
        Ok(case_result)
    })
}
