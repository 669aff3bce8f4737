//! Admission control of one reactor.

use std::sync::atomic::{AtomicU32, Ordering};

use thiserror::Error;

use crate::chain::{Chain, Exception};
use crate::lanes::{FlowConfig, FlowId, FlowStats, LaneState, Lanes, Waiting};
use crate::order::{self, Order, Pick, RoundRobin};
use crate::permit::{Outcome, Permit, network_part};
use crate::policy::{Ask, Done, Grant, Grants, Policy};
use crate::small::{SmallLane, SmallRule};
use crate::tenant::{Assigned, Core, Gates, Kind, Tenants};
use crate::{Charge, Cost, Nanos};

/// Per-core admission: flow queues, a scheduler and a chain of policies.
///
/// Call [`Pacer::next`] until it returns `None` at the end of every turn, whatever the turn did.
#[derive(Debug)]
pub struct Pacer {
    id: u32,
    lanes: Lanes,
    order: order::Known,
    chain: Chain,
    /// Epoch of the policies in force, and earlier policies that have outstanding permits.
    era: u32,
    retired: Vec<Retired>,
    largest: u32,
    small: SmallLane,
    /// The limits of tenants.
    gates: Gates,
    /// Flows whose device accepts nothing now.
    parked: Vec<u32>,
    wakeup: Option<Nanos>,
    counts: Counts,
    /// Outstanding permits whose policies have reclaimed their grants.
    early: u64,
}

/// Epoch of a permit whose policies have reclaimed their grants; no set of policies has it.
const NO_ERA: u32 = u32::MAX;

/// Policies that were replaced while commands they had granted were in flight.
#[derive(Debug)]
struct Retired {
    era: u32,
    chain: Chain,
    outstanding: u64,
}

/// Command that starts.
#[derive(Debug, Clone, Copy)]
struct Chosen {
    waiting: Waiting,
    device: u32,
    grants: Grants,
}

/// Policies and scheduler of one core.
#[derive(Debug)]
pub struct Parts {
    /// Every one must grant; at most [`MAX_POLICIES`](crate::policy::MAX_POLICIES).
    pub policies: Vec<Box<dyn Policy>>,
    /// Scheduler of the flows.
    pub order: Box<dyn Order>,
    /// Rule for commands that bypass the scheduler.
    pub small: SmallRule,
}

impl Parts {
    /// Combines these policies with round robin and no bypass for small commands.
    #[must_use]
    pub fn in_turn(policies: Vec<Box<dyn Policy>>) -> Self {
        Self { policies, order: Box::new(RoundRobin::default()), small: SmallRule::Never }
    }
}

/// Sizes of a pacer.
#[derive(Debug, Clone, Copy)]
pub struct PacerConfig {
    /// Commands that one flow can have waiting: its queue depth, times the queues that share it.
    /// Adding a flow reserves room for this number. A flow with more waiting commands makes the
    /// reservation grow.
    pub flow_depth: usize,
}

impl Default for PacerConfig {
    fn default() -> Self {
        Self { flow_depth: 128 }
    }
}

/// Rejection of a command that could never start: it costs more than the policies can ever grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error(
    "a command of {bytes} bytes can never start: at most {largest} bytes are granted at once \
     (lower max-transfer or raise the budget)"
)]
pub struct TooLarge {
    /// Cost of the command in bytes.
    pub bytes: u32,
    /// The most that is granted to one command, in bytes.
    pub largest: u32,
}

/// Exact counters since the pacer was created; they count commands unless stated otherwise.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Accepted by [`Pacer::enqueue`].
    pub enqueued: u64,
    /// Rejected as [`TooLarge`].
    pub too_large: u64,
    /// Removed before they started, by [`Pacer::cancel`] or [`Pacer::remove_flow`].
    pub cancelled: u64,
    /// Started: permits issued.
    pub started: u64,
    /// Started commands that had no data.
    pub started_without_data: u64,
    /// Started commands that were small and bypassed others.
    pub started_small: u64,
    /// Completed: permits released.
    pub released: u64,
    /// Completed commands that had no data.
    pub released_without_data: u64,
    /// Bytes in flight now.
    pub bytes_in_flight: u64,
    /// Times that [`Pacer::next`] found a waiting command that could not start yet.
    pub held_back: u64,
}

