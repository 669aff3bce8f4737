//! Nobody who waits is starved beyond a bound.

use super::{Checker, Seen, slot};
use crate::scenario::Nanos;

/// Follows how long every flow with something waiting goes without a start. Needs commands of one
/// flow to be told apart only by count, so it holds for any order within the flow.
#[derive(Debug)]
pub struct Starvation {
    bound: Nanos,
    flows: Vec<Flow>,
    flow_of: Vec<u32>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Flow {
    waiting: u32,
    /// When it last got something, or began to wait.
    since: Nanos,
}

impl Starvation {
    /// A flow with something waiting must get something within `bound` ns.
    #[must_use]
    pub fn new(bound: Nanos) -> Self {
        Self { bound, flows: Vec::new(), flow_of: Vec::new() }
    }
}

impl Checker for Starvation {
    fn see(&mut self, seen: Seen, now: Nanos) -> Result<(), String> {
        match seen {
            Seen::Waits { command, flow, .. } => {
                *slot(&mut self.flow_of, command) = flow;
                let flow = slot(&mut self.flows, flow);
                if flow.waiting == 0 {
                    flow.since = now;
                }
                flow.waiting += 1;
            }
            Seen::Starts { command, .. } => {
                let number = *slot(&mut self.flow_of, command);
                let flow = slot(&mut self.flows, number);
                let waited = now.saturating_sub(flow.since);
                flow.since = now;
                flow.waiting -= 1;
                if waited > self.bound {
                    return Err(format!("flow {number} went {waited} ns without a start"));
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn end(&mut self, now: Nanos) -> Result<(), String> {
        let hungry = |flow: &&Flow| flow.waiting > 0 && now.saturating_sub(flow.since) > self.bound;
        match self.flows.iter().filter(hungry).count() {
            0 => Ok(()),
            number => Err(format!("{number} flows wait since more than {} ns", self.bound)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits(command: u32, flow: u32) -> Seen {
        Seen::Waits { command, core: 0, flow, bytes: 1 }
    }

    const FIRST: Seen = Seen::Starts { command: 0, core: 0, budget: None };

    #[test]
    fn a_machine_that_lets_a_flow_wait_for_ever_is_caught_at_the_end() {
        let mut checker = Starvation::new(100);
        assert!(checker.see(waits(0, 0), 0).is_ok());
        assert!(checker.see(waits(1, 1), 0).is_ok());
        assert!(checker.see(FIRST, 50).is_ok());
        assert!(checker.end(60).is_ok());
        assert!(checker.end(101).is_err());
    }

    #[test]
    fn a_start_after_the_bound_is_caught() {
        let mut checker = Starvation::new(100);
        assert!(checker.see(waits(0, 0), 10).is_ok());
        assert!(checker.see(FIRST, 111).is_err());
    }

    #[test]
    fn waiting_behind_its_own_flow_is_no_starvation() {
        let mut checker = Starvation::new(100);
        for command in 0..10 {
            assert!(checker.see(waits(command, 0), 0).is_ok());
        }
        for command in 0..10 {
            let starts = Seen::Starts { command, core: 0, budget: None };
            assert!(checker.see(starts, u64::from(command) * 90).is_ok());
        }
        assert!(checker.end(10_000).is_ok());
    }
}
