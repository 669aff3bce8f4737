//! Builtin schedulers in an enum, to avoid dynamic dispatch.

use std::any::Any;

use super::{Order, Pick, Residence, RoundRobin};
use crate::policy::Done;
use crate::{FlowConfig, Nanos};

/// A builtin scheduler, or any other one.
#[derive(Debug)]
#[repr(u8)]
#[expect(clippy::large_enum_variant, reason = "there is one a core, and it stays where it is")]
pub(crate) enum Known {
    RoundRobin(RoundRobin),
    Residence(Residence),
    Other(Box<dyn Order>),
}

impl Known {
    /// Determines the concrete type of a scheduler.
    pub(crate) fn of(order: Box<dyn Order>) -> Self {
        let order = match unbox(order) {
            Ok(order) => return Known::RoundRobin(order),
            Err(order) => order,
        };
        unbox(order).map_or_else(Known::Other, Known::Residence)
    }

    pub(crate) fn add(&mut self, lane: u32, config: FlowConfig) {
        match self {
            Known::RoundRobin(order) => order.add(lane, config),
            Known::Residence(order) => order.add(lane, config),
            Known::Other(order) => order.add(lane, config),
        }
    }

    pub(crate) fn remove(&mut self, lane: u32) {
        match self {
            Known::RoundRobin(_) => {}
            Known::Residence(order) => order.remove(lane),
            Known::Other(order) => order.remove(lane),
        }
    }

    pub(crate) fn set_weight(&mut self, lane: u32, weight: u16) {
        match self {
            Known::RoundRobin(order) => order.set_weight(lane, weight),
            Known::Residence(order) => order.set_weight(lane, weight),
            Known::Other(order) => order.set_weight(lane, weight),
        }
    }

    #[inline]
    pub(crate) fn join(&mut self, lane: u32) {
        match self {
            Known::RoundRobin(order) => order.join(lane),
            Known::Residence(order) => order.join(lane),
            Known::Other(order) => order.join(lane),
        }
    }

    #[inline]
    pub(crate) fn leave(&mut self, lane: u32) {
        match self {
            Known::RoundRobin(order) => order.leave(lane),
            Known::Residence(order) => order.leave(lane),
            Known::Other(order) => order.leave(lane),
        }
    }

    pub(crate) fn step_aside(&mut self, lane: u32) {
        match self {
            Known::RoundRobin(order) => order.step_aside(lane),
            Known::Residence(order) => order.step_aside(lane),
            Known::Other(order) => order.step_aside(lane),
        }
    }

    pub(crate) fn step_back(&mut self, lane: u32) {
        match self {
            Known::RoundRobin(order) => order.step_back(lane),
            Known::Residence(order) => order.step_back(lane),
            Known::Other(order) => order.step_back(lane),
        }
    }

    #[inline(always)]
    pub(crate) fn pick(&mut self, now: Nanos) -> Option<Pick> {
        match self {
            Known::RoundRobin(order) => order.pick(now),
            Known::Residence(order) => order.pick(now),
            // Separate from the other results, which stay in registers.
            Known::Other(order) => {
                let Pick { lane, urgency, load } = order.pick(now)?;
                Some(Pick { lane, urgency, load })
            }
        }
    }

    #[inline(always)]
    pub(crate) fn started(&mut self, lane: u32, bytes: u32, now: Nanos) {
        match self {
            Known::RoundRobin(order) => order.started(lane, bytes, now),
            Known::Residence(order) => order.started(lane, bytes, now),
            Known::Other(order) => order.started(lane, bytes, now),
        }
    }

    pub(crate) fn started_small(&mut self, lane: u32, bytes: u32, now: Nanos) {
        match self {
            Known::RoundRobin(order) => order.started_small(lane, bytes, now),
            Known::Residence(order) => order.started_small(lane, bytes, now),
            Known::Other(order) => order.started_small(lane, bytes, now),
        }
    }

    #[cold]
    pub(crate) fn started_out_of_turn(&mut self, lane: u32, bytes: u32, now: Nanos) {
        match self {
            Known::RoundRobin(order) => order.started(lane, bytes, now),
            Known::Residence(order) => order.started_out_of_turn(lane, bytes, now),
            Known::Other(order) => order.started_out_of_turn(lane, bytes, now),
        }
    }

    #[inline(always)]
    pub(crate) fn returned(&mut self, lane: u32, done: Done, now: Nanos) {
        match self {
            Known::RoundRobin(_) => {}
            Known::Residence(order) => order.returned(lane, &done, now),
            Known::Other(order) => order.returned(lane, &done.apart(), now),
        }
    }
}

/// Returns the scheduler itself if it is an `O`.
fn unbox<O: Order>(order: Box<dyn Order>) -> Result<O, Box<dyn Order>> {
    let any: &dyn Any = &*order;
    if !any.is::<O>() {
        return Err(order);
    }
    let any: Box<dyn Any> = order;
    match any.downcast() {
        Ok(order) => Ok(*order),
        Err(_) => unreachable!("it was asked"),
    }
}
