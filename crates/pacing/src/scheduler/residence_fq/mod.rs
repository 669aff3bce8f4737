//! Fair queueing by residence: a flow whose commands hold memory longer starts fewer.

mod calendar_queue;
mod core_offset;
mod in_flight;
mod port_queues;
#[cfg(all(test, not(loom)))]
mod tests;
mod virtual_time;

use std::sync::Arc;

use calendar_queue::BucketLink;
use core_offset::CoreTagOffset;
use in_flight::{DevicePort, InFlightView};
use port_queues::PortQueues;
use virtual_time::POWER;
pub use virtual_time::VirtualTime;

use super::{Dispatched, Pause, Scheduler, Selection};
use crate::policy::CompletedCommand;
use crate::sync::Ordering;
use crate::{CommandOutcome, FlowConfig, Nanos};

/// Start-time fair queueing (Goyal, Vin, Cheng 1996) whose service is bytes, or residence: bytes
/// times their time in memory.
///
/// Every flow has a *start tag*, the virtual time up to which it was served. Its *key* is the tag
/// plus its bytes in memory over its weight; a flow with the lowest key is next. Of flows that are
/// served alike, the one whose device has the least work is next, so a few commands keep all
/// bottleneck devices busy. Bytes in flight are released again, so long-run shares are those of the
/// tags. A command advances the tag of its flow by
///
/// ```text
/// bytes x price / weight
/// ```
///
/// The price is 1: a command at a slow device holds no memory until its data arrives, so flows
/// share bandwidth by weight. Of the bytes in flight of its flow, the key counts about the part
/// that a usual device would have. If slow devices hold data that is ready ([`VirtualTime`]), their
/// flows have a higher price, all of their bytes count, and a slow device does not fill the memory
/// with waiting data. A device is slow by the mean device time of the flow's commands. The usual
/// device time, to which it is compared, is a power mean over the flows of all cores, which slow
/// flows do not raise.
///
/// All cores share one virtual time, so tags are comparable between them: the key is the urgency of
/// a core that waits for the budget. A flow that resumes after a pause joins at the virtual time,
/// so no flow accumulates credit. A command that overtakes a more urgent one of another core, by
/// more than a few commands, does not advance virtual time. It is still charged, but little beyond
/// [`ResidenceFairQueue::MOST_CHARGES`] ahead of the virtual time. No flow joins further than that
/// behind it on the same core.
///
/// An overloaded core falls behind the virtual time although the budget is not exhausted. An offset
/// of its tags limits that to some commands (`core_offset.rs`). Otherwise a joining flow would wait
/// until all its neighbors have caught up. The core would also get the whole budget for that time
/// once the budget becomes scarce. A flow that joins is next to its neighbors: at most one command
/// of the largest size behind them.
///
/// A stalled drive must not fill the buffer memory. Its flows fall behind virtual time, so fair
/// queueing alone would select them first. The scheduler therefore multiplies a flow's in-flight
/// bytes by the number of command times without a completion, up to 8. Beyond that the start tag
/// follows virtual time. While other flows are backlogged, a stalled flow starts nothing but a
/// *stall probe*, at exponentially growing intervals. It has no service to catch up on when the
/// drive resumes. If a probe completes while older commands do not, those commands are hung, not
/// the drive. They no longer count, except when devices and ports are compared.
///
/// Flows that drain through the same network port share a *port*. One buffer too many behind one
/// port is one too few behind another, and a fixed number of buffers drifts to either side without
/// control. One too many at a device waits there. So among the first flows within a few commands of
/// the lowest key, the scheduler selects the port with the least in flight. On that port it selects
/// the flow whose device has the least in flight. Both counts cover all cores, as reported so far
/// (`in_flight.rs`). No flow gets further ahead by this, so long-run shares are those of the tags.
///
/// *Bound.* A flow with waiting commands is overtaken by another flow only in three cases. The
/// other flow's key is lower, or it is in the same bucket of keys (`calendar_queue.rs`), about half
/// a command wide. Or its device or port has less in flight, and its key is less than two commands
/// above. That allows at most [`ResidenceFairQueue::MOST_CHARGES`] commands of the largest size,
/// over its weight, plus its own in-flight bytes with their multiplier. A stalled flow is overtaken
/// until a completion, until no other flow waits, or for 32 command times. After that it is
/// overtaken again until 32 times as long.
#[derive(Debug)]
pub struct ResidenceFairQueue {
    shared: Arc<VirtualTime>,
    core: usize,
    flows: Vec<FlowState>,
    port_queues: PortQueues,
    in_flight_view: InFlightView,
    core_offset: CoreTagOffset,
    /// Mean charge of a command at the base price, in bytes, and the last charge.
    charge: u64,
    last_charge: u64,
    /// Mean time of a command in flight, in ns; [`NEVER`]: none completed yet.
    typical_time: u32,
    /// Mean size of a command in bytes.
    size: u64,
    /// As [`CoreTotals::speed`](virtual_time::CoreTotals::speed).
    speed: f64,
    /// Lower bound of the tags of joining flows.
    least_tag: u64,
}

