//! Builtin policies in an enum, so that the usual one needs no dynamic dispatch.

use std::any::Any;

use super::{
    Adaptive, Admission, AdmissionPolicy, AdmissionRequest, BufferCredit, CompletedCommand, Grant,
    TokenBucket, Unpaced,
};
use crate::Nanos;

/// A builtin policy, or any other one.
#[derive(Debug)]
#[repr(u8)]
pub(crate) enum BuiltinPolicy {
    Unpaced,
    BufferCredit(BufferCredit),
    TokenBucket(TokenBucket),
    Adaptive(Adaptive),
    Other(Box<dyn AdmissionPolicy>),
}

impl BuiltinPolicy {
    /// Determines the concrete type of a policy.
    pub(crate) fn of(policy: Box<dyn AdmissionPolicy>) -> Self {
        let any: &dyn Any = &*policy;
        if any.is::<Unpaced>() {
            return BuiltinPolicy::Unpaced;
        }
        let policy = match unbox(policy) {
            Ok(policy) => return BuiltinPolicy::BufferCredit(policy),
            Err(policy) => policy,
        };
        let policy = match unbox(policy) {
            Ok(policy) => return BuiltinPolicy::TokenBucket(policy),
            Err(policy) => policy,
        };
        unbox(policy).map_or_else(BuiltinPolicy::Other, BuiltinPolicy::Adaptive)
    }

    #[inline(always)]
    pub(crate) fn admit(&mut self, request: AdmissionRequest, now: Nanos) -> Admission {
        match self {
            BuiltinPolicy::Unpaced => Admission::Granted(Grant::default()),
            BuiltinPolicy::BufferCredit(policy) => policy.admit(&request, now),
            BuiltinPolicy::TokenBucket(policy) => policy.admit(&request, now),
            BuiltinPolicy::Adaptive(policy) => policy.admit(&request, now),
            BuiltinPolicy::Other(policy) => policy.admit(&request.apart(), now),
        }
    }

    #[inline(always)]
    pub(crate) fn release(&mut self, done: CompletedCommand, grant: Grant, now: Nanos) {
        match self {
            BuiltinPolicy::Unpaced => {}
            BuiltinPolicy::BufferCredit(policy) => policy.release(&done, grant, now),
            BuiltinPolicy::TokenBucket(policy) => policy.release(&done, grant, now),
            BuiltinPolicy::Adaptive(policy) => policy.release(&done, grant, now),
            BuiltinPolicy::Other(policy) => policy.release(&done.apart(), grant, now),
        }
    }

    #[inline]
    pub(crate) fn on_turn(&mut self, now: Nanos, after: Nanos) {
        match self {
            BuiltinPolicy::Adaptive(policy) => policy.on_turn(now, after),
            BuiltinPolicy::Other(policy) => policy.on_turn(now, after),
            BuiltinPolicy::Unpaced
            | BuiltinPolicy::BufferCredit(_)
            | BuiltinPolicy::TokenBucket(_) => {}
        }
    }

    #[inline]
    pub(crate) fn return_unused(&mut self) {
        match self {
            BuiltinPolicy::Unpaced => {}
            BuiltinPolicy::BufferCredit(policy) => policy.return_unused(),
            BuiltinPolicy::TokenBucket(policy) => policy.return_unused(),
            BuiltinPolicy::Adaptive(policy) => policy.return_unused(),
            BuiltinPolicy::Other(policy) => policy.return_unused(),
        }
    }
}

/// Returns the policy itself if it is a `P`.
fn unbox<P: AdmissionPolicy>(
    policy: Box<dyn AdmissionPolicy>,
) -> Result<P, Box<dyn AdmissionPolicy>> {
    let any: &dyn Any = &*policy;
    if !any.is::<P>() {
        return Err(policy);
    }
    let any: Box<dyn Any> = policy;
    match any.downcast() {
        Ok(policy) => Ok(*policy),
        Err(_) => unreachable!("it was asked"),
    }
}
