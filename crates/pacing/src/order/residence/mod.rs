//! Shares what is in flight by residence: who holds memory longer starts less.

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

/// Start-time fair queueing whose service is residence: bytes times the time they stay in flight.
///
/// Every lane has a *tag*, the virtual time up to which it was served, and a *key*, the tag and what
/// the lane has in flight over its weight; one with the lowest key is next. So of lanes that are
/// served alike the one whose device has the least to do is next, and devices that are the bottleneck
/// are all kept busy with few commands. What is in flight comes back, so shares in the long run are
/// those of the tags. A command moves its lane's tag on by
///
/// ```text
/// bytes x price / weight,     price = (hold / (DEAD_ZONE x usual hold))^4, at least 1
/// ```
///
/// `hold` is the mean time that the lane's commands were with their devices, the
/// *usual* hold the harmonic mean of that over all commands of all cores. So devices that are
/// about equal share bandwidth by weight, and one many times slower does not fill the memory with
/// what waits for it. The slow flows together keep a floor: one byte in `FLOOR` (`clock.rs`), as long as
/// they want it, by a *relief* of their price.
///
/// The virtual time is one for all cores, so that a tag is comparable between them: it is the
/// urgency a core waits with when the budget is short. A lane that comes back after a pause joins
/// at the virtual time: nobody saves up. A command that passed over something more urgent of another core, by more than
/// a few commands, does not move it. It is charged all the same, but little from [`Residence::MOST_CHARGES`] ahead of the
/// virtual time on, and nobody joins further than that behind it on the same core.
///
/// A core that has more to do than it can falls behind the virtual time though the budget is not short, but no further than
/// some commands, by what its tags are counted from (`level.rs`). Else who joins there would wait until all its neighbours
/// have caught up, and the core had all of the budget until then on the day that becomes short. Who joins with nothing in
/// flight joins close to its neighbours.
///
/// A drive that stands still would fill the memory: its lanes fall behind, so they are next. But what
/// a lane has in flight counts as often as nothing of it came back for the time of a command, and
/// after many of those the lane's tag keeps up with the virtual time. So it starts no more as long as
/// others have something waiting, but a *probe* at longer and longer intervals, and when the drive goes on
/// it catches up on nothing. Where it is not the drive but a few commands that hang, a probe comes back;
/// from then on these do not count, but where devices and paths are compared.
///
/// Flows that drain through the same port of the network share a *path*. One buffer too many behind
/// one port is one too few behind another, and a fixed sum of buffers drifts to either side of its
/// own accord; and one too many at a device waits there. So among the first lanes, as far as they are
/// within a few commands of the lowest key, the one goes first whose path has the least in flight, and
/// on that path the one whose device has; over all cores, as far as these have told (`loads.rs`).
/// Nobody goes further ahead for it, so shares in the long run are those of the tags.
///
/// *Bound.* While a lane has something waiting it is passed over by another lane at most while that
/// one's key is below its own, in the same bucket of keys (`queue.rs`), which is about half a command,
/// or, if its device or path has less in flight, less than two commands above it: for at most
/// [`Residence::MOST_CHARGES`] commands of the largest size, over its weight, and what it has in flight
/// itself, as often as that counts. But a lane of which nothing comes back is passed over until it does,
/// or nobody else waits, or that has lasted 32 times as long as a command takes; then again until 32
/// times as long as that.
#[derive(Debug)]
pub struct Residence {
    shared: Arc<VirtualTime>,
    core: usize,
    lanes: Vec<Lane>,
    paths: Paths,
    loads: Loads,
    level: Level,
    /// The mean charge of a command at the base price, in bytes, and what the last one was charged.
    charge: u64,
    last_charge: u64,
    /// Mean time of a command in flight, in ns; [`NEVER`]: none came back yet.
    usual_time: u32,
    /// Mean size of a command in bytes.
    size: u64,
    /// Sums for the others to see, as in the clock.
    speed: u64,
    returned: u64,
    bytes: u64,
    slow_bytes: u64,
    /// Bytes that slow lanes may start while nobody else waits and the network is busy, as of when so many had been
    /// started, of all lanes and of slow ones.
    slow_room: i64,
    counted: (u64, u64),
    /// Nobody joins with a tag below this.
    least_tag: u64,
}

/// One cache line.
#[derive(Debug, Clone, Copy, Default)]
#[repr(align(64))]
struct Lane {
    tag: u64,
    /// What it is queued by, at the latest when it is first; see [`Lane::settle`].
    key: u64,
    /// Bytes in flight, each command's at least the least charge.
    in_flight: u64,
    /// When its last command came back, or its only one started.
    heard: Nanos,
    /// Mean hold time of its commands in ns; 0: none came back yet.
    hold: u32,
    /// Mean time of its commands in flight in ns, the last one's as long as it has no price, or the core's as
    /// long as none came back.
    time: u32,
    link: Link,
    /// In 1/256.
    price: u16,
    weight: u16,
    /// At most so much of what it has in flight hangs: a probe came back before it. In least charges.
    hangs: u16,
    /// The low bits of what it had in flight when its last probe was let through, in least charges.
    probed: u16,
    /// Probes let through since it stands still.
    probes: u8,
    /// Commands that have to return before the price is set.
    unpriced: u8,
    way: Way,
}

