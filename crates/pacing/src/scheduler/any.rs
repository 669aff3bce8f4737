//! Builtin schedulers in an enum, to avoid dynamic dispatch.

use std::any::Any;

use super::{DeficitRoundRobin, ResidenceFairQueue, Scheduler, Selection};
use crate::policy::CompletedCommand;
use crate::{FlowConfig, Nanos};

/// A builtin scheduler, or any other one.
#[derive(Debug)]
#[repr(u8)]
#[expect(clippy::large_enum_variant, reason = "there is one a core, and it stays where it is")]
pub(crate) enum BuiltinScheduler {
    DeficitRoundRobin(DeficitRoundRobin),
    ResidenceFairQueue(ResidenceFairQueue),
    Other(Box<dyn Scheduler>),
}

impl BuiltinScheduler {
    /// Determines the concrete type of a scheduler.
    pub(crate) fn of(scheduler: Box<dyn Scheduler>) -> Self {
        let scheduler = match unbox(scheduler) {
            Ok(scheduler) => return BuiltinScheduler::DeficitRoundRobin(scheduler),
            Err(scheduler) => scheduler,
        };
        unbox(scheduler).map_or_else(BuiltinScheduler::Other, BuiltinScheduler::ResidenceFairQueue)
    }

    pub(crate) fn add(&mut self, slot: u32, config: FlowConfig) {
        match self {
            BuiltinScheduler::DeficitRoundRobin(scheduler) => scheduler.add(slot, config),
            BuiltinScheduler::ResidenceFairQueue(scheduler) => scheduler.add(slot, config),
            BuiltinScheduler::Other(scheduler) => scheduler.add(slot, config),
        }
    }

    pub(crate) fn remove(&mut self, slot: u32) {
        match self {
            BuiltinScheduler::DeficitRoundRobin(_) => {}
            BuiltinScheduler::ResidenceFairQueue(scheduler) => scheduler.remove(slot),
            BuiltinScheduler::Other(scheduler) => scheduler.remove(slot),
        }
    }

    pub(crate) fn set_weight(&mut self, slot: u32, weight: u16) {
        match self {
            BuiltinScheduler::DeficitRoundRobin(scheduler) => scheduler.set_weight(slot, weight),
            BuiltinScheduler::ResidenceFairQueue(scheduler) => scheduler.set_weight(slot, weight),
            BuiltinScheduler::Other(scheduler) => scheduler.set_weight(slot, weight),
        }
    }

    #[inline]
    pub(crate) fn flow_backlogged(&mut self, slot: u32) {
        match self {
            BuiltinScheduler::DeficitRoundRobin(scheduler) => scheduler.flow_backlogged(slot),
            BuiltinScheduler::ResidenceFairQueue(scheduler) => scheduler.flow_backlogged(slot),
            BuiltinScheduler::Other(scheduler) => scheduler.flow_backlogged(slot),
        }
    }

    #[inline]
    pub(crate) fn flow_idle(&mut self, slot: u32) {
        match self {
            BuiltinScheduler::DeficitRoundRobin(scheduler) => scheduler.flow_idle(slot),
            BuiltinScheduler::ResidenceFairQueue(scheduler) => scheduler.flow_idle(slot),
            BuiltinScheduler::Other(scheduler) => scheduler.flow_idle(slot),
        }
    }

    pub(crate) fn suspend(&mut self, slot: u32) {
        match self {
            BuiltinScheduler::DeficitRoundRobin(scheduler) => scheduler.suspend(slot),
            BuiltinScheduler::ResidenceFairQueue(scheduler) => scheduler.suspend(slot),
            BuiltinScheduler::Other(scheduler) => scheduler.suspend(slot),
        }
    }

    pub(crate) fn resume(&mut self, slot: u32) {
        match self {
            BuiltinScheduler::DeficitRoundRobin(scheduler) => scheduler.resume(slot),
            BuiltinScheduler::ResidenceFairQueue(scheduler) => scheduler.resume(slot),
            BuiltinScheduler::Other(scheduler) => scheduler.resume(slot),
        }
    }

    #[inline(always)]
    pub(crate) fn select(&mut self, now: Nanos) -> Option<Selection> {
        match self {
            BuiltinScheduler::DeficitRoundRobin(scheduler) => scheduler.select(now),
            BuiltinScheduler::ResidenceFairQueue(scheduler) => scheduler.select(now),
            // Separate from the other results, which stay in registers.
            BuiltinScheduler::Other(scheduler) => {
                let Selection { slot, urgency, load } = scheduler.select(now)?;
                Some(Selection { slot, urgency, load })
            }
        }
    }

    #[inline(always)]
    pub(crate) fn on_dispatch(&mut self, slot: u32, bytes: u32, now: Nanos) {
        match self {
            BuiltinScheduler::DeficitRoundRobin(scheduler) => {
                scheduler.on_dispatch(slot, bytes, now)
            }
            BuiltinScheduler::ResidenceFairQueue(scheduler) => {
                scheduler.on_dispatch(slot, bytes, now)
            }
            BuiltinScheduler::Other(scheduler) => scheduler.on_dispatch(slot, bytes, now),
        }
    }

    pub(crate) fn on_dispatch_small(&mut self, slot: u32, bytes: u32, now: Nanos) {
        match self {
            BuiltinScheduler::DeficitRoundRobin(scheduler) => {
                scheduler.on_dispatch_small(slot, bytes, now)
            }
            BuiltinScheduler::ResidenceFairQueue(scheduler) => {
                scheduler.on_dispatch_small(slot, bytes, now)
            }
            BuiltinScheduler::Other(scheduler) => scheduler.on_dispatch_small(slot, bytes, now),
        }
    }

    #[cold]
    pub(crate) fn on_dispatch_out_of_order(&mut self, slot: u32, bytes: u32, now: Nanos) {
        match self {
            BuiltinScheduler::DeficitRoundRobin(scheduler) => {
                scheduler.on_dispatch(slot, bytes, now)
            }
            BuiltinScheduler::ResidenceFairQueue(scheduler) => {
                scheduler.on_dispatch_out_of_order(slot, bytes, now)
            }
            BuiltinScheduler::Other(scheduler) => {
                scheduler.on_dispatch_out_of_order(slot, bytes, now)
            }
        }
    }

    #[inline(always)]
    pub(crate) fn on_complete(&mut self, slot: u32, done: CompletedCommand, now: Nanos) {
        match self {
            BuiltinScheduler::DeficitRoundRobin(_) => {}
            BuiltinScheduler::ResidenceFairQueue(scheduler) => {
                scheduler.on_complete(slot, &done, now)
            }
            BuiltinScheduler::Other(scheduler) => scheduler.on_complete(slot, &done.apart(), now),
        }
    }
}

/// Returns the scheduler itself if it is an `O`.
fn unbox<O: Scheduler>(scheduler: Box<dyn Scheduler>) -> Result<O, Box<dyn Scheduler>> {
    let any: &dyn Any = &*scheduler;
    if !any.is::<O>() {
        return Err(scheduler);
    }
    let any: Box<dyn Any> = scheduler;
    match any.downcast() {
        Ok(scheduler) => Ok(*scheduler),
        Err(_) => unreachable!("it was asked"),
    }
}
