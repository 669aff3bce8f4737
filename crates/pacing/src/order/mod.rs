//! Schedulers: selection of the next command.

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

/// Selects among the flows that have waiting commands. Lanes are small dense slot numbers of flows.
/// A lane is *in* from [`Order::join`] to [`Order::leave`], that is, while it has commands waiting.
pub trait Order: Any + Debug + Send {
    /// Adds a new flow with this lane number: makes room and discards the state of the previous
    /// flow. Its weight is at least 1.
    fn add(&mut self, lane: u32, config: FlowConfig);

    /// Removes the flow of this lane, which has nothing waiting. Completions of its commands in
    /// flight are no longer reported.
    fn remove(&mut self, lane: u32) {
        let _ = lane;
    }

    /// Changes the weight of a lane.
    fn set_weight(&mut self, lane: u32, weight: u16);

    /// Adds a lane: it has a waiting command from now on.
    fn join(&mut self, lane: u32);

    /// Removes a lane: it has no waiting commands any more.
    fn leave(&mut self, lane: u32);

    /// Suspends a lane after one of its commands started, because its next command has to pass the
    /// limits of its tenants first. As [`Order::leave`].
    fn step_aside(&mut self, lane: u32) {
        self.leave(lane);
    }

    /// Resumes a suspended lane with nothing started since, as if it had stayed. A lane that was
    /// throttled uses [`Order::join`].
    fn step_back(&mut self, lane: u32) {
        self.join(lane);
    }

    /// Selects the lane whose first command is next, if any lane is in. It may return `None`
    /// although lanes are in only while a completion of a command in flight may change that.
    ///
    /// Called again before a start, it must return the same, unless a lane joined, a command
    /// completed, another core acted or time passed. A lane that is overtaken because of that must
    /// come first eventually; otherwise a large command could wait forever.
    fn pick(&mut self, now: Nanos) -> Option<Pick>;

    /// Records that the first command of the last selected lane started, of `bytes`.
    fn started(&mut self, lane: u32, bytes: u32, now: Nanos);

    /// As [`Order::started`], for a small command that bypassed all lanes, whether or not this one
    /// is in.
    fn started_small(&mut self, lane: u32, bytes: u32, now: Nanos) {
        self.started(lane, bytes, now);
    }

    /// As [`Order::started`], for a command that overtook a more urgent one on another core.
    fn started_out_of_turn(&mut self, lane: u32, bytes: u32, now: Nanos) {
        self.started(lane, bytes, now);
    }

    /// Records the end of a command of this lane, whatever its outcome. It is called only for
    /// commands whose start was reported, and not for a lane that was removed since.
    fn returned(&mut self, lane: u32, done: &Done, now: Nanos) {
        let _ = (lane, done, now);
    }
}

/// Selected command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pick {
    /// Its lane.
    pub lane: u32,
    /// Urgency relative to other cores; see [`Ask::urgency`](crate::policy::Ask::urgency).
    pub urgency: u64,
    /// Load of its flow; see [`Ask::load`](crate::policy::Ask::load).
    pub load: u64,
}
