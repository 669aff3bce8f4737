//! Users with weights.

use super::lab::Lab;
use super::verdict::Verdict;
use super::{Case, Family, SuiteError};
use crate::platform::Platform;
use crate::scenario::{Job, Scenario};
use crate::setups::{self, MS};

pub(super) const ABOUT: &str = "Three tenants with weights 1, 2 and 4 that read the same equal drives: \
    shares of the bandwidth within 5 % of the weights while all are backlogged, and 98 % of the link in \
    total; when one has stopped, the others have the same total, shared by their weights.";

const WEIGHTS: [u16; 3] = [1, 2, 4];
/// Queues of three tenants on two hosts to each of so many drives: as many as `APART` cores.
const DRIVES: u32 = 8;
const APART: u32 = 48;
/// Commands of a tenant and host, to keep all of its queues backlogged.
const DEPTH: u32 = 1024;

pub(super) fn cases(lab: &Lab) -> Vec<Case> {
    let mut cases = Vec::new();
    for (name, platform) in lab.platforms() {
        for (place, cores, drives) in [
            ("one core", 1, 16),
            ("4 cores", 4, 16),
            ("16 cores", 16, 16),
            ("a core a queue", APART, DRIVES),
        ] {
            cases.push(case(format!("{name} {place}"), platform, cores, drives, None));
            for stopped in lab.pick(&[0, 1, 2][..], &[2]) {
                let name = format!("{name} {place}, {} stopped", WEIGHTS[*stopped]);
                cases.push(case(name, platform, cores, drives, Some(*stopped)));
            }
        }
    }
    cases
}

/// A tenant a job; a tenant who stops does so before anything is measured.
fn scenario(cores: u32, drives: u32, stopped: Option<usize>) -> Scenario {
    let mut scenario = Scenario::reads(setups::drives(drives), 1).on_cores(cores);
    let devices = scenario.devices.len();
    let tenant = |(at, weight): (usize, u16)| Job {
        weight,
        until: (stopped == Some(at)).then_some(40 * MS),
        ..Job::reads(0..devices, DEPTH)
    };
    scenario.jobs = WEIGHTS.into_iter().enumerate().map(tenant).collect();
    scenario
}

fn case(
    name: String,
    platform: &Platform,
    cores: u32,
    drives: u32,
    stopped: Option<usize>,
) -> Case {
    let platform = platform.clone();
    let scenario = scenario(cores, drives, stopped);
    Case::new(Family::Tenants, name, move |lab| judge(lab, &platform, &scenario, stopped))
}

fn judge(
    lab: &Lab,
    platform: &Platform,
    scenario: &Scenario,
    stopped: Option<usize>,
) -> Result<Verdict, SuiteError> {
    let outcome = lab.try_policy(platform, scenario)?;
    let mut verdict = Verdict::of(&outcome, lab.ceiling(platform, scenario)?);
    verdict.share(98.0);
    let there = |at: &usize| stopped != Some(*at);
    let weights: f64 = (0..3).filter(there).map(|at| f64::from(WEIGHTS[at])).sum();
    for at in (0..3).filter(there) {
        let share = outcome.jobs[at].gbps / outcome.total.gbps;
        let off = 100.0 * (share * weights / f64::from(WEIGHTS[at]) - 1.0);
        verdict.at_most(format!("weight {} off by %", WEIGHTS[at]), off.abs(), 5.0);
    }
    Ok(verdict)
}
