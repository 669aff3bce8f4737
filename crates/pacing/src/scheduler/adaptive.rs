//! Scheduler of the adaptive policy: round robin until a bound is looked for, then fair queueing by
//! residence.

use std::sync::Arc;

use super::residence_fq::{ResidenceFairQueue, VirtualTime};
use super::{DeficitRoundRobin, Dispatched, Pause, Scheduler, Selection};
use crate::policy::CompletedCommand;
use crate::{FlowConfig, Nanos};

/// Deficit round robin while there is no bound and none is looked for, [`ResidenceFairQueue`]
/// otherwise.
///
/// Without a bound every command starts in the turn in which it arrives, so there is no order to
/// keep, and the cost is nearly that of no pacing. Only bytes in flight and device times are kept
/// up to date.
#[derive(Debug)]
pub struct AdaptiveScheduler {
    virtual_time: Arc<VirtualTime>,
    /// No bound is looked for: `round_robin` has the flows that are in, otherwise `fair` does.
    is_open: bool,
    round_robin: DeficitRoundRobin,
    fair: ResidenceFairQueue,
}

impl AdaptiveScheduler {
    /// Creates the scheduler of core number `core`.
    ///
    /// # Panics
    /// If `virtual_time` has fewer cores.
    #[must_use]
    pub fn new(virtual_time: Arc<VirtualTime>, core: usize) -> Self {
        Self {
            is_open: virtual_time.is_open(),
            round_robin: DeficitRoundRobin::default(),
            fair: ResidenceFairQueue::new(Arc::clone(&virtual_time), core),
            virtual_time,
        }
    }

    /// Moves the flows that are in to the other order.
    #[cold]
    fn change(&mut self, now: Nanos) {
        self.is_open = !self.is_open;
        if self.is_open {
            while let Some(flow) = self.fair.first() {
                self.fair.flow_idle(flow, Pause::Idle);
                self.round_robin.flow_backlogged(flow, Pause::Idle);
            }
            self.fair.suspend();
        } else {
            self.fair.resume(now);
            while let Some(Selection { slot, .. }) = self.round_robin.select(now) {
                self.round_robin.flow_idle(slot, Pause::Idle);
                self.fair.flow_backlogged(slot, Pause::Idle);
            }
        }
    }
}

impl Scheduler for AdaptiveScheduler {
    fn add(&mut self, slot: u32, config: FlowConfig) {
        self.round_robin.add(slot, config);
        self.fair.add(slot, config);
    }

    fn remove(&mut self, slot: u32) {
        self.fair.remove(slot);
    }

    fn set_weight(&mut self, slot: u32, weight: u16) {
        self.round_robin.set_weight(slot, weight);
        self.fair.set_weight(slot, weight);
    }

    #[inline]
    fn flow_backlogged(&mut self, slot: u32, pause: Pause) {
        if self.is_open {
            self.round_robin.flow_backlogged(slot, pause);
        } else {
            self.fair.flow_backlogged(slot, pause);
        }
    }

    #[inline]
    fn flow_idle(&mut self, slot: u32, pause: Pause) {
        if self.is_open {
            self.round_robin.flow_idle(slot, pause);
        } else {
            self.fair.flow_idle(slot, pause);
        }
    }

    #[inline(always)]
    fn select(&mut self, now: Nanos) -> Option<Selection> {
        // `Nanos::MIN` is no time: nothing begins then.
        if self.is_open != self.virtual_time.is_open() && now != Nanos::MIN {
            self.change(now);
        }
        if self.is_open { self.round_robin.select(now) } else { self.fair.select(now) }
    }

    #[inline(always)]
    fn on_dispatch(&mut self, slot: u32, bytes: u32, dispatched: Dispatched, now: Nanos) {
        if self.is_open {
            self.round_robin.on_dispatch(slot, bytes, dispatched, now);
            self.fair.count_start(slot, bytes);
        } else {
            self.fair.on_dispatch(slot, bytes, dispatched, now);
        }
    }

    #[inline(always)]
    fn on_complete(&mut self, slot: u32, done: &CompletedCommand, now: Nanos) {
        if self.is_open {
            self.fair.count_end(slot, done, now);
        } else {
            self.fair.on_complete(slot, done, now);
        }
    }
}
