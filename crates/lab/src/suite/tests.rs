//! Acceptance tests of adaptive pacing on the simulated machine: a part of every family of the
//! suite, with the bounds of the suite. The whole suite: `cargo run -p nvmeof-lab -- suite`.
//!
//! A bound that is not reached is in the list of known gaps with the value reached. These tests
//! fail when a gap opens, grows, shrinks or closes without a change of the list.

use std::path::Path;

use nvmeof_pacing::PolicyConfig;
use nvmeof_sim::scenario::{DisturbanceKind, Nanos, Pacing};
use nvmeof_sim::setups::{BLOCK, MS, drives};
use nvmeof_sim::{Platform, Scenario, run};

use super::{
    Case, CaseResult, Family, SEEDS, SEEDS_TO_DECIDE, Seeds, Style, SuiteMode, SuiteRunner,
    disagreements, heading, known_gaps, line,
};

fn platforms() -> Vec<(String, Platform)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs/platforms");
    let load = |name: &str| {
        let platform = Platform::load(&root.join(format!("{name}.toml"))).expect("a platform");
        (name.to_owned(), platform)
    };
    vec![load("A"), load("B")]
}

fn runner(policy: Pacing) -> SuiteRunner {
    SuiteRunner::new(platforms(), policy, SuiteMode::Quick)
}

/// Judges the cases of a family with the requested names, and prints them.
fn judged(
    runner: &SuiteRunner,
    seeds: &Seeds,
    family: Family,
    wanted: impl Fn(&str) -> bool,
) -> Vec<(Case, CaseResult)> {
    let mut cases = family.cases(runner);
    cases.retain(|case| wanted(&case.name));
    assert!(!cases.is_empty(), "no case of {family:?} has such a name");
    println!("{} (simulated)\n{}", family.name(), heading(Style::Text));
    let judge = |case: Case| {
        let case_result = case.judge_until_kept(seeds).expect("a scenario that can be run");
        println!("{}", line(Style::Text, &case, &case_result));
        (case, case_result)
    };
    cases.into_iter().map(judge).collect()
}

fn holds(family: Family, wanted: impl Fn(&str) -> bool) {
    let runner = runner(Pacing::Policy(PolicyConfig::Adaptive));
    let case_results =
        judged(&runner, &Seeds::new(&runner, SEEDS, SEEDS_TO_DECIDE), family, wanted);
    for gap in known_gaps().iter().filter(|gap| gap.family == family) {
        println!("known gap: {} {} {}: {}", gap.case, gap.what, gap.reached, gap.why);
    }
    let words = disagreements(known_gaps(), &case_results);
    assert!(words.is_empty(), "the bounds, or the known gaps:\n{}", words.join("\n"));
}

fn any(_: &str) -> bool {
    true
}

#[test]
fn line_rate_at_every_depth() {
    holds(Family::Depth, any);
}

#[test]
fn any_number_of_cores() {
    holds(Family::Cores, any);
}

#[test]
fn slow_devices_beside_fast_ones() {
    holds(Family::Slow, any);
}

#[test]
fn back_after_a_stall() {
    holds(Family::Stall, any);
}

#[test]
fn as_good_as_the_best_static_setting_of_any_machine() {
    holds(Family::Machines, any);
}

#[test]
fn small_commands_do_not_wait_for_large_ones() {
    holds(Family::Small, any);
}

#[test]
fn no_constant_in_microseconds_or_bytes() {
    holds(Family::Scale, any);
}

#[test]
fn tenants_by_weight() {
    holds(Family::Tenants, any);
}

/// Cores are preempted for a while, every 10 ms: at least 97 % of the best static setting there, as
/// on any machine. With large commands and half the cache there is little room for a reserve.
#[test]
fn as_good_as_the_best_static_setting_where_cores_are_away_now_and_then() {
    let [a, b] = &platforms()[..] else { panic!("two platforms") };
    let small = a.1.scaled(1.0, 0.5, 1.0);
    for (name, platform, cores, block) in [
        ("A", &a.1, 1, BLOCK),
        ("A", &a.1, 16, BLOCK),
        ("B", &b.1, 1, BLOCK),
        ("A, half the cache", &small, 1, 2 * BLOCK),
    ] {
        for away in [200_000, 600_000] {
            let of = |pacing| rate_with_cores_away(platform, cores, block, away, pacing);
            let credit =
                |buffers| PolicyConfig::BufferCredit { budget: buffers * u64::from(BLOCK) };
            let best = [32, 48, 64, 80].map(|buffers| of(credit(buffers)));
            let best = best.into_iter().fold(0.0, f64::max);
            let ours = of(PolicyConfig::Adaptive);
            println!(
                "{name}, {cores} cores, {away} ns: {ours:.1} Gb/s, static {best:.1} (simulated)"
            );
            assert!(ours > 0.97 * best, "{name}, {cores} cores, {away} ns: {ours} of {best} Gb/s");
        }
    }
}

fn rate_with_cores_away(
    platform: &Platform,
    cores: u32,
    block: u32,
    away: Nanos,
    pacing: PolicyConfig,
) -> f64 {
    let mut scenario = Scenario::reads(drives(16), 256).on_cores(cores).blocks(block);
    scenario = scenario.paced(pacing).lasting(500 * MS, 500 * MS);
    for time in 1..100 {
        scenario = scenario.disturbed(DisturbanceKind::Cores, time * 10 * MS, away);
    }
    let run_result = run(platform, &scenario).expect("a scenario that can be run");
    assert_eq!(run_result.violations, Vec::<String>::new());
    run_result.total.gbps
}

