//! What a reactor sees of pacing.

use std::sync::atomic::{AtomicU32, Ordering};

use thiserror::Error;

use crate::chain::Chain;
use crate::lanes::{FlowId, LaneState, Lanes, Waiting};
use crate::order::{Order, RoundRobin};
use crate::permit::{Outcome, Permit};
use crate::policy::{Grants, Policy};
use crate::{Cost, Nanos};

/// Per-core admission: waiting lanes, an order among them and a chain of policies.
///
/// Call [`Pacer::next`] until it yields `None` at the end of every turn, whatever the turn did.
#[derive(Debug)]
pub struct Pacer<O = RoundRobin> {
    id: u32,
    lanes: Lanes,
    order: O,
    chain: Chain,
    wakeup: Option<Nanos>,
    counts: Counts,
}

/// Sizes of a pacer.
#[derive(Debug, Clone, Copy)]
pub struct PacerConfig {
    /// Commands one flow can have waiting (its queue depth, times the queues that share it). Room
    /// for so many is set aside when a flow is added; a flow that has more makes it grow.
    pub flow_depth: usize,
}

impl Default for PacerConfig {
    fn default() -> Self {
        Self { flow_depth: 128 }
    }
}

/// The command could never start: it costs more than the policies can ever grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error(
    "a command of {bytes} bytes can never start: at most {largest} bytes are granted at once \
     (lower max-transfer or raise the budget)"
)]
pub struct TooLarge {
    /// What the command costs, in bytes.
    pub bytes: u32,
    /// The most that is granted to one command, in bytes.
    pub largest: u32,
}

/// Exact counts since the pacer was made, of commands unless said otherwise.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Accepted by [`Pacer::enqueue`].
    pub enqueued: u64,
    /// Refused as [`TooLarge`].
    pub too_large: u64,
    /// Taken out before they started, by [`Pacer::cancel`] or [`Pacer::remove_flow`].
    pub cancelled: u64,
    /// Started: permits given.
    pub started: u64,
    /// Of those started, how many had no data.
    pub started_without_data: u64,
    /// Over: permits given back.
    pub released: u64,
    /// Bytes in flight now.
    pub bytes_in_flight: u64,
    /// Times [`Pacer::next`] found a command waiting that might not start yet.
    pub held_back: u64,
}

impl Counts {
    /// Commands that wait now.
    #[must_use]
    pub fn waiting(&self) -> u64 {
        self.enqueued - self.cancelled - self.started
    }

    /// Commands in flight now.
    #[must_use]
    pub fn outstanding(&self) -> u64 {
        self.started - self.released
    }
}

impl Pacer<RoundRobin> {
    /// A pacer that takes flows in turn; commands start when every policy grants them, with no
    /// policy at once.
    #[must_use]
    pub fn new(policies: Vec<Box<dyn Policy>>, config: PacerConfig) -> Self {
        Self::with_order(policies, RoundRobin::default(), config)
    }
}

impl<O: Order> Pacer<O> {
    /// A pacer with its own order among the flows.
    ///
    /// # Panics
    /// If there are more than [`MAX_POLICIES`](crate::policy::MAX_POLICIES) policies.
    #[must_use]
    pub fn with_order(policies: Vec<Box<dyn Policy>>, order: O, config: PacerConfig) -> Self {
        static NEXT_ID: AtomicU32 = AtomicU32::new(0);
        Self {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            lanes: Lanes::new(config.flow_depth),
            order,
            chain: Chain::new(policies),
            wakeup: None,
            counts: Counts::default(),
        }
    }

    /// Adds a flow; its share against others is its weight (0 counts as 1). The only call besides
    /// [`Pacer::remove_flow`] that allocates.
    pub fn add_flow(&mut self, weight: u16) -> FlowId {
        let flow = self.lanes.add(weight.max(1));
        self.order.add(flow.slot(), self.lanes.weight(flow));
        flow
    }

    /// Ends a flow and yields the tokens of its commands that still wait. Its commands in flight
    /// go on; their permits are given back as any.
    pub fn remove_flow(&mut self, flow: FlowId) -> Vec<u64> {
        if !self.lanes.is_live(flow) {
            return Vec::new();
        }
        let (tokens, was_in) = self.lanes.drain(flow);
        self.counts.cancelled += tokens.len() as u64;
        if was_in {
            self.leave(flow.slot());
        }
        self.lanes.remove(flow);
        tokens
    }

