//! The policies: their names, the keys of their parameters, and their construction, for the daemon
//! and the simulator. A new policy has its entries here.
//!
//! A reader of a file defines the format and the range of values, because both depend on its
//! machine.

use std::sync::Arc;

use thiserror::Error;

use crate::policy::{
    AdaptiveStatus, AnyPolicy, BudgetTooSmall, BufferCredit, CreditConfig, PrototypeConfig,
    SharedAdaptive, SharedCredit, SharedIoPacing, SharedTokenBucket, TokenBucketConfig, Waker,
};
use crate::scheduler::AdaptiveScheduler;
use crate::{Nanos, Pacer, PacerConfig, PacerParts, SmallCommandRule};

/// A policy and its parameters.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum PolicyConfig {
    /// No bound: every command starts immediately.
    None,
    /// A fixed budget for the bytes in flight.
    BufferCredit {
        /// Budget in bytes, on all cores together.
        budget: u64,
    },
    /// A fixed rate, and optionally a budget for the bytes in flight behind it.
    TokenBucket(TokenBucketConfig),
    /// Finds its budget at run time and shares it by residence. It has no parameters.
    #[default]
    Adaptive,
    /// The Mellanox SPDK io_pacing prototype with its own parameters, for the simulator and
    /// comparison runs. It is exempt from the rules that every other policy keeps.
    Prototype(PrototypeConfig),
}

impl PolicyConfig {
    /// Returns the name of the policy in a file.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.policy().name()
    }

    fn policy(&self) -> PolicyName {
        match self {
            Self::None => PolicyName::None,
            Self::BufferCredit { .. } => PolicyName::BufferCredit,
            Self::TokenBucket(_) => PolicyName::TokenBucket,
            Self::Adaptive => PolicyName::Adaptive,
            Self::Prototype(_) => PolicyName::Prototype,
        }
    }
}

/// Name of a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PolicyName {
    /// [`PolicyConfig::Adaptive`].
    Adaptive,
    /// [`PolicyConfig::None`].
    None,
    /// [`PolicyConfig::BufferCredit`].
    BufferCredit,
    /// [`PolicyConfig::TokenBucket`].
    TokenBucket,
    /// [`PolicyConfig::Prototype`].
    Prototype,
}

impl PolicyName {
    /// All policies, the default first.
    pub const ALL: [Self; 5] =
        [Self::Adaptive, Self::None, Self::BufferCredit, Self::TokenBucket, Self::Prototype];

    /// Returns the name in a file.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Adaptive => "adaptive",
            Self::None => "none",
            Self::BufferCredit => "buffer-credit",
            Self::TokenBucket => "token-bucket",
            Self::Prototype => "prototype",
        }
    }

    /// Finds the policy with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|policy| policy.name() == name)
    }

    /// Returns the keys of the policy.
    #[must_use]
    pub fn keys(self) -> &'static [PolicyKey] {
        match self {
            Self::Adaptive | Self::None => &[],
            Self::BufferCredit => &[PolicyKey::Budget],
            Self::TokenBucket => {
                &[PolicyKey::Rate, PolicyKey::Period, PolicyKey::Burst, PolicyKey::Budget]
            }
            Self::Prototype => &[
                PolicyKey::Buffers,
                PolicyKey::Cache,
                PolicyKey::Period,
                PolicyKey::Credit,
                PolicyKey::BypassBelow,
                PolicyKey::DriveLimit,
                PolicyKey::Tuner,
                PolicyKey::TunerThreshold,
                PolicyKey::TunerInterval,
                PolicyKey::TunerStep,
            ],
        }
    }
}

/// A key of a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PolicyKey {
    /// Bytes in flight on all cores together.
    Budget,
    /// Bytes per second.
    Rate,
    /// Time from one I/O to the next.
    Period,
    /// Bytes behind a rate, I/Os behind a period.
    Burst,
    /// Buffers in the pool of io_pacing.
    Buffers,
    /// Buffers that a core keeps for itself.
    Cache,
    /// Bytes that a tick grants.
    Credit,
    /// Bytes below which an I/O starts immediately.
    BypassBelow,
    /// I/Os in flight on one drive.
    DriveLimit,
    /// A [`TunerName`].
    Tuner,
    /// Bytes in flight from which the period grows.
    TunerThreshold,
    /// Time between two steps of the period.
    TunerInterval,
    /// Size of one step of the period.
    TunerStep,
}

impl PolicyKey {
    /// All keys.
    pub const ALL: [Self; 13] = [
        Self::Budget,
        Self::Rate,
        Self::Period,
        Self::Burst,
        Self::Buffers,
        Self::Cache,
        Self::Credit,
        Self::BypassBelow,
        Self::DriveLimit,
        Self::Tuner,
        Self::TunerThreshold,
        Self::TunerInterval,
        Self::TunerStep,
    ];

