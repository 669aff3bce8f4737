//! Tenant limiters of all flows on one core.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::sync::Arc;

use super::limited_flow::{
    ALL, CLASSES, ClassQueue, CommandClass, IN_FLIGHT, LIMITERS, LimitedFlow, LimiterState, NONE,
    PartialGrant, number, split,
};
use super::limiter::{BlockedUntil, LimitRequest, Limiter};
use super::{CoreHandle, Tenant, Tenants};
use crate::flow_queues::{FlowId, FlowQueues, List, QueuedCommand};
use crate::policy::{Grant, Grants};
use crate::scheduler::{AnyScheduler, Pause};
use crate::{Charge, Nanos};

/// Least bytes that a command adds to a start tag: the smallest buffer size.
const LEAST_STEP: u64 = 4096;
/// Start tags count fractions of a byte, so that dividing by a weight does not round them to 0. In
/// 64 bits they would overflow after some days at full rate.
const TAG_SHIFT: u32 = 10;

/// Limiters of one core and the flows that have them.
#[derive(Debug)]
pub(crate) struct TenantLimiters {
    /// By flow slot.
    limited_flows: Vec<Option<Box<LimitedFlow>>>,
    limiters: Vec<Option<Limiter>>,
    /// Queues that ask on the next call of [`TenantLimiters::look`].
    pending: VecDeque<u32>,
    /// Limiters that have waiting queues.
    closed: Vec<u32>,
    /// Limiters that may hold a reservation for a command that never comes.
    touched: Vec<u32>,
    /// Time of the last look, and time until the next; see [`TenantLimiters::is_due`].
    seen: Nanos,
    span: Nanos,
    wakeup: Option<Nanos>,
    /// The latest time that a caller passed.
    now: Nanos,
}

impl TenantLimiters {
    pub(crate) fn new() -> Self {
        Self {
            limited_flows: Vec::new(),
            limiters: Vec::new(),
            pending: VecDeque::new(),
            closed: Vec::new(),
            touched: Vec::new(),
            seen: 0,
            span: Nanos::MAX,
            wakeup: None,
            now: 0,
        }
    }

    /// Returns whether [`TenantLimiters::look`] has work. A clock that jumps back makes it due,
    /// too.
    #[inline(always)]
    pub(crate) fn is_due(&self, now: Nanos) -> bool {
        now.wrapping_sub(self.seen) >= self.span
    }

    /// Returns when it has work if nothing else happens.
    #[inline]
    pub(crate) fn wakeup(&self) -> Option<Nanos> {
        self.wakeup
    }

    /// Returns the largest buffer that the limits of this flow can ever grant.
    pub(crate) fn largest(&self, slot: u32) -> u32 {
        let limiter = self
            .limited_flow(slot)
            .and_then(|limited_flow| self.limiter(limited_flow.limiters[IN_FLIGHT]));
        limiter.map_or(u32::MAX, Limiter::largest)
    }

    /// Queues a command of a flow with limits. (A bulk command is already in the flow queue.)
    pub(crate) fn enqueue(
        &mut self,
        flow_queues: &mut FlowQueues,
        class: CommandClass,
        waiting: QueuedCommand,
        charge: Charge,
    ) {
        let slot = waiting.flow.slot();
        if class == CommandClass::Bulk {
            flow_queues.push(waiting, charge);
        } else if let Some(limited_flow) = self.limited_flow_mut(slot) {
            flow_queues.append(limited_flow.list(class), waiting, charge);
        }
        self.ask_later(slot, class);
    }

    /// Records that the first granted command of a bulk or small queue has started, and sets the
    /// tenant grant of its permit. The next command asks; its flow is possibly suspended for that.
    pub(crate) fn on_dispatch(
        &mut self,
        slot: u32,
        class: CommandClass,
        suspended: bool,
        grants: &mut Grants,
    ) {
        let Some(limited_flow) = self.limited_flows.get_mut(slot as usize).and_then(Option::as_mut)
        else {
            return;
        };
        let limiter = limited_flow.limiters[IN_FLIGHT];
        limited_flow.queues[class as usize].state = LimiterState::Idle;
        limited_flow.queues[class as usize].suspended = suspended;
        if limiter != NONE {
            grants.set_tenant(Grant(u16::try_from(limiter + 1).unwrap_or(0)));
        }
        self.ask_later(slot, class);
    }

