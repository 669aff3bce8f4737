//! Tenant limiters of all flows on one core.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::sync::Arc;

use super::door::{Door, Until, Wish};
use super::{Core, Tenant, Tenants};
use crate::lanes::{FlowId, Lanes, List, Waiting};
use crate::order::Known as Order;
use crate::policy::{Grant, Grants};
use crate::{Charge, Nanos};

/// Limiters of a flow: rate of its host, rate of its namespace, bytes in flight of its host.
const DOORS: usize = 3;
const IN_FLIGHT: usize = 2;
/// No limiter.
const NONE: u32 = u32::MAX;
/// Least bytes that a command adds to a start tag: the smallest buffer size.
const LEAST_STEP: u64 = 4096;
/// Start tags count fractions of a byte, so that dividing by a weight does not round them to 0. In
/// 64 bits they would overflow after some days at full rate.
const TAG_SHIFT: u32 = 10;

/// Queues of a flow; each passes the limiters independently.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// Commands without a buffer.
    Express,
    /// Commands that are small relative to the others.
    Small,
    /// All other commands: the flow queue.
    Lane,
}

const KINDS: usize = 3;
const ALL: [Kind; KINDS] = [Kind::Express, Kind::Small, Kind::Lane];

/// State of a queue at the limiters.
///
/// ```text
///   Idle ── a command comes ──▶ Asking ── deferred ──▶ At(limiter) ── asks again ──▶ ...
///     ▲                            │                       │
///     └───── queue empty ──────────┴─────── granted ◀──────┘
///                                               │
///            Passed (not Express, which keeps asking) ── started ──▶ Asking
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Place {
    /// The queue is empty.
    #[default]
    Idle,
    /// The queue is in `Gates::asking`.
    Asking,
    /// The queue waits for this limiter of its flow.
    At(u8),
    /// Its first command is granted, and is in the scheduler or in the list of small commands.
    Passed,
}

#[derive(Debug, Clone, Copy, Default)]
struct Queue {
    place: Place,
    /// Grants of the limiters before the one that it waits for. The queue keeps them. Otherwise a
    /// flow with two contended limits would return one grant whenever it waits for the other, and
    /// would never hold both.
    kept: Option<Kept>,
    /// The queue is suspended only until it asks again: see
    /// [`Order::step_back`](crate::Order::step_back).
    aside: bool,
    /// By limiter: start tag up to which the queue has been served.
    tags: [u128; DOORS],
}

/// Grants for the first command of a queue, valid while that command has this wish.
#[derive(Debug, Clone, Copy)]
struct Kept {
    wish: Wish,
    /// By limiter.
    granted: [bool; DOORS],
}

/// A flow with limits.
#[derive(Debug)]
struct Member {
    doors: [u32; DOORS],
    express: List,
    small: List,
    queues: [Queue; KINDS],
}

impl Member {
    fn list(&mut self, kind: Kind) -> &mut List {
        match kind {
            Kind::Express => &mut self.express,
            Kind::Small | Kind::Lane => &mut self.small,
        }
    }
}

/// Limiters of one core and the flows that have them.
#[derive(Debug)]
pub(crate) struct Gates {
    /// By flow slot.
    members: Vec<Option<Box<Member>>>,
    doors: Vec<Option<Door>>,
    /// Queues that ask on the next call of [`Gates::look`].
    asking: VecDeque<u32>,
    /// Limiters that have waiting queues.
    closed: Vec<u32>,
    /// Limiters that may hold a reservation for a command that never comes.
    touched: Vec<u32>,
    /// Time of the last look, and time until the next; see [`Gates::is_due`].
    seen: Nanos,
    span: Nanos,
    wakeup: Option<Nanos>,
    /// The latest time that a caller passed.
    now: Nanos,
}

impl Gates {
    pub(crate) fn new() -> Self {
        Self {
            members: Vec::new(),
            doors: Vec::new(),
            asking: VecDeque::new(),
            closed: Vec::new(),
            touched: Vec::new(),
            seen: 0,
            span: Nanos::MAX,
            wakeup: None,
            now: 0,
        }
    }

