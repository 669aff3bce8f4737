//! Shares what is in flight by residence: who holds memory longer starts less.

mod clock;
mod paths;
mod queue;
#[cfg(all(test, not(loom)))]
mod tests;

use std::sync::Arc;

pub use clock::VirtualTime;
use clock::{FULL, SPEED_SHIFT};
use paths::Paths;

use super::{Order, Pick};
use crate::policy::Done;
use crate::sync::Ordering;
use crate::{FlowConfig, Nanos};

/// Start-time fair queueing whose service is residence: bytes times the time they stay in flight.
///
/// Every lane has a *tag*, the virtual time up to which it was served; the lowest is next. A
/// command moves its lane's tag on by
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
/// at the virtual time: nobody saves up.
///
/// Flows that drain through the same port of the network share a *path*. One buffer too many behind
/// one port is one too few behind another, and a fixed sum of buffers drifts to either side of its
/// own accord. So a path that drains faster than the others goes a few commands ahead of its tags.
/// The lead is bounded, so shares in the long run are those of the tags.
///
/// *Bound.* While a lane has something waiting it is passed over by another lane at most while that
/// one's tag, its path's lag included, is below its own: for at most [`Residence::MOST_CHARGES`]
/// commands of the largest size, over its weight.
#[derive(Debug)]
pub struct Residence {
    shared: Arc<VirtualTime>,
    core: usize,
    lanes: Vec<Lane>,
    paths: Paths,
    /// The mean charge of a command at the base price, in bytes.
    charge: u64,
    /// Mean time of a command with its device, in ns.
    with_device: Nanos,
    /// Sums for the others to see, as in the clock.
    speed: u64,
    returned: u64,
    bytes: u64,
    slow_bytes: u64,
}

#[derive(Debug, Clone, Copy, Default)]
struct Lane {
    tag: u64,
    /// Mean hold time of its commands in ns; 0: none came back yet.
    hold: Nanos,
    /// In 1/256.
    price: u32,
    weight: u16,
    /// Returned since the price was set.
    returned: u8,
    path: u8,
    place: Place,
}

/// Where a lane is in the queue of its path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Place {
    /// Nowhere: nothing of it waits.
    #[default]
    Out,
    /// This number in the ring.
    Ring(u32),
    /// This position in the heap.
    Heap(u32),
}

/// Differences of hold times up to this factor are not told apart.
const DEAD_ZONE: f64 = 2.0;
/// Price of the fastest, in 1/256.
const BASE_PRICE: u32 = 256;
/// Price of a flow that has not shown yet how long it holds; a hair below the fastest's.
const UNKNOWN: u32 = BASE_PRICE - 1;
/// Highest price: a flow however slow starts one command for so many of the fastest.
const TOP_PRICE: u32 = 32;
const _: () = assert!(Residence::MOST_CHARGES == 4 * TOP_PRICE as u64);
/// Commands a mean looks back on, as a power of two.
const MEMORY: u32 = 3;
/// Commands from one setting of a price to the next.
const REPRICE: u8 = 4;
/// Least bytes charged: the smallest buffer there is.
const LEAST_CHARGE: u64 = 4096;

impl Residence {
    /// Largest commands' worth of bytes by which a lane may be passed over: four charges, each at
    /// the highest price.
    pub const MOST_CHARGES: u64 = 4 * 32;

    /// The order on core number `core`.
    #[must_use]
    pub fn new(shared: Arc<VirtualTime>, core: usize) -> Self {
        Self {
            shared,
            core,
            lanes: Vec::new(),
            paths: Paths::default(),
            charge: 0,
            with_device: 0,
            speed: 0,
            returned: 0,
            bytes: 0,
            slow_bytes: 0,
        }
    }

