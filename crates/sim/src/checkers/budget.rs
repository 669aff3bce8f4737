//! Checker of the budget, with an allowance of one I/O per core and the part for small commands.

use std::collections::VecDeque;

use super::{Checker, SimEvent, slot};
use crate::scenario::Nanos;

/// Checks the sum of the bytes in flight. When the budget falls, cores may hold leases of the
/// larger one for [`Budget::GRACE`]; commands started under it complete at any time. A core with
/// nothing in flight may start one I/O in that time, as always.
#[derive(Debug)]
pub struct Budget {
    slack: u64,
    /// Small commands may take 1/`small_part` in addition to the budget.
    small_part: Option<u64>,
    in_flight: u64,
    bytes: Vec<u32>,
    /// By command: the core that started it. By core: its commands in flight.
    core_of: Vec<u32>,
    held: Vec<u32>,
    /// Recent budgets: time at which each was last seen, in decreasing size.
    recent: VecDeque<(Nanos, u64)>,
}

impl Budget {
    /// Time for which a larger budget still counts, in ns.
    pub const GRACE: Nanos = 5_000_000;

    /// Creates a checker for `cores` cores, each of which may always start one I/O of at most
    /// `largest` bytes.
    #[must_use]
    pub fn new(cores: u32, largest: u32) -> Self {
        Self {
            slack: u64::from(cores) * u64::from(largest),
            small_part: None,
            in_flight: 0,
            bytes: Vec::new(),
            core_of: Vec::new(),
            held: Vec::new(),
            recent: VecDeque::new(),
        }
    }

    /// Allows small commands to take 1/`part` in addition to the budget.
    #[must_use]
    pub fn beside_small(mut self, part: u64) -> Self {
        self.small_part = Some(part);
        self
    }

    fn largest_of_late(&mut self, budget: u64, now: Nanos) -> u64 {
        while self.recent.back().is_some_and(|(_, b)| *b <= budget) {
            self.recent.pop_back();
        }
        self.recent.push_back((now, budget));
        while self.recent.front().is_some_and(|(at, _)| at + Self::GRACE < now) {
            self.recent.pop_front();
        }
        self.recent.front().map_or(budget, |(_, b)| *b)
    }
}

impl Checker for Budget {
    fn see(&mut self, seen: SimEvent, now: Nanos) -> Result<(), String> {
        match seen {
            SimEvent::Waits { command, bytes, .. } => *slot(&mut self.bytes, command) = bytes,
            SimEvent::Released { command } => {
                self.in_flight -= u64::from(*slot(&mut self.bytes, command));
                let core = *slot(&mut self.core_of, command);
                *slot(&mut self.held, core) -= 1;
            }
            SimEvent::Starts { command, core, budget } => {
                self.in_flight += u64::from(*slot(&mut self.bytes, command));
                *slot(&mut self.core_of, command) = core;
                let held = slot(&mut self.held, core);
                *held += 1;
                let is_all_it_holds = *held == 1;
                let Some(budget) = budget else { return Ok(()) };
                let budget_of_late = self.largest_of_late(budget, now);
                let small = self.small_part.map_or(0, |part| budget_of_late / part);
                let most = budget_of_late + small + self.slack;
                if self.in_flight > most && !is_all_it_holds {
                    let bytes = self.in_flight;
                    return Err(format!("{bytes} bytes in flight of a budget of {budget}"));
                }
            }
            SimEvent::Issued { .. } | SimEvent::Answered { .. } => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(checker: &mut Budget, command: u32, budget: u64, now: Nanos) -> Result<(), String> {
        let waits = SimEvent::Waits { command, core: 0, flow: 0, bytes: 10 };
        checker.see(waits, now).and_then(|()| {
            checker.see(SimEvent::Starts { command, core: 0, budget: Some(budget) }, now)
        })
    }

    #[test]
    fn a_machine_that_starts_more_than_the_budget_is_caught() {
        let mut checker = Budget::new(2, 10);
        for command in 0..5 {
            assert_eq!(start(&mut checker, command, 30, 0), Ok(()));
        }
        assert!(start(&mut checker, 5, 30, 0).is_err());
    }

    #[test]
    fn a_core_that_holds_nothing_may_start_one_and_no_more() {
        let mut checker = Budget::new(1, 10);
        for command in 0..9 {
            assert_eq!(start(&mut checker, command, 100, 0), Ok(()));
        }
        let later = Budget::GRACE + 1_000;
        let mut on_core_1 = |command| {
            let waits = SimEvent::Waits { command, core: 1, flow: 0, bytes: 10 };
            let starts = SimEvent::Starts { command, core: 1, budget: Some(10) };
            checker.see(waits, later).and_then(|()| checker.see(starts, later))
        };
        assert_eq!(on_core_1(20), Ok(()));
        assert!(on_core_1(21).is_err());
    }

    #[test]
    fn a_release_makes_room_and_a_smaller_budget_binds_after_its_grace() {
        let mut checker = Budget::new(1, 10);
        for command in 0..4 {
            assert_eq!(start(&mut checker, command, 30, 0), Ok(()));
        }
        assert!(checker.see(SimEvent::Released { command: 0 }, 1).is_ok());
        assert_eq!(start(&mut checker, 0, 10, 2), Ok(()));
        assert!(checker.see(SimEvent::Released { command: 0 }, 3).is_ok());
        assert!(start(&mut checker, 0, 10, Budget::GRACE + 1_000).is_err());
    }
}
