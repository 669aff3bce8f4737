//! Fair queueing by residence: a flow whose commands hold memory longer starts fewer.

mod clock;
mod level;
mod loads;
mod paths;
mod queue;
#[cfg(all(test, not(loom)))]
mod tests;

use std::sync::Arc;

pub use clock::VirtualTime;
use clock::{FULL, SPEED_SHIFT, slow_part};
use level::Level;
use loads::{Loads, Way};
use paths::Paths;
use queue::Link;

use super::{Order, Pick};
use crate::policy::Done;
use crate::sync::Ordering;
use crate::{FlowConfig, Nanos, Outcome};

/// Start-time fair queueing (Goyal, Vin, Cheng 1996) whose service is residence: bytes times their
/// time in flight.
///
/// Every lane has a *start tag*, the virtual time up to which it was served. Its *key* is the tag
/// plus its bytes in flight over its weight; a lane with the lowest key is next. Of lanes that are
/// served alike, the one whose device has the least work is next, so a few commands keep all
/// bottleneck devices busy. Bytes in flight are released again, so long-run shares are those of the
/// tags. A command advances the tag of its lane by
///
/// ```text
/// bytes x price / weight,     price = (hold / (DEAD_ZONE x usual hold))^4, at least 1
/// ```
///
/// `hold` is the mean device time of the lane's commands. The *usual* hold is the harmonic mean of
/// the device times of all commands on all cores. Devices of about equal speed thus share bandwidth
/// by weight, and a much slower device does not fill the memory with waiting data. Together the
/// slow flows keep a minimum share, one byte in `FLOOR` (`clock.rs`), while they have demand; a
/// *discount* on their price ensures it.
///
/// All cores share one virtual time, so tags are comparable between them: the key is the urgency of
/// a core that waits for the budget. A lane that resumes after a pause joins at the virtual time,
/// so no lane accumulates credit. A command that overtakes a more urgent one of another core, by
/// more than a few commands, does not advance virtual time. It is still charged, but little beyond
/// [`Residence::MOST_CHARGES`] ahead of the virtual time. No lane joins further than that behind it
/// on the same core.
///
/// An overloaded core falls behind the virtual time although the budget is not exhausted. An offset
/// of its tags limits that to some commands (`level.rs`). Otherwise a joining lane would wait until
/// all its neighbors have caught up. The core would also get the whole budget for that time once
/// the budget becomes scarce. A lane that joins with nothing in flight joins close to its
/// neighbors.
///
/// A stalled drive must not fill the buffer memory. Its flows fall behind virtual time, so fair
/// queueing alone would select them first. The scheduler therefore multiplies a flow's in-flight
/// bytes by the number of command times without a completion, up to 8. Beyond that the start tag
/// follows virtual time. While other flows are backlogged, a stalled flow starts nothing but a
/// *stall probe*, at exponentially growing intervals. It has no service to catch up on when the
/// drive resumes. If a probe completes while older commands do not, those commands are hung, not
/// the drive. They no longer count, except when devices and ports are compared.
///
/// Flows that drain through the same network port share a *path*. One buffer too many behind one
/// port is one too few behind another, and a fixed number of buffers drifts to either side without
/// control. One too many at a device waits there. So among the first lanes within a few commands of
/// the lowest key, the scheduler selects the path with the least in flight. On that path it selects
/// the lane whose device has the least in flight. Both counts cover all cores, as reported so far
/// (`loads.rs`). No lane gets further ahead by this, so long-run shares are those of the tags.
///
/// *Bound.* A lane with waiting commands is overtaken by another lane only in three cases. The
/// other lane's key is lower, or it is in the same bucket of keys (`queue.rs`), about half a
/// command wide. Or its device or path has less in flight, and its key is less than two commands
/// above. That allows at most [`Residence::MOST_CHARGES`] commands of the largest size, over its
/// weight, plus its own in-flight bytes with their multiplier. A stalled lane is overtaken until a
/// completion, until no other lane waits, or for 32 command times. After that it is overtaken again
/// until 32 times as long.
#[derive(Debug)]
pub struct Residence {
    shared: Arc<VirtualTime>,
    core: usize,
    lanes: Vec<Lane>,
    paths: Paths,
    loads: Loads,
    level: Level,
    /// Mean charge of a command at the base price, in bytes, and the last charge.
    charge: u64,
    last_charge: u64,
    /// Mean time of a command in flight, in ns; [`NEVER`]: none completed yet.
    usual_time: u32,
    /// Mean size of a command in bytes.
    size: u64,
    /// Sums for the other cores, as in the clock.
    speed: u64,
    returned: u64,
    bytes: u64,
    slow_bytes: u64,
    /// Bytes that slow lanes may start while no other lane waits and the network is busy. It is
    /// valid as of the counters below: bytes started by all lanes and by slow ones.
    slow_room: i64,
    counted: (u64, u64),
    /// Lower bound of the tags of joining lanes.
    least_tag: u64,
}