impl Counts {
    /// Returns the number of waiting commands.
    #[must_use]
    pub fn waiting(&self) -> u64 {
        self.enqueued - self.cancelled - self.started
    }

    /// Returns the number of commands in flight.
    #[must_use]
    pub fn outstanding(&self) -> u64 {
        self.started - self.released
    }

    fn with_data_outstanding(&self) -> u64 {
        self.outstanding() - (self.started_without_data - self.released_without_data)
    }
}

impl Pacer {
    /// Creates a pacer that serves flows round robin. A command starts when every policy grants it;
    /// without a policy it starts immediately.
    ///
    /// # Panics
    /// If there are more than [`MAX_POLICIES`](crate::policy::MAX_POLICIES) policies.
    #[must_use]
    pub fn new(policies: Vec<Box<dyn Policy>>, config: PacerConfig) -> Self {
        Self::with_parts(Parts::in_turn(policies), config)
    }

    /// Creates a pacer with its own scheduler.
    ///
    /// # Panics
    /// As [`Pacer::new`].
    #[must_use]
    pub fn with_parts(parts: Parts, config: PacerConfig) -> Self {
        static NEXT_ID: AtomicU32 = AtomicU32::new(0);
        let chain = Chain::new(parts.policies);
        Self {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            lanes: Lanes::new(config.flow_depth),
            order: order::Known::of(parts.order),
            era: 0,
            retired: Vec::new(),
            largest: chain.largest(),
            chain,
            small: SmallLane::new(parts.small),
            gates: Gates::new(),
            parked: Vec::new(),
            wakeup: None,
            counts: Counts::default(),
            early: 0,
        }
    }

    /// Replaces the policies and the scheduler while serving. Waiting commands continue to wait in
    /// the new scheduler. An outstanding permit is released to the policies that granted it. Until
    /// all of those are released, the bytes in flight are bounded by the sum of the old and the new
    /// bound.
    ///
    /// # Errors
    /// [`TooLarge`] if an accepted command could never start under the new policies; then nothing
    /// has changed.
    pub fn replace(&mut self, parts: Parts) -> Result<(), TooLarge> {
        let mut chain = Chain::new(parts.policies);
        if chain.largest() < self.largest && self.largest_waiting() > chain.largest() {
            return Err(TooLarge { bytes: self.largest_waiting(), largest: chain.largest() });
        }
        std::mem::swap(&mut self.chain, &mut chain);
        chain.rest();
        let earlier: u64 = self.retired.iter().map(|r| r.outstanding).sum();
        let with_data = self.counts.with_data_outstanding() - self.early;
        if with_data > earlier {
            self.retired.push(Retired { era: self.era, chain, outstanding: with_data - earlier });
        }
        self.era = self.era.wrapping_add(1) % NO_ERA;
        self.largest = self.chain.largest();
        self.small = SmallLane::new(parts.small);
        self.order = order::Known::of(parts.order);
        for lane in self.parked.drain(..) {
            self.lanes.unpark(lane);
        }
        for (lane, config) in self.lanes.live() {
            self.order.add(lane, config);
        }
        let backlogged: Vec<u32> = self.lanes.backlogged().collect();
        for lane in backlogged {
            if self.has_passed(lane) {
                self.order.join(lane);
            }
        }
        self.wakeup = None;
        Ok(())
    }

    /// Adds a flow. Only this call, [`Pacer::remove_flow`] and [`Pacer::replace`] allocate.
    pub fn add_flow(&mut self, config: FlowConfig) -> FlowId {
        let flow = self.lanes.add(config);
        self.order.add(flow.slot(), self.lanes.config(flow.slot()));
        self.parked.reserve(self.lanes.flows());
        flow
    }

    /// Changes the weight of a flow (0 counts as 1); no effect on one that was removed.
    pub fn set_weight(&mut self, flow: FlowId, weight: u16) {
        if self.lanes.is_live(flow) {
            self.lanes.set_weight(flow, weight);
            self.order.set_weight(flow.slot(), weight.max(1));
        }
    }

