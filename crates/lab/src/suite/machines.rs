//! Cases with other caches, drives, block sizes and mixes.

use nvmeof_random::SplitMix64;

use super::case_result::CaseResult;
use super::runner::SuiteRunner;
use super::{Case, Family, SuiteError};
use nvmeof_sim::Platform;
use nvmeof_sim::RunResult;
use nvmeof_sim::numbers::micros;
use nvmeof_sim::scenario::{Nanos, Scenario};
use nvmeof_sim::setups::{self, BLOCK, MS};

pub(super) const ABOUT: &str = "Platform A with its cache times 0.5 to 4, drives of 20 us to 2 ms, 8 to \
    64 of them, blocks of 4 KiB to 1 MiB, reads, writes and 70/30, one by one, in random \
    combinations, and after 4 s large writes to few drives and large reads on 8 and 16 cores: at least \
    97 % of the best static buffer credit found by search on the same machine with the same seed; no \
    sample below 80 % of the mean. Blocks above 128 KiB have a warm-up longer by as much, and slow \
    drives one of at least 500 of their commands' times, and 250 are measured.";

/// Seed of the random combinations.
const SEED: u64 = 0x5851_f42d_4c95_7f2c;

/// One machine and its load.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Variant {
    cache: f64,
    /// Latency of the drives in µs; `None`: that of the platform.
    drive_us: Option<f64>,
    drives: u32,
    block: u32,
    reads: f64,
    depth: u32,
    cores: u32,
    /// Minimum warm-up.
    warm_up: Nanos,
}

const CACHES: [f64; 4] = [0.5, 1.0, 2.0, 4.0];
const LATENCIES: [f64; 5] = [20.0, 50.0, 200.0, 600.0, 2000.0];
const NUMBERS: [u32; 4] = [8, 16, 32, 64];
const BLOCKS: [u32; 5] = [4096, 16_384, 65_536, 262_144, 1_048_576];
const MIXES: [f64; 3] = [1.0, 0.0, 0.7];
const DEPTHS: [u32; 3] = [32, 256, 2048];

/// Minimum warm-up and measured time, in times of a command with its drive.
const WARM_UP_TURNS: u64 = 500;
const TURNS: u64 = 250;

const BASE: Variant = Variant {
    cache: 1.0,
    drive_us: None,
    drives: 16,
    block: BLOCK,
    reads: 1.0,
    depth: 256,
    cores: 4,
    warm_up: 0,
};

/// Drives that are the bottleneck with few commands in flight. These gather at one drive after a
/// while, unless the scheduler keeps all drives busy.
const FEW_LARGE: Variant = Variant {
    drive_us: Some(50.0),
    drives: 8,
    block: 1 << 20,
    reads: 0.0,
    warm_up: 4000 * MS,
    ..BASE
};

/// Large commands on many cores: one on each is most of the cache, or more. Multiples of the cache,
/// cores, and KiB.
const LARGE_ON_MANY: [(f64, u32, u32); 8] = [
    (0.5, 16, 256),
    (0.5, 8, 512),
    (1.0, 16, 512),
    (1.0, 8, 1024),
    (2.0, 16, 1024),
    (1.0, 16, 1024),
    (0.5, 16, 512),
    (0.5, 8, 1024),
];

pub(super) fn cases(runner: &SuiteRunner) -> Vec<Case> {
    let Some((name, platform)) = runner.base() else { return Vec::new() };
    let depths = runner.pick(&DEPTHS[..], &[256]);
    let mut variants: Vec<Variant> =
        depths.iter().flat_map(|&depth| one_by_one(Variant { depth, ..BASE })).collect();
    let mut rng = SplitMix64::new(SEED);
    variants.extend((0..runner.pick(60, 10)).map(|_| random(&mut rng)));
    variants.push(FEW_LARGE);
    variants.extend(LARGE_ON_MANY.map(|(cache, cores, kib)| Variant {
        cache,
        cores,
        block: kib << 10,
        warm_up: 4000 * MS,
        ..BASE
    }));
    variants.dedup();
    variants.into_iter().map(|variant| case(name, platform, variant)).collect()
}

fn one_by_one(base: Variant) -> Vec<Variant> {
    let mut all = Vec::new();
    all.extend(CACHES.map(|cache| Variant { cache, ..base }));
    all.extend(LATENCIES.map(|us| Variant { drive_us: Some(us), ..base }));
    all.extend(NUMBERS.map(|drives| Variant { drives, ..base }));
    all.extend(BLOCKS.map(|block| Variant { block, ..base }));
    all.extend(MIXES.map(|reads| Variant { reads, ..base }));
    // The base is in most of the lists.
    let mut once = vec![base];
    once.extend(all.into_iter().filter(|variant| *variant != base));
    once
}