    /// Returns the grant that a permit carried.
    #[inline(never)]
    pub(crate) fn release(&mut self, grant: Grant, bytes: u32, now: Nanos) {
        // A clock that jumped back is left to the next look.
        self.now = self.now.max(now);
        let at = u32::from(grant.0).wrapping_sub(1);
        let Some(limiter) = self.limiter_mut(at) else { return };
        limiter.release(bytes, now);
        if limiter.until.is_some() {
            self.span = 0;
        }
        self.touch(at);
        self.forget_unused(at);
    }

    /// Grants every command that may pass.
    #[inline(never)]
    pub(crate) fn look(
        &mut self,
        flow_queues: &mut FlowQueues,
        scheduler: &mut AnyScheduler,
        now: Nanos,
    ) {
        let went_back = now < self.now;
        self.now = now;
        loop {
            // Commands without a buffer ask one after the other.
            while let Some(queue) = self.pending.pop_front() {
                if self.queue(queue).is_some_and(|queue| queue.state == LimiterState::Pending) {
                    self.request(queue, None, flow_queues, scheduler);
                }
            }
            self.serve_closed(went_back, flow_queues, scheduler);
            if self.pending.is_empty() {
                break;
            }
        }
        self.settle_due();
    }

    /// Lets the queues at every limiter that may be open now ask again.
    fn serve_closed(
        &mut self,
        went_back: bool,
        flow_queues: &mut FlowQueues,
        scheduler: &mut AnyScheduler,
    ) {
        let mut at = 0;
        while let Some(&limiter) = self.closed.get(at) {
            let due = self.limiter(limiter).is_some_and(|limiter| match limiter.until {
                Some(BlockedUntil::Time(when)) => when <= self.now || went_back,
                Some(BlockedUntil::Release) | None => true,
            });
            if due {
                self.serve(limiter, flow_queues, scheduler);
            }
            match self.limiter_mut(limiter) {
                Some(limiter) if limiter.until.is_some() => at += 1,
                limiter => {
                    if let Some(limiter) = limiter {
                        limiter.listed = false;
                    }
                    self.closed.swap_remove(at);
                }
            }
        }
    }

    /// Returns reservations for commands that never come: nothing starts on this core for now.
    #[inline(never)]
    pub(crate) fn return_unused(&mut self) {
        while let Some(at) = self.touched.pop() {
            let now = self.now;
            if let Some(limiter) = self.limiter_mut(at) {
                limiter.touched = false;
                if limiter.waiting.is_empty() {
                    limiter.return_unused(now);
                }
            }
        }
    }

    #[inline]
    pub(crate) fn is_touched(&self) -> bool {
        !self.touched.is_empty()
    }

    /// Returns whether the first command of this flow queue is granted, so that the flow is in the
    /// scheduler.
    pub(crate) fn bulk_is_admitted(&self, slot: u32) -> bool {
        self.is_admitted(slot, CommandClass::Bulk)
    }

    fn is_admitted(&self, slot: u32, class: CommandClass) -> bool {
        self.limited_flow(slot)
            .is_some_and(|m| m.queues[class as usize].state == LimiterState::Admitted)
    }

    /// Counts the commands of this flow that are not granted yet, without its flow queue, and
    /// returns the largest size in bytes.
    pub(crate) fn survey(&self, slot: u32, flow_queues: &FlowQueues) -> (usize, u32) {
        let Some(limited_flow) = self.limited_flow(slot) else { return (0, 0) };
        let (no_data, small) =
            (flow_queues.survey(limited_flow.no_data), flow_queues.survey(limited_flow.small));
        (no_data.0 + small.0, no_data.1.max(small.1))
    }

    /// Returns the largest size in bytes of a command that is not granted, without flow queues.
    pub(crate) fn largest_waiting(&self, flow_queues: &FlowQueues) -> u32 {
        let slots = 0..u32::try_from(self.limited_flows.len()).unwrap_or(u32::MAX);
        slots.map(|slot| self.survey(slot, flow_queues).1).max().unwrap_or(0)
    }

