//! Checker that no waiting flow is starved beyond a bound.

use super::{Checker, SimEvent, slot};
use crate::scenario::Nanos;

/// Tracks how long every waiting flow has no start, and the starts on its core in that time. It
/// only counts the commands of a flow, so it works for any order within the flow.
#[derive(Debug)]
pub struct Starvation {
    bound: StarvationBound,
    flows: Vec<Flow>,
    cores: Vec<Core>,
    flow_of: Vec<u32>,
}

/// Bound on a waiting flow without a start.
#[derive(Debug, Clone, Copy)]
pub struct StarvationBound {
    /// Maximum time.
    pub time: Nanos,
    /// Maximum number of commands that start on its core, per flow of that core. [`u64::MAX`] is no
    /// bound.
    pub commands: u64,
}

#[derive(Debug, Clone, Copy, Default)]
struct Flow {
    waiting: u32,
    core: u32,
    is_known: bool,
    /// Time of its last start, or of the start of its wait, and the starts on its core until then.
    since: Nanos,
    started: u64,
}

#[derive(Debug, Clone, Copy, Default)]
struct Core {
    started: u64,
    flows: u64,
}

impl Starvation {
    /// Creates a checker with these bounds for a waiting flow.
    #[must_use]
    pub fn new(bound: StarvationBound) -> Self {
        Self { bound, flows: Vec::new(), cores: Vec::new(), flow_of: Vec::new() }
    }

    /// Records a start of this flow, or its first waiting command; returns the gap before.
    fn serve(&mut self, number: u32, now: Nanos) -> Went {
        let flow = slot(&mut self.flows, number);
        let core = *slot(&mut self.cores, flow.core);
        let went =
            Went { time: now.saturating_sub(flow.since), commands: core.started - flow.started };
        (flow.since, flow.started) = (now, core.started);
        went
    }
}

/// Gap of a flow without a start.
struct Went {
    time: Nanos,
    commands: u64,
}

impl Checker for Starvation {
    fn see(&mut self, seen: SimEvent, now: Nanos) -> Result<(), String> {
        match seen {
            SimEvent::Waits { command, core, flow: number, .. } => {
                *slot(&mut self.flow_of, command) = number;
                let flow = slot(&mut self.flows, number);
                if !std::mem::replace(&mut flow.is_known, true) {
                    flow.core = core;
                    slot(&mut self.cores, core).flows += 1;
                }
                flow.waiting += 1;
                if flow.waiting == 1 {
                    let _ = self.serve(number, now);
                }
            }
            SimEvent::Starts { command, core, .. } => {
                let number = *slot(&mut self.flow_of, command);
                slot(&mut self.cores, core).started += 1;
                let went = self.serve(number, now);
                let flow = slot(&mut self.flows, number);
                flow.waiting -= 1;
                if went.time > self.bound.time {
                    return Err(format!("flow {number} went {} ns without a start", went.time));
                }
                let flows = slot(&mut self.cores, core).flows;
                if went.commands > self.bound.commands.saturating_mul(flows) {
                    return Err(format!(
                        "flow {number} was passed over by {} commands of {flows} flows",
                        went.commands - 1
                    ));
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn end(&mut self, now: Nanos) -> Result<(), String> {
        let hungry =
            |flow: &&Flow| flow.waiting > 0 && now.saturating_sub(flow.since) > self.bound.time;
        match self.flows.iter().filter(hungry).count() {
            0 => Ok(()),
            number => Err(format!("{number} flows wait since more than {} ns", self.bound.time)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIME_ONLY: StarvationBound = StarvationBound { time: 100, commands: u64::MAX };

    fn waits(command: u32, flow: u32) -> SimEvent {
        SimEvent::Waits { command, core: 0, flow, bytes: 1 }
    }

    fn starts(command: u32) -> SimEvent {
        SimEvent::Starts { command, core: 0, budget: None }
    }

    #[test]
    fn a_machine_that_lets_a_flow_wait_for_ever_is_caught_at_the_end() {
        let mut checker = Starvation::new(TIME_ONLY);
        assert!(checker.see(waits(0, 0), 0).is_ok());
        assert!(checker.see(waits(1, 1), 0).is_ok());
        assert!(checker.see(starts(0), 50).is_ok());
        assert!(checker.end(60).is_ok());
        assert!(checker.end(101).is_err());
    }

    #[test]
    fn a_start_after_the_bound_is_caught() {
        let mut checker = Starvation::new(TIME_ONLY);
        assert!(checker.see(waits(0, 0), 10).is_ok());
        assert!(checker.see(starts(0), 111).is_err());
    }

    #[test]
    fn waiting_behind_its_own_flow_is_no_starvation() {
        let mut checker = Starvation::new(StarvationBound { commands: 2, ..TIME_ONLY });
        for command in 0..10 {
            assert!(checker.see(waits(command, 0), 0).is_ok());
        }
        for command in 0..10 {
            assert!(checker.see(starts(command), u64::from(command) * 90).is_ok());
        }
        assert!(checker.end(10_000).is_ok());
    }

    #[test]
    fn who_is_passed_over_by_more_than_the_bound_is_caught() {
        let passed_over = |by: u32| {
            let mut checker = Starvation::new(StarvationBound { commands: 4, ..TIME_ONLY });
            assert!(checker.see(waits(0, 0), 0).is_ok());
            for command in 1..=by {
                assert!(checker.see(waits(command, 1), 0).is_ok());
                assert!(checker.see(starts(command), 1).is_ok());
            }
            checker.see(starts(0), 2)
        };
        // Per flow, with two flows.
        assert!(passed_over(7).is_ok());
        assert!(passed_over(8).is_err());
    }

    #[test]
    fn what_other_cores_start_passes_nobody_over() {
        let mut checker = Starvation::new(StarvationBound { commands: 1, ..TIME_ONLY });
        assert!(checker.see(waits(0, 0), 0).is_ok());
        for command in 1..10 {
            let waits = SimEvent::Waits { command, core: 1, flow: 1, bytes: 1 };
            assert!(checker.see(waits, 0).is_ok());
            let starts = SimEvent::Starts { command, core: 1, budget: None };
            assert!(checker.see(starts, 1).is_ok());
        }
        assert!(checker.see(starts(0), 2).is_ok());
    }
}
