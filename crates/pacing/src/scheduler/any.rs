//! Any scheduler: a builtin one in an enum, so that it needs no dynamic dispatch, or a boxed one.

use super::{AdaptiveScheduler, DeficitRoundRobin, Dispatched, Pause, Scheduler, Selection};
use crate::policy::CompletedCommand;
use crate::{FlowConfig, Nanos};

/// The scheduler of a pacer: a builtin one, or any other one in a box.
#[derive(Debug)]
#[repr(u8)]
#[expect(clippy::large_enum_variant, reason = "there is one a core, and it stays where it is")]
pub enum AnyScheduler {
    /// Turns of the same number of bytes.
    DeficitRoundRobin(DeficitRoundRobin),
    /// Round robin until a bound is looked for, then shares of the bytes in memory.
    Adaptive(AdaptiveScheduler),
    /// Any other one.
    Custom(Box<dyn Scheduler>),
}

impl AnyScheduler {
    pub(crate) fn add(&mut self, slot: u32, config: FlowConfig) {
        match self {
            AnyScheduler::DeficitRoundRobin(scheduler) => scheduler.add(slot, config),
            AnyScheduler::Adaptive(scheduler) => scheduler.add(slot, config),
            AnyScheduler::Custom(scheduler) => scheduler.add(slot, config),
        }
    }

    pub(crate) fn remove(&mut self, slot: u32) {
        match self {
            AnyScheduler::DeficitRoundRobin(_) => {}
            AnyScheduler::Adaptive(scheduler) => scheduler.remove(slot),
            AnyScheduler::Custom(scheduler) => scheduler.remove(slot),
        }
    }

    pub(crate) fn set_weight(&mut self, slot: u32, weight: u16) {
        match self {
            AnyScheduler::DeficitRoundRobin(scheduler) => scheduler.set_weight(slot, weight),
            AnyScheduler::Adaptive(scheduler) => scheduler.set_weight(slot, weight),
            AnyScheduler::Custom(scheduler) => scheduler.set_weight(slot, weight),
        }
    }

    #[inline]
    pub(crate) fn flow_backlogged(&mut self, slot: u32, pause: Pause) {
        match self {
            AnyScheduler::DeficitRoundRobin(scheduler) => scheduler.flow_backlogged(slot, pause),
            AnyScheduler::Adaptive(scheduler) => scheduler.flow_backlogged(slot, pause),
            AnyScheduler::Custom(scheduler) => scheduler.flow_backlogged(slot, pause),
        }
    }

    #[inline]
    pub(crate) fn flow_idle(&mut self, slot: u32, pause: Pause) {
        match self {
            AnyScheduler::DeficitRoundRobin(scheduler) => scheduler.flow_idle(slot, pause),
            AnyScheduler::Adaptive(scheduler) => scheduler.flow_idle(slot, pause),
            AnyScheduler::Custom(scheduler) => scheduler.flow_idle(slot, pause),
        }
    }

    #[inline(always)]
    pub(crate) fn select(&mut self, now: Nanos) -> Option<Selection> {
        match self {
            AnyScheduler::DeficitRoundRobin(scheduler) => scheduler.select(now),
            AnyScheduler::Adaptive(scheduler) => scheduler.select(now),
            // Separate from the other results, which stay in registers.
            AnyScheduler::Custom(scheduler) => {
                let Selection { slot, urgency, load } = scheduler.select(now)?;
                Some(Selection { slot, urgency, load })
            }
        }
    }

    #[inline(always)]
    pub(crate) fn on_dispatch(
        &mut self,
        slot: u32,
        bytes: u32,
        dispatched: Dispatched,
        now: Nanos,
    ) {
        match self {
            AnyScheduler::DeficitRoundRobin(scheduler) => {
                scheduler.on_dispatch(slot, bytes, dispatched, now);
            }
            AnyScheduler::Adaptive(scheduler) => {
                scheduler.on_dispatch(slot, bytes, dispatched, now);
            }
            AnyScheduler::Custom(scheduler) => {
                scheduler.on_dispatch(slot, bytes, dispatched, now);
            }
        }
    }

    #[inline(always)]
    pub(crate) fn on_complete(&mut self, slot: u32, done: CompletedCommand, now: Nanos) {
        match self {
            AnyScheduler::DeficitRoundRobin(_) => {}
            AnyScheduler::Adaptive(scheduler) => scheduler.on_complete(slot, &done, now),
            AnyScheduler::Custom(scheduler) => {
                scheduler.on_complete(slot, &done.copy_fields(), now);
            }
        }
    }
}

impl From<DeficitRoundRobin> for AnyScheduler {
    fn from(scheduler: DeficitRoundRobin) -> Self {
        Self::DeficitRoundRobin(scheduler)
    }
}

impl From<AdaptiveScheduler> for AnyScheduler {
    fn from(scheduler: AdaptiveScheduler) -> Self {
        Self::Adaptive(scheduler)
    }
}

impl From<Box<dyn Scheduler>> for AnyScheduler {
    fn from(scheduler: Box<dyn Scheduler>) -> Self {
        Self::Custom(scheduler)
    }
}