    /// Assigns these tenants, or none, to a flow. The result says whether the flow has limits now.
    /// Grants of commands that have not started are reclaimed first. The caller enqueues those
    /// commands as if they had never been granted.
    pub(crate) fn assign(
        &mut self,
        slot: u32,
        tenants: Tenants<'_>,
        core: &CoreHandle,
        flow_queues: &mut FlowQueues,
    ) -> Assigned {
        let limiters = self.limiters_for(tenants, core);
        let before = self.limited_flow(slot).map(|limited_flow| limited_flow.limiters);
        if before == Some(limiters) || (before.is_none() && limiters == [NONE; LIMITERS]) {
            return Assigned::Unchanged;
        }
        let left_order = self.cancel_admitted(slot, flow_queues);
        for at in limiters {
            if let Some(limiter) = self.limiter_mut(at) {
                limiter.limited_flows += 1;
            }
        }
        let (no_data, small) = self.detach(slot);
        let has_any = limiters != [NONE; LIMITERS];
        if has_any {
            if self.limited_flows.len() <= slot as usize {
                self.limited_flows.resize_with(slot as usize + 1, || None);
            }
            let queues = [ClassQueue::default(); CLASSES];
            self.limited_flows[slot as usize] =
                Some(Box::new(LimitedFlow { limiters, no_data, small, queues }));
            ALL.into_iter().for_each(|class| self.ask_later(slot, class));
            self.reserve();
        }
        Assigned::Changed { no_data, small, left_order, has_any }
    }

    /// Removes all waiting commands of a flow that ends.
    pub(crate) fn remove(&mut self, slot: u32, flow_queues: &mut FlowQueues) -> (Vec<u64>, bool) {
        let left_order = self.cancel_admitted(slot, flow_queues);
        let (mut no_data, mut small) = self.detach(slot);
        let mut tokens = Vec::new();
        for list in [&mut no_data, &mut small] {
            while !list.is_empty() {
                tokens.push(flow_queues.pop_front(list).0.token);
            }
        }
        (tokens, left_order)
    }

    /// Removes one waiting command. Returns `None` if it is not waiting, otherwise whether the flow
    /// has to leave the scheduler.
    pub(crate) fn cancel(
        &mut self,
        flow: FlowId,
        token: u64,
        flow_queues: &mut FlowQueues,
    ) -> Option<bool> {
        let slot = flow.slot();
        let is_it = |waiting: &QueuedCommand| waiting.flow == flow && waiting.token == token;
        let limited_flow = self.limited_flows.get_mut(slot as usize)?.as_mut()?;
        for class in [CommandClass::NoData, CommandClass::Small] {
            let list = limited_flow.list(class);
            if flow_queues.remove_from(list, is_it).is_some() {
                if list.is_empty() {
                    self.release_partial(slot, class);
                }
                return Some(false);
            }
        }
        if let Some((waiting, charge)) = flow_queues.remove_no_data(is_it) {
            self.cancel_grants(slot, CommandClass::NoData, waiting, charge);
            return Some(false);
        }
        if let Some((waiting, charge)) = flow_queues.remove_small(is_it) {
            self.cancel_grants(slot, CommandClass::Small, waiting, charge);
            self.ask_later(slot, CommandClass::Small);
            return Some(false);
        }
        let first =
            flow_queues.front(flow_queues.list(slot)).filter(|(waiting, _)| waiting.token == token);
        flow_queues.cancel(flow, token)?;
        let Some((waiting, charge)) = first.filter(|_| self.bulk_is_admitted(slot)) else {
            if flow_queues.list(slot).is_empty() {
                self.release_partial(slot, CommandClass::Bulk);
            }
            return Some(false);
        };
        self.cancel_grants(slot, CommandClass::Bulk, waiting, charge);
        self.ask_later(slot, CommandClass::Bulk);
        Some(true)
    }

    /// Reclaims the grant of this flow's small command. The command moves to its flow queue and
    /// asks again there.
    pub(crate) fn cancel_small(&mut self, waiting: QueuedCommand, charge: Charge) {
        let slot = waiting.flow.slot();
        self.cancel_grants(slot, CommandClass::Small, waiting, charge);
        self.ask_later(slot, CommandClass::Small);
    }

    /// Schedules a queue to ask on the next look, if it has a command and is not waiting.
    fn ask_later(&mut self, slot: u32, class: CommandClass) {
        let number = number(slot, class);
        let Some(limited_flow) = self.limited_flows.get_mut(slot as usize).and_then(Option::as_mut)
        else {
            return;
        };
        let queue = &mut limited_flow.queues[class as usize];
        if queue.state == LimiterState::Idle {
            queue.state = LimiterState::Pending;
            self.pending.push_back(number);
            self.span = 0;
        }
    }