    /// Lets a command wait for its turn. One without data waits for nobody: the next
    /// [`Pacer::next`] starts it.
    ///
    /// # Errors
    /// [`TooLarge`] if it could never start.
    ///
    /// # Panics
    /// If the flow was removed.
    #[inline]
    pub fn enqueue(&mut self, flow: FlowId, cost: Cost, token: u64) -> Result<(), TooLarge> {
        let waiting = Waiting { token, cost, flow };
        if cost.bytes == 0 {
            self.lanes.push_express(waiting);
        } else if cost.bytes > self.chain.largest() {
            self.counts.too_large += 1;
            return Err(TooLarge { bytes: cost.bytes, largest: self.chain.largest() });
        } else if self.lanes.push(waiting) {
            self.order.join(flow.slot());
        }
        self.counts.enqueued += 1;
        Ok(())
    }

    /// Takes one waiting command out; false if none of this flow waits under that token.
    pub fn cancel(&mut self, flow: FlowId, token: u64) -> bool {
        match self.lanes.cancel(flow, token) {
            None => return false,
            Some(LaneState::Unchanged) => {}
            Some(LaneState::Emptied) => self.leave(flow.slot()),
        }
        self.counts.cancelled += 1;
        true
    }

    /// The next command that may start, with its permit; `None` when nothing waits or nothing may
    /// start yet. A command that may not start yet is not passed over by those behind it, however
    /// small: it is the next to start.
    #[inline]
    pub fn next(&mut self, now: Nanos) -> Option<(u64, Permit)> {
        if let Some(waiting) = self.lanes.pop_express() {
            self.counts.started_without_data += 1;
            return Some(self.start(waiting, Grants::default(), now));
        }
        let Some(lane) = self.order.pick() else {
            self.wakeup = None;
            self.chain.rest();
            return None;
        };
        let first = self.lanes.first(lane);
        let Some(grants) = self.chain.admit(first, now, &mut self.wakeup) else {
            self.counts.held_back += 1;
            return None;
        };
        let (waiting, emptied) = self.lanes.pop(lane);
        self.order.started(lane, waiting.cost.bytes);
        if emptied {
            self.order.leave(lane);
        }
        Some(self.start(waiting, grants, now))
    }

    /// Gives a permit back: the command is over. What that makes possible, [`Pacer::next`] starts.
    #[inline]
    pub fn release(&mut self, permit: Permit, outcome: Outcome, now: Nanos) {
        #[cfg(debug_assertions)]
        assert_eq!(permit.pacer, self.id, "a permit goes back to the pacer it came from");
        let Permit { grants, started, flow, cost, .. } = permit;
        std::mem::forget(permit);
        self.counts.released += 1;
        self.counts.bytes_in_flight -= u64::from(cost.bytes);
        if cost.bytes == 0 {
            return;
        }
        self.chain.release(cost, grants, outcome, now);
        if self.lanes.is_live(flow) {
            self.order.returned(flow.slot(), cost.bytes, now.saturating_sub(started));
        }
    }

    /// When to call [`Pacer::next`] again if nothing else happens: `None` when only a release can
    /// help (or nothing waits). Valid after `next` yielded `None`.
    #[must_use]
    pub fn next_wakeup(&self) -> Option<Nanos> {
        self.wakeup
    }

    /// Commands that wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        usize::try_from(self.counts.waiting()).unwrap_or(usize::MAX)
    }

    /// Commands in flight: permits out.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        usize::try_from(self.counts.outstanding()).unwrap_or(usize::MAX)
    }

    /// Flows that were added and not removed.
    #[must_use]
    pub fn flows(&self) -> usize {
        self.lanes.flows()
    }

    /// Exact counts since the start.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// The largest command in bytes that [`Pacer::enqueue`] takes.
    #[must_use]
    pub fn largest(&self) -> u32 {
        self.chain.largest()
    }

    #[inline]
    fn start(&mut self, waiting: Waiting, grants: Grants, now: Nanos) -> (u64, Permit) {
        self.counts.started += 1;
        self.counts.bytes_in_flight += u64::from(waiting.cost.bytes);
        (waiting.token, Permit::new(self.id, waiting.flow, waiting.cost, grants, now))
    }

    /// A lane became empty without anything having started: if nothing else waits, the policies
    /// must not keep anything for it.
    fn leave(&mut self, lane: u32) {
        self.order.leave(lane);
        if self.order.pick().is_none() {
            self.wakeup = None;
            self.chain.rest();
        }
    }
}