    /// Returns the name in a file.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Budget => "budget",
            Self::Rate => "rate",
            Self::Period => "period",
            Self::Burst => "burst",
            Self::Buffers => "buffers",
            Self::Cache => "cache",
            Self::Credit => "credit",
            Self::BypassBelow => "bypass-below",
            Self::DriveLimit => "drive-limit",
            Self::Tuner => "tuner",
            Self::TunerThreshold => "tuner-threshold",
            Self::TunerInterval => "tuner-interval",
            Self::TunerStep => "tuner-step",
        }
    }

    /// Returns the key without which, under io_pacing, this one has no meaning.
    #[must_use]
    pub fn needs(self) -> Option<Self> {
        match self {
            Self::Cache => Some(Self::Buffers),
            Self::Credit | Self::BypassBelow | Self::DriveLimit | Self::Tuner => Some(Self::Period),
            Self::TunerThreshold | Self::TunerInterval | Self::TunerStep => Some(Self::Tuner),
            Self::Budget | Self::Rate | Self::Period | Self::Burst | Self::Buffers => None,
        }
    }
}

/// Name of an io_pacing tuner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TunerName {
    /// [`PrototypeTuner::BytesInFlight`](crate::PrototypeTuner::BytesInFlight).
    BytesInFlight,
    /// [`PrototypeTuner::Bandwidth`](crate::PrototypeTuner::Bandwidth).
    Bandwidth,
}

impl TunerName {
    /// Every tuner with its name.
    pub const NAMES: [(&'static str, Self); 2] =
        [("bytes-in-flight", Self::BytesInFlight), ("bandwidth", Self::Bandwidth)];

    /// Finds the tuner with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::NAMES.into_iter().find(|(known, _)| *known == name).map(|(_, tuner)| tuner)
    }

    /// Returns the keys of the tuner.
    #[must_use]
    pub fn keys(self) -> &'static [PolicyKey] {
        match self {
            Self::BytesInFlight => &[PolicyKey::TunerThreshold],
            Self::Bandwidth => &[PolicyKey::TunerInterval, PolicyKey::TunerStep],
        }
    }
}

/// The machine that is paced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PacedMachine {
    /// Cores that each run a pacer.
    pub cores: usize,
    /// The largest single I/O in bytes.
    pub largest: u32,
}

/// Parameters that cannot work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum ConfigError {
    /// The largest I/O would never fit.
    #[error(transparent)]
    BudgetTooSmall(#[from] BudgetTooSmall),
    /// A value outside its valid range.
    #[error("{what} is {value} {unit}, allowed are {least} to {most} {unit}: {advice}")]
    OutOfRange {
        /// The parameter.
        what: &'static str,
        /// The rejected value.
        value: u64,
        /// The least allowed value.
        least: u64,
        /// The largest allowed value.
        most: u64,
        /// Unit of all three values.
        unit: &'static str,
        /// Remedy.
        advice: &'static str,
    },
}

/// State of one policy that the cores share.
#[derive(Debug, Clone)]
pub struct SharedPolicy {
    kind: SharedPolicyKind,
}

#[derive(Debug, Clone)]
enum SharedPolicyKind {
    Unpaced,
    BufferCredit(Arc<SharedCredit>),
    Adaptive(Arc<SharedAdaptive>),
    TokenBucket(Arc<SharedTokenBucket>, Option<Arc<SharedCredit>>),
    IoPacing(Arc<SharedIoPacing>),
}

/// Status of a policy, for reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PolicyStatus {
    /// Bytes that may be in flight on all cores together, if they are bounded.
    pub budget: Option<u64>,
    /// Time from one I/O to the next on the whole target, if there is one.
    pub period: Option<Nanos>,
    /// State of the adaptive policy.
    pub adaptive: Option<AdaptiveStatus>,
}

impl SharedPolicy {
    /// Creates the state that the cores of `machine` share under this policy.
    ///
    /// # Errors
    /// [`ConfigError`] names the parameter that cannot work, and the reason.
    pub fn new(config: &PolicyConfig, machine: PacedMachine) -> Result<Self, ConfigError> {
        let PacedMachine { cores, largest } = machine;
        let kind = match config {
            PolicyConfig::None => SharedPolicyKind::Unpaced,
            PolicyConfig::BufferCredit { budget } => {
                let config = CreditConfig { budget: *budget, largest, cores };
                SharedPolicyKind::BufferCredit(BufferCredit::shared(config)?)
            }
            PolicyConfig::Adaptive => {
                SharedPolicyKind::Adaptive(SharedAdaptive::new(cores, largest)?)
            }
            PolicyConfig::Prototype(config) => {
                SharedPolicyKind::IoPacing(Arc::new(SharedIoPacing::new(config, machine)?))
            }
            PolicyConfig::TokenBucket(config) => {
                let tokens = SharedTokenBucket::new(config, machine)?;
                let credit = |budget| BufferCredit::shared(CreditConfig { budget, largest, cores });
                SharedPolicyKind::TokenBucket(tokens, config.budget.map(credit).transpose()?)
            }
        };
        Ok(Self { kind })
    }