    /// Lets the waiting queues of a limiter that may grant ask again, in order, until one is
    /// deferred.
    fn serve(&mut self, at: u32, flow_queues: &mut FlowQueues, scheduler: &mut AnyScheduler) {
        let now = self.now;
        if let Some(limiter) = self.limiter_mut(at) {
            // Open for the first queue; the first deferred one closes it again.
            limiter.open(now);
        }
        self.touch(at);
        while let Some(Reverse((_, queue))) = self.limiter_mut(at).and_then(|d| d.waiting.pop()) {
            let state = self.queue(queue).map(|queue| queue.state);
            let Some(LimiterState::Blocked(nth)) = state else { continue };
            self.request(queue, Some(usize::from(nth)), flow_queues, scheduler);
            if self.limiter(at).is_some_and(|limiter| limiter.until.is_some()) {
                break;
            }
        }
    }

    /// Asks the limiters of the flow for the first command of a queue. `first` is the limiter that
    /// the queue waited for.
    fn request(
        &mut self,
        number: u32,
        first: Option<usize>,
        flow_queues: &mut FlowQueues,
        scheduler: &mut AnyScheduler,
    ) {
        let (slot, class) = split(number);
        let Some(limited_flow) = self.limited_flows.get_mut(slot as usize).and_then(Option::as_mut)
        else {
            return;
        };
        let list = match class {
            CommandClass::NoData => limited_flow.no_data,
            CommandClass::Small => limited_flow.small,
            CommandClass::Bulk => flow_queues.list(slot),
        };
        let queue = &mut limited_flow.queues[class as usize];
        let suspended = std::mem::take(&mut queue.suspended);
        let Some((waiting, charge)) = flow_queues.front(list) else {
            queue.state = LimiterState::Idle;
            self.release_partial(slot, class);
            return;
        };
        let limit_request = LimitRequest { bytes: waiting.cost.bytes, charge };
        let weight = flow_queues.config(slot).weight;
        match self.pass_limiters((slot, class), limit_request, weight, first) {
            Ok(()) => {
                self.admitted(slot, class, flow_queues);
                match class {
                    CommandClass::Bulk if flow_queues.is_parked(slot) => {}
                    CommandClass::Bulk if suspended => {
                        scheduler.flow_backlogged(slot, Pause::Suspended);
                    }
                    CommandClass::Bulk => scheduler.flow_backlogged(slot, Pause::Idle),
                    CommandClass::NoData | CommandClass::Small => {}
                }
            }
            Err((nth, until)) => self.wait(number, nth, until, first),
        }
    }

    /// Asks every limiter of the flow in turn, except those that have granted already. On failure,
    /// returns the limiter that the command waits for and the wake-up condition. The in-flight
    /// limit comes last, so that a command never occupies in-flight bytes while it waits for a
    /// rate.
    fn pass_limiters(
        &mut self,
        (slot, class): (u32, CommandClass),
        limit_request: LimitRequest,
        weight: u16,
        first: Option<usize>,
    ) -> Result<(), (usize, BlockedUntil)> {
        let now = self.now;
        let Some(limiters) = self.limited_flow(slot).map(|limited_flow| limited_flow.limiters)
        else {
            return Ok(());
        };
        let partial = self.queue(number(slot, class)).and_then(|queue| queue.partial);
        if partial.is_some_and(|partial| partial.limit_request != limit_request) {
            self.release_partial(slot, class);
        }
        let partial = partial.filter(|partial| partial.limit_request == limit_request);
        let mut granted = partial.map_or([false; LIMITERS], |partial| partial.granted);
        let mut deferred = None;
        for nth in 0..LIMITERS {
            let is_meant =
                limiters[nth] != NONE && !(class == CommandClass::NoData && nth == IN_FLIGHT);
            if granted[nth] || !is_meant {
                continue;
            }
            let Some(limiter) = self.limiter_mut(limiters[nth]) else { continue };
            // Queues that already wait there come first.
            let answer = match limiter.until {
                Some(until) if Some(nth) != first => Err(until),
                _ => limiter.admit(limit_request, now),
            };
            self.touch(limiters[nth]);
            if let Err(until) = answer {
                deferred = Some((nth, until));
                break;
            }
            granted[nth] = true;
            self.served((slot, class), nth, limit_request, weight);
        }
        let Some(limited_flow) = self.limited_flow_mut(slot) else { return Ok(()) };
        let keeps = deferred.is_some() && granted != [false; LIMITERS];
        limited_flow.queues[class as usize].partial =
            keeps.then_some(PartialGrant { limit_request, granted });
        deferred.map_or(Ok(()), Err)
    }

