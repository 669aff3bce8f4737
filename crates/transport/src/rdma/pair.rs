//! A queue pair, and what may be done with it.
//!
//! ```text
//!            Established            End                  Flushed, Overdue
//! Accepting -------------> Open ----------> Draining ---------------------> Gone
//!     |                     |                  ^                             ^
//!     |        End          |                  |                             |
//!     '---------------------+------------------'                             |
//!     '---------------------'------------------' Lost -----------------------'
//! ```
//!
//! In Accepting receives are posted, in Open sends too, in Draining nothing but a marker; Gone has no queue
//! pair. The types follow: [`Pair<Init>`](Init), [`Pair<Ready>`](Ready), [`Pair<Draining>`](Draining). Work is
//! sent through [`Pair::sends`], which only a pair that is ready has:
//!
//! ```
//! use nvmeof_transport::rdma::{Pair, Ready};
//! use nvmeof_verbs::Endpoint;
//! fn send<E: Endpoint>(mut pair: Pair<Ready, E>) {
//!     let _ = pair.sends();
//! }
//! ```
//!
//! Before the connection stands it does not compile:
//!
//! ```compile_fail
//! use nvmeof_transport::rdma::{Init, Pair};
//! use nvmeof_verbs::Endpoint;
//! fn send<E: Endpoint>(mut pair: Pair<Init, E>) {
//!     let _ = pair.sends();
//! }
//! ```
//!
//! Nor does it after its end:
//!
//! ```compile_fail
//! use nvmeof_transport::rdma::{Draining, Pair};
//! use nvmeof_verbs::Endpoint;
//! fn send<E: Endpoint>(mut pair: Pair<Draining, E>) {
//!     let _ = pair.sends();
//! }
//! ```

use std::marker::PhantomData;
use std::os::fd::BorrowedFd;

use nvmeof_verbs::{AcceptParams, ConnectionEvent, Endpoint, VerbsError};

/// Where a queue pair is in its life: the diagram above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Receives are posted; the host has not said that it heard our acceptance.
    Accepting,
    /// The connection stands.
    Open,
    /// The queue pair is in its error state, and work comes back.
    Draining,
    /// There is no queue pair any more.
    Gone,
}

/// What moves a queue pair on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The connection stands.
    Established,
    /// It ends, for whatever reason and by whomever.
    End,
    /// All posted work has come back.
    Flushed,
    /// It did not come back in time.
    Overdue,
    /// The device or its completion queue is gone: nothing will come back.
    Lost,
}

/// Every transition there is.
const TABLE: [(Stage, Step, Stage); 8] = [
    (Stage::Accepting, Step::Established, Stage::Open),
    (Stage::Accepting, Step::End, Stage::Draining),
    (Stage::Accepting, Step::Lost, Stage::Gone),
    (Stage::Open, Step::End, Stage::Draining),
    (Stage::Open, Step::Lost, Stage::Gone),
    (Stage::Draining, Step::Flushed, Stage::Gone),
    (Stage::Draining, Step::Overdue, Stage::Gone),
    (Stage::Draining, Step::Lost, Stage::Gone),
];

impl Stage {
    /// Where a step leads; `None` if it changes nothing.
    #[must_use]
    pub fn after(self, step: Step) -> Option<Self> {
        TABLE.iter().find(|(from, by, _)| (*from, *by) == (self, step)).map(|(_, _, to)| *to)
    }
}

/// Not connected yet.
#[derive(Debug)]
pub struct Init;
/// Connected.
#[derive(Debug)]
pub struct Ready;
/// Ended, with work still to come back.
#[derive(Debug)]
pub struct Draining;

/// States in which receives are posted.
pub trait Receiving {}
impl Receiving for Init {}
impl Receiving for Ready {}

/// A queue pair in state `S`.
#[derive(Debug)]
pub struct Pair<S, E> {
    pub(super) endpoint: E,
    state: PhantomData<S>,
}

/// The right to post to the send queue.
#[derive(Debug)]
pub struct Sends<'a, E> {
    pub(super) endpoint: &'a mut E,
}

