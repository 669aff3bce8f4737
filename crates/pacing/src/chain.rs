//! A chain of policies that grants all or nothing.

use crate::Nanos;
use crate::permit::Outcome;
use crate::policy::{Admission, Ask, Done, Grants, Known, MAX_POLICIES, Policy};

/// Nearly every chain has one policy. The first one is therefore stored separately, and a builtin
/// policy is called without dynamic dispatch. Arguments are passed by value, so they stay in
/// registers on the way to a builtin policy.
#[derive(Debug)]
pub(crate) struct Chain {
    first: Known,
    others: Vec<Box<dyn Policy>>,
    largest: u32,
}

impl Chain {
    /// An empty chain grants every command.
    pub(crate) fn new(policies: Vec<Box<dyn Policy>>) -> Self {
        assert!(policies.len() <= MAX_POLICIES, "at most {MAX_POLICIES} policies in a chain");
        let largest = policies.iter().map(|p| p.largest()).min().unwrap_or(u32::MAX);
        let mut policies = policies.into_iter();
        let first = policies.next().map_or(Known::None, Known::of);
        Self { first, others: policies.collect(), largest }
    }

    /// Returns the largest cost that every policy can grant.
    #[inline]
    pub(crate) fn largest(&self) -> u32 {
        self.largest
    }

    /// Returns the grants of every policy, or the exception.
    #[inline(always)]
    pub(crate) fn admit(&mut self, ask: Ask, now: Nanos) -> Result<Grants, Exception> {
        match self.first.admit(ask, now) {
            Admission::Granted(grant) => {
                let mut grants = Grants::default();
                grants.set(0, grant);
                if self.others.is_empty() {
                    Ok(grants)
                } else {
                    self.admit_others(grants, true, &ask.apart(), now)
                }
            }
            other => Err(self.exception(other, &ask.apart(), now)),
        }
    }

    /// Handles every answer of the first policy but a plain grant.
    #[inline(never)]
    fn exception(&mut self, answer: Admission, ask: &Ask, now: Nanos) -> Exception {
        if let Admission::OutOfTurn(grant) = answer {
            let mut grants = Grants::default();
            grants.set(0, grant);
            let granted = self.admit_others(grants, false, ask, now);
            return granted.map_or_else(|exception| exception, Exception::OutOfTurn);
        }
        self.rest_others();
        Exception::refusal(answer)
    }

    /// Asks the other policies after the first one granted.
    #[inline(never)]
    fn admit_others(
        &mut self,
        mut grants: Grants,
        mut in_turn: bool,
        ask: &Ask,
        now: Nanos,
    ) -> Result<Grants, Exception> {
        for at in 0..self.others.len() {
            let answer = self.others[at].admit(ask, now);
            let Some(grant) = answer.grant() else {
                self.back_out(at, ask, grants, now);
                return Err(Exception::refusal(answer));
            };
            grants.set(at + 1, grant);
            in_turn &= matches!(answer, Admission::Granted(_));
        }
        if in_turn { Ok(grants) } else { Err(Exception::OutOfTurn(grants)) }
    }

    #[inline(always)]
    pub(crate) fn release(&mut self, done: Done, grants: Grants, now: Nanos) {
        self.first.release(done, grants.get(0), now);
        if !self.others.is_empty() {
            self.release_others(&done.apart(), grants, now);
        }
    }

    #[inline(never)]
    fn release_others(&mut self, done: &Done, grants: Grants, now: Nanos) {
        for (at, policy) in self.others.iter_mut().enumerate() {
            policy.release(done, grants.get(at + 1), now);
        }
    }

    /// Starts a turn, see [`Policy::turn`].
    #[inline]
    pub(crate) fn turn(&mut self, now: Nanos, after: Nanos) {
        self.first.turn(now, after);
        for policy in &mut self.others {
            policy.turn(now, after);
        }
    }

    /// Returns unused credit: nothing starts on this core for now.
    #[inline]
    pub(crate) fn rest(&mut self) {
        self.first.rest();
        self.rest_others();
    }

    fn rest_others(&mut self) {
        for policy in &mut self.others {
            policy.rest();
        }
    }

    /// Policy number `refused` of the others deferred the command. The policies before it reclaim
    /// their grants, and only `refused` keeps anything for the deferred command.
    #[cold]
    fn back_out(&mut self, refused: usize, ask: &Ask, grants: Grants, now: Nanos) {
        let withdrawn = Done {
            cost: ask.cost,
            device: ask.device,
            outcome: Outcome::Withdrawn,
            started: now,
            network: 0,
        };
        self.first.release(withdrawn, grants.get(0), now);
        self.first.rest();
        for (at, policy) in self.others.iter_mut().enumerate() {
            if at < refused {
                policy.release(&withdrawn, grants.get(at + 1), now);
            }
            if at != refused {
                policy.rest();
            }
        }
    }
}

/// Answer of a chain that is not a plain grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exception {
    /// It grants, [out of order](Admission::OutOfTurn).
    OutOfTurn(Grants),
    /// Nothing starts before this time, or before a release if the time is unknown.
    Until(Option<Nanos>),
    /// Only this device is not served now.
    ThisDevice,
}

impl Exception {
    /// Converts an answer that is not a grant.
    #[inline]
    fn refusal(refused: Admission) -> Self {
        match refused {
            Admission::At(when) => Exception::Until(Some(when)),
            Admission::NotThisDevice => Exception::ThisDevice,
            Admission::AfterRelease | Admission::Granted(_) | Admission::OutOfTurn(_) => {
                Exception::Until(None)
            }
        }
    }
}
