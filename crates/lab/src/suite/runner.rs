//! Runner of the suite: platforms, the policy under test, and references found by other runs.

use std::collections::HashMap;
use std::sync::Mutex;

use nvmeof_pacing::PolicyConfig;
use thiserror::Error;

use nvmeof_sim::Platform;
use nvmeof_sim::RunResult;
use nvmeof_sim::numbers::whole;
use nvmeof_sim::scenario::{Nanos, Pacing, Scenario};
use nvmeof_sim::setups::{BLOCK, MS};

/// Extent of the suite.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SuiteMode {
    /// Every case, with the times that the bounds refer to.
    Full,
    /// Fewer cases, with shorter runs.
    Quick,
}

/// A case that cannot be run.
#[derive(Debug, Error)]
pub(crate) enum SuiteError {
    /// The machine rejects the scenario.
    #[error("{case}: {why}")]
    Refused {
        /// Short form of the scenario.
        case: String,
        /// The machine's reason.
        why: String,
    },
}

/// Platforms and the policy under test; caches the references found.
#[derive(Debug)]
pub(crate) struct SuiteRunner {
    platforms: Vec<(String, Platform)>,
    policy: Pacing,
    extent: SuiteMode,
    /// Added to the seed of every scenario.
    seed: u64,
    found: Mutex<HashMap<String, Reference>>,
}

/// Result of the best fixed setting.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Reference {
    pub(super) gbps: f64,
    /// Its bytes in flight; 0 if not applicable.
    pub(super) budget: u64,
    /// Its mean number of commands in flight.
    pub(super) held: f64,
}

impl Reference {
    const NONE: Self = Self { gbps: 0.0, budget: 0, held: 0.0 };

    fn of(run_result: &RunResult, budget: u64) -> Self {
        Self { gbps: run_result.total.gbps, budget, held: run_result.buffers_mean }
    }
}

/// A search for the best result stops at this fraction of the ceiling.
const CLOSE: f64 = 0.998;

impl SuiteRunner {
    /// Creates a runner with platforms by name, the policy under test, and the extent.
    pub(crate) fn new(
        platforms: Vec<(String, Platform)>,
        policy: Pacing,
        extent: SuiteMode,
    ) -> Self {
        Self { platforms, policy, extent, seed: 0, found: Mutex::default() }
    }

    /// Sets another seed for every run; 1 is the default.
    pub(crate) fn seeded(mut self, seed: u64) -> Self {
        self.seed = seed.saturating_sub(1);
        self
    }

    /// Returns `seeds` runners like this one, each with the next seed.
    pub(super) fn with_seeds(&self, seeds: u64) -> Vec<Self> {
        let with = |more: u64| Self {
            platforms: self.platforms.clone(),
            policy: self.policy.clone(),
            extent: self.extent,
            seed: self.seed + more,
            found: Mutex::default(),
        };
        (0..seeds).map(with).collect()
    }

    pub(super) fn platforms(&self) -> &[(String, Platform)] {
        &self.platforms
    }

    /// Returns the first platform, from which other machines are derived.
    pub(super) fn base(&self) -> Option<&(String, Platform)> {
        self.platforms.first()
    }

    pub(super) fn full(&self) -> bool {
        self.extent == SuiteMode::Full
    }

    /// Returns one of two lists or values, by extent.
    pub(super) fn pick<T>(&self, full: T, quick: T) -> T {
        if self.full() { full } else { quick }
    }

    /// Returns the scenario with the policy under test, and the times of this extent.
    pub(super) fn under_test(&self, scenario: &Scenario) -> Scenario {
        let (warm_up, time, sample) =
            self.pick((600 * MS, 500 * MS, 100 * MS), (600 * MS, 200 * MS, 50 * MS));
        let mut scenario = scenario.clone().lasting(warm_up, time);
        scenario.sample = sample;
        scenario.seed += self.seed;
        scenario.pacing = self.policy.clone();
        scenario
    }

    /// Runs a scenario unchanged.
    pub(super) fn run(
        &self,
        platform: &Platform,
        scenario: &Scenario,
    ) -> Result<RunResult, SuiteError> {
        nvmeof_sim::run(platform, scenario).map_err(|why| SuiteError::Refused {
            case: format!("{:?} on {} cores", scenario.pacing, scenario.cores),
            why: why.to_string(),
        })
    }

    /// Runs a scenario with the policy under test.
    pub(super) fn try_policy(
        &self,
        platform: &Platform,
        scenario: &Scenario,
    ) -> Result<RunResult, SuiteError> {
        self.run(platform, &self.under_test(scenario))
    }

