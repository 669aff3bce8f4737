//! Cases for line rate at every queue depth.

use super::lab::Lab;
use super::verdict::Verdict;
use super::{Case, Family, SuiteError};
use crate::platform::Platform;
use crate::scenario::{Device, Scenario};
use crate::setups;

pub(super) const ABOUT: &str = "16 drives or 16 null devices, 128 KiB random reads, two hosts \
    (tests 2 to 6): at least 99 % of the smaller of the link's goodput and what no pacing reaches \
    with an endless cache; standard deviation at most 1 Gb/s; mean buffers at most 1.5 times the \
    fewest static ones that reach as much.";

pub(super) fn cases(lab: &Lab) -> Vec<Case> {
    let spdk = lab.pick(&[32, 64, 128, 256, 512, 1024, 2048][..], &[32, 64, 256, 1024, 2048]);
    let kernel = lab.pick(&[2, 4, 8, 16, 32][..], &[2, 8, 32]);
    let seeds = lab.pick(2..=10, 2..=3);
    let mut cases = Vec::new();
    for (name, platform) in lab.platforms() {
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
    Case::new(Family::Depth, name, move |lab| judge(lab, &platform, &scenario))
}

fn judge(lab: &Lab, platform: &Platform, scenario: &Scenario) -> Result<Verdict, SuiteError> {
    let ceiling = lab.ceiling(platform, scenario)?;
    let outcome = lab.try_policy(platform, scenario)?;
    let mut verdict = Verdict::of(&outcome, ceiling);
    verdict.share(99.0);
    verdict.at_most("stddev", outcome.stddev_gbps, 1.0);
    // If not even a static number of buffers reaches that, there is no reference.
    if let Some(fewest) = lab.fewest(platform, scenario, 0.99 * ceiling)? {
        let times = outcome.buffers_mean / fewest;
        verdict.at_most("x fewest buffers", times, 1.5);
        verdict.note = format!("fewest {fewest:.0}");
    } else {
        verdict.note = "no static number reaches it".to_owned();
    }
    Ok(verdict)
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
    Case::new(Family::Depth, name, move |lab| {
        let mut worst: Option<Verdict> = None;
        let mut stddev: f64 = 0.0;
        for seed in seeds.clone() {
            let scenario = scenario.clone().seed(seed);
            let outcome = lab.try_policy(&platform, &scenario)?;
            stddev = stddev.max(outcome.stddev_gbps);
            let mut verdict = Verdict::of(&outcome, lab.ceiling(&platform, &scenario)?);
            if let Some(so_far) = &mut worst {
                verdict.violations.append(&mut so_far.violations);
            }
            worst = match worst {
                Some(so_far) if so_far.percent() <= verdict.percent() => {
                    Some(Verdict { violations: verdict.violations, ..so_far })
                }
                _ => Some(verdict),
            };
        }
        let mut verdict = worst.unwrap_or_default();
        verdict.share(99.0);
        verdict.at_most("worst stddev", stddev, 1.0);
        Ok(verdict)
    })
}