fn random(rng: &mut SplitMix64) -> Variant {
    Variant {
        cache: one_of(rng, &CACHES),
        drive_us: Some(one_of(rng, &LATENCIES)),
        drives: one_of(rng, &NUMBERS),
        block: one_of(rng, &BLOCKS),
        reads: one_of(rng, &MIXES),
        depth: one_of(rng, &DEPTHS),
        cores: BASE.cores,
        warm_up: 0,
    }
}

fn one_of<T: Copy>(rng: &mut SplitMix64, list: &[T]) -> T {
    list[rng.index(list.len())]
}

impl Variant {
    fn name(&self, platform: &str) -> String {
        let drive = self.drive_us.map_or_else(String::new, |us| format!(" {us} us"));
        let mix = (self.reads * 100.0).round();
        let (cache, drives, block) = (self.cache, self.drives, self.block / 1024);
        let after = match self.warm_up / MS {
            0 => String::new(),
            ms => format!(" after {ms} ms"),
        };
        let depth = self.depth;
        let cores = match self.cores {
            cores if cores == BASE.cores => String::new(),
            cores => format!(" {cores} cores"),
        };
        format!(
            "{platform} x{cache}{drive} {drives} drives {block}K {mix}% qd {depth}{cores}{after}"
        )
    }

    fn platform(&self, base: &Platform) -> Platform {
        let mut platform = base.scaled(1.0, self.cache, 1.0);
        if let Some(us) = self.drive_us {
            platform.drive_read_us = us;
            platform.drive_write_us = us;
        }
        platform
    }

    fn scenario(&self) -> Scenario {
        Scenario::reads(setups::drives(self.drives), self.depth)
            .on_cores(self.cores)
            .blocks(self.block)
            .mix(self.reads)
    }
}

fn case(name: &str, platform: &Platform, variant: Variant) -> Case {
    let platform = variant.platform(platform);
    Case::new(Family::Machines, variant.name(name), move |runner| {
        judge(runner, &platform, &variant.scenario(), variant.warm_up)
    })
}

fn judge(
    runner: &SuiteRunner,
    platform: &Platform,
    scenario: &Scenario,
    least_warm_up: Nanos,
) -> Result<CaseResult, SuiteError> {
    let best = runner.best_static(platform, scenario)?;
    let mut scenario = runner.under_test(scenario);
    let (mut warm_up, mut time) = (scenario.warm_up, scenario.time);
    let block = scenario.jobs[0].blocks[0].0;
    // Many small commands take long to simulate, and give a result in less time.
    if block < 32 * 1024 {
        (warm_up, time, scenario.sample) = (60 * MS, 60 * MS, 12 * MS);
    }
    // Large commands are few, and finding a budget takes a number of commands and turnovers.
    warm_up *= u64::from(block / BLOCK).max(1);
    let slowest = platform.drive_read_us.max(platform.drive_write_us);
    warm_up = warm_up.max(WARM_UP_TURNS * micros(slowest)).max(least_warm_up);
    time = time.max(TURNS * micros(slowest));
    scenario = scenario.lasting(warm_up, time);
    let run_result = runner.run(platform, &scenario)?;
    let mut case_result = CaseResult::of(&run_result, best.gbps);
    case_result.note = format!("best static {:.0} commands", best.held);
    case_result.share(97.0);
    case_result.at_least("least sample %", least_sample(&run_result, scenario.warm_up), 80.0);
    Ok(case_result)
}

/// Returns the lowest sample after `from`, in percent of the mean bandwidth.
fn least_sample(run_result: &RunResult, from: Nanos) -> f64 {
    let rates = run_result.series.iter().filter(|s| s.at > from).map(|s| s.gbps);
    100.0 * rates.fold(f64::INFINITY, f64::min) / run_result.total.gbps
}

#[cfg(test)]
mod tests {
    use nvmeof_random::SplitMix64;

    use super::{BASE, MIXES, Variant, one_by_one, random};

    #[test]
    fn every_variant_is_there_once() {
        let all = one_by_one(BASE);
        for (at, variant) in all.iter().enumerate() {
            assert!(!all[at + 1..].contains(variant), "{variant:?} twice");
        }
        for reads in MIXES {
            assert!(all.contains(&Variant { reads, ..BASE }));
        }
    }

    #[test]
    fn random_variants_differ_and_come_again() {
        let some = |seed| {
            let mut rng = SplitMix64::new(seed);
            (0..20).map(|_| random(&mut rng)).collect::<Vec<_>>()
        };
        assert_eq!(some(1), some(1));
        assert_ne!(some(1), some(2));
    }
}
