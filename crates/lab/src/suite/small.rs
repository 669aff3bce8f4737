//! Cases with small commands among large ones.

use super::case_result::CaseResult;
use super::runner::SuiteRunner;
use super::{Case, Family};
use nvmeof_sim::Platform;
use nvmeof_sim::RunResult;
use nvmeof_sim::run_result::Quantiles;
use nvmeof_sim::scenario::{Nanos, Scenario};
use nvmeof_sim::setups::{self, BLOCK, MS};

pub(super) const ABOUT: &str = "One stream of 80 % 128 KiB and 20 % 4 KiB reads on 16 drives, from \
    one host or both: p99 of the small ones, from arrival at the target to the end of their sending, at \
    most what it is at depth 1 with small ones alone, + 150 us; the total at least 99 % of the smaller \
    of the link and what the same stream reaches unpaced with an endless cache.";

const SMALL: u32 = 4096;
/// The same in quick runs: alongside small commands the probes are narrow, so finding the budget
/// takes longer.
const WARM_UP: Nanos = 600 * MS;
const TIME: Nanos = 500 * MS;

pub(super) fn cases(runner: &SuiteRunner) -> Vec<Case> {
    let mut cases = Vec::new();
    for (name, platform) in runner.platforms() {
        for hosts in [1, 2] {
            for &depth in runner.pick(&[64, 256, 1024, 2048][..], &[256, 2048]) {
                let mut scenario = Scenario::reads(setups::drives(16), depth);
                scenario.hosts = hosts;
                scenario.jobs[0].blocks = vec![(BLOCK, 0.8), (SMALL, 0.2)];
                cases.push(case(format!("{name} {hosts} hosts, qd {depth}"), platform, scenario));
            }
        }
    }
    cases
}

fn case(name: String, platform: &Platform, scenario: Scenario) -> Case {
    let platform = platform.clone();
    Case::new(Family::Small, name, move |runner| {
        let under_test = runner.under_test(&scenario).lasting(WARM_UP, TIME);
        let run_result = runner.run(&platform, &under_test)?;
        let ports = scenario.hosts.min(platform.ports);
        let link = f64::from(ports) * platform.port_gbps;
        let reference = runner.ceiling(&platform, &scenario)?.min(link);
        let mut case_result = CaseResult::of(&run_result, reference);
        case_result.share(99.0);
        let alone = runner.run(&platform, &unloaded(&under_test))?;
        case_result.also(&alone);
        let bound = in_us(of_small(&alone).p99) + 150.0;
        case_result.at_most("small p99 us", in_us(of_small(&run_result).p99), bound);
        Ok(case_result)
    })
}

/// Returns a scenario with small commands one at a time, for a long time: with few commands, few of
/// them determine the p99.
fn unloaded(scenario: &Scenario) -> Scenario {
    let mut scenario = scenario.clone().blocks(SMALL);
    scenario.time *= 8;
    for job in &mut scenario.jobs {
        job.queue_depth = 1;
    }
    scenario
}

fn of_small(run_result: &RunResult) -> Quantiles {
    let small = run_result.sizes.iter().find(|(bytes, _)| *bytes == SMALL);
    small.map_or(Quantiles::default(), |(_, metrics)| metrics.at_target)
}

fn in_us(ns: u64) -> f64 {
    ns as f64 / 1000.0
}