    /// Returns the lower of the link rate and the rate of a machine with an unlimited cache and no
    /// pacing, in Gb/s. For loads in one direction.
    pub(super) fn ceiling(
        &self,
        platform: &Platform,
        scenario: &Scenario,
    ) -> Result<f64, SuiteError> {
        Ok(self.endless(platform, scenario)?.min(platform.link_gbps()))
    }

    /// Returns the rate of a machine with an unlimited cache and no pacing, in Gb/s.
    pub(super) fn endless(
        &self,
        platform: &Platform,
        scenario: &Scenario,
    ) -> Result<f64, SuiteError> {
        self.reference_run(platform, &scenario.clone().endless())
    }

    /// Returns the bandwidth of a reference in Gb/s: the scenario with its own pacing, for the
    /// times of a reference.
    pub(super) fn reference_run(
        &self,
        platform: &Platform,
        scenario: &Scenario,
    ) -> Result<f64, SuiteError> {
        let scenario = self.as_reference(scenario);
        let found = self.remember(platform, "run", &scenario, || {
            Ok(Reference::of(&self.run(platform, &scenario)?, 0))
        })?;
        Ok(found.gbps)
    }

    fn as_reference(&self, scenario: &Scenario) -> Scenario {
        let (warm_up, time) = self.pick((100 * MS, 300 * MS), (60 * MS, 100 * MS));
        let mut scenario = scenario.clone().lasting(warm_up, time);
        scenario.sample = 0;
        scenario.seed += self.seed;
        scenario
    }

    /// Returns the best `buffer-credit` for this machine and load. The search tries budgets in
    /// steps of 2, then finer ones around the best of them. The ceiling ends the search early.
    pub(super) fn best_static(
        &self,
        platform: &Platform,
        scenario: &Scenario,
    ) -> Result<Reference, SuiteError> {
        let ceiling = self.endless(platform, scenario)?;
        let base = self.as_reference(scenario).credit(1);
        self.remember(platform, "best static", &base, || {
            let largest = largest(scenario);
            let most = u64::from(offered(scenario)) * u64::from(largest);
            let mut best = Reference::NONE;
            let attempt = |budget: u64, best: &mut Reference| -> Result<bool, SuiteError> {
                let policy = PolicyConfig::BufferCredit { budget };
                let run_result = self.run(platform, &base.clone().paced(policy))?;
                if run_result.total.gbps > best.gbps {
                    *best = Reference::of(&run_result, budget);
                }
                Ok(run_result.total.gbps >= CLOSE * ceiling)
            };
            let mut budget = u64::from(largest) * 4;
            while budget < 2 * most {
                if attempt(budget.min(most), &mut best)? {
                    return Ok(best);
                }
                budget *= 2;
            }
            for finer in [2.0_f64.sqrt(), 2.0_f64.sqrt().sqrt()] {
                let median = best.budget as f64;
                for budget in [median / finer, median * finer] {
                    let budget = whole(budget).max(u64::from(largest));
                    if attempt(budget, &mut best)? {
                        return Ok(best);
                    }
                }
            }
            Ok(best)
        })
    }

    fn remember(
        &self,
        platform: &Platform,
        kind: &str,
        scenario: &Scenario,
        find: impl FnOnce() -> Result<Reference, SuiteError>,
    ) -> Result<Reference, SuiteError> {
        let key = format!("{kind} {:x} {scenario:?}", platform.fingerprint());
        let known = |found: &HashMap<String, Reference>| found.get(&key).copied();
        if let Some(reference) = known(&self.lock()) {
            return Ok(reference);
        }
        let reference = find()?;
        self.lock().insert(key, reference);
        Ok(reference)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, Reference>> {
        self.found.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// Returns the number of commands that all hosts together keep outstanding.
pub(super) fn offered(scenario: &Scenario) -> u32 {
    let hosts = |hosts: &[u32]| match hosts.len() {
        0 => scenario.hosts,
        some => u32::try_from(some).unwrap_or(u32::MAX),
    };
    scenario.jobs.iter().map(|job| hosts(&job.hosts) * job.threads * job.queue_depth).sum()
}

/// Returns the largest command in bytes.
pub(super) fn largest(scenario: &Scenario) -> u32 {
    let sizes = scenario.jobs.iter().flat_map(|job| job.blocks.iter().map(|block| block.0));
    sizes.max().unwrap_or(BLOCK)
}

/// Returns the mean bandwidth over the samples of `run_result` that end in `from..=until`, in Gb/s.
pub(super) fn mean_gbps(run_result: &RunResult, from: Nanos, until: Nanos) -> f64 {
    let inside = |at: Nanos| from < at && at <= until;
    let rates: Vec<f64> =
        run_result.series.iter().filter(|s| inside(s.at)).map(|s| s.gbps).collect();
    rates.iter().sum::<f64>() / rates.len() as f64
}
