//! Flow queues: one FIFO of waiting commands per flow, all in one slab.

use std::num::NonZeroU32;

use crate::{Charge, Cost, Nanos};

/// Handle of a flow: one host's use of one namespace, served fairly against other flows. It
/// consists of a slot and its generation, so that a removed flow is not mistaken for its successor.
/// A slot is not reused while a permit of it is outstanding. A caller that keeps the handle is safe
/// for fewer than 255 successors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FlowId(NonZeroU32);

/// Low bits of a [`FlowId`], the slot; the bits above are the generation, from 1.
const SLOT_BITS: u32 = 24;
const FIRST_GENERATION: NonZeroU32 = match NonZeroU32::new(1 << SLOT_BITS) {
    Some(first) => first,
    None => NonZeroU32::MIN,
};
/// End of a list.
const NIL: u32 = u32::MAX;

impl FlowId {
    /// Returns the first flow of a slot.
    fn first(slot: u32) -> Self {
        assert!(slot < 1 << SLOT_BITS, "at most {} flows", 1 << SLOT_BITS);
        Self(FIRST_GENERATION | slot)
    }

    /// Returns the next flow of the same slot; generations wrap around after 255.
    fn successor(self) -> Self {
        let next = self.0.checked_add(FIRST_GENERATION.get());
        Self(next.unwrap_or(FIRST_GENERATION | self.slot()))
    }

    /// Returns the slot number.
    #[inline]
    pub(crate) fn slot(self) -> u32 {
        self.0.get() & ((1 << SLOT_BITS) - 1)
    }
}

/// Parameters of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FlowConfig {
    /// Weight of the flow; 0 counts as 1.
    pub weight: u16,
    /// Device that it uses, any number: flows with equal numbers share a device.
    pub device: u32,
    /// Network port that its data leaves by, any number: flows with equal numbers share a port.
    pub network_port: u16,
}

impl FlowConfig {
    /// Creates a flow of this weight on device 0 and port 0.
    #[must_use]
    pub const fn weight(weight: u16) -> Self {
        Self { weight, device: 0, network_port: 0 }
    }
}

/// Statistics of one flow; see [`Pacer::flow_stats`](crate::Pacer::flow_stats).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FlowStats {
    /// Commands waiting for admission now.
    pub waiting: u32,
    /// Commands with data in flight now.
    pub in_flight: u32,
    /// Bytes in flight now.
    pub bytes_in_flight: u64,
    /// Commands with data started since the flow was added.
    pub admitted: u64,
    /// Bytes of the commands started since the flow was added.
    pub admitted_bytes: u64,
    /// Commands of `admitted` that have completed.
    pub completed: u64,
    /// Total time in flight of the completed commands, in ns. Divided by `completed` it is the mean
    /// time.
    pub in_flight_ns: u64,
}

/// Counters behind [`FlowStats`]: only those that each command must update.
#[derive(Debug, Clone, Copy, Default)]
struct FlowCounters {
    bytes_in_flight: u64,
    admitted: u64,
    admitted_bytes: u64,
    completed: u64,
    in_flight_ns: u64,
}

impl FlowCounters {
    #[inline]
    fn start(&mut self, bytes: u32) {
        // 64-bit counters cannot overflow in the life of a machine, so they are not checked for
        // each command.
        let bytes = u64::from(bytes);
        self.bytes_in_flight = self.bytes_in_flight.wrapping_add(bytes);
        self.admitted = self.admitted.wrapping_add(1);
        self.admitted_bytes = self.admitted_bytes.wrapping_add(bytes);
    }

    #[inline]
    fn end(&mut self, bytes: u32, in_flight_ns: Nanos) {
        self.bytes_in_flight -= u64::from(bytes);
        self.completed = self.completed.wrapping_add(1);
        self.in_flight_ns = self.in_flight_ns.saturating_add(in_flight_ns);
    }

    fn has_any_in_flight(&self) -> bool {
        self.admitted != self.completed
    }