/// One cache line.
#[derive(Debug, Clone, Copy, Default)]
#[repr(align(64))]
struct Lane {
    tag: u64,
    /// Sort key, up to date at the latest when the lane is first; see [`Lane::settle`].
    key: u64,
    /// Bytes in flight, at least the least charge per command.
    in_flight: u64,
    /// Time of the last completion, or of the start of its only command.
    heard: Nanos,
    /// Mean device time of its commands in ns; 0: none completed yet.
    hold: u32,
    /// Mean time of its commands in flight in ns. Before it has a price it is the last command's,
    /// and before a completion that of the core.
    time: u32,
    link: Link,
    /// In units of 1/256.
    price: u16,
    weight: u16,
    /// Upper bound of its hung commands in flight, in least charges: a probe completed before them.
    hangs: u16,
    /// Low bits of its bytes in flight when the last probe started, in least charges.
    probed: u16,
    /// Probes started during the current stall.
    probes: u8,
    /// Completions until the price is set.
    unpriced: u8,
    way: Way,
}

const _: () = assert!(size_of::<Lane>() == 64);

impl Lane {
    /// Divides bytes by the weight; never 0 for a positive number.
    #[inline(always)]
    fn over_weight(&self, bytes: u64) -> u64 {
        // Most weights are 1, and a division takes as long as the rest of the computation.
        if self.weight == 1 { bytes } else { bytes.div_ceil(u64::from(self.weight)) }
    }

    /// Returns whether something is in flight that is not known to be hung.
    #[inline(always)]
    fn is_at_work(&self) -> bool {
        self.in_flight / LEAST_CHARGE > u64::from(self.hangs)
    }

    /// Returns whether the lane has something in flight and no completion for twice the time of a
    /// command.
    #[inline(always)]
    fn is_silent(&self, now: Nanos) -> bool {
        now.saturating_sub(self.heard) > 2 * Nanos::from(self.time) && self.is_at_work()
    }

    /// Handles a completion on a lane with probes or hung commands.
    #[cold]
    fn came_back(&mut self, outcome: Outcome) {
        let charges = u16::try_from(self.in_flight.div_ceil(LEAST_CHARGE)).unwrap_or(u16::MAX);
        if self.probes > 0 && outcome == Outcome::Completed {
            // Commands that did not complete may be hung forever.
            self.hangs = charges;
            self.probes = 0;
        }
        self.hangs = self.hangs.min(charges);
    }

    /// Returns whether a lane may send a stall probe after `times` command times without a
    /// completion. The permission lasts until a command starts.
    fn may_probe(&mut self, times: u64) -> bool {
        let [low, high, ..] = (self.in_flight / LEAST_CHARGE).to_le_bytes();
        let in_flight = u16::from_le_bytes([low, high]);
        if u32::from(self.probes) < times.ilog2() / PROBE {
            self.probes += 1;
            self.probed = in_flight;
        }
        self.probes > 0 && self.probed == in_flight
    }

    /// Returns the number of completions between two settings of the price.
    fn until_repriced(&self) -> u8 {
        if self.price == UNKNOWN { 1 } else { REPRICE }
    }