/// One cache line.
#[derive(Debug, Clone, Copy, Default)]
#[repr(align(64))]
struct FlowState {
    start_tag: u64,
    /// Sort key, up to date at the latest when the flow is first; see [`FlowState::settle`].
    sort_key: u64,
    /// Bytes in flight, at least the least charge per command.
    in_flight: u64,
    /// Time of the last completion, or of the start of its only command.
    last_completion: Nanos,
    /// Mean device time of its commands in ns; 0: none completed yet.
    device_time: u32,
    /// Mean time of its commands in flight in ns. Before it has a price it is the last command's,
    /// and before a completion that of the core.
    time: u32,
    link: BucketLink,
    weight: u16,
    /// Upper bound of its hung commands in flight, in least charges: a probe completed before them.
    hung_charges: u16,
    /// Low bits of its bytes in flight when the last probe started, in least charges.
    probed: u16,
    /// Probes started during the current stall.
    stall_probes: u8,
    /// Completions until the price is set.
    completions_since_update: u8,
    /// In units of 1/[`BASE_MULTIPLIER`].
    cost_multiplier: u8,
    /// Its device takes 2^`idle_shift` times as long as usual before the data arrives, and commands
    /// there hold no memory.
    idle_shift: u8,
    device_port: DevicePort,
}

const _: () = assert!(size_of::<FlowState>() == 64);

impl FlowState {
    /// Divides bytes by the weight; never 0 for a positive number.
    #[inline(always)]
    fn over_weight(&self, bytes: u64) -> u64 {
        // Most weights are 1, and a division takes as long as the rest of the computation.
        if self.weight == 1 { bytes } else { bytes.div_ceil(u64::from(self.weight)) }
    }

    /// Returns whether something is in flight that is not known to be hung.
    #[inline(always)]
    fn is_serving(&self) -> bool {
        self.in_flight / LEAST_CHARGE > u64::from(self.hung_charges)
    }

    /// Returns whether the flow has something in flight and no completion for twice the time of a
    /// command.
    #[inline(always)]
    fn is_stalled(&self, now: Nanos) -> bool {
        now.saturating_sub(self.last_completion) > 2 * Nanos::from(self.time) && self.is_serving()
    }

    /// Handles a completion on a flow with probes or hung commands.
    #[cold]
    fn completed(&mut self, outcome: CommandOutcome) {
        let charges = u16::try_from(self.in_flight.div_ceil(LEAST_CHARGE)).unwrap_or(u16::MAX);
        if self.stall_probes > 0 && outcome == CommandOutcome::Completed {
            // Commands that did not complete may be hung forever.
            self.hung_charges = charges;
            self.stall_probes = 0;
        }
        self.hung_charges = self.hung_charges.min(charges);
    }

    /// Returns whether a flow may send a stall probe after `times` command times without a
    /// completion. The permission lasts until a command starts.
    fn may_probe(&mut self, times: u64) -> bool {
        let [low, high, ..] = (self.in_flight / LEAST_CHARGE).to_le_bytes();
        let in_flight = u16::from_le_bytes([low, high]);
        if u32::from(self.stall_probes) < times.ilog2() / PROBE {
            self.stall_probes += 1;
            self.probed = in_flight;
        }
        self.stall_probes > 0 && self.probed == in_flight
    }

    /// Updates the device time by that of a command.
    #[inline(always)]
    fn note_device_time(&mut self, done: &CompletedCommand, now: Nanos) {
        // The wait for the network is the same for all flows, and contains no information about
        // this one.
        let held = now.saturating_sub(done.started).saturating_sub(done.network);
        let own = u32::try_from(held).unwrap_or(NEVER - 1);
        let mean = if self.device_time == 0 { own } else { go_on(self.device_time, own) };
        self.device_time = mean.max(1);
    }

