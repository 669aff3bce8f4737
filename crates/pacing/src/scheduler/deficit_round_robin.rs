//! Deficit round robin (DRR, Shreedhar and Varghese 1995): flows take turns of the same number of
//! bytes.

use super::{Dispatched, Pause, Scheduler, Selection};
use crate::{FlowConfig, Nanos};

/// Deficit round robin: a turn is worth [`DeficitRoundRobin::QUANTUM`] bytes times the weight of
/// the flow. A turn continues while the flow's deficit is above zero. The next turns of the flow
/// pay for the command that overdraws the deficit. A command is charged at least
/// [`DeficitRoundRobin::LEAST_CHARGE`].
///
/// *Fairness.* While two flows `i` and `j` both have commands waiting, their charges divided by
/// their weights differ by at most `3 Q + M / w_i + M / w_j`. `Q` is the quantum and `M` the
/// largest charge, at least `Q`. A deficit stays between `-M` and `Q w`, and the numbers of turns
/// differ by at most one.
///
/// Each selection is O(1) for charges up to the quantum, otherwise a few more steps around the
/// ring.
#[derive(Debug)]
pub struct DeficitRoundRobin {
    flows: Vec<DrrFlow>,
    /// The flow whose turn it is; undefined while no flow is in.
    front: u32,
    members: u32,
    /// The flow that was suspended in its turn last, or [`NONE`].
    suspended: u32,
}

/// No flow.
const NONE: u32 = u32::MAX;

/// Member of the ring, linked by slot number in both directions.
#[derive(Debug, Clone, Copy, Default)]
struct DrrFlow {
    /// Bytes that this flow may still start in this turn; negative if it owes.
    deficit: i64,
    next: u32,
    previous: u32,
    weight: u16,
}

impl Default for DeficitRoundRobin {
    fn default() -> Self {
        Self { flows: Vec::new(), front: 0, members: 0, suspended: NONE }
    }
}

impl DeficitRoundRobin {
    /// Bytes of one turn for weight 1.
    pub const QUANTUM: u32 = 64 * 1024;
    /// Least charge of a command in bytes: the smallest buffer size.
    pub const LEAST_CHARGE: u32 = 4096;

    #[inline]
    fn flow(&mut self, flow: u32) -> &mut DrrFlow {
        &mut self.flows[flow as usize]
    }

    /// Ends the front's turn: advances to the first flow that owes nothing.
    #[inline(never)]
    fn next_turn(&mut self) -> u32 {
        let mut front = self.front;
        if self.members == 1 {
            let flow = self.flow(front);
            flow.deficit = Self::turn_of(flow.weight);
            return front;
        }
        while self.flow(front).deficit <= 0 {
            front = self.flow(front).next;
            let flow = self.flow(front);
            flow.deficit += Self::turn_of(flow.weight);
        }
        self.front = front;
        front
    }

    /// Inserts a flow into the ring just before the front.
    fn insert(&mut self, flow: u32) {
        let next = self.front;
        let previous = std::mem::replace(&mut self.flow(next).previous, flow);
        self.flow(previous).next = flow;
        let joined = self.flow(flow);
        joined.next = next;
        joined.previous = previous;
        self.members += 1;
    }

    #[inline]
    fn turn_of(weight: u16) -> i64 {
        i64::from(Self::QUANTUM) * i64::from(weight)
    }

    /// Continues the turn of the flow that was suspended in it; the next flow's has not begun.
    fn resume(&mut self, flow: u32) {
        self.suspended = NONE;
        let next = self.front;
        self.insert(flow);
        let next = self.flow(next);
        next.deficit -= Self::turn_of(next.weight);
        self.front = flow;
    }

