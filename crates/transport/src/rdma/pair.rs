//! A queue pair, and the operations that each of its states allows.
//!
//! ```text
//!   from       | step                 | to         owner of the queue pair
//!   -----------+----------------------+-----------------------------------------------------------
//!   Asking     | Made                 | Accepting  none: it does not exist yet
//!   Accepting  | Accepted             | Accepted   the CM worker, which accepts
//!   Accepted   | Established          | Open       the reactor
//!   Open       | End                  | Draining   the reactor
//!   Draining   | Flushed, Overdue     | Ending     the reactor
//!   Ending     | Destroyed, Withheld  | Gone       the CM worker, which destroys it
//!   -----------+----------------------+-----------------------------------------------------------
//!   Asking     | End, Lost            | Gone       (the request is rejected)
//!   Accepting  | End, Lost            | Recalled   the CM worker
//!   Recalled   | Accepted             | Draining   (it was too late)
//!   Accepting, Recalled | Destroyed   | Gone       (not accepted)
//!   Accepted   | End                  | Draining
//!   Accepted, Open, Draining | Lost   | Ending
//! ```
//!
//! In Asking there is no queue pair yet: its completion queue is being created. In Accepting and
//! Recalled the [CM worker](super::usher) owns it, with its receives posted, and makes it ready. A
//! recalled pair ends as soon as it returns. Accepted allows receives, Open also sends, and
//! Draining only a marker. In Ending the CM worker owns it again, and destroys it. Gone has no
//! queue pair, or (Withheld) one that could not be destroyed and keeps the memory it may use.
//!
//! The types correspond: [`Pair<Init>`](Init), [`Pair<Accepted>`](Accepted),
//! [`Pair<Ready>`](Ready), [`Pair<Draining>`](Draining). Work is sent through [`Pair::sends`],
//! which only a ready pair has:
//!
//! ```
//! use nvmeof_transport::rdma::{Pair, Ready};
//! use nvmeof_verbs::Endpoint;
//! fn send<E: Endpoint>(mut pair: Pair<Ready, E>) {
//!     let _ = pair.sends();
//! }
//! ```
//!
//! Before the connection is established, it does not compile:
//!
//! ```compile_fail
//! use nvmeof_transport::rdma::{Init, Pair};
//! use nvmeof_verbs::Endpoint;
//! fn send<E: Endpoint>(mut pair: Pair<Init, E>) {
//!     let _ = pair.sends();
//! }
//! ```
//!
//! Nor before the host has confirmed it:
//!
//! ```compile_fail
//! use nvmeof_transport::rdma::{Accepted, Pair};
//! use nvmeof_verbs::Endpoint;
//! fn send<E: Endpoint>(mut pair: Pair<Accepted, E>) {
//!     let _ = pair.sends();
//! }
//! ```
//!
//! Nor after its end:
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

use nvmeof_verbs::{AcceptParams, ConnectionEvent, Device, Endpoint, LastReceive, VerbsError};
use nvmeof_wire::rdma::RejectStatus;

use super::usher::{Recall, Slip, Usher};

/// Stage of a queue pair, as in the diagram above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// A connection request exists, and a completion queue is being created.
    Asking,
    /// Receives are posted; the CM worker accepts.
    Accepting,
    /// As Accepting, but the connection is cancelled.
    Recalled,
    /// The host is notified; it has not confirmed yet.
    Accepted,
    /// The connection is established.
    Open,
    /// The queue pair is in its error state, and returns its work.
    Draining,
    /// The CM worker destroys the queue pair.
    Ending,
    /// The queue pair no longer exists.
    Gone,
}

/// Event that changes the stage of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The queue pair is created.
    Made,
    /// The CM worker has accepted.
    Accepted,
    /// The connection is established.
    Established,
    /// The connection ends, for any reason and from either side.
    End,
    /// All posted work has returned.
    Flushed,
    /// The work did not return in time.
    Overdue,
    /// The device or its completion queue has failed: no more work returns.
    Lost,
    /// The CM worker has destroyed the queue pair.
    Destroyed,
    /// The CM worker did not destroy it in time: the queue no longer waits for that.
    Withheld,
}

