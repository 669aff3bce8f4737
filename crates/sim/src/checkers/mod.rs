//! Watchers that know nothing of the machine but what it says happened, and object to what must
//! never happen.

mod budget;
mod conservation;
mod permits;
mod starvation;

pub use budget::Budget;
pub use conservation::Conservation;
pub use permits::Permits;
pub use starvation::{Bound, Starvation};

use crate::scenario::Nanos;

/// What a watcher is told. A command's number may come again once its permit is back and the host
/// has its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seen {
    /// A host issued a command.
    Issued {
        /// Its number.
        command: u32,
    },
    /// A command came to the target and asks to start.
    Waits {
        /// Its number.
        command: u32,
        /// Where.
        core: u32,
        /// Whose: a queue.
        flow: u32,
        /// What it takes.
        bytes: u32,
    },
    /// A command got its permit.
    Starts {
        /// Its number.
        command: u32,
        /// Where.
        core: u32,
        /// The bytes that may be in flight now on all cores, if bounded.
        budget: Option<u64>,
    },
    /// A permit went back.
    Released {
        /// Its number.
        command: u32,
    },
    /// A host got its answer.
    Answered {
        /// Its number.
        command: u32,
    },
}

/// Objects to what must never happen.
pub trait Checker: std::fmt::Debug {
    /// Something happened at `now`.
    ///
    /// # Errors
    /// In words what is broken.
    fn see(&mut self, seen: Seen, now: Nanos) -> Result<(), String>;

    /// The run is over.
    ///
    /// # Errors
    /// In words what is broken.
    fn end(&mut self, _now: Nanos) -> Result<(), String> {
        Ok(())
    }
}

/// Several watchers and what they found, at most [`Watch::MOST`] of it.
#[derive(Debug, Default)]
pub struct Watch {
    checkers: Vec<Box<dyn Checker>>,
    found: Vec<String>,
}

impl Watch {
    /// Most findings that are kept.
    pub const MOST: usize = 20;

    /// With these watchers.
    #[must_use]
    pub fn new(checkers: Vec<Box<dyn Checker>>) -> Self {
        Self { checkers, found: Vec::new() }
    }

    /// Tells all of them.
    pub fn see(&mut self, seen: Seen, now: Nanos) {
        for checker in &mut self.checkers {
            if let Err(what) = checker.see(seen, now)
                && self.found.len() < Self::MOST
            {
                self.found.push(format!("{now} ns: {what}"));
            }
        }
    }

    /// Ends the run; yields all findings.
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
