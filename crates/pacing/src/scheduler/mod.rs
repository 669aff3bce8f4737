//! Schedulers: selection of the next command.

mod adaptive;
mod any;
mod deficit_round_robin;
mod residence_fq;

use std::fmt::Debug;

pub use adaptive::AdaptiveScheduler;
pub use any::AnyScheduler;
pub use deficit_round_robin::DeficitRoundRobin;
pub use residence_fq::{ResidenceFairQueue, VirtualTime};

use crate::FlowConfig;
use crate::Nanos;
use crate::policy::CompletedCommand;

/// Selects among the flows that have waiting commands.
///
/// A flow is named by its slot, a small dense number. It is *in* from
/// [`Scheduler::flow_backlogged`] to [`Scheduler::flow_idle`], that is, while it has commands
/// waiting.
pub trait Scheduler: Debug + Send {
    /// Adds a new flow in this slot: makes room and discards the state of the previous flow. Its
    /// weight is at least 1.
    fn add(&mut self, slot: u32, config: FlowConfig);

    /// Removes the flow of this slot, which has nothing waiting. Completions of its commands in
    /// flight are no longer reported.
    fn remove(&mut self, slot: u32) {
        let _ = slot;
    }

    /// Changes the weight of a flow.
    fn set_weight(&mut self, slot: u32, weight: u16);

    /// Adds a flow that has a waiting command from now on, after this pause.
    fn flow_backlogged(&mut self, slot: u32, pause: Pause);

    /// Removes a flow for this pause.
    fn flow_idle(&mut self, slot: u32, pause: Pause);

    /// Selects the flow whose first command is next, if any flow is in. It may return `None`
    /// although flows are in only while a completion of a command in flight may change that.
    ///
    /// Called again before a start, it must return the same, unless a flow joined, a command
    /// completed, another core acted or time passed. A flow that is overtaken because of that must
    /// come first eventually; otherwise a large command could wait forever.
    fn select(&mut self, now: Nanos) -> Option<Selection>;

    /// Records that a command of this flow started, of `bytes`.
    fn on_dispatch(&mut self, slot: u32, bytes: u32, dispatched: Dispatched, now: Nanos);

    /// Records the end of a command of this flow, whatever its outcome. It is called only for
    /// commands whose start was reported, and not for a flow that was removed since.
    fn on_complete(&mut self, slot: u32, done: &CompletedCommand, now: Nanos) {
        let _ = (slot, done, now);
    }
}

/// Reason why a flow is not in the scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pause {
    /// It has no waiting command, or is throttled.
    Idle,
    /// One of its commands started, and the next one has to pass the limits of its tenants first.
    /// If it passes before another flow starts anything, the flow resumes as if it had stayed.
    Suspended,
}

/// Way in which a command was chosen to start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dispatched {
    /// It was the first command of the last selected flow.
    Selected,
    /// It is small and bypassed all flows, whether or not its own one is in.
    Small,
    /// It was selected, and overtook a more urgent command on another core.
    OutOfOrder,
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
