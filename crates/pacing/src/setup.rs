//! Construction of policies and schedulers from a [`PolicyConfig`], for the daemon and the
//! simulator.

use std::sync::Arc;

use thiserror::Error;

use crate::policy::{
    AnyPolicy, BudgetMove, BudgetTooSmall, BufferCredit, CreditConfig, SharedAdaptive,
    SharedCredit, SharedIoPacing, SharedTokenBucket, Waker,
};
use crate::scheduler::ResidenceFairQueue;
use crate::{Nanos, Pacer, PacerConfig, PacerParts, PolicyConfig, SmallCommandRule};

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
    /// Reason of the last change of the budget, under a policy that changes it.
    pub last_move: Option<BudgetMove>,
    /// Bytes of the preemption reserve, under a policy that has one.
    pub preemption_reserve_bytes: Option<u64>,
    /// Bytes since the policy began that could have been sent while cores were preempted.
    pub preemption_missed_bytes: Option<u64>,
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
                let scheduler = ResidenceFairQueue::new(Arc::clone(shared.virtual_time()), core);
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

    /// Returns the status of the policy.
    #[must_use]
    pub fn status(&self) -> PolicyStatus {
        match &self.kind {
            SharedPolicyKind::Unpaced => PolicyStatus::default(),
            SharedPolicyKind::BufferCredit(shared) => {
                PolicyStatus { budget: Some(shared.budget()), ..PolicyStatus::default() }
            }
            SharedPolicyKind::Adaptive(shared) => PolicyStatus {
                budget: Some(shared.budget()),
                last_move: shared.last_move(),
                preemption_reserve_bytes: shared.reserve_bytes(),
                preemption_missed_bytes: Some(shared.missed()),
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
