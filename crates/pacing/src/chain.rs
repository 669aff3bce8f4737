//! A chain of policies that grants all or nothing.

use crate::permit::Outcome;
use crate::policy::{Admission, Grant, MAX_POLICIES, Policy};
use crate::{Cost, Nanos};

#[derive(Debug)]
pub(crate) struct Chain {
    policies: Vec<Box<dyn Policy>>,
    largest: u32,
}

/// Why the chain granted nothing: until when, if it is known.
pub(crate) struct Refused {
    pub(crate) until: Option<Nanos>,
}

impl Chain {
    pub(crate) fn new(policies: Vec<Box<dyn Policy>>) -> Self {
        assert!(policies.len() <= MAX_POLICIES, "at most {MAX_POLICIES} policies in a chain");
        let largest = policies.iter().map(|p| p.largest()).min().unwrap_or(u32::MAX);
        Self { policies, largest }
    }

    /// The largest cost every policy can grant.
    pub(crate) fn largest(&self) -> u32 {
        self.largest
    }

    pub(crate) fn admit(
        &mut self,
        cost: Cost,
        now: Nanos,
    ) -> Result<[Grant; MAX_POLICIES], Refused> {
        let mut grants = [Grant::default(); MAX_POLICIES];
        for (at, (policy, grant)) in self.policies.iter_mut().zip(&mut grants).enumerate() {
            let until = match policy.admit(cost, now) {
                Admission::Granted(granted) => {
                    *grant = granted;
                    continue;
                }
                Admission::AfterRelease => None,
                Admission::At(when) => Some(when),
            };
            self.back_out(at, cost, &grants, now);
            return Err(Refused { until });
        }
        Ok(grants)
    }

    pub(crate) fn release(
        &mut self,
        cost: Cost,
        grants: &[Grant; MAX_POLICIES],
        outcome: Outcome,
        now: Nanos,
    ) {
        for (policy, grant) in self.policies.iter_mut().zip(grants) {
            policy.release(cost, *grant, outcome, now);
        }
    }

    /// Nothing will start here for now.
    pub(crate) fn rest(&mut self) {
        for policy in &mut self.policies {
            policy.rest();
        }
    }

    /// Policy `refused` said no: those before it take back their grants, and none but it keeps
    /// anything for a command that will not start yet.
    #[cold]
    fn back_out(&mut self, refused: usize, cost: Cost, grants: &[Grant; MAX_POLICIES], now: Nanos) {
        for (at, policy) in self.policies.iter_mut().enumerate() {
            if at < refused {
                policy.release(cost, grants[at], Outcome::Withdrawn, now);
            }
            if at != refused {
                policy.rest();
            }
        }
    }
}
