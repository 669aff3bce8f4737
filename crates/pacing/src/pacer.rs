//! Admission control of one reactor.

mod counters;
mod parts;

use std::sync::atomic::{AtomicU32, Ordering};

pub use counters::PacerCounters;
pub use parts::{PacerConfig, PacerParts, TooLarge};

use crate::chain::{NotGranted, PolicyChain};
use crate::flow_queues::{FlowConfig, FlowId, FlowQueues, FlowStats, PopResult, QueuedCommand};
use crate::permit::{CommandOutcome, Permit, network_time};
use crate::policy::{AdmissionRequest, AnyPolicy, CompletedCommand, Grant, Grants};
use crate::scheduler::{AnyScheduler, Dispatched, Pause, Selection};
use crate::small_commands::SmallCommandBypass;
use crate::tenant::{Assigned, CommandClass, CoreHandle, TenantLimiters, Tenants};
use crate::{Charge, Cost, Nanos};

/// Per-core admission: flow queues, a scheduler and a chain of policies.
///
/// Call [`Pacer::next`] until it returns `None` at the end of every turn, whatever the turn did.
#[derive(Debug)]
pub struct Pacer {
    id: u32,
    flow_queues: FlowQueues,
    scheduler: AnyScheduler,
    chain: PolicyChain,
    /// Epoch of the policies in force, and earlier policies that have outstanding permits.
    policy_epoch: u32,
    retired: Vec<RetiredPolicies>,
    largest: u32,
    small: SmallCommandBypass,
    /// The limits of tenants.
    tenant_limiters: TenantLimiters,
    /// Flows whose device accepts nothing now.
    parked: Vec<u32>,
    wakeup: Option<Nanos>,
    counts: PacerCounters,
    /// Outstanding permits whose policies have reclaimed their grants.
    early: u64,
}

/// Epoch of a permit whose policies have reclaimed their grants; no set of policies has it.
const NO_EPOCH: u32 = u32::MAX;

/// Policies that were replaced while commands they had granted were in flight.
#[derive(Debug)]
struct RetiredPolicies {
    policy_epoch: u32,
    chain: PolicyChain,
    outstanding: u64,
}

/// Command that starts.
#[derive(Debug, Clone, Copy)]
struct Dispatch {
    waiting: QueuedCommand,
    device: u32,
    grants: Grants,
}

impl Pacer {
    /// Creates a pacer that serves flows round robin. A command starts when every policy grants it;
    /// without a policy it starts immediately.
    ///
    /// # Panics
    /// If there are more than [`MAX_POLICIES`](crate::policy::MAX_POLICIES) policies.
    #[must_use]
    pub fn new(policies: Vec<AnyPolicy>, config: PacerConfig) -> Self {
        Self::with_parts(PacerParts::round_robin(policies), config)
    }

