//! The limits of all flows on one core: who has which, who has passed, who waits before which.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::sync::Arc;

use super::door::{Door, Until, Wish};
use super::{Core, Tenant, Tenants};
use crate::lanes::{FlowId, Lanes, List, Waiting};
use crate::order::Known as Order;
use crate::policy::{Grant, Grants};
use crate::{Charge, Nanos};

/// Doors of a flow: rate of its host, rate of its namespace, in flight of its host.
const DOORS: usize = 3;
const IN_FLIGHT: usize = 2;
/// No door.
const NONE: u32 = u32::MAX;
/// Least bytes that a tag moves on by: the smallest buffer there is.
const LEAST_STEP: u64 = 4096;
/// Tags count in parts of a byte, so that a weight does not round them away: with 64 bits they would end after some days
/// at full rate.
const TAG_SHIFT: u32 = 10;

/// The queues of a flow, each of which passes for itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// Commands without a buffer.
    Express,
    /// Commands that are small beside the others.
    Small,
    /// The lane.
    Lane,
}

const KINDS: usize = 3;
const ALL: [Kind; KINDS] = [Kind::Express, Kind::Small, Kind::Lane];

/// Where a queue stands.
///
/// ```text
///   Idle ── something comes ──▶ Asking ── may not pass ──▶ At(door) ── asks again ──▶ ...
///     ▲                            │                          │
///     └──── nothing left ──────────┴──────── may pass ◀───────┘
///                                             │
///            Passed (not Express, which goes on asking) ── started ──▶ Asking
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Place {
    /// Nothing waits.
    #[default]
    Idle,
    /// It is in `Gates::asking`.
    Asking,
    /// It waits before this one of its flow's doors.
    At(u8),
    /// Its first command has passed, and is in the order or among the small ones.
    Passed,
}

#[derive(Debug, Clone, Copy, Default)]
struct Queue {
    place: Place,
    /// What the doors before the one at which it waits have granted: it is kept, or a flow with two limits that others keep
    /// busy would give back the one each time that it has to wait for the other, and never have both.
    kept: Option<Kept>,
    /// It is out of the order only to ask, and has not yet: see [`Order::step_back`](crate::Order::step_back).
    aside: bool,
    /// By door: up to where it was served there.
    tags: [u128; DOORS],
}

/// For its first command, as long as that is such a one.
#[derive(Debug, Clone, Copy)]
struct Kept {
    wish: Wish,
    /// By door.
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

/// See the module.
#[derive(Debug)]
pub(crate) struct Gates {
    /// By lane.
    members: Vec<Option<Box<Member>>>,
    doors: Vec<Option<Door>>,
    /// Queues that are to ask at the next look.
    asking: VecDeque<u32>,
    /// Doors before which something waits.
    closed: Vec<u32>,
    /// Doors that may keep something for a command that does not come.
    touched: Vec<u32>,
    /// When was looked last, and after how long to look again; see [`Gates::is_due`].
    seen: Nanos,
    span: Nanos,
    wakeup: Option<Nanos>,
    /// The time when last told.
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

    /// Is there anything to do in [`Gates::look`]? Also if the clock went back.
    #[inline(always)]
    pub(crate) fn is_due(&self, now: Nanos) -> bool {
        now.wrapping_sub(self.seen) >= self.span
    }

    /// When there will be, if nothing else happens.
    #[inline]
    pub(crate) fn wakeup(&self) -> Option<Nanos> {
        self.wakeup
    }

    /// The largest buffer that this flow's limits let pass, ever.
    pub(crate) fn largest(&self, slot: u32) -> u32 {
        let door = self.member(slot).and_then(|member| self.door(member.doors[IN_FLIGHT]));
        door.map_or(u32::MAX, Door::largest)
    }

    /// A command of a flow with limits: it waits in its queue. (One of a lane is in there already.)
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

    /// The first command of a lane, or the small one, that had passed has started: yields what its
    /// permit carries, and the next one asks, for which its lane may have stepped aside.
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

