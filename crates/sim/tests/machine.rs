//! Tests of the whole machine: it is reproducible, violates no rule, and rejects invalid scenarios.

use std::path::Path;

use nvmeof_pacing::PolicyConfig;
use nvmeof_sim::scenario::{Delay, DisturbanceKind, Job};
use nvmeof_sim::setups::{MS, drives, null, split3};
use nvmeof_sim::{Platform, RunResult, Scenario, run};

fn platform(name: &str) -> Platform {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs/platforms");
    Platform::load(&folder.join(format!("{name}.toml"))).expect("the platform is sound")
}

/// Runs a scenario and checks the rules.
#[expect(clippy::print_stdout, reason = "a failed test shows it")]
fn sound(platform: &Platform, scenario: &Scenario) -> RunResult {
    let run_result = run(platform, scenario).expect("the scenario is sound");
    assert_eq!(run_result.violations, Vec::<String>::new(), "{scenario:?}");
    println!(
        "{:.1} Gb/s sd {:.2} hit {:.1} % lat {:.0} us p99 {} bufs {:.0} in {:.2} s",
        run_result.total.gbps,
        run_result.stddev_gbps,
        run_result.hit_pct,
        run_result.total.latency.mean / 1e3,
        run_result.total.latency.p99 / 1000,
        run_result.buffers_mean,
        run_result.real_seconds
    );
    run_result
}

#[test]
fn a_deep_run_is_sound_under_every_policy_here() {
    let a = platform("A");
    let deep = || Scenario::reads(drives(16), 2048).lasting(20 * MS, 100 * MS);
    let none = sound(&a, &deep().paced(PolicyConfig::None));
    let credit = sound(&a, &deep().credit(48));
    let endless = sound(&a, &deep().endless());
    assert!(endless.total.gbps > 0.99 * a.link_gbps());
    assert!(credit.total.gbps > none.total.gbps + 10.0, "pacing helps");
    assert!(credit.buffers_max <= 48 + 4, "one a core beyond the budget: {}", credit.buffers_max);
    assert!(none.hit_pct < credit.hit_pct);
}

#[test]
fn the_same_seed_is_the_same_run() {
    let a = platform("A");
    let scenario =
        |seed| Scenario::reads(drives(16), 64).credit(48).seed(seed).lasting(5 * MS, 20 * MS);
    let first = RunResult { real_seconds: 0.0, ..run(&a, &scenario(3)).unwrap() };
    let again = RunResult { real_seconds: 0.0, ..run(&a, &scenario(3)).unwrap() };
    let other = RunResult { real_seconds: 0.0, ..run(&a, &scenario(4)).unwrap() };
    assert_eq!(format!("{first:?}"), format!("{again:?}"));
    assert_ne!(format!("{first:?}"), format!("{other:?}"));
}

#[test]
fn littles_law_holds_for_what_the_hosts_see() {
    let run_result = sound(&platform("A"), &Scenario::reads(drives(16), 32).credit(48));
    let rate = run_result.total.commands as f64 / 0.2;
    let outstanding = rate * run_result.total.latency.mean / 1e9;
    assert!((outstanding / 64.0 - 1.0).abs() < 0.02, "{outstanding}");
    let parts: u64 = run_result.flows.iter().map(|flow| flow.metrics.commands).sum();
    assert_eq!(parts, run_result.total.commands);
}

#[test]
fn a_stall_of_anything_stops_everything_and_passes() {
    let a = platform("A");
    let mut scenario = Scenario::reads(drives(16), 64)
        .credit(48)
        .lasting(10 * MS, 40 * MS)
        .disturbed(DisturbanceKind::Link(0.0), 20 * MS, 5 * MS);
    scenario.sample = MS;
    let run_result = sound(&a, &scenario);
    let at = |ms: u64| run_result.series.iter().find(|s| s.at == ms * MS).unwrap().gbps;
    assert!(at(18) > 150.0 && at(24) < 1.0 && at(40) > 150.0, "{:?}", run_result.series);
    for what in [DisturbanceKind::Drives, DisturbanceKind::Cores] {
        scenario.disturbances[0].what = what;
        let run_result = sound(&a, &scenario);
        let at = |ms: u64| run_result.series.iter().find(|s| s.at == ms * MS).unwrap().gbps;
        assert!(
            at(18) > 150.0 && at(24) < 1.0 && at(40) > 150.0,
            "{what:?}: {:?}",
            run_result.series
        );
    }
}

#[test]
fn writes_and_mixes_run() {
    let a = platform("A");
    for reads in [0.0, 0.7] {
        let run_result = sound(&a, &Scenario::reads(drives(16), 64).credit(96).mix(reads));
        assert!(run_result.total.gbps > 50.0);
    }
}

#[test]
fn slow_thirds_hold_a_static_pool_for_longer() {
    let a = platform("A");
    let all_fast = sound(&a, &Scenario::reads(split3(16, 0, Delay::None), 256).pooled(48, 12));
    let slow =
        sound(&a, &Scenario::reads(split3(16, 32, Delay::AfterData(MS)), 256).pooled(48, 12));
    assert!(slow.total.gbps < 0.6 * all_fast.total.gbps);
}

/// Every device is 1 ms slower, and four times the cache is in flight, most of it at the devices.
/// Without pacing, the same load on an endless cache is the ceiling.
fn all_slow(delay: Delay, reads: f64) -> [RunResult; 2] {
    let scenario = Scenario::reads(split3(16, 48, delay), 96).mix(reads);
    let none = scenario.clone().paced(PolicyConfig::None);
    let a = platform("A");
    [sound(&a, &none), sound(&a, &scenario.endless())]
}