    /// Returns the number of completions between two settings of the price.
    fn completions_until_update(&self) -> u8 {
        if self.cost_multiplier == UNKNOWN { 1 } else { REPRICE }
    }

    /// Returns its bytes in memory over the weight.
    #[inline(always)]
    fn in_memory(&self) -> u64 {
        self.over_weight(self.in_flight) >> self.idle_shift
    }

    /// Recomputes the key after a change of tag, weight or in-flight bytes.
    #[inline(always)]
    fn settle(&mut self) {
        self.sort_key = self.start_tag.wrapping_add(self.in_memory());
    }
}

/// A flow is slow if its commands take at least this multiple of the usual time.
const SLOW: u64 = 2;
/// Price of the fastest flow.
const BASE_MULTIPLIER: u8 = 4;
/// Price of a flow with unknown device time; marginally below that of the fastest.
const UNKNOWN: u8 = BASE_MULTIPLIER - 1;
/// Highest price: the slowest flow starts one command per `MAX_MULTIPLIER` of the fastest.
const MAX_MULTIPLIER: u8 = u8::MAX / BASE_MULTIPLIER;
const _: () = assert!(ResidenceFairQueue::MOST_CHARGES > 2 * MAX_MULTIPLIER as u64);
/// Divisor of the charge of an out-of-order command that far ahead. Flows there still take turns by
/// their weights, and virtual time catches up.
const BEYOND: u64 = 32;
/// Commands that a mean covers, as a power of two.
const MEMORY: u32 = 3;
/// Settings of a price that the mean speed of a core covers.
const SPEED_MEMORY: f64 = 64.0;
/// Completions between two settings of a price.
const REPRICE: u8 = 4;
/// The same while another scheduler has the flows: a price is needed only when they come back.
const SELDOM: u8 = 32;
/// Largest multiplier of the in-flight bytes of a stalled flow; beyond it, its tag follows virtual
/// time.
const MOST_TIMES: u64 = 8;
/// A stalled flow may start a probe this many command times after its last completion, as a power
/// of two. It may start another each time the stall has become longer by that factor.
const PROBE: u32 = 5;
const _: () = assert!(1 << PROBE > MOST_TIMES);
/// Unknown time of commands.
const NEVER: u32 = u32::MAX;
/// Least charge in bytes: the smallest buffer size.
const LEAST_CHARGE: u64 = 4096;

impl ResidenceFairQueue {
    /// Number of largest commands by which a flow may be overtaken: more than two charges at the
    /// highest price.
    pub const MOST_CHARGES: u64 = 128;

    /// Creates the scheduler of core number `core`.
    ///
    /// # Panics
    /// If `shared` has fewer cores.
    #[must_use]
    pub fn new(shared: Arc<VirtualTime>, core: usize) -> Self {
        let in_flight_view = InFlightView::new(core, &shared.in_flight_view);
        Self {
            shared,
            core,
            flows: Vec::new(),
            port_queues: PortQueues::default(),
            in_flight_view,
            core_offset: CoreTagOffset::default(),
            charge: 0,
            last_charge: 0,
            typical_time: NEVER,
            size: 0,
            speed: 0.0,
            least_tag: 0,
        }
    }

    /// Returns a flow that is in, if any.
    pub(super) fn first(&mut self) -> Option<u32> {
        self.port_queues.first(self.charge, &self.in_flight_view, &mut self.flows)
    }

    /// Counts a command that starts while another scheduler has the flows that are in.
    #[inline(always)]
    pub(super) fn count_start(&mut self, flow: u32, bytes: u32) {
        self.flows[flow as usize].in_flight += u64::from(bytes).max(LEAST_CHARGE);
    }

    /// Counts the end of a command in the same way. Some commands tell the device time.
    #[inline(always)]
    pub(super) fn count_end(&mut self, flow: u32, done: &CompletedCommand, now: Nanos) {
        let entry = &mut self.flows[flow as usize];
        let bytes = u64::from(done.cost.bytes).max(LEAST_CHARGE);
        entry.in_flight -= bytes;
        if done.outcome != CommandOutcome::Completed {
            return;
        }
        entry.completions_since_update = entry.completions_since_update.wrapping_sub(1);
        if entry.completions_since_update.is_multiple_of(REPRICE) {
            entry.note_device_time(done, now);
            if entry.completions_since_update == 0 {
                self.last_charge = entry.over_weight(bytes);
                self.update_cost_multiplier(flow, bytes, now.saturating_sub(done.started));
                self.flows[flow as usize].completions_since_update = SELDOM;
            }
        }
    }