    fn stats(&self, waiting: usize) -> FlowStats {
        let FlowCounters { bytes_in_flight, admitted, admitted_bytes, completed, in_flight_ns } =
            *self;
        FlowStats {
            waiting: u32::try_from(waiting).unwrap_or(u32::MAX),
            in_flight: u32::try_from(admitted.wrapping_sub(completed)).unwrap_or(u32::MAX),
            bytes_in_flight,
            admitted,
            admitted_bytes,
            completed,
            in_flight_ns,
        }
    }
}

/// A waiting command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct QueuedCommand {
    pub(crate) token: u64,
    pub(crate) cost: Cost,
    pub(crate) flow: FlowId,
}

/// Flow queues of a pacer, the express list of commands without data, and the list of small
/// commands.
#[derive(Debug)]
pub(crate) struct FlowQueues {
    entries: Slab,
    flow_queues: Vec<FlowQueue>,
    vacant: Vec<u32>,
    no_data: List,
    small: List,
    flows: usize,
    flow_depth: usize,
}

/// One cache line.
#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
struct FlowQueue {
    list: List,
    /// The flow in this slot, or the next to get it.
    flow: FlowId,
    live: bool,
    /// Removed from the scheduler because its device accepts nothing now.
    parked: bool,
    /// Its commands pass the limits of its tenants first: see `tenant::limiters`.
    limited: bool,
    config: FlowConfig,
    counters: FlowCounters,
}

const _: () = assert!(size_of::<FlowQueue>() == 64);

impl FlowQueues {
    pub(crate) fn new(flow_depth: usize) -> Self {
        Self {
            entries: Slab { entries: Vec::new(), free: NIL },
            flow_queues: Vec::new(),
            vacant: Vec::new(),
            no_data: List::EMPTY,
            small: List::EMPTY,
            flows: 0,
            flow_depth,
        }
    }

    /// Adds a flow and reserves room for its commands.
    pub(crate) fn add(&mut self, config: FlowConfig) -> FlowId {
        let config = FlowConfig { weight: config.weight.max(1), ..config };
        self.flows += 1;
        let room = self.flows * self.flow_depth;
        self.entries.entries.reserve(room.saturating_sub(self.entries.entries.len()));
        if let Some(slot) = self.vacant.pop() {
            let flow_queue = &mut self.flow_queues[slot as usize];
            flow_queue.live = true;
            flow_queue.config = config;
            flow_queue.counters = FlowCounters::default();
            return flow_queue.flow;
        }
        let slot = u32::try_from(self.flow_queues.len()).unwrap_or(u32::MAX);
        let flow = FlowId::first(slot);
        let counters = FlowCounters::default();
        self.flow_queues.push(FlowQueue {
            list: List::EMPTY,
            flow,
            live: true,
            parked: false,
            limited: false,
            config,
            counters,
        });
        self.vacant.reserve(self.flow_queues.len() - self.vacant.len());
        flow
    }

    /// Removes a flow whose queue is empty. The slot is reused once none of its commands is in
    /// flight.
    pub(crate) fn remove(&mut self, flow: FlowId) {
        let flow_queue = self.flow_queue(flow);
        debug_assert!(flow_queue.list.head == NIL);
        flow_queue.live = false;
        flow_queue.limited = false;
        flow_queue.flow = flow.successor();
        if !flow_queue.counters.has_any_in_flight() {
            self.vacant.push(flow.slot());
        }
        self.flows -= 1;
    }

    /// Counts the completion of a command whose flow was removed.
    #[cold]
    fn count_late_end(&mut self, slot: u32, bytes: u32) {
        let Some(flow_queue) =
            self.flow_queues.get_mut(slot as usize).filter(|flow_queue| !flow_queue.live)
        else {
            return;
        };
        flow_queue.counters.end(bytes, 0);
        if !flow_queue.counters.has_any_in_flight() {
            self.vacant.push(slot);
        }
    }

    #[inline]
    pub(crate) fn is_live(&self, flow: FlowId) -> bool {
        self.flow_queues.get(flow.slot() as usize).is_some_and(|flow_queue| flow_queue.flow == flow)
    }