/// Half the cache holds about one command of 512 KiB for each of 16 cores. Each core may start one
/// whatever the budget, so a smaller budget cannot drain a standing queue. It ends while no more is
/// in flight, and the controller does not take it for another machine. No seed stays at the 100
/// Gb/s of an overflowed cache.
#[test]
fn one_large_command_a_core_does_not_stay_in_a_flood() {
    let [a, _] = &platforms()[..] else { panic!("two platforms") };
    let small = a.1.scaled(1.0, 0.5, 1.0);
    let scenario = Scenario::reads(drives(16), 256).on_cores(16).blocks(4 * BLOCK);
    let scenario = scenario.paced(PolicyConfig::Adaptive).lasting(4000 * MS, 500 * MS);
    for seed in 1..=6 {
        let run_result =
            run(&small, &scenario.clone().seed(seed)).expect("a scenario that can be run");
        assert_eq!(run_result.violations, Vec::<String>::new());
        let gbps = run_result.total.gbps;
        println!("seed {seed}: {gbps:.1} Gb/s (simulated)");
        assert!(gbps > 150.0, "seed {seed}: {gbps} Gb/s");
    }
}

#[test]
fn every_known_gap_is_about_a_case() {
    let runner = runner(Pacing::Policy(PolicyConfig::Adaptive));
    let names: Vec<_> = Family::ALL
        .into_iter()
        .flat_map(|family| family.cases(&runner))
        .map(|case| (case.family, case.name))
        .collect();
    for gap in known_gaps() {
        let known = names.iter().any(|(family, name)| *family == gap.family && name == gap.case);
        assert!(known, "there is no case {} {:?}", gap.family.name(), gap.case);
    }
    for (at, name) in names.iter().enumerate() {
        assert!(!names[at + 1..].contains(name), "two cases are called {name:?}");
    }
}

/// Policies without a controlled budget: the bounds detect them.
mod bounds_can_fail {
    use super::BLOCK;
    use super::{CaseResult, Family, PolicyConfig, Seeds, SuiteRunner, judged, runner};
    use nvmeof_pacing::{PrototypeConfig, PrototypePool};
    use nvmeof_sim::scenario::Pacing;

    fn of(policy: PolicyConfig) -> SuiteRunner {
        runner(Pacing::Policy(policy))
    }

    fn credit(buffers: u64) -> SuiteRunner {
        of(PolicyConfig::BufferCredit { budget: buffers * u64::from(BLOCK) })
    }

    fn one(runner: &SuiteRunner, family: Family, name: &str) -> CaseResult {
        let mut case_results =
            judged(runner, &Seeds::new(runner, 1, 1), family, |case| case == name);
        assert_eq!(case_results.len(), 1);
        case_results.remove(0).1
    }

    fn broken(case_result: &CaseResult) -> Vec<&'static str> {
        case_result.failures().map(|check| check.what).collect()
    }

    #[test]
    fn without_pacing() {
        let none = of(PolicyConfig::None);
        let deep = one(&none, Family::Depth, "A nvme16 qd 2048");
        assert!(broken(&deep).contains(&"% of reference"), "{deep:?}");
        let small = one(&none, Family::Small, "A 2 hosts, qd 2048");
        assert!(broken(&small).contains(&"small p99 us"), "{small:?}");
        let tenants = one(&none, Family::Tenants, "A on 4 cores");
        assert!(broken(&tenants).contains(&"weight 1 off by %"), "{tenants:?}");
    }

    #[test]
    fn with_a_pool_that_no_core_keeps_a_part_of() {
        let pool = Some(PrototypePool { buffers: 96, cache: 0 });
        let policy = PolicyConfig::Prototype(PrototypeConfig { pool, pacer: None });
        let cores = one(&of(policy), Family::Cores, "A service on 16 cores, kernel qd 32");
        let broken = broken(&cores);
        assert_eq!(broken, ["starved queues", "flows served", "least % of a mean flow"]);
    }

    #[test]
    fn with_too_few_buffers() {
        let few = credit(16);
        let deep = one(&few, Family::Depth, "A nvme16 qd 2048");
        assert!(broken(&deep).contains(&"% of reference"), "{deep:?}");
        let stall = one(&few, Family::Stall, "A link 2 ms, qd 2048");
        assert!(broken(&stall).contains(&"back after ms"), "{stall:?}");
        let machine = one(&few, Family::Machines, "A x1 200 us 16 drives 128K 100% qd 256");
        assert!(broken(&machine).contains(&"% of reference"), "{machine:?}");
    }

    #[test]
    fn with_buffers_that_slow_devices_hog() {
        let slow = one(&credit(48), Family::Slow, "A 32 slow, 3 x qd 341");
        assert_eq!(broken(&slow), ["% of reference"]);
        let slow = one(&credit(48), Family::Slow, "A 32 slow before data, 32 x qd 1 and 1024");
        assert!(broken(&slow).contains(&"least slow flow %"), "{slow:?}");
    }

    #[test]
    fn with_a_number_of_buffers_that_is_right_for_one_machine() {
        let scale = one(&credit(44), Family::Scale, "A literal, qd 256");
        assert_eq!(broken(&scale), ["% range"]);
    }
}