    /// Leaves the flows to another scheduler; none is in.
    pub(super) fn suspend(&mut self) {
        self.in_flight_view.clear(&self.shared.in_flight_view);
    }

    /// Takes the flows back. No time has passed for those that may be stalled.
    pub(super) fn resume(&mut self, now: Nanos) {
        for flow in &mut self.flows {
            flow.last_completion = now;
            (flow.stall_probes, flow.hung_charges) = (0, 0);
            flow.completions_since_update = 1;
        }
    }

    /// Sets the price of a flow; its last command was in flight for `time`.
    #[cold]
    fn update_cost_multiplier(&mut self, flow: u32, bytes: u64, time: Nanos) {
        let time = u32::try_from(time).unwrap_or(NEVER - 1).max(1);
        if self.typical_time == NEVER {
            // Flows without a completion now have a time by which a stall can be detected.
            self.flows
                .iter_mut()
                .filter(|flow| flow.time == NEVER)
                .for_each(|flow| flow.time = time);
        }
        self.typical_time = mean(self.typical_time, time);
        let entry = &mut self.flows[flow as usize];
        entry.time = if entry.cost_multiplier == UNKNOWN { time } else { mean(entry.time, time) };
        let speed = f64::from(entry.device_time.max(1)).powi(-POWER);
        self.speed += (speed - self.speed) / if self.speed > 0.0 { SPEED_MEMORY } else { 1.0 };
        let found = &self.shared.by_core[self.core];
        found.speed.store(self.speed.to_bits(), Ordering::Relaxed);
        self.size = match self.size {
            0 => bytes,
            size => size - (size >> MEMORY) + (bytes >> MEMORY),
        };
        found.size.store(self.size, Ordering::Relaxed);
        let usual = self.shared.typical_device_time.load(Ordering::Relaxed);
        let network = self.shared.network_time.load(Ordering::Relaxed);
        let times = match usual {
            0 => 1,
            _ => (Nanos::from(entry.device_time) + network) / (usual + network),
        };
        let price = u8::try_from(self.shared.slow_price.load(Ordering::Relaxed));
        let price = if times < SLOW { BASE_MULTIPLIER } else { price.unwrap_or(u8::MAX) };
        let is_free = price == BASE_MULTIPLIER && times >= SLOW;
        entry.idle_shift = if is_free { u8::try_from(times.ilog2()).unwrap_or(0) } else { 0 };
        entry.cost_multiplier = price;
        entry.completions_since_update = entry.completions_until_update();
        let device_port = entry.device_port;
        self.charge = match self.charge {
            0 => self.last_charge,
            charge => charge - (charge >> MEMORY) + (self.last_charge >> MEMORY),
        };
        self.port_queues.queue(device_port).set_width(self.charge / 2, &mut self.flows);
    }

    /// Selects the next flow when `first`, the flow with the lowest key, is stalled.
    #[cold]
    fn select_with_stalled(&mut self, now: Nanos, first: u32) -> u32 {
        let mut flow = first;
        while self.flows[flow as usize].is_stalled(now) && self.put_off(flow, now) {
            match self.port_queues.first(self.charge, &self.in_flight_view, &mut self.flows) {
                Some(first) => flow = first,
                None => break,
            }
        }
        flow
    }

    /// Moves a stalled flow back by its multiplied in-flight bytes. Returns true if that moves it
    /// back, and it does not start a probe.
    fn put_off(&mut self, flow: u32, now: Nanos) -> bool {
        let entry = &mut self.flows[flow as usize];
        let times = now.saturating_sub(entry.last_completion) / Nanos::from(entry.time);
        if times > MOST_TIMES {
            // It has no service to catch up on.
            let long = MOST_TIMES * Nanos::from(entry.time);
            entry.start_tag = self.core_offset.catch_up(entry.start_tag, now, long, &self.shared);
            if entry.may_probe(times) {
                return false;
            }
        }
        let lead = entry.over_weight(entry.in_flight) * times.min(MOST_TIMES);
        let sort_key = entry.start_tag.wrapping_add(lead);
        if sort_key <= entry.sort_key {
            return false;
        }
        entry.sort_key = sort_key;
        self.port_queues.queue(entry.device_port).moved(flow, &mut self.flows);
        true
    }