    /// Sets the tenants of a flow, with their current limits. Waiting commands continue to wait,
    /// under the new limits. Commands in flight count where they were counted when they started.
    /// Repeating a call is cheap.
    ///
    /// # Errors
    /// [`TooLarge`] if an accepted command could never start; then nothing has changed.
    ///
    /// # Panics
    /// If `core` is not below the number of cores that the tenants were made for.
    pub fn set_tenants(
        &mut self,
        flow: FlowId,
        tenants: Tenants<'_>,
        core: &Core,
    ) -> Result<(), TooLarge> {
        if !self.lanes.is_live(flow) {
            return Ok(());
        }
        let slot = flow.slot();
        let bytes = self.lanes.largest_of(flow).max(self.gates.survey(slot, &self.lanes).1);
        let largest = tenants.host.map_or(u32::MAX, |host| host.largest());
        if bytes > largest {
            return Err(TooLarge { bytes, largest });
        }
        let was_gated = self.lanes.is_gated(slot);
        let assigned = self.gates.assign(slot, tenants, core, &mut self.lanes);
        let Assigned::Changed { mut express, mut small, left_order, has_any } = assigned else {
            return Ok(());
        };
        let has_any_waiting = !self.lanes.list(slot).is_empty();
        if !self.lanes.is_parked(slot) && if was_gated { left_order } else { has_any_waiting } {
            self.order.leave(slot);
        }
        self.lanes.set_gated(slot, has_any);
        if has_any {
            while !was_gated
                && let Some((waiting, charge)) = self.lanes.remove_small(|w| w.flow == flow)
            {
                self.gates.enqueue(&mut self.lanes, Kind::Small, waiting, charge);
            }
            return Ok(());
        }
        while !express.is_empty() {
            let (waiting, charge) = self.lanes.pop_front(&mut express);
            self.lanes.push_express(waiting, charge);
        }
        while !small.is_empty() {
            let (waiting, charge) = self.lanes.pop_front(&mut small);
            self.lanes.push_small(waiting, charge);
        }
        if has_any_waiting && !self.lanes.is_parked(slot) {
            self.order.join(slot);
        }
        Ok(())
    }

    /// Removes a flow and returns the tokens of its waiting commands. Its commands in flight
    /// continue, and their permits are released as usual.
    pub fn remove_flow(&mut self, flow: FlowId) -> Vec<u64> {
        if !self.lanes.is_live(flow) {
            return Vec::new();
        }
        let gated = self.lanes.is_gated(flow.slot());
        let (mut tokens, left_order) = self.gates.remove(flow.slot(), &mut self.lanes);
        let (more, had_any) = self.lanes.drain(flow);
        tokens.extend(more);
        self.counts.cancelled += tokens.len() as u64;
        if if gated { left_order } else { had_any } {
            self.emptied(flow.slot());
        }
        self.lanes.unpark(flow.slot());
        self.parked.retain(|lane| *lane != flow.slot());
        self.order.remove(flow.slot());
        self.lanes.remove(flow);
        self.settle();
        tokens
    }

    /// Queues a command. The next call of [`Pacer::next`] starts a command without data.
    ///
    /// # Errors
    /// [`TooLarge`] if it could never start.
    ///
    /// # Panics
    /// If the flow was removed.
    #[inline(always)]
    pub fn enqueue(&mut self, flow: FlowId, cost: Cost, token: u64) -> Result<(), TooLarge> {
        let charge = if cost.bytes == 0 { Charge::NONE } else { Charge::io(cost.bytes) };
        self.enqueue_charged(flow, cost, charge, token)
    }