    pub(crate) fn flows(&self) -> usize {
        self.flows
    }

    /// Appends a command to its flow queue; true if the queue was empty.
    #[inline]
    pub(crate) fn push(&mut self, waiting: QueuedCommand, charge: Charge) -> bool {
        let flow_queue = &mut self.flow_queues[waiting.flow.slot() as usize];
        assert!(
            flow_queue.flow == waiting.flow,
            "{:?} was removed: nothing may be enqueued on it",
            waiting.flow
        );
        let was_empty = flow_queue.list.head == NIL;
        flow_queue.list.push(&mut self.entries, waiting, charge);
        was_empty
    }

    /// Returns the first command of a flow queue, which must not be empty.
    #[inline(always)]
    pub(crate) fn first(&mut self, slot: u32) -> QueueHead<'_> {
        let flow_queue = &mut self.flow_queues[slot as usize];
        let entry = &mut self.entries.entries[flow_queue.list.head as usize];
        QueueHead { flow_queue, entry, free: &mut self.entries.free }
    }

    /// Queues a command without data on the express list, which is served first.
    #[inline]
    pub(crate) fn push_no_data(&mut self, waiting: QueuedCommand, charge: Charge) {
        assert!(
            self.is_live(waiting.flow),
            "{:?} was removed: nothing may be enqueued on it",
            waiting.flow
        );
        self.no_data.push(&mut self.entries, waiting, charge);
    }

    /// Queues a small command on the list that is served before any flow queue.
    #[inline]
    pub(crate) fn push_small(&mut self, waiting: QueuedCommand, charge: Charge) {
        assert!(
            self.is_live(waiting.flow),
            "{:?} was removed: nothing may be enqueued on it",
            waiting.flow
        );
        self.small.push(&mut self.entries, waiting, charge);
    }

    /// Returns whether a command without data or a small command waits.
    #[inline]
    pub(crate) fn has_out_of_order(&self) -> bool {
        // One comparison per command: either head is NIL only if all its bits are set.
        self.no_data.head & self.small.head != NIL
    }

    /// Returns the first small command.
    #[inline]
    pub(crate) fn first_small(&self) -> Option<QueuedCommand> {
        (self.small.head != NIL).then(|| self.entries.entries[self.small.head as usize].waiting)
    }

    /// Removes the first small command; there must be one.
    #[inline]
    pub(crate) fn pop_small(&mut self) -> (QueuedCommand, Charge) {
        let charge = self.entries.entries[self.small.head as usize].charge;
        (self.small.pop(&mut self.entries), charge)
    }

    #[inline]
    pub(crate) fn pop_no_data(&mut self) -> Option<QueuedCommand> {
        if self.no_data.head == NIL {
            return None;
        }
        Some(self.no_data.pop(&mut self.entries))
    }

    /// Removes one command from its queue. `None` if it is not waiting; otherwise whether its flow
    /// queue is now empty.
    pub(crate) fn cancel(&mut self, flow: FlowId, token: u64) -> Option<PopResult> {
        if !self.is_live(flow) {
            return None;
        }
        let is_it = |waiting: &QueuedCommand| waiting.flow == flow && waiting.token == token;
        if self.no_data.remove(&mut self.entries, is_it).is_some() {
            return Some(PopResult::Unchanged);
        }
        if self.small.remove(&mut self.entries, is_it).is_some() {
            return Some(PopResult::Unchanged);
        }
        let list = &mut self.flow_queues[flow.slot() as usize].list;
        list.remove(&mut self.entries, is_it)?;
        Some(if list.head == NIL { PopResult::Emptied } else { PopResult::Unchanged })
    }

    /// Removes every waiting command of a flow; the flag is true if its flow queue held any.
    pub(crate) fn drain(&mut self, flow: FlowId) -> (Vec<u64>, bool) {
        let mut tokens = Vec::new();
        while let Some((waiting, _)) = self.no_data.remove(&mut self.entries, |w| w.flow == flow) {
            tokens.push(waiting.token);
        }
        while let Some((waiting, _)) = self.small.remove(&mut self.entries, |w| w.flow == flow) {
            tokens.push(waiting.token);
        }
        let mut had_any = false;
        let flow_queue = &mut self.flow_queues[flow.slot() as usize];
        while flow_queue.list.head != NIL {
            had_any = true;
            tokens.push(flow_queue.list.pop(&mut self.entries).token);
        }
        (tokens, had_any)
    }

    pub(crate) fn config(&self, slot: u32) -> FlowConfig {
        self.flow_queues[slot as usize].config
    }

    pub(crate) fn set_weight(&mut self, flow: FlowId, weight: u16) {
        self.flow_queue(flow).config.weight = weight.max(1);
    }

    /// Keeps a flow out of the scheduler until [`FlowQueues::unpark`].
    pub(crate) fn park(&mut self, slot: u32) {
        self.flow_queues[slot as usize].parked = true;
    }

    /// Clears the parked flag. Returns true if it was set and the flow has a waiting command.
    pub(crate) fn unpark(&mut self, slot: u32) -> bool {
        let flow_queue = &mut self.flow_queues[slot as usize];
        std::mem::take(&mut flow_queue.parked) && flow_queue.list.head != NIL
    }

    /// Returns whether the commands of this flow pass the limits of its tenants first.
    #[inline]
    pub(crate) fn is_limited(&self, slot: u32) -> bool {
        self.flow_queues[slot as usize].limited
    }

    pub(crate) fn set_limited(&mut self, slot: u32, limited: bool) {
        self.flow_queues[slot as usize].limited = limited;
    }

    /// Returns the flow in this slot.
    pub(crate) fn flow(&self, slot: u32) -> FlowId {
        self.flow_queues[slot as usize].flow
    }

    /// Returns the list of a flow queue.
    pub(crate) fn list(&self, slot: u32) -> List {
        self.flow_queues[slot as usize].list
    }

    /// Returns the first command of a list, and its charge.
    pub(crate) fn front(&self, list: List) -> Option<(QueuedCommand, Charge)> {
        let entry = self.entries.entries.get(list.head as usize)?;
        Some((entry.waiting, entry.charge))
    }

    /// Appends a command to a list that the caller keeps.
    pub(crate) fn append(&mut self, list: &mut List, waiting: QueuedCommand, charge: Charge) {
        list.push(&mut self.entries, waiting, charge);
    }

    /// Removes the first command of a list that the caller keeps; there must be one.
    pub(crate) fn pop_front(&mut self, list: &mut List) -> (QueuedCommand, Charge) {
        let charge = self.entries.entries[list.head as usize].charge;
        (list.pop(&mut self.entries), charge)
    }

    /// Removes the first matching command from a list that the caller keeps.
    pub(crate) fn remove_from(
        &mut self,
        list: &mut List,
        is_it: impl Fn(&QueuedCommand) -> bool,
    ) -> Option<(QueuedCommand, Charge)> {
        list.remove(&mut self.entries, is_it)
    }

    /// Removes the first matching command from the express list.
    pub(crate) fn remove_no_data(
        &mut self,
        is_it: impl Fn(&QueuedCommand) -> bool,
    ) -> Option<(QueuedCommand, Charge)> {
        self.no_data.remove(&mut self.entries, is_it)
    }

    /// Removes the first matching command from the list of small commands.
    pub(crate) fn remove_small(
        &mut self,
        is_it: impl Fn(&QueuedCommand) -> bool,
    ) -> Option<(QueuedCommand, Charge)> {
        self.small.remove(&mut self.entries, is_it)
    }

    /// Returns the number of commands in a list that the caller keeps, and the largest size in
    /// bytes.
    pub(crate) fn survey(&self, list: List) -> (usize, u32) {
        let of =
            |(count, most): (usize, u32), w: &QueuedCommand| (count + 1, most.max(w.cost.bytes));
        self.entries.iter(list).fold((0, 0), of)
    }

    pub(crate) fn is_parked(&self, slot: u32) -> bool {
        self.flow_queues[slot as usize].parked
    }

    /// Returns the slots with waiting commands.
    pub(crate) fn backlogged(&self) -> impl Iterator<Item = u32> + '_ {
        let slots = 0..u32::try_from(self.flow_queues.len()).unwrap_or(u32::MAX);
        slots.filter(|slot| self.flow_queues[*slot as usize].list.head != NIL)
    }

    /// Returns the slots of live flows, with their parameters.
    pub(crate) fn live(&self) -> impl Iterator<Item = (u32, FlowConfig)> + '_ {
        let slots = 0..u32::try_from(self.flow_queues.len()).unwrap_or(u32::MAX);
        slots
            .zip(&self.flow_queues)
            .filter(|(_, flow_queue)| flow_queue.live)
            .map(|(slot, flow_queue)| (slot, flow_queue.config))
    }

    /// Returns the largest size in bytes of a waiting command; 0 if none waits.
    pub(crate) fn largest_waiting(&self) -> u32 {
        let lists = self.flow_queues.iter().map(|flow_queue| flow_queue.list).chain([self.small]);
        lists.flat_map(|list| self.entries.iter(list)).map(|w| w.cost.bytes).max().unwrap_or(0)
    }

    /// Returns the largest size in bytes of a waiting command of this flow; 0 if none waits.
    pub(crate) fn largest_of(&self, flow: FlowId) -> u32 {
        let lists = [self.flow_queues[flow.slot() as usize].list, self.small].into_iter();
        let of_all = lists.flat_map(|list| self.entries.iter(list));
        of_all.filter(|w| w.flow == flow).map(|w| w.cost.bytes).max().unwrap_or(0)
    }

    /// Returns the statistics of a flow, including its waiting commands.
    pub(crate) fn stats(&self, flow: FlowId) -> Option<FlowStats> {
        if !self.is_live(flow) {
            return None;
        }
        let flow_queue = &self.flow_queues[flow.slot() as usize];
        let of_flow = |list: List| self.entries.iter(list).filter(|w| w.flow == flow).count();
        let waiting = of_flow(flow_queue.list) + of_flow(self.no_data) + of_flow(self.small);
        Some(flow_queue.counters.stats(waiting))
    }

    /// Returns the sum over all flows, including removed flows with commands in flight.
    pub(crate) fn bytes_in_flight(&self) -> u64 {
        self.flow_queues.iter().map(|flow_queue| flow_queue.counters.bytes_in_flight).sum()
    }

    #[inline]
    pub(crate) fn count_start(&mut self, flow: FlowId, bytes: u32) {
        self.flow_queues[flow.slot() as usize].counters.start(bytes);
    }

    /// Counts the completion of a command; false if its flow was removed.
    #[inline]
    pub(crate) fn count_end(&mut self, flow: FlowId, bytes: u32, in_flight_ns: Nanos) -> bool {
        let Some(flow_queue) = self.flow_queues.get_mut(flow.slot() as usize) else { return false };
        if flow_queue.flow != flow {
            self.count_late_end(flow.slot(), bytes);
            return false;
        }
        flow_queue.counters.end(bytes, in_flight_ns);
        true
    }

    fn flow_queue(&mut self, flow: FlowId) -> &mut FlowQueue {
        &mut self.flow_queues[flow.slot() as usize]
    }
}

