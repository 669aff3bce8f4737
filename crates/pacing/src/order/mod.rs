//! Whose command is next.

mod known;
mod residence;
mod round_robin;

use std::any::Any;
use std::fmt::Debug;

pub(crate) use known::Known;
pub use residence::{Residence, VirtualTime};
pub use round_robin::RoundRobin;

use crate::FlowConfig;
use crate::Nanos;
use crate::policy::Done;

/// Chooses among the flows that have commands waiting. Lanes are small dense numbers; a lane is
/// *in* from [`Order::join`] to [`Order::leave`], which is while it has something waiting.
pub trait Order: Any + Debug + Send {
    /// A new flow got this lane number: make room for it and forget who had the number before.
    /// Its weight is at least 1.
    fn add(&mut self, lane: u32, config: FlowConfig);

    /// The flow that had this lane is gone, which has nothing waiting: no more is told of what it has in flight.
    fn remove(&mut self, lane: u32) {
        let _ = lane;
    }

    /// The weight of a lane is another from now on.
    fn set_weight(&mut self, lane: u32, weight: u16);

    /// A lane has something waiting from now on.
    fn join(&mut self, lane: u32);

    /// A lane has nothing waiting any more.
    fn leave(&mut self, lane: u32);

    /// As [`Order::leave`], of a lane of which something was just started, and whose next command has to pass the limits of
    /// its tenants first.
    fn step_aside(&mut self, lane: u32) {
        self.leave(lane);
    }

    /// It has passed, with nothing started since: as if it had stayed. One that is held up joins.
    fn step_back(&mut self, lane: u32) {
        self.join(lane);
    }

    /// The lane whose first command is next, if any lane is in. None is next, though some are in, only while something
    /// is in flight whose return may change that. Asked again before anything was started it must answer the same unless
    /// a lane joined, something returned, another core did something or time went by; and who is passed over
    /// for that must come first in the end, or a large command waits for ever.
    fn pick(&mut self, now: Nanos) -> Option<Pick>;

    /// The first command of the lane last picked has started, of so many `bytes`.
    fn started(&mut self, lane: u32, bytes: u32, now: Nanos);

    /// As [`Order::started`], of a command so small that it went before all lanes, whether or not this one is in.
    fn started_small(&mut self, lane: u32, bytes: u32, now: Nanos) {
        self.started(lane, bytes, now);
    }

    /// As [`Order::started`], of a command that went before what another core waits with and is more urgent.
    fn started_out_of_turn(&mut self, lane: u32, bytes: u32, now: Nanos) {
        self.started(lane, bytes, now);
    }

    /// A command of this lane that this order was told of when it started is over, however it
    /// ended. Not called for a lane that was removed meanwhile.
    fn returned(&mut self, lane: u32, done: &Done, now: Nanos) {
        let _ = (lane, done, now);
    }
}

/// Whose command is next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pick {
    /// The lane.
    pub lane: u32,
    /// How urgent against the picks of other cores; see [`Ask::urgency`](crate::policy::Ask::urgency).
    pub urgency: u64,
    /// See [`Ask::load`](crate::policy::Ask::load).
    pub load: u64,
}