    /// As [`Pacer::enqueue`], for a command whose charge against tenant limits differs from its
    /// buffer size. The charge is lower for a command with a second buffer to compare with, and
    /// higher for in-capsule data. A charged command waits for those limits; without a buffer it
    /// waits for nothing else.
    ///
    /// # Errors
    /// As [`Pacer::enqueue`].
    ///
    /// # Panics
    /// As [`Pacer::enqueue`].
    #[inline(always)]
    pub fn enqueue_charged(
        &mut self,
        flow: FlowId,
        cost: Cost,
        charge: Charge,
        token: u64,
    ) -> Result<(), TooLarge> {
        let waiting = Waiting { token, cost, flow };
        if self.lanes.is_gated(flow.slot()) {
            self.enqueue_gated(waiting, charge)?;
        } else if cost.bytes == 0 {
            self.lanes.push_express(waiting, charge);
        } else if cost.bytes > self.largest {
            self.counts.too_large += 1;
            return Err(TooLarge { bytes: cost.bytes, largest: self.largest });
        } else if self.small.is_small(cost.bytes) {
            self.lanes.push_small(waiting, charge);
        } else if self.lanes.push(waiting, charge) && !self.lanes.is_parked(flow.slot()) {
            self.order.join(flow.slot());
        }
        self.counts.enqueued = self.counts.enqueued.wrapping_add(1);
        Ok(())
    }

    /// Removes one waiting command. Returns false if no command of this flow waits under that
    /// token.
    pub fn cancel(&mut self, flow: FlowId, token: u64) -> bool {
        if self.lanes.is_live(flow) && self.lanes.is_gated(flow.slot()) {
            return self.cancel_gated(flow, token);
        }
        match self.lanes.cancel(flow, token) {
            None => return false,
            Some(LaneState::Unchanged) => self.settle(),
            Some(LaneState::Emptied) => self.emptied(flow.slot()),
        }
        self.counts.cancelled += 1;
        true
    }

    /// Returns the next command that may start, with its permit. Returns `None` when no command
    /// waits or none may start yet. A deferred command is not overtaken by later ones, however
    /// small. The exceptions are small commands by [`SmallRule`] and, if only its device is not
    /// served, commands for other devices.
    // Always inlined: a permit returned through memory is read in larger pieces than it was
    // written. The reader would wait until each store reaches the cache.
    #[inline(always)]
    pub fn next(&mut self, now: Nanos) -> Option<(u64, Permit)> {
        if self.gates.is_due(now) {
            self.gates.look(&mut self.lanes, &mut self.order, now);
        }
        let chosen = if self.lanes.has_out_of_order() {
            self.out_of_order(now)?
        } else if let Some(pick) = self.order.pick(now) {
            match self.admit_first(pick, now) {
                Ok(chosen) => chosen,
                Err(exception) => self.on_exception(pick.lane, exception, now)?,
            }
        } else {
            self.nothing_starts();
            return None;
        };
        // The only construction, with all inputs in registers: see above.
        Some(self.start(chosen, now))
    }

    /// Selects the next command when a command may bypass the flow queues.
    #[inline(never)]
    fn out_of_order(&mut self, now: Nanos) -> Option<Chosen> {
        if let Some(waiting) = self.lanes.pop_express() {
            self.counts.started_without_data += 1;
            return Some(Chosen { waiting, device: 0, grants: Grants::default() });
        }
        loop {
            let pick = self.order.pick(now);
            let small = match (self.lanes.first_small(), pick) {
                (Some(small), pick) if pick.is_none() || self.small.may_pass() => small,
                (_, Some(pick)) => {
                    return match self.admit_first(pick, now) {
                        Ok(chosen) => Some(chosen),
                        Err(exception) => self.on_exception(pick.lane, exception, now),
                    };
                }
                (_, None) => {
                    self.nothing_starts();
                    return None;
                }
            };
            let device = self.lanes.config(small.flow.slot()).device;
            let is_small = self.small.is_open();
            let ask = Ask { cost: small.cost, device, urgency: 0, load: 0, small: is_small };
            match self.chain.admit(ask, now) {
                Ok(grants) | Err(Exception::OutOfTurn(grants)) => {
                    return Some(self.take_small(device, grants, now));
                }
                Err(Exception::ThisDevice) => self.small_to_its_lane(),
                Err(Exception::Until(when)) => {
                    self.hold_back(when);
                    return None;
                }
            }
        }
    }

