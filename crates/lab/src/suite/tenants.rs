//! Cases with tenants and weights.

use super::case_result::CaseResult;
use super::runner::SuiteRunner;
use super::{Case, Family, SuiteError};
use nvmeof_sim::Platform;
use nvmeof_sim::scenario::{Job, Scenario};
use nvmeof_sim::setups::{self, MS};

pub(super) const ABOUT: &str = "Three tenants with weights 1, 2 and 4 that read equal drives, on the \
    same cores and on different ones: shares of the bandwidth within 5 % of the weights while all are \
    backlogged, and 98 % of the link in total; when one has stopped, the others have the same total, \
    shared by their weights. (Any core may start one command whatever the budget, so cores as many as \
    commands in flight leave nothing to share by weight: a core a queue is asked of slow drives.)";

const WEIGHTS: [u16; 3] = [1, 2, 4];
const NAMES: [&str; 3] = ["weight 1 off by %", "weight 2 off by %", "weight 4 off by %"];
/// Cache for the data that slow drives keep in flight, as a multiple of the platform's.
const CACHE: f64 = 16.0;
/// Commands per tenant and host, enough to keep all of its queues backlogged.
const DEPTH: u32 = 1024;

/// Placement of tenants on drives and cores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TenantLayout {
    /// All on all drives, over this number of cores.
    Together(u32),
    /// A drive and two cores (one per host) each; a drive carries more than the link.
    Apart,
    /// All on all drives, which are fast with a latency of 2 ms, with a larger cache and one core
    /// per queue.
    CoreAQueue,
}

pub(super) fn cases(runner: &SuiteRunner) -> Vec<Case> {
    let mut cases = Vec::new();
    for (name, platform) in runner.platforms() {
        for (words, layout) in [
            ("on one core", TenantLayout::Together(1)),
            ("on 4 cores", TenantLayout::Together(4)),
            ("on 16 cores", TenantLayout::Together(16)),
            ("on their own cores", TenantLayout::Apart),
            ("with a core a queue", TenantLayout::CoreAQueue),
        ] {
            cases.push(case(format!("{name} {words}"), platform, layout, None));
            for stopped in runner.pick(&[0, 1, 2][..], &[1, 2]) {
                let name = format!("{name} {words}, {} stopped", WEIGHTS[*stopped]);
                cases.push(case(name, platform, layout, Some(*stopped)));
            }
        }
    }
    cases
}

impl TenantLayout {
    fn platform(self, platform: &Platform) -> Platform {
        let mut platform = platform.clone();
        match self {
            Self::Together(_) => {}
            Self::Apart => platform.drive_read_gbps = 2.0 * platform.link_gbps(),
            Self::CoreAQueue => {
                platform = platform.scaled(1.0, CACHE, 1.0);
                platform.drive_read_us = 2000.0;
                platform.drive_read_gbps = platform.link_gbps() / 2.0;
            }
        }
        platform
    }

    /// Returns the numbers of drives and cores.
    fn size(self) -> (u32, u32) {
        match self {
            Self::Together(cores) => (16, cores),
            // Three queues from each of two hosts.
            Self::Apart => (3, 6),
            // One per queue: three from each of two hosts to each drive.
            Self::CoreAQueue => (8, 48),
        }
    }

    /// Returns a scenario with a tenant per job; a tenant that stops does so before the
    /// measurement.
    fn scenario(self, stopped: Option<usize>) -> Scenario {
        let (drives, cores) = self.size();
        let mut scenario = Scenario::reads(setups::drives(drives), 1).on_cores(cores);
        let tenant = |(at, weight): (usize, u16)| Job {
            weight,
            until: (stopped == Some(at)).then_some(40 * MS),
            ..match self {
                Self::Apart => Job::reads([at], DEPTH),
                _ => Job::reads(0..drives as usize, DEPTH),
            }
        };
        scenario.jobs = WEIGHTS.into_iter().enumerate().map(tenant).collect();
        scenario
    }
}

fn case(name: String, platform: &Platform, layout: TenantLayout, stopped: Option<usize>) -> Case {
    let platform = layout.platform(platform);
    let scenario = layout.scenario(stopped);
    Case::new(Family::Tenants, name, move |runner| judge(runner, &platform, &scenario, stopped))
}

fn judge(
    runner: &SuiteRunner,
    platform: &Platform,
    scenario: &Scenario,
    stopped: Option<usize>,
) -> Result<CaseResult, SuiteError> {
    let run_result = runner.try_policy(platform, scenario)?;
    let mut case_result = CaseResult::of(&run_result, runner.ceiling(platform, scenario)?);
    case_result.share(98.0);
    let there = |at: &usize| stopped != Some(*at);
    let weights: f64 = (0..3).filter(there).map(|at| f64::from(WEIGHTS[at])).sum();
    for at in (0..3).filter(there) {
        let share = run_result.jobs[at].gbps / run_result.total.gbps;
        let off = 100.0 * (share * weights / f64::from(WEIGHTS[at]) - 1.0);
        case_result.at_most(NAMES[at], off.abs(), 5.0);
    }
    Ok(case_result)
}