    /// Records the grant of a limiter: advances the queue's start tag and the limiter's virtual
    /// time.
    fn served(
        &mut self,
        (slot, class): (u32, CommandClass),
        nth: usize,
        limit_request: LimitRequest,
        weight: u16,
    ) {
        let Self { limited_flows, limiters, .. } = self;
        let Some(limited_flow) = limited_flows.get_mut(slot as usize).and_then(Option::as_mut)
        else {
            return;
        };
        let Some(Some(limiter)) = limiters.get_mut(limited_flow.limiters[nth] as usize) else {
            return;
        };
        let tag = &mut limited_flow.queues[class as usize].tags[nth];
        limiter.virtual_time = (*tag).max(limiter.virtual_time);
        let bytes =
            if nth == IN_FLIGHT { Some(limit_request.bytes) } else { limit_request.charge.bytes() };
        *tag = limiter.virtual_time + bytes.map_or(0, |bytes| u128::from(step(bytes, weight)));
    }

    /// Returns the kept grants to the limiters: the first command of the queue has changed, or the
    /// queue is empty.
    fn release_partial(&mut self, slot: u32, class: CommandClass) {
        let now = self.now;
        let Some(limited_flow) = self.limited_flow_mut(slot) else { return };
        let limiters = limited_flow.limiters;
        let Some(partial) = limited_flow.queues[class as usize].partial.take() else { return };
        for (nth, _) in partial.granted.into_iter().enumerate().filter(|(_, granted)| *granted) {
            if let Some(limiter) = self.limiter_mut(limiters[nth]) {
                limiter.cancel(partial.limit_request, now);
                self.touch(limiters[nth]);
            }
        }
    }

    /// Makes a queue wait for one limiter of its flow.
    fn wait(&mut self, number: u32, nth: usize, until: BlockedUntil, first: Option<usize>) {
        let now = self.now;
        let (slot, class) = split(number);
        let Some(limited_flow) = self.limited_flows.get_mut(slot as usize).and_then(Option::as_mut)
        else {
            return;
        };
        let at = limited_flow.limiters[nth];
        let queue = &mut limited_flow.queues[class as usize];
        queue.state = LimiterState::Blocked(u8::try_from(nth).unwrap_or(0));
        let Some(Some(limiter)) = self.limiters.get_mut(at as usize) else { return };
        let tag = queue.tags[nth].max(limiter.virtual_time);
        queue.tags[nth] = tag;
        if first != Some(nth) {
            limiter.count_throttled();
        }
        limiter.wait(tag, number, until, now);
        if !std::mem::replace(&mut limiter.listed, true) {
            self.closed.push(at);
        }
    }

    /// Moves the granted first command of a queue to where it would be without limits. The caller
    /// notifies the scheduler.
    fn admitted(&mut self, slot: u32, class: CommandClass, flow_queues: &mut FlowQueues) {
        let Some(limited_flow) = self.limited_flows.get_mut(slot as usize).and_then(Option::as_mut)
        else {
            return;
        };
        match class {
            CommandClass::NoData => {
                let (waiting, charge) = flow_queues.pop_front(&mut limited_flow.no_data);
                flow_queues.push_no_data(waiting, charge);
                limited_flow.queues[class as usize].state = LimiterState::Idle;
                if !limited_flow.no_data.is_empty() {
                    self.ask_later(slot, class);
                }
            }
            CommandClass::Small => {
                let (waiting, charge) = flow_queues.pop_front(&mut limited_flow.small);
                flow_queues.push_small(waiting, charge);
                limited_flow.queues[class as usize].state = LimiterState::Admitted;
            }
            CommandClass::Bulk => {
                limited_flow.queues[class as usize].state = LimiterState::Admitted;
            }
        }
    }