    /// Recomputes the key after a change of tag, weight or in-flight bytes.
    #[inline(always)]
    fn settle(&mut self) {
        self.key = self.tag.wrapping_add(self.over_weight(self.in_flight));
    }
}

/// Device times that differ by less than this factor count as equal.
const DEAD_ZONE: u64 = 2;
/// So do device times below 1/`TOLD_APART` of the time in flight. Where devices answer immediately,
/// noise alone makes one device time a multiple of another.
const TOLD_APART: u64 = 16;
/// Price of the fastest flow, in units of 1/256.
const BASE_PRICE: u16 = 256;
/// Price of a flow with unknown device time; marginally below that of the fastest.
const UNKNOWN: u16 = BASE_PRICE - 1;
/// Highest price: the slowest flow starts one command per `TOP_PRICE` of the fastest.
const TOP_PRICE: u16 = 32;
const _: () = assert!(Residence::MOST_CHARGES == 4 * TOP_PRICE as u64);
const _: () = assert!(TOP_PRICE < u16::MAX / BASE_PRICE);
/// Divisor of the charge of an out-of-order command that far ahead. Lanes there still take turns by
/// their weights, and virtual time catches up.
const BEYOND: u64 = 32;
/// Commands that a mean covers, as a power of two.
const MEMORY: u32 = 3;
/// Completions between two settings of a price.
const REPRICE: u8 = 4;
/// Largest multiplier of the in-flight bytes of a stalled lane; beyond it, its tag follows virtual
/// time.
const MOST_TIMES: u64 = 8;
/// A stalled lane may start a probe this many command times after its last completion, as a power
/// of two. It may start another each time the stall has become longer by that factor.
const PROBE: u32 = 5;
const _: () = assert!(1 << PROBE > MOST_TIMES);
/// Limit of the bytes that slow lanes may start while no other lane waits and the network is busy,
/// in commands, in either direction.
const MOST_ROOM: u64 = 4;
/// Unknown time of commands.
const NEVER: u32 = u32::MAX;
/// Least charge in bytes: the smallest buffer size.
const LEAST_CHARGE: u64 = 4096;

impl Residence {
    /// Number of largest commands by which a lane may be overtaken: four charges, each at the
    /// highest price.
    pub const MOST_CHARGES: u64 = 4 * 32;

    /// Creates the scheduler of core number `core`.
    ///
    /// # Panics
    /// If `shared` has fewer cores.
    #[must_use]
    pub fn new(shared: Arc<VirtualTime>, core: usize) -> Self {
        let loads = Loads::new(core, &shared.loads);
        Self {
            shared,
            core,
            lanes: Vec::new(),
            paths: Paths::default(),
            loads,
            level: Level::default(),
            charge: 0,
            last_charge: 0,
            usual_time: NEVER,
            size: 0,
            speed: 0,
            returned: 0,
            bytes: 0,
            slow_bytes: 0,
            slow_room: 0,
            counted: (0, 0),
            least_tag: 0,
        }
    }

    /// Sets the price of a lane; its last command was in flight for `time`.
    #[cold]
    fn reprice(&mut self, lane: u32, bytes: u64, time: Nanos) {
        let time = u32::try_from(time).unwrap_or(NEVER - 1).max(1);
        if self.usual_time == NEVER {
            // Lanes without a completion now have a time by which a stall can be detected.
            self.lanes
                .iter_mut()
                .filter(|lane| lane.time == NEVER)
                .for_each(|lane| lane.time = time);
        }
        self.usual_time = mean(self.usual_time, time);
        let entry = &mut self.lanes[lane as usize];
        entry.time = if entry.price == UNKNOWN { time } else { mean(entry.time, time) };
        let returned = u64::from(entry.until_repriced());
        self.returned += returned;
        self.speed =
            self.speed.wrapping_add((returned << SPEED_SHIFT) / u64::from(entry.hold.max(1)));
        let found = &self.shared.by_core[self.core];
        found.returned.store(self.returned, Ordering::Relaxed);
        found.speed.store(self.speed, Ordering::Relaxed);
        found.bytes.store(self.bytes, Ordering::Relaxed);
        found.slow_bytes.store(self.slow_bytes, Ordering::Relaxed);
        self.size = match self.size {
            0 => bytes,
            size => size - (size >> MEMORY) + (bytes >> MEMORY),
        };
        found.size.store(self.size, Ordering::Relaxed);
        let usual = self.shared.usual_hold.load(Ordering::Relaxed);
        if usual > 0 {
            let usual = usual.max(u64::from(self.usual_time) / TOLD_APART);
            entry.price =
                price(Nanos::from(entry.hold), usual, self.shared.relief.load(Ordering::Relaxed));
        }
        entry.unpriced = entry.until_repriced();
        let way = entry.way;
        self.charge = match self.charge {
            0 => self.last_charge,
            charge => charge - (charge >> MEMORY) + (self.last_charge >> MEMORY),
        };
        self.paths.queue(way).set_width(self.charge / 2, &mut self.lanes);
    }

