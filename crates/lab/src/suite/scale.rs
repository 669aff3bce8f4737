//! Cases with the same machine in other units.

use super::case_result::CaseResult;
use super::runner::SuiteRunner;
use super::{Case, Family, SuiteError};
use nvmeof_sim::Platform;
use nvmeof_sim::numbers::{whole, whole_u32};
use nvmeof_sim::scenario::Scenario;
use nvmeof_sim::setups::{self, BLOCK};

pub(super) const ABOUT: &str = "Everything scaled by 1/4, 1/2, 1, 2 and 4, normalized results within \
    3 % of each other. Three readings. `bytes`: cache, blocks and all times by the factor, so that rates \
    stay. `faster`: rates by the factor and all times by its inverse. Both are the same machine in \
    other units, and the share of the link is compared. `literal`: link, drive and memory rates, \
    cache and the latencies of network and drives by the factor at the same block size: another machine, where \
    the share of that machine's best static setting is compared, and more than that \
    counts as all of it.";

const FACTORS: [f64; 5] = [0.25, 0.5, 1.0, 2.0, 4.0];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ScalingRule {
    Bytes,
    Faster,
    Literal,
}

pub(super) fn cases(runner: &SuiteRunner) -> Vec<Case> {
    let mut cases = Vec::new();
    for (name, platform) in runner.platforms() {
        for (kind, rule) in [
            ("bytes", ScalingRule::Bytes),
            ("faster", ScalingRule::Faster),
            ("literal", ScalingRule::Literal),
        ] {
            for &depth in runner.pick(&[64, 256, 2048][..], &[256]) {
                let platform = platform.clone();
                let name = format!("{name} {kind}, qd {depth}");
                cases.push(Case::new(Family::Scale, name, move |runner| {
                    judge(runner, &platform, depth, rule)
                }));
            }
        }
    }
    cases
}

/// Judges a case: the figures are those of the run with the lowest share.
fn judge(
    runner: &SuiteRunner,
    platform: &Platform,
    depth: u32,
    rule: ScalingRule,
) -> Result<CaseResult, SuiteError> {
    let mut case_result: Option<CaseResult> = None;
    let mut most: f64 = 0.0;
    for factor in FACTORS {
        let mut next = attempt(runner, platform, depth, rule, factor)?;
        most = most.max(next.percent());
        case_result = match case_result {
            Some(mut least) if least.percent() <= next.percent() => {
                least.violations.append(&mut next.violations);
                Some(least)
            }
            before => {
                next.violations.extend(before.into_iter().flat_map(|least| least.violations));
                Some(next)
            }
        };
    }
    let mut case_result = case_result.unwrap_or_default();
    let apart = most - case_result.percent();
    case_result.at_most("% range", apart, 3.0);
    Ok(case_result)
}

fn attempt(
    runner: &SuiteRunner,
    platform: &Platform,
    depth: u32,
    rule: ScalingRule,
    factor: f64,
) -> Result<CaseResult, SuiteError> {
    let scenario = Scenario::reads(setups::drives(16), depth);
    let (machine, scenario, stretch) = match rule {
        ScalingRule::Bytes => {
            let scenario = scenario.blocks(whole_u32(f64::from(BLOCK) * factor));
            (platform.scaled(1.0, factor, factor), scenario, factor)
        }
        ScalingRule::Faster => (platform.scaled(factor, 1.0, 1.0 / factor), scenario, 1.0 / factor),
        ScalingRule::Literal => {
            // The core time of a command is work, not a latency.
            let Platform { turn_us, step_us, waiting_ns, .. } = *platform;
            let scaled = platform.scaled(factor, factor, factor);
            (Platform { turn_us, step_us, waiting_ns, ..scaled }, scenario, 1.0)
        }
    };
    let under_test = runner.under_test(&scenario);
    let mut under_test = under_test.clone().lasting(
        whole(under_test.warm_up as f64 * stretch),
        whole(under_test.time as f64 * stretch),
    );
    under_test.sample = whole(under_test.sample as f64 * stretch);
    let run_result = runner.run(&machine, &under_test)?;
    let reference = match rule {
        // The search may miss a narrow optimum: a better result is no failure.
        ScalingRule::Literal => {
            runner.best_static(&machine, &scenario)?.gbps.max(run_result.total.gbps)
        }
        _ => machine.link_gbps(),
    };
    Ok(CaseResult::of(&run_result, reference))
}
