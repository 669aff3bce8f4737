//! Faults around any fabric, at chosen or random points, the same for the same seed.
//!
//! What is lost is lost to the other side, never to the books: an operation whose response is dropped
//! still comes back, and a command that is dropped still counts as out.

mod queue;

use crate::queue::{Home, HostQueue, Nanos, ParkedQueue, TransportError};

/// Something that goes wrong at one event or operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// A command never arrives.
    DropCommand,
    /// A command arrives with bad data ([`FabricError::DataDigest`](crate::FabricError)).
    FailCommand,
    /// Data that was pulled is bad.
    FailPull,
    /// A response never reaches the host.
    DropResponse,
    /// An event is late by so many nanoseconds; later ones overtake it.
    Delay(Nanos),
    /// The connection is lost.
    Close,
}

/// When which fault happens. Events and responses are counted together, from 0.
#[derive(Debug, Clone, Default)]
pub struct FaultPlan {
    /// Where the random faults start from.
    pub seed: u64,
    /// Faults and their chance a point, in millionths.
    pub chances: Vec<(Fault, u32)>,
    /// Faults at certain points. One that does not fit its point (a failed pull where there is
    /// none) waits for the next that it fits.
    pub points: Vec<(u64, Fault)>,
}

/// `queue`, with faults.
#[must_use]
pub fn inject(queue: Box<dyn HostQueue>, plan: FaultPlan) -> Box<dyn HostQueue> {
    Box::new(queue::Faulty::new(queue, queue::Dice::new(plan)))
}

/// A connection that has faults once it is unparked.
#[must_use]
pub fn inject_parked(parked: Box<dyn ParkedQueue>, plan: FaultPlan) -> Box<dyn ParkedQueue> {
    Box::new(ParkedFaulty { inner: parked, dice: queue::Dice::new(plan) })
}

#[derive(Debug)]
struct ParkedFaulty {
    inner: Box<dyn ParkedQueue>,
    dice: queue::Dice,
}

impl ParkedQueue for ParkedFaulty {
    fn unpark(self: Box<Self>, home: &mut Home<'_>) -> Result<Box<dyn HostQueue>, TransportError> {
        Ok(Box::new(queue::Faulty::new(self.inner.unpark(home)?, self.dice)))
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
