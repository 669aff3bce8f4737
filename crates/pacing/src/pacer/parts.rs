//! Parts and sizes that a pacer is made of.

use thiserror::Error;

use crate::policy::AnyPolicy;
use crate::scheduler::{AnyScheduler, DeficitRoundRobin};
use crate::small_commands::SmallCommandRule;

/// Policies and scheduler of one core.
#[derive(Debug)]
pub struct PacerParts {
    /// Every one must grant; at most [`MAX_POLICIES`](crate::policy::MAX_POLICIES).
    pub policies: Vec<AnyPolicy>,
    /// Scheduler of the flows.
    pub scheduler: AnyScheduler,
    /// Rule for commands that bypass the scheduler.
    pub small: SmallCommandRule,
}

impl PacerParts {
    /// Combines these policies with round robin and no bypass for small commands.
    #[must_use]
    pub fn round_robin(policies: Vec<AnyPolicy>) -> Self {
        Self {
            policies,
            scheduler: DeficitRoundRobin::default().into(),
            small: SmallCommandRule::Never,
        }
    }
}

/// Sizes of a pacer.
#[derive(Debug, Clone, Copy)]
pub struct PacerConfig {
    /// Commands that one flow can have waiting: its queue depth, times the queues that share it.
    /// Adding a flow reserves room for this number. A flow with more waiting commands makes the
    /// reservation grow.
    pub flow_depth: usize,
}

impl Default for PacerConfig {
    fn default() -> Self {
        Self { flow_depth: 128 }
    }
}

/// Rejection of a command that could never start: it costs more than the policies can ever grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error(
    "a command of {bytes} bytes can never start: at most {largest} bytes are granted at once \
     (lower max-transfer or raise the budget)"
)]
pub struct TooLarge {
    /// Cost of the command in bytes.
    pub bytes: u32,
    /// The most that is granted to one command, in bytes.
    pub largest: u32,
}