    /// Returns whether [`Gates::look`] has work. A clock that jumps back makes it due, too.
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
        let door = self.member(slot).and_then(|member| self.door(member.doors[IN_FLIGHT]));
        door.map_or(u32::MAX, Door::largest)
    }

    /// Queues a command of a flow with limits. (A bulk command is already in the flow queue.)
    pub(crate) fn enqueue(
        &mut self,
        lanes: &mut Lanes,
        kind: Kind,
        waiting: Waiting,
        charge: Charge,
    ) {
        let slot = waiting.flow.slot();
        if kind == Kind::Lane {
            lanes.push(waiting, charge);
        } else if let Some(member) = self.member_mut(slot) {
            lanes.append(member.list(kind), waiting, charge);
        }
        self.ask_later(slot, kind);
    }

    /// Records that the first granted command of a bulk or small queue has started, and sets the
    /// tenant grant of its permit. The next command asks; its flow is possibly suspended for that.
    pub(crate) fn started(&mut self, slot: u32, kind: Kind, aside: bool, grants: &mut Grants) {
        let Some(member) = self.members.get_mut(slot as usize).and_then(Option::as_mut) else {
            return;
        };
        let door = member.doors[IN_FLIGHT];
        member.queues[kind as usize].place = Place::Idle;
        member.queues[kind as usize].aside = aside;
        if door != NONE {
            grants.set_tenant(Grant(u16::try_from(door + 1).unwrap_or(0)));
        }
        self.ask_later(slot, kind);
    }

    /// Returns the grant that a permit carried.
    #[inline(never)]
    pub(crate) fn release(&mut self, grant: Grant, bytes: u32, now: Nanos) {
        // A clock that jumped back is left to the next look.
        self.now = self.now.max(now);
        let at = u32::from(grant.0).wrapping_sub(1);
        let Some(door) = self.door_mut(at) else { return };
        door.give_back(bytes, now);
        if door.until.is_some() {
            self.span = 0;
        }
        self.touch(at);
        self.forget_unused(at);
    }

    /// Grants every command that may pass.
    #[inline(never)]
    pub(crate) fn look(&mut self, lanes: &mut Lanes, order: &mut Order, now: Nanos) {
        let went_back = now < self.now;
        self.now = now;
        loop {
            // Commands without a buffer ask one after the other.
            while let Some(queue) = self.asking.pop_front() {
                if self.queue(queue).is_some_and(|queue| queue.place == Place::Asking) {
                    self.ask(queue, None, lanes, order);
                }
            }
            self.serve_closed(went_back, lanes, order);
            if self.asking.is_empty() {
                break;
            }
        }
        self.settle_due();
    }

    /// Lets the queues at every limiter that may be open now ask again.
    fn serve_closed(&mut self, went_back: bool, lanes: &mut Lanes, order: &mut Order) {
        let mut at = 0;
        while let Some(&door) = self.closed.get(at) {
            let due = self.door(door).is_some_and(|door| match door.until {
                Some(Until::Time(when)) => when <= self.now || went_back,
                Some(Until::Release) | None => true,
            });
            if due {
                self.serve(door, lanes, order);
            }
            match self.door_mut(door) {
                Some(door) if door.until.is_some() => at += 1,
                door => {
                    if let Some(door) = door {
                        door.listed = false;
                    }
                    self.closed.swap_remove(at);
                }
            }
        }
    }

    /// Returns reservations for commands that never come: nothing starts on this core for now.
    #[inline(never)]
    pub(crate) fn rest(&mut self) {
        while let Some(at) = self.touched.pop() {
            let now = self.now;
            if let Some(door) = self.door_mut(at) {
                door.touched = false;
                if door.waiting.is_empty() {
                    door.rest(now);
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
    pub(crate) fn lane_passed(&self, slot: u32) -> bool {
        self.has_passed(slot, Kind::Lane)
    }

    fn has_passed(&self, slot: u32, kind: Kind) -> bool {
        self.member(slot).is_some_and(|m| m.queues[kind as usize].place == Place::Passed)
    }

    /// Counts the commands of this flow that are not granted yet, without its flow queue, and
    /// returns the largest size in bytes.
    pub(crate) fn survey(&self, slot: u32, lanes: &Lanes) -> (usize, u32) {
        let Some(member) = self.member(slot) else { return (0, 0) };
        let (express, small) = (lanes.survey(member.express), lanes.survey(member.small));
        (express.0 + small.0, express.1.max(small.1))
    }

    /// Returns the largest size in bytes of a command that is not granted, without flow queues.
    pub(crate) fn largest_waiting(&self, lanes: &Lanes) -> u32 {
        let slots = 0..u32::try_from(self.members.len()).unwrap_or(u32::MAX);
        slots.map(|slot| self.survey(slot, lanes).1).max().unwrap_or(0)
    }

    /// Assigns these tenants, or none, to a flow. The result says whether the flow has limits now.
    /// Grants of commands that have not started are reclaimed first. The caller enqueues those
    /// commands as if they had never been granted.
    pub(crate) fn assign(
        &mut self,
        slot: u32,
        tenants: Tenants<'_>,
        core: &Core,
        lanes: &mut Lanes,
    ) -> Assigned {
        let doors = self.doors_for(tenants, core);
        let before = self.member(slot).map(|member| member.doors);
        if before == Some(doors) || (before.is_none() && doors == [NONE; DOORS]) {
            return Assigned::Unchanged;
        }
        let left_order = self.take_back_passes(slot, lanes);
        for at in doors {
            if let Some(door) = self.door_mut(at) {
                door.members += 1;
            }
        }
        let (express, small) = self.leave(slot);
        let has_any = doors != [NONE; DOORS];
        if has_any {
            if self.members.len() <= slot as usize {
                self.members.resize_with(slot as usize + 1, || None);
            }
            let queues = [Queue::default(); KINDS];
            self.members[slot as usize] = Some(Box::new(Member { doors, express, small, queues }));
            ALL.into_iter().for_each(|kind| self.ask_later(slot, kind));
            self.reserve();
        }
        Assigned::Changed { express, small, left_order, has_any }
    }

    /// Removes all waiting commands of a flow that ends.
    pub(crate) fn remove(&mut self, slot: u32, lanes: &mut Lanes) -> (Vec<u64>, bool) {
        let left_order = self.take_back_passes(slot, lanes);
        let (mut express, mut small) = self.leave(slot);
        let mut tokens = Vec::new();
        for list in [&mut express, &mut small] {
            while !list.is_empty() {
                tokens.push(lanes.pop_front(list).0.token);
            }
        }
        (tokens, left_order)
    }

    /// Removes one waiting command. Returns `None` if it is not waiting, otherwise whether the flow
    /// has to leave the scheduler.
    pub(crate) fn cancel(&mut self, flow: FlowId, token: u64, lanes: &mut Lanes) -> Option<bool> {
        let slot = flow.slot();
        let is_it = |waiting: &Waiting| waiting.flow == flow && waiting.token == token;
        let member = self.members.get_mut(slot as usize)?.as_mut()?;
        for kind in [Kind::Express, Kind::Small] {
            let list = member.list(kind);
            if lanes.remove_from(list, is_it).is_some() {
                if list.is_empty() {
                    self.give_back_kept(slot, kind);
                }
                return Some(false);
            }
        }
        if let Some((waiting, charge)) = lanes.remove_express(is_it) {
            self.take_back(slot, Kind::Express, waiting, charge);
            return Some(false);
        }
        if let Some((waiting, charge)) = lanes.remove_small(is_it) {
            self.take_back(slot, Kind::Small, waiting, charge);
            self.ask_later(slot, Kind::Small);
            return Some(false);
        }
        let first = lanes.front(lanes.list(slot)).filter(|(waiting, _)| waiting.token == token);
        lanes.cancel(flow, token)?;
        let Some((waiting, charge)) = first.filter(|_| self.lane_passed(slot)) else {
            if lanes.list(slot).is_empty() {
                self.give_back_kept(slot, Kind::Lane);
            }
            return Some(false);
        };
        self.take_back(slot, Kind::Lane, waiting, charge);
        self.ask_later(slot, Kind::Lane);
        Some(true)
    }

    /// Reclaims the grant of this flow's small command. The command moves to its flow queue and
    /// asks again there.
    pub(crate) fn take_back_small(&mut self, waiting: Waiting, charge: Charge) {
        let slot = waiting.flow.slot();
        self.take_back(slot, Kind::Small, waiting, charge);
        self.ask_later(slot, Kind::Small);
    }

    /// Schedules a queue to ask on the next look, if it has a command and is not waiting.
    fn ask_later(&mut self, slot: u32, kind: Kind) {
        let number = number(slot, kind);
        let Some(member) = self.members.get_mut(slot as usize).and_then(Option::as_mut) else {
            return;
        };
        let queue = &mut member.queues[kind as usize];
        if queue.place == Place::Idle {
            queue.place = Place::Asking;
            self.asking.push_back(number);
            self.span = 0;
        }
    }

    /// Lets the waiting queues of a limiter that may grant ask again, in order, until one is
    /// deferred.
    fn serve(&mut self, at: u32, lanes: &mut Lanes, order: &mut Order) {
        let now = self.now;
        if let Some(door) = self.door_mut(at) {
            // Open for the first queue; the first deferred one closes it again.
            door.open(now);
        }
        self.touch(at);
        while let Some(Reverse((_, queue))) = self.door_mut(at).and_then(|d| d.waiting.pop()) {
            let place = self.queue(queue).map(|queue| queue.place);
            let Some(Place::At(nth)) = place else { continue };
            self.ask(queue, Some(usize::from(nth)), lanes, order);
            if self.door(at).is_some_and(|door| door.until.is_some()) {
                break;
            }
        }
    }

    /// Asks the limiters of the flow for the first command of a queue. `first` is the limiter that
    /// the queue waited for.
    fn ask(&mut self, number: u32, first: Option<usize>, lanes: &mut Lanes, order: &mut Order) {
        let (slot, kind) = split(number);
        let Some(member) = self.members.get_mut(slot as usize).and_then(Option::as_mut) else {
            return;
        };
        let list = match kind {
            Kind::Express => member.express,
            Kind::Small => member.small,
            Kind::Lane => lanes.list(slot),
        };
        let queue = &mut member.queues[kind as usize];
        let aside = std::mem::take(&mut queue.aside);
        let Some((waiting, charge)) = lanes.front(list) else {
            queue.place = Place::Idle;
            self.give_back_kept(slot, kind);
            return;
        };
        let wish = Wish { bytes: waiting.cost.bytes, charge };
        let weight = lanes.config(slot).weight;
        match self.pass_doors((slot, kind), wish, weight, first) {
            Ok(()) => {
                self.passed(slot, kind, lanes);
                match kind {
                    Kind::Lane if lanes.is_parked(slot) => {}
                    Kind::Lane if aside => order.step_back(slot),
                    Kind::Lane => order.join(slot),
                    Kind::Express | Kind::Small => {}
                }
            }
            Err((nth, until)) => self.wait(number, nth, until, first),
        }
    }

    /// Asks every limiter of the flow in turn, except those that have granted already. On failure,
    /// returns the limiter that the command waits for and the wake-up condition. The in-flight
    /// limit comes last, so that a command never occupies in-flight bytes while it waits for a
    /// rate.
    fn pass_doors(
        &mut self,
        (slot, kind): (u32, Kind),
        wish: Wish,
        weight: u16,
        first: Option<usize>,
    ) -> Result<(), (usize, Until)> {
        let now = self.now;
        let Some(doors) = self.member(slot).map(|member| member.doors) else { return Ok(()) };
        let kept = self.queue(number(slot, kind)).and_then(|queue| queue.kept);
        if kept.is_some_and(|kept| kept.wish != wish) {
            self.give_back_kept(slot, kind);
        }
        let kept = kept.filter(|kept| kept.wish == wish);
        let mut granted = kept.map_or([false; DOORS], |kept| kept.granted);
        let mut refused = None;
        for nth in 0..DOORS {
            let is_meant = doors[nth] != NONE && !(kind == Kind::Express && nth == IN_FLIGHT);
            if granted[nth] || !is_meant {
                continue;
            }
            let Some(door) = self.door_mut(doors[nth]) else { continue };
            // Queues that already wait there come first.
            let answer = match door.until {
                Some(until) if Some(nth) != first => Err(until),
                _ => door.admit(wish, now),
            };
            self.touch(doors[nth]);
            if let Err(until) = answer {
                refused = Some((nth, until));
                break;
            }
            granted[nth] = true;
            self.served((slot, kind), nth, wish, weight);
        }
        let Some(member) = self.member_mut(slot) else { return Ok(()) };
        let keeps = refused.is_some() && granted != [false; DOORS];
        member.queues[kind as usize].kept = keeps.then_some(Kept { wish, granted });
        refused.map_or(Ok(()), Err)
    }

    /// Records the grant of a limiter: advances the queue's start tag and the limiter's virtual
    /// time.
    fn served(&mut self, (slot, kind): (u32, Kind), nth: usize, wish: Wish, weight: u16) {
        let Self { members, doors, .. } = self;
        let Some(member) = members.get_mut(slot as usize).and_then(Option::as_mut) else { return };
        let Some(Some(door)) = doors.get_mut(member.doors[nth] as usize) else { return };
        let tag = &mut member.queues[kind as usize].tags[nth];
        door.virtual_time = (*tag).max(door.virtual_time);
        let bytes = if nth == IN_FLIGHT { Some(wish.bytes) } else { wish.charge.bytes() };
        *tag = door.virtual_time + bytes.map_or(0, |bytes| u128::from(step(bytes, weight)));
    }

    /// Returns the kept grants to the limiters: the first command of the queue has changed, or the
    /// queue is empty.
    fn give_back_kept(&mut self, slot: u32, kind: Kind) {
        let now = self.now;
        let Some(member) = self.member_mut(slot) else { return };
        let doors = member.doors;
        let Some(kept) = member.queues[kind as usize].kept.take() else { return };
        for (nth, _) in kept.granted.into_iter().enumerate().filter(|(_, granted)| *granted) {
            if let Some(door) = self.door_mut(doors[nth]) {
                door.take_back(kept.wish, now);
                self.touch(doors[nth]);
            }
        }
    }

    /// Makes a queue wait for one limiter of its flow.
    fn wait(&mut self, number: u32, nth: usize, until: Until, first: Option<usize>) {
        let now = self.now;
        let (slot, kind) = split(number);
        let Some(member) = self.members.get_mut(slot as usize).and_then(Option::as_mut) else {
            return;
        };
        let at = member.doors[nth];
        let queue = &mut member.queues[kind as usize];
        queue.place = Place::At(u8::try_from(nth).unwrap_or(0));
        let Some(Some(door)) = self.doors.get_mut(at as usize) else { return };
        let tag = queue.tags[nth].max(door.virtual_time);
        queue.tags[nth] = tag;
        if first != Some(nth) {
            door.count_held();
        }
        door.wait(tag, number, until, now);
        if !std::mem::replace(&mut door.listed, true) {
            self.closed.push(at);
        }
    }

    /// Moves the granted first command of a queue to where it would be without limits. The caller
    /// notifies the scheduler.
    fn passed(&mut self, slot: u32, kind: Kind, lanes: &mut Lanes) {
        let Some(member) = self.members.get_mut(slot as usize).and_then(Option::as_mut) else {
            return;
        };
        match kind {
            Kind::Express => {
                let (waiting, charge) = lanes.pop_front(&mut member.express);
                lanes.push_express(waiting, charge);
                member.queues[kind as usize].place = Place::Idle;
                if !member.express.is_empty() {
                    self.ask_later(slot, kind);
                }
            }
            Kind::Small => {
                let (waiting, charge) = lanes.pop_front(&mut member.small);
                lanes.push_small(waiting, charge);
                member.queues[kind as usize].place = Place::Passed;
            }
            Kind::Lane => {
                member.queues[kind as usize].place = Place::Passed;
            }
        }
    }

    /// Returns the grants of a command that will not start.
    fn take_back(&mut self, slot: u32, kind: Kind, waiting: Waiting, charge: Charge) {
        let now = self.now;
        let Some(member) = self.members.get_mut(slot as usize).and_then(Option::as_mut) else {
            return;
        };
        let doors = member.doors;
        if kind != Kind::Express {
            member.queues[kind as usize].place = Place::Idle;
        }
        let wish = Wish { bytes: waiting.cost.bytes, charge };
        for (nth, at) in doors.into_iter().enumerate() {
            if kind == Kind::Express && nth == IN_FLIGHT {
                continue;
            }
            if let Some(door) = self.door_mut(at) {
                door.take_back(wish, now);
                self.touch(at);
            }
        }
    }

    /// Reclaims the grants of a flow's commands that have not started. Returns true if the flow was
    /// in the scheduler.
    fn take_back_passes(&mut self, slot: u32, lanes: &mut Lanes) -> bool {
        if self.member(slot).is_none() {
            return false;
        }
        let flow = lanes.flow(slot);
        if let Some((waiting, charge)) = lanes.remove_small(|w| w.flow == flow) {
            self.take_back(slot, Kind::Small, waiting, charge);
            if let Some(member) = self.member_mut(slot) {
                let mut rest = std::mem::replace(&mut member.small, List::EMPTY);
                lanes.append(&mut member.small, waiting, charge);
                while !rest.is_empty() {
                    let (waiting, charge) = lanes.pop_front(&mut rest);
                    lanes.append(&mut member.small, waiting, charge);
                }
            }
        }
        let passed = self.lane_passed(slot);
        if passed && let Some((waiting, charge)) = lanes.front(lanes.list(slot)) {
            self.take_back(slot, Kind::Lane, waiting, charge);
        }
        passed
    }

    /// Removes a flow from its limiters. The caller gets its waiting commands, except those in its
    /// flow queue.
    fn leave(&mut self, slot: u32) -> (List, List) {
        let now = self.now;
        ALL.into_iter().for_each(|kind| self.give_back_kept(slot, kind));
        let Some(member) = self.members.get_mut(slot as usize).and_then(Option::take) else {
            return (List::EMPTY, List::EMPTY);
        };
        self.asking.retain(|queue| split(*queue).0 != slot);
        for at in member.doors {
            let Some(door) = self.door_mut(at) else { continue };
            door.members -= 1;
            door.waiting.retain(|Reverse((_, queue))| split(*queue).0 != slot);
            if door.waiting.is_empty() {
                door.open(now);
                // The limiter returns what it kept for them, possibly to other cores.
                door.rest(now);
            }
            self.forget_unused(at);
        }
        // One reservation may be free now.
        self.span = 0;
        (member.express, member.small)
    }

    /// Returns the limiters of these tenants with their current limits, and creates missing ones.
    fn doors_for(&mut self, tenants: Tenants<'_>, core: &Core) -> [u32; DOORS] {
        let now = self.now;
        let mut rate = |tenant: Option<&Arc<Tenant>>| {
            let Some(tenant) = tenant.filter(|tenant| tenant.limits.has_rate()) else {
                return NONE;
            };
            let known = self.doors.iter_mut().enumerate().find_map(|(at, door)| {
                door.as_mut().filter(|door| door.is_rate_of(tenant)).map(|door| (at, door))
            });
            if let Some((at, door)) = known {
                if door.renew(tenant) && door.until.is_some() {
                    door.until = Some(Until::Time(now));
                }
                self.span = 0;
                return u32::try_from(at).unwrap_or(NONE);
            }
            Door::rate(tenant).map_or(NONE, |door| self.add_door(door))
        };
        let (host, namespace) = (rate(tenants.host), rate(tenants.namespace));
        let in_flight = tenants.host.and_then(|tenant| {
            let is_it =
                |door: &Option<Door>| door.as_ref().is_some_and(|d| d.is_in_flight_of(tenant));
            let at = match self.doors.iter().position(is_it) {
                Some(at) => u32::try_from(at).ok(),
                None => Door::in_flight(tenant, core).map(|door| self.add_door(door)),
            };
            // A permit carries the limiter's number in 16 bits. There are never that many limiters:
            // all cores together have at most 65 535 connections, and a host has two of them.
            at.filter(|at| *at < u32::from(u16::MAX))
        });
        [host, namespace, in_flight.unwrap_or(NONE)]
    }

    fn add_door(&mut self, door: Door) -> u32 {
        let free = self.doors.iter().position(Option::is_none);
        let at = free.unwrap_or_else(|| {
            self.doors.push(None);
            self.doors.len() - 1
        });
        self.doors[at] = Some(door);
        u32::try_from(at).unwrap_or(NONE)
    }

    /// Drops a limiter without flows and without outstanding grants.
    fn forget_unused(&mut self, at: u32) {
        if self.door(at).is_some_and(|door| door.members == 0 && door.lent == 0) {
            self.doors[at as usize] = None;
            self.closed.retain(|closed| *closed != at);
            self.touched.retain(|touched| *touched != at);
        }
    }

    fn touch(&mut self, at: u32) {
        if let Some(Some(door)) = self.doors.get_mut(at as usize)
            && !std::mem::replace(&mut door.touched, true)
        {
            self.touched.push(at);
        }
    }

    /// Reserves capacity for all queues, so that nothing is allocated while commands wait and pass.
    fn reserve(&mut self) {
        let queues = self.members.iter().flatten().count() * KINDS;
        self.asking.reserve(queues.saturating_sub(self.asking.len()));
        let doors = self.doors.len();
        self.closed.reserve(doors.saturating_sub(self.closed.len()));
        self.touched.reserve(doors.saturating_sub(self.touched.len()));
        for door in self.doors.iter_mut().flatten() {
            let queues = door.members as usize * KINDS;
            door.waiting.reserve(queues.saturating_sub(door.waiting.len()));
        }
    }

    /// Computes the time of the next look.
    fn settle_due(&mut self) {
        let (now, mut due) = (self.now, None);
        self.wakeup = None;
        for at in &self.closed {
            let Some(until) = self.door(*at).and_then(|door| door.until) else { continue };
            let when = match until {
                Until::Time(when) => {
                    self.wakeup = Some(self.wakeup.map_or(when, |known| known.min(when)));
                    when
                }
                Until::Release => now,
            };
            due = Some(due.map_or(when, |known: Nanos| known.min(when)));
        }
        self.seen = if due.is_some() { now } else { 0 };
        self.span = due.map_or(Nanos::MAX, |due| due.saturating_sub(now));
    }

    fn queue(&self, number: u32) -> Option<&Queue> {
        let (slot, kind) = split(number);
        Some(&self.member(slot)?.queues[kind as usize])
    }

    fn member(&self, slot: u32) -> Option<&Member> {
        self.members.get(slot as usize)?.as_deref()
    }

    fn member_mut(&mut self, slot: u32) -> Option<&mut Member> {
        self.members.get_mut(slot as usize)?.as_deref_mut()
    }

    fn door(&self, at: u32) -> Option<&Door> {
        self.doors.get(at as usize)?.as_ref()
    }

    fn door_mut(&mut self, at: u32) -> Option<&mut Door> {
        self.doors.get_mut(at as usize)?.as_mut()
    }
}

/// Result of [`Gates::assign`].
#[derive(Debug)]
pub(crate) enum Assigned {
    /// The flow keeps its limits.
    Unchanged,
    /// The flow has other limits, or none.
    Changed {
        /// Waiting commands of the flow, without a buffer and small. The caller takes them if the
        /// flow has no limits any more.
        express: List,
        small: List,
        /// The flow was in the scheduler, with a grant that is now reclaimed.
        left_order: bool,
        /// The flow has limits.
        has_any: bool,
    },
}

fn number(slot: u32, kind: Kind) -> u32 {
    // A slot has 24 bits.
    slot << 2 | kind as u32
}

fn split(number: u32) -> (u32, Kind) {
    let kind = match number & 3 {
        0 => Kind::Express,
        1 => Kind::Small,
        _ => Kind::Lane,
    };
    (number >> 2, kind)
}

/// Returns the advance of a queue's start tag by one command.
fn step(bytes: u32, weight: u16) -> u64 {
    (u64::from(bytes).max(LEAST_STEP) << TAG_SHIFT) / u64::from(weight.max(1))
}
