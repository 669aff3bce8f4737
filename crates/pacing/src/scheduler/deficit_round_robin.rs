//! Deficit round robin (DRR, Shreedhar and Varghese 1995): flows take turns of the same number of
//! bytes.

use super::{Scheduler, Selection};
use crate::{FlowConfig, Nanos};

/// Deficit round robin: a turn is worth [`DeficitRoundRobin::QUANTUM`] bytes times the weight of
/// the flow. A turn continues while the flow's account is above zero. The next turns of the flow
/// pay for the command that overdraws the account. A command is charged at least
/// [`DeficitRoundRobin::LEAST_CHARGE`].
///
/// *Fairness.* While two flows `i` and `j` both have commands waiting, their charges divided by
/// their weights differ by at most `3 Q + M / w_i + M / w_j`. `Q` is the quantum and `M` the
/// largest charge, at least `Q`. An account stays between `-M` and `Q w`, and the numbers of turns
/// differ by at most one.
///
/// Each selection is O(1) for charges up to the quantum, otherwise a few more steps around the
/// ring.
#[derive(Debug)]
pub struct DeficitRoundRobin {
    flows: Vec<FlowState>,
    /// The flow whose turn it is; undefined while no flow is in.
    front: u32,
    members: u32,
    /// The flow that was suspended in its turn last, or [`NONE`].
    aside: u32,
}

/// No flow.
const NONE: u32 = u32::MAX;

/// Member of the ring, linked by slot number in both directions.
#[derive(Debug, Clone, Copy, Default)]
struct FlowState {
    /// Bytes that this flow may still start in this turn; negative if it owes.
    account: i64,
    next: u32,
    previous: u32,
    weight: u16,
}

impl Default for DeficitRoundRobin {
    fn default() -> Self {
        Self { flows: Vec::new(), front: 0, members: 0, aside: NONE }
    }
}

impl DeficitRoundRobin {
    /// Bytes of one turn for weight 1.
    pub const QUANTUM: u32 = 64 * 1024;
    /// Least charge of a command in bytes: the smallest buffer size.
    pub const LEAST_CHARGE: u32 = 4096;

    #[inline]
    fn flow(&mut self, flow: u32) -> &mut FlowState {
        &mut self.flows[flow as usize]
    }

    /// Ends the front's turn: advances to the first flow that owes nothing.
    #[inline(never)]
    fn next_turn(&mut self) -> u32 {
        let mut front = self.front;
        if self.members == 1 {
            let flow = self.flow(front);
            flow.account = Self::turn_of(flow.weight);
            return front;
        }
        while self.flow(front).account <= 0 {
            front = self.flow(front).next;
            let flow = self.flow(front);
            flow.account += Self::turn_of(flow.weight);
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
}

impl Scheduler for DeficitRoundRobin {
    fn add(&mut self, flow: u32, config: FlowConfig) {
        if self.flows.len() <= flow as usize {
            self.flows.resize(flow as usize + 1, FlowState::default());
        }
        self.aside = NONE;
        *self.flow(flow) = FlowState { weight: config.weight, ..FlowState::default() };
    }

    fn set_weight(&mut self, flow: u32, weight: u16) {
        // The next flow would have been credited a different turn.
        self.aside = NONE;
        let flow = self.flow(flow);
        flow.weight = weight;
        // The rest of a turn is never more than a turn.
        flow.account = flow.account.min(Self::turn_of(weight));
    }

    #[inline]
    fn flow_backlogged(&mut self, flow: u32) {
        if self.members == 0 {
            // A single flow has no debt to another.
            self.front = flow;
            self.members = 1;
            let joined = self.flow(flow);
            joined.next = flow;
            joined.previous = flow;
            joined.account = Self::turn_of(joined.weight);
            return;
        }
        // Behind all other flows.
        self.insert(flow);
        let joined = self.flow(flow);
        joined.account = joined.account.min(0);
    }

    #[inline]
    fn flow_idle(&mut self, flow: u32) {
        self.aside = NONE;
        if self.members == 1 {
            self.members = 0;
            return;
        }
        let FlowState { next, previous, .. } = *self.flow(flow);
        self.flow(previous).next = next;
        self.flow(next).previous = previous;
        self.members -= 1;
        if self.front == flow {
            self.front = next;
            let front = self.flow(next);
            front.account += Self::turn_of(front.weight);
        }
    }

    fn suspend(&mut self, flow: u32) {
        let was_front = self.front == flow && self.members > 1;
        self.flow_idle(flow);
        if was_front {
            self.aside = flow;
        }
    }

    fn resume(&mut self, flow: u32) {
        if self.aside != flow {
            return self.flow_backlogged(flow);
        }
        // Its turn continues, and the next flow's has not begun.
        self.aside = NONE;
        let next = self.front;
        self.insert(flow);
        let next = self.flow(next);
        next.account -= Self::turn_of(next.weight);
        self.front = flow;
    }

    #[inline(always)]
    fn select(&mut self, _now: Nanos) -> Option<Selection> {
        if self.members == 0 {
            return None;
        }
        let front = self.front;
        let flow = if self.flow(front).account > 0 { front } else { self.next_turn() };
        Some(Selection { slot: flow, urgency: 0, load: 0 })
    }

    #[inline]
    fn on_dispatch(&mut self, flow: u32, bytes: u32, _now: Nanos) {
        self.flow(flow).account -= i64::from(bytes.max(Self::LEAST_CHARGE));
    }

    /// Charges a small command. Small commands overdraw the account by at most one quantum:
    /// otherwise a flow with only small commands would accumulate debt over a long time.
    fn on_dispatch_small(&mut self, flow: u32, bytes: u32, _now: Nanos) {
        let account = self.flow(flow).account;
        let charged = account - i64::from(bytes.max(Self::LEAST_CHARGE));
        self.flow(flow).account = charged.max(account.min(-i64::from(Self::QUANTUM)));
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
            scheduler.flow_backlogged(flow);
        }
        for _ in 0..100_000 {
            scheduler.on_dispatch_small(1, DeficitRoundRobin::LEAST_CHARGE, 1);
        }
        let mut alone = 0;
        while scheduler.select(1).expect("both wait").slot == 0 {
            scheduler.on_dispatch(0, DeficitRoundRobin::QUANTUM, 1);
            alone += 1;
            assert!(alone <= 3, "the other lane pays for all");
        }
        assert!(alone > 1, "what it had as small counts");
    }
}