    /// Returns the grants of a command that will not start.
    fn cancel_grants(
        &mut self,
        slot: u32,
        class: CommandClass,
        waiting: QueuedCommand,
        charge: Charge,
    ) {
        let now = self.now;
        let Some(limited_flow) = self.limited_flows.get_mut(slot as usize).and_then(Option::as_mut)
        else {
            return;
        };
        let limiters = limited_flow.limiters;
        if class != CommandClass::NoData {
            limited_flow.queues[class as usize].state = LimiterState::Idle;
        }
        let limit_request = LimitRequest { bytes: waiting.cost.bytes, charge };
        for (nth, at) in limiters.into_iter().enumerate() {
            if class == CommandClass::NoData && nth == IN_FLIGHT {
                continue;
            }
            if let Some(limiter) = self.limiter_mut(at) {
                limiter.cancel(limit_request, now);
                self.touch(at);
            }
        }
    }

    /// Reclaims the grants of a flow's commands that have not started. Returns true if the flow was
    /// in the scheduler.
    fn cancel_admitted(&mut self, slot: u32, flow_queues: &mut FlowQueues) -> bool {
        if self.limited_flow(slot).is_none() {
            return false;
        }
        let flow = flow_queues.flow(slot);
        if let Some((waiting, charge)) = flow_queues.remove_small(|w| w.flow == flow) {
            self.cancel_grants(slot, CommandClass::Small, waiting, charge);
            if let Some(limited_flow) = self.limited_flow_mut(slot) {
                let mut rest = std::mem::replace(&mut limited_flow.small, List::EMPTY);
                flow_queues.append(&mut limited_flow.small, waiting, charge);
                while !rest.is_empty() {
                    let (waiting, charge) = flow_queues.pop_front(&mut rest);
                    flow_queues.append(&mut limited_flow.small, waiting, charge);
                }
            }
        }
        let admitted = self.bulk_is_admitted(slot);
        if admitted && let Some((waiting, charge)) = flow_queues.front(flow_queues.list(slot)) {
            self.cancel_grants(slot, CommandClass::Bulk, waiting, charge);
        }
        admitted
    }

    /// Removes a flow from its limiters. The caller gets its waiting commands, except those in its
    /// flow queue.
    fn detach(&mut self, slot: u32) -> (List, List) {
        let now = self.now;
        ALL.into_iter().for_each(|class| self.release_partial(slot, class));
        let Some(limited_flow) = self.limited_flows.get_mut(slot as usize).and_then(Option::take)
        else {
            return (List::EMPTY, List::EMPTY);
        };
        self.pending.retain(|queue| split(*queue).0 != slot);
        for at in limited_flow.limiters {
            let Some(limiter) = self.limiter_mut(at) else { continue };
            limiter.limited_flows -= 1;
            limiter.waiting.retain(|Reverse((_, queue))| split(*queue).0 != slot);
            if limiter.waiting.is_empty() {
                limiter.open(now);
                // The limiter returns what it kept for them, possibly to other cores.
                limiter.return_unused(now);
            }
            self.forget_unused(at);
        }
        // One reservation may be free now.
        self.span = 0;
        (limited_flow.no_data, limited_flow.small)
    }

    /// Returns the limiters of these tenants with their current limits, and creates missing ones.
    fn limiters_for(&mut self, tenants: Tenants<'_>, core: &CoreHandle) -> [u32; LIMITERS] {
        let now = self.now;
        let mut rate = |tenant: Option<&Arc<Tenant>>| {
            let Some(tenant) = tenant.filter(|tenant| tenant.limits.has_rate()) else {
                return NONE;
            };
            let known = self.limiters.iter_mut().enumerate().find_map(|(at, limiter)| {
                limiter
                    .as_mut()
                    .filter(|limiter| limiter.is_rate_of(tenant))
                    .map(|limiter| (at, limiter))
            });
            if let Some((at, limiter)) = known {
                if limiter.renew(tenant) && limiter.until.is_some() {
                    limiter.until = Some(BlockedUntil::Time(now));
                }
                self.span = 0;
                return u32::try_from(at).unwrap_or(NONE);
            }
            Limiter::rate(tenant).map_or(NONE, |limiter| self.add_limiter(limiter))
        };
        let (host, namespace) = (rate(tenants.host), rate(tenants.namespace));
        let in_flight = tenants.host.and_then(|tenant| {
            let is_it = |limiter: &Option<Limiter>| {
                limiter.as_ref().is_some_and(|d| d.is_in_flight_of(tenant))
            };
            let at = match self.limiters.iter().position(is_it) {
                Some(at) => u32::try_from(at).ok(),
                None => Limiter::in_flight(tenant, core).map(|limiter| self.add_limiter(limiter)),
            };
            // A permit carries the limiter's number in 16 bits. There are never that many limiters:
            // all cores together have at most 65 535 connections, and a host has two of them.
            at.filter(|at| *at < u32::from(u16::MAX))
        });
        [host, namespace, in_flight.unwrap_or(NONE)]
    }

