//! Checkers of invariants. They see only the events that the machine reports.

mod budget;
mod conservation;
mod permits;
mod starvation;

pub use budget::Budget;
pub use conservation::Conservation;
pub use permits::Permits;
pub use starvation::{Starvation, StarvationBound};

use crate::scenario::Nanos;

/// Event for a checker. A command's number may be reused once its permit is released and the host
/// has its response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SimEvent {
    /// A host issued a command.
    Issued {
        /// Its number.
        command: u32,
    },
    /// A command arrived at the target and asks to start.
    Waits {
        /// Its number.
        command: u32,
        /// Its core.
        core: u32,
        /// Its flow: a queue.
        flow: u32,
        /// Its cost in bytes.
        bytes: u32,
    },
    /// A command got its permit.
    Starts {
        /// Its number.
        command: u32,
        /// Its core.
        core: u32,
        /// The bytes that may be in flight now on all cores, if bounded.
        budget: Option<u64>,
    },
    /// A permit was released.
    Released {
        /// Its number.
        command: u32,
    },
    /// A host got its response.
    Answered {
        /// Its number.
        command: u32,
    },
}

/// Checks one invariant.
pub trait Checker: std::fmt::Debug {
    /// Handles an event at `now`.
    ///
    /// # Errors
    /// A description of the violation.
    fn see(&mut self, seen: SimEvent, now: Nanos) -> Result<(), String>;

    /// Ends the run.
    ///
    /// # Errors
    /// A description of the violation.
    fn end(&mut self, _now: Nanos) -> Result<(), String> {
        Ok(())
    }
}

/// Several checkers and their findings, at most [`CheckerSet::MOST`].
#[derive(Debug, Default)]
pub struct CheckerSet {
    checkers: Vec<Box<dyn Checker>>,
    found: Vec<String>,
}

impl CheckerSet {
    /// Maximum number of findings.
    pub const MOST: usize = 20;

    /// Creates a set of checkers.
    #[must_use]
    pub fn new(checkers: Vec<Box<dyn Checker>>) -> Self {
        Self { checkers, found: Vec::new() }
    }

    /// Passes an event to all of them.
    pub fn see(&mut self, seen: SimEvent, now: Nanos) {
        for checker in &mut self.checkers {
            if let Err(what) = checker.see(seen, now)
                && self.found.len() < Self::MOST
            {
                self.found.push(format!("{now} ns: {what}"));
            }
        }
    }

    /// Ends the run; returns all findings.
    #[must_use]
    pub fn end(mut self, now: Nanos) -> Vec<String> {
        for checker in &mut self.checkers {
            if let Err(what) = checker.end(now) {
                self.found.push(format!("at the end: {what}"));
            }
        }
        self.found
    }
}

/// Grows a list to hold a position.
fn slot<T: Clone + Default>(list: &mut Vec<T>, at: u32) -> &mut T {
    let at = at as usize;
    if at >= list.len() {
        list.resize(at + 1, T::default());
    }
    &mut list[at]
}