    /// Releases the permit of a command that has completed. [`Pacer::next`] starts the commands
    /// that this makes possible.
    #[inline(always)]
    pub fn release(&mut self, permit: Permit, outcome: Outcome, now: Nanos) {
        #[cfg(debug_assertions)]
        assert_eq!(permit.pacer, self.id, "a permit goes back to the pacer it came from");
        let Permit { grants, started, mark, flow, cost, device, era, .. } = permit;
        std::mem::forget(permit);
        self.counts.released = self.counts.released.wrapping_add(1);
        if cost.bytes == 0 {
            self.counts.released_without_data += 1;
            return;
        }
        let held = now.saturating_sub(started);
        let network = network_part(mark, started, now);
        let done = Done { cost, device, outcome, started, network };
        if grants.tenant() != Grant::default() {
            self.gates.release(grants.tenant(), cost.bytes, now);
        }
        let live = self.lanes.count_end(flow, cost.bytes, held);
        if era == self.era {
            if live {
                self.order.returned(flow.slot(), done, now);
            }
            self.chain.release(done, grants, now);
            if !self.parked.is_empty() {
                self.unpark();
            }
        } else if era == NO_ERA {
            self.early -= 1;
        } else {
            self.release_retired(&done.apart(), grants, era, now);
        }
    }

    /// Returns the grants of the policies and the scheduler before the command completes. The
    /// command waits for its host and delays no other one. The grants of its tenants stay until
    /// [`Pacer::release`]. Returns false if it was released early before, or if there is nothing to
    /// return.
    pub fn release_early(&mut self, permit: &mut Permit, now: Nanos) -> bool {
        #[cfg(debug_assertions)]
        assert_eq!(permit.pacer, self.id, "a permit goes back to the pacer it came from");
        let Permit { grants, started, flow, cost, device, era, .. } = *permit;
        if cost.bytes == 0 || era == NO_ERA {
            return false;
        }
        let done = Done { cost, device, outcome: Outcome::Failed, started, network: 0 };
        permit.era = NO_ERA;
        self.early += 1;
        if era == self.era {
            if self.lanes.is_live(flow) {
                self.order.returned(flow.slot(), done, now);
            }
            self.chain.release(done, grants, now);
            self.unpark();
        } else {
            self.release_retired(&done.apart(), grants, era, now);
        }
        true
    }

    /// Starts a turn at `now`, `after` ns after the start of the last one; 0 if the core slept in
    /// between. A long gap means that other threads had the CPU, or that the last turn had much to
    /// do. A core that never calls this counts as never preempted.
    #[inline]
    pub fn turn(&mut self, now: Nanos, after: Nanos) {
        if self.counts.waiting() > 0 {
            self.chain.turn(now, after);
        }
    }