    fn add_limiter(&mut self, limiter: Limiter) -> u32 {
        let free = self.limiters.iter().position(Option::is_none);
        let at = free.unwrap_or_else(|| {
            self.limiters.push(None);
            self.limiters.len() - 1
        });
        self.limiters[at] = Some(limiter);
        u32::try_from(at).unwrap_or(NONE)
    }

    /// Drops a limiter without flows and without outstanding grants.
    fn forget_unused(&mut self, at: u32) {
        if self
            .limiter(at)
            .is_some_and(|limiter| limiter.limited_flows == 0 && limiter.outstanding == 0)
        {
            self.limiters[at as usize] = None;
            self.closed.retain(|closed| *closed != at);
            self.touched.retain(|touched| *touched != at);
        }
    }

    fn touch(&mut self, at: u32) {
        if let Some(Some(limiter)) = self.limiters.get_mut(at as usize)
            && !std::mem::replace(&mut limiter.touched, true)
        {
            self.touched.push(at);
        }
    }

    /// Reserves capacity for all queues, so that nothing is allocated while commands wait and pass.
    fn reserve(&mut self) {
        let queues = self.limited_flows.iter().flatten().count() * CLASSES;
        self.pending.reserve(queues.saturating_sub(self.pending.len()));
        let limiters = self.limiters.len();
        self.closed.reserve(limiters.saturating_sub(self.closed.len()));
        self.touched.reserve(limiters.saturating_sub(self.touched.len()));
        for limiter in self.limiters.iter_mut().flatten() {
            let queues = limiter.limited_flows as usize * CLASSES;
            limiter.waiting.reserve(queues.saturating_sub(limiter.waiting.len()));
        }
    }

    /// Computes the time of the next look.
    fn settle_due(&mut self) {
        let (now, mut due) = (self.now, None);
        self.wakeup = None;
        for at in &self.closed {
            let Some(until) = self.limiter(*at).and_then(|limiter| limiter.until) else { continue };
            let when = match until {
                BlockedUntil::Time(when) => {
                    self.wakeup = Some(self.wakeup.map_or(when, |known| known.min(when)));
                    when
                }
                BlockedUntil::Release => now,
            };
            due = Some(due.map_or(when, |known: Nanos| known.min(when)));
        }
        self.seen = if due.is_some() { now } else { 0 };
        self.span = due.map_or(Nanos::MAX, |due| due.saturating_sub(now));
    }

    fn queue(&self, number: u32) -> Option<&ClassQueue> {
        let (slot, class) = split(number);
        Some(&self.limited_flow(slot)?.queues[class as usize])
    }

    fn limited_flow(&self, slot: u32) -> Option<&LimitedFlow> {
        self.limited_flows.get(slot as usize)?.as_deref()
    }

    fn limited_flow_mut(&mut self, slot: u32) -> Option<&mut LimitedFlow> {
        self.limited_flows.get_mut(slot as usize)?.as_deref_mut()
    }

    fn limiter(&self, at: u32) -> Option<&Limiter> {
        self.limiters.get(at as usize)?.as_ref()
    }

    fn limiter_mut(&mut self, at: u32) -> Option<&mut Limiter> {
        self.limiters.get_mut(at as usize)?.as_mut()
    }
}

/// Result of [`TenantLimiters::assign`].
#[derive(Debug)]
pub(crate) enum Assigned {
    /// The flow keeps its limits.
    Unchanged,
    /// The flow has other limits, or none.
    Changed {
        /// Waiting commands of the flow, without a buffer and small. The caller takes them if the
        /// flow has no limits any more.
        no_data: List,
        small: List,
        /// The flow was in the scheduler, with a grant that is now reclaimed.
        left_order: bool,
        /// The flow has limits.
        has_any: bool,
    },
}

/// Returns the advance of a queue's start tag by one command.
fn step(bytes: u32, weight: u16) -> u64 {
    (u64::from(bytes).max(LEAST_STEP) << TAG_SHIFT) / u64::from(weight.max(1))
}
