//! Deficit round robin (DRR, Shreedhar and Varghese 1995): lanes take turns of the same number of
//! bytes.

use super::{Order, Pick};
use crate::{FlowConfig, Nanos};

/// Deficit round robin: a turn is worth [`RoundRobin::QUANTUM`] bytes times the weight of the lane.
/// A turn continues while the lane's account is above zero. The next turns of the lane pay for the
/// command that overdraws the account. A command is charged at least [`RoundRobin::LEAST_CHARGE`].
///
/// *Fairness.* While two lanes `i` and `j` both have commands waiting, their charges divided by
/// their weights differ by at most `3 Q + M / w_i + M / w_j`. `Q` is the quantum and `M` the
/// largest charge, at least `Q`. An account stays between `-M` and `Q w`, and the numbers of turns
/// differ by at most one.
///
/// Each selection is O(1) for charges up to the quantum, otherwise a few more steps around the
/// ring.
#[derive(Debug)]
pub struct RoundRobin {
    lanes: Vec<Lane>,
    /// The lane whose turn it is; undefined while no lane is in.
    front: u32,
    members: u32,
    /// The lane that was suspended in its turn last, or [`NONE`].
    aside: u32,
}

/// No lane.
const NONE: u32 = u32::MAX;

/// Member of the ring, linked by lane number in both directions.
#[derive(Debug, Clone, Copy, Default)]
struct Lane {
    /// Bytes that this lane may still start in this turn; negative if it owes.
    account: i64,
    next: u32,
    previous: u32,
    weight: u16,
}

impl Default for RoundRobin {
    fn default() -> Self {
        Self { lanes: Vec::new(), front: 0, members: 0, aside: NONE }
    }
}

impl RoundRobin {
    /// Bytes of one turn for weight 1.
    pub const QUANTUM: u32 = 64 * 1024;
    /// Least charge of a command in bytes: the smallest buffer size.
    pub const LEAST_CHARGE: u32 = 4096;

    #[inline]
    fn lane(&mut self, lane: u32) -> &mut Lane {
        &mut self.lanes[lane as usize]
    }

    /// Ends the front's turn: advances to the first lane that owes nothing.
    #[inline(never)]
    fn next_turn(&mut self) -> u32 {
        let mut front = self.front;
        if self.members == 1 {
            let lane = self.lane(front);
            lane.account = Self::turn_of(lane.weight);
            return front;
        }
        while self.lane(front).account <= 0 {
            front = self.lane(front).next;
            let lane = self.lane(front);
            lane.account += Self::turn_of(lane.weight);
        }
        self.front = front;
        front
    }

    /// Inserts a lane into the ring just before the front.
    fn insert(&mut self, lane: u32) {
        let next = self.front;
        let previous = std::mem::replace(&mut self.lane(next).previous, lane);
        self.lane(previous).next = lane;
        let joined = self.lane(lane);
        joined.next = next;
        joined.previous = previous;
        self.members += 1;
    }

    #[inline]
    fn turn_of(weight: u16) -> i64 {
        i64::from(Self::QUANTUM) * i64::from(weight)
    }
}

impl Order for RoundRobin {
    fn add(&mut self, lane: u32, config: FlowConfig) {
        if self.lanes.len() <= lane as usize {
            self.lanes.resize(lane as usize + 1, Lane::default());
        }
        self.aside = NONE;
        *self.lane(lane) = Lane { weight: config.weight, ..Lane::default() };
    }

    fn set_weight(&mut self, lane: u32, weight: u16) {
        // The next lane would have been credited a different turn.
        self.aside = NONE;
        let lane = self.lane(lane);
        lane.weight = weight;
        // The rest of a turn is never more than a turn.
        lane.account = lane.account.min(Self::turn_of(weight));
    }

    #[inline]
    fn join(&mut self, lane: u32) {
        if self.members == 0 {
            // A single lane has no debt to another.
            self.front = lane;
            self.members = 1;
            let joined = self.lane(lane);
            joined.next = lane;
            joined.previous = lane;
            joined.account = Self::turn_of(joined.weight);
            return;
        }
        // Behind all other lanes.
        self.insert(lane);
        let joined = self.lane(lane);
        joined.account = joined.account.min(0);
    }

    #[inline]
    fn leave(&mut self, lane: u32) {
        self.aside = NONE;
        if self.members == 1 {
            self.members = 0;
            return;
        }
        let Lane { next, previous, .. } = *self.lane(lane);
        self.lane(previous).next = next;
        self.lane(next).previous = previous;
        self.members -= 1;
        if self.front == lane {
            self.front = next;
            let front = self.lane(next);
            front.account += Self::turn_of(front.weight);
        }
    }

    fn step_aside(&mut self, lane: u32) {
        let was_front = self.front == lane && self.members > 1;
        self.leave(lane);
        if was_front {
            self.aside = lane;
        }
    }

    fn step_back(&mut self, lane: u32) {
        if self.aside != lane {
            return self.join(lane);
        }
        // Its turn continues, and the next lane's has not begun.
        self.aside = NONE;
        let next = self.front;
        self.insert(lane);
        let next = self.lane(next);
        next.account -= Self::turn_of(next.weight);
        self.front = lane;
    }

    #[inline(always)]
    fn pick(&mut self, _now: Nanos) -> Option<Pick> {
        if self.members == 0 {
            return None;
        }
        let front = self.front;
        let lane = if self.lane(front).account > 0 { front } else { self.next_turn() };
        Some(Pick { lane, urgency: 0, load: 0 })
    }

    #[inline]
    fn started(&mut self, lane: u32, bytes: u32, _now: Nanos) {
        self.lane(lane).account -= i64::from(bytes.max(Self::LEAST_CHARGE));
    }

    /// Charges a small command. Small commands overdraw the account by at most one quantum:
    /// otherwise a lane with only small commands would accumulate debt over a long time.
    fn started_small(&mut self, lane: u32, bytes: u32, _now: Nanos) {
        let account = self.lane(lane).account;
        let charged = account - i64::from(bytes.max(Self::LEAST_CHARGE));
        self.lane(lane).account = charged.max(account.min(-i64::from(Self::QUANTUM)));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// A lane that only had small commands for a long time, which bypass all lanes, does not owe
    /// for that time.
    #[test]
    fn what_went_first_as_small_is_not_paid_for_for_long() {
        let mut order = RoundRobin::default();
        for lane in 0..2 {
            order.add(lane, FlowConfig::weight(1));
            order.join(lane);
        }
        for _ in 0..100_000 {
            order.started_small(1, RoundRobin::LEAST_CHARGE, 1);
        }
        let mut alone = 0;
        while order.pick(1).expect("both wait").lane == 0 {
            order.started(0, RoundRobin::QUANTUM, 1);
            alone += 1;
            assert!(alone <= 3, "the other lane pays for all");
        }
        assert!(alone > 1, "what it had as small counts");
    }
}