const _: () = assert!(size_of::<Lane>() == 64);

impl Lane {
    /// Of something in bytes the part that counts, by the lane's weight: never nothing of something.
    #[inline(always)]
    fn over_weight(&self, bytes: u64) -> u64 {
        // Most weights are 1, and a division takes as long as all the rest.
        if self.weight == 1 { bytes } else { bytes.div_ceil(u64::from(self.weight)) }
    }

    /// Is something in flight that is not known to hang?
    #[inline(always)]
    fn is_at_work(&self) -> bool {
        self.in_flight / LEAST_CHARGE > u64::from(self.hangs)
    }

    /// Did nothing come back for twice the time of a command, with something in flight?
    #[inline(always)]
    fn is_silent(&self, now: Nanos) -> bool {
        now.saturating_sub(self.heard) > 2 * Nanos::from(self.time) && self.is_at_work()
    }

    /// Something came back of a lane that has probes out, or something that hangs.
    #[cold]
    fn came_back(&mut self, outcome: Outcome) {
        let charges = u16::try_from(self.in_flight.div_ceil(LEAST_CHARGE)).unwrap_or(u16::MAX);
        if self.probes > 0 && outcome == Outcome::Completed {
            // What did not may hang for ever.
            self.hangs = charges;
            self.probes = 0;
        }
        self.hangs = self.hangs.min(charges);
    }

    /// May a lane that is silent for so many times a command's time ask its device once more? Until something
    /// is started, if so.
    fn may_probe(&mut self, times: u64) -> bool {
        let [low, high, ..] = (self.in_flight / LEAST_CHARGE).to_le_bytes();
        let in_flight = u16::from_le_bytes([low, high]);
        if u32::from(self.probes) < times.ilog2() / PROBE {
            self.probes += 1;
            self.probed = in_flight;
        }
        self.probes > 0 && self.probed == in_flight
    }

    /// Commands from one setting of its price to the next.
    fn until_repriced(&self) -> u8 {
        if self.price == UNKNOWN { 1 } else { REPRICE }
    }

    /// The tag, the weight or what is in flight is another: sets the key.
    #[inline(always)]
    fn settle(&mut self) {
        self.key = self.tag.wrapping_add(self.over_weight(self.in_flight));
    }
}

/// Differences of hold times up to this factor are not told apart.
const DEAD_ZONE: u64 = 2;
/// Nor are those that are less than one part in so many of the time that commands are in flight: where devices answer
/// at once, chance alone makes one hold time many times another.
const TOLD_APART: u64 = 16;
/// Price of the fastest, in 1/256.
const BASE_PRICE: u16 = 256;
/// Price of a flow that has not shown yet how long it holds; a hair below the fastest's.
const UNKNOWN: u16 = BASE_PRICE - 1;
/// Highest price: a flow however slow starts one command for so many of the fastest.
const TOP_PRICE: u16 = 32;
const _: () = assert!(Residence::MOST_CHARGES == 4 * TOP_PRICE as u64);
const _: () = assert!(TOP_PRICE < u16::MAX / BASE_PRICE);
/// What a command out of turn is charged that far ahead: one part in so many, so that lanes there still take turns by
/// their weights, and the virtual time catches up.
const BEYOND: u64 = 32;
/// Commands a mean looks back on, as a power of two.
const MEMORY: u32 = 3;
/// Commands from one setting of a price to the next.
const REPRICE: u8 = 4;
/// What is in flight counts so often at most for a lane of which nothing comes back: from then on its
/// tag keeps up with the virtual time.
const MOST_TIMES: u64 = 8;
/// A lane that stands still may start something so many times a command's time after it was last heard of, and
/// again each time that has become as many times longer: two to this.
const PROBE: u32 = 5;
const _: () = assert!(1 << PROBE > MOST_TIMES);
/// What slow lanes may start while nobody else waits and the network is busy adds up to so many commands, either way.
const MOST_ROOM: u64 = 4;
/// Nothing is known of how long commands take.
const NEVER: u32 = u32::MAX;
/// Least bytes charged: the smallest buffer there is.
const LEAST_CHARGE: u64 = 4096;

impl Residence {
    /// Largest commands' worth of bytes by which a lane may be passed over: four charges, each at
    /// the highest price.
    pub const MOST_CHARGES: u64 = 4 * 32;

    /// The order on core number `core`.
    ///
    /// # Panics
    /// If `shared` is of fewer cores.
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