    /// Selects the next lane when `first`, the lane with the lowest key, is stalled.
    #[cold]
    fn pick_with_silent(&mut self, now: Nanos, first: u32) -> u32 {
        let mut lane = first;
        while self.lanes[lane as usize].is_silent(now) && self.put_off(lane, now) {
            match self.paths.first(self.charge, &self.loads, &mut self.lanes) {
                Some(first) => lane = first,
                None => break,
            }
        }
        lane
    }

    /// Moves a stalled lane back by its multiplied in-flight bytes. Returns true if that moves it
    /// back, and it does not start a probe.
    fn put_off(&mut self, lane: u32, now: Nanos) -> bool {
        let entry = &mut self.lanes[lane as usize];
        let times = now.saturating_sub(entry.heard) / Nanos::from(entry.time);
        if times > MOST_TIMES {
            // It has no service to catch up on.
            let long = MOST_TIMES * Nanos::from(entry.time);
            entry.tag = self.level.catch_up(entry.tag, now, long, &self.shared);
            if entry.may_probe(times) {
                return false;
            }
        }
        let lead = entry.over_weight(entry.in_flight) * times.min(MOST_TIMES);
        let key = entry.tag.wrapping_add(lead);
        if key <= entry.key {
            return false;
        }
        entry.key = key;
        self.paths.queue(entry.way).moved(lane, &mut self.lanes);
        true
    }

    /// Returns whether this slow lane, which is first, must wait. If only slow lanes have commands
    /// waiting and the network has enough to do, their data would only delay later commands of
    /// other lanes. Slow lanes then start no more than their minimum share. This holds while a
    /// command is in flight whose completion asks again, and other lanes are active.
    #[cold]
    fn must_wait(&mut self, lane: u32, now: Nanos) -> bool {
        if !self.shared.network_is_busy.load(Ordering::Relaxed) {
            return false;
        }
        self.count_room();
        if self.slow_room > 0 || !self.lanes.iter().any(Lane::is_at_work) {
            return false;
        }
        let long = Nanos::from(self.lanes[lane as usize].time);
        let mut others = self.lanes.iter().filter(|lane| lane.price <= BASE_PRICE);
        others.clone().any(|lane| now.saturating_sub(lane.heard) < long)
            && !others.any(|lane| lane.link.is_in())
    }

    /// Updates the room of slow lanes by the bytes started since the last call.
    fn count_room(&mut self) {
        let (all, slow) = std::mem::replace(&mut self.counted, (self.bytes, self.slow_bytes));
        let (all, slow) = (self.bytes.wrapping_sub(all), self.slow_bytes.wrapping_sub(slow));
        let most = i64::try_from(MOST_ROOM * self.charge).unwrap_or(i64::MAX);
        let room = self.slow_room.saturating_add_unsigned(slow_part(all));
        self.slow_room = room.saturating_sub_unsigned(slow).clamp(-most, most);
    }