    /// Charges a flow for a command that starts, and little beyond a tag of `most`. Returns its
    /// previous tag if it is in.
    #[inline(always)]
    fn start(&mut self, flow: u32, bytes: u32, now: Nanos, most: u64) -> Option<u64> {
        // Borrowed once, not again after each write.
        let flows = &mut self.flows[..];
        let entry = &mut flows[flow as usize];
        if !entry.is_serving() {
            entry.last_completion = now;
        }
        let start_tag = entry.start_tag;
        let bytes = u64::from(bytes).max(LEAST_CHARGE);
        let charge = entry
            .over_weight(bytes * u64::from(entry.cost_multiplier) / u64::from(BASE_MULTIPLIER));
        entry.start_tag =
            start_tag.wrapping_add(charge).min(most.max(start_tag.wrapping_add(charge / BEYOND)));
        // Usually one of its commands completes before it is next again.
        let least = entry.start_tag.wrapping_add(entry.in_memory());
        entry.in_flight += bytes;
        entry.settle();
        self.last_charge = charge;
        let (device_port, is_in) = (entry.device_port, entry.link.is_in());
        self.in_flight_view.on_dispatch(device_port, bytes, &self.shared.in_flight_view);
        if is_in {
            self.port_queues.queue(device_port).moved_to(flow, least, flows);
        }
        is_in.then_some(start_tag)
    }

    /// Charges a small command. Virtual time does not advance, as the flow may be far ahead of
    /// those that wait. The charge takes the tag at most one usual command at the highest price
    /// ahead of virtual time: later the flow's commands may be larger.
    fn start_small(&mut self, flow: u32, bytes: u32, now: Nanos) {
        let usual = self.charge.max(u64::from(bytes));
        let entry = self.flows[flow as usize];
        let lead = entry.over_weight(u64::from(MAX_MULTIPLIER) * usual);
        let most =
            self.core_offset.of_core(self.shared.now()).saturating_add(lead).max(entry.start_tag);
        let _ = self.start(flow, bytes, now, most);
        // Without the small charge beyond that limit: small commands need no order among each
        // other.
        self.flows[flow as usize].start_tag = self.flows[flow as usize].start_tag.min(most);
        self.settle(flow);
    }

    /// Charges a command that started out of order. Virtual time does not advance. The only flow of
    /// a core would otherwise pull it ahead, and leave flows behind that resume on a busy core. A
    /// new flow on this core is not served alone for long, either.
    #[cold]
    fn start_out_of_order(&mut self, flow: u32, bytes: u32, now: Nanos) {
        let entry = self.flows[flow as usize];
        let lead = entry.over_weight(Self::MOST_CHARGES * u64::from(bytes));
        let most = self.core_offset.of_core(self.shared.now()).saturating_add(lead);
        let _ = self.start(flow, bytes, now, most);
        let start_tag = self.flows[flow as usize].start_tag;
        // This far behind, a flow catches up with this charge within `MOST_CHARGES` commands.
        let behind = Self::MOST_CHARGES * (start_tag - entry.start_tag);
        self.least_tag = self.least_tag.max(start_tag.saturating_sub(behind));
    }

    /// Updates the key of a flow.
    fn settle(&mut self, flow: u32) {
        let entry = &mut self.flows[flow as usize];
        entry.settle();
        if entry.link.is_in() {
            self.port_queues.queue(entry.device_port).moved(flow, &mut self.flows);
        }
    }
}

/// Updates a mean by one value, or starts it.
#[inline(always)]
fn mean(mean: u32, value: u32) -> u32 {
    if mean == NEVER { value } else { go_on(mean, value) }
}

/// Updates a mean by one value. It cannot overflow: the result lies between the two.
#[inline(always)]
fn go_on(mean: u32, value: u32) -> u32 {
    mean.wrapping_sub(mean >> MEMORY).wrapping_add(value >> MEMORY)
}

