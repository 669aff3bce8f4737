//! Schedulers: selection of the next command.

mod builtin;
mod deficit_round_robin;
mod residence_fq;

use std::any::Any;
use std::fmt::Debug;

pub(crate) use builtin::BuiltinScheduler;
pub use deficit_round_robin::DeficitRoundRobin;
pub use residence_fq::{ResidenceFairQueue, VirtualTime};

use crate::FlowConfig;
use crate::Nanos;
use crate::policy::CompletedCommand;

/// Selects among the flows that have waiting commands. Flows are small dense slot numbers of flows.
/// A flow is *in* from [`Scheduler::flow_backlogged`] to [`Scheduler::flow_idle`], that is, while
/// it has commands waiting.
pub trait Scheduler: Any + Debug + Send {
    /// Adds a new flow with this slot number: makes room and discards the state of the previous
    /// flow. Its weight is at least 1.
    fn add(&mut self, slot: u32, config: FlowConfig);

    /// Removes the flow of this flow, which has nothing waiting. Completions of its commands in
    /// flight are no longer reported.
    fn remove(&mut self, slot: u32) {
        let _ = slot;
    }

    /// Changes the weight of a flow.
    fn set_weight(&mut self, slot: u32, weight: u16);

    /// Adds a flow: it has a waiting command from now on.
    fn flow_backlogged(&mut self, slot: u32);

    /// Removes a flow: it has no waiting commands any more.
    fn flow_idle(&mut self, slot: u32);

    /// Suspends a flow after one of its commands started, because its next command has to pass the
    /// limits of its tenants first. As [`Scheduler::flow_idle`].
    fn suspend(&mut self, slot: u32) {
        self.flow_idle(slot);
    }

    /// Resumes a suspended flow with nothing started since, as if it had stayed. A flow that was
    /// throttled uses [`Scheduler::flow_backlogged`].
    fn resume(&mut self, slot: u32) {
        self.flow_backlogged(slot);
    }

    /// Selects the flow whose first command is next, if any flow is in. It may return `None`
    /// although flows are in only while a completion of a command in flight may change that.
    ///
    /// Called again before a start, it must return the same, unless a flow joined, a command
    /// completed, another core acted or time passed. A flow that is overtaken because of that must
    /// come first eventually; otherwise a large command could wait forever.
    fn select(&mut self, now: Nanos) -> Option<Selection>;

    /// Records that the first command of the last selected flow started, of `bytes`.
    fn on_dispatch(&mut self, slot: u32, bytes: u32, now: Nanos);

    /// As [`Scheduler::on_dispatch`], for a small command that bypassed all flows, whether or not
    /// this one is in.
    fn on_dispatch_small(&mut self, slot: u32, bytes: u32, now: Nanos) {
        self.on_dispatch(slot, bytes, now);
    }

    /// As [`Scheduler::on_dispatch`], for a command that overtook a more urgent one on another
    /// core.
    fn on_dispatch_out_of_order(&mut self, slot: u32, bytes: u32, now: Nanos) {
        self.on_dispatch(slot, bytes, now);
    }

    /// Records the end of a command of this flow, whatever its outcome. It is called only for
    /// commands whose start was reported, and not for a flow that was removed since.
    fn on_complete(&mut self, slot: u32, done: &CompletedCommand, now: Nanos) {
        let _ = (slot, done, now);
    }
}

/// Selected command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Selection {
    /// Its flow.
    pub slot: u32,
    /// Urgency relative to other cores; see
    /// [`AdmissionRequest::urgency`](crate::policy::AdmissionRequest::urgency).
    pub urgency: u64,
    /// Load of its flow; see [`AdmissionRequest::load`](crate::policy::AdmissionRequest::load).
    pub load: u64,
}
