//! Shares what is in flight by residence: who holds memory longer starts less.

use std::sync::Arc;

use super::{Order, Pick};
use crate::Nanos;
use crate::sync::{AtomicU64, Ordering};

/// Start-time fair queueing whose service is residence: bytes times the time they stay in flight.
///
/// Every lane has a *tag*, the virtual time up to which it was served; the lowest is next. A
/// command moves its lane's tag on by
///
/// ```text
/// bytes x price / weight,   price = max(1, hold / (DEAD_ZONE x least hold))^1.5
/// ```
///
/// `hold` is the mean time the lane's commands stay in flight and `least hold` that of the fastest
/// flow on any core. So equal devices share bandwidth by weight, and a device eight times slower
/// than others shares memory with them by something between bytes and residence. What the power
/// 1.5 is made of: 1 for the residence itself and 0.5 for the weight of a slow flow.
///
/// The virtual time is one for all cores, so that a tag is comparable between them: it is the
/// urgency a core waits with when the budget is short. A lane that comes back after a pause joins
/// at the virtual time: nobody saves up.
///
/// *Bound.* While a lane has something waiting, any other lane starts no more than
/// `M x P / w` bytes (the largest charge) above its own share: tags of lanes that wait differ by at
/// most the largest charge of the lanes concerned.
#[derive(Debug)]
pub struct Residence {
    shared: Arc<VirtualTime>,
    core: usize,
    lanes: Vec<Lane>,
    /// Lanes that are in, a binary heap by tag.
    heap: Vec<u32>,
    /// The least mean hold of this core's lanes since the last look of the shared clock, and when
    /// that was.
    least: Nanos,
    look: u64,
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
    /// Position in the heap.
    at: u32,
}

/// The virtual time of all cores, and the least hold time among their flows.
#[derive(Debug)]
pub struct VirtualTime {
    now: AtomicU64,
    least_hold: AtomicU64,
    look: AtomicU64,
    by_core: Box<[AtomicU64]>,
}

impl VirtualTime {
    /// For so many cores.
    #[must_use]
    pub fn new(cores: usize) -> Arc<Self> {
        Arc::new(Self {
            now: AtomicU64::new(0),
            least_hold: AtomicU64::new(0),
            look: AtomicU64::new(1),
            by_core: (0..cores).map(|_| AtomicU64::new(0)).collect(),
        })
    }

    /// Takes what the cores found since the last call as the least hold time. Called now and then
    /// by one core, so that the least is a recent one.
    pub(crate) fn refresh(&self) {
        let found = self.by_core.iter().map(|core| core.swap(0, Ordering::Relaxed));
        if let Some(least) = found.filter(|hold| *hold > 0).min() {
            self.least_hold.store(least, Ordering::Relaxed);
        }
        self.look.fetch_add(1, Ordering::Relaxed);
    }

    #[inline]
    fn advance(&self, tag: u64) {
        if self.now.load(Ordering::Relaxed) < tag {
            // Another core may go back a little with this; tags differ by as much anyway.
            self.now.store(tag, Ordering::Relaxed);
        }
    }
}

/// Differences of hold times up to this factor are not told apart.
const DEAD_ZONE: f64 = 1.5;
/// Price of the fastest, in 1/256.
const BASE_PRICE: u32 = 256;
/// Highest price: a flow however slow starts one command for 4096 of the fastest.
const TOP_PRICE: f64 = 4096.0;
/// Commands a mean looks back on, as a power of two.
const MEMORY: u32 = 4;
/// Commands from one setting of a price to the next.
const REPRICE: u8 = 8;
/// Least bytes charged: the smallest buffer there is.
const LEAST_CHARGE: u64 = 4096;

impl Residence {
    /// The order on core number `core`.
    #[must_use]
    pub fn new(shared: Arc<VirtualTime>, core: usize) -> Self {
        Self { shared, core, lanes: Vec::new(), heap: Vec::new(), least: 0, look: 0 }
    }

    #[inline]
    fn before(&self, a: u32, b: u32) -> bool {
        self.lanes[a as usize].tag < self.lanes[b as usize].tag
    }

    #[inline]
    fn place(&mut self, at: usize, lane: u32) {
        self.heap[at] = lane;
        self.lanes[lane as usize].at = u32::try_from(at).unwrap_or(u32::MAX);
    }

    fn sift_up(&mut self, mut at: usize) {
        let lane = self.heap[at];
        while at > 0 {
            let parent = self.heap[(at - 1) / 2];
            if !self.before(lane, parent) {
                break;
            }
            self.place(at, parent);
            at = (at - 1) / 2;
        }
        self.place(at, lane);
    }