    /// Charges a lane for a command that starts, and little beyond a tag of `most`. Returns its
    /// previous tag if it is in.
    #[inline(always)]
    fn start(&mut self, lane: u32, bytes: u32, now: Nanos, most: u64) -> Option<u64> {
        // Borrowed once, not again after each write.
        let lanes = &mut self.lanes[..];
        let entry = &mut lanes[lane as usize];
        if !entry.is_at_work() {
            entry.heard = now;
        }
        let tag = entry.tag;
        let bytes = u64::from(bytes).max(LEAST_CHARGE);
        let charge = entry.over_weight((bytes * u64::from(entry.price)) >> 8);
        entry.tag = tag.wrapping_add(charge).min(most.max(tag.wrapping_add(charge / BEYOND)));
        // Usually one of its commands completes before it is next again.
        let least = entry.tag.wrapping_add(entry.over_weight(entry.in_flight));
        entry.in_flight += bytes;
        entry.settle();
        self.bytes = self.bytes.wrapping_add(bytes);
        if entry.price <= BASE_PRICE {
            self.last_charge = charge;
        } else {
            self.slow_bytes = self.slow_bytes.wrapping_add(bytes);
        }
        let (way, is_in) = (entry.way, entry.link.is_in());
        self.loads.started(way, bytes, &self.shared.loads);
        if is_in {
            self.paths.queue(way).moved_to(lane, least, lanes);
        }
        is_in.then_some(tag)
    }

