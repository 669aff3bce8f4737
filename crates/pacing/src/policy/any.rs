//! Any admission policy: a builtin one in an enum, so that it needs no dynamic dispatch, or a boxed
//! one.

use super::{
    Adaptive, Admission, AdmissionPolicy, AdmissionRequest, BufferCredit, CompletedCommand, Grant,
    TokenBucket, Unpaced,
};
use crate::Nanos;

/// A policy of a chain: a builtin one, or any other one in a box.
#[derive(Debug)]
#[repr(u8)]
pub enum AnyPolicy {
    /// No bound.
    Unpaced,
    /// A budget of bytes in flight.
    BufferCredit(BufferCredit),
    /// A rate.
    TokenBucket(TokenBucket),
    /// A budget of bytes in flight that follows the machine.
    Adaptive(Adaptive),
    /// Any other one.
    Custom(Box<dyn AdmissionPolicy>),
}

impl AnyPolicy {
    /// Returns the largest cost in bytes that this policy can ever grant.
    pub(crate) fn largest(&self) -> u32 {
        match self {
            AnyPolicy::Unpaced => u32::MAX,
            AnyPolicy::BufferCredit(policy) => policy.largest(),
            AnyPolicy::TokenBucket(policy) => policy.largest(),
            AnyPolicy::Adaptive(policy) => policy.largest(),
            AnyPolicy::Custom(policy) => policy.largest(),
        }
    }

    #[inline(always)]
    pub(crate) fn admit(&mut self, request: AdmissionRequest, now: Nanos) -> Admission {
        match self {
            AnyPolicy::Unpaced => Admission::Granted(Grant::default()),
            AnyPolicy::BufferCredit(policy) => policy.admit(&request, now),
            AnyPolicy::TokenBucket(policy) => policy.admit(&request, now),
            AnyPolicy::Adaptive(policy) => policy.admit(&request, now),
            AnyPolicy::Custom(policy) => policy.admit(&request.copy_fields(), now),
        }
    }

    #[inline(always)]
    pub(crate) fn release(&mut self, done: CompletedCommand, grant: Grant, now: Nanos) {
        match self {
            AnyPolicy::Unpaced => {}
            AnyPolicy::BufferCredit(policy) => policy.release(&done, grant, now),
            AnyPolicy::TokenBucket(policy) => policy.release(&done, grant, now),
            AnyPolicy::Adaptive(policy) => policy.release(&done, grant, now),
            AnyPolicy::Custom(policy) => policy.release(&done.copy_fields(), grant, now),
        }
    }

    #[inline]
    pub(crate) fn on_turn(&mut self, now: Nanos, after: Nanos) {
        match self {
            AnyPolicy::Adaptive(policy) => policy.on_turn(now, after),
            AnyPolicy::Custom(policy) => policy.on_turn(now, after),
            AnyPolicy::Unpaced | AnyPolicy::BufferCredit(_) | AnyPolicy::TokenBucket(_) => {}
        }
    }

    pub(crate) fn needs_network_times(&self) -> bool {
        match self {
            AnyPolicy::Unpaced => false,
            AnyPolicy::BufferCredit(policy) => policy.needs_network_times(),
            AnyPolicy::TokenBucket(policy) => policy.needs_network_times(),
            AnyPolicy::Adaptive(policy) => policy.needs_network_times(),
            AnyPolicy::Custom(policy) => policy.needs_network_times(),
        }
    }

    #[inline]
    pub(crate) fn return_unused(&mut self) {
        match self {
            AnyPolicy::Unpaced => {}
            AnyPolicy::BufferCredit(policy) => policy.return_unused(),
            AnyPolicy::TokenBucket(policy) => policy.return_unused(),
            AnyPolicy::Adaptive(policy) => policy.return_unused(),
            AnyPolicy::Custom(policy) => policy.return_unused(),
        }
    }
}

impl From<Unpaced> for AnyPolicy {
    fn from(Unpaced: Unpaced) -> Self {
        Self::Unpaced
    }
}

impl From<BufferCredit> for AnyPolicy {
    fn from(policy: BufferCredit) -> Self {
        Self::BufferCredit(policy)
    }
}

impl From<TokenBucket> for AnyPolicy {
    fn from(policy: TokenBucket) -> Self {
        Self::TokenBucket(policy)
    }
}

impl From<Adaptive> for AnyPolicy {
    fn from(policy: Adaptive) -> Self {
        Self::Adaptive(policy)
    }
}

impl From<Box<dyn AdmissionPolicy>> for AnyPolicy {
    fn from(policy: Box<dyn AdmissionPolicy>) -> Self {
        Self::Custom(policy)
    }
}