    /// Creates a pacer with its own scheduler.
    ///
    /// # Panics
    /// As [`Pacer::new`].
    #[must_use]
    pub fn with_parts(parts: PacerParts, config: PacerConfig) -> Self {
        static NEXT_ID: AtomicU32 = AtomicU32::new(0);
        let chain = PolicyChain::new(parts.policies);
        Self {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            flow_queues: FlowQueues::new(config.flow_depth),
            scheduler: parts.scheduler,
            policy_epoch: 0,
            retired: Vec::new(),
            largest: chain.largest(),
            chain,
            small: SmallCommandBypass::new(parts.small),
            tenant_limiters: TenantLimiters::new(),
            parked: Vec::new(),
            wakeup: None,
            counts: PacerCounters::default(),
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
    pub fn replace(&mut self, parts: PacerParts) -> Result<(), TooLarge> {
        let mut chain = PolicyChain::new(parts.policies);
        if chain.largest() < self.largest && self.largest_waiting() > chain.largest() {
            return Err(TooLarge { bytes: self.largest_waiting(), largest: chain.largest() });
        }
        std::mem::swap(&mut self.chain, &mut chain);
        chain.return_unused();
        let earlier: u64 = self.retired.iter().map(|r| r.outstanding).sum();
        let with_data = self.counts.with_data_outstanding() - self.early;
        if with_data > earlier {
            self.retired.push(RetiredPolicies {
                policy_epoch: self.policy_epoch,
                chain,
                outstanding: with_data - earlier,
            });
        }
        self.policy_epoch = self.policy_epoch.wrapping_add(1) % NO_EPOCH;
        self.largest = self.chain.largest();
        self.small = SmallCommandBypass::new(parts.small);
        self.scheduler = parts.scheduler;
        for slot in self.parked.drain(..) {
            self.flow_queues.unpark(slot);
        }
        for (slot, config) in self.flow_queues.live() {
            self.scheduler.add(slot, config);
        }
        let backlogged: Vec<u32> = self.flow_queues.backlogged().collect();
        for slot in backlogged {
            if self.is_admitted(slot) {
                self.scheduler.flow_backlogged(slot, Pause::Idle);
            }
        }
        self.wakeup = None;
        Ok(())
    }

    /// Adds a flow. Only this call, [`Pacer::remove_flow`] and [`Pacer::replace`] allocate.
    pub fn add_flow(&mut self, config: FlowConfig) -> FlowId {
        let flow = self.flow_queues.add(config);
        self.scheduler.add(flow.slot(), self.flow_queues.config(flow.slot()));
        self.parked.reserve(self.flow_queues.flows());
        flow
    }

    /// Changes the weight of a flow (0 counts as 1); no effect on one that was removed.
    pub fn set_weight(&mut self, flow: FlowId, weight: u16) {
        if self.flow_queues.is_live(flow) {
            self.flow_queues.set_weight(flow, weight);
            self.scheduler.set_weight(flow.slot(), weight.max(1));
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
        core: &CoreHandle,
    ) -> Result<(), TooLarge> {
        if !self.flow_queues.is_live(flow) {
            return Ok(());
        }
        let slot = flow.slot();
        let bytes = self
            .flow_queues
            .largest_of(flow)
            .max(self.tenant_limiters.survey(slot, &self.flow_queues).1);
        let largest = tenants.host.map_or(u32::MAX, |host| host.largest());
        if bytes > largest {
            return Err(TooLarge { bytes, largest });
        }
        let was_gated = self.flow_queues.is_limited(slot);
        let assigned = self.tenant_limiters.assign(slot, tenants, core, &mut self.flow_queues);
        let Assigned::Changed { mut no_data, mut small, left_order, has_any } = assigned else {
            return Ok(());
        };
        let has_any_waiting = !self.flow_queues.list(slot).is_empty();
        if !self.flow_queues.is_parked(slot) && if was_gated { left_order } else { has_any_waiting }
        {
            self.scheduler.flow_idle(slot, Pause::Idle);
        }
        self.flow_queues.set_limited(slot, has_any);
        if has_any {
            while !was_gated
                && let Some((waiting, charge)) = self.flow_queues.remove_small(|w| w.flow == flow)
            {
                self.tenant_limiters.enqueue(
                    &mut self.flow_queues,
                    CommandClass::Small,
                    waiting,
                    charge,
                );
            }
            return Ok(());
        }
        while !no_data.is_empty() {
            let (waiting, charge) = self.flow_queues.pop_front(&mut no_data);
            self.flow_queues.push_no_data(waiting, charge);
        }
        while !small.is_empty() {
            let (waiting, charge) = self.flow_queues.pop_front(&mut small);
            self.flow_queues.push_small(waiting, charge);
        }
        if has_any_waiting && !self.flow_queues.is_parked(slot) {
            self.scheduler.flow_backlogged(slot, Pause::Idle);
        }
        Ok(())
    }

    /// Removes a flow and returns the tokens of its waiting commands. Its commands in flight
    /// continue, and their permits are released as usual.
    pub fn remove_flow(&mut self, flow: FlowId) -> Vec<u64> {
        if !self.flow_queues.is_live(flow) {
            return Vec::new();
        }
        let limited = self.flow_queues.is_limited(flow.slot());
        let (mut tokens, left_order) =
            self.tenant_limiters.remove(flow.slot(), &mut self.flow_queues);
        let (more, had_any) = self.flow_queues.drain(flow);
        tokens.extend(more);
        self.counts.cancelled += tokens.len() as u64;
        if if limited { left_order } else { had_any } {
            self.emptied(flow.slot());
        }
        self.flow_queues.unpark(flow.slot());
        self.parked.retain(|slot| *slot != flow.slot());
        self.scheduler.remove(flow.slot());
        self.flow_queues.remove(flow);
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
        let waiting = QueuedCommand { token, cost, flow };
        if self.flow_queues.is_limited(flow.slot()) {
            self.enqueue_limited(waiting, charge)?;
        } else if cost.bytes == 0 {
            self.flow_queues.push_no_data(waiting, charge);
        } else if cost.bytes > self.largest {
            self.counts.too_large += 1;
            return Err(TooLarge { bytes: cost.bytes, largest: self.largest });
        } else if self.small.is_small(cost.bytes) {
            self.flow_queues.push_small(waiting, charge);
        } else if self.flow_queues.push(waiting, charge) && !self.flow_queues.is_parked(flow.slot())
        {
            self.scheduler.flow_backlogged(flow.slot(), Pause::Idle);
        }
        self.counts.enqueued = self.counts.enqueued.wrapping_add(1);
        Ok(())
    }

    /// Removes one waiting command. Returns false if no command of this flow waits under that
    /// token.
    pub fn cancel(&mut self, flow: FlowId, token: u64) -> bool {
        if self.flow_queues.is_live(flow) && self.flow_queues.is_limited(flow.slot()) {
            return self.cancel_limited(flow, token);
        }
        match self.flow_queues.cancel(flow, token) {
            None => return false,
            Some(PopResult::Unchanged) => self.settle(),
            Some(PopResult::Emptied) => self.emptied(flow.slot()),
        }
        self.counts.cancelled += 1;
        true
    }

    /// Returns the next command that may start, with its permit. Returns `None` when no command
    /// waits or none may start yet. A deferred command is not overtaken by later ones, however
    /// small. The exceptions are small commands by [`SmallCommandRule`](crate::SmallCommandRule)
    /// and, if only its device is not served, commands for other devices.
    // Always inlined: a permit returned through memory is read in larger pieces than it was
    // written. The reader would wait until each store reaches the cache.
    #[inline(always)]
    pub fn next(&mut self, now: Nanos) -> Option<(u64, Permit)> {
        if self.tenant_limiters.is_due(now) {
            self.tenant_limiters.look(&mut self.flow_queues, &mut self.scheduler, now);
        }
        let dispatch = if self.flow_queues.has_out_of_order() {
            self.out_of_order(now)?
        } else if let Some(selection) = self.scheduler.select(now) {
            match self.admit_first(selection, now) {
                Ok(dispatch) => dispatch,
                Err(not_granted) => self.on_not_granted(selection.slot, not_granted, now)?,
            }
        } else {
            self.nothing_starts();
            return None;
        };
        // The only construction, with all inputs in registers: see above.
        Some(self.start(dispatch, now))
    }

    /// Selects the next command when a command may bypass the flow queues.
    #[inline(never)]
    fn out_of_order(&mut self, now: Nanos) -> Option<Dispatch> {
        if let Some(waiting) = self.flow_queues.pop_no_data() {
            self.counts.started_without_data += 1;
            return Some(Dispatch { waiting, device: 0, grants: Grants::default() });
        }
        loop {
            let selection = self.scheduler.select(now);
            let small = match (self.flow_queues.first_small(), selection) {
                (Some(small), selection) if selection.is_none() || self.small.may_pass() => small,
                (_, Some(selection)) => {
                    return match self.admit_first(selection, now) {
                        Ok(dispatch) => Some(dispatch),
                        Err(not_granted) => self.on_not_granted(selection.slot, not_granted, now),
                    };
                }
                (_, None) => {
                    self.nothing_starts();
                    return None;
                }
            };
            let device = self.flow_queues.config(small.flow.slot()).device;
            let is_small = self.small.is_open();
            let request =
                AdmissionRequest { cost: small.cost, device, urgency: 0, load: 0, small: is_small };
            match self.chain.admit(request, now) {
                Ok(grants) | Err(NotGranted::GrantedOutOfOrder(grants)) => {
                    return Some(self.take_small(device, grants, now));
                }
                Err(NotGranted::ThisDevice) => self.requeue_small(),
                Err(NotGranted::Until(when)) => {
                    self.defer(when);
                    return None;
                }
            }
        }
    }

    /// Releases the permit of a command that has completed. [`Pacer::next`] starts the commands
    /// that this makes possible.
    #[inline(always)]
    pub fn release(&mut self, permit: Permit, outcome: CommandOutcome, now: Nanos) {
        #[cfg(debug_assertions)]
        assert_eq!(permit.pacer, self.id, "a permit goes back to the pacer it came from");
        let Permit { grants, started, mark, flow, cost, device, policy_epoch, .. } = permit;
        std::mem::forget(permit);
        self.counts.released = self.counts.released.wrapping_add(1);
        if cost.bytes == 0 {
            self.counts.released_without_data += 1;
            return;
        }
        let in_flight_ns = now.saturating_sub(started);
        let network = network_time(mark, started, now);
        let done = CompletedCommand { cost, device, outcome, started, network };
        if grants.tenant() != Grant::default() {
            self.tenant_limiters.release(grants.tenant(), cost.bytes, now);
        }
        let live = self.flow_queues.count_end(flow, cost.bytes, in_flight_ns);
        if policy_epoch == self.policy_epoch {
            if live {
                self.scheduler.on_complete(flow.slot(), done, now);
            }
            self.chain.release(done, grants, now);
            if !self.parked.is_empty() {
                self.unpark();
            }
        } else if policy_epoch == NO_EPOCH {
            self.early -= 1;
        } else {
            self.release_retired(&done.copy_fields(), grants, policy_epoch, now);
        }
    }

    /// Returns the grants of the policies and the scheduler before the command completes. The
    /// command waits for its host and delays no other one. The grants of its tenants stay until
    /// [`Pacer::release`]. Returns false if it was released early before, or if there is nothing to
    /// return.
    pub fn release_early(&mut self, permit: &mut Permit, now: Nanos) -> bool {
        #[cfg(debug_assertions)]
        assert_eq!(permit.pacer, self.id, "a permit goes back to the pacer it came from");
        let Permit { grants, started, flow, cost, device, policy_epoch, .. } = *permit;
        if cost.bytes == 0 || policy_epoch == NO_EPOCH {
            return false;
        }
        let done =
            CompletedCommand { cost, device, outcome: CommandOutcome::Failed, started, network: 0 };
        permit.policy_epoch = NO_EPOCH;
        self.early += 1;
        if policy_epoch == self.policy_epoch {
            if self.flow_queues.is_live(flow) {
                self.scheduler.on_complete(flow.slot(), done, now);
            }
            self.chain.release(done, grants, now);
            self.unpark();
        } else {
            self.release_retired(&done.copy_fields(), grants, policy_epoch, now);
        }
        true
    }

    /// Starts a turn at `now`, `after` ns after the start of the last one; 0 if the core slept in
    /// between. A long gap means that other threads had the CPU, or that the last turn had much to
    /// do. A core that never calls this counts as never preempted.
    #[inline]
    pub fn on_turn(&mut self, now: Nanos, after: Nanos) {
        if self.counts.waiting() > 0 {
            self.chain.on_turn(now, after);
        }
    }

    /// Returns when to call [`Pacer::next`] again if nothing else happens. `None` if only a release
    /// can help, or if nothing waits. The result is valid after `next` returned `None`.
    #[must_use]
    pub fn next_wakeup(&self) -> Option<Nanos> {
        match (self.wakeup, self.tenant_limiters.wakeup()) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        }
    }

    /// Returns whether permits must be held until the data has left the machine; see
    /// [`AdmissionPolicy::needs_network_times`](crate::AdmissionPolicy::needs_network_times).
    #[must_use]
    pub fn needs_network_times(&self) -> bool {
        self.chain.needs_network_times()
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
        self.flow_queues.flows()
    }

    /// Returns exact counters since the start. Reads every flow, so it is for reports.
    #[must_use]
    pub fn counts(&self) -> PacerCounters {
        PacerCounters { bytes_in_flight: self.flow_queues.bytes_in_flight(), ..self.counts }
    }

    /// Returns the statistics of one flow; `None` if it was removed. Walks the waiting commands, so
    /// it is for reports.
    #[must_use]
    pub fn flow_stats(&self, flow: FlowId) -> Option<FlowStats> {
        let mut stats = self.flow_queues.stats(flow)?;
        let (not_passed, _) = self.tenant_limiters.survey(flow.slot(), &self.flow_queues);
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
    fn admit_first(&mut self, selection: Selection, now: Nanos) -> Result<Dispatch, NotGranted> {
        let Selection { slot, urgency, load } = selection;
        let first = self.flow_queues.first(slot);
        let (cost, device) = (first.cost(), first.device());
        let grants = self
            .chain
            .admit(AdmissionRequest { cost, device, urgency, load, small: false }, now)?;
        let limited = first.is_limited();
        let (waiting, emptied) = first.start();
        self.scheduler.on_dispatch(slot, waiting.cost.bytes, Dispatched::Selected, now);
        Ok(self.dispatched_head(slot, Dispatch { waiting, device, grants }, emptied, limited))
    }

    /// Starts the first command of this flow out of order.
    #[inline(never)]
    fn take_out_of_turn(&mut self, slot: u32, grants: Grants, now: Nanos) -> Dispatch {
        let first = self.flow_queues.first(slot);
        let (device, limited) = (first.device(), first.is_limited());
        let (waiting, emptied) = first.start();
        self.scheduler.on_dispatch(slot, waiting.cost.bytes, Dispatched::OutOfOrder, now);
        self.dispatched_head(slot, Dispatch { waiting, device, grants }, emptied, limited)
    }

    /// Updates the state after the first command of this flow has started; `emptied` if the queue
    /// is now empty.
    #[inline(always)]
    fn dispatched_head(
        &mut self,
        slot: u32,
        mut dispatch: Dispatch,
        emptied: bool,
        limited: bool,
    ) -> Dispatch {
        if emptied || limited {
            self.suspend_or_idle(slot, emptied);
        }
        if limited {
            self.tenant_limiters.on_dispatch(
                slot,
                CommandClass::Bulk,
                !emptied,
                &mut dispatch.grants,
            );
        }
        self.small.large_started(dispatch.waiting.cost.bytes);
        dispatch
    }

    /// Takes a flow out of the scheduler: its queue is empty, or the next command has to pass the
    /// limits of its tenants first.
    #[inline(never)]
    fn suspend_or_idle(&mut self, slot: u32, emptied: bool) {
        if emptied {
            self.scheduler.flow_idle(slot, Pause::Idle);
        } else {
            self.scheduler.flow_idle(slot, Pause::Suspended);
        }
    }

    /// Handles a first command that starts out of order or may not start. If its device is the
    /// reason, the next flow may start.
    #[inline(never)]
    fn on_not_granted(
        &mut self,
        mut slot: u32,
        mut not_granted: NotGranted,
        now: Nanos,
    ) -> Option<Dispatch> {
        loop {
            match not_granted {
                NotGranted::GrantedOutOfOrder(grants) => {
                    return Some(self.take_out_of_turn(slot, grants, now));
                }
                NotGranted::Until(when) => {
                    self.defer(when);
                    return None;
                }
                NotGranted::ThisDevice => {}
            }
            self.scheduler.flow_idle(slot, Pause::Idle);
            self.flow_queues.park(slot);
            self.parked.push(slot);
            self.counts.deferred += 1;
            let Some(next) = self.scheduler.select(now) else {
                self.nothing_starts();
                return None;
            };
            match self.admit_first(next, now) {
                Ok(dispatch) => return Some(dispatch),
                Err(again) => (slot, not_granted) = (next.slot, again),
            }
        }
    }

    /// Records that no waiting command can start.
    #[inline(never)]
    fn nothing_starts(&mut self) {
        self.wakeup = None;
        self.chain.return_unused();
        if self.tenant_limiters.is_touched() {
            self.tenant_limiters.return_unused();
        }
    }

    #[inline]
    fn defer(&mut self, until: Option<Nanos>) {
        self.counts.deferred += 1;
        self.wakeup = until;
        if self.tenant_limiters.is_touched() {
            self.tenant_limiters.return_unused();
        }
    }

    /// Queues a command of a flow with limits: it waits for them first, in the queue of its class.
    #[inline(never)]
    fn enqueue_limited(&mut self, waiting: QueuedCommand, charge: Charge) -> Result<(), TooLarge> {
        let (flow, bytes) = (waiting.flow, waiting.cost.bytes);
        assert!(
            self.flow_queues.is_live(flow),
            "{flow:?} was removed: nothing may be enqueued on it"
        );
        let largest = self.largest.min(self.tenant_limiters.largest(flow.slot()));
        if bytes > largest {
            self.counts.too_large += 1;
            return Err(TooLarge { bytes, largest });
        }
        if bytes == 0 && charge == Charge::NONE {
            self.flow_queues.push_no_data(waiting, charge);
            return Ok(());
        }
        let kind = match bytes {
            0 => CommandClass::NoData,
            _ if self.small.is_small(bytes) => CommandClass::Small,
            _ => CommandClass::Bulk,
        };
        self.tenant_limiters.enqueue(&mut self.flow_queues, kind, waiting, charge);
        Ok(())
    }

    #[inline(never)]
    fn cancel_limited(&mut self, flow: FlowId, token: u64) -> bool {
        let Some(leaves_order) = self.tenant_limiters.cancel(flow, token, &mut self.flow_queues)
        else {
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
    fn is_admitted(&self, slot: u32) -> bool {
        !self.flow_queues.is_limited(slot) || self.tenant_limiters.bulk_is_admitted(slot)
    }

    /// Moves the first small command to the queue of its flow because its device is busy. There it
    /// delays no command for another device.
    #[cold]
    fn requeue_small(&mut self) {
        let (waiting, charge) = self.flow_queues.pop_small();
        let slot = waiting.flow.slot();
        if self.flow_queues.is_limited(slot) {
            self.tenant_limiters.cancel_small(waiting, charge);
            self.tenant_limiters.enqueue(
                &mut self.flow_queues,
                CommandClass::Bulk,
                waiting,
                charge,
            );
        } else if self.flow_queues.push(waiting, charge) && !self.flow_queues.is_parked(slot) {
            self.scheduler.flow_backlogged(slot, Pause::Idle);
        }
    }

    #[inline]
    fn take_small(&mut self, device: u32, mut grants: Grants, now: Nanos) -> Dispatch {
        let (waiting, _) = self.flow_queues.pop_small();
        if self.flow_queues.is_limited(waiting.flow.slot()) {
            self.tenant_limiters.on_dispatch(
                waiting.flow.slot(),
                CommandClass::Small,
                false,
                &mut grants,
            );
        }
        self.scheduler.on_dispatch(waiting.flow.slot(), waiting.cost.bytes, Dispatched::Small, now);
        self.small.small_started(waiting.cost.bytes);
        self.counts.started_small += 1;
        self.flow_queues.count_start(waiting.flow, waiting.cost.bytes);
        Dispatch { waiting, device, grants }
    }

    #[inline(always)]
    fn start(&mut self, dispatch: Dispatch, now: Nanos) -> (u64, Permit) {
        let Dispatch { waiting, device, grants } = dispatch;
        let counts = &mut self.counts;
        counts.started = counts.started.wrapping_add(1);
        (waiting.token, Permit::new(self.id, self.policy_epoch, waiting, device, grants, now))
    }

    /// Returns the flows of a device that may be served again to the scheduler.
    #[inline(never)]
    fn unpark(&mut self) {
        while let Some(slot) = self.parked.pop() {
            if self.flow_queues.unpark(slot) && self.is_admitted(slot) {
                self.scheduler.flow_backlogged(slot, Pause::Idle);
            }
        }
    }

    #[cold]
    fn release_retired(
        &mut self,
        done: &CompletedCommand,
        grants: Grants,
        policy_epoch: u32,
        now: Nanos,
    ) {
        let Some(at) = self.retired.iter().position(|retired| retired.policy_epoch == policy_epoch)
        else {
            return;
        };
        let retired = &mut self.retired[at];
        retired.chain.release(*done, grants, now);
        retired.chain.return_unused();
        retired.outstanding -= 1;
        if retired.outstanding == 0 {
            self.retired.swap_remove(at);
        }
    }

    fn largest_waiting(&self) -> u32 {
        self.flow_queues
            .largest_waiting()
            .max(self.tenant_limiters.largest_waiting(&self.flow_queues))
    }

    /// Handles a flow queue that became empty without a start.
    fn emptied(&mut self, slot: u32) {
        if !self.flow_queues.is_parked(slot) {
            self.scheduler.flow_idle(slot, Pause::Idle);
        }
        self.settle();
    }

    /// Releases credit that the policies keep, if nothing waits any more.
    fn settle(&mut self) {
        // The argument does not matter: no time has passed.
        if self.scheduler.select(Nanos::MIN).is_none() && self.flow_queues.first_small().is_none() {
            self.wakeup = None;
            self.chain.return_unused();
        }
    }
}