    /// Returns when to call [`Pacer::next`] again if nothing else happens. `None` if only a release
    /// can help, or if nothing waits. The result is valid after `next` returned `None`.
    #[must_use]
    pub fn next_wakeup(&self) -> Option<Nanos> {
        match (self.wakeup, self.gates.wakeup()) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        }
    }

    /// Returns the number of waiting commands.
    #[must_use]
    pub fn waiting(&self) -> usize {
        usize::try_from(self.counts.waiting()).unwrap_or(usize::MAX)
    }

    /// Returns the number of commands in flight: outstanding permits.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        usize::try_from(self.counts.outstanding()).unwrap_or(usize::MAX)
    }

    /// Returns the number of flows that were added and not removed.
    #[must_use]
    pub fn flows(&self) -> usize {
        self.lanes.flows()
    }

    /// Returns exact counters since the start. Reads every flow, so it is for reports.
    #[must_use]
    pub fn counts(&self) -> Counts {
        Counts { bytes_in_flight: self.lanes.bytes_in_flight(), ..self.counts }
    }

    /// Returns the statistics of one flow; `None` if it was removed. Walks the waiting commands, so
    /// it is for reports.
    #[must_use]
    pub fn flow_stats(&self, flow: FlowId) -> Option<FlowStats> {
        let mut stats = self.lanes.stats(flow)?;
        let (not_passed, _) = self.gates.survey(flow.slot(), &self.lanes);
        stats.waiting = stats.waiting.saturating_add(u32::try_from(not_passed).unwrap_or(u32::MAX));
        Some(stats)
    }

    /// Returns the largest command in bytes that [`Pacer::enqueue`] accepts.
    #[must_use]
    pub fn largest(&self) -> u32 {
        self.largest
    }

    /// Admits the first command of the selected flow if the chain simply grants it.
    #[inline(always)]
    fn admit_first(&mut self, pick: Pick, now: Nanos) -> Result<Chosen, Exception> {
        let Pick { lane, urgency, load } = pick;
        let first = self.lanes.first(lane);
        let (cost, device) = (first.cost(), first.device());
        let grants = self.chain.admit(Ask { cost, device, urgency, load, small: false }, now)?;
        let gated = first.is_gated();
        let (waiting, emptied) = first.start();
        self.order.started(lane, waiting.cost.bytes, now);
        Ok(self.took_first(lane, Chosen { waiting, device, grants }, emptied, gated))
    }

    /// Starts the first command of this flow out of order.
    #[inline(never)]
    fn take_out_of_turn(&mut self, lane: u32, grants: Grants, now: Nanos) -> Chosen {
        let first = self.lanes.first(lane);
        let (device, gated) = (first.device(), first.is_gated());
        let (waiting, emptied) = first.start();
        self.order.started_out_of_turn(lane, waiting.cost.bytes, now);
        self.took_first(lane, Chosen { waiting, device, grants }, emptied, gated)
    }

    /// Updates the state after the first command of this flow has started; `emptied` if the queue
    /// is now empty.
    #[inline(always)]
    fn took_first(&mut self, lane: u32, mut chosen: Chosen, emptied: bool, gated: bool) -> Chosen {
        if emptied || gated {
            self.step_out(lane, emptied);
        }
        if gated {
            self.gates.started(lane, Kind::Lane, !emptied, &mut chosen.grants);
        }
        self.small.large_started(chosen.waiting.cost.bytes);
        chosen
    }

    /// Takes a flow out of the scheduler: its queue is empty, or the next command has to pass the
    /// limits of its tenants first.
    #[inline(never)]
    fn step_out(&mut self, lane: u32, emptied: bool) {
        if emptied {
            self.order.leave(lane);
        } else {
            self.order.step_aside(lane);
        }
    }

    /// Handles a first command that starts out of order or may not start. If its device is the
    /// reason, the next flow may start.
    #[inline(never)]
    fn on_exception(
        &mut self,
        mut lane: u32,
        mut exception: Exception,
        now: Nanos,
    ) -> Option<Chosen> {
        loop {
            match exception {
                Exception::OutOfTurn(grants) => {
                    return Some(self.take_out_of_turn(lane, grants, now));
                }
                Exception::Until(when) => {
                    self.hold_back(when);
                    return None;
                }
                Exception::ThisDevice => {}
            }
            self.order.leave(lane);
            self.lanes.park(lane);
            self.parked.push(lane);
            self.counts.held_back += 1;
            let Some(next) = self.order.pick(now) else {
                self.nothing_starts();
                return None;
            };
            match self.admit_first(next, now) {
                Ok(chosen) => return Some(chosen),
                Err(again) => (lane, exception) = (next.lane, again),
            }
        }
    }

    /// Records that no waiting command can start.
    #[inline(never)]
    fn nothing_starts(&mut self) {
        self.wakeup = None;
        self.chain.rest();
        if self.gates.is_touched() {
            self.gates.rest();
        }
    }

    #[inline]
    fn hold_back(&mut self, until: Option<Nanos>) {
        self.counts.held_back += 1;
        self.wakeup = until;
        if self.gates.is_touched() {
            self.gates.rest();
        }
    }

    /// Queues a command of a flow with limits: it waits for them first, in the queue of its class.
    #[inline(never)]
    fn enqueue_gated(&mut self, waiting: Waiting, charge: Charge) -> Result<(), TooLarge> {
        let (flow, bytes) = (waiting.flow, waiting.cost.bytes);
        assert!(self.lanes.is_live(flow), "{flow:?} was removed: nothing may be enqueued on it");
        let largest = self.largest.min(self.gates.largest(flow.slot()));
        if bytes > largest {
            self.counts.too_large += 1;
            return Err(TooLarge { bytes, largest });
        }
        if bytes == 0 && charge == Charge::NONE {
            self.lanes.push_express(waiting, charge);
            return Ok(());
        }
        let kind = match bytes {
            0 => Kind::Express,
            _ if self.small.is_small(bytes) => Kind::Small,
            _ => Kind::Lane,
        };
        self.gates.enqueue(&mut self.lanes, kind, waiting, charge);
        Ok(())
    }

    #[inline(never)]
    fn cancel_gated(&mut self, flow: FlowId, token: u64) -> bool {
        let Some(leaves_order) = self.gates.cancel(flow, token, &mut self.lanes) else {
            return false;
        };
        if leaves_order {
            self.emptied(flow.slot());
        } else {
            self.settle();
        }
        self.counts.cancelled += 1;
        true
    }

    /// Returns whether the first command of this flow waits only for the scheduler and the
    /// policies.
    fn has_passed(&self, lane: u32) -> bool {
        !self.lanes.is_gated(lane) || self.gates.lane_passed(lane)
    }

    /// Moves the first small command to the queue of its flow because its device is busy. There it
    /// delays no command for another device.
    #[cold]
    fn small_to_its_lane(&mut self) {
        let (waiting, charge) = self.lanes.pop_small();
        let slot = waiting.flow.slot();
        if self.lanes.is_gated(slot) {
            self.gates.take_back_small(waiting, charge);
            self.gates.enqueue(&mut self.lanes, Kind::Lane, waiting, charge);
        } else if self.lanes.push(waiting, charge) && !self.lanes.is_parked(slot) {
            self.order.join(slot);
        }
    }

    #[inline]
    fn take_small(&mut self, device: u32, mut grants: Grants, now: Nanos) -> Chosen {
        let (waiting, _) = self.lanes.pop_small();
        if self.lanes.is_gated(waiting.flow.slot()) {
            self.gates.started(waiting.flow.slot(), Kind::Small, false, &mut grants);
        }
        self.order.started_small(waiting.flow.slot(), waiting.cost.bytes, now);
        self.small.small_started(waiting.cost.bytes);
        self.counts.started_small += 1;
        self.lanes.count_start(waiting.flow, waiting.cost.bytes);
        Chosen { waiting, device, grants }
    }

    #[inline(always)]
    fn start(&mut self, chosen: Chosen, now: Nanos) -> (u64, Permit) {
        let Chosen { waiting, device, grants } = chosen;
        let counts = &mut self.counts;
        counts.started = counts.started.wrapping_add(1);
        (waiting.token, Permit::new(self.id, self.era, waiting, device, grants, now))
    }

    /// Returns the flows of a device that may be served again to the scheduler.
    #[inline(never)]
    fn unpark(&mut self) {
        while let Some(lane) = self.parked.pop() {
            if self.lanes.unpark(lane) && self.has_passed(lane) {
                self.order.join(lane);
            }
        }
    }

    #[cold]
    fn release_retired(&mut self, done: &Done, grants: Grants, era: u32, now: Nanos) {
        let Some(at) = self.retired.iter().position(|retired| retired.era == era) else { return };
        let retired = &mut self.retired[at];
        retired.chain.release(*done, grants, now);
        retired.chain.rest();
        retired.outstanding -= 1;
        if retired.outstanding == 0 {
            self.retired.swap_remove(at);
        }
    }

    fn largest_waiting(&self) -> u32 {
        self.lanes.largest_waiting().max(self.gates.largest_waiting(&self.lanes))
    }

    /// Handles a flow queue that became empty without a start.
    fn emptied(&mut self, lane: u32) {
        if !self.lanes.is_parked(lane) {
            self.order.leave(lane);
        }
        self.settle();
    }

    /// Releases credit that the policies keep, if nothing waits any more.
    fn settle(&mut self) {
        // The argument does not matter: no time has passed.
        if self.order.pick(Nanos::MIN).is_none() && self.lanes.first_small().is_none() {
            self.wakeup = None;
            self.chain.rest();
        }
    }
}