/// All transitions.
const TABLE: [(Stage, Step, Stage); 19] = [
    (Stage::Asking, Step::Made, Stage::Accepting),
    (Stage::Asking, Step::End, Stage::Gone),
    (Stage::Asking, Step::Lost, Stage::Gone),
    (Stage::Accepting, Step::Accepted, Stage::Accepted),
    (Stage::Accepting, Step::Destroyed, Stage::Gone),
    (Stage::Accepting, Step::End, Stage::Recalled),
    (Stage::Accepting, Step::Lost, Stage::Recalled),
    (Stage::Recalled, Step::Accepted, Stage::Draining),
    (Stage::Recalled, Step::Destroyed, Stage::Gone),
    (Stage::Accepted, Step::Established, Stage::Open),
    (Stage::Accepted, Step::End, Stage::Draining),
    (Stage::Accepted, Step::Lost, Stage::Ending),
    (Stage::Open, Step::End, Stage::Draining),
    (Stage::Open, Step::Lost, Stage::Ending),
    (Stage::Draining, Step::Flushed, Stage::Ending),
    (Stage::Draining, Step::Overdue, Stage::Ending),
    (Stage::Draining, Step::Lost, Stage::Ending),
    (Stage::Ending, Step::Destroyed, Stage::Gone),
    (Stage::Ending, Step::Withheld, Stage::Gone),
];

impl Stage {
    /// Returns the stage after a step; `None` if the step changes nothing.
    #[must_use]
    pub fn after(self, step: Step) -> Option<Self> {
        TABLE.iter().find(|(from, by, _)| (*from, *by) == (self, step)).map(|(_, _, to)| *to)
    }

    /// Returns true if the connection is established or can still become so.
    #[must_use]
    pub fn is_live(self) -> bool {
        matches!(self, Self::Asking | Self::Accepting | Self::Accepted | Self::Open)
    }

    /// Returns true if the CM worker owns the queue pair.
    #[must_use]
    pub fn is_away(self) -> bool {
        matches!(self, Self::Accepting | Self::Recalled | Self::Ending)
    }
}

/// Created, and unknown to the host.
#[derive(Debug)]
pub struct Init;
/// Accepted, but not confirmed by the host.
#[derive(Debug)]
pub struct Accepted;
/// Connected.
#[derive(Debug)]
pub struct Ready;
/// Ended, with work still to return.
#[derive(Debug)]
pub struct Draining;

/// States in which receives are posted.
pub trait Receiving {}
impl Receiving for Init {}
impl Receiving for Accepted {}
impl Receiving for Ready {}

/// States of a connection that is established or can still become so.
pub trait Connected {}
impl Connected for Accepted {}
impl Connected for Ready {}

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

    pub(super) fn into_endpoint(self) -> E {
        self.endpoint
    }

    pub(super) fn next_event(&mut self) -> Option<ConnectionEvent> {
        self.endpoint.next_event()
    }

    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.endpoint.fd()
    }
}

impl<S: Connected, E: Endpoint> Pair<S, E> {
    /// Ends the connection: all posted work returns.
    #[must_use]
    pub fn end(mut self) -> Pair<Draining, E> {
        self.endpoint.disconnect();
        self.become_()
    }
}

impl<E: Endpoint> Pair<Init, E> {
    /// Wraps a new queue pair.
    #[must_use]
    pub fn new(endpoint: E) -> Self {
        Self { endpoint, state: PhantomData }
    }

    /// Accepts the connection; [`ConnectionEvent::Established`] follows. Can block in the kernel.
    ///
    /// # Errors
    /// Returns the error of the system, and the pair, which can only be destroyed.
    pub fn accept(
        mut self,
        params: &AcceptParams<'_>,
    ) -> Result<Pair<Accepted, E>, (VerbsError, Self)> {
        match self.endpoint.accept(params) {
            Ok(()) => Ok(self.become_()),
            Err(error) => Err((error, self)),
        }
    }
}

impl<E: Endpoint> Pair<Accepted, E> {
    /// Records that the connection is established.
    #[must_use]
    pub fn established(self) -> Pair<Ready, E> {
        self.become_()
    }
}

impl<E: Endpoint> Pair<Ready, E> {
    /// Returns the right to post to the send queue.
    pub fn sends(&mut self) -> Sends<'_, E> {
        Sends { endpoint: &mut self.endpoint }
    }
}

/// A queue pair in any state. Only the functions below change it, as the table specifies.
#[derive(Debug)]
pub(super) enum Link<D: Device> {
    Asking(D::Ticket),
    Accepting(Recall),
    Recalled,
    Accepted(Pair<Accepted, D::Endpoint>),
    Open(Pair<Ready, D::Endpoint>),
    Draining(Pair<Draining, D::Endpoint>),
    Ending,
    Gone,
}

impl<D: Device> Link<D> {
    pub(super) fn stage(&self) -> Stage {
        match self {
            Self::Asking(_) => Stage::Asking,
            Self::Accepting(_) => Stage::Accepting,
            Self::Recalled => Stage::Recalled,
            Self::Accepted(_) => Stage::Accepted,
            Self::Open(_) => Stage::Open,
            Self::Draining(_) => Stage::Draining,
            Self::Ending => Stage::Ending,
            Self::Gone => Stage::Gone,
        }
    }