#[test]
fn reads_hold_no_cache_during_a_delay_before_their_data() {
    let [before, ceiling] = all_slow(Delay::BeforeData(MS), 1.0);
    assert!(before.hit_pct > 99.0 && before.total.gbps > 0.99 * ceiling.total.gbps);
    let [after, ceiling] = all_slow(Delay::AfterData(MS), 1.0);
    assert!(after.hit_pct < 1.0 && after.total.gbps < 0.7 * ceiling.total.gbps);
}

#[test]
fn writes_hold_cache_during_a_delay_before_their_device_fetches_the_data() {
    let [before, _] = all_slow(Delay::BeforeData(MS), 0.0);
    let [after, _] = all_slow(Delay::AfterData(MS), 0.0);
    assert!(before.hit_pct < 1.0 && after.hit_pct > 99.0);
}

#[test]
fn a_delay_of_either_kind_adds_to_the_device_time() {
    let a = platform("A");
    for reads in [1.0, 0.0] {
        let mean = |delay| {
            let scenario = Scenario::reads(split3(16, 48, delay), 1).mix(reads);
            sound(&a, &scenario.paced(PolicyConfig::None)).total.latency.mean
        };
        let fast = mean(Delay::None);
        for delay in [Delay::BeforeData(MS), Delay::AfterData(MS)] {
            let added = (mean(delay) - fast) / MS as f64;
            assert!((0.98..1.05).contains(&added), "{delay:?}, {reads} reads: {added} ms");
        }
    }
}

#[test]
fn a_pool_without_caches_on_the_cores_hangs_for_good() {
    let a = platform("A");
    let rate = |cache| {
        let scenario = Scenario::reads(drives(16), 256).pooled(96, cache).on_cores(16);
        run(&a, &scenario).unwrap().total.gbps
    };
    let (six, none) = (rate(6), rate(0));
    assert!(six > 150.0 && none < 1.0, "cache 6: {six}, 0: {none} Gb/s");
}

/// With a cache of one, a core that is too late for the pool continues with one buffer. Its flows
/// starve compared with those of the cores that hold the rest; the total does not show it. If hosts
/// share one depth over all drives it evens out: the outstanding commands gather at that core until
/// others have spare buffers. No queue changes its core here, which makes other flows slow.
#[test]
fn with_a_cache_of_one_on_the_cores_some_starve() {
    let a = Platform { stray_queues: 0.0, ..platform("A") };
    let least = |cache| {
        let mut scenario = Scenario::reads(drives(16), 64).pooled(96, cache).on_cores(16);
        scenario.jobs = (0..16).map(|drive| Job::reads([drive], 64)).collect();
        let late = scenario.disturbed(DisturbanceKind::Core(3), 0, MS);
        let run_result = run(&a, &late).unwrap();
        let flows: Vec<f64> = run_result.flows.iter().map(|flow| flow.metrics.gbps).collect();
        let mean = flows.iter().sum::<f64>() / flows.len() as f64;
        println!("cache {cache}: {:.1} Gb/s {flows:.1?}", run_result.total.gbps);
        flows.into_iter().fold(f64::INFINITY, f64::min) / mean
    };
    let (six, one) = (least(6), least(1));
    assert!(six > 0.6 && one < 0.4, "of the mean: cache 6: {six}, 1: {one}");
}

#[test]
fn what_cannot_be_run_is_refused() {
    let a = platform("A");
    let good = Scenario::reads(null(2), 4).credit(48).lasting(MS, MS);
    assert!(run(&a, &good).is_ok());
    let broken: [fn(&mut Scenario); 8] = [
        |s| s.cores = 0,
        |s| s.cores = 65,
        |s| s.hosts = 0,
        |s| s.jobs[0].devices = vec![2],
        |s| s.jobs[0].blocks.clear(),
        |s| s.jobs[0].reads = 1.5,
        |s| *s = s.clone().credit(0),
        |s| *s = s.clone().disturbed(DisturbanceKind::Core(s.cores), 0, MS),
    ];
    for (at, breaks) in broken.iter().enumerate() {
        let mut scenario = good.clone();
        breaks(&mut scenario);
        assert!(run(&a, &scenario).is_err(), "{at}: {scenario:?}");
    }
}

#[test]
fn single_numbers_of_a_platform_can_be_changed() {
    let a = platform("A");
    let changed = a.with("timer-us=3,ports=1").unwrap();
    assert_eq!(changed, Platform { timer_us: 3.0, ports: 1, ..a.clone() });
    for wrong in ["fudge=1", "ports=0", "ports"] {
        assert!(a.with(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn a_platform_file_with_an_unknown_key_or_an_impossible_number_is_refused() {
    let folder = std::env::temp_dir().join(format!("nvmeof-sim-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs/platforms/A.toml");
    let text = std::fs::read_to_string(source).unwrap();
    let file = folder.join("x.toml");
    for (from, to) in [
        ("ports = 2", "ports = 2\nfudge = 1"),
        ("ports = 2", "ports = 0"),
        ("ports = 2", "ports = \"two\""),
        ("drive-tail = ", "drive-tail = 1"),
    ] {
        assert!(text.contains(from));
        std::fs::write(&file, text.replace(from, to)).unwrap();
        let refused = Platform::load(&file).unwrap_err().to_string();
        assert!(!refused.is_empty(), "{from} -> {to}");
    }
    std::fs::write(&file, text).unwrap();
    assert!(Platform::load(&file).is_ok());
    std::fs::remove_dir_all(&folder).unwrap();
}