/// First command of a flow queue, found once: to inspect, and then to take or leave.
#[derive(Debug)]
pub(crate) struct QueueHead<'a> {
    flow_queue: &'a mut FlowQueue,
    entry: &'a mut Entry,
    free: &'a mut u32,
}

impl QueueHead<'_> {
    #[inline(always)]
    pub(crate) fn cost(&self) -> Cost {
        self.entry.waiting.cost
    }

    #[inline(always)]
    pub(crate) fn device(&self) -> u32 {
        self.flow_queue.config.device
    }

    #[inline(always)]
    pub(crate) fn is_limited(&self) -> bool {
        self.flow_queue.limited
    }

    /// Removes and counts the command; true if it was the last.
    #[inline(always)]
    pub(crate) fn start(self) -> (QueuedCommand, bool) {
        let at = self.flow_queue.list.head;
        self.flow_queue.list.head = self.entry.next;
        self.entry.next = *self.free;
        *self.free = at;
        // Field by field: see `Slab::take`.
        let QueuedCommand { token, cost, flow } = self.entry.waiting;
        self.flow_queue.counters.start(cost.bytes);
        (QueuedCommand { token, cost, flow }, self.flow_queue.list.head == NIL)
    }
}

/// Effect of a removal on the flow queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PopResult {
    Unchanged,
    Emptied,
}