    #[inline]
    fn sift_down(&mut self, mut at: usize) {
        let lane = self.heap[at];
        let tag = self.lanes[lane as usize].tag;
        loop {
            let mut child = 2 * at + 1;
            if child >= self.heap.len() {
                break;
            }
            if child + 1 < self.heap.len() && self.before(self.heap[child + 1], self.heap[child]) {
                child += 1;
            }
            let below = self.heap[child];
            if tag <= self.lanes[below as usize].tag {
                break;
            }
            self.place(at, below);
            at = child;
        }
        self.place(at, lane);
    }

    fn is_in(&self, lane: u32) -> bool {
        self.heap.get(self.lanes[lane as usize].at as usize) == Some(&lane)
    }

    #[cold]
    fn reprice(&mut self, lane: u32) {
        let least = self.shared.least_hold.load(Ordering::Relaxed);
        let entry = &mut self.lanes[lane as usize];
        entry.returned = 0;
        if least == 0 {
            return;
        }
        entry.price = price(entry.hold, least);
        let look = self.shared.look.load(Ordering::Relaxed);
        if look != self.look {
            self.look = look;
            self.least = Nanos::MAX;
        }
        self.publish(lane);
    }

    /// Tells the others if this lane is the fastest here.
    fn publish(&mut self, lane: u32) {
        let hold = self.lanes[lane as usize].hold;
        if hold < self.least {
            self.least = hold;
            self.shared.by_core[self.core].store(hold, Ordering::Relaxed);
        }
    }
}

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a ratio of times, held between two constants"
)]
fn price(hold: Nanos, least: Nanos) -> u32 {
    let ratio = hold as f64 / (DEAD_ZONE * least as f64);
    let price = (ratio * ratio.max(0.0).sqrt()).clamp(1.0, TOP_PRICE);
    (price * f64::from(BASE_PRICE)) as u32
}

impl Order for Residence {
    fn add(&mut self, lane: u32, weight: u16) {
        if self.lanes.len() <= lane as usize {
            self.lanes.resize(lane as usize + 1, Lane::default());
            self.heap.reserve(self.lanes.len() - self.heap.len());
        }
        let tag = self.shared.now.load(Ordering::Relaxed);
        self.lanes[lane as usize] =
            Lane { tag, weight, price: BASE_PRICE, at: u32::MAX, ..Lane::default() };
    }

    fn set_weight(&mut self, lane: u32, weight: u16) {
        self.lanes[lane as usize].weight = weight;
    }

    #[inline]
    fn join(&mut self, lane: u32) {
        let now = self.shared.now.load(Ordering::Relaxed);
        let entry = &mut self.lanes[lane as usize];
        entry.tag = entry.tag.max(now);
        self.heap.push(lane);
        self.sift_up(self.heap.len() - 1);
    }

    fn leave(&mut self, lane: u32) {
        let at = self.lanes[lane as usize].at as usize;
        let Some(last) = self.heap.pop() else { return };
        self.lanes[lane as usize].at = u32::MAX;
        if last != lane {
            self.place(at, last);
            self.sift_up(at);
            let at = self.lanes[last as usize].at as usize;
            self.sift_down(at);
        }
    }

    #[inline]
    fn pick(&mut self) -> Option<Pick> {
        let lane = *self.heap.first()?;
        Some(Pick { lane, urgency: self.lanes[lane as usize].tag })
    }

    #[inline]
    fn started(&mut self, lane: u32, bytes: u32) {
        let entry = &mut self.lanes[lane as usize];
        let tag = entry.tag;
        let bytes = u64::from(bytes).max(LEAST_CHARGE);
        entry.tag += (bytes * u64::from(entry.price) >> 8) / u64::from(entry.weight);
        let at = entry.at as usize;
        if self.is_in(lane) {
            self.sift_down(at);
            self.shared.advance(tag);
        }
    }

    #[inline]
    fn returned(&mut self, lane: u32, _bytes: u32, held: Nanos) {
        let entry = &mut self.lanes[lane as usize];
        if entry.hold == 0 {
            entry.hold = held.max(1);
        } else {
            entry.hold =
                (entry.hold + (held >> MEMORY)).saturating_sub(entry.hold >> MEMORY).max(1);
        }
        entry.returned += 1;
        if entry.returned >= REPRICE {
            self.reprice(lane);
        }
    }
}
