//! Cases with any number of target cores.

use super::lab::Lab;
use super::verdict::Verdict;
use super::{Case, Family, SuiteError};
use crate::outcome::Outcome;
use crate::platform::Platform;
use crate::scenario::Scenario;
use crate::setups;

pub(super) const ABOUT: &str = "16 drives and 16, 8, 4, 2 target cores (test 7): at least 98.5 % of \
    what no pacing reaches there with an endless cache; one core: the same, and never less as depth \
    grows (to half a percent); 16 cores at any depth (test 8): every queue connects and is served, none \
    less than half as much as the mean.";

pub(super) fn cases(lab: &Lab) -> Vec<Case> {
    let mut cases = Vec::new();
    let depths = lab.pick(&[32, 64, 128, 256, 512, 1024, 2048][..], &[32, 256, 2048]);
    for (name, platform) in lab.platforms() {
        for cores in [16, 8, 4, 2] {
            for &depth in depths {
                let scenario = Scenario::reads(setups::drives(16), depth).on_cores(cores);
                cases.push(line_rate(
                    format!("{name} {cores} cores, qd {depth}"),
                    platform,
                    scenario,
                ));
            }
        }
        cases.push(one_core(format!("{name} 1 core, growing depth"), platform, depths));
        for &depth in lab.pick(&[2, 8, 32, 256, 1024, 2048][..], &[8, 256, 2048]) {
            let name = format!("{name} service on 16 cores, qd {depth}");
            let scenario = Scenario::reads(setups::drives(16), depth).on_cores(16);
            cases.push(service(name, platform, scenario));
        }
        for &depth in lab.pick(&[1, 4, 32, 128, 256][..], &[1, 32, 256]) {
            let name = format!("{name} service on 16 cores, kernel qd {depth}");
            cases.push(service(name, platform, Scenario::kernel_reads(setups::drives(16), depth)));
        }
    }
    cases
}

fn line_rate(name: String, platform: &Platform, scenario: Scenario) -> Case {
    let platform = platform.clone();
    Case::new(Family::Cores, name, move |lab| {
        let outcome = lab.try_policy(&platform, &scenario)?;
        let mut verdict = Verdict::of(&outcome, lab.ceiling(&platform, &scenario)?);
        verdict.share(98.5);
        Ok(verdict)
    })
}

/// Runs one case: the figures are those of the deepest run, the bounds hold for all.
fn one_core(name: String, platform: &Platform, depths: &'static [u32]) -> Case {
    let platform = platform.clone();
    Case::new(Family::Cores, name, move |lab| {
        let mut verdict = Verdict::default();
        let (mut least, mut most, mut worst_step) = (f64::INFINITY, 0.0_f64, f64::INFINITY);
        for &depth in depths {
            let scenario = Scenario::reads(setups::drives(16), depth).on_cores(1);
            let outcome = lab.try_policy(&platform, &scenario)?;
            let mut next = Verdict::of(&outcome, lab.ceiling(&platform, &scenario)?);
            next.violations.append(&mut verdict.violations);
            verdict = next;
            least = least.min(verdict.percent());
            most = most.max(outcome.total.gbps);
            worst_step = worst_step.min(100.0 * outcome.total.gbps / most);
        }
        verdict.at_least("least % of reference", least, 98.5);
        verdict.at_least("% of any lesser depth", worst_step, 99.5);
        Ok(verdict)
    })
}

fn service(name: String, platform: &Platform, scenario: Scenario) -> Case {
    let platform = platform.clone();
    Case::new(Family::Cores, name, move |lab| judge_service(lab, &platform, &scenario))
}

fn judge_service(
    lab: &Lab,
    platform: &Platform,
    scenario: &Scenario,
) -> Result<Verdict, SuiteError> {
    let outcome = lab.try_policy(platform, scenario)?;
    let mut verdict = Verdict::of(&outcome, lab.ceiling(platform, scenario)?);
    verdict.at_most("starved queues", f64::from(outcome.starved_queues), 0.0);
    let flows: usize = scenario.jobs.iter().map(|job| job.devices.len()).sum();
    let flows = flows as f64 * f64::from(scenario.hosts);
    verdict.at_least("flows served", outcome.flows.len() as f64, flows);
    verdict.at_least("least % of a mean flow", least_of_mean(&outcome), 50.0);
    Ok(verdict)
}

fn least_of_mean(outcome: &Outcome) -> f64 {
    let commands = || outcome.flows.iter().map(|flow| flow.figures.commands as f64);
    let mean = commands().sum::<f64>() / outcome.flows.len() as f64;
    100.0 * commands().fold(f64::INFINITY, f64::min) / mean
}