    /// Sets a lane's price anew; its last command was in flight for `time`.
    #[cold]
    fn reprice(&mut self, lane: u32, bytes: u64, time: Nanos) {
        let time = u32::try_from(time).unwrap_or(NEVER - 1).max(1);
        if self.usual_time == NEVER {
            // Now there is something to tell by whether the others ever answer.
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

    /// Which lane is next where `first` would be, a lane that is silent.
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

    /// Moves a silent lane behind those that are ahead of it by what it has in flight: true if that is
    /// further back than it was, and it is not to be asked whether it still stands.
    fn put_off(&mut self, lane: u32, now: Nanos) -> bool {
        let entry = &mut self.lanes[lane as usize];
        let times = now.saturating_sub(entry.heard) / Nanos::from(entry.time);
        if times > MOST_TIMES {
            // It catches up on nothing.
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

    /// This slow lane is first. If nobody waits but slow ones, and the network has enough to do, what it starts now only
    /// makes others wait later, though they have nothing waiting just now: slow lanes start no more than their floor then,
    /// as long as something is in flight whose return asks again, and others are there.
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

    /// What was started since the last time makes room for slow lanes, or takes it.
    fn count_room(&mut self) {
        let (all, slow) = std::mem::replace(&mut self.counted, (self.bytes, self.slow_bytes));
        let (all, slow) = (self.bytes.wrapping_sub(all), self.slow_bytes.wrapping_sub(slow));
        let most = i64::try_from(MOST_ROOM * self.charge).unwrap_or(i64::MAX);
        let room = self.slow_room.saturating_add_unsigned(slow_part(all));
        self.slow_room = room.saturating_sub_unsigned(slow).clamp(-most, most);
    }

    /// Charges a lane with a command that starts, and little beyond a tag of `most`; yields the tag it had if it is in.
    #[inline(always)]
    fn start(&mut self, lane: u32, bytes: u32, now: Nanos, most: u64) -> Option<u64> {
        // Once, and not anew behind what is written to.
        let lanes = &mut self.lanes[..];
        let entry = &mut lanes[lane as usize];
        if !entry.is_at_work() {
            entry.heard = now;
        }
        let tag = entry.tag;
        let bytes = u64::from(bytes).max(LEAST_CHARGE);
        let charge = entry.over_weight((bytes * u64::from(entry.price)) >> 8);
        entry.tag = tag.wrapping_add(charge).min(most.max(tag.wrapping_add(charge / BEYOND)));
        // As a rule a command of it is back before it is next again.
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

    /// The key of a lane may be another.
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

/// A mean that goes on by one value, or starts with it.
#[inline(always)]
fn mean(mean: u32, value: u32) -> u32 {
    if mean == NEVER { value } else { go_on(mean, value) }
}

/// A mean that goes on by one value. It cannot overflow: it stays between the two.
#[inline(always)]
fn go_on(mean: u32, value: u32) -> u32 {
    mean.wrapping_sub(mean >> MEMORY).wrapping_add(value >> MEMORY)
}

impl Order for Residence {
    fn add(&mut self, lane: u32, config: FlowConfig) {
        if self.lanes.len() <= lane as usize {
            self.lanes.resize(lane as usize + 1, Lane::default());
        }
        // Nothing is left of who had the number, unless that was not said to be gone.
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

    /// The virtual time stays where it is, as the lane may be far ahead of those that wait. Nor is it charged further
    /// ahead than one usual command at the highest price would take it: one day its commands may no longer be small.
    fn started_small(&mut self, lane: u32, bytes: u32, now: Nanos) {
        let usual = self.charge.max(u64::from(bytes));
        let entry = self.lanes[lane as usize];
        let lead = entry.over_weight(u64::from(TOP_PRICE) * usual);
        let most = self.level.of_core(self.shared.now()).saturating_add(lead).max(entry.tag);
        let _ = self.start(lane, bytes, now, most);
        // Not even the little that others are charged beyond that: small ones need no order among each other.
        self.lanes[lane as usize].tag = self.lanes[lane as usize].tag.min(most);
        self.settle(lane);
    }

    /// The virtual time stays where it is: who has the only lane of a core would take it along, and leave those
    /// behind that come back on a core where many wait. Nor is a new lane on its core served alone for long.
    fn started_out_of_turn(&mut self, lane: u32, bytes: u32, now: Nanos) {
        let entry = self.lanes[lane as usize];
        let lead = entry.over_weight(Self::MOST_CHARGES * u64::from(bytes));
        let most = self.level.of_core(self.shared.now()).saturating_add(lead);
        let _ = self.start(lane, bytes, now, most);
        let tag = self.lanes[lane as usize].tag;
        // So far behind that what is charged here catches up in as many commands.
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
            // The device never saw that one.
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
            // What it waits for the network is the same for all, and says nothing about the flow.
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
