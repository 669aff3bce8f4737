//! A chain of policies that grants all or nothing.

use crate::Nanos;
use crate::permit::CommandOutcome;
use crate::policy::{
    Admission, AdmissionRequest, AnyPolicy, CompletedCommand, Grants, MAX_POLICIES,
};

/// Nearly every chain has one policy. The first one is therefore stored separately, and a builtin
/// policy is called without dynamic dispatch. Arguments are passed by value, so they stay in
/// registers on the way to a builtin policy.
#[derive(Debug)]
pub(crate) struct PolicyChain {
    first: AnyPolicy,
    others: Vec<AnyPolicy>,
    largest: u32,
}

impl PolicyChain {
    /// An empty chain grants every command.
    pub(crate) fn new(policies: Vec<AnyPolicy>) -> Self {
        assert!(policies.len() <= MAX_POLICIES, "at most {MAX_POLICIES} policies in a chain");
        let largest = policies.iter().map(|p| p.largest()).min().unwrap_or(u32::MAX);
        let mut policies = policies.into_iter();
        let first = policies.next().unwrap_or(AnyPolicy::Unpaced);
        Self { first, others: policies.collect(), largest }
    }

    /// Returns the largest cost that every policy can grant.
    #[inline]
    pub(crate) fn largest(&self) -> u32 {
        self.largest
    }

    /// Returns the grants of every policy, or the exception.
    #[inline(always)]
    pub(crate) fn admit(
        &mut self,
        request: AdmissionRequest,
        now: Nanos,
    ) -> Result<Grants, NotGranted> {
        match self.first.admit(request, now) {
            Admission::Granted(grant) => {
                let mut grants = Grants::default();
                grants.set(0, grant);
                if self.others.is_empty() {
                    Ok(grants)
                } else {
                    self.admit_others(grants, true, &request.copy_fields(), now)
                }
            }
            other => Err(self.not_granted(other, &request.copy_fields(), now)),
        }
    }

    /// Handles every answer of the first policy but a plain grant.
    #[inline(never)]
    fn not_granted(
        &mut self,
        answer: Admission,
        request: &AdmissionRequest,
        now: Nanos,
    ) -> NotGranted {
        if let Admission::GrantedOutOfOrder(grant) = answer {
            let mut grants = Grants::default();
            grants.set(0, grant);
            let granted = self.admit_others(grants, false, request, now);
            return granted.map_or_else(|not_granted| not_granted, NotGranted::GrantedOutOfOrder);
        }
        self.rest_others();
        NotGranted::from_admission(answer)
    }

    /// Asks the other policies after the first one granted.
    #[inline(never)]
    fn admit_others(
        &mut self,
        mut grants: Grants,
        mut in_turn: bool,
        request: &AdmissionRequest,
        now: Nanos,
    ) -> Result<Grants, NotGranted> {
        for at in 0..self.others.len() {
            let answer = self.others[at].admit(request.copy_fields(), now);
            let Some(grant) = answer.grant() else {
                self.back_out(at, request, grants, now);
                return Err(NotGranted::from_admission(answer));
            };
            grants.set(at + 1, grant);
            in_turn &= matches!(answer, Admission::Granted(_));
        }
        if in_turn { Ok(grants) } else { Err(NotGranted::GrantedOutOfOrder(grants)) }
    }

    #[inline(always)]
    pub(crate) fn release(&mut self, done: CompletedCommand, grants: Grants, now: Nanos) {
        self.first.release(done, grants.get(0), now);
        if !self.others.is_empty() {
            self.release_others(&done.copy_fields(), grants, now);
        }
    }

    #[inline(never)]
    fn release_others(&mut self, done: &CompletedCommand, grants: Grants, now: Nanos) {
        for (at, policy) in self.others.iter_mut().enumerate() {
            policy.release(done.copy_fields(), grants.get(at + 1), now);
        }
    }

    /// Starts a turn, see [`AdmissionPolicy::on_turn`](crate::AdmissionPolicy::on_turn).
    #[inline]
    pub(crate) fn on_turn(&mut self, now: Nanos, after: Nanos) {
        self.first.on_turn(now, after);
        for policy in &mut self.others {
            policy.on_turn(now, after);
        }
    }

    pub(crate) fn needs_network_times(&self) -> bool {
        self.first.needs_network_times() || self.others.iter().any(AnyPolicy::needs_network_times)
    }

    /// Returns unused credit: nothing starts on this core for now.
    #[inline]
    pub(crate) fn return_unused(&mut self) {
        self.first.return_unused();
        self.rest_others();
    }

    fn rest_others(&mut self) {
        for policy in &mut self.others {
            policy.return_unused();
        }
    }

    /// Policy number `deferred` of the others deferred the command. The policies before it reclaim
    /// their grants, and only `deferred` keeps anything for the deferred command.
    #[cold]
    fn back_out(
        &mut self,
        deferred: usize,
        request: &AdmissionRequest,
        grants: Grants,
        now: Nanos,
    ) {
        let withdrawn = CompletedCommand {
            cost: request.cost,
            device: request.device,
            outcome: CommandOutcome::Cancelled,
            started: now,
            network: 0,
        };
        self.first.release(withdrawn, grants.get(0), now);
        self.first.return_unused();
        for (at, policy) in self.others.iter_mut().enumerate() {
            if at < deferred {
                policy.release(withdrawn, grants.get(at + 1), now);
            }
            if at != deferred {
                policy.return_unused();
            }
        }
    }
}

/// Answer of a chain that is not a plain grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotGranted {
    /// It grants, [out of order](Admission::GrantedOutOfOrder).
    GrantedOutOfOrder(Grants),
    /// Nothing starts before this time, or before a release if the time is unknown.
    Until(Option<Nanos>),
    /// Only this device is not served now.
    ThisDevice,
}

impl NotGranted {
    /// Converts an answer that is not a grant.
    #[inline]
    fn from_admission(answer: Admission) -> Self {
        match answer {
            Admission::WaitUntil(when) => NotGranted::Until(Some(when)),
            Admission::DeviceBusy => NotGranted::ThisDevice,
            Admission::WaitForRelease | Admission::Granted(_) | Admission::GrantedOutOfOrder(_) => {
                NotGranted::Until(None)
            }
        }
    }
}