impl<S, E: Endpoint> Pair<S, E> {
    fn become_<T>(self) -> Pair<T, E> {
        Pair { endpoint: self.endpoint, state: PhantomData }
    }

    pub(super) fn next_event(&mut self) -> Option<ConnectionEvent> {
        self.endpoint.next_event()
    }

    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.endpoint.fd()
    }
}

impl<S: Receiving, E: Endpoint> Pair<S, E> {
    /// Ends the connection: everything posted comes back.
    #[must_use]
    pub fn end(mut self) -> Pair<Draining, E> {
        self.endpoint.disconnect();
        self.become_()
    }
}

impl<E: Endpoint> Pair<Init, E> {
    /// A queue pair that was just made.
    #[must_use]
    pub fn new(endpoint: E) -> Self {
        Self { endpoint, state: PhantomData }
    }

    /// Accepts the connection; [`ConnectionEvent::Established`] follows.
    ///
    /// # Errors
    /// What the system says.
    pub fn accept(&mut self, params: &AcceptParams<'_>) -> Result<(), VerbsError> {
        self.endpoint.accept(params)
    }

    /// The connection stands.
    #[must_use]
    pub fn established(self) -> Pair<Ready, E> {
        self.become_()
    }
}

impl<E: Endpoint> Pair<Ready, E> {
    /// The right to post to the send queue.
    pub fn sends(&mut self) -> Sends<'_, E> {
        Sends { endpoint: &mut self.endpoint }
    }
}

/// A queue pair in whichever state it is; moved by [`Link::step`] only.
#[derive(Debug)]
pub(super) enum Link<E> {
    Accepting(Pair<Init, E>),
    Open(Pair<Ready, E>),
    Draining(Pair<Draining, E>),
    Gone,
}

impl<E: Endpoint> Link<E> {
    pub(super) fn stage(&self) -> Stage {
        match self {
            Self::Accepting(_) => Stage::Accepting,
            Self::Open(_) => Stage::Open,
            Self::Draining(_) => Stage::Draining,
            Self::Gone => Stage::Gone,
        }
    }

    /// Does what the table says; the new stage, if it is a new one. A pair that goes is dropped: from then on
    /// the device uses no memory of it.
    pub(super) fn step(&mut self, step: Step) -> Option<Stage> {
        let to = self.stage().after(step)?;
        *self = match (std::mem::replace(self, Self::Gone), to) {
            (Self::Accepting(pair), Stage::Open) => Self::Open(pair.established()),
            (Self::Accepting(pair), Stage::Draining) => Self::Draining(pair.end()),
            (Self::Open(pair), Stage::Draining) => Self::Draining(pair.end()),
            (pair, _) => {
                debug_assert_eq!(to, Stage::Gone, "a transition that nobody does");
                drop(pair);
                Self::Gone
            }
        };
        Some(to)
    }

    pub(super) fn next_event(&mut self) -> Option<ConnectionEvent> {
        match self {
            Self::Accepting(pair) => pair.next_event(),
            Self::Open(pair) => pair.next_event(),
            Self::Draining(pair) => pair.next_event(),
            Self::Gone => None,
        }
    }

    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Accepting(pair) => pair.fd(),
            Self::Open(pair) => pair.fd(),
            Self::Draining(pair) => pair.fd(),
            Self::Gone => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_stage_ends_and_nothing_comes_back_to_life() {
        let stages = [Stage::Accepting, Stage::Open, Stage::Draining, Stage::Gone];
        for stage in stages {
            assert_eq!(stage.after(Step::Lost).is_some(), stage != Stage::Gone);
        }
        let rank = |stage| stages.iter().position(|one| *one == stage);
        for (from, _, to) in TABLE {
            assert!(rank(from) < rank(to), "{from:?} -> {to:?}");
        }
        assert_eq!(Stage::Open.after(Step::Flushed), None);
        assert_eq!(Stage::Draining.after(Step::Established), None);
        for (at, (from, step, _)) in TABLE.iter().enumerate() {
            let same = TABLE.iter().skip(at + 1).find(|(f, s, _)| (f, s) == (from, step));
            assert_eq!(same, None, "a step that leads to two places");
        }
    }
}