/// A list through the slab.
#[derive(Debug, Clone, Copy)]
pub(crate) struct List {
    head: u32,
    tail: u32,
}

impl List {
    pub(crate) const EMPTY: List = List { head: NIL, tail: NIL };

    pub(crate) fn is_empty(&self) -> bool {
        self.head == NIL
    }

    #[inline]
    fn push(&mut self, slab: &mut Slab, waiting: QueuedCommand, charge: Charge) {
        let at = slab.take(waiting, charge);
        if self.head == NIL {
            self.head = at;
        } else {
            slab.entries[self.tail as usize].next = at;
        }
        self.tail = at;
    }

    #[inline]
    fn pop(&mut self, slab: &mut Slab) -> QueuedCommand {
        let at = self.head;
        self.head = slab.entries[at as usize].next;
        slab.give_back(at)
    }

    fn remove(
        &mut self,
        slab: &mut Slab,
        is_it: impl Fn(&QueuedCommand) -> bool,
    ) -> Option<(QueuedCommand, Charge)> {
        let mut before = NIL;
        let mut at = self.head;
        while at != NIL {
            let Entry { waiting, next, charge } = slab.entries[at as usize];
            if is_it(&waiting) {
                if before == NIL {
                    self.head = next;
                } else {
                    slab.entries[before as usize].next = next;
                }
                if self.tail == at {
                    self.tail = before;
                }
                return Some((slab.give_back(at), charge));
            }
            before = at;
            at = next;
        }
        None
    }
}