    /// Charges a small command. Small commands overdraw the deficit by at most one quantum:
    /// otherwise a flow with only small commands would accumulate debt over a long time.
    fn charge_small(&mut self, flow: u32, bytes: u32) {
        let deficit = self.flow(flow).deficit;
        let charged = deficit - i64::from(bytes.max(Self::LEAST_CHARGE));
        self.flow(flow).deficit = charged.max(deficit.min(-i64::from(Self::QUANTUM)));
    }
}

impl Scheduler for DeficitRoundRobin {
    fn add(&mut self, flow: u32, config: FlowConfig) {
        if self.flows.len() <= flow as usize {
            self.flows.resize(flow as usize + 1, DrrFlow::default());
        }
        self.suspended = NONE;
        *self.flow(flow) = DrrFlow { weight: config.weight, ..DrrFlow::default() };
    }

    fn set_weight(&mut self, flow: u32, weight: u16) {
        // The next flow would have been credited a different turn.
        self.suspended = NONE;
        let flow = self.flow(flow);
        flow.weight = weight;
        // The rest of a turn is never more than a turn.
        flow.deficit = flow.deficit.min(Self::turn_of(weight));
    }

    #[inline]
    fn flow_backlogged(&mut self, flow: u32, pause: Pause) {
        if pause == Pause::Suspended && self.suspended == flow {
            return self.resume(flow);
        }
        if self.members == 0 {
            // A single flow has no debt to another.
            self.front = flow;
            self.members = 1;
            let joined = self.flow(flow);
            joined.next = flow;
            joined.previous = flow;
            joined.deficit = Self::turn_of(joined.weight);
            return;
        }
        // Behind all other flows.
        self.insert(flow);
        let joined = self.flow(flow);
        joined.deficit = joined.deficit.min(0);
    }

    #[inline]
    fn flow_idle(&mut self, flow: u32, pause: Pause) {
        let was_front = self.front == flow;
        let in_its_turn = pause == Pause::Suspended && was_front && self.members > 1;
        self.suspended = if in_its_turn { flow } else { NONE };
        if self.members == 1 {
            self.members = 0;
            return;
        }
        let DrrFlow { next, previous, .. } = *self.flow(flow);
        self.flow(previous).next = next;
        self.flow(next).previous = previous;
        self.members -= 1;
        if was_front {
            self.front = next;
            let front = self.flow(next);
            front.deficit += Self::turn_of(front.weight);
        }
    }

    #[inline(always)]
    fn select(&mut self, _now: Nanos) -> Option<Selection> {
        if self.members == 0 {
            return None;
        }
        let front = self.front;
        let flow = if self.flow(front).deficit > 0 { front } else { self.next_turn() };
        Some(Selection { slot: flow, urgency: 0, load: 0 })
    }

    #[inline(always)]
    fn on_dispatch(&mut self, flow: u32, bytes: u32, dispatched: Dispatched, _now: Nanos) {
        match dispatched {
            Dispatched::Selected | Dispatched::OutOfOrder => {
                self.flow(flow).deficit -= i64::from(bytes.max(Self::LEAST_CHARGE));
            }
            Dispatched::Small => self.charge_small(flow, bytes),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// A flow that only had small commands for a long time, which bypass all flows, does not owe
    /// for that time.
    #[test]
    fn what_went_first_as_small_is_not_paid_for_for_long() {
        let mut scheduler = DeficitRoundRobin::default();
        for flow in 0..2 {
            scheduler.add(flow, FlowConfig::weight(1));
            scheduler.flow_backlogged(flow, Pause::Idle);
        }
        for _ in 0..100_000 {
            scheduler.on_dispatch(1, DeficitRoundRobin::LEAST_CHARGE, Dispatched::Small, 1);
        }
        let mut alone = 0;
        while scheduler.select(1).expect("both wait").slot == 0 {
            scheduler.on_dispatch(0, DeficitRoundRobin::QUANTUM, Dispatched::Selected, 1);
            alone += 1;
            assert!(alone <= 3, "the other lane pays for all");
        }
        assert!(alone > 1, "what it had as small counts");
    }
}