    /// Sets a lane's price anew, and its path's lag.
    #[cold]
    fn reprice(&mut self, lane: u32) {
        let entry = &mut self.lanes[lane as usize];
        let returned = u64::from(std::mem::take(&mut entry.returned));
        self.returned += returned;
        self.speed = self.speed.wrapping_add((returned << SPEED_SHIFT) / entry.hold.max(1));
        let found = &self.shared.by_core[self.core];
        found.returned.store(self.returned, Ordering::Relaxed);
        found.speed.store(self.speed, Ordering::Relaxed);
        found.bytes.store(self.bytes, Ordering::Relaxed);
        found.slow_bytes.store(self.slow_bytes, Ordering::Relaxed);
        let usual = self.shared.usual_hold.load(Ordering::Relaxed);
        if usual > 0 {
            entry.price = price(entry.hold, usual, self.shared.relief.load(Ordering::Relaxed));
        }
        self.paths.settle(entry.path, self.charge, self.with_device);
    }
}

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a ratio of times, held between two constants"
)]
fn price(hold: Nanos, usual: Nanos, relief: u64) -> u32 {
    let ratio = hold as f64 / (DEAD_ZONE * usual as f64);
    if ratio <= 1.0 {
        return BASE_PRICE;
    }
    let price =
        (ratio * ratio * ratio * ratio).min(f64::from(TOP_PRICE)) * relief as f64 / FULL as f64;
    ((price * f64::from(BASE_PRICE)) as u32).max(BASE_PRICE + 1)
}

impl Order for Residence {
    fn add(&mut self, lane: u32, config: FlowConfig) {
        if self.lanes.len() <= lane as usize {
            self.lanes.resize(lane as usize + 1, Lane::default());
        }
        let path = Paths::of(config.path);
        self.paths.reserve(path, self.lanes.len());
        let tag = self.shared.now.load(Ordering::Relaxed);
        let (weight, price) = (config.weight, UNKNOWN);
        self.lanes[lane as usize] = Lane { tag, weight, price, path, ..Lane::default() };
    }

    fn set_weight(&mut self, lane: u32, weight: u16) {
        self.lanes[lane as usize].weight = weight;
    }

    #[inline]
    fn join(&mut self, lane: u32) {
        let now = self.shared.now.load(Ordering::Relaxed);
        let entry = &mut self.lanes[lane as usize];
        entry.tag = entry.tag.max(now);
        self.paths.queue(entry.path).push(lane, &mut self.lanes);
    }

    fn leave(&mut self, lane: u32) {
        let path = self.lanes[lane as usize].path;
        self.paths.queue(path).remove(lane, &mut self.lanes);
    }

    #[inline(always)]
    fn pick(&mut self) -> Option<Pick> {
        let (lane, urgency) = self.paths.first()?;
        Some(Pick { lane, urgency })
    }

    #[inline(always)]
    fn started(&mut self, lane: u32, bytes: u32) {
        let entry = &mut self.lanes[lane as usize];
        let tag = entry.tag;
        let bytes = u64::from(bytes).max(LEAST_CHARGE);
        let charge = (bytes * u64::from(entry.price)) >> 8;
        // Most weights are 1, and a division takes as long as all the rest.
        let charge = if entry.weight == 1 { charge } else { charge / u64::from(entry.weight) };
        entry.tag = tag.wrapping_add(charge);
        self.bytes = self.bytes.wrapping_add(bytes);
        let is_usual = entry.price <= BASE_PRICE;
        if is_usual {
            self.charge = self.charge - (self.charge >> MEMORY) + (charge >> MEMORY);
        } else {
            self.slow_bytes = self.slow_bytes.wrapping_add(bytes);
        }
        if entry.place != Place::Out {
            self.paths.queue(entry.path).later(lane, is_usual, &mut self.lanes);
            self.shared.advance(tag);
        }
    }

    #[inline(always)]
    fn returned(&mut self, lane: u32, done: &Done, now: Nanos) {
        let entry = &mut self.lanes[lane as usize];
        // What it waits for the network is the same for all, and says nothing about the flow.
        let held = now.saturating_sub(done.started).saturating_sub(done.network);
        if entry.hold == 0 {
            entry.hold = held.max(1);
        } else {
            let kept = entry.hold - (entry.hold >> MEMORY);
            entry.hold = (kept + (held >> MEMORY)).max(1);
        }
        self.with_device = self.with_device - (self.with_device >> MEMORY) + (held >> MEMORY);
        entry.returned += 1;
        let is_due = entry.returned >= REPRICE || entry.price == UNKNOWN;
        if done.network > 0 {
            self.paths.drained(entry.path, done.network);
        }
        if is_due {
            self.reprice(lane);
        }
    }
}