    /// What a permit carried comes back.
    #[inline(never)]
    pub(crate) fn release(&mut self, grant: Grant, bytes: u32, now: Nanos) {
        // One that went back is for the next look to see.
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

    /// Lets pass what may.
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

    /// Whoever waits before a door that may be open now asks again.
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

    /// Nothing will start for now: keeps nothing for commands that do not come.
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

    /// Has the first command of this lane passed, so that the lane is in the order?
    pub(crate) fn lane_passed(&self, slot: u32) -> bool {
        self.has_passed(slot, Kind::Lane)
    }

    fn has_passed(&self, slot: u32, kind: Kind) -> bool {
        self.member(slot).is_some_and(|m| m.queues[kind as usize].place == Place::Passed)
    }

    /// Commands of this flow that have not passed yet, but for those of its lane, and the most bytes
    /// of one.
    pub(crate) fn survey(&self, slot: u32, lanes: &Lanes) -> (usize, u32) {
        let Some(member) = self.member(slot) else { return (0, 0) };
        let (express, small) = (lanes.survey(member.express), lanes.survey(member.small));
        (express.0 + small.0, express.1.max(small.1))
    }

    /// The most bytes of a command that has not passed, but for those of lanes.
    pub(crate) fn largest_waiting(&self, lanes: &Lanes) -> u32 {
        let slots = 0..u32::try_from(self.members.len()).unwrap_or(u32::MAX);
        slots.map(|slot| self.survey(slot, lanes).1).max().unwrap_or(0)
    }

    /// Gives a flow these tenants, or none. Yields whether it has limits now; what of it had passed is
    /// taken back first, and is to be enqueued by the caller as nothing had.
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

    /// Takes all that waits of a flow that ends.
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

    /// Takes out one command that waits. `None`: it does not; else whether the lane has to leave the
    /// order.
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

    /// The small one of this flow that has passed goes to its lane instead, where it passes anew.
    pub(crate) fn take_back_small(&mut self, waiting: Waiting, charge: Charge) {
        let slot = waiting.flow.slot();
        self.take_back(slot, Kind::Small, waiting, charge);
        self.ask_later(slot, Kind::Small);
    }

    /// Has a queue ask at the next look, if it has something and does not wait already.
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

    /// The door may let somebody pass: those that wait ask again, in order, until one may not.
    fn serve(&mut self, at: u32, lanes: &mut Lanes, order: &mut Order) {
        let now = self.now;
        if let Some(door) = self.door_mut(at) {
            // Open to the first, and closed again by whoever may not pass.
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

    /// The first command of a queue asks: those of its doors that `first` is not, after that.
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

    /// Every door of the flow, one after the other: those that have granted it already are not asked again. Else which
    /// one it waits for, and what that waits for. What is in flight comes last, so that nobody waits for time with
    /// something that others wait for.
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
            // Those that wait there already are before this one.
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

    /// A door has granted this queue's first command: the queue's tag there moves on, and the door's time with it.
    fn served(&mut self, (slot, kind): (u32, Kind), nth: usize, wish: Wish, weight: u16) {
        let Self { members, doors, .. } = self;
        let Some(member) = members.get_mut(slot as usize).and_then(Option::as_mut) else { return };
        let Some(Some(door)) = doors.get_mut(member.doors[nth] as usize) else { return };
        let tag = &mut member.queues[kind as usize].tags[nth];
        door.virtual_time = (*tag).max(door.virtual_time);
        let bytes = if nth == IN_FLIGHT { Some(wish.bytes) } else { wish.charge.bytes() };
        *tag = door.virtual_time + bytes.map_or(0, |bytes| u128::from(step(bytes, weight)));
    }

    /// What a queue waits with is another command, or none: the doors have back what they granted for it.
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

    /// A queue waits before one of its flow's doors.
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

    /// The first command of a queue has passed: it goes where it would have gone without limits. The order is told by the
    /// caller.
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

    /// A command that had passed will not start: the limits have what it took.
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

    /// Takes back what has passed of a flow and not started; true if its lane was in the order.
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

    /// Takes a flow from its doors; what waits of it besides its lane is the caller's.
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
                // What it kept for them goes back, to others perhaps.
                door.rest(now);
            }
            self.forget_unused(at);
        }
        // One place in line may be free now.
        self.span = 0;
        (member.express, member.small)
    }

    /// The doors of these tenants, made where there are none, with the limits that hold now.
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
            // A permit carries its number. There are not as many: 65 535 connections at most on all
            // cores, two of them a host's.
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

    /// A door that nobody has any more, and that nothing comes back to, goes.
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

    /// Room for all there is, so that nothing is allocated while commands wait and pass.
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

    /// When to look again.
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

/// What [`Gates::assign`] did.
#[derive(Debug)]
pub(crate) enum Assigned {
    /// The flow has what it had.
    Unchanged,
    /// It has other limits, or none.
    Changed {
        /// What waited of it, without a buffer and small: the caller's, if it has no limits any more.
        express: List,
        small: List,
        /// Its lane was in the order, with a pass that it has no more.
        left_order: bool,
        /// It has limits.
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

/// How far a command moves its queue's tag on.
fn step(bytes: u32, weight: u16) -> u64 {
    (u64::from(bytes).max(LEAST_STEP) << TAG_SHIFT) / u64::from(weight.max(1))
}
