//! Construction of policies and schedulers from a [`PolicyConfig`], for the daemon and the
//! simulator.

use std::sync::Arc;

use thiserror::Error;

use crate::order::Residence;
use crate::policy::{
    self, BudgetTooSmall, BufferCredit, CreditConfig, Move, Policy, SharedAdaptive, SharedCredit,
    SharedPrototype, SharedTokens, Waker,
};
use crate::{Nanos, Pacer, PacerConfig, Parts, PolicyConfig, SmallRule};

/// The machine that is paced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Machine {
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
pub struct Shared {
    kind: Kind,
}

#[derive(Debug, Clone)]
enum Kind {
    None,
    BufferCredit(Arc<SharedCredit>),
    Adaptive(Arc<SharedAdaptive>),
    TokenBucket(Arc<SharedTokens>, Option<Arc<SharedCredit>>),
    Prototype(Arc<SharedPrototype>),
}

/// Status of a policy, for reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Snapshot {
    /// Bytes that may be in flight on all cores together, if they are bounded.
    pub budget: Option<u64>,
    /// Time from one I/O to the next on the whole target, if there is one.
    pub period: Option<Nanos>,
    /// Reason of the last change of the budget, under a policy that changes it.
    pub last_move: Option<Move>,
    /// Bytes of the preemption reserve, under a policy that has one.
    pub reserved: Option<u64>,
    /// Bytes since the policy began that could have been sent while cores were preempted.
    pub missed: Option<u64>,
}

impl Shared {
    /// Creates the state that the cores of `machine` share under this policy.
    ///
    /// # Errors
    /// [`ConfigError`] names the parameter that cannot work, and the reason.
    pub fn new(config: &PolicyConfig, machine: Machine) -> Result<Self, ConfigError> {
        let Machine { cores, largest } = machine;
        let kind = match config {
            PolicyConfig::None => Kind::None,
            PolicyConfig::BufferCredit { budget } => {
                let config = CreditConfig { budget: *budget, largest, cores };
                Kind::BufferCredit(BufferCredit::shared(config)?)
            }
            PolicyConfig::Adaptive => Kind::Adaptive(SharedAdaptive::new(cores, largest)?),
            PolicyConfig::Prototype(config) => {
                Kind::Prototype(Arc::new(SharedPrototype::new(config, machine)?))
            }
            PolicyConfig::TokenBucket(config) => {
                let tokens = SharedTokens::new(config, machine)?;
                let credit = |budget| BufferCredit::shared(CreditConfig { budget, largest, cores });
                Kind::TokenBucket(tokens, config.budget.map(credit).transpose()?)
            }
        };
        Ok(Self { kind })
    }

    /// Makes the policies and scheduler of core number `core` (from 0). `waker` is called when that
    /// core waited for credit of other cores and may continue. Call it once per core.
    #[must_use]
    pub fn parts(&self, core: usize, waker: Waker) -> Parts {
        let policy: Box<dyn Policy> = match &self.kind {
            Kind::None => Box::new(policy::None),
            Kind::BufferCredit(shared) => Box::new(shared.core(core, waker)),
            Kind::Adaptive(shared) => {
                let order = Residence::new(Arc::clone(shared.virtual_time()), core);
                return Parts {
                    policies: vec![Box::new(shared.core(core, waker))],
                    order: Box::new(order),
                    small: SmallRule::BesideOthers,
                };
            }
            Kind::TokenBucket(tokens, credit) => {
                let mut policies: Vec<Box<dyn Policy>> = vec![Box::new(tokens.core())];
                if let Some(credit) = credit {
                    policies.push(Box::new(credit.core(core, waker)));
                }
                return Parts::in_turn(policies);
            }
            Kind::Prototype(shared) => return shared.parts(),
        };
        Parts::in_turn(vec![policy])
    }

    /// Makes a pacer for core number `core`; see [`Shared::parts`].
    #[must_use]
    pub fn pacer(&self, core: usize, waker: Waker, config: PacerConfig) -> Pacer {
        Pacer::with_parts(self.parts(core, waker), config)
    }

    /// Returns the budget that the cores share, if there is one.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn credit(&self) -> Option<&Arc<SharedCredit>> {
        match &self.kind {
            Kind::None | Kind::Prototype(_) => None,
            Kind::BufferCredit(credit) => Some(credit),
            Kind::TokenBucket(_, credit) => credit.as_ref(),
            Kind::Adaptive(shared) => Some(shared.credit()),
        }
    }

    /// Returns the status of the policy.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        match &self.kind {
            Kind::None => Snapshot::default(),
            Kind::BufferCredit(shared) => {
                Snapshot { budget: Some(shared.budget()), ..Snapshot::default() }
            }
            Kind::Adaptive(shared) => Snapshot {
                budget: Some(shared.budget()),
                last_move: shared.last_move(),
                reserved: shared.reserved(),
                missed: Some(shared.missed()),
                ..Snapshot::default()
            },
            Kind::TokenBucket(tokens, credit) => Snapshot {
                budget: credit.as_ref().map(|credit| credit.budget()),
                period: tokens.period(),
                ..Snapshot::default()
            },
            Kind::Prototype(shared) => Snapshot { period: shared.period(), ..Snapshot::default() },
        }
    }
}
