//! Faults around any fabric, at chosen or random points, reproducible by a seed.
//!
//! A fault affects only the other side, never the accounting. An operation whose response is
//! dropped still returns, and a dropped command still counts as outstanding.

mod queue;

use crate::queue::{DetachedQueue, HostQueue, Nanos, ReactorResources, TransportError};

/// A fault at one event or operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// A command never arrives.
    DropCommand,
    /// A command arrives with bad data ([`FabricError::DataDigest`](crate::FabricError)).
    FailCommand,
    /// Pulled data is bad.
    FailPull,
    /// A response never reaches the host.
    DropResponse,
    /// An event is delayed by this many nanoseconds; later ones overtake it.
    Delay(Nanos),
    /// The connection is lost.
    Close,
}

/// Times and kinds of faults. Events and responses share one counter, from 0.
#[derive(Debug, Clone, Default)]
pub struct FaultPlan {
    /// Seed of the random faults.
    pub seed: u64,
    /// Faults and their probability per point, in millionths.
    pub chances: Vec<(Fault, u32)>,
    /// Faults at certain points.
    ///
    /// A fault that does not apply to its point (a failed pull where there is none) waits for the
    /// next point to which it applies.
    pub points: Vec<(u64, Fault)>,
}

/// Wraps `queue` with faults.
#[must_use]
pub fn inject(queue: Box<dyn HostQueue>, plan: FaultPlan) -> Box<dyn HostQueue> {
    Box::new(queue::FaultyQueue::new(queue, queue::FaultInjector::new(plan)))
}

/// Wraps a parked connection, which has faults once it is unparked.
#[must_use]
pub fn inject_parked(parked: Box<dyn DetachedQueue>, plan: FaultPlan) -> Box<dyn DetachedQueue> {
    Box::new(ParkedFaulty { inner: parked, dice: queue::FaultInjector::new(plan) })
}

#[derive(Debug)]
struct ParkedFaulty {
    inner: Box<dyn DetachedQueue>,
    dice: queue::FaultInjector,
}

impl DetachedQueue for ParkedFaulty {
    fn attach(
        self: Box<Self>,
        home: &mut ReactorResources<'_>,
    ) -> Result<Box<dyn HostQueue>, TransportError> {
        Ok(Box::new(queue::FaultyQueue::new(self.inner.attach(home)?, self.dice)))
    }

    fn peer(&self) -> String {
        self.inner.peer()
    }

    fn number(&self) -> Option<u16> {
        self.inner.number()
    }

    fn refuse(self: Box<Self>) {
        self.inner.refuse();
    }
}

#[cfg(test)]
mod tests;