/// All entries. Unused ones are chained last-in first-out, so that entries in the cache are reused.
#[derive(Debug)]
struct Slab {
    entries: Vec<Entry>,
    free: u32,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    waiting: QueuedCommand,
    next: u32,
    /// Charge against the limits of its tenants.
    charge: Charge,
}

const _: () = assert!(size_of::<Entry>() == 24);

impl Slab {
    fn iter(&self, list: List) -> impl Iterator<Item = &QueuedCommand> + '_ {
        let mut at = list.head;
        std::iter::from_fn(move || {
            let entry = self.entries.get(at as usize)?;
            at = entry.next;
            Some(&entry.waiting)
        })
    }

    #[inline]
    fn take(&mut self, waiting: QueuedCommand, charge: Charge) -> u32 {
        if self.free == NIL {
            return self.grow(waiting, charge);
        }
        let at = self.free;
        // Field by field: a copy of the whole would wait for the stores that it consists of.
        let slot = &mut self.entries[at as usize];
        self.free = slot.next;
        slot.waiting.token = waiting.token;
        slot.waiting.cost = waiting.cost;
        slot.waiting.flow = waiting.flow;
        slot.next = NIL;
        slot.charge = charge;
        at
    }

    /// Adds an entry. There is room for it unless a flow has more waiting commands than it
    /// declared.
    #[cold]
    fn grow(&mut self, waiting: QueuedCommand, charge: Charge) -> u32 {
        let at = u32::try_from(self.entries.len()).unwrap_or(NIL);
        assert!(at < NIL, "fewer than {NIL} commands wait");
        self.entries.push(Entry { waiting, next: NIL, charge });
        at
    }

    #[inline]
    fn give_back(&mut self, at: u32) -> QueuedCommand {
        let entry = &mut self.entries[at as usize];
        entry.next = self.free;
        self.free = at;
        let QueuedCommand { token, cost, flow } = entry.waiting;
        QueuedCommand { token, cost, flow }
    }
}
