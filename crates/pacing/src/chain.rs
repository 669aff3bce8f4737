//! A chain of policies that grants all or nothing.

use crate::Nanos;
use crate::permit::Outcome;
use crate::policy::{Admission, Ask, Done, Grants, MAX_POLICIES, Policy};

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

    /// Grants of every policy, or of none and why not.
    #[inline]
    pub(crate) fn admit(&mut self, ask: &Ask, now: Nanos) -> Result<Grants, Refusal> {
        let mut grants = Grants::default();
        for (at, policy) in self.policies.iter_mut().enumerate() {
            let refusal = match policy.admit(ask, now) {
                Admission::Granted(grant) => {
                    grants.set(at, grant);
                    continue;
                }
                Admission::AfterRelease => Refusal::Until(None),
                Admission::At(when) => Refusal::Until(Some(when)),
                Admission::NotThisDevice => Refusal::ThisDevice,
            };
            self.back_out(at, ask, grants, now);
            return Err(refusal);
        }
        Ok(grants)
    }

    #[inline]
    pub(crate) fn release(&mut self, done: &Done, grants: Grants, now: Nanos) {
        for (at, policy) in self.policies.iter_mut().enumerate() {
            policy.release(done, grants.get(at), now);
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
    fn back_out(&mut self, refused: usize, ask: &Ask, grants: Grants, now: Nanos) {
        let withdrawn = Done {
            cost: ask.cost,
            device: ask.device,
            outcome: Outcome::Withdrawn,
            started: now,
            landed: None,
        };
        for (at, policy) in self.policies.iter_mut().enumerate() {
            if at < refused {
                policy.release(&withdrawn, grants.get(at), now);
            }
            if at != refused {
                policy.rest();
            }
        }
    }
}

/// Why a chain did not grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Nothing starts before this time, or before a release if it is not known.
    Until(Option<Nanos>),
    /// Only this device is not served now.
    ThisDevice,
}
