//! A chain of policies that grants all or nothing.

use crate::permit::Outcome;
use crate::policy::{Admission, Grants, MAX_POLICIES, Policy};
use crate::{Cost, Nanos};

#[derive(Debug)]
pub(crate) struct Chain {
    policies: Vec<Box<dyn Policy>>,
    largest: u32,
}

impl Chain {
    pub(crate) fn new(policies: Vec<Box<dyn Policy>>) -> Self {
        assert!(policies.len() <= MAX_POLICIES, "at most {MAX_POLICIES} policies in a chain");
        let largest = policies.iter().map(|p| p.largest()).min().unwrap_or(u32::MAX);
        Self { policies, largest }
    }

    /// The largest cost every policy can grant.
    #[inline]
    pub(crate) fn largest(&self) -> u32 {
        self.largest
    }

    /// Grants of every policy, or of none; then `until` says when it is worth asking again, if
    /// that is known.
    #[inline]
    pub(crate) fn admit(
        &mut self,
        cost: Cost,
        now: Nanos,
        until: &mut Option<Nanos>,
    ) -> Option<Grants> {
        let mut grants = Grants::default();
        for (at, policy) in self.policies.iter_mut().enumerate() {
            match policy.admit(cost, now) {
                Admission::Granted(grant) => {
                    grants.set(at, grant);
                    continue;
                }
                Admission::AfterRelease => *until = None,
                Admission::At(when) => *until = Some(when),
            }
            self.back_out(at, cost, grants, now);
            return None;
        }
        Some(grants)
    }

    #[inline]
    pub(crate) fn release(&mut self, cost: Cost, grants: Grants, outcome: Outcome, now: Nanos) {
        for (at, policy) in self.policies.iter_mut().enumerate() {
            policy.release(cost, grants.get(at), outcome, now);
        }
    }

    /// Nothing will start here for now.
    #[inline]
    pub(crate) fn rest(&mut self) {
        for policy in &mut self.policies {
            policy.rest();
        }
    }

    /// Policy `refused` said no: those before it take back their grants, and none but it keeps
    /// anything for a command that will not start yet.
    #[cold]
    fn back_out(&mut self, refused: usize, cost: Cost, grants: Grants, now: Nanos) {
        for (at, policy) in self.policies.iter_mut().enumerate() {
            if at < refused {
                policy.release(cost, grants.get(at), Outcome::Withdrawn, now);
            }
            if at != refused {
                policy.rest();
            }
        }
    }
}
