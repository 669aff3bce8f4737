//! Cases with any number of target cores.

use super::case_result::CaseResult;
use super::runner::SuiteRunner;
use super::{Case, Family, SuiteError};
use nvmeof_sim::Platform;
use nvmeof_sim::RunResult;
use nvmeof_sim::scenario::Scenario;
use nvmeof_sim::setups;

pub(super) const ABOUT: &str = "16 drives and 16, 8, 4, 2 target cores (test 7): at least 98.5 % of \
    what no pacing reaches there with an endless cache; one core: the same, and never less as depth \
    grows (to half a percent); 16 cores at any depth (test 8): every queue connects and is served, none \
    less than half as much as the mean.";

pub(super) fn cases(runner: &SuiteRunner) -> Vec<Case> {
    let mut cases = Vec::new();
    let depths = runner.pick(&[32, 64, 128, 256, 512, 1024, 2048][..], &[32, 256, 2048]);
    for (name, platform) in runner.platforms() {
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
        for &depth in runner.pick(&[2, 8, 32, 256, 1024, 2048][..], &[8, 256, 2048]) {
            let name = format!("{name} service on 16 cores, qd {depth}");
            let scenario = Scenario::reads(setups::drives(16), depth).on_cores(16);
            cases.push(service(name, platform, scenario));
        }
        for &depth in runner.pick(&[1, 4, 32, 128, 256][..], &[1, 32, 256]) {
            let name = format!("{name} service on 16 cores, kernel qd {depth}");
            cases.push(service(name, platform, Scenario::kernel_reads(setups::drives(16), depth)));
        }
    }
    cases
}

fn line_rate(name: String, platform: &Platform, scenario: Scenario) -> Case {
    let platform = platform.clone();
    Case::new(Family::Cores, name, move |runner| {
        let run_result = runner.try_policy(&platform, &scenario)?;
        let mut case_result = CaseResult::of(&run_result, runner.ceiling(&platform, &scenario)?);
        case_result.share(98.5);
        Ok(case_result)
    })
}

/// Runs one case: the figures are those of the deepest run, the bounds hold for all.
fn one_core(name: String, platform: &Platform, depths: &'static [u32]) -> Case {
    let platform = platform.clone();
    Case::new(Family::Cores, name, move |runner| {
        let mut case_result = CaseResult::default();
        let (mut least, mut most, mut worst_step) = (f64::INFINITY, 0.0_f64, f64::INFINITY);
        for &depth in depths {
            let scenario = Scenario::reads(setups::drives(16), depth).on_cores(1);
            let run_result = runner.try_policy(&platform, &scenario)?;
            let mut next = CaseResult::of(&run_result, runner.ceiling(&platform, &scenario)?);
            next.violations.append(&mut case_result.violations);
            case_result = next;
            least = least.min(case_result.percent());
            most = most.max(run_result.total.gbps);
            worst_step = worst_step.min(100.0 * run_result.total.gbps / most);
        }
        case_result.at_least("least % of reference", least, 98.5);
        case_result.at_least("% of any lesser depth", worst_step, 99.5);
        Ok(case_result)
    })
}

fn service(name: String, platform: &Platform, scenario: Scenario) -> Case {
    let platform = platform.clone();
    Case::new(Family::Cores, name, move |runner| judge_service(runner, &platform, &scenario))
}

fn judge_service(
    runner: &SuiteRunner,
    platform: &Platform,
    scenario: &Scenario,
) -> Result<CaseResult, SuiteError> {
    let run_result = runner.try_policy(platform, scenario)?;
    let mut case_result = CaseResult::of(&run_result, runner.ceiling(platform, scenario)?);
    case_result.at_most("starved queues", f64::from(run_result.starved_queues), 0.0);
    let flows: usize = scenario.jobs.iter().map(|job| job.devices.len()).sum();
    let flows = flows as f64 * f64::from(scenario.hosts);
    case_result.at_least("flows served", run_result.flows.len() as f64, flows);
    case_result.at_least("least % of a mean flow", least_of_mean(&run_result), 50.0);
    Ok(case_result)
}

fn least_of_mean(run_result: &RunResult) -> f64 {
    let commands = || run_result.flows.iter().map(|flow| flow.metrics.commands as f64);
    let mean = commands().sum::<f64>() / run_result.flows.len() as f64;
    100.0 * commands().fold(f64::INFINITY, f64::min) / mean
}