    /// Makes the policies and scheduler of core number `core` (from 0). `waker` is called when that
    /// core waited for credit of other cores and may continue. Call it once per core.
    #[must_use]
    pub fn parts(&self, core: usize, waker: Waker) -> PacerParts {
        let policy: AnyPolicy = match &self.kind {
            SharedPolicyKind::Unpaced => AnyPolicy::Unpaced,
            SharedPolicyKind::BufferCredit(shared) => shared.core(core, waker).into(),
            SharedPolicyKind::Adaptive(shared) => {
                let scheduler = AdaptiveScheduler::new(Arc::clone(shared.virtual_time()), core);
                return PacerParts {
                    policies: vec![shared.core(core, waker).into()],
                    scheduler: scheduler.into(),
                    small: SmallCommandRule::BesideOthers,
                };
            }
            SharedPolicyKind::TokenBucket(tokens, credit) => {
                let mut policies: Vec<AnyPolicy> = vec![tokens.core().into()];
                if let Some(credit) = credit {
                    policies.push(credit.core(core, waker).into());
                }
                return PacerParts::round_robin(policies);
            }
            SharedPolicyKind::IoPacing(shared) => return shared.parts(),
        };
        PacerParts::round_robin(vec![policy])
    }

    /// Makes a pacer for core number `core`; see [`SharedPolicy::parts`].
    #[must_use]
    pub fn pacer(&self, core: usize, waker: Waker, config: PacerConfig) -> Pacer {
        Pacer::with_parts(self.parts(core, waker), config)
    }

    /// Returns the budget that the cores share, if there is one.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn credit(&self) -> Option<&Arc<SharedCredit>> {
        match &self.kind {
            SharedPolicyKind::Unpaced | SharedPolicyKind::IoPacing(_) => None,
            SharedPolicyKind::BufferCredit(credit) => Some(credit),
            SharedPolicyKind::TokenBucket(_, credit) => credit.as_ref(),
            SharedPolicyKind::Adaptive(shared) => Some(shared.credit()),
        }
    }

    /// Bounds the adaptive policy, or opens it; see [`SharedAdaptive::bound`]. Returns false for
    /// any other policy.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn bound(&self, budget: Option<u64>, core: usize) -> bool {
        let SharedPolicyKind::Adaptive(shared) = &self.kind else { return false };
        shared.bound(budget, core);
        true
    }

    /// Returns the status of the policy.
    #[must_use]
    pub fn status(&self) -> PolicyStatus {
        match &self.kind {
            SharedPolicyKind::Unpaced => PolicyStatus::default(),
            SharedPolicyKind::BufferCredit(shared) => {
                PolicyStatus { budget: Some(shared.budget()), ..PolicyStatus::default() }
            }
            SharedPolicyKind::Adaptive(shared) => PolicyStatus {
                budget: shared.budget(),
                adaptive: shared.status(),
                ..PolicyStatus::default()
            },
            SharedPolicyKind::TokenBucket(tokens, credit) => PolicyStatus {
                budget: credit.as_ref().map(|credit| credit.budget()),
                period: tokens.period(),
                ..PolicyStatus::default()
            },
            SharedPolicyKind::IoPacing(shared) => {
                PolicyStatus { period: shared.period(), ..PolicyStatus::default() }
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{PolicyConfig, PolicyKey, PolicyName, TunerName};

    #[test]
    fn every_key_is_taken_by_a_policy_that_takes_what_it_needs() {
        for key in PolicyKey::ALL {
            let takes = |policy: &PolicyName| policy.keys().contains(&key);
            assert!(PolicyName::ALL.iter().any(takes), "{key:?}");
            if let Some(needed) = key.needs() {
                let all_have_it = |policy: PolicyName| policy.keys().contains(&needed);
                assert!(PolicyName::ALL.into_iter().filter(takes).all(all_have_it), "{key:?}");
            }
        }
        for (_, tuner) in TunerName::NAMES {
            assert!(tuner.keys().iter().all(|key| key.needs() == Some(PolicyKey::Tuner)));
        }
    }

    #[test]
    fn names_are_found_again_and_the_first_is_the_default() {
        for policy in PolicyName::ALL {
            assert_eq!(PolicyName::named(policy.name()), Some(policy));
        }
        assert_eq!(PolicyName::named("adaptiv"), None);
        assert_eq!(TunerName::named("bandwidth"), Some(TunerName::Bandwidth));
        assert_eq!(PolicyConfig::default(), PolicyConfig::Adaptive);
        assert_eq!(PolicyName::ALL[0], PolicyName::Adaptive);
    }
}