    /// Creates the queue pair of the ticket, and passes it to the CM worker, which returns a
    /// recall.
    ///
    /// If that fails, the stage is Gone.
    pub(super) fn make(&mut self, made: impl FnOnce(D::Ticket) -> Option<Recall>) {
        if self.stage().after(Step::Made).is_some()
            && let Self::Asking(ticket) = std::mem::replace(self, Self::Gone)
            && let Some(recall) = made(ticket)
        {
            *self = Self::Accepting(recall);
        }
    }

    /// Stores the accepted queue pair from the CM worker; returns the new stage.
    pub(super) fn accepted(&mut self, pair: Pair<Accepted, D::Endpoint>) -> Option<Stage> {
        let to = self.stage().after(Step::Accepted)?;
        *self = match to {
            Stage::Draining => Self::Draining(pair.end()),
            _ => Self::Accepted(pair),
        };
        Some(to)
    }

    /// Makes the transition of the table; returns the new stage if it changes.
    ///
    /// A pair that must be destroyed goes to the CM worker. After the reply, the device uses no
    /// memory of it.
    pub(super) fn step(&mut self, step: Step, usher: &Usher<D>, slip: &Slip<D>) -> Option<Stage> {
        let to = self.stage().after(step)?;
        debug_assert!(
            !matches!(step, Step::Made | Step::Accepted),
            "these come with what they are of"
        );
        let destroy = |endpoint| {
            usher.destroy(endpoint, slip.clone());
            Self::Ending
        };
        *self = match (std::mem::replace(self, Self::Gone), to) {
            (Self::Asking(ticket), _) => {
                usher.reject(ticket, RejectStatus::NO_RESOURCES);
                Self::Gone
            }
            (Self::Accepting(recall), Stage::Recalled) => {
                recall.call();
                Self::Recalled
            }
            (Self::Accepted(pair), Stage::Open) => Self::Open(pair.established()),
            (Self::Accepted(pair), Stage::Draining) => Self::Draining(pair.end()),
            (Self::Open(pair), Stage::Draining) => Self::Draining(pair.end()),
            (Self::Accepted(pair), Stage::Ending) => destroy(pair.into_endpoint()),
            (Self::Open(pair), Stage::Ending) => destroy(pair.into_endpoint()),
            (Self::Draining(pair), Stage::Ending) => destroy(pair.into_endpoint()),
            (_, to) => {
                debug_assert_eq!(to, Stage::Gone, "a transition that nobody does");
                Self::Gone
            }
        };
        Some(to)
    }

    /// Removes the queue pair permanently, if it is here.
    pub(super) fn take_endpoint(&mut self) -> Option<D::Endpoint> {
        match std::mem::replace(self, Self::Gone) {
            Self::Accepted(pair) => Some(pair.into_endpoint()),
            Self::Open(pair) => Some(pair.into_endpoint()),
            Self::Draining(pair) => Some(pair.into_endpoint()),
            _ => None,
        }
    }

    /// Records that a capsule arrived before the host's confirmation: the host has the acceptance.
    pub(super) fn heard(&mut self) {
        if let Self::Accepted(pair) = self {
            pair.endpoint.heard();
        }
    }

    pub(super) fn next_event(&mut self) -> Option<ConnectionEvent> {
        match self {
            Self::Accepted(pair) => pair.next_event(),
            Self::Open(pair) => pair.next_event(),
            Self::Draining(pair) => pair.next_event(),
            _ => None,
        }
    }

    /// Returns the state of a draining pair's shared receives.
    pub(super) fn last_receive(&mut self) -> LastReceive {
        match self {
            Self::Draining(pair) => pair.endpoint.last_receive(),
            _ => LastReceive::Awaited,
        }
    }

    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Accepted(pair) => pair.fd(),
            Self::Open(pair) => pair.fd(),
            Self::Draining(pair) => pair.fd(),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAGES: [Stage; 8] = [
        Stage::Asking,
        Stage::Accepting,
        Stage::Recalled,
        Stage::Accepted,
        Stage::Open,
        Stage::Draining,
        Stage::Ending,
        Stage::Gone,
    ];

    #[test]
    fn every_stage_ends_and_nothing_comes_back_to_life() {
        for stage in STAGES {
            // A pair of the CM worker that is already ending waits for the worker, whatever happens
            // to the device.
            let waits = matches!(stage, Stage::Recalled | Stage::Ending | Stage::Gone);
            assert_eq!(stage.after(Step::Lost).is_some(), !waits, "{stage:?}");
            assert_eq!(stage.after(Step::Destroyed).is_some(), stage.is_away(), "{stage:?}");
            assert_eq!(stage.after(Step::End).is_some(), stage.is_live(), "{stage:?}");
        }
        let rank = |stage| STAGES.iter().position(|one| *one == stage);
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