impl Scheduler for ResidenceFairQueue {
    fn add(&mut self, flow: u32, config: FlowConfig) {
        if self.flows.len() <= flow as usize {
            self.flows.resize(flow as usize + 1, FlowState::default());
        }
        // Clears the state of the previous flow with this number, in case it was not removed.
        self.remove(flow);
        let device_port = DevicePort::new(config.device, config.network_port);
        self.port_queues.open(device_port);
        self.in_flight_view.open(device_port, &self.shared.in_flight_view);
        let start_tag = self.core_offset.join(&self.shared, || true).max(self.least_tag);
        self.shared.weigh(config.weight);
        let (weight, cost_multiplier, time) = (config.weight, UNKNOWN, self.typical_time);
        let completions_since_update = 1;
        self.flows[flow as usize] = FlowState {
            start_tag,
            sort_key: start_tag,
            weight,
            cost_multiplier,
            device_port,
            time,
            completions_since_update,
            ..FlowState::default()
        };
    }

    fn remove(&mut self, flow: u32) {
        let entry = &mut self.flows[flow as usize];
        self.in_flight_view.on_complete(
            entry.device_port,
            std::mem::take(&mut entry.in_flight),
            &self.shared.in_flight_view,
        );
    }

    fn set_weight(&mut self, flow: u32, weight: u16) {
        self.shared.weigh(weight);
        self.flows[flow as usize].weight = weight;
        self.settle(flow);
    }

    #[inline]
    fn flow_backlogged(&mut self, flow: u32, pause: Pause) {
        let entry = &mut self.flows[flow as usize];
        if pause == Pause::Idle {
            let has_others = || self.port_queues.has_several_ports();
            let now = self.core_offset.join(&self.shared, has_others);
            entry.start_tag = entry.start_tag.max(now).max(self.least_tag);
        }
        entry.settle();
        self.port_queues.queue(entry.device_port).push(flow, &mut self.flows);
    }

    fn flow_idle(&mut self, flow: u32, _pause: Pause) {
        let device_port = self.flows[flow as usize].device_port;
        self.port_queues.queue(device_port).remove(flow, &mut self.flows);
    }

    #[inline(always)]
    fn select(&mut self, now: Nanos) -> Option<Selection> {
        self.in_flight_view.look(now, self.typical_time, &self.flows, &self.shared.in_flight_view);
        let flows = &mut self.flows[..];
        let mut flow = self.port_queues.first(self.charge, &self.in_flight_view, flows)?;
        let mut entry = &flows[flow as usize];
        if entry.is_stalled(now) {
            flow = self.select_with_stalled(now, flow);
            entry = &self.flows[flow as usize];
        }
        let FlowState { sort_key, start_tag, device_port, .. } = *entry;
        let load =
            sort_key.saturating_sub(start_tag).wrapping_add(self.in_flight_view.on(device_port));
        Some(Selection { slot: flow, urgency: self.core_offset.to_all(sort_key), load })
    }

    #[inline(always)]
    fn on_dispatch(&mut self, flow: u32, bytes: u32, dispatched: Dispatched, now: Nanos) {
        match dispatched {
            Dispatched::Selected => {
                if let Some(start_tag) = self.start(flow, bytes, now, u64::MAX) {
                    self.core_offset.serve(start_tag, now, &self.shared);
                }
            }
            Dispatched::Small => self.start_small(flow, bytes, now),
            Dispatched::OutOfOrder => self.start_out_of_order(flow, bytes, now),
        }
    }

    #[inline(always)]
    fn on_complete(&mut self, flow: u32, done: &CompletedCommand, now: Nanos) {
        let entry = &mut self.flows[flow as usize];
        let bytes = u64::from(done.cost.bytes).max(LEAST_CHARGE);
        entry.in_flight -= bytes;
        self.in_flight_view.on_complete(entry.device_port, bytes, &self.shared.in_flight_view);
        if done.outcome != CommandOutcome::Cancelled {
            // The device never saw a withdrawn command.
            entry.last_completion = now;
        }
        if entry.stall_probes > 0 || entry.hung_charges > 0 {
            entry.completed(done.outcome);
        }
        entry.settle();
        let queue = self.port_queues.queue(entry.device_port);
        let is_misplaced = entry.link.is_in() && queue.is_beyond_its_key(entry);
        let mut is_due = false;
        if done.outcome == CommandOutcome::Completed {
            entry.note_device_time(done, now);
            entry.completions_since_update = entry.completions_since_update.wrapping_sub(1);
            is_due = entry.completions_since_update == 0;
        }
        if is_misplaced {
            queue.moved(flow, &mut self.flows);
        }
        if is_due {
            self.update_cost_multiplier(flow, bytes, now.saturating_sub(done.started));
        }
    }
}
