//! Builtin policies in an enum, so that the usual one needs no dynamic dispatch.

use std::any::Any;

use super::{Adaptive, Admission, Ask, BufferCredit, Done, Grant, None, Policy, TokenBucket};
use crate::Nanos;

/// A builtin policy, or any other one.
#[derive(Debug)]
#[repr(u8)]
pub(crate) enum Known {
    None,
    BufferCredit(BufferCredit),
    TokenBucket(TokenBucket),
    Adaptive(Adaptive),
    Other(Box<dyn Policy>),
}

impl Known {
    /// Determines the concrete type of a policy.
    pub(crate) fn of(policy: Box<dyn Policy>) -> Self {
        let any: &dyn Any = &*policy;
        if any.is::<None>() {
            return Known::None;
        }
        let policy = match unbox(policy) {
            Ok(policy) => return Known::BufferCredit(policy),
            Err(policy) => policy,
        };
        let policy = match unbox(policy) {
            Ok(policy) => return Known::TokenBucket(policy),
            Err(policy) => policy,
        };
        unbox(policy).map_or_else(Known::Other, Known::Adaptive)
    }

    #[inline(always)]
    pub(crate) fn admit(&mut self, ask: Ask, now: Nanos) -> Admission {
        match self {
            Known::None => Admission::Granted(Grant::default()),
            Known::BufferCredit(policy) => policy.admit(&ask, now),
            Known::TokenBucket(policy) => policy.admit(&ask, now),
            Known::Adaptive(policy) => policy.admit(&ask, now),
            Known::Other(policy) => policy.admit(&ask.apart(), now),
        }
    }

    #[inline(always)]
    pub(crate) fn release(&mut self, done: Done, grant: Grant, now: Nanos) {
        match self {
            Known::None => {}
            Known::BufferCredit(policy) => policy.release(&done, grant, now),
            Known::TokenBucket(policy) => policy.release(&done, grant, now),
            Known::Adaptive(policy) => policy.release(&done, grant, now),
            Known::Other(policy) => policy.release(&done.apart(), grant, now),
        }
    }

    #[inline]
    pub(crate) fn turn(&mut self, now: Nanos, after: Nanos) {
        match self {
            Known::Adaptive(policy) => policy.turn(now, after),
            Known::Other(policy) => policy.turn(now, after),
            Known::None | Known::BufferCredit(_) | Known::TokenBucket(_) => {}
        }
    }

    #[inline]
    pub(crate) fn rest(&mut self) {
        match self {
            Known::None => {}
            Known::BufferCredit(policy) => policy.rest(),
            Known::TokenBucket(policy) => policy.rest(),
            Known::Adaptive(policy) => policy.rest(),
            Known::Other(policy) => policy.rest(),
        }
    }
}

/// Returns the policy itself if it is a `P`.
fn unbox<P: Policy>(policy: Box<dyn Policy>) -> Result<P, Box<dyn Policy>> {
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