    /// Updates the key of a lane.
    fn settle(&mut self, lane: u32) {
        let entry = &mut self.lanes[lane as usize];
        entry.settle();
        if entry.link.is_in() {
            self.paths.queue(entry.way).moved(lane, &mut self.lanes);
        }
    }
}

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a ratio of times, held between two constants"
)]
fn price(hold: Nanos, usual: Nanos, relief: u64) -> u16 {
    if hold <= DEAD_ZONE * usual {
        return BASE_PRICE;
    }
    let ratio = hold as f64 / (DEAD_ZONE * usual) as f64;
    let price =
        (ratio * ratio * ratio * ratio).min(f64::from(TOP_PRICE)) * relief as f64 / FULL as f64;
    ((price * f64::from(BASE_PRICE)) as u16).max(BASE_PRICE + 1)
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

impl Order for Residence {
    fn add(&mut self, lane: u32, config: FlowConfig) {
        if self.lanes.len() <= lane as usize {
            self.lanes.resize(lane as usize + 1, Lane::default());
        }
        // Clears the state of the previous flow with this number, in case it was not removed.
        self.remove(lane);
        let way = Way::new(config.device, config.path);
        self.paths.open(way);
        self.loads.open(way, &self.shared.loads);
        let tag = self.level.join(false, &self.shared, || true).max(self.least_tag);
        let (weight, price, time) = (config.weight, UNKNOWN, self.usual_time);
        let unpriced = 1;
        self.lanes[lane as usize] =
            Lane { tag, key: tag, weight, price, way, time, unpriced, ..Lane::default() };
    }

    fn remove(&mut self, lane: u32) {
        let entry = &mut self.lanes[lane as usize];
        self.loads.returned(entry.way, std::mem::take(&mut entry.in_flight), &self.shared.loads);
    }

    fn set_weight(&mut self, lane: u32, weight: u16) {
        self.lanes[lane as usize].weight = weight;
        self.settle(lane);
    }

    #[inline]
    fn join(&mut self, lane: u32) {
        let entry = &mut self.lanes[lane as usize];
        let is_at_work = entry.in_flight > 0;
        let now = self.level.join(is_at_work, &self.shared, || self.paths.have_lanes());
        entry.tag = entry.tag.max(now).max(self.least_tag);
        entry.settle();
        self.paths.queue(entry.way).push(lane, &mut self.lanes);
    }

    fn leave(&mut self, lane: u32) {
        let way = self.lanes[lane as usize].way;
        self.paths.queue(way).remove(lane, &mut self.lanes);
    }

    fn step_back(&mut self, lane: u32) {
        let entry = &mut self.lanes[lane as usize];
        entry.settle();
        self.paths.queue(entry.way).push(lane, &mut self.lanes);
    }

    #[inline(always)]
    fn pick(&mut self, now: Nanos) -> Option<Pick> {
        self.loads.look(now, self.usual_time, &self.lanes, &self.shared.loads);
        let lanes = &mut self.lanes[..];
        let mut lane = self.paths.first(self.charge, &self.loads, lanes)?;
        let mut entry = &lanes[lane as usize];
        if entry.is_silent(now) {
            lane = self.pick_with_silent(now, lane);
            entry = &self.lanes[lane as usize];
        }
        let Lane { key, tag, price, way, .. } = *entry;
        if price > BASE_PRICE && self.must_wait(lane, now) {
            return None;
        }
        let load = key.saturating_sub(tag).wrapping_add(self.loads.on(way));
        Some(Pick { lane, urgency: self.level.to_all(key), load })
    }

    #[inline(always)]
    fn started(&mut self, lane: u32, bytes: u32, now: Nanos) {
        if let Some(tag) = self.start(lane, bytes, now, u64::MAX) {
            self.level.serve(tag, now, &self.shared);
        }
    }

    /// Virtual time does not advance, as the lane may be far ahead of those that wait. The charge
    /// takes the tag at most one usual command at the highest price ahead of virtual time: later
    /// the lane's commands may be larger.
    fn started_small(&mut self, lane: u32, bytes: u32, now: Nanos) {
        let usual = self.charge.max(u64::from(bytes));
        let entry = self.lanes[lane as usize];
        let lead = entry.over_weight(u64::from(TOP_PRICE) * usual);
        let most = self.level.of_core(self.shared.now()).saturating_add(lead).max(entry.tag);
        let _ = self.start(lane, bytes, now, most);
        // Without the small charge beyond that limit: small commands need no order among each
        // other.
        self.lanes[lane as usize].tag = self.lanes[lane as usize].tag.min(most);
        self.settle(lane);
    }

    /// Virtual time does not advance. The only lane of a core would otherwise pull it ahead, and
    /// leave lanes behind that resume on a busy core. A new lane on this core is not served alone
    /// for long, either.
    fn started_out_of_turn(&mut self, lane: u32, bytes: u32, now: Nanos) {
        let entry = self.lanes[lane as usize];
        let lead = entry.over_weight(Self::MOST_CHARGES * u64::from(bytes));
        let most = self.level.of_core(self.shared.now()).saturating_add(lead);
        let _ = self.start(lane, bytes, now, most);
        let tag = self.lanes[lane as usize].tag;
        // This far behind, a lane catches up with this charge within `MOST_CHARGES` commands.
        let behind = Self::MOST_CHARGES * (tag - entry.tag);
        self.least_tag = self.least_tag.max(tag.saturating_sub(behind));
    }

    #[inline(always)]
    fn returned(&mut self, lane: u32, done: &Done, now: Nanos) {
        let entry = &mut self.lanes[lane as usize];
        let bytes = u64::from(done.cost.bytes).max(LEAST_CHARGE);
        entry.in_flight -= bytes;
        self.loads.returned(entry.way, bytes, &self.shared.loads);
        if done.outcome != Outcome::Withdrawn {
            // The device never saw a withdrawn command.
            entry.heard = now;
        }
        if entry.probes > 0 || entry.hangs > 0 {
            entry.came_back(done.outcome);
        }
        entry.settle();
        let queue = self.paths.queue(entry.way);
        let is_misplaced = entry.link.is_in() && queue.is_beyond_its_key(entry);
        let mut is_due = false;
        if done.outcome == Outcome::Completed {
            // The wait for the network is the same for all flows, and contains no information about
            // this one.
            let held = now.saturating_sub(done.started).saturating_sub(done.network);
            let own = u32::try_from(held).unwrap_or(NEVER - 1);
            let hold = if entry.hold == 0 { own } else { go_on(entry.hold, own) };
            entry.hold = hold.max(1);
            entry.unpriced = entry.unpriced.wrapping_sub(1);
            is_due = entry.unpriced == 0;
        }
        if is_misplaced {
            queue.moved(lane, &mut self.lanes);
        }
        if is_due {
            self.reprice(lane, bytes, now.saturating_sub(done.started));
        }
    }
}
